"""Mixtures whose components are divided among the processes of a `torch.distributed` run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, distributed

from kdmkit._core.checks import bad_argument, check_instance, check_number
from kdmkit.distributions.features import Values
from kdmkit.distributions.joint import JointKDM
from kdmkit.distributions.kdm import KDM
from kdmkit.distributions.mixing import Entry
from kdmkit.distributions.weights import Given, Mixed, PartMap, Weights

Rho = TypeVar("Rho", KDM, JointKDM)


@dataclass(frozen=True)
class Processes:
    """The processes that hold parts of one mixture.

    Args:
        group: a group of `torch.distributed`; None is all processes.
    """

    group: Any = None

    def __post_init__(self) -> None:
        if not distributed.is_available() or not distributed.is_initialized():
            wanted = "processes that torchrun started, after torch.distributed.init_process_group"
            raise ValueError(bad_argument("group", wanted, "no process group"))

    @property
    def rank(self) -> int:
        return distributed.get_rank(self.group)

    @property
    def count(self) -> int:
        return distributed.get_world_size(self.group)

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in the order of their ranks."""
        values = [None] * self.count
        distributed.all_gather_object(values, value, self.group)
        return values

    def first(self, tensor: Tensor) -> Tensor:
        """The tensor of the first process."""
        shared = tensor.detach().clone(memory_format=torch.contiguous_format)
        distributed.broadcast(shared, distributed.get_global_rank(self._group, 0), self.group)
        return shared

    def sum(self, tensor: Tensor) -> Tensor:
        return self._reduced(tensor, distributed.ReduceOp.SUM)

    def max(self, tensor: Tensor) -> Tensor:
        return self._reduced(tensor, distributed.ReduceOp.MAX)

    def _reduced(self, tensor: Tensor, how: Any) -> Tensor:
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total, how, self.group)
        return total

    @property
    def _group(self) -> Any:
        return distributed.group.WORLD if self.group is None else self.group

    def merge(
        self, log_sums: Float[Tensor, "*lead"], averages: Float[Tensor, "*lead v"] | None
    ) -> tuple[Float[Tensor, "*lead"], Float[Tensor, "*lead v"] | None]:
        """logsumexp over processes, and averages weighted by exp(log_sums); 0 where all are −∞.

        `ops.combine` is the same for two shards. Two messages: the maxima, one number per query; then the
        sums, 1 + v numbers per query.
        """
        top = self.max(log_sums)
        top = torch.where(torch.isneginf(top), torch.zeros_like(top), top)
        own = (log_sums.detach() - top).exp().unsqueeze(-1)
        if averages is None:
            return self.sum(own).squeeze(-1).log() + top, None
        own = own.to(averages).expand(*averages.shape[:-1], 1)
        sums = self.sum(torch.cat([own, own * averages.detach()], -1))
        total = sums[..., :1]
        return total.squeeze(-1).log().to(top) + top, sums[..., 1:] / torch.where(total > 0, total, 1.0)


class Sharded(Weights):
    """The weights of this process's components in the mixture of all processes.

    Args:
        own: the weights among the components of this process; they sum to 1.
        log_share: the logarithm of the share of this process's components in the whole.
        processes: that hold the others.
    """

    def __init__(self, own: Given, log_share: float, processes: Processes) -> None:
        self._own, self._log_share, self.processes = own, log_share, processes

    @property
    def is_sharded(self) -> bool:
        return True

    @property
    def batch_shape(self) -> torch.Size:
        return self._own.batch_shape

    @property
    def log_weights(self) -> NoReturn:
        got = f"one of {self.processes.count} shards"
        raise TypeError(bad_argument("weights", "a KDM that is whole in this process", got))

    @property
    def own_log_weights(self) -> Float[Tensor, "*batch m"]:
        return self._own.log_weights + self._log_share

    def average(self, values: Values) -> Float[Tensor, "*batch v"]:
        return self.processes.sum(math.exp(self._log_share) * self._own.average(values))

    def mix(self, entries: Sequence[Entry], values: Values | None = None) -> Mixed:
        averages, log_sums = self._own.mix(entries, values)
        return self.merged(averages, log_sums + self._log_share)

    def log_mix(self, entries: Sequence[Entry]) -> Float[Tensor, "*lead"]:
        return self.mix(entries)[1]

    def merged(self, averages: Float[Tensor, "*lead v"] | None, log_sums: Float[Tensor, "*lead"]) -> Mixed:
        log_sums, averages = self.processes.merge(log_sums, averages)
        return averages, log_sums

    def merged_given(
        self, log_sums: Float[Tensor, "*lead"], conditional: Float[Tensor, "*lead"]
    ) -> tuple[Float[Tensor, "*lead"], Float[Tensor, "*lead"]]:
        total = self.processes.merge(log_sums, None)[0]
        shares = torch.where(torch.isneginf(total), -torch.inf, log_sums.detach() - total)
        return total, self.processes.merge(shares + conditional.detach(), None)[0]

    def shared(self, tensor: Tensor) -> Tensor:
        return self.processes.first(tensor)

    def mapped(self, function: PartMap) -> Sharded:
        return Sharded(self._own.mapped(function), self._log_share, self.processes)

    def expand(self, batch_shape: torch.Size) -> Sharded:
        return Sharded(self._own.expand(batch_shape), self._log_share, self.processes)


