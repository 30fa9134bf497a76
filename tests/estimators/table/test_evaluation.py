"""The report on synthetic rows: its numbers, its page and its command."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import kdmkit as kdm
from kdmkit import metrics
from kdmkit.cli.commands import app
from tests import typecheck

from .conftest import shop_frame
from .test_functions import visits


@pytest.fixture(scope="module")
def holdout() -> Any:
    return shop_frame(200, seed=7)


@pytest.fixture(scope="module")
def report(table: kdm.KDMTable, parcels: Any, holdout: Any) -> Any:
    with typecheck.off():
        return table.evaluate(parcels, holdout, targets=["size", "weight"])


def test_every_part_is_measured(report: Any) -> None:
    assert report.n_rows == {"training": 400, "holdout": 200, "synthetic": 400}
    names = ["size", "weight", "fee", "items", "fragile", "sent"]
    assert list(report.columns) == names
    assert len(report.pairs) == 15
    assert set(report.c2st) == {"training", "holdout", "as_many_training", "real"}
    assert report.prediction["size"]["measure"] == "AUC"
    assert report.prediction["weight"]["measure"] == "R²"
    assert set(report.intervals) == {"weight", "fee", "items"}
    assert set(report.calibration) == {"size", "fragile"}
    assert 0.9 < report.similarity <= 1
    assert report.c2st["training"] > 0.6
    assert 0.7 < np.mean([one["coverage"] for one in report.intervals.values()]) < 1
    assert 0.4 < report.privacy["dcr_share"] < 0.65
    assert 0.4 < report.privacy["membership_auc"] < 0.65
    assert report.privacy["rare_cells"] == 0
    # Rows without a weight and a fee have few values: some agree by chance.
    assert report.privacy["copies"] <= 0.01
    assert report.columns["weight"]["missing_training"] == pytest.approx(0.1, abs=0.05)


def test_numbers_are_those_of_the_metrics(table: kdm.KDMTable, parcels: Any, holdout: Any) -> None:
    rows = table.sample(400, random_state=3)
    report = table.evaluate(parcels, holdout, synthetic=rows)
    shown = ["weight", "fee", "items"]
    similarity = metrics.column_similarity(parcels[shown], rows[shown])
    assert {name: report.columns[name]["similarity"] for name in shown} == pytest.approx(similarity)
    without_keys = [part.drop(columns="id") for part in (parcels, rows)]
    without_keys = [part.assign(sent=part["sent"].astype("int64")) for part in without_keys]
    assert report.c2st["training"] == pytest.approx(metrics.c2st(*without_keys), abs=0.1)


def test_the_same_seed_gives_the_same_report(table: kdm.KDMTable, parcels: Any) -> None:
    parts = [table.evaluate(parcels[:100], random_state=5) for _ in range(2)]
    assert parts[0].columns == parts[1].columns
    assert parts[0].c2st == parts[1].c2st


def test_without_held_out_rows_privacy_is_not_judged(table: kdm.KDMTable, parcels: Any) -> None:
    report = table.evaluate(parcels[:100])
    assert "dcr_share" not in report.privacy
    assert report.prediction == {}
    assert "There are no held-out rows" in report.to_html()
    assert "membership" not in repr(report)


def test_copies_and_rare_texts_are_told() -> None:
    rng = np.random.default_rng(0)
    names = np.array([f"name {i}" for i in range(40)] + ["common"] * 360, dtype=object)
    frame = pd.DataFrame({"name": rng.permutation(names), "x": rng.normal(size=400)})
    holdout = pd.DataFrame({"name": ["common"] * 100, "x": rng.normal(size=100)})
    with typecheck.off():
        table = kdm.KDMTable(n_components=2, max_epochs=2, types={"name": "category"}, random_state=0).fit(
            frame
        )
        copies = table.evaluate(frame, holdout, synthetic=frame)
    assert copies.privacy["copies"] == 1
    assert copies.privacy["holdout_copies"] == 0
    assert copies.privacy["rare_cells"] == 40
    assert copies.privacy["dcr_share"] > 0.6
    assert table.evaluate(frame, holdout).privacy["rare_cells"] == 0


def test_broken_rules_are_shares_of_rows() -> None:
    frame = visits()
    with typecheck.off():
        table = kdm.KDMTable(n_components=4, max_epochs=2, random_state=0).fit(frame)
        wrong = frame[:300].assign(city=np.where(np.arange(300) < 30, "city 0", frame["city"][:300]))
        report = table.evaluate(frame[300:], synthetic=wrong)
    assert report.rules["shop -> city"]["training"] == 0
    expected = float((wrong["city"] != frame["city"][:300]).mean())
    assert report.rules["shop -> city"]["synthetic"] == pytest.approx(expected)
    assert "rows that break one of" in repr(report)


def test_json_has_no_nan(report: Any, tmp_path: Path) -> None:
    text = report.to_json(tmp_path / "report.json")
    assert json.loads(text) == json.loads((tmp_path / "report.json").read_text("utf-8")) == report.to_dict()
    assert "NaN" not in text
    assert {"what", "value", "ideal", "words"} == set(report.to_dict()["summary"][0])


class _Tags(HTMLParser):
    """Open and close tags in order, and what a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.loaded += [value for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing(report: Any, tmp_path: Path) -> None:
    page = report.to_html(tmp_path / "report.html", title="<Parcels>")
    assert (tmp_path / "report.html").read_text("utf-8") == page
    tags = _Tags()
    tags.feed(page)
    assert not tags.open
    assert not tags.loaded
    assert "&lt;Parcels&gt;" in page
    assert page.count("<svg") == len(report.columns) + 3
    for finding in report.summary:
        assert finding.what in page
        assert finding.value in page


def test_the_command_writes_a_page_or_numbers(
    table: kdm.KDMTable, parcels: Any, holdout: Any, tmp_path: Path
) -> None:
    paths = {name: tmp_path / name for name in ("model", "train.csv", "test.csv", "r.html", "r.json")}
    kdm.save(table, paths["model"])
    parcels[:100].to_csv(paths["train.csv"], index=False)
    holdout[:60].to_csv(paths["test.csv"], index=False)

    def run(*options: Any) -> Any:
        arguments = ("evaluate", paths["model"], paths["train.csv"], *options)
        return CliRunner().invoke(app, [str(part) for part in arguments])

    result = run("--holdout", paths["test.csv"], "--target", "size", "-o", paths["r.html"])
    assert result.exit_code == 0, result.output
    assert "membership inference" in result.output
    assert "AUC of size" in paths["r.html"].read_text("utf-8")
    printed = run("--json", "-o", paths["r.json"])
    assert printed.exit_code == 0, printed.output
    assert json.loads(paths["r.json"].read_text("utf-8"))["n_rows"]["training"] == 100
    assert run("-o", tmp_path / "report.pdf").exit_code == 2
    assert "a column of the model" in run("--target", "siz").output


def test_rows_of_another_table_are_refused(table: kdm.KDMTable, parcels: Any) -> None:
    with pytest.raises(ValueError, match="holdout: expected rows with columns of the table"):
        table.evaluate(parcels, pd.DataFrame({"z": [1.0]}))
    with pytest.raises(ValueError, match="data: expected at least 10 rows, got 4"):
        table.evaluate(parcels[:4])
