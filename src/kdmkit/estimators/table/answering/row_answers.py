"""Answers about the cells of many rows, given the other cells of each row."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kdmkit.distributions import KDM
from kdmkit.distributions.arguments import gather_masks
from kdmkit.distributions.event_inference import restriction
from kdmkit.distributions.events import Box
from kdmkit.distributions.evidence import gather_evidence
from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.table.answering.variable_posterior import DerivedPosterior
from kdmkit.estimators.table.codecs.functions import GONE
from kdmkit.estimators.table.column import Column
from kdmkit.estimators.table.derived import UNKNOWN, RowGroup, row_groups, without_codes
from kdmkit.kernels import Missing, Region
from kdmkit.kernels.regions import WHOLE, intersection
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
        coarse = dict(group.regions or {})
        regions = coarse | {name: intersection([coarse.get(name, WHOLE), part]) for name, part in box.items()}
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

    def p_missing(self, column: Column, rows: Table) -> Array:
        """P(the cell is missing | other cells) of every row."""
        if column.source:
            return self._p_missing_derived(column, rows)
        if column.presence is None:
            return np.zeros(len(rows))
        evidence, observed = _others(without_codes(self._schema, rows), column)
        there: dict[str, Any] = {name: evidence.pop(name) for name in column.presence.there}
        observed, names = {name: observed[name] for name in evidence}, list(there)
        rho: Any = (
            self._joint.infer(observed=observed, target=names, **evidence)
            if evidence
            else self._joint.marginal(*names)
        )
        log_present = rho.log_prob(*there.values()) if isinstance(rho, KDM) else rho.log_prob(**there)
        return np.asarray(-torch.expm1(log_present.clamp(max=0)).double().cpu())

    def _p_missing_derived(self, column: Any, rows: Table) -> Array:
        steps, finer = column.codec.steps, self._engine.root(column)
        result = np.zeros(len(rows))
        for group in row_groups(self._schema, rows, column):
            codes = np.zeros(len(group.rows), np.int64) if group.codes is None else group.codes
            p_missing = (codes == GONE).astype(np.float64)
            is_unknown = codes == UNKNOWN
            if column.can_miss and is_unknown.any():
                regions = [finer.codec.trimmed(steps.preimage(Missing))]
                masses = self.posterior(finer, group).masses_of(regions)[0]
                p_missing = np.where(is_unknown, masses, p_missing)
            result[group.index.numpy()] = p_missing
        return result

    def log_prob(self, rows: Table) -> Float[Tensor, " rows"]:
        """log p of the observed part of every row, in the user's units."""
        log_prob = torch.empty(len(rows), dtype=torch.float64)
        for group in row_groups(self._schema, rows):
            log_prob[group.index] = self._log_prob_of_group(group).double().cpu()
        return log_prob + rows.log_offset.double()

    def _log_prob_of_group(self, group: RowGroup) -> Tensor:
        if group.regions is not None:
            return self._log_evidence(group.rows, group.regions)
        # Coarser cells contradict each other, and the finer one is not known.
        if self._schema.broken_rules != "rare":
            return torch.full((len(group.rows),), -math.inf)
        rare = min(math.log(column.codec.exceptions) for column in self._schema.derived.values())
        return self._log_evidence(group.rows, {}) + rare

    def _log_evidence(self, rows: Table, regions: Mapping[str, Region]) -> Tensor:
        """log p of the observed values and of regions, of every row."""
        points = {name: value for name, value in rows.columns.items() if name not in regions}
        observed = {name: mask for name, mask in rows.observed.items() if name in points}
        if not regions:
            return torch.as_tensor(self._joint.log_prob(observed=observed, **points))
        inside = self._inside(next(iter(regions)), {**points, **regions}, observed)
        return torch.as_tensor(inside.log_evidence).expand(len(rows))

    def event_probability(
        self, asked: Sequence[Column], boxes: Sequence[Box], rows: Table
    ) -> Float[Tensor, " rows"]:
        """P(event | cells) of rows without cells of the event's columns; NaN if the cells have probability 0.

        Args:
            asked: the columns of the event.
            boxes: of regions of variables.
        """
        probability = torch.full((len(rows),), math.nan, dtype=torch.float64)
        finer = {name for c in asked if c.source for name in self._engine.root(c).all_variables}
        for group in row_groups(self._schema, rows):
            for index in _by_observed(group.rows, finer):
                if group.regions is not None:
                    share = self._share(group.rows.take(index), group.regions, boxes)
                    probability[group.index[index]] = share.double().cpu()
        return torch.where(rows.log_offset == -math.inf, math.nan, probability)

    def _share(self, rows: Table, given: Mapping[str, Region], boxes: Sequence[Box]) -> Tensor:
        """P(one of some disjoint boxes | observed cells) of rows in which the same cells are observed."""
        total = self._log_evidence(rows, given).double()
        share = torch.zeros_like(total)
        for box in boxes:
            seen = {name for name in box if name in rows.observed and bool(rows.observed[name].all())}
            free = {name: region for name, region in box.items() if name not in seen}
            both = {n: intersection([given[n], r]) if n in given else r for n, r in free.items()}
            if not any(region.is_empty for region in both.values()):
                part = (self._log_evidence(rows, {**given, **both}).double() - total).exp()
                for name in seen:
                    part = part * _are_inside(rows.columns[name], box[name]).to(part)
                share += part
        return share.clamp(max=1.0)


def _by_observed(rows: Table, names: Collection[str]) -> list[Tensor]:
    """The places of rows in which the same ones of some variables are observed."""
    if not names:
        return [torch.arange(len(rows))]
    masks = torch.stack([rows.observed[name] for name in names], 1)
    places = masks.unique(dim=0, return_inverse=True)[1]
    return [torch.nonzero(places == i).flatten() for i in range(int(places.max()) + 1)] if len(rows) else []


def _are_inside(values: Tensor, region: Region) -> Bool[Tensor, " rows"]:
    """Which values of a variable lie in a region."""
    distinct, place = values.flatten().unique(return_inverse=True)
    return torch.tensor([value in region for value in distinct.tolist()], dtype=torch.bool)[place]


def _others(rows: Table, column: Column) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Values and masks of the variables of other columns that at least one row has; at least one variable.

    The cell of the column is there, if the column has missing cells.
    """
    there = {} if column.presence is None else column.presence.there
    is_seen = {
        n: bool(mask.any())
        for n, mask in rows.observed.items()
        if n not in column.variables and n not in there
    }
    names = [name for name, seen in is_seen.items() if seen] or list(is_seen)[:1]
    values, observed = {n: rows.columns[n] for n in names}, {n: rows.observed[n] for n in names}
    if column.presence is not None:
        column.presence.put_there(values, observed, len(rows))
    return values, observed
