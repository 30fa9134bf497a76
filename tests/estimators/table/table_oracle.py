"""Tables whose columns are functions of others, beside sums over all cells and all states in numpy.

The oracle takes the weights of the states and the components of the levels from a fitted tree, and the
functions from the rows of the frame: it uses neither the inference nor the derived columns of kdmkit.
"""

from __future__ import annotations

import itertools
import operator as op
import warnings
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

import kdmkit as kdm
from distributions.event_oracle import Variable
from distributions.oracle_deviations import TABLES, Deviation

_ROWS, _QUESTIONS, _CONDITIONS = 500, 6, 3
_SIGNS = {"<": op.lt, "<=": op.le, ">": op.gt, ">=": op.ge, "=": op.eq, "!=": op.ne}
#: Derived columns, and the columns that they are functions of: texts, missing cells, numbers, two steps.
FUNCTIONS = {"f": "a", "m": "a", "h": "a", "g": "f", "k": "b"}
ROOTS = ("a", "b", "c")


def random_frame(rng: np.random.Generator) -> pd.DataFrame:
    """Three columns of levels that depend on each other, and functions of them."""
    sizes = {"a": int(rng.integers(6, 11)), "b": int(rng.integers(3, 6)), "c": int(rng.integers(2, 5))}
    a = np.r_[np.arange(sizes["a"]), rng.integers(0, sizes["a"], _ROWS - sizes["a"])]
    b = np.where(rng.random(_ROWS) < 0.6, a % sizes["b"], rng.integers(0, sizes["b"], _ROWS))
    c = np.where(rng.random(_ROWS) < 0.5, (a + b) % sizes["c"], rng.integers(0, sizes["c"], _ROWS))
    codes = {"a": a, "b": b, "c": c}
    frame = pd.DataFrame({name: [f"{name}{code}" for code in codes[name]] for name in ROOTS})
    f = np.arange(sizes["a"]) % int(rng.integers(3, 5))
    m = np.array([None if code % 3 == 2 else f"m{code % 2}" for code in range(sizes["a"])], dtype=object)
    h = rng.permutation([1, 2, 4, 7, 12, 20, 33])[rng.integers(0, 4, sizes["a"])]
    h[:2] = [50, 60]
    return frame.assign(
        f=[f"f{f[code]}" for code in a], m=m[a], h=h[a], g=[f"g{f[code] % 2}" for code in a],
        k=[f"k{code % 2}" for code in b],
    )  # fmt: skip


