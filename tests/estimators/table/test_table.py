"""`KDMTable`: questions, predictions and draws of a fitted table."""

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import kdmkit as kdm
from kdmkit.distributions import quantiles

pd = pytest.importorskip("pandas")

N = 10_000


@pytest.fixture(scope="module")
def rows(table: kdm.KDMTable) -> Any:
    return table.sample(N, random_state=1)


# ---- consistency: every question agrees with the same question put to synthetic rows

CONDITIONS = {
    "size in {large, huge}": lambda f: f["size"].isin(["large", "huge"]),
    "fee = 0, items <= 4": lambda f: (f["fee"] == 0) & (f["items"] <= 4),
    "fee > 0, 1 <= weight < 9.5": lambda f: (f["fee"] > 0) & (f["weight"] >= 1) & (f["weight"] < 9.5),
    "sent in [2024-01-20, 2024-03-03], items > 2": lambda f: (
        f["sent"].between("2024-01-20", "2024-03-03") & (f["items"] > 2)
    ),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_questions_agree_with_filtered_synthetic_rows(
    table: kdm.KDMTable, rows: Any, condition: str, unchecked: None
) -> None:
    check_condition(table, rows, condition)


@pytest.mark.slow
def test_questions_agree_with_a_million_synthetic_rows(table: kdm.KDMTable, unchecked: None) -> None:
    rows = table.sample(1_000_000, random_state=1)
    for condition in CONDITIONS:
        check_condition(table, rows, condition)


def check_condition(table: kdm.KDMTable, rows: Any, condition: str) -> None:
    kept = rows[CONDITIONS[condition](rows)]
    assert len(kept) > 500
    for name in ("size", "weight", "fee", "items", "fragile", "sent"):
        if name not in condition:
            check_agrees(table.query(f"P({name} | {condition})"), kept[name])
    p, n = table.query(f"P({condition})").probability(), len(rows)
    assert p == pytest.approx(len(kept) / n, abs=4.5 * np.sqrt(p * (1 - p) / n))


def check_agrees(answer: Any, found: Any) -> None:
    p, share = answer.p_missing, found.isna().mean()
    assert share == pytest.approx(p, abs=4.5 * np.sqrt(p * (1 - p) / len(found)))
    found = found.dropna()
    n = len(found)
    if found.dtype.kind in "fi":
        assert answer.mean == pytest.approx(found.mean(), abs=4.5 * found.std() / np.sqrt(n) + 1e-3)
    if found.dtype.kind in "fiM":
        for q in (0.1, 0.5, 0.9):
            value, error = answer.quantile(q), 4.5 * np.sqrt(q * (1 - q) / n)
            assert (found <= value).mean() >= q - error
            assert (found < value).mean() <= q + error
        return
    for level, p in answer.probs.items():
        assert (found == level).mean() == pytest.approx(p, abs=4.5 * np.sqrt(p * (1 - p) / n) + 1e-9)


OWN_CONDITIONS = {
    "fee > 0, size != huge": lambda f: (f["fee"] > 0) & (f["size"] != "huge"),
    "items in [2, 5]": lambda f: f["items"].between(2, 5),
    "items in {2, 7}": lambda f: f["items"].isin([2, 7]),
    "sent in [2024-01-20, 2024-03-03]": lambda f: f["sent"].between("2024-01-20", "2024-03-03"),
    "size in {small, large}": lambda f: f["size"].isin(["small", "large"]),
}


@pytest.mark.parametrize("condition", OWN_CONDITIONS)
def test_conditions_on_the_target_agree_with_filtered_rows(
    table: kdm.KDMTable, rows: Any, condition: str, unchecked: None
) -> None:
    kept, name = rows[OWN_CONDITIONS[condition](rows)], condition.split()[0]
    answer = table.query(f"P({name} | {condition})")
    check_agrees(answer, kept[name])
    drawn = pd.DataFrame({name: answer.sample(200, random_state=0)})
    inside = OWN_CONDITIONS[condition](drawn.assign(size="small") if name == "fee" else drawn)
    assert inside.all()
    assert answer.to_dict()["query"] == answer.question


def test_probabilities_of_joint_events(table: kdm.KDMTable, rows: Any, unchecked: None) -> None:
    kept = rows[rows["size"] != "huge"]
    p = table.probability({"weight": (3, None), "fragile": True}, given="size != huge")
    share = ((kept["weight"] >= 3) & kept["fragile"]).mean()
    assert p == pytest.approx(share, abs=4.5 * np.sqrt(p * (1 - p) / len(kept)))
    assert p == pytest.approx(float(table.query("P(weight >= 3, fragile = true | size != huge)")))
    late, all_days = rows["sent"] >= "2024-02", rows["sent"].between("2024-01-20", "2024-03-03")
    p = table.probability("sent >= 2024-02", given="sent in [2024-01-20, 2024-03-03]")
    assert p == pytest.approx(
        (late & all_days).sum() / all_days.sum(), abs=4.5 * np.sqrt(0.25 / all_days.sum())
    )
    assert table.probability("weight > 3", given="weight < 2") == 0


def test_events_given_others_agree_with_filtered_rows(table: kdm.KDMTable, rows: Any) -> None:
    kept = rows[(rows["sent"] >= "2024-02-01") & (rows["size"] != "small")]
    happened = (kept["fee"] > 0) & (kept["weight"] <= 5) & kept["fragile"]
    query = "P(fee > 0, weight <= 5, fragile = true | sent >= 2024-02-01, size != small)"
    p = float(table.query(query))
    assert p == pytest.approx(happened.mean(), abs=4.5 * np.sqrt(p * (1 - p) / len(kept)))


@pytest.mark.parametrize("given", ["weight in [3, 6], fee > 0", "sent < 2024-02-10, size in {small, large}"])
def test_rows_drawn_under_conditions_agree_with_filtered_ones(
    table: kdm.KDMTable, rows: Any, given: str, unchecked: None
) -> None:
    drawn = table.sample(3000, given=given, random_state=2)
    check = {
        "weight in [3, 6], fee > 0": lambda f: f["weight"].between(3, 6) & (f["fee"] > 0),
        "sent < 2024-02-10, size in {small, large}": lambda f: (
            (f["sent"] < "2024-02-10") & f["size"].isin(["small", "large"])
        ),
    }[given]
    kept = rows[check(rows)]
    assert check(drawn).all()
    for name in ("weight", "fee", "items"):
        some, wanted = drawn[name].dropna(), kept[name].dropna()
        for q in (0.25, 0.75):
            error = 4.5 * np.sqrt(q * (1 - q) * (1 / len(some) + 1 / len(wanted)))
            assert (some <= wanted.quantile(q)).mean() >= q - error
            assert (some < wanted.quantile(q)).mean() <= q + error
    error = 4.5 * np.sqrt(0.25 * (1 / 3000 + 1 / len(kept)))
    assert drawn["fragile"].mean() == pytest.approx(kept["fragile"].mean(), abs=error)


# ---- questions


def test_a_mapping_means_the_same_as_text(table: kdm.KDMTable) -> None:
    given = {"weight": (0.5, 5.0), "size": ["small", "large"], "fee": None}
    asked = table.query("items", given=given)
    assert asked.question == "P(items | weight in [0.5, 5.0] and size in {small, large})"
    assert asked.mean == table.query("P(items | 0.5 <= weight <= 5, size in {small, large})").mean
    assert asked.mean == table.query("items", given="weight in [0.5, 5], size in {small, large}").mean


def test_answers_know_their_column(table: kdm.KDMTable, unchecked: None) -> None:
    answer = table.query("size", given={"weight": (8.0, None)})
    assert answer.mode == "huge"
    assert sum(answer.probs.values()) == pytest.approx(1.0)
    assert answer.probability(["small", "huge"]) == pytest.approx(
        answer.probs["small"] + answer.probs["huge"]
    )
    fee = table.query("fee")
    assert 0.4 < fee.probability(0) < 0.8
    assert fee.probability((0, 0)) == pytest.approx(fee.probability(0))
    assert (fee.sample(50) >= 0).all()
    assert fee.median == 0.0
    sent = table.query("sent")
    assert sent.interval(0.5)[0] < sent.median < sent.interval(0.5)[1]
    assert sent.probability("2024-02") == pytest.approx(1 / 3, abs=0.15)


@pytest.mark.parametrize(
    ("target", "given", "message"),
    [
        ("prize", {"size": "small"}, "target: expected a column of the model, got 'prize'"),
        ("items", {"wieght": 1}, r"given: .* got 'wieght' \(did you mean 'weight'\?\)"),
        ("items", {"id": "parcel-1"}, "'id', which is left out"),
        ("items", {"size": "smal"}, "did you mean 'small'"),
        ("items", {"weight": (3, 1)}, "low ≤ high"),
        ("items", {"weight": "heavy"}, "column 'weight': expected a number, got 'heavy'"),
        ("items", {"sent": "yesterday"}, "column 'sent': expected a date"),
        ("P(items | size = smal)", None, r"did you mean 'small'\?\); its levels: 'small', .*\n  P\(items"),
        ("P(items | sent > 2024-02-31)", None, "a date such as .* for 'sent'"),
    ],
)
def test_bad_questions(table: kdm.KDMTable, target: str, given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        table.query(target, given=given)


# ---- rows


def test_predictions_use_what_is_there(table: kdm.KDMTable, parcels: Any, unchecked: None) -> None:
    new = parcels.head(50)
    weight = table.predict(new, "weight")
    known = new["size"].notna().to_numpy()
    truth = new["size"].map({"small": 1.0, "large": 4.0, "huge": 9.0}).astype(float).to_numpy()
    assert np.abs(weight[known] - truth[known]).mean() < 1.0
    assert table.predict(new.drop(columns="weight"), "weight") == pytest.approx(weight)
    probs = table.predict_proba(new, "size")
    assert table.levels("size") == ["small", "large", "huge", "giant"]
    assert probs.sum(1) == pytest.approx(1.0)
    assert set(table.predict(new, "size")) <= {"small", "large", "huge"}
    row = {"weight": 4.2, "items": 6}
    alone = table.query("size", given=row).probs
    asked = table.predict_proba(pd.DataFrame([row]), "size")[0]
    assert dict(zip(table.levels("size"), asked, strict=True)) == pytest.approx(alone)


def test_intervals_of_rows(table: kdm.KDMTable, parcels: Any) -> None:
    ends = table.predict_interval(parcels, "weight", coverage=0.8)
    truth = parcels["weight"].to_numpy()
    seen = ~np.isnan(truth)
    inside = (ends[seen, 0] <= truth[seen]) & (truth[seen] <= ends[seen, 1])
    assert 0.6 < inside.mean() < 0.97


def test_dates_of_rows_are_exact(table: kdm.KDMTable, parcels: Any, unchecked: None) -> None:
    """Quantiles of dates are the first dates that reach the level, for many rows as for one question."""
    some = parcels.head(4)
    ends, medians = table.predict_interval(some, "sent", coverage=0.8), table.predict(some, "sent")
    day = np.timedelta64(1, "D")
    for (low, high), median, (_, row) in zip(ends, medians, some.iterrows(), strict=True):
        given = {name: row[name] for name in ("items", "fee", "fragile")}
        given |= {name: row[name] for name in ("size", "weight") if row[name] == row[name]}
        alone = table.query("sent", given=given)
        for q, date in ((0.1, low), (0.5, median), (0.9, high)):
            assert date == np.datetime64(alone.quantile(q))
            assert alone.probability((None, date)) >= q - 1e-5
            assert alone.probability((None, date - day)) < q + 1e-5


def test_marginals_are_the_answers_of_single_queries(table: kdm.KDMTable, unchecked: None) -> None:
    given = {"weight": (0.5, 5.0), "sent": ("2024-01-20", "2024-03-03"), "fragile": True}
    names = ["size", "fee", "items"]
    found = table.marginals(given, columns=names)
    assert list(found) == names
    for name, answer in found.items():
        alone = table.query(name, given=given)
        assert answer.question == alone.question
        assert answer.log_evidence == pytest.approx(alone.log_evidence, abs=1e-5)
        if name == "size":
            assert answer.probs == pytest.approx(alone.probs, abs=1e-6)
        else:
            assert answer.mean == pytest.approx(alone.mean, rel=1e-5)
            assert answer.interval(0.9) == pytest.approx(alone.interval(0.9), rel=1e-4)
    everything = table.marginals()
    assert everything["sent"].median == table.query("sent").median
    assert list(everything) == ["size", "weight", "fee", "items", "fragile", "sent"]


def test_quantiles_are_searched_in_few_steps(
    table: kdm.KDMTable, monkeypatch: pytest.MonkeyPatch, unchecked: None
) -> None:
    table.query("fee").interval(0.9)  # tables of the components are made once
    table.query("weight").interval(0.9)
    steps: list[int] = []
    search = quantiles._points
    monkeypatch.setattr(quantiles, "_points", lambda *args: steps.append(1) or search(*args))
    counts = []
    for name in ("fee", "weight"):
        answer = table.query(name, given={"size": "small"})
        for share in (0.05, 0.5, 0.95):
            steps.clear()
            answer.quantile(share)
            counts.append(len(steps))
    assert 0 < max(counts) <= 4  # halving a bracket would take more than twenty


def test_densities_of_many_values(table: kdm.KDMTable, unchecked: None) -> None:
    weight, fee = table.query("weight", given="fragile = true"), table.query("fee")
    found = weight.density([1.0, 4.5])
    assert found == pytest.approx([math.exp(weight.log_density(x)) for x in (1.0, 4.5)], rel=1e-4)
    assert fee.density([0.0, -1.0]) == pytest.approx([math.exp(fee.log_density(0)), 0.0], rel=1e-4)


def test_scores_count_missing_cells(table: kdm.KDMTable, unchecked: None) -> None:
    rows = pd.DataFrame({"weight": [4.0, 4.0, np.nan, np.nan], "items": [6.0, np.nan, 6.0, np.nan]})
    scores = table.score_samples(rows)
    # Scores count that a cell may have a value that the column never had; `density` does not.
    share = {name: column.codec.share for name, column in table.columns_.items()}
    answer = table.query("weight")
    there = math.log(1 - answer.p_missing) + answer.log_density(4.0) + math.log1p(-share["weight"])
    items = [
        table.query("items", given={"weight": cell}).log_density(6) + math.log1p(-share["items"])
        for cell in (4.0, None)
    ]
    # No row of the fit lacks `items`: such a cell is as rare as a new value.
    gone, new = math.log(answer.p_missing), math.log(share["items"])
    assert scores == pytest.approx([there + items[0], there + new, gone + items[1], gone + new], abs=1e-4)
    assert table.score(rows) == pytest.approx(scores.mean())
    assert table.score_samples(rows[["weight"]])[2] == pytest.approx(gone, abs=1e-4)


def test_missing_cells_can_be_unknown(table: kdm.KDMTable, unchecked: None) -> None:
    rows = pd.DataFrame({"weight": [4.0, np.nan], "items": [np.nan, np.nan]})
    unknown = copy.copy(table).set_params(missing="unknown")
    scores = unknown.score_samples(rows)
    assert scores[0] == pytest.approx(table.score_samples(rows[["weight"]])[0], abs=1e-5)
    assert scores[1] == pytest.approx(0.0, abs=1e-5)
    assert unknown.predict_proba(rows, "size")[1] == pytest.approx(
        [table.query("size").probs[level] for level in table.levels("size")], abs=1e-5
    )


def test_unknown_columns_are_ignored_with_one_warning(table: kdm.KDMTable, parcels: Any) -> None:
    with pytest.warns(UserWarning, match="colour") as caught:
        scores = table.score_samples(parcels.head(3).assign(colour="red"))
    assert len(caught) == 1
    assert scores == pytest.approx(table.score_samples(parcels.head(3)))


# ---- imputation


def test_imputation_fills_missing_cells_only(table: kdm.KDMTable, parcels: Any) -> None:
    new = parcels.head(80)
    whole = table.impute(new)
    assert whole.index.equals(new.index)
    assert (whole.dtypes == new.dtypes).all()
    assert not whole.isna().any().any()
    for name in new:
        seen = new[name].notna()
        assert (whole.loc[seen, name] == new.loc[seen, name]).all()
    gone = new["weight"].isna() & new["size"].notna()
    expected = table.predict(new, "weight")[gone]
    assert whole.loc[gone, "weight"].to_numpy() == pytest.approx(expected, abs=1e-3)


def test_drawn_imputations_follow_the_joint_distribution(table: kdm.KDMTable) -> None:
    """Both cells of a row are missing: draws have the dependence that questions tell."""
    new = pd.DataFrame({"weight": [np.nan] * 1500, "items": pd.array([pd.NA] * 1500, dtype="Int64")})
    first, second = table.impute(new, n=2, random_state=0)
    assert not first.equals(second)
    assert first["items"].dtype == "Int64"
    heavy = first["weight"] > 3
    p = table.query("P(weight > 3 | weight is not missing)").probability()
    assert heavy.mean() == pytest.approx(p, abs=4.5 * np.sqrt(0.25 / 1500))
    mean = table.query("P(items | weight > 3)").mean
    drawn = first.loc[heavy, "items"].astype(float)
    assert drawn.mean() == pytest.approx(mean, abs=4.5 * drawn.std() / np.sqrt(len(drawn)))


def test_the_most_probable_row(table: kdm.KDMTable, parcels: Any) -> None:
    new = parcels.head(30)
    whole = table.impute(new, how="rows")
    assert not whole.isna().any().any()
    assert (whole.dtypes == new.dtypes).all()
    heavy = pd.DataFrame({"size": pd.Categorical([None], ["small", "large", "huge"]), "weight": [9.1]})
    assert table.impute(heavy, how="rows")["size"][0] == "huge"


# ---- explanations and dependence


def test_dependence_finds_what_belongs_together(table: kdm.KDMTable, unchecked: None) -> None:
    found = table.dependence(n_samples=200)
    assert found.names == ("size", "weight", "fee", "items", "fragile", "sent")
    pairs = {frozenset(pair[:2]): pair[2] for pair in found.pairs()}
    assert max(pairs, key=pairs.__getitem__) == {"size", "weight"}
    assert pairs[frozenset({"fee", "sent"})] < 0.1
    assert len({frozenset(link) for link in found.links}) == len(found.links) >= 5
    assert "size" in repr(found)


def test_explanations_put_the_odd_cell_first(table: kdm.KDMTable, unchecked: None) -> None:
    found = table.explain({"size": "small", "weight": 1.1, "items": 2, "fragile": False})
    odd = table.explain({"size": "huge", "weight": 1.1, "items": 2, "fragile": False})
    assert {cell.column for cell in found} == {"size", "weight", "items", "fragile"}
    assert odd[0].column in ("size", "weight")
    assert odd[0].probability < min(cell.probability for cell in found)
    size = next(cell for cell in odd if cell.column == "size")
    assert size.expected == "small"
    answer = table.query("size", given={"weight": 1.1, "items": 2, "fragile": False})
    wanted = math.log(1 - answer.p_missing) + answer.log_density("huge")
    assert size.log_density == pytest.approx(wanted, abs=1e-4)
    assert "as surprising or more" in repr(odd)


def test_rows_are_explained_together_as_one_by_one(
    table: kdm.KDMTable, parcels: Any, unchecked: None
) -> None:
    rows = parcels[:40]
    every = {(cell.row, cell.column): cell for cell in table.explain(rows)}
    assert [cell.probability for cell in table.explain(rows)] == sorted(c.probability for c in every.values())
    for i in (0, 3, 39):
        for cell in table.explain(rows[i : i + 1]):
            other = every[i, cell.column]
            assert (other.value, other.rules) == (cell.value, cell.rules)
            is_number = isinstance(cell.expected, float)
            assert other.expected == (pytest.approx(cell.expected, rel=1e-5) if is_number else cell.expected)
            assert other.probability == pytest.approx(cell.probability, rel=1e-4, abs=1e-9)
            assert other.log_density == pytest.approx(cell.log_density, abs=1e-4)
    assert f"… {len(every) - 30} more cells" in repr(table.explain(rows))
    assert len(table.explain(rows[:0])) == 0


def test_printed_dependence_has_few_pairs_and_no_negative_zero() -> None:
    names = tuple(f"c{i}" for i in range(9))
    information = np.full((9, 9), 0.0)
    information[0, 1] = information[1, 0] = 0.5
    found = kdm.answers.Dependence(names, information, information - 1e-5, information + 0.1, (("c7", "c8"),))
    lines = repr(found).splitlines()
    assert lines[:2] == ["c1 – c0: 0.500 (0.500 … 0.600)", "c8 – c7: 0.000 (0.000 … 0.100)"]
    assert len(lines) == 3
    assert "34 more pairs" in lines[2]
    assert "nats" in lines[2]


# ---- the estimator


def test_columns_print_as_a_table(table: kdm.KDMTable) -> None:
    assert "whole numbers from 0 on" in repr(table.columns_)
    assert table.columns_["id"].kind == "identifier"


def test_parameters_are_only_stored() -> None:
    table = kdm.KDMTable(types={"zip": "category"}, n_components=3)
    assert clone(table).get_params() == table.get_params()
    with pytest.raises(NotFittedError):
        table.query("zip")


def test_the_same_seed_gives_the_same_model(parcels: Any, unchecked: None) -> None:
    few = parcels.head(60)
    models = [kdm.KDMTable(n_components=3, max_epochs=2, random_state=0).fit(few) for _ in range(2)]
    scores = [model.score_samples(few) for model in models]
    assert scores[0] == pytest.approx(scores[1])
    first, second = models[0].sample(5), models[0].sample(5)
    assert not first.equals(second)
    assert models[0].sample(5, random_state=3).equals(models[1].sample(5, random_state=3))


@pytest.mark.parametrize("model", ["flat", "tree"])
def test_other_models_than_trees_are_gone(model: str) -> None:
    with pytest.raises(TypeError, match="JointLayer"):
        kdm.KDMTable(model=model)
    assert "model" not in kdm.KDMTable().get_params()


def test_tables_are_not_exported(table: kdm.KDMTable) -> None:
    assert not hasattr(table, "to_module")
    with pytest.raises(AttributeError, match=r"module_\.tree\(\)"):
        table.to_module("predict")


def test_weights_count_as_repetitions(parcels: Any, unchecked: None) -> None:
    weights = (parcels["size"] == "huge").to_numpy(dtype=float)
    model = kdm.KDMTable(n_components=3, max_epochs=3, random_state=0).fit(parcels, sample_weight=weights)
    assert model.query("size").mode == "huge"


def test_saved_tables_answer_as_before(
    table: kdm.KDMTable, parcels: Any, tmp_path: Path, unchecked: None
) -> None:
    kdm.save(table, tmp_path / "model")
    loaded = kdm.load(tmp_path / "model", kind=kdm.KDMTable)
    new = parcels.head(20)
    assert loaded.score_samples(new) == pytest.approx(table.score_samples(new))
    assert loaded.query("P(sent | fee > 0)").median == table.query("P(sent | fee > 0)").median
    assert loaded.sample(5, random_state=0).equals(table.sample(5, random_state=0))
    assert list(loaded.columns_) == list(table.columns_)
    assert loaded.get_params() == table.get_params()
    assert pickle.loads(pickle.dumps(table)).score_samples(new) == pytest.approx(table.score_samples(new))


# ---- targets


@pytest.mark.slow
def test_named_targets_are_predicted_better(unchecked: None) -> None:
    """Two states per column are few: in a short training the likelihood spends them on the loud columns."""
    rng = np.random.default_rng(0)
    n = 1200
    loud, quiet = rng.integers(0, 2, n), rng.integers(0, 2, n)
    frame = {f"loud{i}": loud * 4.0 + rng.normal(0, 0.3, n) for i in range(3)}
    frame |= {f"quiet{i}": quiet + rng.normal(0, 0.8, n) for i in range(2)}
    frame["y"] = np.where(rng.random(n) < 0.9, quiet, 1 - quiet).astype(bool)
    train, new = (
        {name: value[part] for name, value in frame.items()} for part in (slice(800), slice(800, n))
    )
    losses, short = {}, {"max_epochs": 25, "learning_rate": 0.1}
    for targets in (None, ["y"]):
        model = kdm.KDMTable(n_components=2, targets=targets, random_state=0, **short).fit(train)
        probs = model.predict_proba(new, "y")
        losses[str(targets)] = -np.log(probs[np.arange(n - 800), new["y"].astype(int)]).mean()
    assert losses["['y']"] < losses["None"] - 0.01


@pytest.mark.parametrize(
    ("targets", "message"), [(["prize"], "targets: .*'prize'"), ("prize", "targets: .*'prize'")]
)
def test_bad_targets(parcels: Any, targets: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kdm.KDMTable(targets=targets).fit(parcels.head(30))
