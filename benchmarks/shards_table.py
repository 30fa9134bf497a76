"""Computes what 100 million components cost over shards, from the lines of `benchmarks/shards.py`.

    python benchmarks/shards_table.py      # results/shards.jsonl -> results/shards.md

One shard and the calls of the messages are measured. Traffic and its time are computed: in a ring, an
all-reduce sends 2·(P − 1)/P times the message from every process, in 2·(P − 1) steps.
"""

import json
from pathlib import Path
from typing import Any

from kdmlab.common import Report, write_report

ROOT = Path(__file__).parents[1]
LINES, TABLE = ROOT / "results/shards.jsonl", ROOT / "results/shards.md"
#: Of the network, by assumption: bytes per second of a process, and seconds of one step of a ring.
RATE, STEP = 12.5e9, 10e-6

Line = dict[str, Any]
HEADER = [
    "shards",
    "components of a shard",
    "memory of a shard, GB",
    "extra, MB",
    "queries",
    "shard, ms",
    "messages, ms",
    "traffic, MB",
    "together, ms",
]


def read_lines(path: Path = LINES) -> list[Line]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def traffic(message: float, shards: int) -> float:
    """Bytes that every process sends for an all-reduce of a message of so many bytes."""
    return 2 * (shards - 1) / shards * message


def message_bytes(line: Line, question: str) -> int:
    """Of both messages of a merge: a number per query, then one and the averages."""
    return 4 * line["n"] * (2 + (line["classes"] if question == "probs" else 0))


def message_seconds(size: float, shards: int) -> float:
    """What the network adds to both messages."""
    return traffic(size, shards) / RATE + 2 * 2 * (shards - 1) * STEP


def rows(lines: list[Line], question: str = "probs") -> list[list[str]]:
    """One row for every number of shards and of queries."""
    shards = [line for line in lines if line["part"] == "shard" and line["question"] == question]
    total = max(line["components"] for line in shards)
    made = []
    for line in sorted(shards, key=lambda line: (-line["components"], line["n"])):
        count = round(total / line["components"])
        size = message_bytes(line, question)
        taken = message_seconds(size, count)
        made.append(
            [
                f"{count}",
                f"{line['components']:,}",
                f"{line['held_bytes'] / 1e9:.1f}",
                f"{line['extra_bytes'] / 1e6:,.0f}",
                f"{line['n']:,}",
                f"{1e3 * line['median']:.1f}",
                f"{1e3 * taken:.2f}",
                f"{traffic(size, count) / 1e6:.2f}",
                f"{1e3 * (line['median'] + taken):.1f}",
            ]
        )
    return made


def errors(lines: list[Line]) -> str:
    shards = [line for line in lines if line["part"] == "shard"]
    worst = {name: max(line[name] for line in shards) for name in ("log_prob_error", "probs_error")}
    return (
        f"The largest error of a shard against float64 is {worst['log_prob_error']:.1e} for log p(x) and "
        f"{worst['probs_error']:.1e} for p(y|x)."
    )


def calls(lines: list[Line]) -> str:
    """The measured times of the messages alone."""
    merges = [line for line in lines if line["part"] == "merge" and line["v"]]
    words = [
        f"{1e3 * line['mean']:.2f} ms for {line['n']:,} queries ({line['backend']}, {line['processes']} "
        f"process{'es' if line['processes'] > 1 else ''}, {line['machine']['device']})"
        for line in merges
    ]
    return f"The calls of a merge alone, measured: {'; '.join(words)}."


def report(lines: list[Line]) -> Report:
    shards = [line for line in lines if line["part"] == "shard"]
    first = shards[0]
    device, torch = first["machine"]["device"], first["versions"]["torch"]
    sizes = f"{first['d']} dimensions, {first['classes']} classes, float32"
    kind = "of a prepared joint" if first.get("prepared", False) else "of a joint that is not prepared"
    notes = (
        f"p(y|x) by `infer(x=x).probs` {kind}; {sizes}. Times of a shard are measured on one {device} (torch "
        f"{torch}), with the calls of the merge among one process; other work may have run on the device. "
        "The memory of a shard holds components, weights and what is kept for further questions.",
        f"Messages are what the network adds, on paper: traffic at {RATE / 1e9:g} GB/s (100 Gb/s), and "
        f"{1e6 * STEP:g} µs for every step of a ring. Traffic is what every process sends for a batch of "
        "queries; it does not depend on the number of components.",
        errors(lines),
        calls(lines),
        "Written by `python benchmarks/shards_table.py` from the lines in `shards.jsonl`, which "
        "`benchmarks/shards.py` measured.",
    )
    return Report("100 million components over shards", HEADER, rows(lines), notes)


if __name__ == "__main__":
    write_report(report(read_lines()), TABLE)
