"""Calibration of heads on rows that they have not learned from."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from scipy.optimize import minimize_scalar
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.nn import JointLayer
from kdmkit.training.temperature import fit_temperature

# Where the factor of bandwidths is looked for, and how exactly, as logarithms.
_RANGE, _ACCURACY = (-1.0, 2.5), 0.01
# In place of log 0.
_LEAST = -1000.0


class Calibrated(NamedTuple):
    """A calibrated head.

    Args:
        head: a copy of the head, the bandwidths of its inputs multiplied by `width`.
        width: s.
        temperature: T.

    >>> import kdmkit as kdm
    >>> found = kdm.training.Calibrated(kdm.nn.JointLayer(2, 3, 5), 1.0, 1.0)
    >>> found.log_probs(torch.zeros(4, 2)).exp().sum(-1).round(decimals=3)
    tensor([1., 1., 1., 1.], dtype=torch.float64)
    """

    head: JointLayer
    width: float
    temperature: float

    def log_probs(self, *values: Any) -> Float[Tensor, "n k"]:
        """log p(y|x) of all labels, for rows of the head's inputs.

        Args:
            values: as the head takes them.

        Returns:
            In float64.
        """
        return (label_log_probs(self.head, *values) / self.temperature).log_softmax(-1)


def calibrate(head: JointLayer, *values: Any) -> Calibrated:
    """p(y|x) ∝ (Σ_j w_j(x)·π_j(y))^{1/T} with the largest likelihood of labels, w_j(x) ∝ p_j·k²(x, x_j).

    Two numbers are fitted to rows that neither encoder nor head has learned from: a factor s of the inputs'
    bandwidths, and the temperature T. A head that was trained for p(y|x) has often too narrow kernels: new
    rows then get their labels from very few components. The given head stays as it is. Of the copy, p(x) is
    as much wider: take densities from the given head.

    Args:
        head: with one discrete output, fitted.
        values: one tensor per input `(n, *event)`, then the labels `(n,)`, integers.

    Returns:
        The copy with wider kernels, s and T.

    >>> import kdmkit as kdm
    >>> generator = torch.Generator().manual_seed(0)
    >>> z, y = torch.randn(400, 2, generator=generator), torch.arange(400) % 2
    >>> z[y == 1] += 1
    >>> head = kdm.nn.JointLayer(2, 2, 200).initialize(z[:200], y[:200], sigma=0.01)
    >>> kdm.training.calibrate(head, z[200:], y[200:]).width > 5
    True
    """
    *inputs, labels = values
    if not isinstance(head, JointLayer) or len(inputs) != len(head.inputs) or len(head.outputs) != 1:
        wanted = "a JointLayer with one output, one tensor per input, and labels"
        raise ValueError(bad_argument("head", wanted, f"{head!r} and {len(values)} tensors"))

    def loss(log_width: float) -> float:
        return _nll(label_log_probs(_widened(head, math.exp(log_width)), *inputs), labels)[0]

    found = minimize_scalar(loss, bounds=_RANGE, method="bounded", options={"xatol": _ACCURACY})
    width = math.exp(float(found.x)) if found.fun < loss(0.0) else 1.0
    copied = _widened(head, width)
    return Calibrated(copied, width, _nll(label_log_probs(copied, *inputs), labels)[1])


@torch.no_grad()
def label_log_probs(head: JointLayer, *values: Any) -> Float[Tensor, "n k"]:
    """log p(y|x) of all labels, without gradients, in float64; at least −1,000, also where p(y|x) is 0."""
    logits: Tensor = head(*values, target=head.outputs[0]).logits
    return logits.double().clamp_min(_LEAST)


def _nll(log_probs: Float[Tensor, "n k"], labels: Int[Tensor, " n"]) -> tuple[float, float]:
    """The least mean −log p(y), and the temperature that has it."""
    t = float(fit_temperature(log_probs, labels))
    scaled = (log_probs / t).log_softmax(-1)
    return float(-scaled.gather(1, labels.long().unsqueeze(1)).mean()), t


def _widened(head: JointLayer, factor: float) -> JointLayer:
    """A copy of the head, the bandwidths of its inputs times a factor."""
    copied = copy.deepcopy(head)
    for name in copied.inputs:
        copied.kernels[name] = copied.kernel(name).scaled(factor)
    return copied
