"""One density of two that were fitted apart."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from sklearn.utils.validation import check_is_fitted

from kdmkit._core.checks import bad_argument, check_instance, check_number
from kdmkit.estimators.density.density import KDMDensity
from kdmkit.kernels import check_continuous
from kdmkit.nn import DensityLayer
from kdmkit.nn.layer import LayerOptions


def merge(a: KDMDensity, b: KDMDensity, *, weights: Sequence[float] | None = None) -> KDMDensity:
    """The density (w_a·p_a(x) + w_b·p_b(x))/(w_a + w_b), exactly: it has the components of both.

    The result has the parameters of `a`. Use it to join densities that were fitted on several machines.

    Args:
        a, b: fitted densities of rows with the same columns. Their bandwidths may differ; of the method
            `"likelihood"` use `covariance="diag"` or `"spherical"`, since components share one full metric.
        weights: w_a and w_b; None takes the numbers of rows that they were fitted to (`n_samples_seen_`).

    Returns:
        A fitted density; `a` and `b` do not change.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> a, b, both = (KDMDensity(sigma=0.5).fit(rows) for rows in (X[:100], X[100:], X))
    >>> bool(np.allclose(merge(a, b).score_samples(X), both.score_samples(X)))
    True
    """
    for name, density in {"a": a, "b": b}.items():
        check_instance(name, density, KDMDensity, "a fitted KDMDensity")
        check_is_fitted(density)
    if a.n_features_in_ != b.n_features_in_:
        raise ValueError(bad_argument("b", f"a density of {a.n_features_in_} columns", b.n_features_in_))
    share = torch.tensor(_weights(a, b, weights), dtype=torch.float64).log()
    parts = a.kdm_.to("cpu"), b.kdm_.to("cpu")
    sizes = parts[0].n_components, parts[1].n_components
    kernel = check_continuous("a", parts[0].kernel).joined(parts[1].kernel, sizes)
    components = torch.cat([part.components.double() for part in parts])
    logits = torch.cat([part.log_weights.double() + w for part, w in zip(parts, share, strict=True)])
    options: LayerOptions = {"dtype": torch.float64, "generator": torch.Generator()}
    layer = DensityLayer(components.shape[1], len(components), kernel=kernel, **options)
    merged = copy.copy(a)
    merged.history_ = []
    merged._kept = merged._prepared = None
    merged.n_samples_seen_ = _seen(a) + _seen(b)
    merged._keep(layer.assign({"x": components}, logits))
    return merged


def _weights(a: KDMDensity, b: KDMDensity, weights: Sequence[float] | None) -> list[float]:
    if weights is not None:
        if len(weights) != 2:
            raise ValueError(bad_argument("weights", "two numbers > 0", weights))
        return [check_number("weights", weight, "two numbers > 0", positive=True) for weight in weights]
    if not (_seen(a) and _seen(b)):
        wanted = "two numbers > 0, since a density was saved without its number of rows"
        raise ValueError(bad_argument("weights", wanted, None))
    return [float(_seen(a)), float(_seen(b))]


def _seen(density: KDMDensity) -> int:
    """The number of rows of a fit; 0 in files of earlier versions."""
    return getattr(density, "n_samples_seen_", 0)
