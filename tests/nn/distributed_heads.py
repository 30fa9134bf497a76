"""Heads that test_distributed_heads.py trains: `torchrun … -m nn.distributed_heads folder`."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import kdmkit as kdm
from helpers import normal, seeded


class Classifier(nn.Module):
    """An encoder and a head, whose distribution `forward` returns."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            self.encoder = nn.Sequential(nn.Linear(3, 4, dtype=torch.float64), nn.Tanh())
        generator = seeded(1)
        self.head = kdm.nn.JointLayer(4, 3, n_components=12, dtype=torch.float64, generator=generator)
        self.head.initialize(self.encoder(data()[0]).detach(), data()[1], generator=generator)

    def forward(self, x: Tensor) -> kdm.KDM:
        return self.head(self.encoder(x))


class Loss(nn.Module):
    """The same with losses from `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = Classifier()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return -self.classifier(x).log_prob(y)


def data() -> tuple[Tensor, Tensor]:
    x = normal(48, 3, seed=2)
    return x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long()


def train(rows: slice, *, wrap: Any = lambda module: module, mixed: bool = False) -> dict[str, Any]:
    """States and averages of weights after steps with clipped gradients.

    `forward` returns losses, or distributions; with `mixed`, in float32 and bfloat16.
    """
    (x, y), states, dtype = data(), {}, torch.float32 if mixed else torch.float64
    for name, module in {"losses": Loss(), "distributions": Classifier()}.items():
        wrapped, x = wrap(module.to(dtype)), x.to(dtype)
        decay = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        average = torch.optim.swa_utils.AveragedModel(module, multi_avg_fn=decay)
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.02, weight_decay=0.0)
        for _ in range(6):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                answer = wrapped(x[rows], *([y[rows]] if name == "losses" else []))
                losses = answer if name == "losses" else -answer.log_prob(y[rows])
            losses.mean().backward()
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            optimizer.step()
            average.update_parameters(module)
        states[name] = {**module.state_dict(), **{f"mean {k}": v for k, v in average.state_dict().items()}}
    return states


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    half = slice(24 * rank, 24 * (rank + 1))
    torch.save(
        [train(half, wrap=DistributedDataParallel, mixed=mixed) for mixed in (False, True)],
        folder / f"{rank}.pt",
    )
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
