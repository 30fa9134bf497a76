"""Tables of mixed columns with missing cells, packed so that a batch is three tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kdmkit._core.checks import as_tensor, bad_argument, check_instance, is_integer
from kdmkit.distributions.arguments import check_masks
from kdmkit.nn import KDMLayer, Variable
from kdmkit.training.fit_arguments import Rows


@dataclass(frozen=True)
class Table:
    """Columns of data, with their missing cells and the weights of the rows.

    Args:
        columns: by variable, `(n, *event)`, or labels `(n,)`.
        observed: by variable, a boolean mask `(n,)`: False if the value is missing (it may be anything).
            Variables without a missing value may be left out.
        weights: of the rows, `(n,)`; None: 1.
        log_offset: added to log p of each row, `(n,)`, for example if columns were rescaled; None: 0. A fit
            does not depend on it.

    >>> columns = {"age": torch.tensor([[31.0], [0.0]]), "job": torch.tensor([2, 0])}
    >>> Table(columns, observed={"age": torch.tensor([True, False])}).weights is None
    True
    """

    columns: Mapping[str, Any]
    observed: Mapping[str, Any] = field(default_factory=dict)
    weights: Any = None
    log_offset: Any = None

    def __len__(self) -> int:
        parts = [*self.columns.values()] if self.log_offset is None else [self.log_offset]
        return len(parts[0]) if parts else 0

    def take(self, index: Any) -> Table:
        """The rows at an index; columns, masks and weights are tensors."""
        weights, offset = (None if part is None else part[index] for part in (self.weights, self.log_offset))
        columns = {name: value[index] for name, value in self.columns.items()}
        observed = {name: mask[index] for name, mask in self.observed.items()}
        return Table(columns, observed, weights, offset)

    def blocks(self, size: int) -> Iterator[Table]:
        """The rows in blocks; one empty block if there are no rows."""
        for start in range(0, max(1, len(self)), size):
            yield self.take(slice(start, start + size))


@dataclass(frozen=True)
class Place:
    """The place of a column in the codes or in the numbers, and the shape of one event."""

    is_code: bool
    start: int
    shape: torch.Size


class Packing:
    """The places of a table's columns in one matrix of codes and one of numbers.

    Args:
        layer: the layer whose variables the columns are.
        table: a table with these columns. Other tables must have columns of the same kinds and shapes.
    """

    def __init__(self, layer: KDMLayer, table: Table) -> None:
        check_instance("table", table, Table, "a kdmkit.training.Table")
        self.layer = layer
        self.places: dict[str, Place] = {}
        ends = {True: 0, False: 0}
        for name in layer.variables:
            value = self._column(table, name)
            is_code, shape = is_integer(value), value.shape[1:]
            self.places[name] = Place(is_code, ends[is_code], shape)
            ends[is_code] += shape.numel()
        self.widths = ends

    def _column(self, table: Table, name: str) -> Tensor:
        check_instance("columns", table.columns, Mapping, "a mapping from variable to values")
        if set(table.columns) != set(self.layer.variables):
            wanted = f"data for {list(self.layer.variables)}"
            raise ValueError(bad_argument("columns", wanted, list(table.columns)))
        return as_tensor(name, table.columns[name]).detach()

    def rows(self, table: Table) -> Rows:
        """The table's codes, numbers and mask `(n, variables)` as rows; values are checked."""
        columns = {name: self._column(table, name) for name in self.layer.variables}
        lengths = {name: len(value) if value.ndim else 0 for name, value in columns.items()}
        n = next(iter(lengths.values()))
        if len(set(lengths.values())) > 1 or not n:
            raise ValueError(bad_argument("columns", "one or more rows, as many of every variable", lengths))
        masks = self._masks(table, n)
        dtype = self.layer.weight_logits.dtype
        codes = torch.zeros(n, self.widths[True], dtype=torch.int64)
        numbers = torch.zeros(n, self.widths[False], dtype=dtype)
        for name, place in self.places.items():
            value = self._filled(self.layer.variables[name], columns[name].cpu(), masks.get(name))
            if is_integer(value) != place.is_code or value.shape[1:] != place.shape:
                kind = "codes" if place.is_code else "numbers"
                wanted = f"{kind} of shape {(n, *place.shape)}"
                raise ValueError(bad_argument(name, wanted, f"{value.dtype} of shape {tuple(value.shape)}"))
            into = codes if place.is_code else numbers
            into[:, place.start : place.start + place.shape.numel()] = value.reshape(n, -1).to(into.dtype)
        seen = torch.ones(n, len(self.places), dtype=torch.bool)
        for i, name in enumerate(self.places):
            if name in masks:
                seen[:, i] = masks[name]
        weights = None if table.weights is None else as_tensor("weights", table.weights).detach().cpu()
        return Rows((codes, numbers, seen), weights)

    def _masks(self, table: Table, n: int) -> dict[str, Tensor]:
        masks = {}
        for name, mask in check_masks(table.observed).items():
            argument, tensor = f"observed[{name!r}]", torch.as_tensor(mask).cpu()
            if name not in self.places:
                raise ValueError(bad_argument("observed", f"variables among {list(self.places)}", name))
            if tensor.dtype != torch.bool or tensor.shape != (n,):
                got = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
                raise ValueError(bad_argument(argument, f"a boolean mask of shape ({n},)", got))
            masks[name] = tensor
        return masks

    def _filled(self, variable: Variable, value: Tensor, mask: Tensor | None) -> Tensor:
        """The column with valid events in place of missing ones."""
        kernel = variable.kernel
        if mask is not None:
            keep = mask.reshape(-1, *([1] * (value.ndim - 1)))
            components = self.layer.components[variable.name].detach().cpu()
            value = kernel.fill_missing(value, keep, components)
        kernel.check_events(variable.name, value, variable.shape)
        return value

    def unpack(
        self, codes: Int[Tensor, "n c"], numbers: Float[Tensor, "n f"], seen: Bool[Tensor, "n v"] | None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
        """Values and masks by variable, views of the packed tensors."""
        values = {}
        for name, place in self.places.items():
            source = codes if place.is_code else numbers
            value = source[:, place.start : place.start + place.shape.numel()]
            values[name] = value.reshape(len(value), *place.shape) if place.shape else value[:, 0]
        if seen is None:
            return values, None
        return values, dict(zip(self.places, seen.unbind(1), strict=True))


def packed_rows(layer: KDMLayer, train: Table, validation: Table | None) -> tuple[Packing, Rows, Rows | None]:
    """The packing of a fit's columns, the training rows, and the validation rows."""
    packing = Packing(layer, train)
    return packing, packing.rows(train), None if validation is None else packing.rows(validation)
