"""How often evidence is called unlike the data although it is taken from the data.

    python scripts/false_alarms.py --questions 1000 --data-dir data

Of random rows one to three cells are evidence, as values or as ranges that hold the value. The tables are
those of `scripts/laws.py`, each fitted with the defaults and for one epoch. The results are in
results/false-alarms.md and results/false-alarms.jsonl, which has a line for every fit; a run that was stopped
continues. `--jobs` asks several tables at the same time, each in a process with one thread.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import multiprocessing
import platform
import random
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from _paths import ROOT

import kdmkit as kdm
from laws.frames import LawFrame, random_frame
from laws.real_frames import real_frames

_FITS: dict[str, dict[str, Any]] = {"defaults": {}, "one epoch": {"n_components": 8, "max_epochs": 1}}
_GENERATED = 6


def evidence(rng: random.Random, frame: Any, names: list[str]) -> dict[str, Any]:
    """One to three cells of a row: values, or ranges that hold them."""
    row, given = frame.iloc[rng.randrange(len(frame))], {}
    for name in rng.sample(names, min(rng.randint(1, 3), len(names))):
        value, others = row[name], frame[name].dropna()
        is_number = pd.api.types.is_numeric_dtype(others) and others.dtype != bool
        if pd.isna(value):
            given[name] = None
        elif rng.random() < 0.5 and (is_number or pd.api.types.is_datetime64_any_dtype(others)):
            other = others.iloc[rng.randrange(len(others))]
            ends = [(min(value, other), max(value, other)), (None, value), (value, None)]
            given[name] = rng.choice(ends)
        else:
            given[name] = value.item() if isinstance(value, np.generic) else value
    return given


def alarms(frame: LawFrame, fit: str, n: int) -> dict[str, Any]:
    """How many of n questions about a table are told that their evidence is unlike the data."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    started = time.process_time()
    table = kdm.KDMTable(random_state=0, **_FITS[fit]).fit(frame.frame)
    fitted, rng = time.process_time(), random.Random(0)
    columns = [name for name in frame.frame if name in table.schema_.modelled]
    told: list[str] = []
    for _ in range(n):
        given = evidence(rng, frame.frame, columns)
        answer = table.query(kdm.col(columns[0]).is_missing(), given)
        if answer.is_unusual:
            told.append(answer.question)
    seconds = {"fit": fitted - started, "questions": time.process_time() - fitted}
    names = {"table": frame.name, "fit": fit}
    return {**names, "rows": len(frame.frame), "asked": n, "told": told, "seconds": seconds}


def markdown(lines: list[dict[str, Any]], settings: dict[str, Any]) -> str:
    total = {fit: [line for line in lines if line["fit"] == fit] for fit in _FITS}
    text = [
        "# Evidence from the data that is called unlike the data",
        "",
        f"`python scripts/false_alarms.py --questions {settings['questions']}`, kdmkit {kdm.__version__}, "
        f"torch {settings['torch']}, {settings['machine']}, one thread, seed 0. One to three cells of random "
        "rows are evidence, as values or as ranges. *Told*: the evidence is called unlike the data.",
        "",
        "| table | fit | rows | questions | told | seconds of a question |",
        "|:--|:--|--:|--:|--:|--:|",
    ]
    for line in lines:
        numbers = [line["rows"], line["asked"], len(line["told"])]
        each = line["seconds"]["questions"] / line["asked"]
        text.append(f"| {line['table']} | {line['fit']} | {' | '.join(map(str, numbers))} | {each:.3f} |")
    for fit, some in total.items():
        asked, told = sum(line["asked"] for line in some), sum(len(line["told"]) for line in some)
        text.append(f"| all | {fit} | | {asked} | {told} | |")
    return "\n".join(text) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--questions", type=int, default=1000, help="about every fit")
    parser.add_argument("--data-dir", type=Path, help="the folder with Adult and Shoppers")
    parser.add_argument("--jobs", type=int, default=1, help="tables that are asked at the same time")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "false-alarms")
    arguments = parser.parse_args()
    settings = {"questions": arguments.questions, "torch": torch.__version__, "machine": platform.machine()}
    path = arguments.out.with_suffix(".jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    lines = lines if lines[:1] == [{"settings": settings}] else [{"settings": settings}]
    done = {(line["table"], line["fit"]) for line in lines[1:]}
    frames = [*real_frames(arguments.data_dir), *map(random_frame, range(_GENERATED))]
    order = [(frame.name, fit) for frame in frames for fit in _FITS]
    spawned = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(arguments.jobs, mp_context=spawned) as pool:
        waiting = [
            pool.submit(alarms, frame, fit, arguments.questions)
            for frame in frames
            for fit in _FITS
            if (frame.name, fit) not in done
        ]
        for result in concurrent.futures.as_completed(waiting):
            lines.append(result.result())
            lines[1:] = sorted(lines[1:], key=lambda line: order.index((line["table"], line["fit"])))
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            print(len(lines) - 1, "of", len(order), flush=True)
    arguments.out.with_suffix(".md").write_text(markdown(lines[1:], settings))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
