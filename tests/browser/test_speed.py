"""How fast the page is, measured in the browser. KDMKIT_EXPLORE_MODEL names the model; else it is small."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kdmkit as kdm
from explore.conftest import saved_model

pytestmark = [pytest.mark.browser, pytest.mark.slow]

#: Moves the thumbs of the first histogram to 100 different ranges, and waits until the cards are painted.
MOVES = """async () => {
  const [low, high] = document.querySelectorAll(".card.ranged .slider input");
  const half = Math.floor(Number(low.max) / 2);
  const root = document.documentElement;
  const answered = () => new Promise((done) => {
    const seen = new MutationObserver(() => { seen.disconnect(); done(); });
    seen.observe(root, { attributeFilter: ["data-answered"] });
  });
  const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  const times = [];
  const ranges = new Set();
  let step = 0;
  for (let move = 0; move < 100; move += 1) {
    const thumb = move % 2 ? high : low;
    let value;
    let range;
    step += 6;
    do {
      step += 1;
      value = move % 2 ? Number(high.max) - step % half : 1 + step % half;
      range = move % 2 ? `${low.value} ${value}` : `${value} ${high.value}`;
    } while (ranges.has(range));
    ranges.add(range);
    const start = performance.now();
    const seen = answered();
    thumb.value = String(value);
    thumb.dispatchEvent(new Event("input"));
    await seen;
    await painted();
    times.push(performance.now() - start);
  }
  return times;
}"""


@pytest.fixture(scope="module")
def model(table: kdm.KDMTable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(table, tmp_path_factory)


def seconds(command: list[str]) -> float:
    start = time.monotonic()
    subprocess.run(command, check=True)
    return time.monotonic() - start


def test_first_paint_and_a_hundred_moves(browser: Any, model: Path) -> None:
    torch = seconds([sys.executable, "-c", "import torch"])
    start = time.monotonic()
    command = [sys.executable, "-m", "kdmkit.cli", "explore", str(model), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(process.stdout.readline().partition(": ")[2].strip())
            page.wait_for_selector("nav button", timeout=60_000)
            painted = time.monotonic() - start
            page.wait_for_selector(".card", timeout=60_000)
            cards = time.monotonic() - start
            page.wait_for_selector(".branches li")
            page.wait_for_timeout(1000)
            times = page.evaluate(MOVES)
            page.close()
        finally:
            process.terminate()
    assert len(times) == 100
    p50, p95 = np.quantile(times, [0.5, 0.95])
    print(
        f"torch {torch:.1f} s; painted {painted - torch:.1f} s and cards {cards - torch:.1f} s after it; ",
        end="",
    )
    print(f"100 moves: median {p50:.0f} ms, p95 {p95:.0f} ms")
    assert painted - torch <= 2
    assert p95 <= 100
