"""Calibration of probabilities on rows that the model has not learned from."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument
from kdmkit.distributions import KDM
from kdmkit.distributions.weights import Given
from kdmkit.kernels import Cosine
from kdmkit.nn import JointLayer

# The range of log s, the factor of bandwidths, and the accuracy of the search.
_RANGE, _WIDTH_ACCURACY = (-1.0, 2.5), 0.01
# In place of log 0.
_LEAST = -1000.0
# Newton steps for the inverse of the temperature, in which the loss is convex, and their accuracy.
_STEPS, _ACCURACY = 50, 1e-6
# Half the precision of the normal prior of the inverse temperature, about 1.
_PRIOR = 1.0


class Calibrated(nn.Module):
    """A calibrated head: a module that takes what the head takes and returns a KDM over the labels.

    Args:
        head: a copy of the head, the bandwidths of its inputs multiplied by `width`.
        width: s.
        temperature: T.

    >>> import kdmkit as kdm
    >>> head = kdm.nn.JointLayer(2, 3, 5).initialize(torch.randn(50, 2), torch.arange(50) % 3)
    >>> calibrated = kdm.training.Calibrated(head, 1.0, 2.0)
    >>> calibrated(torch.zeros(4, 2)).probs.shape
    torch.Size([4, 3])
    """

    temperature: Tensor

    def __init__(self, head: JointLayer, width: float, temperature: float) -> None:
        super().__init__()
        self.head, self.width = head, width
        start = head.weight_logits
        self.register_buffer("temperature", torch.tensor(temperature, dtype=start.dtype, device=start.device))

    def forward(self, *values: Any) -> KDM:
        """p(y|x) as a KDM, for rows of the head's inputs.

        Args:
            values: one tensor per input of the head.
        """
        rho = self.head(*values, target=self.head.outputs[0])
        logits = (rho.logits.clamp_min(_LEAST) / self.temperature).log_softmax(-1)
        basis = torch.eye(logits.shape[-1], dtype=logits.dtype, device=logits.device)
        return KDM._made(basis, Given(logits, rho._weights), Cosine(), rho._validate_args)

    def log_probs(self, *values: Any) -> Float[Tensor, "n k"]:
        """log p(y|x) of all labels, without gradients, in float64.

        Args:
            values: one tensor per input of the head.
        """
        return (label_log_probs(self.head, *values) / self.temperature.double()).log_softmax(-1)


def calibrate(head: JointLayer, *values: Any) -> Calibrated:
    """p(y|x) ∝ (Σ_j w_j(x)·π_j(y))^{1/T} with the largest likelihood of labels, w_j(x) ∝ p_j·k²(x, x_j).

    Two numbers are fitted to rows that neither encoder nor head has learned from: a factor s of the inputs'
    bandwidths, and the temperature T. A head that was trained for p(y|x) often has too narrow kernels: new
    rows then get their labels from very few components. The given head does not change. The copy's p(x) is
    wider by the factor s: take densities from the given head.

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
    from scipy.optimize import minimize_scalar

    *inputs, labels = values
    if not isinstance(head, JointLayer) or len(inputs) != len(head.inputs) or len(head.outputs) != 1:
        wanted = "a JointLayer with one output, one tensor per input, and labels"
        raise ValueError(bad_argument("head", wanted, f"{head!r} and {len(values)} tensors"))

    def loss(log_width: float) -> float:
        return _nll(label_log_probs(_widened(head, math.exp(log_width)), *inputs), labels)[0]

    best = minimize_scalar(loss, bounds=_RANGE, method="bounded", options={"xatol": _WIDTH_ACCURACY})
    width = math.exp(float(best.x)) if best.fun < loss(0.0) else 1.0
    copied = _widened(head, width)
    return Calibrated(copied, width, _nll(label_log_probs(copied, *inputs), labels)[1])


@torch.no_grad()
def label_log_probs(head: JointLayer, *values: Any) -> Float[Tensor, "n k"]:
    """log p(y|x) of all labels, without gradients, in float64; −1,000 in place of log 0."""
    logits: Tensor = head(*values, target=head.outputs[0]).logits
    return logits.double().clamp_min(_LEAST)


def _nll(log_probs: Float[Tensor, "n k"], labels: Int[Tensor, " n"]) -> tuple[float, float]:
    """The smallest mean −log p(y) over all temperatures, and its temperature."""
    t = float(fit_temperature(log_probs, labels))
    scaled = (log_probs / t).log_softmax(-1)
    return float(-scaled.gather(1, labels.long().unsqueeze(1)).mean()), t


def _widened(head: JointLayer, factor: float) -> JointLayer:
    """A copy of the head, the bandwidths of its inputs times a factor."""
    copied = copy.deepcopy(head)
    for name in copied.inputs:
        copied.kernels[name] = copied.kernel(name).scaled(factor)
    return copied


def fit_temperature(
    logits: Float[Tensor, "n k"], labels: Int[Tensor, " n"], weights: Float[Tensor, " n"] | None = None
) -> Float[Tensor, ""]:
    """T > 0 for which softmax(t/T) has the least mean −log p(y), with a weak prior of 1/T about 1.

    Fitted to rows that the classifier has not learned from, it calibrates probabilities: softmax(t/T) has the
    same most probable class, and T > 1 makes it less certain.

    Args:
        logits: t, unnormalised log-probabilities, for example `rho.log_prob` of every label.
        labels: the true classes, integers in 0 … k−1.
        weights: of the rows; None is the same for all.

    Returns:
        T, in float64.

    >>> logits, labels = torch.tensor([[4.0, 0.0]] * 300), torch.tensor([0, 0, 1] * 100)
    >>> round(float(fit_temperature(logits, labels)), 1)      # two of three are right: 4/T = log 2
    5.7
    """
    t = logits.double()
    if not len(t):
        raise ValueError(bad_argument("logits", "one or more rows", "none"))
    if not bool(t.isfinite().all()):
        raise ValueError(bad_argument("logits", "finite numbers", "others"))
    w = torch.ones_like(t[:, 0]) if weights is None else weights.to(t)
    if not float(w.sum()) > 0:
        raise ValueError(bad_argument("weights", "a positive sum", float(w.sum())))
    share = w / w.sum()
    right = t.gather(1, labels.long().unsqueeze(1)).squeeze(1)
    prior = 2 * _PRIOR / len(t)
    a = t.new_ones(())
    for _ in range(_STEPS):
        probs = (a * t).softmax(-1)
        mean = (probs * t).sum(-1)
        variance = (probs * (t - mean.unsqueeze(1)).square()).sum(-1)
        slope, curvature = share @ (mean - right) + prior * (a - 1), share @ variance + prior
        # A step that is too long is shortened: a stays positive.
        new = torch.clamp(a - slope / curvature, a / 2, 2 * a)
        if abs(float(new - a)) < _ACCURACY * float(a):
            return 1 / new
        a = new
    return 1 / a
