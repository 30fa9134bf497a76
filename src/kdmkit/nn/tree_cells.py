"""The cells of a table as a fit of a tree takes them: encoded once, scored together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kdmkit._core.checks import is_integer
from kdmkit.kernels import Kernel
from kdmkit.kernels.forms import NormalCells, NormalForm, has_level_table, is_circle
from kdmkit.nn.layer import KDMLayer
from kdmkit.nn.stacked_kernels import CircleStack, LevelStack, NumberStack
from kdmkit.nn.tree_scores import TreeScores, group_kernels, grouped_scores
from kdmkit.ops.messages import Indexed, NodeScores

# A column with at most this many values, each of at least two rows, has one table of scores per step.
_MOST_OUTCOMES = 512


@dataclass(frozen=True)
class Place:
    """Where a column is among the codes and among the numbers of a row; and the shape of one event."""

    codes: slice
    numbers: slice
    shape: torch.Size


class TreeCells(nn.Module):
    """The columns of a table beside the variables of a layer.

    Every column is scored in one of four ways: by a table of log-probabilities (`LevelStack`), as cells of
    normal densities (`NumberStack`) of its distinct values or of all rows, on a circle (`CircleStack`), or,
    for any other kernel, by the kernel itself (`grouped_scores`). The first three are stacked forms.

    Args:
        layer: its variables are the columns.
        columns: by variable, `(n, *event)` or labels `(n,)`: all rows that will be encoded.
        masks: by variable, False if the value is missing.
    """

    def __init__(
        self, layer: KDMLayer, columns: Mapping[str, Tensor], masks: Mapping[str, Bool[Tensor, " n"]]
    ) -> None:
        super().__init__()
        kernels = {name: layer.kernel(name) for name in layer.variables}
        self.names = tuple(columns)
        levels = {n: k for n, k in kernels.items() if has_level_table(k) and is_integer(columns[n])}
        circles = {n: k for n, k in kernels.items() if is_circle(k) and columns[n].shape[1:] == (1,)}
        forms = _forms(kernels, columns, masks)
        self.levels = LevelStack(levels)
        self.circles = CircleStack(circles) if circles else None
        self.number_columns = nn.ModuleList(
            _NumberColumns(names, forms, columns, masks) for names in _alike(forms)
        )
        stacked = {*levels, *circles, *forms}
        self.others = [name for name in self.names if name not in stacked]
        self.groups = group_kernels({name: kernels[name] for name in self.others}, layer.components)
        self._dtype = layer.weight_logits.dtype
        self._lay_out(columns)

    def _lay_out(self, columns: Mapping[str, Tensor]) -> None:
        self.places: dict[str, Place] = {}
        codes = numbers = 0
        for name in self.names:
            width = self._width(name, columns[name])
            shape = columns[name].shape[1:]
            self.places[name] = Place(
                slice(codes, codes + width[0]), slice(numbers, numbers + width[1]), shape
            )
            codes, numbers = codes + width[0], numbers + width[1]
        self.widths = (codes, numbers)

    def _width(self, name: str, value: Tensor) -> tuple[int, int]:
        """The number of codes and of numbers of one cell."""
        if name in self.others:
            size = value.shape[1:].numel()
            return (size, 0) if is_integer(value) else (0, size)
        if self.circles is not None and name in self.circles.names:
            return 0, 1
        owner = self._owner(name)
        return (1, 0) if owner is None or name in owner.tabled else (1, 2)

    def _owner(self, name: str) -> _NumberColumns | None:
        return next((part for part in self._numbers if name in part.stack.names), None)

    @property
    def _numbers(self) -> list[_NumberColumns]:
        return [part for part in self.number_columns if isinstance(part, _NumberColumns)]

    @property
    def centred(self) -> list[str]:
        """Columns of numbers and circles: the last number of each of their components is a centre."""
        circles = () if self.circles is None else self.circles.names
        return [*(name for part in self._numbers for name in part.stack.names), *circles]

    # ---- rows

    def encode(
        self, columns: Mapping[str, Tensor], masks: Mapping[str, Bool[Tensor, " n"]]
    ) -> tuple[Int[Tensor, "n c"], Float[Tensor, "n f"]]:
        """Rows as codes and numbers; cells that are missing may be anything."""
        n = len(next(iter(columns.values())))
        codes = torch.zeros(n, self.widths[0], dtype=torch.int64)
        numbers = torch.zeros(n, self.widths[1], dtype=self._dtype)
        for name, place in self.places.items():
            value = columns[name]
            owner = self._owner(name)
            if owner is not None:
                owner.encode(name, value, masks.get(name), codes[:, place.codes], numbers[:, place.numbers])
            elif self.circles is not None and name in self.circles.names:
                numbers[:, place.numbers] = self.circles.pack(name, value).to(self._dtype)
            else:
                into = codes[:, place.codes] if is_integer(value) else numbers[:, place.numbers]
                into[:] = value.reshape(n, -1).to(into.dtype)
        return codes, numbers

    # ---- scores

    def forward(
        self,
        layer: KDMLayer,
        codes: Int[Tensor, "n c"],
        numbers: Float[Tensor, "n f"],
        seen: Bool[Tensor, "n v"] | None,
        tables: Sequence[Float[Tensor, "..."]],
    ) -> TreeScores:
        """The scores of rows.

        Args:
            layer: with the present components and kernels.
            codes, numbers: of `encode`.
            seen: False if a cell is missing or hidden; None if none is.
            tables: of `levels.tables`.
        """
        keep = None if seen is None else dict(zip(self.names, seen.unbind(1), strict=True))
        scores: dict[str, NodeScores] = {}
        tops: dict[str, Tensor] = {}
        for group, table in zip(self.levels.groups, tables, strict=True):
            hidden = torch.zeros_like(table[:, :1])
            index = self._indices(group.names, codes, keep, table.shape[1])
            scores |= _indexed(group.names, torch.cat([table, hidden], 1), index)
        for part in self._numbers:
            part.score(layer, self.places, codes, numbers, keep, scores, tops)
        if self.circles is not None:
            scores |= self._circles(layer, self.circles, numbers, keep)
        if self.others:
            values = {name: self._value(name, codes, numbers) for name in self.others}
            kernels = {name: layer.kernel(name) for name in self.others}
            parts = grouped_scores(self.groups, kernels, layer.components, values, keep)
            scores |= parts.by_name
            tops |= parts.tops
        made = TreeScores(scores, tops)
        # Messages of equal shapes are one product.
        return made.expanded() if codes.is_cuda else made

    def _indices(
        self, names: Sequence[str], codes: Tensor, keep: Mapping[str, Tensor] | None, hidden: int
    ) -> Int[Tensor, "v n"]:
        index = torch.stack([codes[:, self.places[name].codes.start] for name in names])
        if keep is None:
            return index
        return torch.where(torch.stack([keep[name] for name in names]), index, hidden)

    def _circles(
        self, layer: KDMLayer, circles: CircleStack, numbers: Tensor, keep: Mapping[str, Tensor] | None
    ) -> dict[str, NodeScores]:
        names = circles.names
        turns = torch.stack([numbers[:, self.places[name].numbers.start] for name in names])
        seen = torch.ones_like(turns, dtype=torch.bool)
        seen = seen if keep is None else torch.stack([keep[name] for name in names])
        widths = [layer.kernel(name).learned_bandwidth for name in names]
        scores = circles.scores(layer.components, widths, turns, seen)
        return dict(zip(names, scores.unbind(0), strict=True))

    def _value(self, name: str, codes: Tensor, numbers: Tensor) -> Tensor:
        place = self.places[name]
        is_code = place.codes.start < place.codes.stop
        value = codes[:, place.codes] if is_code else numbers[:, place.numbers]
        return value.reshape(len(value), *place.shape) if place.shape else value[:, 0]


class _NumberColumns(nn.Module):
    """Columns of one `NumberStack`: those with few values have outcomes, the others a cell in every row.

    Args:
        names: of the columns.
        forms: of their kernels.
        columns, masks: as in `TreeCells`.
    """

    column: Tensor
    outcomes: Tensor
    outcome_codes: Tensor
    direct_places: Tensor

    def __init__(
        self,
        names: Sequence[str],
        forms: Mapping[str, NormalForm],
        columns: Mapping[str, Tensor],
        masks: Mapping[str, Tensor],
    ) -> None:
        super().__init__()
        self.stack = NumberStack(names, forms)
        self._forms = forms
        self.tabled: dict[str, Tensor] = {}
        for name in names:
            distinct = _distinct(columns[name], masks.get(name))
            if distinct is not None:
                self.tabled[name] = distinct
        self.direct = [name for name in names if name not in self.tabled]
        places = torch.tensor([names.index(name) for name in self.direct], dtype=torch.long)
        self.register_buffer("direct_places", places, persistent=False)
        self._make_outcomes()

    def _make_outcomes(self) -> None:
        """The cells of the distinct values of columns with few of them; a hidden cell ends every column."""
        column, numbers, codes = [], [], []
        for name, distinct in self.tabled.items():
            cells = self._cells(name, distinct)
            of_name, of_codes = self.stack.pack(name, cells)
            numbers += [of_name, of_name[:1]]
            codes += [of_codes, torch.tensor([self.stack.hidden])]
            column.append(torch.full((len(distinct) + 1,), self.stack.names.index(name)))
        self.sizes = [len(part) for part in column]
        empty = torch.zeros(0, dtype=torch.long)
        self.register_buffer("column", torch.cat([*column, empty]), persistent=False)
        self.register_buffer("outcome_codes", torch.cat([*codes, empty]), persistent=False)
        outcomes = torch.cat([*numbers, torch.zeros(0, 2, dtype=torch.float64)])
        self.register_buffer("outcomes", outcomes, persistent=False)

    def _cells(self, name: str, values: Tensor) -> NormalCells:
        cells = self._forms[name].cells(values.unsqueeze(-1))
        assert cells is not None
        return cells

    def encode(self, name: str, value: Tensor, mask: Tensor | None, codes: Tensor, numbers: Tensor) -> None:
        """Writes the cells of a column into its codes and numbers."""
        flat = _comparable(value.squeeze(-1))
        if name in self.tabled:
            distinct = _comparable(self.tabled[name])
            codes[:, 0] = torch.searchsorted(distinct, flat).clamp_max(len(distinct) - 1)
            return
        seen = torch.ones(len(value), dtype=torch.bool) if mask is None else mask
        packed, atoms = self.stack.pack(name, self._cells(name, value.squeeze(-1)[seen]))
        numbers[seen] = packed.to(numbers.dtype)
        codes[seen, 0] = atoms
        codes[~seen, 0] = self.stack.hidden

    def score(
        self,
        layer: KDMLayer,
        places: Mapping[str, Place],
        codes: Tensor,
        numbers: Tensor,
        keep: Mapping[str, Tensor] | None,
        scores: dict[str, NodeScores],
        tops: dict[str, Tensor],
    ) -> None:
        """Adds scores, and what they leave out of densities, by column."""
        stack = self.stack
        widths = [layer.kernel(name).learned_bandwidth for name in stack.names]
        parts = stack.parts(layer.components, widths)
        if self.tabled:
            outcomes = self.outcomes.to(numbers.dtype)
            table = stack.of_outcomes(parts, self.column, outcomes, self.outcome_codes)
            slopes = stack.log_slopes(outcomes, self.outcome_codes)
            each = zip(self.tabled, table.split(self.sizes), slopes.split(self.sizes), strict=True)
            for name, distinct, slope in each:
                index = codes[:, places[name].codes.start]
                if keep is not None:
                    index = torch.where(keep[name], index, len(distinct) - 1)
                scores[name] = Indexed(distinct, index)
                if not stack.has_masses:
                    tops[name] = slope[index]
        if self.direct:
            code = torch.stack([codes[:, places[name].codes.start] for name in self.direct])
            if keep is not None:
                code = torch.where(torch.stack([keep[name] for name in self.direct]), code, stack.hidden)
            cells = torch.stack([numbers[:, places[name].numbers] for name in self.direct])
            scores.update(
                zip(self.direct, stack.of_rows(parts, self.direct_places, cells, code), strict=True)
            )
            if not stack.has_masses:
                slopes = stack.log_slopes(cells, code)
                tops.update(zip(self.direct, slopes.unbind(0), strict=True))


def _forms(
    kernels: Mapping[str, Kernel], columns: Mapping[str, Tensor], masks: Mapping[str, Tensor]
) -> dict[str, NormalForm]:
    """The forms of kernels of numbers whose events all have cells."""
    forms = {}
    for name, kernel in kernels.items():
        value = columns[name]
        form = NormalForm.of(kernel) if value.is_floating_point() and value.shape[1:] == (1,) else None
        seen = value if name not in masks else value[masks[name]]
        if form is not None and form.cells(seen) is not None:
            forms[name] = form
    return forms


def _alike(forms: Mapping[str, NormalForm]) -> list[list[str]]:
    """Columns whose forms can be stacked."""
    groups: dict[tuple[bool, bool], list[str]] = {}
    for name, form in forms.items():
        groups.setdefault((form.has_masses, form.n_atoms > 0), []).append(name)
    return list(groups.values())


def _comparable(values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Numbers that can be sorted: +∞, which is no event, in place of NaN."""
    return values.contiguous().nan_to_num(nan=torch.inf)


def _distinct(value: Tensor, mask: Tensor | None) -> Float[Tensor, " u"] | None:
    """The distinct values of a column, ascending; None if they are many."""
    seen = value.squeeze(-1) if mask is None else value.squeeze(-1)[mask]
    distinct = _comparable(seen).unique()
    if not 0 < len(distinct) <= min(_MOST_OUTCOMES, len(seen) // 2):
        return None
    return torch.where(distinct.isinf(), torch.nan, distinct)


def _indexed(
    names: Sequence[str], distinct: Float[Tensor, "v u k"], index: Int[Tensor, "v n"]
) -> dict[str, NodeScores]:
    pairs = zip(names, distinct.unbind(0), index.unbind(0), strict=True)
    return {name: Indexed(*pair) for name, *pair in pairs}
