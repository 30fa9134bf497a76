"""The view of a table, as a person uses it."""

from __future__ import annotations

import csv
from typing import Any

import pytest

import kdmkit as kdm
from browser.conftest import Watched
from kdmkit.explore.table_page import shown

pytestmark = pytest.mark.browser


def card(page: Any, column: str) -> Any:
    return page.locator(f'.card[data-column="{column}"]')


def answered(page: Any, act: Any) -> None:
    """Does something and waits until the cards are drawn again."""
    count = "Number(document.documentElement.dataset.answered ?? 0)"
    before = page.evaluate(count)
    act()
    for _ in range(500):  # the page allows no wait_for_function: it would need eval
        if page.evaluate(count) > before and page.evaluate("document.documentElement.dataset.busy") == "0":
            return
        page.wait_for_timeout(20)
    raise AssertionError("no answer")


def drag(page: Any, column: str, start: float, end: float) -> None:
    """Drags across a chart, from one share of its width to another."""
    box = card(page, column).locator(".area").bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + start * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], y, steps=6)
    page.mouse.up()


def type_value(page: Any, column: str, text: str) -> None:
    card(page, column).locator(".value").fill(text)
    page.keyboard.press("Enter")


def check_numbers(page: Any, table: kdm.KDMTable, given: dict[str, Any]) -> None:
    """Numbers on the page are those that the library prints."""
    for name in table.marginals():
        if given.get(name) is not None:
            continue
        answer, place = table.query(name, given), card(page, name)
        if answer.levels is None or len(answer.levels) > 12:
            low, high = map(shown, answer.interval(0.9))
            assert place.locator(".interval").inner_text() == f"{low} – {high}"
        else:
            for level, p in answer.probs.items():
                row = place.locator(f'.level[title="{level}"] .share')
                assert row.inner_text() == f"{p:.1%}"
        if isinstance(answer.levels, list) and not isinstance(answer.levels[0], int):
            continue
        if place.locator(".mean").is_visible():
            assert place.locator(".mean").inner_text() == shown(answer.mean)


def test_a_range_and_a_level(watched: Watched, table: kdm.KDMTable) -> None:
    page = watched.open()
    check_numbers(page, table, {})
    answered(page, lambda: card(page, "size").locator('.level[title="huge"] input').check())
    check_numbers(page, table, {"size": "huge"})
    answered(page, lambda: drag(page, "items", 0.3, 0.7))
    text = page.locator('code[data-kind="python"]').inner_text()
    assert "items in [" in text
    assert "size = huge" in text
    chip = page.locator(".chip", has_text="items").inner_text().split("items ")[1].split(" – ")
    low, high = int(chip[0]), int(chip[1].split()[0].rstrip("×"))
    given = {"size": "huge", "items": (low, high)}
    check_numbers(page, table, given)
    evidence = table.query("stars", given).log_evidence
    assert page.locator(".usual").get_attribute("title") == f"log p = {shown(evidence)}"
    assert " of rows" in page.locator(".usual").inner_text()
    answered(page, lambda: page.get_by_role("button", name="Clear all").click())
    check_numbers(page, table, {})


def test_a_typed_value_and_a_missing_cell(watched: Watched, table: kdm.KDMTable) -> None:
    page = watched.open()
    answered(page, lambda: type_value(page, "weight", "4.5"))
    check_numbers(page, table, {"weight": 4.5})
    answered(
        page, lambda: (card(page, "weight").locator(".value").fill("2 to 5"), page.keyboard.press("Enter"))
    )
    check_numbers(page, table, {"weight": (2.0, 5.0)})
    answered(page, lambda: type_value(page, "items", "15-25"))
    assert page.locator(".chip", has_text="items").inner_text().startswith("items 15 – 25")
    answered(page, lambda: card(page, "items").locator(".clear").click())
    answered(page, lambda: card(page, "weight").locator(".missing").click())
    assert page.locator(".chip").inner_text().startswith("weight missing")
    check_numbers(page, table, {"weight": kdm.Missing})
    assert card(page, "items").locator(".missing").is_hidden()


def test_held_cards_show_what_is_left(watched: Watched, table: kdm.KDMTable) -> None:
    page = watched.open()
    answered(page, lambda: card(page, "size").locator('.level[title="huge"] input').check())
    assert card(page, "size").locator('.level[title="huge"] .share').inner_text() == "100.0%"
    assert card(page, "size").locator('.level[title="small"] .share').inner_text() == "0.0%"
    answered(page, lambda: type_value(page, "items", "15 to 25"))
    given = {"size": "huge", "items": (15, 25)}
    answer = table.query("items", given)
    page.wait_for_selector(f'.card[data-column="items"] .mean:text-is("{shown(answer.mean)}")')
    low, high = map(shown, answer.interval(0.9))
    assert card(page, "items").locator(".interval").inner_text() == f"{low} – {high}"
    assert card(page, "items").locator(".status").inner_text() == "held"
    check_numbers(page, table, given)