class TableOracle:
    """A fitted table, and the probability of each of its possible rows.

    Attributes:
        table: the table.
        cells: all possible rows.
        p: their probabilities.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.frame = random_frame(rng)
        rules = [f"{source} -> {target}" for target, source in FUNCTIONS.items()]
        options: Any = {"n_components": 4, "max_epochs": 2, "random_state": int(rng.integers(1000))}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.table = kdm.KDMTable(rules=rules, **options).fit(self.frame)
        sources = {name: column.source for name, column in self.table.columns_.items()}
        assert sources == {**dict.fromkeys(ROOTS, ""), "f": "a", "m": "a", "h": "a", "g": "a", "k": "b"}
        self.cells, self.p = self._rows()

    @cached_property
    def _levels(self) -> dict[str, list[str]]:
        return {name: list(self.table.columns_[name].codec.levels) for name in ROOTS}

    def _rows(self) -> tuple[pd.DataFrame, np.ndarray]:
        """Every combination of levels with its probability, Σ_states weight · Π P(level | component)."""
        joint = self.table._engine().joint
        nodes = list(joint.nodes)
        states = np.array(list(itertools.product(*(range(joint.n_components[node]) for node in nodes))))
        weights = joint.root_weights.double().numpy()[states[:, 0]]
        for i, node in enumerate(nodes[1:], 1):
            above = nodes.index(joint.parents[node] or "")
            weights = weights * joint.edge_weights[node].double().numpy()[states[:, above], states[:, i]]
        tables = []
        for name in ROOTS:
            (variable,) = self.table.columns_[name].variables
            (place,) = (i for i, node in enumerate(nodes) if variable in joint.nodes[node])
            one = Variable(joint.kernels[variable], joint.components[variable], [], "codes")
            tables.append(one.law.probs[states[:, place]])  # type: ignore[attr-defined]
        p = np.einsum("s,sa,sb,sc->abc", weights, *tables)
        rows = pd.DataFrame(list(itertools.product(*self._levels.values())), columns=ROOTS)
        for target, source in FUNCTIONS.items():
            pairs = self.frame.drop_duplicates(source).set_index(source)[target]
            rows[target] = rows[source].map(pairs.to_dict()).to_numpy()
        return rows, p.reshape(-1)

    # ---- questions

    def condition(self, rng: np.random.Generator) -> tuple[str, np.ndarray]:
        """A random condition on one column: its text, and the rows that satisfy it."""
        name = str(rng.choice(["a", "b", "c", *FUNCTIONS]))
        cells = self.cells[name]
        if name == "h":
            number = int(rng.choice(cells.unique()))
            sign = str(rng.choice(list(_SIGNS)))
            return f"h {sign} {number}", _SIGNS[sign](cells, number).to_numpy()
        if name == "m" and rng.random() < 0.4:
            return "m is missing", cells.isna().to_numpy()
        some = rng.choice(cells.dropna().unique(), 2)
        if rng.random() < 0.5:
            return f"{name} in {{{', '.join(some)}}}", cells.isin(some).to_numpy()
        if rng.random() < 0.5:
            return f"{name} = {some[0]}", (cells == some[0]).to_numpy()
        return f"{name} != {some[0]}", (cells != some[0]).to_numpy()

    def event(self, rng: np.random.Generator, depth: int = 2) -> tuple[str, np.ndarray]:
        """A random event of several columns."""
        if depth == 0 or rng.random() < 0.3:
            return self.condition(rng)
        (left, first), (right, second) = (self.event(rng, depth - 1) for _ in range(2))
        pick = rng.integers(3)
        if pick == 0:
            return f"({left}) and ({right})", first & second
        if pick == 1:
            return f"({left}) or ({right})", first | second
        return f"not ({left})", ~first

    def deviations(self, rng: np.random.Generator) -> Iterator[Deviation]:
        """Those of questions, scores and filled cells."""
        for _ in range(_QUESTIONS):
            text, rows = self.event(rng)
            given, evidence = self.event(rng)
            yield self._of("P(event)", self.table.probability(text), self.p[rows].sum(), text)
            total = self.p[evidence].sum()
            if total < 1e-6:
                continue
            wanted = self.p[rows & evidence].sum() / total
            got = self.table.probability(text, given)
            yield self._of("P(event) given an event", got, wanted, text, given)
            yield from self._of_columns(rng, given, self.p * evidence / total, total)
        yield from self._of_rows(rng)
        yield from self._of_gaps(rng)

    @staticmethod
    def _of(what: str, got: float, wanted: float, *where: object) -> Deviation:
        size = abs(got - wanted) / (1 + abs(wanted))
        return Deviation(TABLES + what, float(size), (*where, got, wanted))

    def _of_columns(
        self, rng: np.random.Generator, given: str, p: np.ndarray, total: float
    ) -> Iterator[Deviation]:
        for target in rng.choice([*ROOTS, *FUNCTIONS], 3, replace=False):
            by_level = pd.Series(p).groupby(self.cells[target].to_numpy(), dropna=True).sum()
            if by_level.sum() < 1e-6:
                continue
            answer = self.table.query(str(target), given=given)
            yield self._of("log evidence", answer.log_evidence, float(np.log(total)), given)
            wanted = by_level / by_level.sum()
            probs = {level: answer.probs.get(level, 0.0) for level in by_level.index}
            worst = max(by_level.index, key=lambda level: abs(probs[level] - wanted[level]))
            yield self._of("P(level) given an event", probs[worst], wanted[worst], target, worst, given)
            if target == "h":
                mean = float((wanted * wanted.index).sum())
                yield self._of("mean given an event", answer.mean, mean, given)
            if target == "m":
                yield self._of("P(missing) given an event", answer.p_missing, 1 - by_level.sum(), given)

    def _of_rows(self, rng: np.random.Generator) -> Iterator[Deviation]:
        """Differences of log p: between rows with the same columns. Rows that cannot be have −∞."""
        for _ in range(_CONDITIONS):
            columns = [str(name) for name in rng.permutation(self.cells.columns)[: rng.integers(1, 9)]]
            rows = self.cells.loc[rng.integers(0, len(self.cells), 4), columns].reset_index(drop=True)
            scores = self.table.score_samples(rows)
            wanted = [np.log(self.p[self._alike(row)].sum()) for _, row in rows.iterrows()]
            for score, log_p in zip(scores[1:], wanted[1:], strict=True):
                yield self._of("log p of rows", score - scores[0], log_p - wanted[0], columns)
        row = self.cells.iloc[[rng.integers(len(self.cells))]]
        other = str(rng.choice(self.cells.f[self.cells.f != row.f.iloc[0]].unique()))
        score = float(self.table.score_samples(row.assign(f=other))[0])
        yield Deviation(TABLES + "log p of impossible rows", 0.0 if score == -np.inf else np.inf, (score,))

    def _alike(self, row: pd.Series) -> np.ndarray:
        """The possible rows that agree with the cells of a row; NaN and None are missing cells."""
        same = [
            self.cells[name].isna() if cell is None or cell != cell else self.cells[name] == cell
            for name, cell in row.items()
        ]
        return np.logical_and.reduce([one.to_numpy() for one in same])

    def _of_gaps(self, rng: np.random.Generator) -> Iterator[Deviation]:
        """Columns that are not there are filled: by the most probable level of a root, by functions."""
        for _ in range(_CONDITIONS):
            gone = str(rng.choice(ROOTS))
            coarse = [name for name, source in self._roots.items() if source == gone]
            kept = [name for name in coarse if rng.random() < 0.5 and name != "m"]
            row = self.cells.iloc[[rng.integers(len(self.cells))]].reset_index(drop=True)
            gaps = row.copy()
            gaps[[gone, *(name for name in coarse if name not in kept)]] = None
            whole = self.table.impute(gaps)
            others = [name for name in row if name not in (gone, *coarse) or name in kept]
            p = pd.Series(self.p * self._alike(row.loc[0, others])).groupby(self.cells[gone].to_numpy()).sum()
            loss = (p.max() - p[whole.loc[0, gone]]) / p.sum()
            yield Deviation(TABLES + "probability lost by filled cells", float(loss), (gone, kept))
            filled = self.cells[self.cells[gone] == whole.loc[0, gone]].iloc[0]
            agrees = all(whole.loc[0, name] == filled[name] for name in coarse if name != "m")
            yield Deviation(TABLES + "filled cells keep the rules", 0.0 if agrees else np.inf, (gone, kept))

    @property
    def _roots(self) -> dict[str, str]:
        return {name: column.source for name, column in self.table.columns_.items() if column.source}


def table_deviations(seed: int) -> Iterator[Deviation]:
    """Those of one table."""
    rng = np.random.default_rng(seed)
    yield from TableOracle(rng).deviations(rng)
