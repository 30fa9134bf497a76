"""Calibration: of quantiles and intervals of a real variable, and of class probabilities."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_count, in_memory
from kdmkit.distributions import KDM
from kdmkit.metrics.inputs import as_floats, as_fractions, as_labels, as_probs, as_values, check_density


class QuantileCalibration(NamedTuple):
    """Nominal levels τ, and the fraction of observations below the predicted τ-quantile.

    Args:
        levels: τ, of shape `(k,)`.
        observed: ô(τ), of shape `(k,)`.

    >>> from kdmkit.metrics import quantile_calibration
    >>> quantile_calibration([0.1, 0.6], [0.5]).observed
    tensor([0.5000], dtype=torch.float64)
    """

    levels: Float[Tensor, " k"]
    observed: Float[Tensor, " k"]


def pit(rho: KDM, y: Any) -> Float[Tensor, "*lead"]:
    """The probability integral transform F_i(y_i): uniform on [0, 1] if the predictions are calibrated.

    Args:
        rho: one-dimensional continuous predictive distributions of batch shape `(*batch,)`.
        y: observations `(*lead, 1)`, or `(*batch,)`.

    Returns:
        Of shape `(*lead,)`, which is `(*batch,)` for one observation per distribution.

    >>> import torch, kdmkit as kdm
    >>> from kdmkit.metrics import pit
    >>> rho = kdm.KDM(torch.zeros(2, 1, 1), None, kdm.RBF.from_std(1.0))
    >>> pit(rho, torch.tensor([0.0, 1.0]))      # the standard normal's Φ(0) and Φ(1)
    tensor([0.5000, 0.8413])
    """
    check_density(rho)
    return rho.cdf(as_values(rho, y))


def quantile_calibration(pit_values: Any, levels: Any = None) -> QuantileCalibration:
    """ô(τ) = (1/n)·Σ_i 1{F_i(y_i) ≤ τ}: how often observations fall below the predicted τ-quantile.

    Calibrated predictions have ô(τ) = τ (Kuleshov et al., 2018).

    Args:
        pit_values: F_i(y_i), as `pit` gives them, of any shape.
        levels: τ in [0, 1], of shape `(k,)`; None is 0.05, 0.10, …, 0.95.

    Returns:
        The levels τ, and ô(τ).

    >>> import torch
    >>> from kdmkit.metrics import quantile_calibration
    >>> quantile_calibration(torch.tensor([0.1, 0.2, 0.6, 0.9]), [0.25, 0.5, 0.75]).observed
    tensor([0.5000, 0.5000, 0.7500], dtype=torch.float64)
    """
    values = as_fractions("pit_values", pit_values).double().flatten()
    if levels is None:
        nominal = torch.arange(1, 20, dtype=torch.float64, device=values.device) / 20
    else:
        nominal = as_fractions("levels", levels).to(values)
    if nominal.ndim != 1:
        raise ValueError(bad_argument("levels", "shape (k,)", tuple(nominal.shape)))
    below = torch.searchsorted(values.sort().values, nominal, right=True)
    return QuantileCalibration(nominal, below.double() / values.numel())


def quantile_calibration_error(pit_values: Any, levels: Any = None) -> Float[Tensor, ""]:
    """(1/k)·Σ_τ |ô(τ) − τ|: the mean distance of `quantile_calibration` from the diagonal.

    Args:
        pit_values: F_i(y_i), as `pit` gives them, of any shape.
        levels: τ in [0, 1], of shape `(k,)`; None is 0.05, 0.10, …, 0.95.

    Returns:
        One number; 0 for calibrated predictions.

    >>> from kdmkit.metrics import quantile_calibration_error
    >>> quantile_calibration_error([0.1, 0.2, 0.6, 0.9], [0.25, 0.5, 0.75])
    tensor(0.0833, dtype=torch.float64)
    """
    levels, observed = quantile_calibration(pit_values, levels)
    return (observed - levels).abs().mean()


# ---- prediction intervals


def interval_coverage(lower: Any, upper: Any, y: Any) -> Float[Tensor, ""]:
    """(1/n)·Σ_i 1{lower_i ≤ y_i ≤ upper_i}: the fraction of observations inside their interval.

    Args:
        lower, upper: the ends of the intervals, both of the shape of `y`.
        y: observations, of any shape, `(n,)` for one.

    Returns:
        One number between 0 and 1.

    >>> from kdmkit.metrics import interval_coverage
    >>> interval_coverage([0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 2.0, 2.0], [0.5, 1.5, 1.5, 1.0])
    tensor(0.7500, dtype=torch.float64)
    """
    low, high = _ends(lower, upper)
    values = as_floats("y", y).to(low.device)
    if values.shape != low.shape:
        raise ValueError(
            bad_argument("y", f"the shape of lower and upper, {tuple(low.shape)}", tuple(values.shape))
        )
    return ((low <= values) & (values <= high)).double().mean()


def interval_width(lower: Any, upper: Any) -> Float[Tensor, ""]:
    """(1/n)·Σ_i (upper_i − lower_i): the mean width. At equal coverage narrower is better.

    Args:
        lower, upper: the ends of the intervals, of one shape.

    Returns:
        One number, in the units of y.

    >>> from kdmkit.metrics import interval_width
    >>> interval_width([0.0, 1.0], [1.0, 4.0])
    tensor(2., dtype=torch.float64)
    """
    low, high = _ends(lower, upper)
    return (high.double() - low.double()).mean()


def _ends(lower: Any, upper: Any) -> tuple[Tensor, Tensor]:
    low, high = as_floats("lower", lower), as_floats("upper", upper)
    high = high.to(low.device)
    if low.shape != high.shape:
        raise ValueError(bad_argument("upper", f"the shape of lower, {tuple(low.shape)}", tuple(high.shape)))
    crossed = int((low > high).sum())
    if crossed:
        raise ValueError(bad_argument("upper", "values not below lower", f"{crossed} that are"))
    return low, high


# ---- class probabilities


class ReliabilityCurve(NamedTuple):
    """Bins of confidence; empty ones have NaN for confidence and accuracy.

    Args:
        edges: the ends of the bins.
        confidence: the mean of the largest probability in each bin.
        accuracy: the fraction of right predictions in each bin.
        counts: the number of rows in each bin.

    >>> from kdmkit.metrics import reliability_curve
    >>> reliability_curve([[0.9, 0.1], [0.2, 0.8]], [0, 1], n_bins=1).confidence
    tensor([0.8500], dtype=torch.float64)
    """

    edges: Float[Tensor, " bins_plus_1"]
    confidence: Float[Tensor, " bins"]
    accuracy: Float[Tensor, " bins"]
    counts: Int[Tensor, " bins"]


def reliability_curve(probs: Any, labels: Any, n_bins: int = 15) -> ReliabilityCurve:
    """Confidence max_k p_ik against accuracy, in bins of equal width over [0, 1].

    Bins hold their lower edge; the last one holds 1 as well.

    Args:
        probs: predicted probabilities `(n, k)`.
        labels: true classes `(n,)`, integers in 0 … k−1.
        n_bins: number of bins.

    Returns:
        Confidence, accuracy and number of rows of every bin.

    >>> from kdmkit.metrics import reliability_curve
    >>> curve = reliability_curve([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]], [0, 0, 1], n_bins=2)
    >>> curve.accuracy, curve.counts
    (tensor([   nan, 0.6667], dtype=torch.float64), tensor([0, 3]))
    """
    n_bins = check_count("n_bins", n_bins)
    p = as_probs("probs", probs)
    confidence, predicted = p.max(-1)
    right = predicted == as_labels("labels", labels, p)
    with in_memory("n_bins", n_bins):
        edges = torch.linspace(0, 1, n_bins + 1, dtype=p.dtype, device=p.device)
    index = torch.bucketize(confidence, edges[1:-1], right=True)
    counts = torch.bincount(index, minlength=n_bins)
    mean_confidence = torch.bincount(index, confidence.double(), n_bins) / counts
    accuracy = torch.bincount(index, right.double(), n_bins) / counts
    return ReliabilityCurve(edges.double(), mean_confidence, accuracy, counts)


def expected_calibration_error(probs: Any, labels: Any, n_bins: int = 15) -> Float[Tensor, ""]:
    """ECE = Σ_b (n_b/n)·|accuracy_b − confidence_b| over the bins of `reliability_curve` (Guo et al., 2017).

    Equal to torchmetrics' l1 calibration error, except that a confidence of exactly 1 belongs to the last bin
    here and to a separate bin there.

    Args:
        probs: predicted probabilities `(n, k)`.
        labels: true classes `(n,)`, integers in 0 … k−1.
        n_bins: number of bins.

    Returns:
        One number between 0 and 1; 0 for calibrated probabilities.

    >>> from kdmkit.metrics import expected_calibration_error
    >>> expected_calibration_error([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]], [0, 0, 1])
    tensor(0.4333, dtype=torch.float64)
    """
    curve = reliability_curve(probs, labels, n_bins)
    gaps = torch.nan_to_num((curve.accuracy - curve.confidence).abs())
    return (curve.counts * gaps).sum() / curve.counts.sum()
