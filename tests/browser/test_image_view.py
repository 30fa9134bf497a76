"""The view of a classifier of images: drawing, reading, and images of a label."""

from __future__ import annotations

import math
from typing import Any

import pytest

from browser.conftest import Watched

pytestmark = pytest.mark.browser


def draw(page: Any, points: list[tuple[float, float]]) -> None:
    """Draws a line on the pad, through points in shares of its side."""
    box = page.locator(".pad").bounding_box()
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=3)
    page.mouse.up()
    page.wait_for_load_state("networkidle")


def circle() -> list[tuple[float, float]]:
    turns = [2 * math.pi * i / 24 for i in range(25)]
    return [(0.5 + 0.2 * math.sin(a), 0.5 - 0.32 * math.cos(a)) for a in turns]


DIGITS = {
    "0": circle(),
    "1": [(0.4, 0.25), (0.52, 0.12), (0.52, 0.9)],
    "7": [(0.3, 0.15), (0.7, 0.15), (0.45, 0.88)],
    "2": [(0.3, 0.3), (0.4, 0.15), (0.6, 0.15), (0.68, 0.3), (0.6, 0.5), (0.3, 0.85), (0.72, 0.85)],
}


@pytest.mark.parametrize("digit", DIGITS)
def test_a_drawn_digit_is_read(watched: Watched, digit: str) -> None:
    page = watched.open("digits")
    draw(page, DIGITS[digit])
    page.wait_for_selector(".classes .best")
    assert page.locator(".classes .best .name").inner_text() == digit
    novelty = page.locator(".novelty").inner_text()
    assert novelty.startswith("log p(x) = ")
    assert "Novel" not in novelty
    page.get_by_role("button", name="Clear").click()
    assert page.locator(".classes .best").count() == 0


def test_a_scribble_is_novel(watched: Watched) -> None:
    page = watched.open("digits")
    draw(page, [(0.1 + 0.8 * (i % 2), 0.05 + 0.045 * i) for i in range(20)])
    page.wait_for_selector(".classes .best")
    assert "Novel" in page.locator(".novelty").inner_text()


def test_images_of_a_label_are_read_as_it(watched: Watched) -> None:
    page = watched.open("digits")
    page.locator(".labels").get_by_role("button", name="4").click()
    page.wait_for_selector(".image")
    assert page.locator(".image").count() == 12
    page.locator(".image").first.click()
    page.wait_for_selector(".classes .best")
    assert page.locator(".classes .best .name").inner_text() == "4"
