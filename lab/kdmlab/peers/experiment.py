"""Measures kdmkit and other libraries on the same rows and writes `peers.md`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kdmkit.metrics import c2st
from kdmlab.common import (
    Report,
    Row,
    Task,
    markdown_table,
    newest,
    provenance,
    read_rows,
    run_tasks,
    select,
    some_of,
    write_report,
)
from kdmlab.peers.environments import LIBRARIES, NOT_MEASURED, ask_worker, interpreter
from kdmlab.peers.model import COMPONENTS, COVERAGE, DRAWS, Rows
from kdmlab.peers.questions import QUESTIONS
from kdmlab.peers.worker import as_lists
from kdmlab.tables.data import Array, adult, sample_rows, take

#: Rows of the fit and of the test of every table, rows whose target is asked, the seed of all.
TRAINING_ROWS, TEST_ROWS, ASKED_ROWS, SEED = 4000, 2000, 50, 0
MIXED, BINARY = "adult", ("nltcs", "plants")
_ASKED = {
    MIXED: ("income", ("education", "marital_status", "sex")),
    "nltcs": ("x0", ("x1", "x2", "x3")),
    "plants": ("x7", ("x45", "x50", "x64")),
}


def run(
    folder: Path,
    data_dir: Path,
    *,
    libraries: Sequence[str] = (),
    datasets: Sequence[str] = (),
    environments: Path = Path(".venv-peers"),
    fresh: bool = False,
    verbose: bool = True,
) -> Report:
    """Writes `peers.jsonl` and `peers.md`.

    Args:
        folder: where the results are and go.
        data_dir: the folder of `uci/adult.data` and of `binary/nltcs.npz` and `binary/plants.npz`.
        libraries, datasets: some of them; none means all.
        environments: the folder of the libraries' environments. Those that lack are made.
        fresh: whether to measure again what was measured before.
        verbose: whether to show progress.
    """
    wanted = [
        Task(
            {"dataset": dataset, "library": name, "settings": _settings()},
            partial(measure, dataset, name, data_dir, environments),
        )
        for name in some_of("library", libraries, tuple(LIBRARIES))
        for dataset in some_of("dataset", datasets, (MIXED, *BINARY))
    ]
    run_tasks(wanted, folder / "peers.jsonl", fresh=fresh, verbose=verbose)
    return summarize(folder)


def _settings() -> dict[str, Any]:
    return {"training_rows": TRAINING_ROWS, "test_rows": TEST_ROWS, "asked_rows": ASKED_ROWS, "seed": SEED}


def measure(dataset: str, name: str, data_dir: Path, environments: Path) -> dict[str, Any]:
    """What the worker measured, and C2ST of its draws against test rows."""
    train, test = table(dataset, data_dir)
    target, given = _ASKED[dataset]
    levels = sorted(set(train[target]))
    data = {
        "seed": SEED,
        "train": as_lists(train),
        "test": as_lists(test),
        "questions": dataset == MIXED,
        "asked": {"target": target, "levels": levels, "given": given, "rows": list(range(ASKED_ROWS))},
    }
    with tempfile.TemporaryDirectory() as place:
        measured = ask_worker(name, data, interpreter(name, environments), Path(place))
    drawn = measured.get("draw", {}).pop("value", None)
    if drawn is not None:
        measured["c2st"] = c2st(test, {key: np.array(c, dtype=test[key].dtype) for key, c in drawn.items()})
    if dataset == MIXED:
        every = adult(data_dir).test
        measured["shares"] = {key: question.among(every) for key, question in QUESTIONS.items()}
    return measured


def table(dataset: str, data_dir: Path) -> tuple[Rows, Rows]:
    """Training and test rows: texts, and whole numbers.

    Columns vary among the training rows, and test rows have levels that the training rows have.
    """
    if dataset == MIXED:
        data = adult(data_dir)
        train, test = sample_rows(data.train, TRAINING_ROWS), data.test
    else:
        with np.load(data_dir / "binary" / f"{dataset}.npz") as parts:
            train, test = (_texts(parts[part]) for part in ("train", "test"))
        train = sample_rows(train, TRAINING_ROWS)
    varied = [name for name, column in train.items() if len(set(column)) > 1]
    train, test = ({name: rows[name] for name in varied} for rows in (train, test))
    usual = [np.isin(c.astype(str), list(set(train[k]))) for k, c in test.items() if c.dtype == object]
    test = sample_rows(take(test, np.all(usual, axis=0)), TEST_ROWS)
    return _float_numbers(train), _float_numbers(test)


def _texts(matrix: Array) -> Rows:
    return {f"x{i}": np.where(c == 1, "yes", "no").astype(object) for i, c in enumerate(matrix.T)}


def _float_numbers(rows: Rows) -> Rows:
    return {name: c if c.dtype == object else c.astype(float) for name, c in rows.items()}


# ---- the report

_QUESTIONS_NOTE = (
    "A cell has the answer; – says that no documented call gives it, nor sums, ratios and quantiles of "
    "what documented calls give. “error”: the call failed, see below. A model that draws could answer "
    "more by counting among many draws; this is not counted. The second column has the shares of all "
    "test rows."
)
_MEASURES_NOTE = (
    f"{TRAINING_ROWS:,} training rows and at most {TEST_ROWS:,} test rows, drawn with seed {SEED}; test "
    "rows have no level that the training rows lack, and a column that is constant among these is left "
    "out. Nats: the mean log-probability of whole test rows as recorded. Numbers are whole: the "
    "probability of a number is that of the interval half a unit about it. SPFlow and pomegranate have "
    "it by normal distribution functions, Lace by the mean density under 16 draws of uniform noise, "
    "which the rows of its fit have, too; mostlyai-engine learns digits, kdmkit the grid. C2ST: 1 where"
    " histogram boosting cannot tell as many drawn rows from the test rows, 0 where it always can (most"
    " capital gains are 0, which mixtures of normal distributions do not draw). A question: p(target | "
    f"three columns) of a test row, the median seconds and the mean log-loss of {ASKED_ROWS}, fewer, and"
    f" no log-loss, where they took more than a minute; SDV answers by frequencies among {DRAWS:,} "
    "draws. Seconds are those of a processor, beside other programs."
)
_MODELS_NOTE = (
    "kdmkit, SDV: defaults. SPFlow: `Einet` with its defaults, depth 3, 60 epochs of gradient descent. "
    f"Lace: 8 chains, 1,000 steps. pomegranate: {COMPONENTS} components, 30 steps; numbers of Adult with"
    " at most 128 values are levels, and `Normal.sample` takes the variance for the standard deviation."
    " mostlyai-engine: defaults, at most five minutes of training, rare values kept. No setting was "
    f"searched, of no library. Intervals hold {COVERAGE:.0%}."
)
_LABELS = {name: library.label for name, library in LIBRARIES.items()}


def summarize(folder: Path) -> Report:
    """Writes the tables from the lines that there are."""
    rows = newest(read_rows(folder / "peers.jsonl"), ("dataset", "library"))
    rows.sort(key=lambda row: list(LIBRARIES).index(row["library"]))
    notes = [
        "Every library in an environment of its own, with one thread, on the same rows.",
        *(note for dataset in (MIXED, *BINARY) for note in _table_notes(select(rows, dataset=dataset))),
        "## Questions about Adult",
        _questions(select(rows, dataset=MIXED)),
        _QUESTIONS_NOTE,
        *_errors(rows),
        "## Settings",
        _MEASURES_NOTE,
        _MODELS_NOTE,
        "Not measured: " + " ".join(f"{name}: {why}" for name, why in NOT_MEASURED.items()),
        "Versions: " + _versions(rows),
        provenance(rows),
        "Written by `kdmlab reproduce peers --data-dir DIR` from the lines in `peers.jsonl`.",
    ]
    return write_report(Report("Other libraries beside kdmkit", notes=notes), folder / "peers.md")


def _table_notes(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    header = ["library", "nats", "C2ST", "log-loss of a question", "asked", "s of a question", "s of the fit"]
    return [f"## {rows[0]['dataset']}", markdown_table(header, [_line(row) for row in rows])]


def _line(row: Row) -> list[str]:
    asked = _value(row, "asked") or {}
    numbers = [
        (_value(row, "log_prob"), ".2f"),
        (row.get("c2st"), ".3f"),
        (asked.get("log_loss") if asked.get("rows") == ASKED_ROWS else None, ".3f"),
        (asked.get("rows"), "d"),
        (asked.get("seconds"), ".2g"),
        (row["fit"].get("cpu_seconds"), ".1f"),
    ]
    cells = ["–" if number is None else format(number, form) for number, form in numbers]
    return [_LABELS[row["library"]], *cells]


def _value(row: Row, part: str) -> Any:
    return row.get(part, {}).get("value")


def _questions(rows: Sequence[Row]) -> str:
    header = ["question", "test rows", *(_LABELS[row["library"]] for row in rows)]
    lines = []
    for key, question in QUESTIONS.items():
        share = rows[0]["shares"][key] if rows else None
        cells = [_answer(row.get("questions", {}).get(key, {"error": "no fit"})) for row in rows]
        lines.append([question.text, _short(share), *cells])
    counts = [
        sum(_answer(a) not in ("–", "error") for a in row.get("questions", {}).values()) for row in rows
    ]
    lines.append([f"answered, of {len(QUESTIONS)}", "", *(str(n) for n in counts)])
    return markdown_table(header, lines)


def _answer(answer: dict[str, Any]) -> str:
    return "error" if "error" in answer else _short(answer["value"])


def _short(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return " … ".join(f"{v:.3g}" for v in value) if isinstance(value, list) else f"{value:.3f}"


def _errors(rows: Sequence[Row]) -> list[str]:
    """A line for every call that failed."""
    lines = []
    for row in rows:
        parts = {key: row.get(key, {}) for key in ("fit", "log_prob", "draw", "asked")}
        parts |= row.get("questions", {})
        for key, answer in parts.items():
            if "error" in answer:
                text = answer["error"].splitlines()[0].replace("`", "'")
                lines.append(f"- {_LABELS[row['library']]}, {row['dataset']}, {key}: `{text}`")
    return ["Errors:\n\n" + "\n".join(lines)] if lines else []


def _versions(rows: Sequence[Row]) -> str:
    texts = [
        f"{package} {version}"
        for row in rows
        for package, version in row["packages"].items()
        if package != "python"
    ]
    return ", ".join(dict.fromkeys(texts)) + "."
