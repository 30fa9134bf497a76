"""The steps of a fit: an optimizer, its learning rate, and updates of the parameters and of their average."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from kdmkit._core.checks import bad_argument
from kdmkit.kernels import Kernel
from kdmkit.nn import DrawingModule, Draws, KDMLayer
from kdmkit.training.devices import Proxy, Replayed, can_replay, prepare
from kdmkit.training.fit_arguments import FitOptions, Rows
from kdmkit.training.seeds import is_replayable

if TYPE_CHECKING:
    from accelerate import Accelerator

# The share of the steps in which the one-cycle schedule warms up.
_WARM_UP = 0.1


class Steps:
    """Updates the parameters by one batch after the other, and sums up the losses.

    On a CUDA device a step is a graph, one for each size of a batch: the device does not wait for Python. The
    one-cycle schedule changes Adam's β₁, which is constant in a graph: there the optimizer stays outside.

    Args:
        objective: the module that is trained; it moves to the accelerator's device.
        accelerator: of this fit.
        train: all rows, on the device of the accelerator.
        options: of the fit.
        n_steps: of the whole fit.

    Attributes:
        total: the weighted sum of the losses of this process since `restart`.
        generator: the library's modules draw from it.
        local: the rows of a batch that belong to this process.
        average: follows the parameters; None without averaging.
        result: the module whose weights are validated and returned: the average, or the objective itself.
        replays: whether a step is a graph.
    """

    def __init__(
        self, objective: nn.Module, accelerator: Accelerator, train: Rows, options: FitOptions, n_steps: int
    ) -> None:
        device = accelerator.device
        self.objective, self.accelerator, self.train, self.options = objective, accelerator, train, options
        self.scaled = accelerator.scaler is not None
        objective.to(device)
        optimizer = make_optimizer(objective, options)
        self.scheduler = make_schedule(optimizer, options, n_steps)
        wrapped = accelerator.num_processes > 1 or options.precision != "no"
        self.prepared = prepare(accelerator, Proxy(objective)) if wrapped else objective
        # Accelerate's optimizer is needed for scaled gradients only: at every step it looks for optional
        # packages, which takes time.
        self.optimizer = prepare(accelerator, optimizer) if self.scaled else optimizer
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        # After `prepare`, which gives all processes the weights of the first.
        self.average: MovingAverage | None = None
        self.result = objective
        if options.averaging is not None:
            self.average = MovingAverage(objective, options.averaging * n_steps)
            self.result = self.average.module
        self.local = slice(accelerator.process_index, None, accelerator.num_processes)
        self.generator = torch.Generator(device)
        self.drawing = [part for part in objective.modules() if isinstance(part, DrawingModule)]
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        is_static = not self.scaled and train.sizes is None
        self.replays = is_static and can_replay(device) and is_replayable(objective)
        self.moves = self.replays and options.schedule != "one-cycle"
        self._rates = [torch.zeros((), device=device) for _ in optimizer.param_groups] if self.moves else []
        self._rates_set: list[float] = []
        self._replayed = Replayed(device, [self.generator]) if self.replays else None
        # A module may have parameters, or parts of them, that take shorter steps than the optimizer's.
        self._step_factors: Callable[[], list[tuple[Tensor, Tensor]]] = getattr(
            objective, "step_factors", list
        )

    def parts(self) -> dict[str, Any]:
        """Everything with a state that a checkpoint keeps, by name."""
        parts = {
            "model": self.objective,
            "average": self.average,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": self.accelerator.scaler,
        }
        return {name: part for name, part in parts.items() if part is not None}

    def restart(self, seed: int) -> None:
        """Before an epoch."""
        self.generator.manual_seed(seed)
        self.total.zero_()

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return float(self.scheduler.get_last_lr()[0])

    def release(self) -> None:
        """After the last epoch."""

    def finish(self) -> None:
        """After an epoch."""
        for module in self.drawing:
            module.draws = None

    def run(self, batches: Sequence[Tensor]) -> None:
        """The updates of an epoch."""
        for batch in batches:
            self(batch)

    def __call__(self, batch: Tensor) -> None:
        """One update by the rows of these numbers, the same ones on all processes."""
        if self.moves:
            self._set_rates()
        work = self._update if self.moves else self._find_gradients
        if self._replayed is None:
            work(batch)
        else:
            self._replayed(work, batch)
        if not self.moves:
            self._move()
        if not (self.scaled and self.accelerator.optimizer_step_was_skipped):
            self.scheduler.step()

    # ---- the contents of a graph

    def _update(self, batch: Tensor) -> None:
        # A capture that failed may have left gradients.
        self.optimizer.zero_grad()
        self._find_gradients(batch)
        with self._rates_on_device():
            self._move()

    def _find_gradients(self, batch: Tensor) -> None:
        rows, weights = self.train.take(batch[self.local])
        if self.drawing:
            draws = self._draws(batch)
            for module in self.drawing:
                module.draws = draws
        local = weighted_sum(self.prepared(*rows), weights, len(rows[0]))
        batch_weight: float | Tensor = len(batch)
        if self.train.weights is not None:
            batch_weight = self.train.weights[batch].double().sum()
            # If all weights are 0, so is the sum of the losses.
            batch_weight = torch.where(batch_weight > 0, batch_weight, 1.0)
        # Processes average their gradients. The sum of local losses over the weight of the whole batch needs
        # their number as a factor.
        loss = local * (self.accelerator.num_processes / batch_weight)
        norm = self.options.clip_norm
        if self.scaled:
            self.accelerator.backward(loss)
            if norm is not None:
                self.accelerator.clip_grad_norm_(self.prepared.parameters(), norm)
        else:
            # Without Accelerate, which at every step looks for optional packages and for parameters.
            loss.backward()
            if norm is not None:
                nn.utils.clip_grad_norm_(self.parameters, norm)
        self.total += local.detach().double()

    def _draws(self, batch: Tensor) -> Draws:
        """The random numbers of a step, for the rows of this process."""
        sizes = self.train.sizes
        if sizes is None:
            return Draws(self.generator, len(batch), self.local)
        is_local = torch.zeros(len(batch), dtype=torch.bool, device=batch.device)
        is_local[self.local] = True
        data_rows = is_local.repeat_interleave(sizes[batch])
        return Draws(self.generator, len(data_rows), data_rows)

    def _move(self) -> None:
        factors = self._step_factors()
        before = [part.clone() for part, _ in factors]
        self.optimizer.step()
        for (part, factor), old in zip(factors, before, strict=True):
            part.copy_(torch.lerp(old, part, factor.to(part)))
        # A graph writes gradients, which the optimizer outside reads, to fixed tensors.
        self.optimizer.zero_grad(set_to_none=self.moves or not self.replays)
        if self.average is not None:
            self.average.update_parameters(self.objective)

    def _set_rates(self) -> None:
        """Brings the learning rates to the device, if they have changed."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        if rates != self._rates_set:
            for tensor, rate in zip(self._rates, rates, strict=True):
                tensor.fill_(rate)
            self._rates_set = rates

    @contextmanager
    def _rates_on_device(self) -> Iterator[None]:
        """The optimizer reads its learning rates from tensors, which a graph follows."""
        groups = self.optimizer.param_groups
        before = [{name: group[name] for name in ("lr", "capturable")} for group in groups]
        for rate, group in zip(self._rates, groups, strict=True):
            group.update(lr=rate, capturable=rate.is_cuda)
        try:
            yield
        finally:
            for group, settings in zip(groups, before, strict=True):
                group.update(settings)


