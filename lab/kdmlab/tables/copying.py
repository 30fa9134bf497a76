"""Whether synthetic rows are copies: is the nearest real row one that the model has seen?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kdmlab.tables.data import Array, complete
from kdmlab.tables.frames import levels_of

# Distances that differ by less are equal, up to rounding in single precision.
_TIE = 1e-5


def dcr_share(
    synthetic: Mapping[str, Array],
    seen: Mapping[str, Array],
    unseen: Mapping[str, Array],
    *,
    block: int = 1024,
) -> float:
    """The share of synthetic rows that are nearer to a seen row than to every unseen one; ties count ½.

    The distance is Σ |x − x′| / range over numbers, and 2 for every category that differs. Both parts of the
    real rows should have the same size: then ½ is ideal, and copies of seen rows give 1.

    Args:
        synthetic: rows of a model; only their columns count.
        seen: the real rows that the model was fitted to; those with a missing cell are left out.
        unseen: other real rows, likewise.
        block: synthetic rows whose distances to all real rows are held at once.
    """
    real = [complete({name: part[name] for name in synthetic}) for part in (seen, unseen)]
    parts = _events(synthetic, *real)
    to_seen, to_unseen = (_nearest(parts[0], part, block) for part in parts[1:])
    gap = to_unseen - to_seen
    return float(torch.where(gap.abs() <= _TIE, 0.5, (gap > 0).float()).mean())


def _events(*parts: Mapping[str, Array]) -> list[tuple[Tensor, Tensor]]:
    """For every part its numbers over their range among the real rows, and the indicators of its levels."""
    events = []
    real = {name: np.concatenate([part[name] for part in parts[1:]]) for name in parts[0]}
    levels = {
        name: levels_of(*(part[name] for part in parts))
        for name, column in parts[0].items()
        if column.dtype == object
    }
    for part in parts:
        numbers = [part[name] / (np.ptp(real[name]) or 1.0) for name in part if name not in levels]
        indicators = [
            part[name][:, None] == np.array(levels[name], dtype=object) for name in part if name in levels
        ]
        events.append((_matrix([column[:, None] for column in numbers], part), _matrix(indicators, part)))
    return events


def _matrix(columns: list[Array], part: Mapping[str, Array]) -> Tensor:
    empty = np.zeros((len(next(iter(part.values()))), 0))
    return torch.from_numpy(np.concatenate([empty, *columns], axis=1).astype(np.float32))


def _nearest(rows: tuple[Tensor, Tensor], real: tuple[Tensor, Tensor], block: int) -> Float[Tensor, " n"]:
    """The distance of every row to the nearest real row, in blocks of rows."""
    n_categories = rows[1].sum(1).max() if rows[1].shape[1] else torch.zeros(())
    distances = []
    for numbers, levels in zip(rows[0].split(block), rows[1].split(block), strict=True):
        distance = torch.cdist(numbers, real[0], p=1)
        distance += 2 * (n_categories - levels @ real[1].T)
        distances.append(distance.min(1).values)
    return torch.cat(distances)
