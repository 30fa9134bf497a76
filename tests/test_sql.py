"""Fitted tables in SQL: the functions give the answers of Python."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import kdmkit as kdm
from kdmkit.cli.commands import app
from kdmkit.estimators.common.call_batches import CallBatches


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, 400)
    carat = np.round(0.3 + 0.5 * group + 0.1 * rng.random(400), 2)
    carat[rng.random(400) < 0.2] = np.nan
    days = pd.to_timedelta(rng.integers(0, 300, 400), "D")
    cut = np.array(["Fair", "Good", "Ideal"])[group]
    return pd.DataFrame(
        {
            "price": np.round(np.exp(rng.normal(6 + group, 0.3)), 2),
            "cut": cut,
            "carat": carat,
            "day": pd.Timestamp("2024-01-01") + days,
            "fine": np.where(cut == "Fair", "no", "yes"),
        }
    )


@pytest.fixture(scope="module")
def table(frame):
    return kdm.KDMTable(n_components=6, max_epochs=3, random_state=0).fit(frame)


@pytest.fixture(scope="module")
def connection(table, frame):
    with duckdb.connect() as connection:
        kdm.sql.register(connection, table, "gems", random_state=0)
        connection.register("stones", frame)
        yield connection


def asked(connection, expression):
    return connection.execute(f"SELECT {expression} AS x FROM stones s").df()["x"]


def test_scores_and_predictions_are_those_of_python(connection, table, frame):
    assert np.array_equal(asked(connection, "gems_logp(s)"), table.score_samples(frame))
    assert np.array_equal(asked(connection, "gems_predict(s, 'price')"), table.predict(frame, "price"))
    assert np.array_equal(asked(connection, "gems_level(s, 'cut')"), table.predict(frame, "cut"))
    days = pd.to_datetime(asked(connection, "gems_level(s, 'day')"))
    assert np.array_equal(days, table.predict(frame, "day"))


def test_quantiles_enclose_intervals(connection, table, frame):
    """Both ends of a central interval of a density are quantiles."""
    low = asked(connection, "gems_quantile(s, 'price', 0.05)")
    high = asked(connection, "gems_quantile(s, 'price', 0.95)")
    rows = frame.drop(columns="price")
    (answers,) = table.stream("predict", [rows], target="price", quantiles=[0.05, 0.95])
    # Quantiles are searched on a grid of 0.01, together or alone.
    assert np.allclose(low, answers["price q0.05"].to_numpy(), rtol=1e-5, atol=0.011)
    assert np.allclose(high, answers["price q0.95"].to_numpy(), rtol=1e-5, atol=0.011)
    assert np.all(low < high)


EVENTS = {
    "price > 1000": ["price"],
    "cut in {Good}": ["cut"],
    "price > 1000 or carat < 1": ["price", "carat"],
    "carat is missing": ["carat"],
    "fine = yes and price < 500": ["fine", "price"],
    "cut = Good and fine = yes": ["cut", "fine"],
    "day > 2024-06-01": ["day"],
    "price >= 0": ["price"],
    "price < 0": ["price"],
}


@pytest.mark.parametrize("event", EVENTS)
def test_probabilities_are_those_given_the_cells_of_other_columns(connection, table, frame, event):
    answers = asked(connection, f"gems_probability(s, '{event}')")[:12]
    for answer, (_, row) in zip(answers, frame[:12].iterrows(), strict=True):
        given = {name: kdm.Missing if pd.isna(value) else value for name, value in row.items()}
        for name in EVENTS[event]:
            del given[name]
        if "cut" in given:
            given.pop("fine", None)  # the cut decides it
        # Rounding of two log-densities of some tens in float32.
        assert answer == pytest.approx(table.probability(event, given), abs=1e-5)


def test_probabilities_of_a_partition_sum_to_one(connection):
    parts = ["price < 400 and cut in {Fair, Good, Ideal}", "price >= 400 and cut = Good"]
    parts += ["price >= 400 and cut != Good"]
    total = sum(asked(connection, f"gems_probability(s, '{part}')") for part in parts)
    assert np.allclose(total, 1.0, atol=1e-5)


def test_rows_may_be_structs_and_null_is_a_missing_cell(connection, table):
    (unknown, missing) = connection.execute(
        "SELECT gems_logp({'price': 500.0}), gems_logp({'price': 500.0, 'carat': NULL::DOUBLE, 'id': 7})"
    ).fetchone()
    assert unknown == table.score_samples({"price": [500.0]})[0]
    assert missing == table.score_samples({"price": [500.0], "carat": [np.nan]})[0]
    assert missing < unknown


def test_values_may_differ_from_row_to_row(connection, table, frame):
    expression = "gems_predict(s, CASE WHEN price > 600 THEN 'carat' ELSE 'price' END)"
    first = frame["price"] > 600
    wanted = np.where(first, table.predict(frame, "carat"), table.predict(frame, "price"))
    # Rows are answered in two groups: products of float32 may round differently.
    assert np.allclose(asked(connection, expression), wanted, rtol=1e-5)


def test_an_impossible_row_has_no_answer(connection):
    row = "{'cut': 'Fair', 'fine': 'yes'}"
    assert connection.execute(f"SELECT gems_probability({row}, 'price > 1')").fetchone() == (None,)


def test_new_rows_satisfy_their_condition(connection, table):
    rows = connection.execute("SELECT * FROM gems_sample(300, given := 'price > 700 and cut = Good')").df()
    assert list(rows) == list(table.schema_.columns)
    assert len(rows) == 300
    assert (rows["price"] > 700).all()
    assert set(rows["cut"]) == {"Good"}
    assert set(rows["fine"]) == {"yes"}


def test_two_draws_differ(connection):
    first, second = (connection.execute("SELECT * FROM gems_sample(50)").df() for _ in range(2))
    assert not first.equals(second)


MISTAKES = {
    "gems_predict(s, 'cut')": "a column of numbers",
    "gems_predict(s.price, 'cut')": "a row: the alias of a table",
    "gems_predict(s)": "a row: the alias of a table",
    "gems_predict(s, NULL)": "without NULL",
    "gems_logp({'weight': 1})": "columns of the model: price, cut",
    "gems_probability(s, 'pricee > 3')": "did you mean 'price'",
    "gems_probability(s, 'price > ')": "QueryError",
    "gems_probability(s, 'price > carat')": "conditions on single columns",
    "gems_quantile(s, 'price', 2)": "0 < q < 1",
    "gems_quantile(s, 'price', 'x')": "q: expected a number 0 < q < 1, got 'x'",
    "gems_logp({'cut': 'Idael'})": "cut: expected levels of the fitted rows .*, got 'Idael'",
}


@pytest.mark.parametrize("expression", MISTAKES)
def test_mistakes_say_what_is_expected(connection, expression):
    with pytest.raises(duckdb.Error, match=MISTAKES[expression]):
        asked(connection, expression)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("NULL", "n: expected a whole number from 1 to 1,000,000, got NULL"),
        ("0", "got 0"),
        ("2000000000", "got 2000000000"),
        ("1.5", "got"),
        ("3, given := 7", "given: expected a condition as text"),
    ],
)
def test_draws_say_what_is_expected(connection, arguments, text):
    with pytest.raises(duckdb.Error, match=text):
        connection.execute(f"SELECT * FROM gems_sample({arguments})")


@pytest.mark.filterwarnings("ignore:levels that the fitted rows lack")
def test_unseen_levels_may_be_missing_cells(table):
    with duckdb.connect() as connection:
        kdm.sql.register(connection, table, "gems", unseen="missing")
        (answer,) = connection.execute("SELECT gems_logp({'cut': 'Idael', 'price': 500.0})").fetchone()
    unknown = {"cut": np.array(["Idael"], dtype=object), "price": [500.0]}
    assert answer == table.score_samples(unknown)[0]
    with pytest.raises(ValueError, match="unseen: expected"):
        kdm.sql.register(connection, table, "gems", unseen="new")


def test_waiting_calls_are_one_batch():
    """While one batch is answered, others wait and become the next one."""
    sizes, entered, going = [], threading.Event(), threading.Event()

    def answer(rows):
        sizes.append(len(rows))
        entered.set()
        assert going.wait(20)
        return rows.column("x")

    batches = CallBatches()
    call = batches.of("twice", answer)
    rows = [pa.table({"x": [float(i)] * (i + 1)}) for i in range(4)]
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(call, rows[0])
        assert entered.wait(20)
        others = [threads.submit(call, one) for one in rows[1:]]
        while len(batches._waiting) < 3:
            time.sleep(0.01)
        going.set()
        answers = [done.result(20).to_pylist() for done in (first, *others)]
    assert answers == [[float(i)] * (i + 1) for i in range(4)]
    assert sizes == [1, 9]


def test_a_mistake_in_one_call_is_no_error_of_others():
    def answer(rows):
        time.sleep(0.05)
        if -1.0 in rows.column("x").to_pylist():
            raise ValueError("x: expected > 0")
        return rows.column("x")

    call = CallBatches().of("twice", answer)
    tables = [pa.table({"x": [x]}) for x in (1.0, 2.0, -1.0, 3.0)]
    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(call, one) for one in tables]
        assert [answers[i].result(20).to_pylist() for i in (0, 1, 3)] == [[1.0], [2.0], [3.0]]
        with pytest.raises(ValueError, match="expected > 0"):
            answers[2].result(20)


def test_a_name_is_one_of_sql(connection, table):
    with pytest.raises(ValueError, match="name: expected a name such as 'loans', got drop table"):
        kdm.sql.register(connection, table, "drop table")
    with pytest.raises(TypeError, match="a fitted KDMTable"):
        kdm.sql.register(connection, object(), "gems")


def test_a_model_can_be_registered_again(table):
    with duckdb.connect() as connection:
        for seed in (0, 1):
            kdm.sql.register(connection, table, "gems", random_state=seed)
        assert connection.execute("SELECT count(*) FROM gems_sample(3)").fetchone() == (3,)


def test_the_command_reads_files(table, frame, tmp_path):
    kdm.save(table, tmp_path / "my gems")
    frame[:5].to_csv(tmp_path / "rows.csv", index=False)
    query = f"SELECT my_gems_predict(r, 'price') AS p FROM '{tmp_path}/rows.csv' r"
    shown = CliRunner().invoke(app, ["sql", str(tmp_path / "my gems"), query])
    assert shown.exit_code == 0, shown.output
    assert len(shown.output.splitlines()) == 6
    path = tmp_path / "answers.csv"
    written = CliRunner().invoke(app, ["sql", str(tmp_path / "my gems"), query, "-o", str(path)])
    assert written.exit_code == 0, written.output
    assert np.allclose(pd.read_csv(path)["p"], table.predict(frame[:5], "price"), rtol=1e-6)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("SELECT gems_predict({'carat': 1}, 'prices')", "did you mean 'price'"),
        ("SELECT FROM", "syntax error"),
    ],
)
def test_the_command_prints_mistakes_in_short(table, tmp_path, query, text):
    kdm.save(table, tmp_path / "gems")
    failed = CliRunner().invoke(app, ["sql", str(tmp_path / "gems"), query])
    assert failed.exit_code == 2
    assert text in failed.output
    assert "Traceback" not in failed.output


def test_a_batch_function_has_probabilities(table, frame):
    """Other engines take the same answers."""
    function = kdm.BatchFunction(table, "probability", event={"cut": "Good"})
    answers = function(frame[:3])["probability"].to_pylist()
    assert answers == pytest.approx(table.predict_proba(frame[:3], "cut")[:, 1].tolist(), abs=1e-5)
    assert json.dumps(answers)


def test_rows_are_completed(connection, table, frame):
    """A generative join: each row with all columns, given the cells that it has."""
    rows = connection.execute(
        "SELECT r.* FROM (SELECT unnest(gems_draw({'cut': s.cut}), recursive := true) FROM stones s) r"
    ).df()
    assert list(rows) == list(table.schema_.columns)
    assert list(rows["cut"]) == list(frame["cut"])
    assert rows["price"].notna().all()
    assert (rows["fine"] == np.where(rows["cut"] == "Fair", "no", "yes")).all()
    share = frame["carat"].isna().mean()
    assert abs(rows["carat"].isna().mean() - share) < 4 * np.sqrt(share * (1 - share) / len(frame)) + 0.05
