"""The distribution of a column that is a function of another one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.answering.posterior import Posterior
from kdmkit.kernels import Region


class DerivedPosterior(Posterior):
    """The distribution of a present cell of a derived column: sums over the finer column.

    Args:
        column: the column.
        finer: the distribution of a present cell of the finer column.
        codes: the codes of cells that are known, `(*batch,)`; others are negative. None: none is known.
    """

    codec: Any

    def __init__(self, column: Any, finer: Posterior, codes: np.ndarray | None = None) -> None:
        self.column, self.codec, self.finer = column, column.codec, finer
        self.log_evidence = finer.log_evidence
        self._known = codes

    @property
    def batch(self) -> tuple[int, ...]:
        return self.finer.batch

    @cached_property
    def _probs(self) -> Array:
        probs = np.moveaxis(self.finer.masses_of(self.codec.level_regions), 0, -1)
        total = probs.sum(-1, keepdims=True)
        probs = np.where(total > 0, probs / np.where(total > 0, total, 1.0), 1 / probs.shape[-1])
        if self._known is not None and (self._known >= 0).any():
            probs[self._known >= 0] = np.eye(probs.shape[-1])[self._known[self._known >= 0]]
        return np.asarray(probs)

    def probs(self) -> Array:
        return self._probs

    def typical(self) -> Array:
        closeness = -np.abs(self.mean()[..., None] - self._numbers()) if self.codec.numeric else self._probs
        return np.asarray(self.codec.cells(closeness.argmax(-1))[0])

    def _masses(self, regions: Sequence[Region]) -> Array:
        codes = np.arange(self._probs.shape[-1], dtype=np.float64)
        inside = np.stack([region.contains(codes) for region in regions]).astype(np.float64)
        return np.moveaxis(self._probs @ inside.T, -1, 0)

    def _log_prob(self, events: Sequence[Tensor]) -> Array:
        codes = events[0].reshape(-1).numpy()
        with np.errstate(divide="ignore"):
            return np.moveaxis(np.log(self._probs[..., codes]), -1, 0)

    def sample(self, n: int, generator: torch.Generator | None) -> Array:
        device = torch.device("cpu") if generator is None else generator.device
        probs = torch.from_numpy(self._probs).to(device).reshape(-1, self._probs.shape[-1])
        codes = torch.multinomial(probs, n, replacement=True, generator=generator).cpu().numpy()
        return self._at_codes(codes.T.reshape(n, *self.batch))
