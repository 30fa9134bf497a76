"""Benchmark records as Markdown and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Record = dict[str, Any]


def table(records: list[Record], header: Record) -> str:
    """One section per case, the library first, ratios to it beside every peer."""
    lines = [
        "# Benchmark",
        "",
        ", ".join(f"{name} {value}" if name != "hardware" else str(value) for name, value in header.items())
        + ".",
        "Medians of repeated calls with the middle half of them; memory is the peak beyond the inputs;",
        "error is the largest |Δ|/(1 + |truth|) against float64.",
    ]
    for case in dict.fromkeys(record["case"] for record in records):
        rows = [record for record in records if record["case"] == case]
        lines += ["", f"## {case}", "", "| | time, ms | middle half | × kdmkit | extra memory, MB | error |"]
        lines += ["|---|---|---|---|---|---|", *(_row(row, rows[0]) for row in rows)]
    return "\n".join(lines) + "\n"


def _row(row: Record, ours: Record) -> str:
    ratio = row["median"] / ours["median"]
    memory = "" if row.get("extra_bytes") is None else f"{row['extra_bytes'] / 1e6:.0f}"
    error = "" if row.get("error") is None else f"{row['error']:.1e}"
    spread = f"{_ms(row['low'])} – {_ms(row['high'])}"
    return f"| {row['peer']} | {_ms(row['median'])} | {spread} | {ratio:.2f} | {memory} | {error} |"


def _ms(seconds: float) -> str:
    ms = 1e3 * seconds
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def plot_growth(records: list[Record], path: Path) -> None:
    """Time against queries, components and dimensions, on logarithmic axes."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True, layout="constrained")
    names = {"n": "queries", "m": "components", "d": "dimensions"}
    colours = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
    peers = list(dict.fromkeys(record["peer"] for record in records))
    for ax, axis in zip(axes, names, strict=True):
        rows = _along(records, axis)
        for peer, colour in zip(peers, colours, strict=False):
            # One size belongs to all three series and was measured three times.
            points = sorted({row[axis]: 1e3 * row["median"] for row in rows if row["peer"] == peer}.items())
            if points:
                ax.plot(*zip(*points, strict=True), "o-", color=colour, label=peer, markersize=4)
        ax.set(xscale="log", yscale="log", xlabel=names[axis])
        ax.grid(alpha=0.3, which="major")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("milliseconds per call")
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _along(records: list[Record], axis: str) -> list[Record]:
    """The records in which only `axis` varies: the other two sizes are those of the most cases."""
    others = [name for name in ("n", "m", "d") if name != axis]
    keys = [tuple(record[name] for name in others) for record in records]
    common = max(
        dict.fromkeys(keys),
        key=lambda key: len({r[axis] for r, k in zip(records, keys, strict=True) if k == key}),
    )
    return [record for record, key in zip(records, keys, strict=True) if key == common]
