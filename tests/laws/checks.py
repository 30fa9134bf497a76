"""The laws that every table and every question must satisfy, each as its deviation."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

import kdmkit as kdm
from kdmkit.answers import OrderRule
from kdmkit.distributions.events import CERTAIN, Condition, Event
from kdmkit.kernels.regions import Interval
from laws.events import EventMaker, Meaning, can_compare, compare, is_missing, outcome, pair
from laws.frames import LawFrame, Subject

#: Deviations may be this large, by the dtype of components.
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-6}
#: A probability below which evidence counts as impossible.
_TINY = 1e-30
#: What is at least so probable, but for that, counts as certain.
_SURE = 1e-9
#: Rows given a comparison of two columns are drawn by rejection: it is at least so probable.
_RARE = 0.02


class Laws:
    """The laws about one fitted table.

    Args:
        table: the table, fitted to the frame.
        law_frame: the frame.
        seed: of the questions.
        again: the same table, saved and loaded.
    """

    def __init__(self, table: kdm.KDMTable, law_frame: LawFrame, seed: int, again: Any = None) -> None:
        known = table.schema_.modelled
        law_frame = replace(
            law_frame,
            subjects=tuple(subject for subject in law_frame.subjects if subject.name in known),
            pairs=tuple(pair for pair in law_frame.pairs if set(pair) <= set(known)),
        )
        self.table, self.frame, self.again = table, law_frame, again
        self.orders = [rule for rule in table.rules_ if isinstance(rule, OrderRule)]
        self.rng = random.Random(seed)
        self.events = EventMaker(self.rng, law_frame)
        #: The last question, for reports.
        self.question = ""
        components = next(iter(table._engine().joint.components.values()))
        self.tolerance = TOLERANCES[components.dtype]

    @property
    def laws(self) -> dict[str, Callable[[], float | None]]:
        """The laws by name; each call asks about another random event, or returns None if there is none."""
        names = [name for name in dir(type(self)) if name.startswith("law_")]
        return {name.removeprefix("law_"): getattr(self, name) for name in names}

    # ---- parts of questions

    def subject(self, wanted: Callable[[Subject], bool] = lambda _: True) -> Subject | None:
        some = [subject for subject in self.events.subjects if wanted(subject)]
        return self.rng.choice(some) if some else None

    def given_values(self) -> Event:
        """Evidence under which every cell may be there."""
        while True:
            given = self.given()
            if all(self.p_missing(subject, given) < 1 - _SURE for subject in self.events.subjects):
                return given

    def given(self) -> Event:
        """Evidence: none, a value, or a random event that can happen."""
        pick = self.rng.random()
        if pick < 0.3:
            return CERTAIN
        if pick < 0.45:
            subject = self.subject()
            assert subject is not None
            return compare(subject, "=", self.rng.choice(subject.values)).event
        for _ in range(20):
            event = self.events.event().event
            if self.p(event) > 1e-12:
                return event
        return CERTAIN

    def p(self, event: Event, given: Event = CERTAIN) -> float:
        self.question = f"P({event} | {given})"
        probability = self.table.probability(event, given)
        assert 0 <= probability <= 1, (self.question, probability)
        return probability

    # ---- sums and products

    def law_trichotomy(self) -> float | None:
        """P(x < a) + P(x = a) + P(x > a) + P(x is missing) = 1."""
        subject, given = self.subject(lambda s: s.is_ordered), self.given()
        if subject is None:
            return None
        value = subject.some(self.rng)
        total = sum(self.p(compare(subject, sign, value).event, given) for sign in ("<", "=", ">"))
        closed = sum(self.p(compare(subject, sign, value).event, given) for sign in ("<=", ">"))
        other = sum(self.p(compare(subject, sign, value).event, given) for sign in ("<", ">="))
        there = 1 - self.p_missing(subject, given)
        return max(abs(total - there), abs(closed - there), abs(other - there))

    def p_missing(self, subject: Subject, given: Event) -> float:
        return self.p(is_missing(subject).event, given) if subject.has_missing else 0.0

    def law_missing(self) -> float | None:
        """P(missing) + P(not missing) = 1; answers know it, and None in a mapping states it."""
        subject, given = self.subject(lambda s: s.has_missing), self.given()
        if subject is None:
            return None
        gone = is_missing(subject).event
        p = self.p(gone, given)
        off = abs(p + self.p(~gone, given) - 1)
        if p < 1:
            off = max(off, abs(self.table.query(subject.name, given).p_missing - p))
        return max(off, abs(self.table.probability({subject.name: None}, given) - p))

    def law_complement(self) -> float:
        """P(A) + P(not A) = 1."""
        event, given = self.events.event().event, self.given()
        return abs(self.p(event, given) + self.p(~event, given) - 1)

    def law_partition(self) -> float:
        """The probabilities of a partition sum to 1, alone and within an event."""
        subject, given, event = self.subject(), self.given(), self.events.event().event
        assert subject is not None
        parts = self.events.partition(subject)
        whole = sum(self.p(part.event, given) for part in parts)
        within = sum(self.p(part.event & event, given) for part in parts)
        p = self.p(event, given)
        texts = [str(part.event) for part in parts]
        self.question = f"{texts} and {event} given {given}: {whole}, {within} = {p}"
        return max(abs(whole - 1), abs(within - p))

    def law_addition(self) -> float:
        """P(A or B) = P(A) + P(B) − P(A, B)."""
        one, other, given = self.events.event().event, self.events.event().event, self.given()
        total = self.p(one, given) + self.p(other, given) - self.p(one & other, given)
        off = abs(self.p(one | other, given) - total)
        self.question = f"{one} or {other} given {given}"
        return off

    def law_product(self) -> float:
        """P(A, B) = P(A | B) · P(B) and log_evidence is log P(B), where A is about one column.

        P(A | B) is that of the distribution of the column; P(A, B) and P(B) are sums over boxes.
        """
        subject, other = self.subject(), self.events.event().event
        assert subject is not None
        there = other & ~is_missing(subject).event
        p = self.p(there)
        if p < _TINY:
            return self._refused(subject, there)
        condition = self.values_of(subject)
        answer = self.table.query(subject.name, there)
        self.question = f"{condition} with {answer.question}"
        off = abs(answer.probability(condition.region) - self.p(condition & there) / p)
        return max(off, abs(math.expm1(answer.log_evidence - math.log(p))))

    def law_chain(self) -> float:
        """P(A, B) = Σ P(A | B, C) · P(B, C), where the C are a partition by another column."""
        subject, event = self.subject(), self.events.event().event
        assert subject is not None
        condition = self.values_of(subject)
        there = event & ~is_missing(subject).event
        whole, total = self.p(condition & there), 0.0
        parts = self.events.partition(self.subject())  # type: ignore[arg-type]
        for part in parts:
            p = self.p(part.event & there)
            if p > _TINY:
                answer = self.table.query(subject.name, part.event & there)
                total += p * answer.probability(condition.region)
        self.question = f"{condition} with {there} by {[str(part.event) for part in parts]}: {whole} {total}"
        return abs(whole - total)

    def values_of(self, subject: Subject) -> Condition:
        """A random condition on the values of a column."""
        while True:
            condition = self.events.condition(subject).event
            is_plain = isinstance(condition, Condition) and isinstance(condition.key, str)
            if is_plain and condition.region is not kdm.Missing:
                return condition

    def _refused(self, subject: Subject, given: Event) -> float:
        """Evidence without probability is refused, or has a density and gives a distribution."""
        try:
            answer = self.table.query(subject.name, given)
        except ValueError as error:
            if "probability 0" not in str(error):
                raise
            return 0.0
        self.question = answer.question
        parts = self.events.ranges(subject)
        regions = [part.event.region for part in parts if isinstance(part.event, Condition)]
        total = sum(answer.probability(region) for region in regions)
        return abs(total - 1) if len(regions) == len(parts) else 0.0

    def law_pairs(self) -> float | None:
        """P(x < y) + P(x = y) + P(x > y) = P(both are there), and each with its complement."""
        if not self.frame.pairs:
            return None
        names = self.rng.choice(self.frame.pairs)
        left, right = (kdm.col(name) for name in names)
        given = self.given() if self.rng.random() < 0.3 else CERTAIN
        below, equal, above = (self.p(e, given) for e in (left < right, left == right, left > right))
        both = self.p(can_compare(*names), given)
        off = max(abs(below + equal + above - both), abs(self.p(right < left, given) - above))
        return max(off, abs(self.p(~(left < right), given) - 1 + below))

    # ---- answers

    def law_query(self) -> float:
        """The distribution of a column has the probabilities of events about present cells."""
        subject, given = self.subject(), self.given_values()
        assert subject is not None
        answer = self.table.query(subject.name, given)
        condition = self.values_of(subject)
        p = self.p(condition, given & ~is_missing(subject).event)
        off = abs(answer.probability(condition.region) - p)
        marginal = self.table.marginals(given, [subject.name, self.events.subjects[0].name])[subject.name]
        return max(off, abs(marginal.probability(condition.region) - p))

    def law_histogram(self) -> float | None:
        """The bars of a histogram sum to the probability of their range."""
        subject, given = self.subject(lambda s: s.is_ordered), self.given_values()
        if subject is None:
            return None
        answer = self.table.query(subject.name, given)
        self.question = f"bins of {answer.question}"
        bins = answer.bins()
        ends = {end for ends in bins for end in ends}
        twice = sum(answer.probability(end) for end in ends if sum(end in pair for pair in bins) == 2)
        return abs(answer.histogram(bins).sum() - twice - answer.probability((bins[0][0], bins[-1][1])))

    def law_quantiles(self) -> float | None:
        """Quantiles ascend, F(quantile(q)) ≥ q and P(x < quantile(q)) ≤ q; the median is one of them."""
        subject, given = self.subject(lambda s: s.is_ordered), self.given_values()
        if subject is None:
            return None
        answer = self.table.query(subject.name, given)
        levels = sorted(self.rng.uniform(0.001, 0.999) for _ in range(3))
        values = [answer.quantile(q) for q in levels]
        self.question = f"quantiles {levels} = {values} of {answer.question}"
        places = outcome(subject, values) if subject.kind != "duration" else np.array(values)
        off = 0.0 if all(a <= b for a, b in itertools.pairwise(places)) else 1.0
        for q, value in zip(levels, values, strict=True):
            upto, below = (
                answer.probability(Interval(None, value)),
                answer.probability(Interval(None, value, "neither")),
            )
            off = max(off, q - upto, below - q)
        return off

    def law_means(self) -> float | None:
        """The mean is that of the means of parts."""
        subject, given = self.subject(lambda s: s.kind in ("number", "duration")), self.given_values()
        if subject is None:
            return None
        whole = self.table.query(subject.name, given)
        there = given & ~is_missing(subject).event
        total = scale = 0.0
        for part in self.events.ranges(subject):
            p = self.p(part.event, there)
            if p < 1e-9:
                continue
            inside = self.table.query(subject.name, part.event & given)
            self.question = f"mean of {inside.question}"
            total, scale = total + p * inside.mean, max(scale, p * abs(inside.mean), p * inside.std)
        self.question = f"means of parts of {whole.question}: {whole.mean} {total}"
        return abs(total - whole.mean) / max(scale, whole.std, abs(whole.mean), 1e-300)

    def law_mode(self) -> float:
        """No draw is more probable than the mode.

        Atoms have masses, other numbers densities: draws are compared that are of the kind of the mode.
        """
        subject, given = self.subject(), self.given_values()
        assert subject is not None
        answer = self.table.query(subject.name, given)
        mode = answer.mode
        self.question = f"mode {mode} of {answer.question}"
        atoms = self.table.schema_.columns[subject.name].codec.atoms
        drawn = answer.sample(40, random_state=self.rng.randrange(2**31))
        draws = [mode, *(value for value in drawn if not atoms or (value in atoms) == (mode in atoms))]
        heights = answer.density(draws)
        best = int(heights.argmax())
        self.question += f", draw {draws[best]} {heights[0]} {heights[best]}"
        return float(heights[best] / max(heights[0], 1e-300) - 1)

    # ---- forms

    def law_text(self) -> float:
        """The text of an event has its probability; the printed question is the same question."""
        event, given = self.events.event().event, self.given()
        answer = self.table.query(event, given)
        self.question = answer.question
        again = self.table.query(answer.question)
        same = 0.0 if again.question == answer.question else 1.0
        by_text = self.table.probability(str(event), None if given == CERTAIN else str(given))
        return max(same, abs(float(again) - float(answer)), abs(by_text - float(answer)))

    def law_printed(self) -> float:
        """The printed question about a column is the same question."""
        subject, given = self.subject(), self.given_values()
        assert subject is not None
        answer = self.table.query(subject.name, given)
        self.question = answer.question
        again = self.table.query(answer.question)
        assert again.question == answer.question, (again.question, answer.question)
        return abs(again.log_evidence - answer.log_evidence) / (1 + abs(answer.log_evidence))

    def law_mapping(self) -> float:
        """A mapping, a text and an expression state the same."""
        subject, given = self.subject(), self.given()
        assert subject is not None
        value: Any = subject.some(self.rng)
        event = kdm.col(subject.name) == value
        if subject.is_ordered and self.rng.random() < 0.5:
            value = self.events.ends(subject)
            event = kdm.col(subject.name).between(*value)
        p = self.p(event, given)
        by_mapping = self.table.probability({subject.name: value}, given)
        by_text = self.table.probability(str(event), given)
        return max(abs(p - by_mapping), abs(p - by_text))

    def law_saved(self) -> float | None:
        """A saved table answers the same."""
        if self.again is None:
            return None
        event, given = self.events.event().event, self.given()
        return abs(self.p(event, given) - self.again.probability(event, given))

    def law_certain(self) -> float | None:
        """What must happen has probability 1, what cannot has 0, and as evidence is refused."""
        subject = self.subject(lambda s: s.is_ordered)
        event = self.events.event().event
        if subject is None:
            return None
        whole = (
            compare(subject, "<", subject.values[0]).event | compare(subject, ">=", subject.values[0]).event
        ) | is_missing(subject).event
        off = max(abs(self.p(event | ~event) - 1), self.p(event & ~event), abs(self.p(whole) - 1))
        try:
            self.table.query(subject.name, event & ~event)
        except ValueError as error:
            return off if "probability 0" in str(error) else 1.0
        return 1.0

    # ---- draws

    def violations(self, n: int, *, with_pair: bool = False) -> tuple[float | None, int]:
        """Draws given a random event: the p-value of their frequencies, and how many violate it.

        They violate it if they break an order of the table; one order is part of what they are given. The
        p-value is None if the event has two comparisons: such events have no probability.

        Args:
            with_pair: whether two columns are compared in the event.
        """
        meaning = self._drawable(with_pair)
        self.question = f"sample | {meaning.event}"
        drawn = self.table.sample(n, given=meaning.event, random_state=self.rng.randrange(2**31))
        wrong = ~meaning.holds(drawn)
        for rule in self.orders:
            wrong |= rule.broken(self.table.schema_, self.table.schema_.read(drawn).columns)
        bad = int(wrong.sum())
        if bad:
            self.question += "\n" + drawn[wrong].head(2).to_string()
        if with_pair + len(self.orders) > 1:
            return None, bad
        parts = self.events.partition(self.subject())  # type: ignore[arg-type]
        given = meaning.event
        for rule in self.orders:
            given = given & ~(kdm.col(rule.low) > kdm.col(rule.high))
        wanted = np.array([self.p(part.event, given) for part in parts])
        got = np.array([part.holds(drawn).sum() for part in parts])
        self.question = f"frequencies {got} {n * wanted} of {[str(p.event) for p in parts]} | {meaning.event}"
        return p_value(got, n * wanted), bad

    def _drawable(self, with_pair: bool) -> Meaning:
        for _ in range(200):
            meaning = self.events.event()
            if with_pair:
                compared = pair(self.rng, *self.rng.choice(self.frame.pairs))
                meaning = compared & self.events.condition() if self.rng.random() < 0.5 else compared
            if self.p(meaning.event) > (_RARE if with_pair else 1e-3):
                return meaning
        return Meaning(CERTAIN, lambda frame: np.ones(len(frame), bool))

    def law_sets_of_masses(self) -> float | None:
        """Only the atom counts in a set of an atom and a value of a density."""
        for subject in self.events.subjects:
            codec = self.table.schema_.columns[subject.name].codec
            part = getattr(codec, "part", None)
            if subject.kind == "number" and codec.atoms and not (part.masses or part.step):
                atom = codec.atoms[0]
                other = next(value for value in subject.values if value not in codec.atoms)
                column = kdm.col(subject.name)
                return abs(self.p(column == atom, column.isin([atom, other])) - 1)
        return None


def p_value(got: np.ndarray, wanted: np.ndarray) -> float:
    """The p-value of the chi-square test; rare cells are merged, impossible ones fail."""
    if (got[wanted < 1e-7] > 0).any():
        return 0.0
    order = np.argsort(wanted)
    cells: list[list[float]] = [[0.0, 0.0]]
    for i in order:
        if cells[-1][1] >= 10:
            cells.append([0.0, 0.0])
        cells[-1][0] += got[i]
        cells[-1][1] += wanted[i]
    if len(cells) > 1 and cells[-1][1] < 10:
        last = cells.pop()
        cells[-1] = [cells[-1][0] + last[0], cells[-1][1] + last[1]]
    if len(cells) < 2:
        return 1.0
    counts, expected = np.array(cells).T
    expected *= counts.sum() / expected.sum()
    return float(stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), len(cells) - 1))


def fitted(
    law_frame: LawFrame,
    *,
    n_components: int = 4,
    max_epochs: int = 2,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> kdm.KDMTable:
    """A table of the frame, whose components have a dtype."""
    types = {s.name: "category" for s in law_frame.subjects if s.kind == "level"}
    table = kdm.KDMTable(
        types=types, n_components=n_components, max_epochs=max_epochs, random_state=0, **options
    )
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return table.fit(law_frame.frame)
    finally:
        torch.set_default_dtype(default)


def saved_and_loaded(table: kdm.KDMTable, folder: Path) -> Any:
    path = folder / "table.kdm"
    kdm.save(table, path)
    return kdm.load(path)
