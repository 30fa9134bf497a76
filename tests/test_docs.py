"""Pages of the site, as far as they can be checked without building it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from result_files import Table, chosen, find_cell, find_table, missed, names, pivot, summary

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
#: What the build writes.
MADE = ("_build", "api/generated", "gallery", "generated")
PAGES = [
    path for path in sorted(DOCS.rglob("*.md")) if not path.relative_to(DOCS).as_posix().startswith(MADE)
]

ROLE = re.compile(r"\{result\}`([^`|]+)\|([^`|]+)\|([^`|]+)`")
DIRECTIVE = re.compile(r"```\{results-(table|summary|pivot)\} (\S+)\n((?::\w+: .*\n)*)```")


def table_of(kind: str, name: str, options: dict[str, str]) -> Table:
    """The table that a directive shows."""
    columns = names(options.get("columns"))
    if kind == "summary":
        return summary(name, columns, names(options.get("headings")))
    if kind == "pivot":
        return pivot(name, options["rows"], options["columns"], options["value"])
    return chosen(find_table(name, options.get("heading")), columns, names(options.get("rows")))


def test_numbers_on_pages_are_in_result_files() -> None:
    count = 0
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for result in ROLE.finditer(text):
            assert find_cell(*(part.strip() for part in result.groups()))
            count += 1
        for kind, name, options in DIRECTIVE.findall(text):
            assert table_of(kind, name, dict(re.findall(r":(\w+): (.*)", options))).rows
            count += 1
    assert count >= 20


def test_every_missed_target_is_listed() -> None:
    n_missed = sum(
        len(re.findall(r"^\|.*\| no[^|]*\|$", path.read_text(encoding="utf-8"), re.MULTILINE))
        for path in (ROOT / "results").glob("*.md")
        if "development" not in path.name
    )
    rows = missed().rows
    assert 0 < len(rows) <= n_missed
    assert all(target and measured for _, _, target, measured in rows)


#: Numbers on pages that nobody measured: settings, definitions and examples.
STATED = {
    "decisions.md": [
        "gains 1 %",
        "squared error by 1 %",
        "probability of .97",
        "within .05 nats",
        "keep 64 MiB",
        "Adam's β₂ is .95",
    ],
    "calibrate.md": ["about 80 %"],
    "paper.md": ["its 99 %"],
    "computation.md": ["has 24 MB", "1.5 times the memory"],
    "what-the-kdm-adds.md": ["its 99 %"],
}
#: Code, the targets of links, and sections of arithmetic.
NOT_PROSE = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)|^#+ Lower bounds.*?(?=^#)", re.DOTALL | re.MULTILINE)
UNITS = r"[mµn]?s|seconds?|minutes?|hours?|[kMGT]i?B|times(?= the| as)|×(?!\s?[\d(nm])|%"
MEASURED = re.compile(rf"(?<![\w.:=])(?:\d[\d.–]*(?:,\d+)*\s?(?:{UNITS})(?!\w)|\.\d{{2,}})")


def prose(text: str) -> str:
    return NOT_PROSE.sub("", text)


PROSE = [*PAGES, *sorted((DOCS / "api").glob("*.rst")), ROOT / "README.md"]


@pytest.mark.parametrize("path", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_measured_numbers_are_not_typed(path: Path) -> None:
    """Durations, sizes, ratios and scores in running text are read from `results/`, or stated above."""
    text = prose(path.read_text(encoding="utf-8"))
    for phrase in STATED.get(path.name, []):
        assert phrase in text, f"no longer on the page: {phrase}"
        text = text.replace(phrase, "")
    assert MEASURED.findall(text) == []


@pytest.mark.parametrize(
    "text", ["in 3.4 s", "1,012 ms", "5 GB", "4.3 × faster", "to .82", "33 %", "2 times as"]
)
def test_a_typed_number_is_seen(text: str) -> None:
    assert MEASURED.search(text)


@pytest.mark.parametrize("text", ["256 × 512", "10 classes", "version 3.11", "d = 16", "`12 ms`"])
def test_sizes_and_settings_may_be_typed(text: str) -> None:
    assert not MEASURED.search(prose(text))


@pytest.mark.parametrize(
    ("name", "row", "column"),
    [("absent.md", "a", "b"), ("estimators.md", "absent", "measured"), ("estimators.md", "digits", "absent")],
)
def test_a_missing_number_is_an_error(name: str, row: str, column: str) -> None:
    with pytest.raises(LookupError, match=name):
        find_cell(name, row, column)


#: Markdown with links into the repository: pages of the site, and the files beside `pyproject.toml`.
LINKING = [*PAGES, *sorted(ROOT.glob("*.md"))]


def anchors(page: Path) -> set[str]:
    """The anchors of a page: its headings in lower case, without signs, blanks as hyphens."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#{1,3} (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", LINKING, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(path: Path) -> None:
    for file, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", path.read_text(encoding="utf-8")):
        target = (path.parent / file).resolve() if file else path
        made = target.is_relative_to(DOCS) and target.relative_to(DOCS).as_posix().startswith(MADE)
        if "://" in file or made:
            continue
        assert target.exists(), file
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{file}#{anchor}"


def test_anchors_are_headings() -> None:
    assert "the-papers-notation" in anchors(DOCS / "glossary.md")


def test_every_library_of_the_comparison_has_a_source() -> None:
    text = (DOCS / "comparison.md").read_text(encoding="utf-8")
    sources = dict(re.findall(r"^\[([\w-]+)\]: (https://\S+)$", text, re.MULTILINE))
    rows = re.findall(r"^\| (?!library|:--).*\|$", text, re.MULTILINE)
    assert len(rows) >= 10
    for row in rows:
        cited = re.findall(r"\]\[([\w-]+)\]", row)
        assert cited, row
        assert set(cited) <= sources.keys()


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
    "paper": "kdmlab reproduce table1",
}


@pytest.mark.parametrize("page", TASKS)
def test_tasks_are_one_click_from_the_start_page(page: str) -> None:
    start = (DOCS / "start.md").read_text(encoding="utf-8")
    link = re.search(rf"\]\((\S+/{page}\.md)\)", start)
    assert link
    assert TASKS[page] in (DOCS / link[1]).read_text(encoding="utf-8")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100
