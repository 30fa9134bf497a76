"""Computes what 100 million components cost over shards, from the lines of `benchmarks/shards.py`.

    python benchmarks/shards_table.py      # results/shards.jsonl -> results/shards.md and docs/performance.md

One shard and the calls of the messages are measured. Traffic and its time are computed: rings of all-reduce send
2·(P − 1)/P times a message from every process, in 2·(P − 1) steps.
"""

import json
from pathlib import Path
from typing import Any

from kdmkit.experiments.common import Report, write_report

ROOT = Path(__file__).parents[1]
LINES, TABLE, PAGE = ROOT / "results/shards.jsonl", ROOT / "results/shards.md", ROOT / "docs/performance.md"
BEGIN, END = "<!-- shards: begin -->\n", "<!-- shards: end -->\n"
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


def message_seconds(call: Line, shards: int) -> float:
    """Both messages of a merge: the measured calls, and what the network adds."""
    return call["mean"] + traffic(call["bytes"], shards) / RATE + 2 * 2 * (shards - 1) * STEP


def rows(lines: list[Line], question: str = "probs") -> list[list[str]]:
    """One row for every number of shards and of queries."""
    shards = [line for line in lines if line["part"] == "shard" and line["question"] == question]
    total = max(line["components"] for line in shards)
    made = []
    for line in sorted(shards, key=lambda line: (-line["components"], line["n"])):
        count = round(total / line["components"])
        call = merge_of(lines, line["n"], line["classes"] if question == "probs" else 0)
        taken = message_seconds(call, count)
        made.append(
            [
                f"{count}",
                f"{line['components']:,}",
                f"{line['component_bytes'] / 1e9:.1f}",
                f"{line['extra_bytes'] / 1e6:,.0f}",
                f"{line['n']:,}",
                f"{1e3 * line['median']:.1f}",
                f"{1e3 * taken:.2f}",
                f"{traffic(call['bytes'], count) / 1e6:.2f}",
                f"{1e3 * (line['median'] + (taken if count > 1 else 0)):.1f}",
            ]
        )
    return made


def merge_of(lines: list[Line], n: int, v: int) -> Line:
    """The line of the messages for n queries and v averages, as one process calls them on the same device."""
    found = [x for x in lines if x["part"] == "merge" and (x["n"], x["v"], x["processes"]) == (n, v, 1)]
    return found[-1]


def errors(lines: list[Line]) -> str:
    shards = [line for line in lines if line["part"] == "shard"]
    worst = {name: max(line[name] for line in shards) for name in ("log_prob_error", "probs_error")}
    return (
        f"The largest error against float64 in any shard is {worst['log_prob_error']:.1e} for log p(x) (whose "
        f"size is about 100) and {worst['probs_error']:.1e} for p(y|x)."
    )


def gloo(lines: list[Line]) -> str:
    found = [x for x in lines if x["part"] == "merge" and x["backend"] == "gloo" and x["processes"] == 2]
    words = [f"{1e3 * x['mean']:.1f} ms for {x['n']:,} queries and {x['v']} averages" for x in found[-4:]]
    return f"Between two processes on two CPU cores (gloo) the messages of a merge take {', '.join(words)}."


def report(lines: list[Line]) -> Report:
    shards = [line for line in lines if line["part"] == "shard"]
    first = shards[0]
    notes = (
        f"p(y|x) by `infer(x=x).probs`; {first['d']} dimensions, {first['classes']} classes, float32. A shard is "
        f"measured on one {first['machine']['device']} (torch {first['versions']['torch']}), with the merge's "
        "calls among one process; its memory holds components and weights. Messages are on paper: the measured "
        f"calls, traffic at {RATE / 1e9:g} GB/s (100 Gb/s), and {1e6 * STEP:g} µs for each of 2·(P − 1) steps of "
        "both all-reduces. Traffic is what every process sends for a batch of queries; it does not depend on the "
        "number of components.",
        errors(lines),
        gloo(lines),
        "Written by `python benchmarks/shards_table.py` from the lines in `shards.jsonl`, which "
        "`benchmarks/shards.py` measured.",
    )
    return Report("100 million components over shards", HEADER, rows(lines), notes)


def as_section(made: Report) -> str:
    """The table and its notes as they are on the page."""
    lines = [made.header, [":--", *["--:"] * (len(made.header) - 1)], *made.rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"\n{table}\n" + "\n\n".join(made.notes[:-1]) + "\n\n"


def put(page: str, section: str) -> str:
    """A page with the section between its marks."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + section + END + rest.split(END)[1]


if __name__ == "__main__":
    made = report(read_lines())
    write_report(made, TABLE)
    PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), as_section(made)), encoding="utf-8")
