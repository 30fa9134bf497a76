"""Arrow batches through densities, classifiers and regressors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kdmkit as kdm

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

NAMES = ["width", "height"]


@pytest.fixture(scope="module")
def frame() -> Any:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(40, 2)), columns=NAMES)
    return frame.assign(id=np.arange(40), kind=np.where(frame["width"] > 0, "wide", "narrow"))


@pytest.fixture(scope="module")
def models(frame: Any) -> dict[str, Any]:
    X, few = frame[NAMES], {"n_components": 4, "max_epochs": 1, "random_state": 0}
    pair = frame[NAMES].to_numpy() @ [[1.0, 2.0], [0.5, -1.0]]
    return {
        "density": kdm.KDMDensity(sigma=1.0).fit(X),
        "classifier": kdm.KDMClassifier("nonparametric", sigma=1.0).fit(X, frame["kind"]),
        "regressor": kdm.KDMRegressor(trend=None, **few).fit(X, pair[:, 0]),
        "outputs": kdm.KDMRegressor(trend=None, **few).fit(X.to_numpy(), pair),
    }


@pytest.fixture(scope="module")
def batches(frame: Any) -> list[Any]:
    """Columns in another order than that of the fit, and others beside them."""
    table = pa.Table.from_pandas(frame[["kind", "height", "id", "width"]], preserve_index=False)
    return table.to_batches(max_chunksize=15)


def together(tables: Any) -> Any:
    return pa.concat_tables(tables).to_pandas()


@pytest.mark.parametrize("name", ["density", "classifier", "regressor"])
def test_scores_of_columns_found_by_name(
    models: Any, frame: Any, batches: Any, name: str, unchecked: None
) -> None:
    result = list(models[name].stream("score", batches, keep=["id", "kind"]))
    assert [table.num_rows for table in result] == [15, 15, 10]
    assert together(result).columns.tolist() == ["id", "kind", "log_prob"]
    assert together(result)["id"].tolist() == frame["id"].tolist()
    np.testing.assert_allclose(
        together(result)["log_prob"], models[name].score_samples(frame[NAMES]), rtol=1e-6
    )


def test_bounded_scores(models: Any, batches: Any, unchecked: None) -> None:
    exact = together(models["density"].stream("score", batches))["log_prob"]
    bounded = together(models["density"].stream("score", batches, rtol=1e-3))["log_prob"]
    assert (exact - bounded).between(-1e-9, 1e-3).all()


def test_classes(models: Any, frame: Any, batches: Any, unchecked: None) -> None:
    model = models["classifier"]
    assert together(model.stream("predict", batches)).columns.tolist() == ["y"]
    result = together(model.stream("predict", batches, target="guess", proba=True))
    assert result.columns.tolist() == ["guess", "P(narrow)", "P(wide)"]
    assert result["guess"].tolist() == model.predict(frame[NAMES]).tolist()
    np.testing.assert_allclose(result.iloc[:, 1:], model.predict_proba(frame[NAMES]), atol=1e-6)


def test_regression(models: Any, frame: Any, batches: Any, unchecked: None) -> None:
    model, X = models["regressor"], frame[NAMES]
    asked = {"std": True, "interval": 0.8, "quantiles": [0.1, 0.5]}
    result = together(model.stream("predict", batches, target="area", **asked))
    names = ["area", "area std", "area low", "area high", "area q0.1", "area q0.5"]
    assert result.columns.tolist() == names
    mean, std = model.predict(X, return_std=True)
    wanted = [mean, std, *model.predict_interval(X, 0.8).T, *model.predict_quantiles(X, [0.1, 0.5]).T]
    np.testing.assert_allclose(result, np.stack(wanted, 1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result["area low"], result["area q0.1"], atol=1e-9)


def test_several_outputs_and_columns_that_the_caller_names(
    models: Any, frame: Any, batches: Any, unchecked: None
) -> None:
    """This one was fitted to an array."""
    model = models["outputs"]
    result = together(model.stream("predict", batches, columns=NAMES, interval=0.5))
    assert result.columns.tolist() == ["y 0", "y 0 low", "y 0 high", "y 1", "y 1 low", "y 1 high"]
    X = frame[NAMES].to_numpy()
    np.testing.assert_allclose(result[["y 0", "y 1"]], model.predict(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result["y 1 high"], model.predict_interval(X, 0.5)[:, 1, 1], atol=1e-5)
    (all_columns,) = model.stream("predict", [frame[NAMES]])
    np.testing.assert_allclose(all_columns["y 1"], result["y 1"], rtol=1e-6)
    with pytest.raises(ValueError, match=r"batch: expected 2 columns, .* got 4: \['kind'"):
        next(model.stream("predict", batches))


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32()), pa.list_(pa.float64(), 2), pa.large_list(pa.float64())]
)
def test_one_column_of_lists(models: Any, frame: Any, kind: Any, unchecked: None) -> None:
    rows = frame[NAMES].to_numpy().astype(np.float32)
    table = pa.table({"id": frame["id"], "embedding": pa.array(rows.tolist(), kind)}).slice(3)
    (result,) = models["density"].stream("score", [table], columns=["embedding"])
    wanted = models["density"].score_samples(pd.DataFrame(rows[3:], columns=NAMES))
    np.testing.assert_allclose(result["log_prob"], wanted, rtol=1e-5)


def test_files(models: Any, frame: Any, tmp_path: Path, unchecked: None) -> None:
    wanted = models["density"].score_samples(frame[NAMES])
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.to_parquet(tmp_path / "rows.parquet")
    for name in ("rows.csv", "rows.parquet"):
        result = list(models["density"].stream("score", tmp_path / name, batch_size=25))
        assert [table.num_rows for table in result] == [25, 15]
        np.testing.assert_allclose(together(result)["log_prob"], wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "what", "options"),
    [
        ("density", "score", {}),
        ("classifier", "predict", {"proba": True}),
        ("regressor", "predict", {"interval": 0.9, "std": True}),
    ],
)
def test_a_batch_without_rows(
    models: Any, batches: Any, name: str, what: str, options: Any, unchecked: None
) -> None:
    none, some = models[name].stream(what, [batches[0].slice(0, 0), batches[0]], keep=["id"], **options)
    assert none.num_rows == 0
    assert none.schema == some.schema


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"height": None}, r"batch: expected one column 'height', got \['width', 'heigth'\] \(did you mean"),
        ({"width": ["1", "2"]}, r"batch\['width'\]: expected numbers, got cells of the type (large_)?string"),
        ({"width": [1.0, None]}, r"batch\['width'\]: expected no missing cells, got 1 missing, .* row 1"),
        ({"height": [np.inf, 1.0]}, r"batch\['height'\]: expected finite numbers, got inf in row 0"),
        ({"height": [1.0, np.nan]}, r"batch\['height'\]: expected finite numbers, got nan in row 1"),
        ({"width": [None, None]}, r"batch\['width'\]: expected no missing cells, got 2 missing"),
    ],
)
def test_errors_name_the_column(models: Any, changes: Any, message: str) -> None:
    columns = {"width": [1.0, 2.0], "height": [1.0, 2.0]} | changes
    if columns["height"] is None:
        columns = {"width": [1.0, 2.0], "heigth": [1.0, 2.0]}
    with pytest.raises(ValueError, match=message):
        next(models["density"].stream("score", [pa.table(columns)]))


def test_numbers_of_all_types(models: Any, unchecked: None) -> None:
    table = pa.table({"width": [True, False], "height": pa.array([1, 2]).cast(pa.decimal128(21, 2))})
    (result,) = models["density"].stream("score", [table])
    wanted = models["density"].score_samples(pd.DataFrame({"width": [1.0, 0.0], "height": [1.0, 2.0]}))
    np.testing.assert_allclose(result["log_prob"], wanted)


def test_bad_arguments(models: Any, batches: Any) -> None:
    density = models["density"]
    with pytest.raises(ValueError, match="what: expected one of 'score', got 'predict'"):
        density.stream("predict", batches)
    with pytest.raises(TypeError, match=r"options of 'predict': expected some of \['target', 'p.*got 'rtol'"):
        models["classifier"].stream("predict", batches, rtol=0.1)
    with pytest.raises(ValueError, match="data: expected a path"):
        density.stream("score")
    with pytest.raises(TypeError, match="keep: expected a list of names, got 'id'"):
        density.stream("score", batches, keep="id")
    with pytest.raises(ValueError, match=r"keep: expected columns with other names .* got 'kind'"):
        next(models["classifier"].stream("predict", batches, target="kind", keep=["kind"]))
    with pytest.raises(ValueError, match="keep: expected one column 'nr'"):
        next(density.stream("score", batches, keep=["nr"]))
    with pytest.raises(ValueError, match="interval: expected 0 < interval < 1"):
        next(models["regressor"].stream("predict", batches, interval=2))
