"""Small fits for the tests of the loop."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from helpers import normal, seeded
from kdmkit.nn import JointLayer
from kdmkit.training import FitOptions, Rows, fit, hybrid_nll

N = 60


class Objective(nn.Module):
    """−log p(y|x) − ½ log p(x) behind an encoder, with or without dropout."""

    def __init__(self, *, dropout: float = 0.0, dtype: torch.dtype = torch.float64, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            first, last = nn.Linear(3, 8, dtype=dtype), nn.Linear(8, 2, dtype=dtype)
            self.encoder = nn.Sequential(first, nn.Tanh(), nn.Dropout(dropout), last)
            self.layer = JointLayer(2, 3, 6, dtype=dtype)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return hybrid_nll(self.layer, self.encoder(x), y, generative_weight=0.5, detach_input=True)

    def accuracy(self, x: Tensor, y: Tensor) -> float:
        with torch.no_grad():
            return float((self.layer(self.encoder(x)).probs.argmax(-1) == y).double().mean())


def data(n: int = N, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Three classes around three centres."""
    y = torch.randint(3, (n,), generator=seeded(seed + 1))
    centres = 2 * normal(3, 3, seed=100)
    return (centres[y] + normal(n, 3, seed=seed + 2)).to(dtype), y


def rows(n: int = N, *, seed: int = 0, weighted: bool = False) -> Rows:
    weights = torch.rand(n, dtype=torch.float64, generator=seeded(seed + 3)) if weighted else None
    return Rows(data(n, seed=seed), weights)


def options(**changes: Any) -> FitOptions:
    return FitOptions(**{"max_epochs": 4, "batch_size": 16, "device": "cpu", "seed": 3, **changes})


def fitted(
    *,
    objective: Objective | None = None,
    validation: Rows | None = None,
    train: Rows | None = None,
    on_epoch: Callable[[nn.Module], None] | None = None,
    epochs: int | None = None,
    identity: dict[str, Any] | None = None,
    **changes: Any,
) -> tuple[Objective, list[dict[str, float]]]:
    """An objective after a fit, and the fit's history."""
    objective = Objective() if objective is None else objective
    history = fit(
        objective,
        rows() if train is None else train,
        validation,
        options=options(**changes),
        on_epoch=on_epoch,
        epochs=epochs,
        identity=identity,
    )
    return objective, history


def same(one: nn.Module, other: nn.Module) -> bool:
    """Whether all parameters and buffers are equal to the last bit."""
    state = other.state_dict()
    return all(torch.equal(value, state[name]) for name, value in one.state_dict().items())


def furthest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference between two states."""
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)
