"""A KDM that is asked many times: its components are put in order once."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_count, check_instance, check_number
from kdmkit.distributions.kdm import KDM
from kdmkit.distributions.prepared_weights import PreparedWeights
from kdmkit.kernels import check_continuous
from kdmkit.kernels.boxes import Boxes, order_in_blocks
from kdmkit.ops import Term
from kdmkit.ops.pruned import PrunedSum

_RTOL = "None, or a number between 0 and 1"


class PreparedKDM:
    """The same density with components in blocks, for sums without the components that cannot matter.

    Where components are many and bandwidths small, most terms of Σ_j p_j f̂_j(x) are nearly zero. Components
    are sorted into blocks of neighbours. The distance from x to the box around a block bounds what all its
    components can contribute.

    It holds a copy of components, weights and bandwidths (of weights that are all equal, a single number) and
    the boxes, which take a fiftieth of the components' memory. The given KDM can be thrown away. With the
    first exact question on a CUDA device it also keeps what such sums need, see `JointKDM.prepared`.

    Args:
        kdm: without a batch, and with a continuous kernel (RBF, Epanechnikov, Tricube).
        block_size: the number of components of a block.

    Attributes:
        kdm: the KDM with its components in the order of blocks.

    >>> import kdmkit as kdm
    >>> rho = kdm.KDM.from_samples(torch.linspace(0, 1000, 5001).unsqueeze(1), kdm.RBF.from_std(0.5))
    >>> prepared = kdm.PreparedKDM(rho)
    >>> x = torch.tensor([[500.0], [-3.0]])
    >>> rho.log_prob(x)
    tensor([ -6.9079, -26.6569])
    >>> prepared.log_prob(x, rtol=1e-3)
    tensor([ -6.9079, -26.6569])
    """

    def __init__(self, kdm: KDM, *, block_size: int = 256) -> None:
        check_instance("kdm", kdm, KDM, "a KDM")
        kernel = check_continuous("kdm", kdm.kernel, "a KDM with a continuous kernel")
        size = check_count("block_size", block_size)
        if kdm.batch_shape:
            raise ValueError(bad_argument("kdm", "a KDM without a batch", f"batch {tuple(kdm.batch_shape)}"))
        with torch.no_grad():
            components = kdm.components.detach()
            order = order_in_blocks(kernel, components, size)
            kernel, components = kernel.take(order), components[order]
            log_weights = _in_order(kdm.log_weights.detach(), order)
            weights = PreparedWeights(log_weights, {"": kernel}, {"": components})
            self.kdm = KDM._made(components, weights, kernel, kdm._validate_args)
            norm = kernel.log_norm(components).to(components.device)
            self._norm = None if kernel.per_component else norm
            bias = log_weights + norm.to(log_weights) if kernel.per_component else log_weights
            totals = torch.stack([part.double().logsumexp(0) for part in bias.split(size)])
            boxes = Boxes.of(kernel, components, size)
        self._kernel, self._sum = kernel, PrunedSum(self._term, bias, totals, boxes.largest_log_overlap, size)

    def _term(self, x: Tensor, index: Any) -> Term:
        return self._kernel.take(index).term(x, self.kdm.components[index])

    def log_prob(self, value: Any, *, rtol: float | None = None) -> Float[Tensor, "*lead"]:
        """log f̂(x), exact or with a stated error.

        Args:
            value: of shape `(*lead, d)`.
            rtol: None is exact. Otherwise the answer is the logarithm of a p̂ with p̂ ≤ f̂(x) ≤ (1 + rtol)·p̂
                for every x, apart from rounding: it is too small by rtol at most. It has no gradients.
        """
        if rtol is None:
            return self.kdm.log_prob(value)
        rtol = check_number("rtol", rtol, _RTOL, positive=True, below=1)
        x = self.kdm._check_value(value)
        if x.requires_grad and torch.is_grad_enabled():
            raise ValueError(bad_argument("rtol", "None where gradients are wanted", rtol))
        with torch.no_grad():
            query = x.reshape(-1, x.shape[-1])
            found = self._sum.log_mix(query, self._kernel.whiten(query.double()), rtol)
            found = found if self._norm is None else found + self._norm
        return found.to(torch.promote_types(x.dtype, self.kdm.components.dtype)).reshape(x.shape[:-1])

    def __repr__(self) -> str:
        return f"PreparedKDM({self.kdm!r})"


def _in_order(log_weights: Float[Tensor, " m"], order: Tensor) -> Float[Tensor, " m"]:
    """Log-weights in another order; those that are all equal take the memory of one."""
    equal = bool((log_weights == log_weights[:1]).all())
    return log_weights[:1].clone().expand(len(order)) if equal else log_weights[order]
