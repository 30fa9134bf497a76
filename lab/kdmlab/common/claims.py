"""Targets that measured values have to meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kdmlab.common.tables import markdown_table


@dataclass(frozen=True)
class Claim:
    """A target for the mean, or the minimum, of measured values: from below, from above, or both.

    Args:
        what: the quantity.
        values: what was measured, one value per run; empty where nothing was run.
        least, most: the ends of the target; None for no such end. Without both, the value is only shown.
        summary: what of the values is compared.
        runs: how many runs the claim is about; the verdict on fewer says so.

    >>> claim = Claim("accuracy", [0.91, 0.93], least=0.9, runs=3)
    >>> claim.target, claim.value, claim.verdict
    ('≥ 0.9', 0.92, 'yes, of 2 runs')
    """

    what: str
    values: Sequence[float]
    least: float | None = None
    most: float | None = None
    summary: Literal["mean", "minimum"] = "mean"
    runs: int = 1

    @property
    def target(self) -> str:
        if self.least is None and self.most is None:
            return ""
        if self.least is not None and self.most is not None:
            return f"{self.least:.4g} … {self.most:.4g}"
        return f"≥ {self.least:.4g}" if self.least is not None else f"≤ {self.most:.4g}"

    @property
    def value(self) -> float:
        return float(np.mean(self.values) if self.summary == "mean" else np.min(self.values))

    @property
    def met(self) -> bool:
        """Whether the target is met; False where nothing was run."""
        if not self.values:
            return False
        above = self.least is None or self.value >= self.least
        return above and (self.most is None or self.value <= self.most)

    @property
    def verdict(self) -> str:
        n = len(self.values)
        if not n:
            return "not run"
        if not self.target:
            return ""
        few = f", of {n} {'run' if n == 1 else 'runs'}" if n < self.runs else ""
        return ("yes" if self.met else "no") + few

    def shown(self, form: str) -> str:
        """The value in a number format; empty where nothing was run."""
        return format(self.value, form) if self.values else ""


def claims_table(claims: Sequence[Claim], form: str, what: str = "what") -> str:
    """A Markdown table of claims, their targets, their values in a number format, and the verdicts."""
    cells = [[claim.what, claim.target, claim.shown(form), claim.verdict] for claim in claims]
    return markdown_table([what, "target", "measured", "met"], cells)
