"""Calibration of class probabilities: is a confidence of 80 % right four times out of five?"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.checks import check_count, in_memory
from kdmkit.metrics.inputs import as_labels, as_probs


class ReliabilityCurve(NamedTuple):
    """Bins of confidence; empty ones have NaN for confidence and accuracy.

    Args:
        edges: where bins begin and end.
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
    here and to one of its own there.

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