def weighted_sum(losses: Tensor, weights: Tensor | None, n_rows: int) -> Tensor:
    """Σ_i w_i·loss_i of a batch; an error if the objective does not give one loss per row."""
    if losses.shape != (n_rows,):
        wanted = f"one loss per row, shape ({n_rows},)"
        raise ValueError(bad_argument("objective", wanted, tuple(losses.shape)))
    return losses.sum() if weights is None else (losses * weights).sum()


def make_optimizer(objective: nn.Module, options: FitOptions) -> torch.optim.Optimizer:
    """AdamW over the trainable parameters, with weight decay for `decayed_parameters`."""
    trainable = {name: p for name, p in objective.named_parameters() if p.requires_grad}
    if not trainable:
        raise ValueError(bad_argument("objective", "at least one trainable parameter", "none"))
    decayed = decayed_parameters(objective)
    groups = [
        {
            "params": [p for name, p in trainable.items() if (name in decayed) == decays],
            "weight_decay": options.weight_decay if decays else 0.0,
        }
        for decays in (True, False)
    ]
    # Fused: one pass over the parameters in place of a dozen.
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=options.learning_rate,
        betas=options.betas,
        fused=True,
    )


def decayed_parameters(objective: nn.Module) -> set[str]:
    """Names of the parameters that have weight decay.

    The rule: weights of linear and convolutional maps decay (parameters with two or more dimensions); biases,
    scales, and all parameters of KDM layers and kernels do not.
    """
    excluded: set[nn.Parameter] = set()
    for module in objective.modules():
        if isinstance(module, KDMLayer | Kernel):
            excluded.update(module.parameters())
    # An ensemble of networks keeps the biases of all its members in one tensor of three dimensions.
    return {
        name
        for name, p in objective.named_parameters()
        if p.ndim >= 2 and p not in excluded and not {"bias", "biases"} & set(name.split("."))
    }


