"""The report on synthetic rows as one page: figures are SVG inside of it, and nothing is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from typing import Any

from kdmkit.estimators.table.evaluation import Evaluation

# The size of a small figure, in units of its view box, and pairs that are listed.
_WIDTH, _HEIGHT, _LISTED = 260, 120, 10
# The largest factor by which other figures are enlarged.
_ENLARGED = 1.6
# More columns are too many for a map of pairs.
_MOST_IN_MAP = 60


def page_of(report: Evaluation, title: str) -> str:
    """The page of a report."""
    parts = [
        _head(report, title),
        _summary(report),
        _columns(report),
        _pairs(report),
        _model(report),
        _privacy(report),
        _rules(report),
        _method(report),
    ]
    style = (resources.files("kdmkit.estimators.table") / "report_page.css").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body>\n"
        + "\n".join(filter(None, parts))
        + "\n</body></html>\n"
    )


# ---- parts of the page


def _head(report: Evaluation, title: str) -> str:
    names = {"training": "rows of the fit", "holdout": "held-out rows", "synthetic": "synthetic rows"}
    counts = ", ".join(f"{n:,} {names[part]}" for part, n in report.n_rows.items())
    return f"<h1>{escape(title)}</h1><p class='soft'>{counts}.</p>"


def _summary(report: Evaluation) -> str:
    rows = [
        f"<tr><td class='name'>{escape(one.what)}</td>"
        f"<td class='number' data-label='value'><b>{escape(one.value)}</b></td>"
        f"<td class='number' data-label='ideal'>{escape(one.ideal)}</td>"
        f"<td class='words'>{escape(one.words)}</td></tr>"
        for one in report.summary
    ]
    numbers = "<th class='number'>value</th><th class='number'>ideal</th>"
    head = f"<tr><th>what</th>{numbers}<th>what it says</th></tr>"
    table = f"<table class='summary'><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"
    missing = (
        ""
        if "holdout" in report.n_rows
        else (
            "<p>There are no held-out rows: whether synthetic rows are closer to the rows of the fit than "
            "to others, and how useful they are to learn from, is not judged.</p>"
        )
    )
    return f"<h2>Summary</h2>{missing}{table}"


def _columns(report: Evaluation) -> str:
    figures = report.figures["columns"]
    names = sorted(report.columns, key=lambda name: _least_first(report.columns[name]["similarity"]))
    cards = [_card(name, report.columns[name], figures[name]) for name in names]
    key = (
        "<span class='key' style='background:var(--real);opacity:.6'></span> rows of the fit "
        "<span class='key' style='border:2px solid var(--new)'></span> synthetic rows"
    )
    text = (
        "Each column on its own, the least similar first, with its similarity: 1 is equal. Numbers: the "
        "middle 99 % of the values; levels: the most frequent ones."
    )
    return f"<h2>Columns</h2><p>{text}</p><p>{key}</p><div class='grid'>{''.join(cards)}</div>"


def _least_first(value: float) -> float:
    return value if value == value else 2.0


def _card(name: str, column: dict[str, float], figure: dict[str, Any]) -> str:
    gaps = [column["missing_training"], column["missing_synthetic"]]
    missing = f"<small>missing: {gaps[0]:.1%}, synthetic {gaps[1]:.1%}</small>" if any(gaps) else ""
    picture = _level_bars(figure) if "levels" in figure else _steps(figure)
    heading = f"<b title='{escape(name)}'>{escape(name)}</b><span>{_number(column['similarity'])}</span>"
    return f"<figure><figcaption>{heading}</figcaption>{picture}{missing}</figure>"


def _pairs(report: Evaluation) -> str:
    worst = sorted(report.pairs.items(), key=lambda pair: _least_first(pair[1]))[:_LISTED]
    if not worst:
        return ""
    table = _table(["columns", "similarity"], [[f"{a} – {b}", _number(value)] for (a, b), value in worst])
    names = list(report.columns)
    picture = (
        f"<figure class='wide'>{_map(names, report.pairs)}</figure>" if len(names) <= _MOST_IN_MAP else ""
    )
    text = (
        "How alike the dependence of two columns is: 1 is equal. The map has all pairs: the stronger the "
        "colour, the less alike. The table has the least similar ones."
    )
    parts = f"{picture}<div class='scroll'>{table}</div>"
    return f"<h2>Pairs of columns</h2><p>{text}</p><div class='two'>{parts}</div>"


def _model(report: Evaluation) -> str:
    parts = []
    if report.intervals:
        rows = [
            [name, *(f"{100 * one[key]:.1f} %" for key in ("coverage", "claimed")), _number(one["width"])]
            for name, one in report.intervals.items()
        ]
        parts.append(
            "<p>90 % intervals of a cell given the rest of its row: how many hold the true value, which "
            "share the model claims (more than 90 % where one value has more), and their mean width in "
            "standard deviations of the column.</p>" + _scroll(["column", "inside", "claimed", "width"], rows)
        )
    if report.calibration:
        rows = [
            [name, *(f"{100 * one[key]:.1f} %" for key in ("accuracy", "confidence")), _number(one["error"])]
            for name, one in report.calibration.items()
        ]
        parts.append(
            "<p>The most probable level of a cell given the rest of its row: how often it is right, the mean "
            "probability that the model gives to it, and the calibration error (0 is best).</p>"
            + _scroll(["column", "right", "probability", "error"], rows)
        )
        if "reliability" in report.figures:
            parts.append(
                "<figure class='wide'><figcaption><b>Right levels against their probability</b></figcaption>"
                + _reliability(report.figures["reliability"])
                + "<small>On the line, probabilities are shares. Larger dots: more cells.</small></figure>"
            )
    where = "held-out rows" if "holdout" in report.n_rows else "rows of the fit"
    intro = f"<p>Questions about cells of {report.used_rows.get('questions', 0):,} {where}.</p>"
    return f"<h2>What the model knows of a row</h2>{intro}{''.join(parts)}" if parts else ""


def _privacy(report: Evaluation) -> str:
    figure = report.figures.get("distances")
    if figure is None:
        return ""
    text = (
        "Distances to the closest row of the fit: numbers count by their range, and every other level counts "
        "2. Synthetic rows that are much closer than held-out rows would be copies with small changes. "
        f"Medians: synthetic {_number(report.privacy['distance_synthetic'])}, held-out "
        f"{_number(report.privacy['distance_holdout'])}."
    )
    picture = _steps(
        {"edges": figure["edges"], "training": figure["holdout"], "synthetic": figure["synthetic"]}
    )
    key = (
        "<small><span class='key' style='background:var(--real);opacity:.6'></span> held-out rows "
        "<span class='key' style='border:2px solid var(--new)'></span> synthetic rows; the last bar has the "
        "largest distances.</small>"
    )
    return f"<h2>Closeness to rows of the fit</h2><p>{text}</p><figure class='wide'>{picture}{key}</figure>"


def _rules(report: Evaluation) -> str:
    if not report.rules:
        return ""
    parts = [part for part in ("training", "holdout", "synthetic") if part in report.n_rows]
    rows = [
        [rule, *(f"{100 * shares[part]:.3g} %" if part in shares else "" for part in parts)]
        for rule, shares in report.rules.items()
    ]
    text = "The share of rows that break each rule of the table."
    return f"<h2>Rules</h2><p>{text}</p>{_scroll(['rule', *parts], rows)}"


def _method(report: Evaluation) -> str:
    words = {
        "c2st": "rows of each part in the C2ST against training rows",
        "c2st_holdout": "rows of each part in the C2ST with held-out rows",
        "distances": "training rows and held-out rows for distances",
        "log p": "rows of each part for membership inference",
        "questions": "rows for questions about cells",
    }
    sizes = "; ".join(f"{n:,} {words[name]}" for name, n in report.used_rows.items())
    seconds = sum(report.seconds.values())
    return (
        f"<h2>How this was measured</h2><p>Uniform samples: {escape(sizes)}. C2ST and predictions: "
        "scikit-learn's histogram boosting with its defaults, C2ST in three folds: 2 − 2·max(AUC, ½). Levels "
        f"that too few rows have count as one, as in draws. It took {seconds:.0f} s.</p>"
    )


# ---- tables and numbers


def _number(value: float) -> str:
    return f"{value:.3f}" if value == value else "–"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    kinds = ["name", *["number"] * (len(header) - 1)]
    head = "".join(f"<th class='{kind}'>{escape(h)}</th>" for kind, h in zip(kinds, header, strict=True))
    lines = [
        "<tr>"
        + "".join(f"<td class='{k}'>{escape(c)}</td>" for k, c in zip(kinds, row, strict=True))
        + "</tr>"
        for row in rows
    ]
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _scroll(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return f"<div class='scroll'>{_table(header, rows)}</div>"


# ---- figures


def _svg(height: float, parts: Iterable[str], label: str, width: float = _WIDTH) -> str:
    most = "" if width == _WIDTH else f" style='max-width:{_ENLARGED * width:.0f}px'"
    box = f"viewBox='0 0 {width:g} {height:g}'{most} role='img' aria-label='{escape(label)}'"
    return f"<svg {box}>{''.join(parts)}</svg>"


def _steps(figure: dict[str, Any]) -> str:
    """Shares of bins: filled bars of one part, the outline of the other."""
    real, new = figure["training"], figure["synthetic"]
    top, floor = max([*real, *new]) or 1.0, _HEIGHT - 14
    width = _WIDTH / len(real)
    heights = [[floor - (floor - 4) * share / top for share in shares] for shares in (real, new)]
    bars = [
        f"<rect class='real' x='{i * width:.1f}' y='{y:.1f}' width='{width:.1f}' height='{floor - y:.1f}'/>"
        for i, y in enumerate(heights[0])
    ]
    line = "".join(f"H{i * width:.1f}V{y:.1f}H{(i + 1) * width:.1f}" for i, y in enumerate(heights[1]))
    ends = figure.get("ends") or [f"{figure['edges'][0]:.6g}", f"{figure['edges'][-1]:.6g}"]
    texts = [
        f"<text x='0' y='{_HEIGHT - 3}'>{escape(ends[0])}</text>",
        f"<text x='{_WIDTH}' y='{_HEIGHT - 3}' text-anchor='end'>{escape(ends[1])}</text>",
    ]
    outline = f"<path class='new' d='M0,{floor}{line}V{floor}'/>"
    axis = f"<line class='axis' x1='0' x2='{_WIDTH}' y1='{floor}' y2='{floor}'/>"
    return _svg(_HEIGHT, [*bars, outline, axis, *texts], "shares of values in both parts")


def _level_bars(figure: dict[str, Any]) -> str:
    """Shares of levels, one line each."""
    levels, real, new = figure["levels"], figure["training"], figure["synthetic"]
    top, left, row = max([*real, *new]) or 1.0, 96, 15
    scale = (_WIDTH - left - 4) / top
    parts = []
    for i, level in enumerate(levels):
        y = i * row
        text = level if len(level) <= 16 else level[:15] + "…"
        parts += [
            f"<text x='{left - 5}' y='{y + 11}' text-anchor='end'>{escape(text)}"
            f"<title>{escape(level)}</title></text>",
            f"<rect class='real' x='{left}' y='{y + 2}' width='{scale * real[i]:.1f}' height='11'/>",
            f"<path class='new' d='M{left},{y + 3.5}H{left + scale * new[i]:.1f}V{y + 11.5}H{left}'/>",
        ]
    more = figure["n_levels"] - len(levels)
    if more > 0:
        parts.append(f"<text x='{left}' y='{len(levels) * row + 11}'>and {more:,} more levels</text>")
    return _svg(max(row * (len(levels) + (more > 0)), row), parts, "shares of levels in both parts")


def _map(names: Sequence[str], pairs: dict[tuple[str, str], float]) -> str:
    """All pairs as squares: the stronger the colour, the less alike."""
    place = {name: i for i, name in enumerate(names)}
    longest = min(18, max(map(len, names)))
    left, cell = 5.2 * longest + 6, 16.0
    size = left + cell * len(names)
    worst = min([value for value in pairs.values() if value == value], default=1.0)
    parts = [
        f"<text x='{left - 4:.0f}' y='{cell * i + 11:.0f}' text-anchor='end'>{escape(name[:18])}</text>"
        for i, name in enumerate(names)
    ]
    for (a, b), value in pairs.items():
        if value != value:
            continue
        depth = (1 - value) / max(1 - worst, 0.1)
        name = f"{escape(a)} – {escape(b)}: {value:.3f}"
        opacity = 0.06 + 0.94 * min(max(depth, 0.0), 1.0)
        for i, j in ((place[a], place[b]), (place[b], place[a])):
            parts.append(
                f"<rect x='{left + cell * j:.0f}' y='{cell * i:.0f}' width='15' height='15' class='bar' "
                f"opacity='{opacity:.2f}'><title>{name}</title></rect>"
            )
    return _svg(cell * len(names), parts, "similarity of all pairs", size)


def _reliability(figure: dict[str, Any]) -> str:
    side, left, head = 200, 30, 12
    parts = [
        f"<line class='axis' x1='{left}' y1='{side}' x2='{left + side}' y2='0'/>",
        f"<line class='axis' x1='{left}' y1='{side}' x2='{left + side}' y2='{side}'/>",
        f"<line class='axis' x1='{left}' y1='{side}' x2='{left}' y2='0'/>",
        f"<text x='{left}' y='{side + 12}'>0</text>",
        f"<text x='{left + side}' y='{side + 12}' text-anchor='end'>1</text>",
        f"<text x='{left + side / 2}' y='{side + 12}' text-anchor='middle'>probability</text>",
        f"<text x='{left - 4}' y='9' text-anchor='end'>1</text>",
        f"<text x='{left - 4}' y='{side / 2}' text-anchor='end'>right</text>",
    ]
    for x, y, share in zip(figure["confidence"], figure["accuracy"], figure["share"], strict=True):
        radius = 2.5 + 9 * share**0.5
        parts.append(
            f"<circle class='dot' cx='{left + side * x:.1f}' cy='{side * (1 - y):.1f}' r='{radius:.1f}' "
            f"opacity='.7'><title>probability {x:.2f}, right {y:.2f}, {share:.0%} of cells</title></circle>"
        )
    moved = f"<g transform='translate(0 {head})'>{''.join(parts)}</g>"
    return _svg(side + head + 16, [moved], "right levels against their probability", left + side + head)
