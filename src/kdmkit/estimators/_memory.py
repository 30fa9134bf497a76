"""What single rows remember: the non-parametric KDM of residuals, where it pays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdmkit.kernels import RBF

# Bandwidths in units of √d, how far apart standardised rows are, and weights of the background.
_SIGMAS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.45)
_BACKGROUNDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
# Less of the squared error than this is not worth remembering rows for.
_LEAST_GAIN = 0.01
# In standard errors of the mean gain.
_CLEARLY = 3.0
# Rows that are remembered, rows that judge, and pairs at a time.
_MOST_ROWS, _JUDGES, _PAIRS = 20_000, 2000, 1 << 22


class Memory(nn.Module):
    """g(x) = Σ_i k²(x, x_i)·r_i / (b + Σ_i k²(x, x_i)).

    This is the mean of the joint KDM whose components are all rows with their residuals (Nadaraya–Watson),
    and one more, the background, that overlaps every x by b and remembers nothing: far from all rows g is 0.

    Args:
        rows, residuals: what is remembered, standardised.
        log_weights: of the rows.
        sigma, background: of the kernel, and b.
    """

    rows: Tensor
    residuals: Tensor
    log_weights: Tensor
    sigma: Tensor
    background: Tensor

    def __init__(
        self,
        rows: Float[Tensor, "n d"],
        residuals: Float[Tensor, "n outputs"],
        log_weights: Float[Tensor, " n"],
        sigma: float = 1.0,
        background: float = 1.0,
    ) -> None:
        super().__init__()
        self.register_buffer("rows", rows)
        self.register_buffer("residuals", residuals)
        self.register_buffer("log_weights", log_weights)
        self.register_buffer("sigma", torch.tensor(float(sigma), dtype=torch.float64))
        self.register_buffer("background", torch.tensor(float(background), dtype=torch.float64))

    def forward(
        self, x: Float[Tensor, "n d"], own: Int[Tensor, " n"] | None = None
    ) -> Float[Tensor, "n outputs"]:
        """What is remembered at x; `own` is the remembered row to leave out, −1 for none."""
        return self.known(x, own)[0]

    def known(
        self, x: Float[Tensor, "n d"], own: Int[Tensor, " n"] | None = None
    ) -> tuple[Float[Tensor, "n outputs"], Float[Tensor, "n 1"]]:
        """What is remembered at x, and the share of rows beside the background in it."""
        parts = [self._answer(overlap) for overlap in self._overlaps(x, own, float(self.sigma))]
        if not parts:
            return self.residuals[:0], self.residuals[:0, :1]
        answers, known = (torch.cat(some) for some in zip(*parts, strict=True))
        return answers, known

    def _answer(self, overlap: Float[Tensor, "b n"]) -> tuple[Tensor, Tensor]:
        total = overlap.sum(1, keepdim=True)
        whole = total + self.background.float()
        return overlap @ self.residuals / whole, total / whole

    def _overlaps(self, x: Tensor, own: Tensor | None, sigma: float) -> Iterator[Float[Tensor, "b n"]]:
        """Block by block, w_i·k²(x, x_i)."""
        kernel = RBF(torch.tensor(sigma, dtype=torch.float64, device=x.device))
        step = max(1, _PAIRS // max(1, len(self.rows)))
        owners = torch.full((len(x),), -1, device=x.device) if own is None else own
        for part, its_own in zip(x.split(step), owners.split(step), strict=True):
            overlap = (self.log_weights + kernel.log_overlap_matrix(part, self.rows)).float().exp()
            there = torch.nonzero(its_own >= 0).squeeze(-1)
            overlap[there, its_own[there]] = 0
            yield overlap

    def config(self) -> dict[str, Any]:
        return {"rows": len(self.rows), "d": self.rows.shape[1], "outputs": self.residuals.shape[1]}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Memory:
        n = config["rows"]
        return cls(torch.zeros(n, config["d"]), torch.zeros(n, config["outputs"]), torch.zeros(n))


@torch.no_grad()
def remember(
    x: Float[Tensor, "n d"],
    r: Float[Tensor, "n outputs"],
    weights: Float[Tensor, " n"] | None,
    generator: torch.Generator,
) -> tuple[Memory | None, Float[Tensor, "n outputs"], Float[Tensor, "n 1"]]:
    """A memory, if leaving rows out says that it pays; what it leaves of rows left out, and knows of them."""
    order = torch.randperm(len(x), generator=generator)
    kept, judges = order[:_MOST_ROWS], order[:_JUDGES]
    own = torch.full((len(x),), -1)
    own[kept] = torch.arange(len(kept))
    share = torch.ones(len(x)) if weights is None else (weights / weights.mean()).float()
    memory = Memory(x[kept], r[kept], share[kept].log())
    before = _errors(r[judges], share[judges])
    best, chosen = (1 - _LEAST_GAIN) * float(before.mean()), None
    for sigma in _SIGMAS:
        width = sigma * math.sqrt(x.shape[1])
        overlaps = memory._overlaps(x[judges], own[judges], width)
        sums = [(part @ memory.residuals, part.sum(1, keepdim=True)) for part in overlaps]
        above, below = (torch.cat(parts) for parts in zip(*sums, strict=True))
        for background in _BACKGROUNDS:
            after = _errors(r[judges] - above / (below + background), share[judges])
            if float(after.mean()) < best and _is_no_chance(before - after):
                best, chosen = float(after.mean()), (width, background)
    if chosen is None:
        return None, r, torch.zeros(len(x), 1)
    memory.sigma.fill_(chosen[0])
    memory.background.fill_(chosen[1])
    answers, known = memory.known(x, own)
    return memory, r - answers, known


def _errors(r: Float[Tensor, "n outputs"], share: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The weighted square of every row, outputs counting alike."""
    return share * r.double().square().mean(1)


def _is_no_chance(gains: Float[Tensor, " n"]) -> bool:
    """Whether their mean exceeds its standard error clearly enough for the best of many tries."""
    return float(gains.mean()) > _CLEARLY * float(gains.std()) / math.sqrt(len(gains))
