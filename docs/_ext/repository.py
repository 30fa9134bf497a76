"""Pages that lie elsewhere in the repository: `results/*.md`, the changelog, how to contribute.

They are copied into `docs/generated` before the build. Links in them, and links of pages that point out of
`docs`, are changed: to the page where the file is one, to a download where it is not.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
GENERATED = DOCS / "generated"

_LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=[)#])")


def copied_pages() -> dict[Path, Path]:
    """The page of every file that is copied."""
    results = {path: GENERATED / "results" / path.name for path in sorted((ROOT / "results").glob("*.md"))}
    names = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
    return results | {ROOT / name: GENERATED / name.lower() for name in names if (ROOT / name).exists()}


def turn_links(text: str, source: Path, page: Path) -> str:
    """The text of `source`, with the relative links as the page needs them."""
    pages = copied_pages()

    def turned(match: re.Match[str]) -> str:
        link = match[1]
        if "://" in link or link.startswith("mailto:"):
            return link
        target = (source.parent / link).resolve()
        return os.path.relpath(pages.get(target, target), page.parent) if target.exists() else link

    return _LINK.sub(turned, text)


def copy_pages(app: Sphinx) -> None:
    """Writes the copies that changed, and removes those whose source is gone."""
    pages = copied_pages()
    for old in set(GENERATED.rglob("*.md")) - set(pages.values()):
        old.unlink()
    for source, page in pages.items():
        text = turn_links(source.read_text(encoding="utf-8"), source, page)
        page.parent.mkdir(parents=True, exist_ok=True)
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def turn_links_of_page(app: Sphinx, docname: str, content: list[str]) -> None:
    """Links of a page of `docs` to files outside of it."""
    page = Path(app.env.doc2path(docname))
    if page.suffix == ".md" and GENERATED not in page.parents:
        content[0] = turn_links(content[0], page, page)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", copy_pages)
    app.connect("source-read", turn_links_of_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
