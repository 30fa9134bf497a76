"""Columns that are functions of another column: found, and exact in every answer."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import kdmkit as kdm
from kdmkit.estimators.table.codecs.functions import StepFunction
from kdmkit.kernels import Missing, OneOf
from kdmkit.kernels.regions import WHOLE
from tests import typecheck

SHOPS = [f"s{i:02d}" for i in range(18)]


def visits(n: int = 900, seed: int = 0) -> pd.DataFrame:
    """Shops lie in cities, cities in countries; ages lie in bands; a manager is missing in some shops."""
    rng = np.random.default_rng(seed)
    shop = rng.integers(0, 18, n)
    age = rng.integers(18, 80, n)
    return pd.DataFrame(
        {
            "spent": rng.normal(10 * (shop % 6), 3, n).round(1),
            "city": np.array([f"city {k % 6}" for k in range(18)])[shop],
            "shop": np.array(SHOPS)[shop],
            "country": np.array(["A", "B"])[shop % 6 % 2],
            "floors": np.array([1, 2, 5, 7, 9, 12])[shop % 6],
            "manager": [None if k % 5 == 0 else f"m{k % 4}" for k in shop],
            "age": age,
            "band": np.where(age < 30, "young", np.where(age < 60, "middle", "old")),
        }
    )


@pytest.fixture(scope="module")
def table() -> kdm.KDMTable:
    with typecheck.off():
        return kdm.KDMTable(n_components=8, max_epochs=4, random_state=0).fit(visits())


def test_what_is_found(table: kdm.KDMTable) -> None:
    assert {str(rule) for rule in table.rules_} == {
        "shop -> city",
        "shop -> manager",
        "city -> country",
        "city -> floors",
        "floors -> city",
        "age -> band",
    }
    sources = {name: column.source for name, column in table.columns_.items() if column.source}
    assert sources == {
        **{"city": "shop", "country": "shop", "floors": "shop", "manager": "shop"},
        "band": "age",
    }
    assert all(rule.exceptions == 0 and not rule.is_given for rule in table.rules_)
    assert "city" not in str(table.module_.tree().parents)


def test_keys_and_chance_are_no_rules() -> None:
    """A key determines everything; two-row groups agree by chance; so do rare values."""
    rng = np.random.default_rng(1)
    n = 400
    frame = pd.DataFrame(
        {
            "near_key": [f"k{i // 2}" for i in range(n)],
            "twins": np.repeat(rng.choice(["a", "b"], n // 2), 2),
            "reading": rng.normal(size=n),
            "coin": rng.choice(["heads", "tails"], n),
            "weight": np.where(np.arange(n) < 150, rng.normal(1, 0.2, n), rng.normal(5, 0.2, n)).round(1),
            "species": np.where(np.arange(n) < 150, "mouse", "rat"),
            "rare": np.where(np.arange(n) < 3, "yes", "no"),
            "group": rng.choice([f"g{i}" for i in range(40)], n),
        }
    )
    with typecheck.off():
        table = kdm.KDMTable(types={"near_key": "category"}, n_components=2, max_epochs=1).fit(frame)
    assert list(table.rules_) == []


def test_rules_are_options() -> None:
    frame = visits(300)
    with typecheck.off():
        off = kdm.KDMTable(n_components=2, max_epochs=1, rules=False).fit(frame)
        given = kdm.KDMTable(n_components=2, max_epochs=1, rules=["city -> country"]).fit(frame)
    assert not any(column.source for column in off.columns_.values())
    assert [str(rule) for rule in given.rules_] == ["city -> country"]
    assert given.columns_["country"].source == "city"


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("shop -> city", "rules: expected True, False or a list"),
        (["shop -> cty"], r"rules: expected a column of the table, got 'cty' \(did you mean 'city'"),
        (["shop"], "a rule such as"),
        ([3], "rules: expected texts"),
        (["shop -> shop"], "expected two columns"),
        (["name -> city"], "expected columns of levels or numbers"),
        (["country -> spent"], "at least 10% of the rows keep"),
    ],
)
def test_rules_that_cannot_be(rules: Any, message: str) -> None:
    frame = visits(300).assign(name=[f"person {i}" for i in range(300)])
    with pytest.raises((ValueError, TypeError), match=message):
        kdm.KDMTable(rules=rules).fit(frame)


# ---- questions


QUESTIONS = [
    ("city = 'city 2'", "shop in {s02, s08, s14}"),
    ("city != 'city 2'", "shop not in {s02, s08, s14}"),
    ("country = A, city in {'city 2', 'city 3'}", "shop in {s02, s08, s14}"),
    ("floors >= 7", "shop in {s03, s04, s05, s09, s10, s11, s15, s16, s17}"),
    ("manager is missing", "shop in {s00, s05, s10, s15}"),
    ("manager = m1 or band = old", "shop in {s01, s09, s13, s17} or age >= 60"),
    ("band = middle, age > 40", "40 < age < 60"),
    ("band = young", "age < 30"),
]


@pytest.mark.parametrize(("coarse", "fine"), QUESTIONS)
@pytest.mark.parametrize("given", [None, "spent > 20", "country = B", "band != old, spent < 40"])
def test_a_condition_is_a_region_of_the_finer_column(
    table: kdm.KDMTable, coarse: str, fine: str, given: str | None
) -> None:
    assert table.probability(coarse, given) == pytest.approx(table.probability(fine, given), abs=1e-6)
    for target in ("spent", "shop", "age"):
        try:
            expected = table.query(target, given=fine)
        except ValueError:
            continue
        answer = table.query(target, given=coarse)
        assert answer.log_evidence == pytest.approx(expected.log_evidence, abs=1e-6)
        assert answer.mode == expected.mode
        if target != "shop":
            assert answer.mean == pytest.approx(expected.mean, rel=1e-6)


def test_distributions_are_sums(table: kdm.KDMTable) -> None:
    shops = table.query("shop", given="spent < 25").probs
    cities = table.query("city", given="spent < 25").probs
    for i in range(6):
        expected = sum(p for shop, p in shops.items() if int(shop[1:]) % 6 == i)
        assert cities[f"city {i}"] == pytest.approx(expected, abs=1e-6)
    floors = table.query("P(floors | spent < 25)")
    assert floors.mean == pytest.approx(sum(level * p for level, p in floors.probs.items()))
    assert floors.quantile(0.5) in (1, 2, 5, 7, 9, 12)
    manager = table.query("P(manager | spent < 25)")
    missing = sum(p for shop, p in shops.items() if int(shop[1:]) % 5 == 0)
    assert manager.p_missing == pytest.approx(missing, abs=1e-6)
    assert sum(manager.probs.values()) == pytest.approx(1)
    every = table.marginals(given="spent < 25", columns=["city", "shop", "band", "age", "manager"])
    assert every["city"].probs == pytest.approx(cities, abs=1e-6)
    assert every["manager"].probs == pytest.approx(manager.probs, abs=1e-6)


def test_what_cannot_occur_together(table: kdm.KDMTable) -> None:
    assert table.probability("city = 'city 1', shop = s02") == 0
    assert table.probability("band = old", given="age < 50") == 0
    with pytest.raises(ValueError, match="can occur together"):
        table.query("spent", given="city = 'city 1', shop = s02")


def test_columns_of_one_root_are_compared(table: kdm.KDMTable) -> None:
    frame = visits(600).assign(rooms=lambda f: f["floors"].map({1: 3, 2: 2, 5: 1, 7: 20, 9: 9, 12: 30}))
    with typecheck.off():
        other = kdm.KDMTable(n_components=4, max_epochs=1, random_state=0).fit(frame)
    assert other.columns_["rooms"].source == other.columns_["floors"].source
    probs = other.query("city").probs
    expected = probs["city 0"] + probs["city 3"] + probs["city 5"]
    assert other.probability("rooms > floors") == pytest.approx(expected, abs=1e-6)
    assert other.probability("floors >= rooms") == pytest.approx(1 - expected, abs=1e-6)
    assert other.probability("floors = rooms") == pytest.approx(probs["city 1"] + probs["city 4"], abs=1e-6)


# ---- rows


def test_draws_keep_the_rules(table: kdm.KDMTable) -> None:
    rows = table.sample(3000, random_state=0)
    assert (rows.groupby("shop")[["city", "country", "floors"]].nunique() == 1).all(None)
    assert list(rows.columns) == list(visits(2).columns)
    assert (rows["manager"].isna() == rows["shop"].isin(["s00", "s05", "s10", "s15"])).all()
    assert (rows["band"] == np.where(rows.age < 30, "young", np.where(rows.age < 60, "middle", "old"))).all()
    inside = table.sample(200, given="country = A, band = old", random_state=0)
    assert (inside["country"] == "A").all()
    assert (inside["age"] >= 60).all()


def test_scores(table: kdm.KDMTable) -> None:
    """A derived cell adds nothing; without the finer cell it is a condition; a broken rule is −∞."""
    rows = visits(50, seed=3)
    fine = rows.drop(columns=["city", "country", "floors", "manager", "band"])
    assert table.score_samples(rows) == pytest.approx(table.score_samples(fine), abs=1e-6)
    coarse = rows[["spent", "city", "band"]]
    spent = [table.query("spent", given={"city": c, "band": b}) for _, c, b in coarse.itertuples(index=False)]
    expected = [a.log_density(v) + a.log_evidence for a, v in zip(spent, coarse["spent"], strict=True)]
    assert table.score_samples(coarse) == pytest.approx(expected, rel=1e-4)
    broken = rows.head(2).assign(city=["city 1" if c != "city 1" else "city 2" for c in rows["city"].head(2)])
    assert np.isneginf(table.score_samples(broken)).all()
    cells = {cell.column: cell.rules for cell in table.explain(broken.head(1))}
    assert "breaks shop -> city" in cells["city"]
    assert "breaks shop -> city" in cells["shop"]
    assert cells["age"] == ()


def test_broken_rules_may_be_rare() -> None:
    frame = visits(300)
    frame.loc[0, "country"] = "A" if frame.loc[0, "country"] == "B" else "B"
    with typecheck.off():
        table = kdm.KDMTable(
            n_components=2, max_epochs=1, random_state=0, rules=["city -> country"], broken_rules="rare"
        ).fit(frame)
    (rule,) = table.rules_
    assert rule.exceptions == 1
    assert rule.n_rows == 300
    first, rest = (
        table.score_samples(frame.head(1)),
        table.score_samples(frame.head(1).drop(columns="country")),
    )
    assert first - rest == pytest.approx(np.log(1.5 / 301), abs=1e-5)


def test_imputation(table: kdm.KDMTable) -> None:
    rows = visits(12, seed=4)
    gaps = rows.copy()
    gaps.loc[:2, ["city", "floors"]] = None
    gaps.loc[3:5, "shop"] = None
    gaps.loc[6:8, ["shop", "city", "floors", "country", "manager"]] = None
    gaps.loc[9, "band"] = None
    gaps.loc[10, "age"] = None
    for whole in (
        table.impute(gaps),
        table.impute(gaps, how="rows"),
        *table.impute(gaps, n=2, random_state=0),
    ):
        assert (whole.loc[:5, "city"] == rows.loc[:5, "city"]).all()
        assert (whole.loc[:5, "floors"] == rows.loc[:5, "floors"]).all()
        assert whole.loc[9, "band"] == rows.loc[9, "band"]
        places = whole["shop"].str[1:].astype(int)
        assert (whole["city"] == "city " + (places % 6).astype(str)).all()
        assert (whole["country"] == np.array(["A", "B"])[places % 6 % 2]).all()
        ages = whole["age"].astype(float)
        assert (whole["band"] == np.where(ages < 30, "young", np.where(ages < 60, "middle", "old"))).all()


def test_predictions(table: kdm.KDMTable) -> None:
    rows = visits(30, seed=5)
    assert (table.predict(rows, "city") == rows["city"]).all()
    assert table.predict_proba(rows, "country").max(1) == pytest.approx(1)
    coarse = rows.drop(columns="shop")
    probs = table.predict_proba(coarse, "shop")
    cities = np.array([int(shop[1:]) % 6 for shop in table.levels("shop")])
    for row, city in zip(probs, rows["city"], strict=True):
        assert row[cities != int(city[-1])].max() == 0
        assert row.sum() == pytest.approx(1)
    alone = table.query("shop", given={"city": rows["city"][0]}).probs
    first = table.predict_proba(rows[["city"]].head(1), "shop")[0]
    assert dict(zip(table.levels("shop"), first, strict=True)) == pytest.approx(alone, abs=1e-6)


def test_dependence(table: kdm.KDMTable) -> None:
    dependence = table.dependence()
    places = {name: i for i, name in enumerate(dependence.names)}
    assert dependence.information[places["city"], places["shop"]] > 1
    assert dependence.information[places["city"], places["band"]] == 0
    information = table.information("spent", given="age > 30")
    assert information["city"] <= information["shop"] + 0.1
    assert information["city"] > 0.3


# ---- chunks, and files


def test_new_levels_of_later_chunks(tmp_path: Path) -> None:
    with typecheck.off():
        table = kdm.KDMTable(n_components=4, max_epochs=1, random_state=0).partial_fit(visits(600))
        new = visits(60, seed=7).assign(shop="s99", city="city 9", country="B", floors=9, manager="m1")
        table.partial_fit(pd.concat([visits(60, seed=8), new], ignore_index=True))
    assert table.query("city", given="shop = s99").mode == "city 9"
    assert table.query("P(shop | city = 'city 9')").mode == "s99"
    kdm.save(table, tmp_path / "visits")
    loaded: Any = kdm.load(tmp_path / "visits")
    assert loaded.rules_ == table.rules_ or repr(loaded.rules_) == repr(table.rules_)
    rows = visits(20, seed=9)
    assert (loaded.score_samples(rows) == table.score_samples(rows)).all()
    assert loaded.sample(5, random_state=0).equals(table.sample(5, random_state=0))


def test_rare_levels_of_a_function() -> None:
    """Draws contain neither a rare level nor what follows from it; new levels of both are in the warning."""
    frame = visits()
    frame.loc[:1, ["shop", "city", "country", "floors", "manager"]] = ["s99", "far", "C", 30, "m9"]
    with typecheck.off():
        table = kdm.KDMTable(n_components=8, max_epochs=2, random_state=0).fit(frame)
        drawn = table.sample(4000, random_state=0)
        assert table.columns_["city"].source == "shop"
        assert not {"s99", "far", "C", "m9"} & set(drawn[["shop", "city", "country", "manager"]].stack())
        assert set(drawn.loc[drawn["shop"] == "(other)", "city"]) == {"(other)"}
        assert set(table.sample(3, given={"city": "far"}, random_state=0)["city"]) == {"far"}
        with pytest.warns(UserWarning, match=r"5 in 'shop' \('s77'\); 5 in 'city' \('new'\)"):
            table.score_samples(visits(5).assign(shop="s77", city="new"))


def test_step_functions() -> None:
    steps = StepFunction((0.5, 2.5), (1, -1, 1), missing=0)
    assert steps(np.array([0, 1, 2, 3])).tolist() == [1, -1, -1, 1]
    one = steps.preimage(OneOf([1]))
    assert [x in one for x in (0, 1, 2, 3)] == [True, False, False, True]
    assert steps.preimage(OneOf([0])) == Missing
    assert 1 in steps.preimage(Missing)
    assert 0 not in steps.preimage(Missing)
    assert steps.preimage(WHOLE) == WHOLE
    assert steps.preimage(OneOf([7])).is_empty


@pytest.mark.filterwarnings("ignore:levels that the fitted rows lack")
def test_coarser_cells_that_contradict_each_other_are_rare_by_option() -> None:
    """Nothing is known of a new shop: then its city and its manager cannot occur together."""
    frame = visits(300)
    row = pd.DataFrame([frame.iloc[0].to_dict() | {"shop": "s99", "city": "city 1", "manager": "m0"}])
    options: Any = {"n_components": 2, "max_epochs": 1, "random_state": 0}
    with typecheck.off():
        scores = [
            kdm.KDMTable(broken_rules=broken, **options).fit(frame).score_samples(row)[0]
            for broken in ("impossible", "rare")
        ]
    assert scores[0] == -np.inf
    assert -100 < scores[1] < 0


def test_given_functions_follow_from_each_other() -> None:
    rules = ["shop -> city", "city -> country"]
    with typecheck.off():
        table = kdm.KDMTable(n_components=2, max_epochs=1, rules=rules).fit(visits(300))
    assert [str(rule) for rule in table.rules_] == rules
    assert {name: table.columns_[name].source for name in ("city", "country")} == dict.fromkeys(
        ("city", "country"), "shop"
    )