def make_schedule(
    optimizer: torch.optim.Optimizer, options: FitOptions, n_steps: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """The learning rate of every step."""
    schedulers = torch.optim.lr_scheduler
    if options.schedule == "one-cycle":
        # torch divides by the length of the warm-up, which must not be zero steps.
        share = _WARM_UP if _WARM_UP * (n_steps + 1) > 1 else 0.0
        rates = [group["lr"] for group in optimizer.param_groups]
        return schedulers.OneCycleLR(optimizer, rates, total_steps=n_steps + 1, pct_start=share)
    if options.schedule == "cosine":
        return schedulers.CosineAnnealingLR(optimizer, n_steps)
    return schedulers.ConstantLR(optimizer, factor=1.0)


class MovingAverage(AveragedModel):
    """The average w̄ of an objective's parameters and buffers, which starts from their present values.

    `update_parameters(objective)` sets w̄ ← w̄ + (w − w̄)/h, without waiting for the device. Integer buffers are
    copied.

    Args:
        objective: the module to average; it is copied.
        horizon: h, about how many updates the average reaches back; at least 1.
    """

    def __init__(self, objective: nn.Module, horizon: float) -> None:
        super().__init__(objective, use_buffers=True)
        decay = 1 - 1 / max(1.0, horizon)
        self.share = 1 - decay
        self._places = _places(self.module)
        self._places_of: tuple[nn.Module, list[_Place]] = objective, _places(objective)
        # A constant may be infinite (an open bound, a smoothing of zero), and ∞ − ∞ is NaN.
        self._infinite = [
            i
            for i, tensor in enumerate(table[name] for table, name in self._places_of[1])
            if tensor.is_floating_point() and not tensor.requires_grad and bool(tensor.isinf().any())
        ]
        self.n_averaged += 1
        self.requires_grad_(False).eval()

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        if model is not self._places_of[0]:
            self._places_of = model, _places(model)
        averages = [table[name] for table, name in self._places]
        values = [table[name] for table, name in self._places_of[1]]
        floats: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for average, value in zip(averages, values, strict=True):
            if average.is_floating_point():
                both = floats.setdefault(average.dtype, ([], []))
                both[0].append(average)
                both[1].append(value)
            else:
                average.copy_(value)
        for moving, towards in floats.values():
            torch._foreach_lerp_(moving, towards, self.share)
        for i in self._infinite:
            averages[i].copy_(torch.where(averages[i].isnan(), values[i], averages[i]))
        self.n_averaged += 1


#: The parameters or buffers of a module, and the name of one of them.
_Place = tuple[dict[str, Any], str]


def _places(module: nn.Module) -> list[_Place]:
    """Where the parameters and buffers are: to walk through all modules takes longer than a small step."""
    places: dict[int, _Place] = {}
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    places.setdefault(id(tensor), (table, name))
    return list(places.values())
