"""Pages of the site, as far as they can be checked without building it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from result_files import chosen, find_cell, find_table, names

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
#: What the build writes.
MADE = ("_build", "api/generated", "gallery", "generated")
PAGES = [
    path for path in sorted(DOCS.rglob("*.md")) if not path.relative_to(DOCS).as_posix().startswith(MADE)
]

ROLE = re.compile(r"\{result\}`([^`|]+)\|([^`|]+)\|([^`|]+)`")
DIRECTIVE = re.compile(r"```\{results-table\} (\S+)\n((?::\w+: .*\n)*)```")


def references(path: Path) -> tuple[list[tuple[str, ...]], list[tuple[str, dict[str, str]]]]:
    """Numbers and tables of results on a page."""
    text = path.read_text(encoding="utf-8")
    cells = [tuple(part.strip() for part in found.groups()) for found in ROLE.finditer(text)]
    tables = [(name, dict(re.findall(r":(\w+): (.*)", options))) for name, options in DIRECTIVE.findall(text)]
    return cells, tables


def test_numbers_on_pages_are_in_result_files() -> None:
    count = 0
    for path in PAGES:
        cells, tables = references(path)
        for name, row, column in cells:
            assert find_cell(name, row, column)
        for name, options in tables:
            table = find_table(name, options.get("heading"))
            assert chosen(table, names(options.get("columns")), names(options.get("rows"))).rows
        count += len(cells) + len(tables)
    assert count >= 8


@pytest.mark.parametrize(
    ("name", "row", "column"),
    [("absent.md", "a", "b"), ("estimators.md", "absent", "measured"), ("estimators.md", "digits", "absent")],
)
def test_a_missing_number_is_an_error(name: str, row: str, column: str) -> None:
    with pytest.raises(LookupError, match=name):
        find_cell(name, row, column)


def test_links_between_pages_lead_to_files() -> None:
    for path in PAGES:
        for link in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
            target = (path.parent / link).resolve()
            made = target.is_relative_to(DOCS) and target.relative_to(DOCS).as_posix().startswith(MADE)
            assert "://" in link or made or target.exists(), f"{path.name}: {link}"


def test_every_page_is_in_a_list_of_pages() -> None:
    listed = "\n".join(
        re.findall(r"```\{toctree\}(.*?)```", "".join(page.read_text() for page in PAGES), re.S)
    )
    missing = [path for path in PAGES if not re.search(rf"\b{path.stem}\b", listed)]
    assert [path.stem for path in missing if path.stem != "index"] == []


#: Tasks of new users, and a word of the code that does them.
TASKS = {
    "missing-data": "table.predict(new",
    "regression": "predict_interval",
    "classification": "score_samples",
    "save-and-serve": "kdm.load(",
    "table": "table.score_samples(pd.DataFrame(pairs)",
    "streams": "partial_fit",
    "own-encoder": "kdm.nn.JointLayer",
    "proportions": "KDMProportionClassifier",
    "export": "torch.export.export",
    "paper": "kdmkit reproduce table1",
}


@pytest.mark.parametrize("page", TASKS)
def test_tasks_are_one_click_from_the_start_page(page: str) -> None:
    start = (DOCS / "start.md").read_text(encoding="utf-8")
    link = re.search(rf"\]\((\S+/{page}\.md)\)", start)
    assert link
    assert TASKS[page] in (DOCS / link[1]).read_text(encoding="utf-8")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    package = (ROOT / "src" / "kdmkit" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.+)"$', package, re.MULTILINE)
    assert version
    assert f"\nversion: {version[1]}\n" in citation
