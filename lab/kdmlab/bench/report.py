"""Benchmark rows as Markdown and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kdmlab.common import Report, Row, markdown_table, provenance, select

HEADER = ["", "time, ms", "middle half", "× kdmkit", "extra memory, MB", "error"]


def report(rows: Sequence[Row]) -> Report:
    """One section per case, the library first, with the ratio of every peer's time to the library's."""
    notes = [
        provenance(rows),
        "Medians of repeated calls with the middle half of them (of epochs, with their range); memory is the "
        "peak beyond the inputs; error is the largest |Δ|/(1 + |truth|) against float64.",
    ]
    for case in dict.fromkeys(row["case"] for row in rows):
        some = select(rows, case=case)
        notes += [f"## {case}", markdown_table(HEADER, [_cells(row, some[0]) for row in some])]
    return Report(f"Benchmark on a {'GPU' if _has_accelerator(rows) else 'CPU'}", notes=notes)


def _has_accelerator(rows: Sequence[Row]) -> bool:
    return any(row["machine"].get("accelerator", "none") != "none" for row in rows)


def _cells(row: Row, ours: Row) -> list[str]:
    return [
        row["peer"],
        milliseconds(row["median"]),
        f"{milliseconds(row['low'])} – {milliseconds(row['high'])}",
        f"{row['median'] / ours['median']:.2f}",
        "" if row["extra_bytes"] is None else f"{row['extra_bytes'] / 1e6:.0f}",
        "" if row["error"] is None else f"{row['error']:.1e}",
    ]


def milliseconds(seconds: float) -> str:
    ms = 1e3 * seconds
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def save_growth(rows: Sequence[Row], path: Path) -> Path:
    """Time against queries, components and dimensions, on logarithmic axes."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True, layout="constrained")
    names = {"n": "queries", "m": "components", "d": "dimensions"}
    colours = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
    peers = list(dict.fromkeys(row["peer"] for row in rows))
    for ax, axis in zip(axes, names, strict=True):
        some = _along(rows, axis)
        for peer, colour in zip(peers, colours, strict=False):
            # One size belongs to all three series.
            points = sorted({row[axis]: 1e3 * row["median"] for row in some if row["peer"] == peer}.items())
            if points:
                ax.plot(*zip(*points, strict=True), "o-", color=colour, label=peer, markersize=4)
        ax.set(xscale="log", yscale="log", xlabel=names[axis])
        ax.grid(alpha=0.3, which="major")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("milliseconds per call")
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def _along(rows: Sequence[Row], axis: str) -> list[Row]:
    """The lines in which only `axis` varies: the other two sizes are those of the most cases."""
    others = [name for name in ("n", "m", "d") if name != axis]
    keys = [tuple(row[name] for name in others) for row in rows]
    common = max(
        dict.fromkeys(keys),
        key=lambda key: len({r[axis] for r, k in zip(rows, keys, strict=True) if k == key}),
    )
    return [row for row, key in zip(rows, keys, strict=True) if key == common]
