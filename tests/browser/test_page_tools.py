"""Cards that are found, ordered, folded and saved; questions as text and in the address; wide tables."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kdmkit as kdm
from browser.conftest import Watched
from browser.test_table_view import answered, card, check_numbers, type_value
from kdmkit.explore import PageModel, Server

pytestmark = pytest.mark.browser


def names(page: Any) -> list[str]:
    return page.evaluate("""() => [...document.querySelectorAll(".cards .card")]
        .filter((card) => !card.hidden).map((card) => card.dataset.column)""")


def saved(page: Any, act: Any, path: Path) -> Path:
    with page.expect_download() as download:
        act()
    download.value.save_as(path)
    return path


def test_cards_are_found_and_ordered(watched: Watched) -> None:
    page = watched.open()
    usual = names(page)
    page.get_by_label("Find a column").fill("i")
    assert names(page) == [name for name in usual if "i" in name]
    page.get_by_label("Find a column").fill("nothing like this")
    assert names(page) == []
    assert page.get_by_text("No column has this name.").is_visible()
    page.get_by_label("Find a column").fill("")
    page.get_by_label("Order of the columns").select_option("name")
    assert names(page) == sorted(usual)


def test_the_target_comes_first_by_information(watched: Watched) -> None:
    page = watched.open()
    answered(page, lambda: card(page, "size").locator(".target").click())
    page.get_by_label("Order of the columns").select_option("information")
    page.wait_for_selector('.cards .card:nth-child(2)[data-column="weight"]')
    assert names(page)[0] == "size"


def test_cards_fold(watched: Watched) -> None:
    page = watched.open()
    page.get_by_role("button", name="Fold all").click()
    assert card(page, "weight").bounding_box()["height"] <= 44
    page.get_by_role("button", name="weight", exact=True).first.click()
    assert card(page, "weight").bounding_box()["height"] > 200
    assert card(page, "items").bounding_box()["height"] <= 44


def test_a_question_in_text(watched: Watched, table: kdm.KDMTable) -> None:
    page = watched.open()
    box = page.get_by_label("A question")
    box.type("wei")
    assert page.locator(".completions li").all_inner_texts() == ["weight"]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    box.type(" > 4 | size = l")
    assert page.locator(".completions li").first.inner_text() == "large"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    assert box.input_value() == "weight > 4 | size = large"
    page.keyboard.press("Enter")
    page.wait_for_selector(".answer dd")
    wanted = table.query("P(weight > 4 | size = large)").probability()
    assert float(page.locator(".answer dd").first.inner_text()) == pytest.approx(wanted, rel=1e-4)
    box.fill("P(wait)")
    page.keyboard.press("Enter")
    page.wait_for_selector(".answer pre")
    assert "did you mean 'weight'" in page.locator(".answer pre").inner_text()


def test_a_question_is_in_the_address(watched: Watched, table: kdm.KDMTable) -> None:
    page = watched.open()
    answered(page, lambda: type_value(page, "weight", "4.5"))
    page.wait_for_timeout(400)
    answered(page, lambda: card(page, "size").locator('.level[title="huge"] input').check())
    page.wait_for_timeout(400)
    address = page.evaluate("location.href")
    other = page.context.new_page()
    other.goto(address)
    other.wait_for_selector(".chip:nth-child(1)")
    other.wait_for_timeout(500)
    check_numbers(other, table, {"weight": 4.5, "size": "huge"})
    answered(page, page.go_back)
    assert page.locator(".chip").count() == 1
    check_numbers(page, table, {"weight": 4.5})


def test_a_question_in_text_is_in_the_address(watched: Watched) -> None:
    page = watched.open()
    box, answer = page.get_by_label("A question"), page.locator(".answer b")
    for text in ("weight > 4", "stars >= 3 | size = large"):
        box.fill(text)
        page.keyboard.press("Enter")
        page.wait_for_selector(f'.answer b:text("{text}")')
    address = page.evaluate("location.href")
    other = page.context.new_page()
    other.goto(address)
    other.wait_for_selector('.answer b:text("stars >= 3")')
    assert other.get_by_label("A question").input_value() == text
    page.reload()
    page.wait_for_selector('.answer b:text("stars >= 3")')
    page.go_back()
    page.wait_for_selector('.answer b:text("weight > 4")')
    assert box.input_value() == "weight > 4"
    page.go_back()
    page.wait_for_selector(".answer", state="hidden")
    assert box.input_value() == ""
    page.go_forward()
    page.wait_for_selector('.answer b:text("weight > 4")')
    assert answer.is_visible()


def test_an_address_that_somebody_changed(watched: Watched) -> None:
    page = watched.page
    for given in ("[", "null", '{"size": 3, "weight": {"values": "x"}, "nothing": {"missing": true}}'):
        page.goto("about:blank")
        page.goto(f"{watched.server.url}&model=parcels&given={given}")
        page.wait_for_selector(".card")
        assert page.locator(".chip").count() == 0


def test_cards_are_saved(watched: Watched, table: kdm.KDMTable, tmp_path: Path) -> None:
    page = watched.open()
    answered(page, lambda: type_value(page, "weight", "4.5"))
    card(page, "size").get_by_label("Save size", exact=True).click()
    path = saved(
        page, lambda: card(page, "size").get_by_label("Save size as CSV").click(), tmp_path / "size.csv"
    )
    with path.open(encoding="utf-8", newline="") as file:
        rows = {row["size"]: row for row in csv.DictReader(file)}
    probs = table.query("size", {"weight": 4.5}).probs
    assert {name: float(row["now"]) for name, row in rows.items()} == pytest.approx(probs, abs=1e-6)
    card(page, "weight").get_by_label("Save weight", exact=True).click()
    picture = saved(
        page, lambda: card(page, "weight").get_by_label("Save weight as PNG").click(), tmp_path / "w.png"
    )
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_rows_are_filled_in_and_predicted(watched: Watched, table: kdm.KDMTable, tmp_path: Path) -> None:
    page = watched.open()
    page.locator("summary", has_text="Your rows").click()
    page.get_by_label("A header line and rows, as CSV").fill("id,weight,size\n1,4.2,\n2,,small\n")
    path = saved(
        page, lambda: page.get_by_role("button", name="Fill in missing cells").click(), tmp_path / "f.csv"
    )
    with path.open(encoding="utf-8", newline="") as file:
        filled = list(csv.DictReader(file))
    assert [row["id"] for row in filled] == ["1", "2"]
    rows = {"weight": [4.2, np.nan], "size": np.array([None, "small"], dtype=object)}
    assert filled[0]["size"] == table.impute(rows)["size"][0]
    answered(page, lambda: card(page, "size").locator(".target").click())
    path = saved(
        page, lambda: page.get_by_role("button", name="Predict the target").click(), tmp_path / "p.csv"
    )
    with path.open(encoding="utf-8", newline="") as file:
        assert [row["predicted size"] for row in csv.DictReader(file)] == list(table.predict(rows, "size"))


# ---- wide tables


@pytest.fixture(scope="module")
def wide() -> Iterator[Server]:
    """Sixty columns, two of them with names that objects of JavaScript have."""
    yield from served(60)


@pytest.fixture(scope="module")
def widest() -> Iterator[Server]:
    """The same with 500 columns."""
    yield from served(500)


def served(n: int) -> Iterator[Server]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, n)).round(1)
    columns: dict[str, Any] = {f"c{i:02d}": x[:, i] for i in range(n - 2)}
    columns |= {"constructor": x[:, n - 2], "__proto__": np.where(x[:, 0] > 0, "a", "b")}
    table = kdm.KDMTable(n_components=4, max_epochs=1, random_state=0, rules=False).fit(columns)
    server = Server({"wide": table}).start()
    yield server
    server.stop()


def test_rules_are_shown(watched: Watched) -> None:
    rng = np.random.default_rng(0)
    code = rng.integers(0, 6, 300)
    low = rng.normal(10, 2, 300).round(1)
    rows = {"code": [f"k{i}" for i in code], "group": [f"g{i // 2}" for i in code], "low": low}
    rows["high"] = (low + rng.gamma(2, 2, 300)).round(1)
    table = kdm.KDMTable(n_components=4, max_epochs=1, random_state=0, rules=["auto", "low <= high"]).fit(
        rows
    )
    watched.server = server = Server({"codes": PageModel("codes", table, path="codes")}).start()
    try:
        page = watched.open()
        shown = page.locator(".rules code").all_inner_texts()
        assert shown == list(dict.fromkeys(map(str, table.rules_)))
        assert {"code -> group", "low <= high"} <= set(shown)
        assert page.locator('code[data-kind="shell"]').inner_text() == "kdmkit ask codes 'P(code)'"
    finally:
        server.stop()


def test_five_hundred_columns(watched: Watched, widest: Server) -> None:
    watched.server = widest
    page = watched.open()
    assert page.locator(".cards .card.slot").count() > 400
    answered(page, lambda: type_value(page, "c00", "2"))
    page.get_by_label("Find a column").fill("c497")
    page.wait_for_selector('.card[data-column="c497"]:not(.slot):not(.stale) .mean')
    assert names(page) == ["c497"]
    assert page.locator("#problem").is_hidden()


def test_ten_columns_are_all_drawn(watched: Watched) -> None:
    page = watched.open()
    assert page.locator(".cards .card.slot").count() == 0
    assert page.locator('code[data-kind="shell"]').is_hidden()  # there is no file


def test_cards_of_wide_tables_are_made_when_they_are_seen(watched: Watched, wide: Server) -> None:
    watched.server = wide
    page = watched.open()
    assert page.locator(".cards .card.slot").count() > 0
    answered(page, lambda: type_value(page, "c00", "2"))
    page.get_by_label("Find a column").fill("__proto__")
    page.wait_for_selector('.card[data-column="__proto__"]:not(.slot):not(.stale) .share')
    shares = card(page, "__proto__").locator(".level .share").all_inner_texts()
    assert float(shares[0].rstrip("%")) + float(shares[1].rstrip("%")) == pytest.approx(100, abs=0.2)
    page.get_by_label("Find a column").fill("constructor")
    page.wait_for_selector('.card[data-column="constructor"]:not(.slot):not(.stale) .mean')
    assert page.locator("#problem").is_hidden()


def test_few_stops_lead_to_the_first_card(watched: Watched, wide: Server) -> None:
    watched.server = wide
    page = watched.open()
    stops = 0
    while not page.evaluate("Boolean(document.activeElement.closest('.card'))"):
        page.keyboard.press("Tab")
        stops += 1
        assert stops <= 15


@pytest.mark.parametrize("watched", [{"viewport": {"width": 390, "height": 844}}], indirect=True)
def test_a_wide_table_on_a_phone(watched: Watched, wide: Server) -> None:
    watched.server = wide
    page = watched.open()
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    height = page.evaluate("document.querySelector('.cards').getBoundingClientRect().height")
    assert height <= 60 * 52 + 100
