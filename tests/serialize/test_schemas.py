"""Schemas of tables in model files: every entry is checked, whatever it is replaced by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import kdmkit as kdm
from estimators.table.frames_of_all_kinds import pandas_frame
from kdmkit.estimators.table.schema import Schema
from kdmkit.serialize.schemas import check_schema
from serialize.hostile import changed, contents, places, write

N = 30
VALUES: list[Any] = [{"a": 1}, ["RBF"], "RBF", 0, -1, 2.5, 1e308, None, True, [], [[1]], [1.0, -5.0], ...]


def written_frame() -> Any:
    """Columns whose texts write numbers and times."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "price": [f"${p:,.2f}" for p in rng.gamma(3, 1000, N)],
            "part": ["none" if i % 15 == 0 else f"{i}.5 km" if i % 7 else "far" for i in range(N)],
            "clock": [f"{i % 24}:30" for i in range(N)],
            "day": [f"2024-01-{i % 28 + 1:02}" for i in range(N)],
            "level": rng.choice(["a", "b", "-"], N),
        }
    )


@pytest.mark.parametrize("make", [pandas_frame, written_frame])
def test_every_entry_is_checked(make: Any) -> None:
    """A changed description is refused, or it is one of a schema that decodes what it encodes."""
    frame = make()
    config = json.loads(json.dumps(Schema.from_frame(frame).config()))
    check_schema(config)
    outcomes = []
    for path, value in places(config):
        for new in VALUES:
            if type(new) is type(value) and isinstance(new, str | bool):
                continue  # another name, or another choice
            error = refusal(changed(config, path, new))
            assert error is None or "expected" in error, (path, new, error)
            outcomes.append(error is not None)
    assert np.mean(outcomes) > 0.8


def refusal(config: Any) -> str | None:
    """The error of a description; None if it is one of a schema."""
    try:
        check_schema(config)
        Schema.from_config(config)
    except (ValueError, TypeError, KeyError) as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("path", "new", "text"),
    [
        (
            ("columns", 0, "codec", "part", "scale"),
            0,
            r"schema.columns\[0\].codec.part.scale: expected a number > 0",
        ),
        (
            ("columns", 0, "missing"),
            "RBF",
            r"schema.columns\[0\].missing: expected a number from 0 to 1, got 'RBF'",
        ),
        (("columns", 0, "codec", "codec"), "os.system", "expected one of numbers, levels"),
        (("columns", 0, "storage", "base"), 3, "storage.base"),
        (("labels",), [], "labels"),
    ],
)
def test_model_files_with_bad_schemas(tmp_path: Path, path: tuple[Any, ...], new: Any, text: str) -> None:
    x = np.random.default_rng(0).normal(size=40)
    kdm.save(kdm.KDMTable(n_components=2, max_epochs=1, random_state=0).fit({"x": x}), tmp_path / "model")
    config, tensors = contents(tmp_path / "model")
    write(tmp_path / "bad", changed(config, ("schema", *path), new), tensors)
    with pytest.raises(ValueError, match=text):
        kdm.load(tmp_path / "bad")
