"""Random questions to tables: the laws of probability, and draws that satisfy their events.

    python scripts/laws.py --questions 20000 --rows 1000000 --events 1000 --data-dir data --jobs 16

Adult (`uci/adult.data.gz`) and Shoppers (`tables/online_shoppers_intention.csv.gz`) are taken from the data
folder if it has them. The results are in results/laws.md and results/laws.jsonl, which has a line for every
table; a run that was stopped continues with the tables that are not there. `--jobs` asks several tables at
the same time, each in a process with one thread.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import itertools
import json
import math
import multiprocessing
import platform
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from _paths import ROOT

import kdmkit as kdm
from laws.checks import TOLERANCES, Laws, fitted, saved_and_loaded
from laws.frames import LawFrame, random_frame
from laws.real_frames import real_frames

# A p-value below this one, after Bonferroni's correction, rejects that frequencies agree with probabilities.
_LEVEL = 0.01
# Events of draws that compare two columns.
_SHARE_OF_PAIRS = 0.1


class Records:
    """What was asked of one table, and the largest deviation of every law."""

    def __init__(self) -> None:
        self.asked: collections.Counter[str] = collections.Counter()
        self.worst: dict[str, tuple[float, str, str]] = {}
        self.failures: list[dict[str, Any]] = []
        self.p_values: list[float] = []
        self.rows = self.violations = self.compared = 0
        self.dtype = ""
        self.seconds = 0.0

    def config(self) -> dict[str, Any]:
        return {**vars(self), "asked": dict(self.asked)}

    @classmethod
    def joined(cls, parts: Iterable[Mapping[str, Any]]) -> Records:
        """The records of several tables as one."""
        every = cls()
        for part in parts:
            every.asked.update(part["asked"])
            every.failures += part["failures"]
            every.p_values += part["p_values"]
            every.rows, every.violations = every.rows + part["rows"], every.violations + part["violations"]
            every.seconds, every.compared = every.seconds + part["seconds"], every.compared + part["compared"]
            for law, (deviation, *where) in part["worst"].items():
                if deviation >= every.worst.get(law, (-1.0, "", ""))[0]:
                    every.worst[law] = (deviation, *where)
        return every

    def ask(self, laws: Laws, law: str) -> bool:
        """Checks a law once; False if the table has no such question."""
        try:
            deviation = laws.laws[law]()
        except Exception as error:  # every failure is told, whatever it is
            deviation = float("inf")
            laws.question = f"{type(error).__name__}: {error} after {laws.question}"
        if deviation is None:
            return False
        self.asked[law] += 1
        self.note(law, float(deviation), laws, laws.tolerance)
        return True

    def note(self, law: str, deviation: float, laws: Laws, limit: float) -> None:
        if deviation >= self.worst.get(law, (-1.0, "", ""))[0]:
            self.worst[law] = (deviation, laws.frame.name, laws.question)
        if deviation > limit:
            fields = {"law": law, "table": laws.frame.name, "deviation": deviation}
            self.failures.append({**fields, "question": laws.question})

    def draw(self, laws: Laws, n: int) -> None:
        with_pair = bool(laws.frame.pairs) and laws.rng.random() < _SHARE_OF_PAIRS
        self.asked["draws"] += 1
        try:
            p_value, bad = laws.violations(n, with_pair=with_pair)
        except Exception as error:
            laws.question = f"{type(error).__name__}: {error} after {laws.question}"
            self.note("draws", float("inf"), laws, 0)
            return
        self.rows, self.violations = self.rows + n, self.violations + bad
        if p_value is not None:
            self.p_values.append(p_value)
            self.compared += with_pair
        self.note("draws", bad, laws, 0)

    def markdown(self, arguments: argparse.Namespace, tables: Sequence[str]) -> str:
        rejected = sum(p * len(self.p_values) < _LEVEL for p in self.p_values)
        failed = collections.Counter(failure["law"] for failure in self.failures)
        raised = sum(failure["deviation"] == math.inf for failure in self.failures)
        n_laws = sum(self.asked.values()) - self.asked["draws"]
        limits = ", ".join(f"{limit:g} in {str(d).removeprefix('torch.')}" for d, limit in TOLERANCES.items())
        lines = [
            "# Laws of probability on random questions",
            "",
            f"`python scripts/laws.py --questions {arguments.questions} --rows {arguments.rows} "
            f"--events {arguments.events} --tables {arguments.tables} --seed {arguments.seed}`, "
            f"kdmkit {kdm.__version__}, torch {torch.__version__}, {platform.machine()}, "
            f"{torch.get_num_threads()} thread(s), {self.seconds:.0f} s of the processor. "
            f"{len(tables)} tables, every other one with components in float64: {', '.join(tables)}.",
            "",
            f"{n_laws} laws checked by questions: {len(self.failures)} failed (a deviation above "
            f"{limits}, or an error), {raised} raised. Laws that a table has no question for, such as those "
            "about missing cells, leave their turn to the next law.",
            "",
            "| law | checked | worst deviation | failed | worst table |",
            "|:--|--:|--:|--:|:--|",
        ]
        for law, n in sorted(self.asked.items()):
            worst, table, _ = self.worst.get(law, (0.0, "", ""))
            lines.append(f"| {law} | {n} | {worst:.2g} | {failed[law]} | {table} |")
        least = min(self.p_values, default=1)
        lines += [
            "",
            f"Draws: {self.rows} rows under {self.asked['draws']} events, {self.violations} violate their "
            f"event. Frequencies are tested for {len(self.p_values)} events, of which {self.compared} "
            "compare two columns (the others have two comparisons or more), and rejected for "
            f"{rejected} (chi-square, level {_LEVEL} with Bonferroni, least p-value {least:.2g}).",
        ]
        return "\n".join(lines) + "\n"


def check(
    frame: LawFrame,
    dtype: torch.dtype,
    seed: int,
    n_questions: int,
    n_events: int,
    n_rows: int,
    deadline: float,
) -> tuple[str, Records | None]:
    """Asks a table that is fitted to a frame, and draws from it, unless the deadline is over."""
    if time.time() > deadline:
        return frame.name, None
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    started, records = time.process_time(), Records()
    records.dtype = str(dtype).removeprefix("torch.")
    table = fitted(frame, n_components=8, max_epochs=3, dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        laws = Laws(table, frame, seed, saved_and_loaded(table, Path(folder)))
    every = collections.deque(sorted(laws.laws))
    while sum(records.asked.values()) < n_questions:
        law = every.popleft()
        if records.ask(laws, law):
            every.append(law)
    for _ in range(n_events):
        records.draw(laws, n_rows)
    records.seconds = time.process_time() - started
    return frame.name, records


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--questions", type=int, default=20_000, help="laws to check")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows to draw")
    parser.add_argument("--events", type=int, default=1000, help="events that they are drawn given")
    parser.add_argument("--tables", type=int, default=40, help="generated tables")
    parser.add_argument("--data-dir", type=Path, help="the folder with Adult and Shoppers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="tables that are asked at the same time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after about so long")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "laws")
    arguments = parser.parse_args()
    started = time.time()
    frames = [*real_frames(arguments.data_dir)]
    frames += [random_frame(1000 * arguments.seed + i) for i in range(arguments.tables)]
    n_questions = math.ceil(arguments.questions / len(frames))
    n_events = math.ceil(arguments.events / len(frames))
    n_rows = math.ceil(arguments.rows / (n_events * len(frames)))
    settings = {name: getattr(arguments, name) for name in ("questions", "rows", "events", "tables", "seed")}
    settings |= {"machine": platform.machine(), "torch": torch.__version__}
    lines, path = [{"settings": settings}], arguments.out.with_suffix(".jsonl")
    path.parent.mkdir(exist_ok=True, parents=True)
    if path.exists():  # tables that are there are not asked again
        earlier = [json.loads(line) for line in path.read_text().splitlines()]
        lines = earlier if earlier[0] == lines[0] else lines
    asked = {line["table"]: line for line in lines[1:]}
    dtypes = itertools.cycle(TOLERANCES)
    waiting = [
        (frame, dtype, arguments.seed + i, n_questions, n_events, n_rows, started + 60 * arguments.minutes)
        for i, (frame, dtype) in enumerate(zip(frames, dtypes, strict=False))
        if frame.name not in asked
    ]
    with concurrent.futures.ProcessPoolExecutor(
        arguments.jobs, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        for done in concurrent.futures.as_completed([pool.submit(check, *one) for one in waiting]):
            name, records = done.result()
            if records is not None:
                asked[name] = {"table": name, **records.config()}
                ordered = [asked[frame.name] for frame in frames if frame.name in asked]
                path.write_text("".join(json.dumps(line) + "\n" for line in [lines[0], *ordered]))
                print(f"{len(asked)}/{len(frames)} {name}: {len(records.failures)} failures", flush=True)
    asked = {frame.name: asked[frame.name] for frame in frames if frame.name in asked}
    every = Records.joined(asked.values())
    arguments.out.with_suffix(".md").write_text(every.markdown(arguments, list(asked)))
    rejected = min(every.p_values, default=1) * len(every.p_values) < _LEVEL
    return 1 if every.failures or rejected or len(asked) < len(frames) else 0


if __name__ == "__main__":
    raise SystemExit(main())
