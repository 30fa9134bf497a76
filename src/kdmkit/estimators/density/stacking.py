"""Densities of several kinds, mixed by the likelihood of held-out rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.cluster import KMeans
from torch import Tensor
from tqdm import tqdm

from kdmkit.estimators.density.adaptive import automatic_density, scaler_without_outliers
from kdmkit.estimators.density.maximum_likelihood import Gaussians, Shape
from kdmkit.kernels import RBF, LowRank
from kdmkit.nn import DensityLayer
from kdmkit.nn.layer import LayerOptions

# Folds; rows of a fit that compares, and of the last one, at most; the least number of rows.
_FOLDS, _HELD_OUT, _FITTED, _FEWEST = 3, 2048, 8192, 30
# Numbers of components, the least number of rows for each, and pseudo-rows of the prior covariance.
_COUNTS, _ROWS_PER_COMPONENT, _PRIORS = (1, 2, 4, 8, 16, 32), 6, (1e-4, 0.1, 3.0)
# A number of components is the last one if its likelihood falls by this much per dimension.
_FALL = 0.05
# Values beyond this many standard deviations have no covariance.
_LARGEST = 1e4
# Shares below this are dropped; steps to find them; a lower bound on the log-likelihood of a row.
_LEAST_SHARE, _MIXING_STEPS, _LEAST = 0.02, 200, -1e3
#: The name of the density whose components are the rows.
NONPARAMETRIC = "nonparametric"


@dataclass(frozen=True)
class Candidate:
    """A kind of density: components with a covariance each, or the rows themselves (`count` 0)."""

    count: int
    prior: float = 0.0
    shape: Shape = "full"

    @property
    def name(self) -> str:
        """Its name in `method_`."""
        if not self.count:
            return NONPARAMETRIC
        return f"{self.count} components, {self.shape} covariance, prior {self.prior:g}"


def stacked_density(
    x: Float[Tensor, "n d"], w: Float[Tensor, " n"], *, verbose: bool = False
) -> tuple[DensityLayer, dict[str, float], dict[str, float]]:
    """The mixture of densities with the largest likelihood of held-out rows.

    Candidates are the density of `automatic_density` and mixtures of Gaussians with full covariances, of
    1, 2, 4, … components, shrunken towards a common covariance.

    Args:
        x, w: distinct rows and their weights.
        verbose: whether to show progress.

    Returns:
        the layer; by candidate, the mean log-density of held-out rows; and the shares of those that are used.
    """
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    scaler = scaler_without_outliers(x, w, order[:_HELD_OUT])
    z, log_size = scaler(x), float(scaler.scale.log().sum())
    if len(x) < _FEWEST or not float(z.abs().max()) < _LARGEST:
        return automatic_density(x, w, verbose=verbose), {}, {NONPARAMETRIC: 1.0}
    few = order[: _FOLDS * _HELD_OUT // 2]
    candidates, scores = _held_out(z[few], w[few], verbose)
    weight = w[few] / w[few].sum()
    shares = _shares(scores, weight)
    means = (weight @ scores - log_size).tolist()
    named = {candidate.name: mean for candidate, mean in zip(candidates, means, strict=True)}
    used = {c: float(s) for c, s in zip(candidates, shares, strict=True) if s > 0}
    many = order[:_FITTED]
    parts = []
    for candidate, share in used.items():
        if not candidate.count:
            layer = automatic_density(x, w, verbose=verbose)
            if len(used) == 1:
                return layer, named, {NONPARAMETRIC: 1.0}
            parts.append(_rows_part(layer, share))
        else:
            starts = _start(z[many], w[many], candidate.count)
            model = Gaussians.fit(z[many], w[many], starts, candidate.prior, candidate.shape)
            parts.append(_gaussian_part(model, share, scaler.inverse(model.mean), scaler.scale))
    return _joined(parts), named, {candidate.name: share for candidate, share in used.items()}


def _held_out(z: Tensor, w: Tensor, verbose: bool) -> tuple[list[Candidate], Float[Tensor, "n c"]]:
    """Candidates, and their log-densities of every row when it is held out."""
    n, d = z.shape
    fold = torch.arange(n) % _FOLDS
    candidates: list[Candidate] = []
    columns: list[Tensor] = []
    best = -math.inf
    with tqdm(desc="held-out likelihood", unit="density", disable=not verbose) as bar:

        def measure(candidate: Candidate, fit: Callable[[int], Callable[[Tensor], Tensor]]) -> float:
            column = z.new_empty(n)
            for one in range(_FOLDS):
                column[fold == one] = fit(one)(z[fold == one])
            candidates.append(candidate)
            columns.append(column.clamp_min(_LEAST * d))
            bar.update()
            return float(w @ columns[-1] / w.sum())

        def rows_of(one: int) -> Callable[[Tensor], Tensor]:
            layer = automatic_density(z[fold != one], w[fold != one])
            return lambda points: layer().log_prob(points).detach()

        measure(Candidate(0), rows_of)
        for count in _COUNTS:
            if n * (_FOLDS - 1) / _FOLDS < _ROWS_PER_COMPONENT * count and count > 1:
                break
            starts = [_start(z[fold != one], w[fold != one], count) for one in range(_FOLDS)]
            reached = -math.inf
            for candidate in _of_count(count):

                def gaussians(
                    one: int, candidate: Candidate = candidate, starts: list[Tensor] = starts
                ) -> Callable[[Tensor], Tensor]:
                    rows = fold != one
                    model = Gaussians.fit(z[rows], w[rows], starts[one], candidate.prior, candidate.shape)
                    return lambda points: torch.logsumexp(model.scores(points), 0)

                reached = max(reached, measure(candidate, gaussians))
            if reached < best - _FALL * d:
                break
            best = max(best, reached)
    return candidates, torch.stack(columns, 1)


def _of_count(count: int) -> Iterator[Candidate]:
    for prior in _PRIORS:
        yield Candidate(count, prior)
    if count > 1:
        yield Candidate(count, _PRIORS[-1], "tied")
        yield Candidate(count, 1e9, "tied")
        yield Candidate(count, _PRIORS[0], "diag")


def _start(z: Tensor, w: Tensor, count: int) -> Float[Tensor, "k n"]:
    """Responsibilities of clusters."""
    labels: Int[Tensor, " n"] = torch.zeros(len(z), dtype=torch.long)
    if count > 1:
        clusters = KMeans(count, n_init=1, random_state=0).fit(z.numpy(), sample_weight=w.numpy())
        labels = torch.from_numpy(clusters.labels_.astype(np.int64))
    return torch.nn.functional.one_hot(labels, count).to(z).mT


def _shares(scores: Float[Tensor, "n c"], weight: Float[Tensor, " n"]) -> Float[Tensor, " c"]:
    """The shares of a mixture with the largest likelihood; small ones are 0."""
    shares = torch.full_like(scores[0], 1 / scores.shape[1])
    for _ in range(_MIXING_STEPS):
        shares = weight @ torch.softmax(scores + shares.log(), 1)
    shares = torch.where(shares < _LEAST_SHARE, torch.zeros_like(shares), shares)
    return shares / shares.sum()


#: Weights, components, σ and factors.
Part = tuple[Tensor, Tensor, Tensor, Tensor]


def _rows_part(layer: DensityLayer, share: float) -> Part:
    kernel, c = cast("RBF", layer.kernel("x")), layer.components["x"].detach()
    weights = share * torch.softmax(layer.logits.detach(), -1)
    return weights, c, kernel.sigma.detach().expand_as(c), c.new_zeros(*c.shape, 1)


def _gaussian_part(model: Gaussians, share: float, mean: Tensor, scale: Tensor) -> Part:
    kernel = LowRank.from_covariance(model.root @ model.root.mT)
    return (
        share * model.share,
        mean,
        scale * kernel.sigma.detach(),
        scale.unsqueeze(-1) * kernel.factors.detach(),
    )


def _joined(parts: list[Part]) -> DensityLayer:
    rank = max(factors.shape[-1] for *_, factors in parts)
    padded = [torch.nn.functional.pad(factors, (0, rank - factors.shape[-1])) for *_, factors in parts]
    weights, components, sigma = [torch.cat([part[i] for part in parts]) for i in range(3)]
    factors = torch.cat(padded)
    d = components.shape[1]
    kernel = RBF((sigma.square() + factors.square().sum(-1)).sqrt()) if d == 1 else LowRank(sigma, factors)
    options: LayerOptions = {"dtype": torch.float64, "generator": torch.Generator()}
    layer = DensityLayer(d, len(weights), kernel=kernel, **options)
    return layer.assign({"x": components}, weights.log())
