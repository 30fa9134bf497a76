"""Drawing from mixtures: exact draws, and draws that carry gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_choice, check_generator, check_number
from kdmkit._core.logspace import log_normalize, safe_log, safe_logsumexp
from kdmkit._core.tensors import pick
from kdmkit.kernels import RBF, Continuous, LocationScale
from kdmkit.kernels.continuous import check_continuous
from kdmkit.kernels.location_scale import check_product

if TYPE_CHECKING:
    from kdmkit.distributions.kdm import KDM


def choose(
    log_weights: Float[Tensor, "*batch m"], n: int, generator: torch.Generator | None
) -> Int[Tensor, "n *batch"]:
    """n indices per batch element, by inversion of the cumulative weights."""
    check_generator(generator)
    cumulative = log_weights.detach().double().exp().cumsum(-1)
    batch = cumulative.shape[:-1]
    uniform = torch.rand((*batch, n), dtype=torch.float64, device=cumulative.device, generator=generator)
    # Strictly greater than the draw, so that a component of weight zero is never chosen.
    index = torch.searchsorted(cumulative, uniform * cumulative[..., -1:], right=True)
    last = (cumulative < cumulative[..., -1:]).sum(-1, keepdim=True)
    return torch.minimum(index, last).movedim(-1, 0)


def draw_with_gradients(
    rho: KDM, n: int, method: str, temperature: float, hard: bool, generator: torch.Generator | None
) -> Tensor:
    """n draws for every element of the batch, as `KDM.rsample` describes them."""
    check_choice("method", method, ("implicit", "gumbel"))
    temperature = check_number("temperature", temperature, "> 0", positive=True)
    if method == "implicit":
        kernel = check_continuous("rsample(method='implicit')", rho.kernel)
        return _implicit(kernel, rho.sample((n,), generator=generator), rho.components, rho.log_weights)
    if rho.kernel.draws_one_hot:
        return _gumbel_one_hot(rho.probs, n, temperature, hard, generator)
    if rho.kernel.has_rsample:
        kernel = check_continuous("kernel", rho.kernel)
        return _gumbel(kernel, rho.components, rho.log_weights, n, temperature, hard, generator)
    raise TypeError(bad_argument("kernel", "one with differentiable draws", type(rho.kernel).__name__))


def _implicit(
    kernel: Continuous, x: Tensor, components: Tensor, log_weights: Float[Tensor, "*batch m"]
) -> Tensor:
    """x with the gradient of implicit reparameterisation (Figurnov et al., 2018).

    With F_k(x_k | x_<k) = Σ_j w_j(x_<k)·Φ_jk(x_k), dx_k = −(∂F_k/∂θ dθ + ∂F_k/∂x_<k dx_<k)/f_k: dimension
    after dimension, unbiased for weights, components and bandwidths.

    Args:
        x: exact draws, `(n, *batch, d)`.
        components: `(*batch, m, d)`, or `(m, d)`.
    """
    root = kernel.root
    if root is None:
        product = check_product("kernel", kernel)
        inner, u, c = product.whitened(), product.whiten(x).detach(), product.whiten(components)
        scales = inner.scale(c)
        scales = scales.expand((*scales.shape[:-1], u.shape[-1]))
    else:
        inner, u, c, root = RBF(1.0), x.detach(), components, root.to(components)
        scales = root.diagonal(dim1=-2, dim2=-1)
    log_w, moved, units = log_weights.to(components.dtype), [], list[Tensor]()
    for k in range(u.shape[-1]):
        ck, sk = c[..., k], scales[..., k]
        if root is not None:
            # Given the dimensions before, the centre of a component is elsewhere.
            for before, unit in enumerate(units):
                ck = ck + root[..., k, before] * unit
        moved.append(_move(inner, u[..., k], ck, sk, log_w))
        # The next dimension is conditioned on this one, gradient included.
        units.append((moved[-1].unsqueeze(-1) - ck) / sk)
        log_w = log_w + inner.unit_log_overlap(units[-1]) + inner.unit_log_norm - sk.log()
        log_w = log_normalize(log_w)
    stacked = torch.stack(moved, -1)
    return stacked if root is not None else product.unwhiten(stacked)


def _move(kernel: LocationScale, x: Tensor, c: Tensor, scale: Tensor, log_w: Tensor) -> Tensor:
    """One dimension of `_implicit`: x in value, −dF/f in derivative."""
    unit = (x.unsqueeze(-1) - c) / scale
    weights = log_w.exp()
    with torch.no_grad():
        below = (weights * kernel.unit_cdf(unit)).sum(-1) < 0.5
        log_density = kernel.unit_log_overlap(unit) + kernel.unit_log_norm - scale.log()
        density = safe_logsumexp(log_w + log_density).exp()
        # A draw may round onto the edge of a compact support, where the density is 0: it gets no gradient.
        slope = torch.where(density > 0, density, torch.full_like(density, torch.inf)).reciprocal()
    # By symmetry Φ(−u) = 1 − Φ(u): the smaller tail keeps its digits.
    sign = torch.where(below, 1.0, -1.0).to(x.dtype)
    tail = (weights * kernel.unit_cdf(sign.unsqueeze(-1) * unit)).sum(-1)
    return x - sign * (tail - tail.detach()) * slope


def _gumbel_weights(
    log_weights: Float[Tensor, "*batch m"], n: int, temperature: float, generator: torch.Generator | None
) -> tuple[Int[Tensor, "n *batch"], Float[Tensor, "n *batch m"]]:
    """Exact component choices by Gumbel-max, and their softmax relaxation."""
    check_generator(generator)
    shape = (n, *log_weights.shape)
    noise = torch.empty(shape, dtype=log_weights.dtype, device=log_weights.device)
    gumbel = -noise.exponential_(generator=generator).log()
    perturbed = log_weights + gumbel
    return perturbed.argmax(-1), torch.softmax(perturbed / temperature, -1)


def _gumbel(
    kernel: Continuous,
    components: Tensor,
    log_weights: Float[Tensor, "*batch m"],
    n: int,
    temperature: float,
    hard: bool,
    generator: torch.Generator | None,
) -> Tensor:
    """Gumbel-softmax draws with the reparameterisation of the kernel."""
    index, soft = _gumbel_weights(log_weights.to(components.dtype), n, temperature, generator)
    if hard:
        chosen = pick(components, index, 1)
        # Zero in value; its gradient is that of the relaxed draw with respect to the weights.
        shift = soft - soft.detach()
        centre = chosen + _average(shift, components.detach())
    else:
        shift = soft
        centre = _average(soft, components)
    root = kernel.root
    if root is not None:
        root, noise = root.to(centre), RBF(1.0).unit_draw(centre.detach(), generator)
        if root.ndim > 2:
            flat = root.flatten(-2)
            mixed = pick(flat, index, 1) + _average(shift, flat.detach()) if hard else _average(soft, flat)
            root = mixed.unflatten(-1, root.shape[-2:])
        return centre + (root @ noise.unsqueeze(-1)).squeeze(-1)
    kernel = check_product("kernel", kernel)
    noise = kernel.unit_draw(centre.detach(), generator)
    if kernel.whitened() is not kernel:
        return centre + kernel.unwhiten(noise)
    if not kernel.per_component:
        return centre + kernel.scale(centre) * noise
    scale = kernel.scale(centre)
    if hard:
        return centre + noise * (kernel.scale_of(index, centre) + _average(shift, scale.detach()))
    return centre + noise * _average(soft, scale)


def _average(weights: Float[Tensor, "n *batch m"], components: Tensor) -> Tensor:
    if components.ndim == 2:
        return torch.matmul(weights, components)
    return torch.matmul(weights.unsqueeze(-2), components).squeeze(-2)


def _gumbel_one_hot(
    probs: Float[Tensor, "*batch k"],
    n: int,
    temperature: float,
    hard: bool,
    generator: torch.Generator | None,
) -> Float[Tensor, "n *batch k"]:
    """Relaxed or straight-through one-hot draws of a discrete distribution."""
    index, soft = _gumbel_weights(safe_log(probs), n, temperature, generator)
    if not hard:
        return soft
    one_hot = torch.nn.functional.one_hot(index, probs.shape[-1]).to(probs.dtype)
    return one_hot + (soft - soft.detach())
