"""Measures one library on one table: `python -m kdmlab.peers.worker NAME TABLE.json ANSWERS.json`."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from kdmlab.peers.model import NotOffered, Peer, Rows, load_peer
from kdmlab.peers.questions import QUESTIONS

# An error's text as a line of results keeps it.
_TEXT = 160
# Seconds after which no further row is asked about.
_LONGEST = 60


def main(name: str, table: Path, answers: Path) -> None:
    """Fits, scores, draws and asks, and writes what came out as JSON."""
    data = json.loads(table.read_text(encoding="utf-8"))
    train, test = (as_rows(data[part]) for part in ("train", "test"))
    peer = load_peer(name, data["seed"])
    peer.rows = train
    fit = timed(lambda: peer.fit(train))
    results: dict[str, Any] = {"fit": fit, "packages": {p: version(p) for p in data["packages"]}}
    results["packages"]["python"] = platform.python_version()
    if "error" not in fit:
        results["log_prob"] = timed(lambda: float(np.mean(peer.log_prob(test))))
        results["draw"] = timed(lambda: as_lists(peer.draw(len(next(iter(test.values()))))))
        results["asked"] = timed(lambda: ask(peer, data["asked"], test))
        if data["questions"]:
            results["questions"] = {
                name: timed(partial(question.ask, peer)) for name, question in QUESTIONS.items()
            }
    answers.write_text(json.dumps(results), encoding="utf-8")


def ask(peer: Peer, asked: dict[str, Any], test: Rows) -> dict[str, Any]:
    """The same question about single test rows: p(target | some cells). Seconds and log-loss."""
    seconds, losses = [], []
    for row in asked["rows"]:
        given = {name: test[name][row] for name in asked["given"]}
        start = processor_seconds()
        probabilities = peer.levels(asked["target"], asked["levels"], given)
        seconds.append(processor_seconds() - start)
        true = asked["levels"].index(test[asked["target"]][row])
        losses.append(-np.log(max(probabilities[true], 1e-6)))
        if sum(seconds) > _LONGEST:
            break
    return {"seconds": float(np.median(seconds)), "log_loss": float(np.mean(losses)), "rows": len(losses)}


def timed(measure: Callable[[], Any]) -> dict[str, Any]:
    """What a call returned and its processor seconds; None where nothing is offered; or an error's text."""
    start = processor_seconds()
    try:
        value = measure()
    except NotOffered:
        return {"value": None}
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # panics of Rust are no `Exception`
        return {"value": None, "error": f"{type(error).__name__}: {error}"[:_TEXT]}
    return {"value": value, "cpu_seconds": round(processor_seconds() - start, 4)}


def processor_seconds() -> float:
    """Of this process and of its finished children, all threads."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def as_rows(columns: dict[str, list[Any]]) -> Rows:
    return {
        name: np.array(values, dtype=object if isinstance(values[0], str) else float)
        for name, values in columns.items()
    }


def as_lists(rows: Rows) -> dict[str, list[Any]]:
    return {name: [v if isinstance(v, str) else float(v) for v in column] for name, column in rows.items()}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
