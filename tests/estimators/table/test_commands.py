"""The commands on tables: files in, files and answers out."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import kdmkit as kdm
from kdmkit.cli.commands import app
from kdmkit.estimators.table.codecs.kinds import KINDS

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")


def run(*arguments: Any, code: int = 0, **options: Any) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "120"}, **options)
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def model(table: kdm.KDMTable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "parcels"
    kdm.save(table, path)
    return path


@pytest.fixture
def csv(parcels: Any, tmp_path: Path) -> Path:
    path = tmp_path / "new.csv"
    parcels.head(20).to_csv(path, index=False)
    return path


def test_fit_describe_and_ask(parcels: Any, tmp_path: Path, unchecked: None) -> None:
    parcels[["size", "weight", "fee"]].to_csv(tmp_path / "parcels.csv", index=False)
    model = tmp_path / "model"
    told = run(
        "fit", tmp_path / "parcels.csv", "-o", model, "--components", 4, "--epochs", 3, "--type", "fee=float"
    )
    assert "wrote" in told
    described = run("describe", model)
    assert "category" in described
    assert "asked for" in described
    facts = json.loads(run("describe", model, "--json"))
    assert facts["columns"]["fee"]["kind"] == "float"
    assert len(facts["dependence"]) == 3
    assert "huge" in run("ask", model, "P(size | weight > 8)")


def test_fit_tells_what_is_left_out(parcels: Any, tmp_path: Path, unchecked: None) -> None:
    frame = parcels[["id", "weight", "size"]].assign(
        price=[f"item {1000 + i}" for i in range(400)], unit="kg"
    )
    frame.to_csv(tmp_path / "parcels.csv", index=False)
    told = run("fit", tmp_path / "parcels.csv", "-o", tmp_path / "m", "--components", 2, "--epochs", 1)
    assert "left out: 'id' (identifier: a different text in every row)" in told
    assert "left out: 'unit' (constant: one value only)" in told
    assert "'weight'" not in told
    error = run("ask", tmp_path / "m", "P(price | weight > 3)", code=2)
    assert "expected a column of the model, got 'price', which is left out (identifier" in error
    assert "  ^^^^^" in error


@pytest.mark.filterwarnings("default:given")
def test_answers_as_json_and_as_text(model: Path, table: kdm.KDMTable, unchecked: None) -> None:
    answer = json.loads(run("ask", model, "P(items | size = small)", "--json"))
    assert answer["mean"] == pytest.approx(table.query("items", given={"size": "small"}).mean)
    event = json.loads(run("ask", model, "P(fee > 0)", "--json"))
    assert 0 < event["probability"] < 1
    shown = run("ask", model, "P(weight | size = large)")
    assert "90 % interval" in shown
    assert "█" in shown
    assert "unlike the data" not in shown
    unusual = run("ask", model, "P(size | weight > 50)")
    assert "unlike the data" in unusual
    assert "between the least and the greatest of the data, got weight > 50" in " ".join(unusual.split())


def test_files_through_the_model(
    model: Path, csv: Path, tmp_path: Path, table: kdm.KDMTable, unchecked: None
) -> None:
    frame = pd.read_csv(csv)
    out = tmp_path / "out.parquet"
    run("predict", model, csv, "--target", "weight", "--interval", 0.9, "-o", out)
    predicted = pd.read_parquet(out)
    assert list(predicted) == ["weight", "weight low", "weight high"]
    assert (predicted["weight low"] <= predicted["weight high"]).all()
    run("predict", model, csv, "--target", "size", "--proba", "-o", out)
    assert list(pd.read_parquet(out)) == ["size", "P(small)", "P(large)", "P(huge)", "P(giant)"]
    run("impute", model, csv, "-o", tmp_path / "whole.csv")
    whole = pd.read_csv(tmp_path / "whole.csv")
    assert not whole.isna().any().any()
    assert list(whole) == list(frame)
    run("score", model, csv, "-o", tmp_path / "scores.csv")
    scores = pd.read_csv(tmp_path / "scores.csv")["log_prob"]
    assert scores.to_numpy() == pytest.approx(table.score_samples(csv), rel=1e-5)


def test_other_estimators(parcels: Any, csv: Path, tmp_path: Path, unchecked: None) -> None:
    """`score` and `predict` take every saved estimator."""
    rows = pd.read_csv(csv).dropna()
    rows.to_csv(csv, index=False)
    model = kdm.KDMClassifier("nonparametric", sigma=1.0).fit(rows[["weight", "items"]], rows["size"])
    kdm.save(model, tmp_path / "classifier")
    run("predict", tmp_path / "classifier", csv, "--proba", "--keep", "fee", "-o", tmp_path / "out.csv")
    found = pd.read_csv(tmp_path / "out.csv")
    assert found["fee"].tolist() == rows["fee"].tolist()
    assert found["y"].tolist() == model.predict(rows[["weight", "items"]]).tolist()
    assert list(found)[2:] == [f"P({label})" for label in model.classes_]
    run("score", tmp_path / "classifier", csv, "-o", tmp_path / "out.csv")
    wanted = model.score_samples(rows[["weight", "items"]])
    assert pd.read_csv(tmp_path / "out.csv")["log_prob"].to_numpy() == pytest.approx(wanted)
    kdm.save(model.joint_, tmp_path / "joint")
    assert "model: expected a saved estimator, got JointKDM" in run("score", tmp_path / "joint", csv, code=2)


def test_surprising_cells_of_a_file(
    model: Path, table: kdm.KDMTable, parcels: Any, tmp_path: Path, unchecked: None
) -> None:
    rows = parcels[["size", "weight", "fee"]].head(20).reset_index(drop=True)
    rows.loc[3, ["size", "weight"]] = ["huge", 1.0]
    rows.to_csv(tmp_path / "new.csv", index=False)
    cells = json.loads(run("explain", model, tmp_path / "new.csv", "--rows", 10, "--json"))
    wanted = table.explain(rows.head(10))
    assert [(c["row"], c["column"]) for c in cells] == [(c.row, c.column) for c in wanted]
    assert cells[0]["row"] == 3
    assert "as surprising or more" in run("explain", model, tmp_path / "new.csv")


def test_rows_to_standard_output(model: Path, unchecked: None) -> None:
    text = run("sample", model, "-n", 3, "--given", 'size = "huge"', "--seed", 1)
    lines = text.strip().splitlines()
    assert len(lines) == 4
    assert lines[0].startswith('"size"')
    assert all("huge" in line for line in lines[1:])
    assert run("sample", model, "-n", 3, "--given", 'size = "huge"', "--seed", 1) == text


def test_standard_input(model: Path, csv: Path) -> None:
    text = run("score", model, "-", input=csv.read_text())
    assert len(text.strip().splitlines()) == 21


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ask", "MODEL", "P(weight | sise = huge)"], "did you mean 'size'?"),
        (["ask", "MODEL", "P(weight"], "got its end"),
        (["ask", "nowhere", "P(weight)"], "a model that kdmkit.save wrote"),
        (["score", "MODEL", "nowhere.csv"], "no such file"),
        (["predict", "MODEL", "CSV", "--target", "prize"], "a column of the model, got 'prize'"),
        (["predict", "MODEL", "CSV", "--target", "size", "-o", "x.xlsx"], "ends in .csv or .parquet"),
        (["predict", "MODEL", "CSV"], "target: expected a column"),
        (["fit", "CSV", "-o", "x", "--type", "fee"], "expected column=kind, got 'fee'"),
        (
            ["fit", "CSV", "-o", "nowhere/x"],
            "--output: expected a file in a folder that exists, got nowhere/x",
        ),
        (["sample", "MODEL", "--given", "size = hug"], "did you mean 'huge'?"),
    ],
)
def test_errors_are_told_in_one_line(
    arguments: list[str], message: str, model: Path, csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(csv.parent)
    places = {"MODEL": str(model), "CSV": str(csv)}
    output = run(*[places.get(argument, argument) for argument in arguments], code=2)
    assert message in " ".join(output.split())
    assert "Traceback" not in output


def test_version() -> None:
    assert run("--version").strip() == f"kdmkit {kdm.__version__}"


def test_help_lists_all_kinds() -> None:
    told = run("fit", "--help")
    assert all(kind in told for kind in KINDS)


def test_a_schema_is_printed_edited_and_used(parcels: Any, tmp_path: Path, unchecked: None) -> None:
    parcels[["weight", "size", "items"]].to_csv(tmp_path / "parcels.csv", index=False)
    schema = json.loads(run("schema", tmp_path / "parcels.csv"))
    assert schema["columns"]["items"]["kind"] == "count"
    schema["columns"]["items"]["kind"] = "category"
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    options = ("--schema", tmp_path / "schema.json", "--types", "size=text", "--components", 2, "--epochs", 1)
    run("fit", tmp_path / "parcels.csv", "-o", tmp_path / "m", *options)
    columns = json.loads(run("describe", tmp_path / "m", "--json"))["columns"]
    assert {name: column["kind"] for name, column in columns.items()} == {
        **{"weight": "float", "size": "text", "items": "category"}
    }
    assert len(columns["weight"]["examples"]) == 2
    assert columns["weight"]["unsure"] == ""
    # A kind that agrees with the data keeps its reason.
    assert columns["weight"]["why"] == schema["columns"]["weight"]["why"] != "asked for"
    assert columns["items"]["why"] == columns["size"]["why"] == "asked for"


def test_fit_takes_what_missing_cells_and_rare_texts_are(tmp_path: Path, unchecked: None) -> None:
    lines = [
        f"{i % 7 or ''},{'abcd'[i % 4] if i % 9 else f'rare {i}'},came in {i} and left again a bit later on"
        for i in range(120)
    ]
    (tmp_path / "rows.csv").write_text("size,title,note\n" + "\n".join(lines))
    options = ("--missing", "unknown", "--texts", "pooled", "--min-level-rows", 10)
    run("fit", tmp_path / "rows.csv", "-o", tmp_path / "m", "--components", 2, "--epochs", 1, *options)
    table = kdm.load(tmp_path / "m")
    assert (table.missing, table.texts, table.min_level_rows) == ("unknown", "pooled", 10)
    drawn = table.sample(300, random_state=0, frame="pandas")
    assert drawn["size"].notna().all()
    assert set(drawn["title"]) == {*"abcd", "(other)"}
    assert set(drawn["note"]) == {"(other)"}
    defaults = tmp_path / "defaults"
    run("fit", tmp_path / "rows.csv", "-o", defaults, "--components", 2, "--epochs", 1)
    assert list(kdm.load(defaults).sample(5)) == ["size", "title"]
    assert "--texts" in run("fit", "rows.csv", "-o", "m", "--texts", "some", code=2)
