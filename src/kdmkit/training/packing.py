"""Tables of mixed columns with missing cells, packed so that a batch is three tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kdmkit._core.checks import as_tensor, bad_argument, check_instance, is_integer
from kdmkit.distributions.arguments import check_masks
from kdmkit.nn import KDMLayer, Variable
from kdmkit.nn.tree_cells import TreeCells
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


class Packing:
    """The columns of a table as the tensors of a fit: codes, numbers, and a mask of the cells that are there.

    Args:
        layer: the layer whose variables the columns are.
        tables: tables with these columns: all whose rows will be packed.
    """

    def __init__(self, layer: KDMLayer, *tables: Table) -> None:
        self.layer = layer
        parts = [self._checked(table) for table in tables]
        first = parts[0].columns
        self._first = {name: value[:1] for name, value in first.items()}
        for part in parts[1:]:
            self._check_alike(part)
        columns = {name: torch.cat([part.columns[name] for part in parts]) for name in first}
        masks = {}
        for name in first:
            if any(name in part.observed for part in parts):
                seen = [part.observed.get(name, torch.ones(len(part), dtype=torch.bool)) for part in parts]
                masks[name] = torch.cat(seen)
        self.cells = TreeCells(layer, columns, masks)

    def rows(self, table: Table) -> Rows:
        """The table's codes, numbers and mask `(n, variables)` as rows; values are checked."""
        checked = self._checked(table)
        seen = torch.ones(len(checked), len(checked.columns), dtype=torch.bool)
        for i, name in enumerate(checked.columns):
            if name in checked.observed:
                seen[:, i] = checked.observed[name]
        self._check_alike(checked)
        codes, numbers = self.cells.encode(checked.columns, checked.observed)
        weights = None if table.weights is None else as_tensor("weights", table.weights).detach().cpu()
        return Rows((codes, numbers, seen), weights)

    def _checked(self, table: Table) -> Table:
        """The table as tensors on the CPU in the order of the variables, valid events in missing cells."""
        check_instance("table", table, Table, "a kdmkit.training.Table")
        check_instance("columns", table.columns, Mapping, "a mapping from variable to values")
        if set(table.columns) != set(self.layer.variables):
            wanted = f"data for {list(self.layer.variables)}"
            raise ValueError(bad_argument("columns", wanted, list(table.columns)))
        columns = {name: as_tensor(name, table.columns[name]).detach() for name in self.layer.variables}
        lengths = {name: len(value) if value.ndim else 0 for name, value in columns.items()}
        n = next(iter(lengths.values()))
        if len(set(lengths.values())) > 1 or not n:
            raise ValueError(bad_argument("columns", "one or more rows, as many of every variable", lengths))
        masks = self._masks(table, n)
        filled = {
            name: self._filled(self.layer.variables[name], value.cpu(), masks.get(name))
            for name, value in columns.items()
        }
        return Table(filled, masks)

    def _masks(self, table: Table, n: int) -> dict[str, Tensor]:
        masks = {}
        for name, mask in check_masks(table.observed).items():
            argument, tensor = f"observed[{name!r}]", torch.as_tensor(mask).cpu()
            if name not in self.layer.variables:
                wanted = f"variables among {list(self.layer.variables)}"
                raise ValueError(bad_argument("observed", wanted, name))
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

    def _check_alike(self, table: Table) -> None:
        for name, value in table.columns.items():
            first = self._first[name]
            if is_integer(value) != is_integer(first) or value.shape[1:] != first.shape[1:]:
                kind = "codes" if is_integer(first) else "numbers"
                wanted = f"{kind} of shape {(len(value), *first.shape[1:])}"
                raise ValueError(bad_argument(name, wanted, f"{value.dtype} of shape {tuple(value.shape)}"))


def packed_rows(layer: KDMLayer, train: Table, validation: Table | None) -> tuple[Packing, Rows, Rows | None]:
    """The packing of a fit's columns, the training rows, and the validation rows."""
    packing = Packing(layer, *(part for part in (train, validation) if part is not None))
    return packing, packing.rows(train), None if validation is None else packing.rows(validation)
