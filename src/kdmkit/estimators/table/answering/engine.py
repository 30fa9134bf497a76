"""The engine behind questions to a fitted table: evidence in, exact distributions of columns out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit._core.checks import bad_argument
from kdmkit.estimators.table.answering.component_cache import ComponentCache
from kdmkit.estimators.table.answering.date_posterior import posterior_of
from kdmkit.estimators.table.answering.posterior import ComponentPosterior, Posterior
from kdmkit.estimators.table.answering.questions import in_common
from kdmkit.estimators.table.answering.restricted import restrict
from kdmkit.estimators.table.answering.variable_posterior import as_region, infer
from kdmkit.estimators.table.schema import Column, Schema
from kdmkit.kernels.regions import Interval, OneOf, Region
from kdmkit.training import Table

#: Rows that are answered together.
BLOCK = 4096


class TableEngine:
    """The columns of a table and the joint distribution of their variables.

    Args:
        schema: columns and their codecs.
        joint: the `TreeKDM` of the variables of the schema.
        module: the module that holds this distribution.
    """

    def __init__(self, schema: Schema, joint: Any, module: Any = None) -> None:
        self.schema, self.joint, self.module = schema, joint, module
        self._priors: dict[str, Posterior] = {}

    @cached_property
    def caches(self) -> dict[str, ComponentCache]:
        """Quantities of the components, by variable."""
        return {
            n: ComponentCache(kernel, self.joint.components[n]) for n, kernel in self.joint.kernels.items()
        }

    # ---- columns

    @property
    def columns(self) -> dict[str, Column]:
        """The columns that the model holds."""
        return self.schema.modelled

    def column(self, argument: str, name: Any) -> Column:
        """A column of the model by its name."""
        return self.schema.modelled_column(argument, name)

    # ---- one question

    def query(self, column: Column, given: Mapping[str, Any]) -> tuple[Posterior, float]:
        """The distribution of a column, and log p(given)."""
        condition = given.get(column.name)
        others = {name: value for name, value in given.items() if name != column.name}
        evidence = self.evidence(others)
        posterior: Posterior
        if evidence:
            rho, log_evidence = infer(self.joint, column.variables, evidence)
            total, share = _shares(log_evidence, others)
            posterior = posterior_of(column, rho, share, self.caches, partial(self.joint.infer, **evidence))
        else:
            posterior, total = self._prior(column), 0.0
        if condition is None:
            return posterior, total
        restricted, log_mass = restrict(posterior, condition)
        return restricted, total + log_mass

    def marginals(
        self, columns: Sequence[Column], given: Mapping[str, Any]
    ) -> tuple[dict[str, Posterior], float]:
        """The distribution of every column, and log p(given): one pass of messages serves all."""
        evidence = self.evidence(given)
        free = [column for column in columns if given.get(column.name) is None]
        posteriors: dict[str, Posterior] = {}
        total = 0.0
        if not evidence:
            return {column.name: self._prior(column) for column in columns}, total
        if free:
            wanted = [name for column in free for name in column.variables]
            rho = self.joint.infer(target=wanted if len(wanted) > 1 else wanted[0], **evidence)
            every = {wanted[0]: rho} if len(wanted) == 1 else rho.marginals()
            total, share = _shares(every[wanted[0]].log_evidence, given)  # from the pass of the marginals
            for column in free:
                several = len(column.variables) > 1
                marginal = rho.marginal(*column.variables) if several else every[column.variables[0]]
                posteriors[column.name] = posterior_of(column, marginal, share, self.caches)
        for column in columns:
            if column.name not in posteriors:
                posteriors[column.name], total = self.query(column, given)
        return {column.name: posteriors[column.name] for column in columns}, total

    def _prior(self, column: Column) -> Posterior:
        """The distribution of a column without evidence; made once."""
        if column.name not in self._priors:
            self._priors[column.name] = posterior_of(
                column, self.joint.marginal(*column.variables), None, self.caches
            )
        return self._priors[column.name]

    def event(self, event: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[float, float]:
        """p(event | given), and log p(given)."""
        regions = self.evidence(event)
        if not regions:
            raise ValueError(bad_argument("event", "at least one condition", "none"))
        if any(event[name] is not None and given.get(name) is not None for name in event):
            return self._overlapping_event(event, given)
        rho, log_evidence = infer(self.joint, tuple(regions), self.evidence(given))
        total, share = _shares(log_evidence, given)
        log_mass = torch.stack([self._log_mass(rho, box) for box in boxes(regions)])
        if share is not None:
            log_mass = log_mass + share
        return float(log_mass.double().exp().sum()), total

    def _overlapping_event(self, event: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[float, float]:
        """p(event | given) = p(event and given) / p(given), if some columns have conditions in both."""
        log_given = float(torch.logsumexp(self._log_boxes(given), -1))
        _shares(torch.tensor([log_given]), given)  # raises if it is impossible
        shared = {
            name: in_common(self.columns[name].codec, value, given[name])
            for name, value in event.items()
            if value is not None and given.get(name) is not None
        }
        total = 0.0
        for values in itertools.product(*shared.values()):
            both = {**given, **event, **dict(zip(shared, values, strict=True))}
            log_both = float(torch.logsumexp(self._log_boxes(both), -1))
            total += math.exp(log_both - log_given)
        return min(1.0, total), log_given

    def box_shares(self, given: Mapping[str, Any]) -> Float[Tensor, " boxes"]:
        """log p(box | given) of every box of the evidence."""
        share = _shares(self._log_boxes(given), given)[1]
        assert share is not None
        return share

    def _log_boxes(self, given: Mapping[str, Any]) -> Float[Tensor, " boxes"]:
        """log p of every box of the evidence; without evidence there is one box of probability 1."""
        evidence = self.evidence(given)
        if not evidence:
            return torch.zeros(1, dtype=torch.float64)
        free = [name for name in self.joint.variables if name not in evidence]
        if free:
            _, log_evidence = infer(self.joint, free[:1], evidence)
            assert log_evidence is not None
            return log_evidence.double()
        log_prob: Tensor = self.joint.log_prob(**evidence)
        return log_prob.double()

    def _log_mass(self, rho: Any, box: Mapping[str, Tensor | Region]) -> Tensor:
        """log p(box) under a distribution of its variables."""
        regions = {name: as_region(self.joint.kernels[name], value) for name, value in box.items()}
        if len(regions) == 1:
            (region,) = regions.values()
            log_mass: Tensor = rho.log_mass(region)
        else:
            log_mass = rho.log_prob(**regions)
        return log_mass

    def evidence(self, given: Mapping[str, Any]) -> dict[str, Tensor | Region]:
        """The evidence by variable; unknown columns raise."""
        for name in given:
            self.column("given", name)
        evidence = self.schema.evidence({name: value for name, value in given.items() if value is not None})
        return {name: self._in_dtype(name, value) for name, value in evidence.items()}

    def _in_dtype(self, name: str, value: Tensor | Region) -> Tensor | Region:
        """A point in the precision of the components: in another one all tables of the tree are converted."""
        like = self.joint.components[name]
        if isinstance(value, Region) or not value.is_floating_point() or not like.is_floating_point():
            return value
        return value.to(like.dtype)

    # ---- many rows

    def posterior(self, column: Column, rows: Table) -> ComponentPosterior:
        """The distribution of a column given the other columns of every row, `(rows,)`."""
        evidence, observed = _others(rows, column)
        if not evidence:
            rho = self.joint.marginal(*column.variables).expand((len(rows),))
            return posterior_of(column, rho, None, self.caches)
        ask = partial(self.joint.infer, observed=observed, **evidence)
        names = column.variables
        rho = ask(target=names[0] if len(names) == 1 else names)
        return posterior_of(column, rho, None, self.caches, ask)

    def log_prob(self, rows: Table) -> Float[Tensor, " rows"]:
        """log p of the observed part of every row, in the user's units."""
        log_prob: Tensor = self.joint.log_prob(observed=rows.observed, **rows.columns)
        return log_prob.double().cpu() + rows.log_offset.double()