def test_the_keyboard_is_enough(watched: Watched, table: kdm.KDMTable) -> None:
    page = watched.open()
    page.get_by_label("items, from").focus()
    answered(page, lambda: [page.keyboard.press("ArrowRight") for _ in range(4)])
    assert page.locator(".chip").inner_text().startswith("items ≥ ")
    box = card(page, "fragile").locator('.level[title="True"] input')
    box.focus()
    answered(page, lambda: page.keyboard.press("Space"))
    assert page.locator(".chip").count() == 2


def test_panels(watched: Watched, table: kdm.KDMTable, tmp_path: Any) -> None:
    page = watched.open()
    assert page.locator(".branches li").count() == len(table.marginals())
    answered(page, lambda: card(page, "size").locator(".target").click())
    page.get_by_role("button", name="Which column tells most?").click()
    page.wait_for_selector(".ranked li .link")
    assert page.locator(".ranked li .link").first.inner_text() == "weight"
    page.locator("summary", has_text="Draws").click()
    page.get_by_role("button", name="Draw 10 rows").click()
    page.wait_for_selector(".scroll tbody tr")
    assert page.locator(".scroll tbody tr").count() == 10
    page.get_by_label("Rows of the CSV file").fill("25")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").click()
    download.value.save_as(tmp_path / "draws.csv")
    with open(tmp_path / "draws.csv", encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == 25


@pytest.mark.filterwarnings("ignore:given. expected values between")  # the page shows it itself
def test_a_pasted_row(watched: Watched, table: kdm.KDMTable) -> None:
    page = watched.open()
    page.locator("summary", has_text="Your rows").click()
    page.get_by_label("A header line and rows, as CSV").fill("weight,size\n40,small\n")
    page.get_by_role("button", name="Check", exact=True).click()
    page.wait_for_selector(".cells tbody tr")
    assert page.locator(".cells tr.surprising td").first.inner_text() == "weight"
    answered(page, lambda: page.get_by_role("button", name="Hold its values").click())
    assert page.locator(".chip").count() == 2
    check_numbers(page, table, {"weight": 40, "size": "small"})


def test_two_tabs_do_not_disturb_each_other(watched: Watched, table: kdm.KDMTable) -> None:
    first = watched.open()
    second = first.context.new_page()
    second.goto(watched.server.url)
    second.wait_for_selector(".card")
    answered(first, lambda: card(first, "size").locator('.level[title="huge"] input').check())
    answered(second, lambda: card(second, "size").locator('.level[title="small"] input').check())
    check_numbers(first, table, {"size": "huge"})
    check_numbers(second, table, {"size": "small"})


def test_a_request_that_fails_is_told_and_the_page_goes_on(watched: Watched, table: kdm.KDMTable) -> None:
    page = watched.open()
    type_value(page, "weight", "9 to 1")
    page.wait_for_selector("#problem:not([hidden])")
    assert "low ≤ high" in page.locator("#problem").inner_text()
    answered(page, lambda: page.get_by_role("button", name="Clear all").click())
    assert page.locator("#problem").is_hidden()
    page.route("**/marginals", lambda route: route.abort())
    card(page, "size").locator('.level[title="huge"] input').check()
    page.wait_for_selector("#problem:not([hidden])")
    assert "does not answer" in page.locator("#problem").inner_text()
    watched.messages.clear()  # of the request that was cut off
    page.unroute("**/marginals")
    answered(page, lambda: card(page, "size").locator('.level[title="small"] input').check())
    check_numbers(page, table, {"size": ["huge", "small"]})


def test_no_token_is_told(watched: Watched) -> None:
    watched.page.goto(watched.server.url.partition("#")[0])
    watched.page.wait_for_selector("#problem:not([hidden])")
    assert "token is missing" in watched.page.locator("#problem").inner_text()


@pytest.mark.parametrize("watched", [{"viewport": {"width": 390, "height": 844}}], indirect=True)
def test_a_narrow_screen_needs_no_sideways_scrolling(watched: Watched) -> None:
    page = watched.open()
    answered(page, lambda: card(page, "size").locator('.level[title="huge"] input').check())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_cards_do_not_jump(watched: Watched) -> None:
    page = watched.open()
    before = [one.bounding_box() for one in page.locator(".card").all()]
    answered(page, lambda: card(page, "size").locator('.level[title="huge"] input').check())
    assert [one.bounding_box() for one in page.locator(".card").all()] == before


@pytest.mark.parametrize("watched", [{"color_scheme": "dark"}], indirect=True)
def test_dark_as_the_system_and_light_on_request(watched: Watched) -> None:
    page = watched.open()
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    assert page.evaluate(ground) == "rgb(18, 20, 23)"
    page.get_by_role("button", name="Change to light colours").click()
    assert page.evaluate(ground) == "rgb(246, 247, 249)"
