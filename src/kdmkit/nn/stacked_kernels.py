"""Scores of many columns in one operation: stacked forms of the kernels of numbers, circles and levels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from kdmkit._core.runtime import only_reverse_mode
from kdmkit.kernels import Levels, Periodic
from kdmkit.kernels.bandwidth import LearnedBandwidth, stack_bandwidths
from kdmkit.kernels.calculus.normal import anchored_log_mass, cell_log_mass
from kdmkit.kernels.forms import NormalCells, NormalForm

_HALF_LOG_PI = 0.5 * math.log(math.pi)
# Scores that are computed together on a CPU: more would leave the caches.
_TOGETHER = 1 << 18


# ---- numbers


class NumberStack(nn.Module):
    """Columns of numbers whose cells are all points or all intervals, with atoms or without.

    With u = (x − c)/σ a point has the score log p₀ − u² − log σ − ½·log π, an interval has log p₀ plus its
    log mass; both less the log mass between the ends of the density. An atom has log p_a. An interval with
    an atom has both. A cell that is hidden has the score 0.

    Args:
        names: of the columns.
        forms: of their kernels, alike in `has_masses` and in whether they have atoms.
    """

    centres: Tensor
    low: Tensor
    high: Tensor
    logits: Tensor
    is_unused: Tensor
    is_alone: Tensor

    def __init__(self, names: Sequence[str], forms: Mapping[str, NormalForm]) -> None:
        super().__init__()
        self.names = tuple(names)
        mine = [forms[name] for name in names]
        self.has_masses = mine[0].has_masses
        self.n_atoms = max(form.n_atoms for form in mine)
        ends = torch.tensor([[form.low, form.high] for form in mine], dtype=torch.float64)
        self.is_cut = bool(ends.isfinite().any())
        # Beyond this no component has a mass that counts.
        ends = ends.clamp(-1e4, 1e4)
        self.register_buffer("low", ends[:, :1], persistent=False)
        self.register_buffer("high", ends[:, 1:], persistent=False)
        widths = torch.tensor([form.n_atoms + 2 if form.n_atoms else 1 for form in mine])
        last = widths.cumsum(0) - 1
        self.register_buffer("centres", last, persistent=False)
        if self.n_atoms:
            self._place_shares(mine, last - widths + 1, int(widths.sum()))

    def _place_shares(self, forms: Sequence[NormalForm], first: Tensor, total: int) -> None:
        """Where the logits of every column are; places after the last atom have no share."""
        place = torch.arange(self.n_atoms + 1).unsqueeze(0)
        n_atoms = torch.tensor([form.n_atoms for form in forms]).unsqueeze(1)
        self.register_buffer("is_unused", place > n_atoms, persistent=False)
        places = torch.where(place > n_atoms, 0, first.unsqueeze(1) + place)
        self.register_buffer("logits", places.flatten(), persistent=False)
        missing = torch.zeros(len(forms), self.n_atoms + 2, dtype=torch.bool)
        for row, form in zip(missing, forms, strict=True):
            assert form.inflated is not None
            row[1 : form.n_atoms + 1] = form.inflated.atoms.isnan()
        # Atoms that are no number have no mass of an interval beside them; nor have hidden cells.
        missing[:, -1] = True
        self.register_buffer("is_alone", missing, persistent=False)

    # ---- cells

    def pack(self, name: str, cells: NormalCells) -> tuple[Float[Tensor, "n 2"], Int[Tensor, " n"]]:
        """The numbers of cells, (middle, width or log-slope), and their codes; `hidden` is a code."""
        return torch.stack([cells.middle, cells.width + cells.log_slope], 1), cells.atom

    @property
    def hidden(self) -> int:
        """The code of a cell that is hidden."""
        return self.n_atoms + 1

    # ---- parameters

    def parts(self, components: Mapping[str, Tensor], bandwidths: Sequence[Any]) -> dict[str, Tensor]:
        """Centres, scales and offsets `(v, k)`, and log-shares of atoms `(v·(atoms + 2), k)`."""
        every = torch.cat([components[name] for name in self.names], 1)
        centre = every.index_select(1, self.centres).mT
        stacked = stack_bandwidths(bandwidths)
        assert stacked is not None
        sigma = stacked.value.squeeze(-1).to(every)
        offset = torch.zeros_like(sigma) if self.has_masses else -sigma.log() - _HALF_LOG_PI
        if self.is_cut:
            wide, scale = centre.double(), sigma.double()
            whole = anchored_log_mass(self.low.to(wide), self.high.to(wide), wide, wide, scale)
            offset = offset - whole.to(offset)
        parts = {"centre": centre, "sigma": sigma, "offset": offset}
        if self.n_atoms:
            shares = self._log_shares(every)
            parts["offset"] = offset + shares[:, 0]
            parts["atoms"] = self._atom_table(shares)
        return parts

    def _log_shares(self, every: Tensor) -> Float[Tensor, "v s k"]:
        logits = every.index_select(1, self.logits).mT.reshape(len(self.names), self.n_atoms + 1, -1)
        return logits.masked_fill(self.is_unused.unsqueeze(-1), -math.inf).log_softmax(1)

    def _atom_table(self, shares: Float[Tensor, "v s k"]) -> Float[Tensor, "rows k"]:
        """log p of every code: nothing for code 0, atoms, and 0 for hidden cells."""
        none = torch.full_like(shares[:, :1], -math.inf)
        return torch.cat([none, shares[:, 1:], torch.zeros_like(none)], 1).flatten(0, 1)

    # ---- scores

    def of_outcomes(
        self,
        parts: Mapping[str, Tensor],
        column: Int[Tensor, " r"],
        numbers: Float[Tensor, "r 2"],
        codes: Int[Tensor, " r"],
    ) -> Float[Tensor, "r k"]:
        """Scores of cells of any columns.

        Args:
            parts: of `parts`.
            column: the number of every cell's column.
        """
        return self._scores(self._chosen(parts, column), parts.get("atoms"), column, numbers, codes)

    def of_rows(
        self,
        parts: Mapping[str, Tensor],
        columns: Int[Tensor, " v"],
        numbers: Float[Tensor, "v n 2"],
        codes: Int[Tensor, "v n"],
    ) -> list[Float[Tensor, "n k"]]:
        """Scores of n rows under every one of some columns.

        Args:
            columns: their numbers.
        """
        n, k = codes.shape[1], parts["sigma"].shape[1]
        size = len(columns) if numbers.is_cuda else max(1, _TOGETHER // (n * k))
        chosen = {name: part.unsqueeze(1) for name, part in self._chosen(parts, columns).items()}
        scores: list[Tensor] = []
        for start in range(0, len(columns), size):
            here = slice(start, start + size)
            one = {name: part[here] for name, part in chosen.items()}
            column = columns[here].unsqueeze(1)
            scores += self._scores(one, parts.get("atoms"), column, numbers[here], codes[here]).unbind(0)
        return scores

    @staticmethod
    def _chosen(parts: Mapping[str, Tensor], columns: Int[Tensor, " v"]) -> dict[str, Tensor]:
        return {name: parts[name].index_select(0, columns) for name in ("centre", "sigma", "offset")}

    def _scores(
        self, one: Mapping[str, Tensor], atoms: Tensor | None, column: Tensor, numbers: Tensor, codes: Tensor
    ) -> Float[Tensor, "*lead k"]:
        middle, width = (part.unsqueeze(-1) for part in numbers.unbind(-1))
        if self.has_masses:
            dense = cell_log_mass(middle, width, one["centre"], one["sigma"]) + one["offset"]
        else:
            dense = normal_scores(middle, one["centre"], one["sigma"], one["offset"])
        code = codes.unsqueeze(-1)
        if atoms is None:
            return dense.masked_fill(code == self.hidden, 0.0)
        place = (column * (self.n_atoms + 2) + codes).flatten()
        beside = atoms.index_select(0, place).reshape(dense.shape)
        if not self.has_masses:
            return torch.where(code == 0, dense, beside)
        alone = self.is_alone.flatten()[place].reshape(code.shape)
        return torch.logaddexp(dense.masked_fill(alone, -math.inf), beside)

    def log_slopes(
        self, numbers: Float[Tensor, "*lead 2"], codes: Int[Tensor, "*lead"]
    ) -> Float[Tensor, "*lead"]:
        """What the scores of points leave out: it is the same for all components."""
        return torch.where(codes == 0, numbers[..., 1], 0.0)


def normal_scores(x: Tensor, centre: Tensor, sigma: Tensor, offset: Tensor) -> Tensor:
    """offset − ((x − c)/σ)²; x has no gradient, and the others have first derivatives only."""
    if not only_reverse_mode():
        return offset - ((x - centre) / sigma).square()
    scores: Tensor = _NormalScores.apply(x, centre, sigma, offset)
    return scores


class _NormalScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, centre: Tensor, sigma: Tensor, offset: Tensor) -> Tensor:
        unit = (x - centre).div_(sigma)
        ctx.save_for_backward(unit, sigma)
        return torch.addcmul(offset, unit, unit, value=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Any:
        unit, sigma = ctx.saved_tensors
        slope = upstream * unit
        by_centre = slope.sum_to_size(sigma.shape)
        by_scale = (slope * unit).sum_to_size(sigma.shape)
        return None, 2 * by_centre / sigma, 2 * by_scale / sigma, upstream.sum_to_size(sigma.shape)


# ---- circles


class CircleStack(nn.Module):
    """Columns of numbers that go round: −2κ·sin²(π·(x − c)/period) less the log of the norm.

    Args:
        kernels: by column, with a learned bandwidth for every component.
    """

    period: Tensor

    def __init__(self, kernels: Mapping[str, Periodic]) -> None:
        super().__init__()
        self.names = tuple(kernels)
        period = torch.tensor([[kernel.period] for kernel in kernels.values()], dtype=torch.float64)
        self.register_buffer("period", period, persistent=False)

    def pack(self, name: str, values: Float[Tensor, "n 1"]) -> Float[Tensor, "n 1"]:
        """Turns in [0, 1)."""
        return torch.remainder(values.double() / self.period[self.names.index(name)].cpu(), 1.0)

    def scores(
        self,
        components: Mapping[str, Tensor],
        bandwidths: Sequence[LearnedBandwidth],
        turns: Float[Tensor, "v n"],
        seen: Bool[Tensor, "v n"],
    ) -> Float[Tensor, "v n k"]:
        """Scores of n rows, 0 where a cell is hidden."""
        stacked = stack_bandwidths(bandwidths)
        assert stacked is not None
        sigma = stacked.value.squeeze(-1)
        period = self.period.to(sigma)
        kappa = 0.5 * (period / (math.pi * sigma)).square()
        centre = torch.stack([components[name].squeeze(-1) for name in self.names]) / period
        gap = turns.unsqueeze(-1) - centre.unsqueeze(1)
        norm = (period * torch.special.i0e(kappa)).log()
        scores = -2 * kappa.unsqueeze(1) * (math.pi * gap).sin().square() - norm.unsqueeze(1)
        return torch.where(seen.unsqueeze(-1), scores, 0.0)


# ---- levels


class LevelStack(nn.Module):
    """Columns of levels, those of like numbers of levels in one tensor.

    Args:
        kernels: by column; their smoothing is not trained.
    """

    def __init__(self, kernels: Mapping[str, Levels]) -> None:
        super().__init__()
        groups: dict[tuple[int, bool], list[str]] = {}
        for name, kernel in kernels.items():
            smoothed = bool(kernel.smoothing > 0)
            groups.setdefault((max(1, kernel.n - 1).bit_length(), smoothed), []).append(name)
        self.groups = [_LevelGroup(names, [kernels[name] for name in names]) for names in groups.values()]
        self.parts = nn.ModuleList(self.groups)

    def tables(self, components: Mapping[str, Tensor]) -> list[Float[Tensor, "..."]]:
        """log p(level | component) of every group; levels that a column lacks have 0."""
        return [group.table(components) for group in self.groups]


class _LevelGroup(nn.Module):
    places: Tensor
    is_unused: Tensor
    smoothing: Tensor
    spread: Tensor

    def __init__(self, names: Sequence[str], kernels: Sequence[Levels]) -> None:
        super().__init__()
        self.names = tuple(names)
        sizes = torch.tensor([kernel.n for kernel in kernels]).unsqueeze(1)
        self.n = int(sizes.max())
        level = torch.arange(self.n).unsqueeze(0)
        self.register_buffer("is_unused", (level >= sizes).unsqueeze(-1), persistent=False)
        first = sizes.cumsum(0) - sizes
        places = torch.where(level < sizes, first + level, 0).flatten()
        self.register_buffer("places", places, persistent=False)
        share = torch.tensor([[[float(kernel.smoothing)]] for kernel in kernels], dtype=torch.float64)
        self.register_buffer("smoothing", share, persistent=False)
        self.register_buffer("spread", share / sizes.unsqueeze(-1), persistent=False)
        self.is_smoothed = bool((share > 0).all())

    def table(self, components: Mapping[str, Tensor]) -> Float[Tensor, "v n k"]:
        every = torch.cat([components[name] for name in self.names], 1).mT
        logits = every.index_select(0, self.places).reshape(len(self.names), self.n, -1)
        logits = logits.masked_fill(self.is_unused, -math.inf)
        if not self.is_smoothed:
            return logits.log_softmax(1).masked_fill(self.is_unused, 0.0)
        free = logits.softmax(1)
        probs = torch.addcmul(self.spread.to(free), free, 1 - self.smoothing.to(free))
        return probs.log().masked_fill(self.is_unused, 0.0)
