"""Squared distances, by one matrix product about a common centre."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.runtime import is_exporting, only_reverse_mode
from kdmkit._core.tensors import at_least_float32
from kdmkit.ops.terms.base import Roles, Term, common_dtype

_CENTRE_SAMPLE = 32
# The largest ‖s_j ∘ c_j‖² that is expanded in float64: the error of scores is about 1e-9 then.
_LARGEST_EXPANDED = 1e7
# The largest (‖x_i‖ + ‖c_j‖)²·‖g_jk‖² of projections in float32: the error of scores is 4e-6 then.
_LARGEST_SINGLE = 32.0
# The smallest s_j² that is: smaller ones underflow.
_LEAST_PRECISION = 1e-290


def robust_centre(components: Float[Tensor, "*lead m d"]) -> Float[Tensor, "*lead 1 d"]:
    """The coordinate-wise median of a few components: near the data, whatever the outliers."""
    step = max(1, components.shape[-2] // _CENTRE_SAMPLE)
    few = components.detach()[..., ::step, :]
    if is_exporting():
        # ONNX has no median.
        middle = (few.shape[-2] - 1) // 2
        return few.sort(-2).values[..., middle : middle + 1, :]
    return few.median(-2, keepdim=True).values


def _differences(
    x: Float[Tensor, "*#lead n d"], components: Float[Tensor, "*#lead m d"]
) -> Float[Tensor, "*#lead n m d"]:
    return at_least_float32(x).unsqueeze(-2) - at_least_float32(components).unsqueeze(-3)


def loses_digits(c: Float[Tensor, "*lead m d"], scales: Float[Tensor, "*lead m d"]) -> Tensor:
    """The components whose scores −s²x² + 2s²cx − s²c² lose digits in float64, whatever the query.

    The error is about ε·s²(x² + c²). Queries more than twice as far from the centre as c do not matter: their
    scores are as large as s²x². For the others s²c² bounds it.

    Args:
        c, scales: components relative to the centre, and their scales.
    """
    # Not >, which is false for NaN.
    return ~((scales * c).square().sum(-1) <= _LARGEST_EXPANDED) | (
        scales.square().amin(-1) < _LEAST_PRECISION
    )


def scores_by_differences(
    x: Float[Tensor, "*#lead n d"], c: Float[Tensor, "*#lead m d"], scales: Float[Tensor, "*#lead m d"]
) -> Float[Tensor, "*lead n m"]:
    """−‖s_j ∘ (x_i − c_j)‖² without an expansion, dimension by dimension to save memory."""
    columns = zip(x.unbind(-1), c.unbind(-1), scales.unbind(-1), strict=True)
    total: Tensor | float = 0.0
    for of_x, of_c, scale in columns:
        total = total - (scale.unsqueeze(-2) * (of_x.unsqueeze(-1) - of_c.unsqueeze(-2))).square()
    return torch.as_tensor(total)


def score_dtype(x: Tensor, components: Tensor) -> torch.dtype:
    """The precision in which squared distances are expanded into products.

    The expansion ‖x‖² − 2x·c + ‖c‖² loses digits when points lie many bandwidths from the centre but near
    each other: always in few dimensions, and in many if the data form clusters (128 dimensions, clusters 30σ
    apart: float32 changes probabilities by .03). Float64 on a CPU costs little beside the exponentials that
    follow, at most a factor of 2 in hundreds of dimensions. Scores are never in half precision.
    """
    dtype = torch.promote_types(torch.promote_types(x.dtype, components.dtype), torch.float32)
    if dtype == torch.float32 and x.device.type == "cpu":
        return torch.float64
    return dtype


def _centred(term: SquaredDistance | ComponentDistance, points: Tensor) -> Tensor:
    """Points relative to the centre of a term, in the precision of the expansion."""
    dtype = score_dtype(term.query, term.components)
    centre = robust_centre(term.components) if term.centre is None else term.centre
    return points.to(dtype) - centre.to(dtype)


@dataclass(frozen=True)
class SquaredDistance(Term):
    """scores[i, j] = −‖s ∘ (x_i − c_j)‖² with a scale s, or −‖L(x_i − c_j)‖² with a metric's factor L.

    The components enter the product as they are: scale and metric are applied to the queries.

    Args:
        query: x, of shape `(*lead, n, d)`.
        components: c, of shape `(*lead, m, d)`.
        scale: s = 1/σ, of shape `(*lead, 1, d)`, or `(*lead, 1, 1)` for all dimensions; with `metric`, L, of
            shape `(*lead, d, d)`.
        metric: whether `scale` is a matrix.
        centre: a point near queries and components, from which the products are computed; None is the
            components' mean.

    >>> SquaredDistance(torch.tensor([[0.0]]), torch.tensor([[0.0], [2.0]]), torch.ones(1, 1)).exact()
    tensor([[-0., -4.]])
    """

    field_roles: ClassVar[Roles] = {"query": "query", "components": "component", "scale": "shared"}
    query: Float[Tensor, "*#lead n d"]
    components: Float[Tensor, "*#lead m d"]
    scale: Float[Tensor, "*#lead s t"]
    metric: bool = False
    centre: Float[Tensor, "*#lead 1 d"] | None = field(default=None, kw_only=True)

    @property
    def dtype(self) -> torch.dtype:
        # A scale may be wider: rounded, it would move the scores of far queries by more than 1.
        return common_dtype((self.query, self.components))

    @property
    def plain(self) -> bool:
        """Whether query, components and scale are matrices, without a batch and without a metric."""
        return not self.metric and self.query.ndim == self.components.ndim == self.scale.ndim == 2

    def prepared(self) -> SquaredDistance:
        # Gradients through `matrix` and through `row` nearly cancel: they must meet before they are rounded.
        dtype, centre = score_dtype(self.query, self.components), robust_centre(self.components)
        return replace(self, query=self.query.to(dtype), scale=self.scale.to(dtype), centre=centre)

    def exact(self) -> Float[Tensor, "*lead n m"]:
        difference = _differences(self.query, self.components)
        dtype = torch.promote_types(difference.dtype, self.scale.dtype)
        scaled = self._apply(self.scale.to(dtype).unsqueeze(-3), difference.to(dtype))
        return scaled.square().sum(-1).neg()

    def _apply(self, scale: Tensor, vectors: Tensor) -> Tensor:
        return torch.matmul(vectors, scale.mT) if self.metric else scale * vectors

    def matrix(self) -> Float[Tensor, "*lead n m"]:
        x, c = _centred(self, self.query), _centred(self, self.components)
        scale = self.scale.to(x.dtype)
        x = 2 * self._apply(scale.mT if self.metric else scale, self._apply(scale, x))
        bias = self._apply(scale, c).square().sum(-1).neg()
        if x.ndim == c.ndim == 2:
            product = torch.addmm(bias, x, c.mT)
        else:
            product = torch.matmul(x, c.mT) + bias.unsqueeze(-2)
        return product if self._splits_row else product.add_(self._row().unsqueeze(-1))

    def row(self) -> Float[Tensor, "*lead n"] | None:
        return self._row() if self._splits_row else None

    @property
    def _splits_row(self) -> bool:
        """Whether `matrix` leaves out −‖s(x_i − centre)‖².

        Far from all components that number is much larger than the differences between their scores, which
        float32 would lose. In float64 `matrix` includes it: the scale's gradients through both parts nearly
        cancel, and do so exactly only if both are multiplied by the same rounded probabilities.
        """
        return score_dtype(self.query, self.components) != torch.float64

    def component_factor(self) -> Float[Tensor, "m p"] | None:
        if not self.plain or score_dtype(self.query, self.components) != torch.float64:
            return None
        c = _centred(self, self.components)
        norm = (self.scale.to(c.dtype) * c).square().sum(-1, keepdim=True).neg()
        return torch.cat([c, torch.ones_like(norm), norm], -1)

    def query_factor(self) -> Float[Tensor, "n p"]:
        x = _centred(self, self.query)
        scale = self.scale.to(x.dtype)
        x = scale * x
        row = x.square().sum(-1, keepdim=True).neg()
        return torch.cat([2 * scale * x, row, torch.ones_like(row)], -1)

    def _row(self) -> Float[Tensor, "*lead n"]:
        x = _centred(self, self.query)
        return self._apply(self.scale.to(x.dtype), x).square().sum(-1).neg()


@dataclass(frozen=True)
class ComponentDistance(Term):
    """scores[i, j] = −‖s_j ∘ (x_i − c_j)‖²: every component has its scale.

    Args:
        query: x, of shape `(*lead, n, d)`.
        components: c, of shape `(*lead, m, d)`.
        scales: s_j = 1/σ_j, of shape `(*lead, m, d)` or `(*lead, m, 1)`.
        centre: as in `SquaredDistance`.

    >>> scales = torch.tensor([[1.0], [0.5]])
    >>> ComponentDistance(torch.tensor([[0.0]]), torch.tensor([[0.0], [2.0]]), scales).exact()
    tensor([[-0., -1.]])
    """

    field_roles: ClassVar[Roles] = {"query": "query", "components": "component", "scales": "component"}
    query: Float[Tensor, "*#lead n d"]
    components: Float[Tensor, "*#lead m d"]
    scales: Float[Tensor, "*#lead m s"]
    centre: Float[Tensor, "*#lead 1 d"] | None = field(default=None, kw_only=True)

    @property
    def dtype(self) -> torch.dtype:
        # Scales may be wider: rounded, they would move the scores of far queries by more than 1.
        return common_dtype((self.query, self.components))

    def prepared(self) -> ComponentDistance:
        return replace(self, centre=robust_centre(self.components))

    def exact(self) -> Float[Tensor, "*lead n m"]:
        difference = _differences(self.query, self.components)
        return -(at_least_float32(self.scales).unsqueeze(-3) * difference).square().sum(-1)

    def component_factor(self) -> Float[Tensor, "*lead m p"] | None:
        # Every query of a batch has its components.
        alike = self.query.ndim == self.components.ndim == self.scales.ndim
        if not alike or score_dtype(self.query, self.components) != torch.float64:
            return None
        c = _centred(self, self.components)
        scales = self.scales.to(c.dtype).expand_as(c)
        if bool(loses_digits(c.detach(), scales.detach()).any()):
            return None
        precision = scales.square()
        product = precision * c
        return torch.cat([-precision, 2 * product, -(product * c).sum(-1, keepdim=True)], -1)

    def query_factor(self) -> Float[Tensor, "*lead n p"]:
        x = _centred(self, self.query)
        return torch.cat([x.square(), x, torch.ones_like(x[..., :1])], -1)

    def matrix(self) -> Float[Tensor, "*lead n m"]:
        # −s²x² + 2s²cx − s²c²: one product over the features (x², x).
        x, c = _centred(self, self.query), _centred(self, self.components)
        scales, c = torch.broadcast_tensors(self.scales.to(x.dtype), c)
        precision = scales.square()
        features = torch.cat([x.square(), x], -1)
        against = torch.cat([-precision, 2 * precision * c], -1)
        scores = torch.matmul(features, against.mT) - (precision * c.square()).sum(-1).unsqueeze(-2)
        if x.device.type != "cpu" or not only_reverse_mode():
            # Which components need differences is unknown here, or takes long to find out.
            return scores.clamp_max(0)
        lossy = loses_digits(c.detach(), scales.detach())
        if not bool(lossy.any()):
            return scores
        chosen = lossy.reshape(-1, lossy.shape[-1]).any(0).nonzero().squeeze(1)
        query, components = [points.to(x.dtype) for points in (self.query, self.components)]
        exact = scores_by_differences(query, components[..., chosen, :], scales[..., chosen, :])
        return scores.index_copy(-1, chosen, exact)


@dataclass(frozen=True)
class LowRankDistance(Term):
    """scores[i, j] = −‖s_j ∘ (x_i − c_j)‖² + Σ_k (g_jk·(x_i − c_j))².

    With s² = 1/σ² and the directions g of `whitened_factors` it is −(x − c)ᵀ(diag(σ²) + F·Fᵀ)⁻¹(x − c), by
    Woodbury's identity: d·(2 + r) products for a pair, in float64 on every device, since the two sums nearly
    cancel along the factors. On a CPU, projections g·(x − c) of float32 points are in float32 if the error of
    scores remains below 4e-6.

    Args:
        query: x, of shape `(*lead, n, d)`.
        components: c, of shape `(*lead, m, d)`.
        scales: s_j = 1/σ_j, of shape `(*lead, m, d)`.
        directions: g_j, of shape `(*lead, m, r·d)`, one direction after the other.
        centre: a point near queries and components, from which products are computed; None is the
            components' median.

    >>> s, g = torch.ones(1, 2), torch.tensor([[0.6, 0.0]])
    >>> LowRankDistance(torch.tensor([[3.0, 1.0]]), torch.zeros(1, 2), s, g).exact().round(decimals=2)
    tensor([[-6.7600]], dtype=torch.float64)
    """

    field_roles: ClassVar[Roles] = {
        "query": "query",
        "components": "component",
        "scales": "component",
        "directions": "component",
    }
    query: Float[Tensor, "*#lead n d"]
    components: Float[Tensor, "*#lead m d"]
    scales: Float[Tensor, "*#lead m d"]
    directions: Float[Tensor, "*#lead m f"]
    centre: Float[Tensor, "*#lead 1 d"] | None = field(default=None, kw_only=True)

    @property
    def dtype(self) -> torch.dtype:
        return common_dtype((self.query, self.components))

    def prepared(self) -> LowRankDistance:
        return replace(self, centre=robust_centre(self.components))

    def _parts(self) -> tuple[Tensor, ...]:
        """Queries, components, scales and directions in float64."""
        return tuple([tensor.double() for tensor in self.tensors])

    def exact(self) -> Float[Tensor, "*lead n m"]:
        x, c, scales, directions = self._parts()
        difference = x.unsqueeze(-2) - c.unsqueeze(-3)
        across = (scales.unsqueeze(-3) * difference).square().sum(-1)
        along = directions.unflatten(-1, (-1, c.shape[-1])).unsqueeze(-4)
        return (along * difference.unsqueeze(-2)).sum(-1).square().sum(-1) - across

    def matrix(self) -> Float[Tensor, "*lead n m"]:
        x, c, scales, directions = self._parts()
        centre = (robust_centre(self.components) if self.centre is None else self.centre).double()
        x, c = x - centre, c - centre
        scales, c = torch.broadcast_tensors(scales, c)
        if x.ndim == c.ndim == directions.ndim == 2 and only_reverse_mode():
            is_single = self.dtype == torch.float32 and x.device.type == "cpu" and _is_near(x, c, directions)
            scores = _Scores.apply(torch.float32 if is_single else torch.float64, x, c, scales, directions)
        else:
            scores = _composed(x, c, scales, directions)
        if x.device.type != "cpu" or not only_reverse_mode():
            # Which components need differences is unknown here, or takes long to find out.
            return scores.clamp_max(0)
        lossy = loses_digits(c.detach(), scales.detach())
        if not bool(lossy.any()):
            return scores
        chosen = lossy.reshape(-1, lossy.shape[-1]).any(0).nonzero().squeeze(1)
        parts = [self.components, self.scales, self.directions]
        exact = LowRankDistance(self.query, *[part[..., chosen, :] for part in parts]).exact()
        return scores.index_copy(-1, chosen, exact)


def _composed(x: Tensor, c: Tensor, scales: Tensor, directions: Tensor) -> Float[Tensor, "*lead n m"]:
    """The scores by operations that can be differentiated any number of times."""
    weighted = (precision := scales.square()) * c
    scores = torch.matmul(torch.cat([x.square(), x], -1), torch.cat([-precision, 2 * weighted], -1).mT)
    for along in directions.split(c.shape[-1], -1):
        at_centre = (along * c).sum(-1).unsqueeze(-2)
        scores = scores + (torch.matmul(x, along.mT) - at_centre).square()
    return scores - (weighted * c).sum(-1).unsqueeze(-2)


@torch.no_grad()
def _is_near(x: Tensor, c: Tensor, directions: Tensor) -> bool:
    """Whether projections in float32 change scores by less than 4e-6.

    Their error is below ε·(‖x‖ + ‖c‖)·‖g‖, that of their squares (‖x‖ + ‖c‖)·‖g‖ times twice as much.
    """
    reach = sum(points.square().sum(-1).amax().sqrt() for points in (x, c))
    longest = directions.unflatten(-1, (-1, c.shape[-1])).square().sum(-1).amax()
    return bool(longest * reach**2 <= _LARGEST_SINGLE)


class _Scores(torch.autograd.Function):
    """`_composed` of matrices with explicit gradients: few matrices of the scores' size exist."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *inputs: Tensor) -> Tensor:
        x, c, scales, directions = inputs
        weighted = (precision := scales.square()) * c
        bias = (weighted * c).sum(-1, keepdim=True).neg_()
        # Constants are columns of the products: adding them would pass over the scores once more.
        features = torch.cat([x.square(), torch.ones_like(x[:, :1]), x], -1)
        scores = features @ torch.cat([precision.neg_(), bias, weighted.mul_(2)], -1).mT
        places, projections, total = features[:, x.shape[1] :].to(dtype), list[Tensor](), None
        for along in directions.split(c.shape[-1], -1):
            offset = (along * c).sum(-1, keepdim=True).neg_()
            projections.append(places @ torch.cat([offset, along], -1).to(dtype).mT)
            total = projections[-1].square() if total is None else total + projections[-1].square()
        if total is not None:
            scores.add_(total)
        ctx.save_for_backward(*inputs, features, places, *projections)
        return scores

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        x, c, scales, directions, features, places, *projections = ctx.saved_tensors
        needs, d = ctx.needs_input_grad[1:], c.shape[-1]
        if torch.is_grad_enabled():
            return None, *_differentiated_again((x, c, scales, directions), needs, slopes)
        # Products with the transposed points on the left are the faster ones.
        by_square, total, by_x = (features.mT @ slopes).mT.split([d, 1, d], -1)
        precision, offset = scales.square(), by_x - total * c
        by_query = 2 * (slopes @ (precision * c) - x * (slopes @ precision)) if needs[0] else None
        by_c = precision.mul_(2).mul_(offset)
        by_scales = (by_x + offset).mul_(c).sub_(by_square).mul_(scales).mul_(2)
        slopes = slopes.to(places.dtype)
        by_directions, weighted = torch.empty_like(directions), torch.empty_like(slopes)
        pairs = zip(directions.split(d, -1), by_directions.split(d, -1), projections, strict=True)
        for along, by_along, projection in pairs:
            torch.mul(slopes, projection, out=weighted)
            sums, products = (places.mT @ weighted).mT.to(c).split([1, d], -1)
            by_along.copy_(products).addcmul_(sums, c, value=-1).mul_(2)
            by_c.addcmul_(sums, along, value=-2)
            if by_query is not None:
                by_query.add_((weighted @ along.to(weighted)).to(by_query), alpha=2)
        return None, by_query, by_c, by_scales, by_directions


def _differentiated_again(
    inputs: tuple[Tensor, ...], needs: tuple[bool, ...], slopes: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients that have gradients."""
    wanted = [tensor for tensor, need in zip(inputs, needs, strict=True) if need]
    computed = iter(torch.autograd.grad(_composed(*inputs), wanted, slopes, create_graph=True))
    return tuple(next(computed) if need else None for need in needs)
