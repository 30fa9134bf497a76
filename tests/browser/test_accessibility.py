"""Rules of accessibility, checked by axe-core 4.10.3 (`axe/`, MPL 2.0, for tests only)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from browser.conftest import Watched
from browser.test_table_view import answered, card, type_value

pytestmark = pytest.mark.browser

#: Findings that stop somebody from using the page.
SERIOUS = ("serious", "critical")
AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")


def serious(page: Any) -> list[str]:
    """Findings with their first places."""
    page.evaluate(AXE)
    findings = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    return [
        f"{finding['id']}: {finding['help']} ({finding['nodes'][0]['html'][:200]}, {len(finding['nodes'])} ×)"
        for finding in findings
        if finding["impact"] in SERIOUS
    ]


def open_everything(page: Any) -> None:
    """A question, an answer in text, and all panels."""
    answered(page, lambda: type_value(page, "weight", "4.5"))
    answered(page, lambda: card(page, "size").locator(".target").click())
    page.get_by_label("A question").fill("weight > 4 | size = large")
    page.keyboard.press("Enter")
    page.wait_for_selector(".answer dd")
    page.evaluate("document.querySelectorAll('.panel').forEach((panel) => { panel.open = true; })")
    page.get_by_role("button", name="Draw 10 rows").click()
    page.wait_for_selector(".scroll tbody tr")
    page.get_by_role("button", name="Which column tells most?").click()
    page.wait_for_selector(".ranked li .link")


@pytest.mark.parametrize("watched", [{"color_scheme": c} for c in ("light", "dark")], indirect=True)
def test_a_table_has_no_serious_findings(watched: Watched) -> None:
    page = watched.open()
    assert serious(page) == []
    open_everything(page)
    assert serious(page) == []


@pytest.mark.parametrize("watched", [{"viewport": {"width": 390, "height": 844}}], indirect=True)
def test_a_phone_has_no_serious_findings(watched: Watched) -> None:
    page = watched.open()
    page.get_by_role("button", name="Fold all").click()
    assert serious(page) == []


def test_images_have_no_serious_findings(watched: Watched) -> None:
    assert serious(watched.open("digits")) == []
