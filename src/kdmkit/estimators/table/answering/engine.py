"""Questions to a fitted table: evidence in, distributions of columns out. All answers are exact."""

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
from kdmkit.estimators.table.answering.posterior import Posterior
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
        joint: a `TreeKDM` or a `JointKDM` over the variables of the schema.
        module: the module that the distribution is from.
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
        """The distribution of a column, and log p of what is given."""
        own = given.get(column.name)
        others = {name: value for name, value in given.items() if name != column.name}
        evidence = self.evidence(others)
        if evidence:
            rho, log_evidence = infer(self.joint, column.variables, evidence)
            total, share = _shares(log_evidence, others)
            posterior = posterior_of(column, rho, share, self.caches, partial(self.joint.infer, **evidence))
        else:
            posterior, total = self._prior(column), 0.0
        if own is None:
            return posterior, total
        restricted, log_mass = restrict(posterior, own)
        return restricted, total + log_mass

    def marginals(
        self, columns: Sequence[Column], given: Mapping[str, Any]
    ) -> tuple[dict[str, Posterior], float]:
        """The distribution of every column, and log p of what is given: one pass of messages serves all."""
        evidence = self.evidence(given)
        free = [column for column in columns if given.get(column.name) is None]
        found: dict[str, Posterior] = {}
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
                own = rho.marginal(*column.variables) if several else every[column.variables[0]]
                found[column.name] = posterior_of(column, own, share, self.caches)
        for column in columns:
            if column.name not in found:
                found[column.name], total = self.query(column, given)
        return {column.name: found[column.name] for column in columns}, total

    def _prior(self, column: Column) -> Posterior:
        """The distribution of a column where nothing is given; made once."""
        if column.name not in self._priors:
            self._priors[column.name] = posterior_of(
                column, self.joint.marginal(*column.variables), None, self.caches
            )
        return self._priors[column.name]

    def event(self, event: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[float, float]:
        """p(event | given), and log p of what is given."""
        known = self.evidence(event)
        if not known:
            raise ValueError(bad_argument("event", "at least one condition", "none"))
        if any(event[name] is not None and given.get(name) is not None for name in event):
            return self._overlapping_event(event, given)
        rho, log_evidence = infer(self.joint, tuple(known), self.evidence(given))
        total, share = _shares(log_evidence, given)
        log_mass = torch.stack([self._log_mass(rho, box) for box in boxes(known)])
        if share is not None:
            log_mass = log_mass + share
        return float(log_mass.double().exp().sum()), total

    def _overlapping_event(self, event: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[float, float]:
        """p(event | given) where some columns have conditions in both: p(event and given) over p(given)."""
        log_given = float(torch.logsumexp(self._log_boxes(given), -1))
        _shares(torch.tensor([log_given]), given)  # raises where it is impossible
        shared = {
            name: in_common(self.columns[name].codec, value, given[name])
            for name, value in event.items()
            if value is not None and given.get(name) is not None
        }
        total = 0.0
        for pieces in itertools.product(*shared.values()):
            every = {**given, **event, **dict(zip(shared, pieces, strict=True))}
            log_both = float(torch.logsumexp(self._log_boxes(every), -1))
            total += math.exp(log_both - log_given)
        return min(1.0, total), log_given

    def box_shares(self, given: Mapping[str, Any]) -> Float[Tensor, " boxes"]:
        """log p(box | given) of the boxes of what is given."""
        share = _shares(self._log_boxes(given), given)[1]
        assert share is not None
        return share

    def _log_boxes(self, given: Mapping[str, Any]) -> Float[Tensor, " boxes"]:
        """log p of every box of what is given; of nothing, one box of probability 1."""
        evidence = self.evidence(given)
        if not evidence:
            return torch.zeros(1, dtype=torch.float64)
        free = [name for name in self.joint.variables if name not in evidence]
        if free:
            _, log_evidence = infer(self.joint, free[:1], evidence)
            assert log_evidence is not None
            return log_evidence.double()
        found: Tensor = self.joint.log_prob(**evidence)
        return found.double()

    def _log_mass(self, rho: Any, box: Mapping[str, Tensor | Region]) -> Tensor:
        """log p(box) under a distribution of its variables."""
        regions = {name: as_region(self.joint.kernels[name], known) for name, known in box.items()}
        if len(regions) == 1:
            (region,) = regions.values()
            found: Tensor = rho.log_mass(region)
            return found
        found = rho.log_prob(**regions)
        return found

    def evidence(self, given: Mapping[str, Any]) -> dict[str, Tensor | Region]:
        """What is given, by variable; unknown columns raise."""
        for name in given:
            self.column("given", name)
        found = self.schema.evidence({name: value for name, value in given.items() if value is not None})
        return {name: self._in_dtype(name, known) for name, known in found.items()}

    def _in_dtype(self, name: str, known: Tensor | Region) -> Tensor | Region:
        """Points in the precision of the components: in another one all tables of the tree are converted."""
        like = self.joint.components[name]
        if isinstance(known, Region) or not known.is_floating_point() or not like.is_floating_point():
            return known
        return known.to(like.dtype)

    # ---- many rows

    def posterior(self, column: Column, rows: Table) -> Posterior:
        """The distribution of a column given the other columns of every row, `(rows,)`."""
        evidence, observed = others(rows, column)
        if not evidence:
            rho = self.joint.marginal(*column.variables).expand((len(rows),))
            return posterior_of(column, rho, None, self.caches)
        ask = partial(self.joint.infer, observed=observed, **evidence)
        names = column.variables
        rho = ask(target=names[0] if len(names) == 1 else names)
        return posterior_of(column, rho, None, self.caches, ask)

    def log_prob(self, rows: Table) -> Float[Tensor, " rows"]:
        """log p of the observed part of every row, in the user's units."""
        found: Tensor = self.joint.log_prob(observed=rows.observed, **rows.columns)
        return found.double().cpu() + rows.log_offset.double()


def others(rows: Table, column: Column) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Values and masks of the variables of other columns that at least one row has; at least one variable."""
    free = {name: bool(mask.any()) for name, mask in rows.observed.items() if name not in column.variables}
    names = [name for name, known in free.items() if known] or list(free)[:1]
    return {n: rows.columns[n] for n in names}, {n: rows.observed[n] for n in names}


def _shares(log_evidence: Tensor | None, given: Mapping[str, Any]) -> tuple[float, Tensor | None]:
    """log p of all boxes together, and log-shares of the boxes."""
    if log_evidence is None:
        return 0.0, None
    total = torch.logsumexp(log_evidence.double(), -1)
    if bool(torch.isneginf(total)):
        known = {name: value for name, value in given.items() if value is not None}
        raise ValueError(bad_argument("given", "values that can occur together", f"probability 0 of {known}"))
    return float(total), log_evidence.double() - total


def boxes(evidence: Mapping[str, Tensor | Region]) -> Iterator[dict[str, Any]]:
    """The boxes of evidence one by one, without the leading dimension that counts them."""
    count = max(_leading(known) for known in evidence.values())
    for index in range(count):
        yield {name: _box(known, index) for name, known in evidence.items()}


def _leading(known: Any) -> int:
    if isinstance(known, Interval):
        return max(len(known.low), len(known.high))
    return len(known.values if isinstance(known, OneOf) else known)


def _box(known: Any, index: int) -> Any:
    if isinstance(known, Interval):
        return Interval(known.low[index % len(known.low)], known.high[index % len(known.high)])
    if isinstance(known, OneOf):
        return OneOf(known.values[index % len(known.values)])
    return known[index % len(known)]
