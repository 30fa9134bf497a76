"""A small table whose distribution is known: two columns of numbers and one of levels."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import kdmkit as kdm
from kdmkit.estimators.table.answering.engine import TableEngine
from kdmkit.estimators.table.codecs.base import Box, Cells, Codec
from kdmkit.estimators.table.codecs.number_lists import CodePart
from kdmkit.estimators.table.column import Column
from kdmkit.estimators.table.frames.storage import RawColumn, Storage
from kdmkit.estimators.table.schema import Schema
from kdmkit.kernels import Region
from kdmkit.kernels.region_forms import by_edges
from kdmkit.kernels.regions import NOTHING, WHOLE
from kdmkit.training import Table


class Number(Codec):
    """Numbers as events of an RBF kernel."""

    codec, kind = "number", "float"
    ordered = numeric = True

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        return (torch.Size([1]),)

    def kernels(self, n_components: int | None = None) -> tuple[kdm.Kernel, ...]:
        return (kdm.RBF.from_std(0.2),)

    def encode(self, column: RawColumn) -> Cells:
        known = torch.from_numpy(np.where(column.missing, 0.0, column.values)).unsqueeze(-1)
        return Cells((known,), torch.from_numpy(~column.missing), torch.zeros(len(known)))

    def describe(self) -> str:
        return ""

    def decode(self, *parts: Tensor) -> np.ndarray:
        return parts[0].squeeze(-1).double().numpy()

    numbers = decode

    def read(self, region: Region) -> Region:
        return region

    def trimmed(self, outcomes: Region) -> Region:
        return WHOLE if outcomes.spans == WHOLE.spans else outcomes if outcomes.spans else NOTHING

    def boxes(self, outcomes: Region) -> list[Box]:
        return [{0: outcomes}]

    def outcomes_of(self, values: np.ndarray) -> np.ndarray:
        return values

    def raw(self, values: Sequence[Any]) -> RawColumn:
        return RawColumn(self.name, np.asarray(values), np.zeros(len(values), bool), Storage("float"))

    def config(self) -> dict[str, Any]:
        return {"name": self.name}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Number":
        return cls(config["name"])


class Level(Number):
    """Levels as codes of a Categorical kernel."""

    codec, kind = "level", "category"
    ordered = numeric = False

    def __init__(self, name: str, levels: Sequence[Any], smoothing: float = 0.05) -> None:
        super().__init__(name)
        self._levels, self.smoothing = list(levels), smoothing

    @property
    def levels(self) -> Sequence[Any]:
        return self._levels

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        return (torch.Size(),)

    def kernels(self, n_components: int | None = None) -> tuple[kdm.Kernel, ...]:
        return (kdm.Categorical(len(self._levels), self.smoothing),)

    def encode(self, column: RawColumn) -> Cells:
        cells = zip(column.values, column.missing, strict=True)
        codes = [0 if gone else self._levels.index(value) for value, gone in cells]
        return Cells((torch.tensor(codes),), torch.from_numpy(~column.missing), torch.zeros(len(codes)))

    def decode(self, *parts: Tensor) -> np.ndarray:
        return np.array(self._levels, dtype=object)[parts[0].numpy()]

    def read(self, region: Region) -> Region:
        return by_edges(region, lambda level, after: self._levels.index(level) + (0.5 if after else -0.5))

    def trimmed(self, outcomes: Region) -> Region:
        return CodePart(tuple(range(len(self._levels))), self.smoothing).trimmed(outcomes)

    def outcomes_of(self, values: np.ndarray) -> np.ndarray:
        return np.array([self._levels.index(value) for value in values], dtype=np.float64)


class HandMadeSchema(Schema):
    """What `TableEngine` asks of a schema, for columns of one variable."""

    def __init__(self, codecs: Sequence[Codec]) -> None:
        columns = [
            Column(codec.name, codec.kind, "", "", (f"c{i}",), codec, 0.0, Storage("float"))
            for i, codec in enumerate(codecs)
        ]
        super().__init__(columns, "mapping", [codec.name for codec in codecs])

    def encode(self, frame: Mapping[str, Sequence[Any]]) -> Table:
        n = len(next(iter(frame.values())))
        values, observed = {}, {}
        for name, column in self.columns.items():
            cells = list(frame.get(name, [None] * n))
            missing = np.array([cell is None or cell != cell for cell in cells])
            array = np.array(cells, dtype=object if column.codec.levels else float)
            coded = column.codec.encode(RawColumn(name, array, missing, column.storage))
            values[column.variables[0]], observed[column.variables[0]] = coded.parts[0], coded.observed
        return Table(values, observed, log_offset=torch.zeros(n))

    def decode(self, values: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        return {n: column.codec.decode(values[column.variables[0]]) for n, column in self.columns.items()}


def hand_made(levels: Sequence[str] = ("north", "south", "east"), smoothing: float = 0.05) -> TableEngine:
    """p(size, weight, shop) with four components, which are in the first three shops."""
    schema = HandMadeSchema([Number("size"), Number("weight"), Level("shop", levels, smoothing)])
    components = {
        "c0": torch.tensor([[0.0], [1.0], [2.0], [1.0]], dtype=torch.float64),
        "c1": torch.tensor([[10.0], [11.0], [12.0], [14.0]], dtype=torch.float64),
        "c2": torch.tensor([0, 1, 2, 1]),
    }
    kernels = {column.variables[0]: column.codec.kernels()[0].double() for column in schema.columns.values()}
    weights = torch.tensor([0.3, 0.3, 0.2, 0.2], dtype=torch.float64)
    return TableEngine(schema, kdm.TreeKDM.from_joint(kdm.JointKDM(components, weights, kernels)))
