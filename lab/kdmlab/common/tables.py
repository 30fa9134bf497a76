"""Reports: a table with notes, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Report:
    """A table of results, and the files that hold it.

    Args:
        title: the heading.
        header, rows: the table; both are empty where all tables are among the notes.
        notes: paragraphs, headings and further tables, in Markdown.
        files: what was written.
    """

    title: str
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    files: Sequence[Path] = ()

    def markdown(self) -> str:
        table = [markdown_table(self.header, self.rows)] if self.header else []
        return "\n\n".join([f"# {self.title}", *table, *self.notes]) + "\n"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are aligned to the right. Cells may have vertical bars.

    >>> print(markdown_table(["data", "score"], [["iris", "0.95"]]))
    | data | score |
    |:--|--:|
    | iris | 0.95 |
    >>> print(markdown_table(["p(y|x)"], []).splitlines()[0])
    | p(y\\|x) |
    """
    rule = "|:--|" + "--:|" * (len(header) - 1)
    lines = [
        "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |" for cells in [header, *rows]
    ]
    return "\n".join([lines[0], rule, *lines[1:]])


def write_report(report: Report, path: Path, *figures: Path) -> Report:
    """Writes the report as Markdown beside its lines; returns it with the names of all its files.

    Where `<name>-notes.md` lies beside `<name>.md`, the report links to it.
    """
    history = path.with_name(f"{path.stem}-notes.md")
    if history.exists():
        link = f"How settings were chosen, and what was known when: [`{history.name}`]({history.name})."
        report = replace(report, notes=(*report.notes, link))
    path.write_text(report.markdown(), encoding="utf-8")
    return replace(report, files=(path.with_suffix(".jsonl"), path, *figures))
