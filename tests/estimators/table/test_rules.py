"""Orders and formulas between columns: found or given, and kept by draws, scores and filled cells."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import kdmkit as kdm
from kdmkit.cli.commands import app
from kdmkit.estimators.table.answering.whole_rows import RowSampler
from kdmkit.estimators.table.formula_search import find_formulas
from kdmkit.estimators.table.outcomes import read_event
from kdmkit.estimators.table.rule_search import NumberView
from tests import typecheck


def bills(n: int = 500, seed: int = 0) -> pd.DataFrame:
    """Bills of meals: sums, a ratio, orders of numbers and of dates, one constant."""
    rng = np.random.default_rng(seed)
    food = rng.gamma(4, 6, n).round(2)
    drinks = rng.gamma(2, 4, n).round(2)
    tip = (0.1 * (food + drinks) * rng.random(n)).round(2)
    guests = rng.integers(1, 7, n)
    night = rng.normal(8, 4, n).round(1)
    start = pd.Timestamp("2024-03-01") + pd.to_timedelta(rng.integers(0, 200, n), unit="D")
    total = (food + drinks + tip).round(2)
    return pd.DataFrame(
        {
            "year": 2024,
            "food": food,
            "drinks": drinks,
            "tip": tip,
            "total": total,
            "guests": guests,
            "each": total / guests,
            "night": night,
            "day": (night + rng.gamma(2, 2, n)).round(1),
            "start": start,
            "end": start + pd.to_timedelta(rng.integers(0, 90, n), unit="D"),
            "kind": rng.choice(["lunch", "dinner"], n),
        }
    )


FOUND = {
    "year = 2024",
    "total = food + drinks + tip",
    "each = total / guests",
    "night <= day",
    "start <= end",
}


@pytest.fixture(scope="module")
def table() -> kdm.KDMTable:
    with typecheck.off():
        return kdm.KDMTable(n_components=8, max_epochs=4, random_state=0).fit(bills())


def n_broken(table: kdm.KDMTable, frame: Any) -> int:
    cells = table.schema_.read(frame).columns
    return sum(int(broken.sum()) for broken in table.rules_.broken(table.schema_, cells).values())


# ---- what is found


def test_what_is_found(table: kdm.KDMTable) -> None:
    texts = {str(rule) for rule in table.rules_}
    assert texts == FOUND
    assert all(rule.exceptions == 0 and rule.n_rows == 500 and not rule.is_given for rule in table.rules_)
    assert "total = food + drinks + tip" in repr(table.rules_)


def test_levels_of_many_rows_keep_their_function() -> None:
    """Chance would agree in so many rows with probability 0 in float64."""
    levels = np.random.default_rng(0).integers(0, 8, 8000)
    frame = pd.DataFrame(
        {"town": [f"town {i}" for i in levels], "region": [f"region {i // 2}" for i in levels]}
    )
    with typecheck.off():
        table = kdm.KDMTable(n_components=2, max_epochs=1).fit(frame)
    assert [str(rule) for rule in table.rules_] == ["town -> region"]


def test_chance_is_no_rule() -> None:
    """Independent columns, columns of other sizes, and noise around a sum keep no rule."""
    rng = np.random.default_rng(3)
    n = 300
    a, b = rng.integers(0, 50, n), rng.integers(0, 30, n)
    frame = pd.DataFrame(
        {
            "a": a,
            "b": b,
            "noisy": a + b + rng.integers(-2, 3, n),
            "year": rng.integers(1990, 2020, n),
            "age": rng.integers(18, 90, n),
            "rate": rng.random(n).round(3),
        }
    )
    with typecheck.off():
        table = kdm.KDMTable(n_components=2, max_epochs=1).fit(frame)
    assert list(table.rules_) == []


def test_sums_of_sums_are_written_with_totals() -> None:
    rng = np.random.default_rng(0)
    parts = {f"part{i}": rng.gamma(2, 100 * (i + 1), 200).round() for i in range(4)}
    goods, services = parts["part0"] + parts["part1"], parts["part2"] + parts["part3"]
    frame = pd.DataFrame(
        {**parts, "goods": goods, "services": services, "all": goods + services, "net": goods - services}
    )
    with typecheck.off():
        table = kdm.KDMTable(n_components=2, max_epochs=1, random_state=0).fit(frame)
    formulas = {str(rule) for rule in table.rules_ if "=" in str(rule) and "<" not in str(rule)}
    assert len(formulas) == 4
    assert "all = services + goods" in formulas
    assert n_broken(table, table.sample(2000, random_state=0)) == 0


# ---- draws


def test_draws_keep_all_rules(table: kdm.KDMTable) -> None:
    drawn = table.sample(20_000, random_state=1)
    assert n_broken(table, drawn) == 0
    assert (drawn.total == (drawn.food + drawn.drinks + drawn.tip).round(2)).all()
    assert (drawn.end >= drawn.start).all()
    assert drawn.dtypes.tolist() == bills().dtypes.tolist()


@pytest.mark.parametrize(
    "given",
    ["total > 60", "total = 40", "each < 10, guests >= 2", "night > 8", "day < 3", "kind = lunch, food = 20"],
)
def test_draws_given_a_condition_keep_the_rules(table: kdm.KDMTable, given: str) -> None:
    drawn = table.sample(300, given=given, random_state=1)
    assert n_broken(table, drawn) == 0
    assert table.schema_.read(drawn).n_rows == 300
    conditions = {
        "total > 60": drawn.total > 60,
        "total = 40": drawn.total == 40,
        "each < 10, guests >= 2": (drawn.each < 10) & (drawn.guests >= 2),
        "night > 8": drawn.night > 8,
        "day < 3": drawn.day < 3,
        "kind = lunch, food = 20": (drawn.kind == "lunch") & (drawn.food == 20),
    }
    assert conditions[given].all()


def test_draws_are_those_of_the_model_given_the_orders() -> None:
    """Without formulas, draws have the probabilities that the model has given its order."""
    with typecheck.off():
        table = kdm.KDMTable(n_components=6, max_epochs=3, random_state=0)
        table.fit(bills()[["night", "day", "kind", "drinks"]])
    assert [str(rule) for rule in table.rules_] == ["night <= day"]
    n = 20_000
    drawn = table.sample(n, random_state=0)
    for event, holds in {
        "day > 14": drawn.day > 14,
        "kind = lunch": drawn.kind == "lunch",
        "night between 4 and 9, drinks > 6": drawn.night.between(4, 9) & (drawn.drinks > 6),
    }.items():
        kept = table.probability("night <= day")
        p = table.probability(f"{event}, night <= day") / kept
        assert abs(holds.mean() - p) < 4.5 * np.sqrt(p * (1 - p) / n)
    sampler = RowSampler(table._engine(), read_event(table.schema_, None))
    sampler.frame(n, table._generator(1), None)
    assert abs(sampler.accepted - kept) < 4.5 * np.sqrt(kept * (1 - kept) / n)


# ---- scores, explanations


def test_scores(table: kdm.KDMTable) -> None:
    rows = bills(40, seed=5)
    scores = table.score_samples(rows)
    assert np.isfinite(scores).all()
    # A computed cell has probability 1 beside the others.
    assert table.score_samples(rows.drop(columns=["each", "year"])) == pytest.approx(scores, rel=1e-6)
    assert table.score_samples(rows.drop(columns=["each", "total"])) == pytest.approx(scores, rel=1e-6)
    broken = rows.assign(total=rows.total + 1)
    assert np.isneginf(table.score_samples(broken)).all()
    assert np.isneginf(table.score_samples(rows.assign(day=rows.night - 1))).all()
    assert np.isneginf(table.score_samples(rows.assign(year=2023))).all()
    gone = rows.assign(total=np.nan)
    assert np.isfinite(table.score_samples(gone)).all()


def test_rows_that_break_rules_are_rare_by_option() -> None:
    frame = bills(300)
    frame.loc[:2, "day"] = frame.night - 1
    options: Any = {"n_components": 2, "max_epochs": 1, "random_state": 0, "rules": ["night <= day"]}
    with typecheck.off():
        table = kdm.KDMTable(broken_rules="rare", **options).fit(frame)
    (rule,) = table.rules_
    assert (rule.n_rows, rule.exceptions, rule.is_given) == (300, 3, True)
    with typecheck.off():
        off = kdm.KDMTable(**{**options, "rules": False}).fit(frame)
    difference = table.score_samples(frame) - off.score_samples(frame)
    assert difference[:3] == pytest.approx(np.log(3.5 / 301))
    assert difference[3:] == pytest.approx(0)


def test_explanations_name_the_rule(table: kdm.KDMTable) -> None:
    row = bills(1, seed=9).iloc[0].to_dict()
    row |= {"total": row["total"] + 5, "night": row["day"] + 1}
    cells = {cell.column: cell.rules for cell in table.explain(row)}
    assert "breaks total = food + drinks + tip" in cells["total"]
    assert "breaks total = food + drinks + tip" in cells["tip"]
    assert cells["night"] == cells["day"] == ("breaks night <= day",)
    assert cells["kind"] == ()


# ---- filled cells


@pytest.mark.parametrize("how", ["cells", "rows", "draws"])
def test_filled_cells_keep_the_rules(table: kdm.KDMTable, how: str) -> None:
    rows = bills(60, seed=7)
    gaps = rows.copy()
    rng = np.random.default_rng(0)
    for name in ("food", "drinks", "tip", "total", "each", "night", "day", "end"):
        gaps[name] = gaps[name].mask(rng.random(60) < 0.4)
    options: Any = {"n": 2, "random_state": 0} if how == "draws" else {"how": how}
    filled = table.impute(gaps, **options)
    for whole in filled if how == "draws" else [filled]:
        assert not whole.isna().any(axis=None)
        assert n_broken(table, whole) == 0
        there = ~gaps.isna()
        assert (whole[there] == rows[there]).sum().sum() == there.sum().sum()
        only_tip = gaps.tip.isna() & gaps[["food", "drinks", "total"]].notna().all(axis=1)
        assert only_tip.any()
        assert whole.tip[only_tip].to_numpy() == pytest.approx(rows.tip[only_tip].to_numpy())


# ---- given rules


def test_given_rules() -> None:
    frame = bills(200)[["night", "day", "food", "drinks", "total"]]
    rules = ["day > night", "total >= food", "drinks = total - food"]
    frame["total"] = frame.food + frame.drinks
    frame.loc[frame.night == frame.day, "day"] += 0.1
    with typecheck.off():
        table = kdm.KDMTable(n_components=2, max_epochs=1, random_state=0, rules=rules).fit(frame)
    assert [str(rule) for rule in table.rules_] == ["night < day", "food <= total", "drinks = total - food"]
    drawn = table.sample(1000, random_state=0)
    assert (drawn.night < drawn.day).all()
    assert ((drawn.total - drawn.food).round(2) == drawn.drinks).all()


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (["fod <= total"], r"rules: expected a column of the table, got 'fod' \(did you mean 'food'"),
        (["food <= total <= each"], "one comparison in a rule"),
        (["food <= total + 1"], "a column beside '<='"),
        (["food + tip = total - drinks"], "a column alone on one side"),
        (["total = (food + tip"], r"expected '\)' or a sign, got its end\n  total = \(food \+ tip\n"),
        (["total = total + tip"], "circular"),
        (["total = food * "], "a column or a number"),
        (["total = kind + tip"], "expected columns of numbers, got 'kind'"),
        (["kind <= food"], "expected columns of numbers, dates, times or ordered levels, got 'kind'"),
        (["food <= start"], "expected two columns of one kind"),
        (["total <= food"], "at least 10% of the rows keep, got"),
        (["total = 2 * food"], "at least 10% of the rows keep, got"),
        (["tip <= drinks", "drinks < tip"], "at least 10% of the rows keep, got"),
        (["each = food / 0"], "a formula that has a value in some rows, got a division by 0"),
        (["each = food / (guests - guests)"], "a value in some rows, got a division by 0"),
        (["total = food + drinks + tip", "total = food + drinks"], "at least 10% of the rows keep, got"),
        (["night <= drinks", "drinks < night"], "contradict each other, got 'night <= drinks', 'drinks < n"),
        (["total = food + drinks + tip", "food = total - drinks - tip", "tip = total - food - drinks",
          "drinks = total - food - tip", "2 * total = 1"], "a column alone"),
    ],
)  # fmt: skip
def test_rules_that_cannot_be(rules: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kdm.KDMTable(rules=rules).fit(bills(200))


def test_circular_and_contradictory_rules() -> None:
    frame = bills(200)[["food", "drinks", "tip"]].assign(ratio=lambda f: f.food * f.drinks)
    with pytest.raises(ValueError, match=r"none from itself, got '.*', which is circular"):
        kdm.KDMTable(rules=["ratio = food * drinks", "food = ratio / drinks", "drinks = ratio / food",
                            "ratio = drinks * food"]).fit(frame)  # fmt: skip
    half = frame.assign(other=np.where(np.arange(200) < 100, frame.food + 1, frame.food - 1))
    with pytest.raises(ValueError, match="rules that a row can keep together"):
        kdm.KDMTable(rules=["other = food + 1", "drinks = food * 0 + 1000 * other"]).fit(
            half.assign(drinks=np.where(np.arange(200) >= 100, 1000 * half.other, 7))
        )


def test_two_formulas_for_a_column() -> None:
    frame = bills(200)[["food", "guests"]].assign(h=lambda f: f.food + np.where(np.arange(200) < 100, 1, -1))
    with pytest.raises(
        ValueError, match="together, got contradictory ones, 'h = food \\+ 1', 'h = food - 1'"
    ):
        kdm.KDMTable(rules=["h = food + 1", "h = food - 1"]).fit(frame)
    both = frame.assign(h=np.where(frame.guests <= 3, frame.guests + 2, 2 * frame.guests))
    with pytest.raises(ValueError, match="got two formulas for 'h', 'h = guests \\+ 2', 'h = 2 \\* guests'"):
        kdm.KDMTable(rules=["h = guests + 2", "h = 2 * guests"]).fit(both)


def test_a_rule_that_is_given_twice_is_listed_once() -> None:
    rules = ["night <= day", "day >= night", "total = food + drinks + tip", "total = food+drinks+tip"]
    with typecheck.off():
        table = kdm.KDMTable(n_components=2, max_epochs=1, random_state=0, rules=rules).fit(bills(100))
    assert [str(rule) for rule in table.rules_] == ["night <= day", "total = food + drinks + tip"]


def test_rows_without_a_value_of_a_quotient_keep_it() -> None:
    rng = np.random.default_rng(0)
    tries = rng.integers(0, 30, 400) * (rng.random(400) < 0.8)
    hits = rng.binomial(tries, 0.3)
    frame = pd.DataFrame({"tries": tries, "hits": hits, "noise": rng.normal(size=400)})
    frame["rate"] = np.round(hits / np.maximum(tries, 1), 3)
    with typecheck.off():
        table = kdm.KDMTable(n_components=2, max_epochs=1, random_state=0).fit(frame)
    assert "rate = hits / tries" in {str(rule) for rule in table.rules_}


# ---- the search


def views(**columns: Any) -> list[NumberView]:
    return [NumberView(name, np.asarray(numbers, float), 0.5) for name, numbers in columns.items()]


def test_totals_of_totals_are_found_beyond_ten_parts() -> None:
    rng = np.random.default_rng(1)
    parts = {f"p{i}": rng.poisson(200 + 50 * i, 150) for i in range(14)}
    names = list(parts)
    goods, services = (sum(parts[name] for name in some) for some in (names[:5], names[5:]))
    every = views(**parts, goods=goods, services=services, all=goods + services)
    formulas = {name: str(expression) for name, expression in find_formulas(every).items()}
    assert formulas["all"] == "services + goods"
    assert formulas.keys() == {"goods", "services", "all"}


# ---- files, the shell


@pytest.mark.parametrize("given", [None, "part > 500"])
def test_drawn_ratios_are_as_narrow_as_in_the_data(given: str | None) -> None:
    rng = np.random.default_rng(0)
    total = np.exp(rng.normal(8, 1, 600)).round()
    part = (total * rng.beta(80, 120, 600)).round()
    data = {"total": total, "part": part, "percent": (100 * part / total).round(1)}
    rules = ["percent = 100 * part / total"]
    table = kdm.KDMTable(n_components=12, max_epochs=4, rules=rules, random_state=0).fit(data)
    drawn = table.sample(2000, given=given, random_state=0)
    assert np.abs(100 * drawn["part"] / drawn["total"] - drawn["percent"]).max() < 0.0501
    assert np.std(drawn["percent"]) < 1.3 * data["percent"].std()
    assert given is None or drawn["part"].min() > 500


def test_saved_tables_keep_their_rules(table: kdm.KDMTable, tmp_path: Path) -> None:
    kdm.save(table, tmp_path / "table")
    again: Any = kdm.load(tmp_path / "table")
    assert again.rules_.config() == table.rules_.config()
    pd.testing.assert_frame_equal(again.sample(50, random_state=0), table.sample(50, random_state=0))


def test_rules_in_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, model = tmp_path / "bills.csv", tmp_path / "model"
    bills(150)[["night", "day", "food"]].to_csv(data, index=False)
    options = ["--components", "2", "--epochs", "1", "--rule", "night <= day"]
    assert run(["fit", str(data), "-o", str(model), *options]) == 0
    assert run(["describe", str(model)]) == 0
    assert "night <= day" in capsys.readouterr().out
    assert run(["fit", str(data), "-o", str(model), "--rule", "nigt <= day"]) == 2
    assert "did you mean 'night'" in capsys.readouterr().err


def run(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as end, typecheck.off():
        app(arguments)
    return int(end.value.code or 0)


def test_rows_of_conditions_are_completed_by_the_rules(table: kdm.KDMTable) -> None:
    rows = bills(30, seed=4)
    drawn = table.sample(3, given=rows[["food", "drinks", "total", "night"]], random_state=0)
    assert n_broken(table, drawn) == 0
    assert drawn.tip.to_numpy() == pytest.approx(rows.tip.repeat(3).to_numpy())
    assert (drawn.night.to_numpy() == rows.night.repeat(3).to_numpy()).all()
