"""Random joints and trees beside an oracle: numpy and the parameters alone, no inference of kdmkit.

    python scripts/oracle.py --models 300
    python scripts/oracle.py --tables --models 60

Asks for probabilities, posteriors, densities, means, marginals and gradients (by differences) of events with
open, closed, united and complemented regions, in double precision. The results are in results/oracle.md and
results/oracle.jsonl. With `--tables` it asks fitted tables whose columns are functions of others, in single
precision: questions, scores and filled cells. Those results are in results/oracle-tables.md and .jsonl.
"""

from __future__ import annotations

import argparse
import collections
import json
import platform
import time
from pathlib import Path

import numpy as np
import torch
from _paths import ROOT

import kdmkit as kdm
from distributions.oracle_deviations import Deviation, deviations, gradient_deviations
from estimators.table.table_oracle import table_deviations

_WORDS = {
    False: """The oracle knows the parameters of a model and sums over cells of all variables and all states,
in numpy and scipy. Events have open and closed ends, unions and complements. Double precision;
deviations of logarithms, means and gradients are relative to 1 + their size.""",
    True: """Fitted tables of three columns of levels and five functions of them: texts, numbers, missing
cells, a function of a function. The oracle knows the parameters of the tree and the functions in the rows,
and sums over all rows and states in numpy. Single precision; deviations are relative to 1 + the size of the
answer. Filled cells: the probability lost against the most probable level, and 0 where they keep the
functions.""",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", type=int, default=300, help="joints and trees in turns")
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--tables", action="store_true", help="tables with functions between columns")
    parser.add_argument("--out", type=Path, help="default: results/oracle or results/oracle-tables")
    arguments = parser.parse_args()
    name = "oracle-tables" if arguments.tables else "oracle"
    arguments.out = arguments.out or ROOT / "results" / name
    started, by_kind = time.process_time(), collections.defaultdict[str, list[Deviation]](list)
    for seed in range(arguments.seed, arguments.seed + arguments.models):
        of_seed = (table_deviations,) if arguments.tables else (deviations, gradient_deviations)
        for deviation in (deviation for function in of_seed for deviation in function(seed)):
            by_kind[deviation.what].append(deviation)
        if (seed - arguments.seed + 1) % 25 == 0:
            print(f"{seed - arguments.seed + 1}/{arguments.models}", flush=True)
    every = [deviation for several in by_kind.values() for deviation in several]
    failures = [deviation for deviation in every if not deviation.size <= deviation.limit]
    lines = [
        f"# {'Tables with functions' if arguments.tables else 'Joints and trees'} beside an oracle",
        "",
        f"`python scripts/oracle.py{' --tables' if arguments.tables else ''} --models {arguments.models} "
        f"--seed {arguments.seed}`, "
        f"kdmkit {kdm.__version__}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"{platform.machine()}, {torch.get_num_threads()} thread(s), "
        f"{time.process_time() - started:.0f} s of the processor.",
        "",
        _WORDS[arguments.tables],
        "",
        "| answer | number | median deviation | worst deviation | limit |",
        "|:--|--:|--:|--:|--:|",
    ]
    for what, several in sorted(by_kind.items()):
        sizes = [deviation.size for deviation in several]
        lines.append(
            f"| {what} | {len(sizes)} | {np.median(sizes):.1g} | {max(sizes):.2g} | {several[0].limit:g} |"
        )
    lines += ["", f"{len(every)} answers, {len(failures)} beyond their limit."]
    arguments.out.parent.mkdir(exist_ok=True, parents=True)
    arguments.out.with_suffix(".md").write_text("\n".join(lines) + "\n")
    worst = [max(several, key=lambda deviation: deviation.size) for several in by_kind.values()]
    shown = [{**d._asdict(), "where": [str(part) for part in d.where]} for d in [*worst, *failures]]
    arguments.out.with_suffix(".jsonl").write_text("".join(json.dumps(one) + "\n" for one in shown))
    print("\n".join(lines))
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
