"""The base of estimators that learn about a trend."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from kdmkit._core.checks import bad_argument, check_count, check_flag
from kdmkit.estimators.common.clusters import BATCH, RATE, STEPS
from kdmkit.estimators.common.cross_fit import FEWEST_ROWS, HOLDERS, trend_batch, trend_epochs
from kdmkit.estimators.common.joint import JointEstimator
from kdmkit.training import Rows


@dataclass(eq=False, repr=False, kw_only=True)
class TrendEstimator(JointEstimator):
    """Base of the estimators whose answers are those of an ensemble of networks, completed by a joint KDM."""

    trend: Literal["auto", "mlp"] | None = "auto"
    n_members: int = 16
    memory: bool = True
    max_epochs: int | Literal["auto"] = "auto"
    patience: int | None = 40

    def _check_trend(self) -> None:
        if self.trend not in ("auto", "mlp", None):
            raise ValueError(bad_argument("trend", "'auto', 'mlp' or None", repr(self.trend)))
        if self.trend == "mlp" and self.encoder is not None:
            raise ValueError(bad_argument("trend", "'auto' or None beside an encoder", "'mlp'"))
        if not isinstance(self.n_components, str) or self.n_components != "auto":
            check_count("n_components", self.n_components, "a whole number ≥ 1 or 'auto'")
        check_count("n_members", self.n_members, f"a whole number > {HOLDERS}", least=HOLDERS + 1)
        check_flag("memory", self.memory)

    def _has_trend(self, y: Tensor) -> bool:
        """Whether a trend is asked for and possible: few rows leave none to hold out; constants need none."""
        wanted = self.trend is not None and self.encoder is None
        return wanted and len(y) >= FEWEST_ROWS and bool((y != y[0]).any())

    def _run_trend(self, objective: nn.Module, rows: Rows, validation: Rows, **changes: Any) -> Any:
        n, folder = len(rows), self.checkpoint_dir
        batch = trend_batch(n) if self.batch_size == "auto" else int(self.batch_size)
        epochs = trend_epochs(n, batch) if self.max_epochs == "auto" else int(self.max_epochs)
        return self._run(
            objective,
            rows,
            validation,
            "trend",
            batch_size=batch,
            max_epochs=epochs,
            schedule="constant",
            checkpoint_dir=None if folder is None else Path(folder) / "trend",
            **changes,
        )

    def _run_bandwidths(self, objective: nn.Module, rows: Rows, description: str, **changes: Any) -> None:
        """Minimises the objective of the joint KDM, whose bandwidths are learned in a few hundred steps."""
        epochs = math.ceil(STEPS / math.ceil(len(rows) / BATCH))
        self.history_ = self._run(
            objective,
            rows,
            None,
            description,
            batch_size=BATCH,
            learning_rate=RATE,
            schedule="cosine",
            max_epochs=epochs if self.max_epochs == "auto" else min(epochs, int(self.max_epochs)),
            **changes,
        )
