"""What new users of tables met: tests of what no other file has, and where the others are.

- Draws with missing cells, P(joint application | no second income): `test_missing_cells`; the button
  "Missing" of the page: `tests/explore/test_tables.py`; `is missing` in questions: `test_language`,
  `tests/laws`.
- `fit(X, y)` and cross-validation: `test_scikit_learn_table`.
- Money, percent, numbers among texts, null markers, months; texts of single people, rare levels, new
  levels in `partial_fit` and in `score`, new keys: `test_people`, `test_chunks`. A schema to edit:
  `test_commands`.
- Draws of a model that was fitted in the shell are frames of pandas: `test_files`.
- The command without its extra: `tests/test_command.py`; the command that the page shows:
  `tests/explore/test_tables.py`.
- Rows that are explained together, short lists of pairs without negative zeros: `test_table`.
  Conditions in a frame: `test_given_frames`. A report on quality: `test_evaluation`. Folders that do
  not exist: `test_commands`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import kdmkit as kdm
from kdmkit.cli.commands import app
from kdmkit.estimators.table.schema import Schema

QUICK: dict[str, Any] = {"n_components": 2, "max_epochs": 1, "random_state": 0}


def loans(n: int = 120) -> Any:
    """A table as people keep it: money, percent, months, null markers, notes of single people."""
    rng = np.random.default_rng(0)
    joint = np.arange(n) % 5 == 0
    return pd.DataFrame(
        {
            "amount": [f"${x:,.2f}" for x in rng.gamma(3, 9000, n)],
            "rate": [f"{x:.2f}%" for x in rng.gamma(9, 1, n)],
            "issued": [("Jan-2018", "Feb-2018", "Mar-2018")[i % 3] for i in range(n)],
            "grade": [("A", "B", "\\N")[i % 3] for i in range(n)],
            "application": np.where(joint, "joint", "individual"),
            "second_income": np.where(joint, rng.gamma(3, 9000, n), np.nan),
            "title": [f"job {i}" if i % 4 == 0 else ("clerk", "nurse")[i % 2] for i in range(n)],
            "email": [f"person{i}@example.org" for i in range(n)],
        }
    )


def test_a_table_as_people_keep_it() -> None:
    data = loans()
    table = kdm.KDMTable(**QUICK).fit(data)
    kinds = {name: column.kind for name, column in table.columns_.items()}
    assert kinds == {
        **{"amount": "float", "rate": "float", "issued": "date", "grade": "category"},
        **{"application": "category", "second_income": "float", "title": "category", "email": "text"},
    }
    drawn = table.sample(400, random_state=0)
    assert list(drawn) == [name for name in data if name != "email"]
    assert drawn["amount"].str.fullmatch(r"\$[\d,]+\.\d\d").all()
    assert set(drawn["title"]) == {"clerk", "nurse", "(other)"}
    assert drawn["second_income"].isna().mean() == pytest.approx(0.8, abs=0.1)
    c = table.columns
    missing = table.probability("second_income is missing")
    assert missing == pytest.approx(table.probability(c.second_income.is_missing()))
    assert missing + table.probability("second_income is not missing") == pytest.approx(1)


def test_a_schema_that_agrees_keeps_its_reasons() -> None:
    reasons = {name: column.why for name, column in Schema.from_frame(loans()).columns.items()}
    decided = {"columns": {"rate": {"kind": "float"}, "application": {"kind": "text"}}}
    columns = kdm.KDMTable(schema=decided, types={"amount": "float"}, **QUICK).fit(loans()).columns_
    assert columns["rate"].why == reasons["rate"]
    assert columns["application"].why == columns["amount"].why == "asked for"


def test_few_rows_are_told() -> None:
    with pytest.warns(UserWarning, match="X: expected 20 rows or more to learn from, got 8"):
        kdm.KDMTable(**QUICK).fit({"x": [1.5, 2.5] * 4, "y": list("abcdabcd")})


@pytest.mark.parametrize("option", ["--target", "--targets"])
def test_targets_have_one_name_in_the_shell_and_in_python(option: str, tmp_path: Path) -> None:
    rows = pd.DataFrame({"x": np.arange(60) % 7 + 0.5, "price": np.arange(60) % 11 + 0.25})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    arguments = ["fit", tmp_path / "rows.csv", "-o", tmp_path / "m", "--components", 2, "--epochs", 1]
    result = CliRunner().invoke(app, [str(a) for a in [*arguments, option, "price"]])
    assert result.exit_code == 0, result.output
    assert kdm.load(tmp_path / "m").targets == ["price"]
    assert kdm.KDMTable(targets="price", **QUICK).fit(rows).targets_ == ["price"]