def _others(rows: Table, column: Column) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Values and masks of the variables of other columns that at least one row has; at least one variable."""
    is_seen = {name: bool(mask.any()) for name, mask in rows.observed.items() if name not in column.variables}
    names = [name for name, seen in is_seen.items() if seen] or list(is_seen)[:1]
    return {n: rows.columns[n] for n in names}, {n: rows.observed[n] for n in names}


def _shares(log_evidence: Tensor | None, given: Mapping[str, Any]) -> tuple[float, Tensor | None]:
    """log p of all boxes together, and log-shares of the boxes."""
    if log_evidence is None:
        return 0.0, None
    total = torch.logsumexp(log_evidence.double(), -1)
    if bool(torch.isneginf(total)):
        evidence = {name: value for name, value in given.items() if value is not None}
        got = f"probability 0 of {evidence}"
        raise ValueError(bad_argument("given", "values that can occur together", got))
    return float(total), log_evidence.double() - total


def boxes(evidence: Mapping[str, Tensor | Region]) -> Iterator[dict[str, Any]]:
    """The boxes of evidence one by one, without the leading dimension that counts them."""
    for index in range(max(_count_boxes(value) for value in evidence.values())):
        yield {name: _box(value, index) for name, value in evidence.items()}


def _count_boxes(value: Any) -> int:
    if isinstance(value, Interval):
        return max(len(value.low), len(value.high))
    return len(value.values if isinstance(value, OneOf) else value)


def _box(value: Any, index: int) -> Any:
    if isinstance(value, Interval):
        return Interval(value.low[index % len(value.low)], value.high[index % len(value.high)])
    if isinstance(value, OneOf):
        return OneOf(value.values[index % len(value.values)])
    return value[index % len(value)]