def join_shards(rho: Rho, *, weight: float | None = None, group: Any = None) -> Rho:
    """The mixture of the KDMs of all processes, Σ_p s_p·ρ_p: every process keeps its own components.

    All processes call it, each with a KDM of its own. The result is a KDM (JointKDM) whose `log_prob`,
    `infer`, `probs`, `mean`, `variance` and `log_evidence` are those of the whole mixture. All processes have
    to ask the same questions in the same order, with the same values, and all get the answers. Partial sums
    are merged by two messages, of 1 and of 1 + v numbers per query for v averages, whatever the number of
    components. Answers have no gradients. What would need all components in one process (`weights`, `sample`,
    `icdf`) raises.

    Args:
        rho: the components of this process, with weights that sum to 1; without a batch. Kernels are the same
            in all processes, unless every component has a bandwidth of its own. A joint that is asked many
            times may be `prepared()`.
        weight: how much ρ_p counts: s_p is its share of the sum over processes. None is the number of
            components: then equal weights within all shards are equal weights of all components.
        group: of `torch.distributed`; None is all processes.

    Returns:
        A KDM or a JointKDM, as `rho` is.

    >>> import kdmkit as kdm
    >>> store = torch.distributed.HashStore()
    >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    >>> rho = kdm.join_shards(kdm.KDM.from_samples(torch.tensor([[0.0], [1.0]]), kdm.RBF.from_std(0.5)))
    >>> rho.log_prob(torch.tensor([[0.5]]))
    tensor([-0.7258])
    >>> torch.distributed.destroy_process_group()
    """
    check_instance("rho", rho, (KDM, JointKDM), "a KDM or a JointKDM")
    if rho.batch_shape or not isinstance(rho._weights, Given):
        raise ValueError(bad_argument("rho", "given weights, without a batch", rho))
    weight = float(rho.n_components) if weight is None else weight
    weight = check_number("weight", weight, "a number > 0", positive=True)
    processes = Processes(group)
    parts = processes.gather((weight, _description(rho)))
    for rank, (_, description) in enumerate(parts):
        if description != parts[0][1]:
            raise ValueError(
                bad_argument("rho", f"in process {rank} what process 0 has, {parts[0][1]}", description)
            )
    log_share = math.log(weight) - math.log(math.fsum(part[0] for part in parts))
    return shard_of(rho, log_share, processes)


def shard_of(rho: Rho, log_share: float, processes: Processes) -> Rho:
    """The mixture in which this process has the components of `rho`, whose weights sum to exp(log_share)."""
    made: Any = rho
    parts = (made.components, Sharded(made._weights, log_share, processes))
    kernels = made.kernel if isinstance(rho, KDM) else made.kernels
    sharded: Rho = type(rho)._made(*parts, kernels, rho._validate_args)
    return sharded


def _description(rho: KDM | JointKDM) -> dict[str, Any]:
    """What all shards have to agree on."""
    kernels = {"x": rho.kernel} if isinstance(rho, KDM) else rho.kernels
    components = {"x": rho.components} if isinstance(rho, KDM) else rho.components
    return {
        name: {
            "kernel": type(kernel).__name__ if kernel.per_component else kernel.config(),
            "bandwidths": kernel.per_component,
            "component": list(components[name].shape[1:]),
            "dtype": str(components[name].dtype),
        }
        for name, kernel in kernels.items()
    }
