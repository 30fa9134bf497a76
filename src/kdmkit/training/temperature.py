"""The temperature of a classifier's logits."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.checks import bad_argument

# Newton steps: the loss is convex in the inverse of the temperature.
_STEPS, _ACCURACY = 50, 1e-6
# Half the precision of the normal prior of the inverse temperature, about 1.
_PRIOR = 1.0


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
