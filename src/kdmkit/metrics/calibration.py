"""Calibration of predictive distributions of a real variable: how often y falls below each quantile."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.distributions import KDM
from kdmkit.metrics.inputs import as_fractions, as_values, check_density


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
    """The probability integral transform F_i(y_i): uniform on [0, 1] where the predictions are calibrated.

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
