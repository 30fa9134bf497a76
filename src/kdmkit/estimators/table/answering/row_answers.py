"""Answers about the cells of many rows, given the other cells of each row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.distributions import KDM
from kdmkit.distributions.arguments import gather_masks
from kdmkit.distributions.event_inference import restriction
from kdmkit.distributions.evidence import gather_evidence
from kdmkit.estimators.table.answering.derived_posterior import DerivedPosterior
from kdmkit.estimators.table.codecs.functions import GONE
from kdmkit.estimators.table.column import Column
from kdmkit.estimators.table.derived import UNKNOWN, RowGroup, row_groups, without_codes
from kdmkit.kernels import Missing, Region
from kdmkit.training import Table

if TYPE_CHECKING:
    from kdmkit.estimators.table.answering.engine import TableEngine


class RowAnswers:
    """Answers about rows.

    Args:
        engine: the fitted table.
    """

    def __init__(self, engine: TableEngine) -> None:
        self._engine, self._schema, self._joint = engine, engine.schema, engine.joint

    def by_groups(self, column: Column, rows: Table, answer: Callable[[Any], Any]) -> Any:
        """`answer` of the distribution of a present value given the rest of every row, `(rows, …)`."""
        groups = list(row_groups(self._schema, rows, column))
        answers = [answer(self.posterior(column, group)) for group in groups]
        if len(groups) == 1:
            return answers[0]
        order = np.argsort(np.concatenate([group.index.numpy() for group in groups]), kind="stable")
        return np.concatenate(answers)[order]

    def posterior(self, column: Column, group: RowGroup) -> Any:
        """The distribution of a present value given the other columns of every row of a group, `(rows,)`."""
        if column.source:
            finer = self.posterior(self._engine.root(column), group)
            return DerivedPosterior(column, finer, group.codes)
        regions, names = dict(group.regions or {}), column.variables
        points, observed = _others(group.rows, column)
        if names[0] in regions:
            return self._engine.posterior_of(column, self._inside(names[0], {**points, **regions}, observed))
        points = {name: value for name, value in points.items() if name not in regions}
        observed = {name: mask for name, mask in observed.items() if name in points}
        if not points and not regions:
            prior = self._joint.marginal(*names).expand((len(group.rows),))
            return self._engine.posterior_of(column, prior)
        ask = partial(self._joint.infer, observed=observed, **points, **regions)
        return self._engine.posterior_of(column, ask(target=names[0] if len(names) == 1 else names), ask)

    def inside(self, column: Column, rows: Table, box: Mapping[str, Region]) -> Any:
        """The distribution of a value given the other columns of every row, and that it lies in a region."""
        (group,) = row_groups(self._schema, rows, column)
        points, observed = _others(group.rows, column)
        regions = {**(group.regions or {}), **box}
        points = {name: value for name, value in points.items() if name not in regions}
        observed = {name: mask for name, mask in observed.items() if name in points}
        (name,) = column.variables
        return self._engine.posterior_of(column, self._inside(name, {**points, **regions}, observed))

    def _inside(self, target: str, evidence: Mapping[str, Any], observed: Mapping[str, Tensor]) -> Any:
        """The distribution of a variable given evidence on it, too: a region, in which its kernels lie."""
        joint, region = self._joint, evidence[target]
        masks = gather_masks(observed, list(evidence), next(iter(joint.components.values())))
        rho: Any = joint._over((target,), gather_evidence(joint, None, evidence, masks, False))
        kernel, components = restriction(rho.kernel, region, rho.components)
        return KDM._made(components, rho._weights, kernel, False)

    def p_missing(self, column: Column, row: Table) -> float:
        """P(the cell is missing | other cells) of one row."""
        if column.source:
            (group,) = row_groups(self._schema, row, column)
            codec: Any = column.codec
            steps, code = codec.steps, int((group.codes if group.codes is not None else [0])[0])
            if code != UNKNOWN or not column.can_miss:
                return float(code == GONE)
            regions = [self._engine.root(column).codec.trimmed(steps.preimage(Missing))]
            return float(self.posterior(self._engine.root(column), group).masses_of(regions)[0, 0])
        if column.presence is None:
            return 0.0
        name = column.presence.name
        evidence, observed = _others(without_codes(self._schema, row), column)
        del evidence[name], observed[name]
        if not evidence:
            return float(self._joint.marginal(name).probs[0])
        return float(self._joint.infer(observed=observed, target=name, **evidence).probs[0, 0])

    def log_prob(self, rows: Table) -> Float[Tensor, " rows"]:
        """log p of the observed part of every row, in the user's units."""
        log_prob = torch.empty(len(rows), dtype=torch.float64)
        for group in row_groups(self._schema, rows):
            log_prob[group.index] = self._log_prob_of_group(group).double().cpu()
        return log_prob + rows.log_offset.double()

    def _log_prob_of_group(self, group: RowGroup) -> Tensor:
        rows = group.rows
        if group.regions is None:
            return torch.full((len(rows),), -math.inf)
        points = {name: value for name, value in rows.columns.items() if name not in group.regions}
        observed = {name: mask for name, mask in rows.observed.items() if name in points}
        if not group.regions:
            return torch.as_tensor(self._joint.log_prob(observed=observed, **points))
        return torch.as_tensor(
            self._inside(next(iter(group.regions)), {**points, **group.regions}, observed).log_evidence
        )


def _others(rows: Table, column: Column) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Values and masks of the variables of other columns that at least one row has; at least one variable.

    The cell of the column is there, if the column has missing cells.
    """
    is_seen = {n: bool(mask.any()) for n, mask in rows.observed.items() if n not in column.all_variables}
    names = [name for name, seen in is_seen.items() if seen] or list(is_seen)[:1]
    values, observed = {n: rows.columns[n] for n in names}, {n: rows.observed[n] for n in names}
    if column.presence is not None:
        there = torch.ones(len(rows), dtype=torch.bool)
        values[column.presence.name], observed[column.presence.name] = there.long(), there
    return values, observed
