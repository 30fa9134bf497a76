"""What a package says about itself: versions, the changelog, and the README on an index page."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
from index_readme import WITHOUT_ADDRESS, description, index_readme, main, relative_links

import kdmkit

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {kdmkit.__version__}\n" in citation


def test_the_changelog_begins_with_what_is_unreleased_and_has_the_version_with_its_date() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (.+)$", changelog, re.MULTILINE)
    assert sections[0] == "Unreleased"
    assert re.fullmatch(rf"{re.escape(kdmkit.__version__)} \(\d{{4}}-\d\d-\d\d\)", sections[1])
    released = re.search(r"\((.+)\)", sections[1])
    assert released
    assert f"date-released: {released[1]}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_relative_links_of_the_readme_lead_to_files() -> None:
    links = relative_links(README)
    assert links
    assert [link for link in links if not (ROOT / link.partition("#")[0]).exists()] == []


def test_with_an_address_links_lead_to_the_release() -> None:
    made = index_readme("![a](b.png) [c](d/e.md) [f](https://g.h)\n", "https://k.l/m/n/", "1.2")
    assert made == (
        "![a](https://k.l/m/n/raw/v1.2/b.png) [c](https://k.l/m/n/blob/v1.2/d/e.md) [f](https://g.h)\n"
    )


def test_without_an_address_links_are_text_and_images_are_left_out() -> None:
    made = index_readme("a\n\n![b](c.png)\n\n[`d`](e.md)\n\n```python\nf[g](h)\n```\n", "", "1.2")
    assert made == "a\n\n`d`\n\n```python\nf[g](h)\n```\n" + WITHOUT_ADDRESS


@pytest.mark.parametrize("address", ["", "https://example.org/owner/name"])
def test_the_readme_on_an_index_page_has_no_relative_link(address: str) -> None:
    made = index_readme(README, address, "1.2")
    assert relative_links(made) == []
    assert made.count("```") == README.count("```")


@pytest.mark.parametrize(
    ("text", "code"), [("# kdmkit\n[a](https://b.c)\n", 0), ("# kdmkit\n[a](b.md)\n", 1), ("", 1)]
)
def test_a_package_with_a_relative_link_is_refused(tmp_path: Path, text: str, code: int) -> None:
    wheel = tmp_path / "kdmkit-1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("kdmkit-1.2.dist-info/METADATA", f"Name: kdmkit\n\n{text}")
    assert description(wheel) == text
    assert main([str(wheel)]) == code
