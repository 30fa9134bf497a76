"""Real frames to ask about: those of scikit-learn, of the library, and of a data folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from sklearn import datasets

from kdmkit.explore.page_models import penguins
from laws.frames import LawFrame, comparable, subject_of

_MOST_ROWS = 4000
_ADULT = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
]


def law_frame(name: str, frame: Any) -> LawFrame:
    """A real frame with its columns as subjects."""
    frame = frame.sample(min(len(frame), _MOST_ROWS), random_state=0).reset_index(drop=True)
    subjects = []
    for column in frame:
        series = frame[column]
        is_text = series.dtype == object or isinstance(series.dtype, pd.StringDtype)
        kind = "level" if is_text else "ordinal" if series.dtype == bool else "number"
        subjects.append(subject_of(series, kind, name))
    return LawFrame(name, frame, tuple(subjects), comparable(subjects))


def real_frames(data_dir: Path | None) -> Iterator[LawFrame]:
    """Tables of scikit-learn, and those of the data folder."""
    for name in ("wine", "diabetes", "breast_cancer"):
        data = getattr(datasets, f"load_{name}")(as_frame=True).frame
        yield law_frame(name, data)
    columns = pd.DataFrame(penguins())
    yield law_frame("penguins", columns)
    if data_dir is None:
        return
    adult = data_dir / "uci" / "adult.data.gz"
    if adult.exists():
        frame = pd.read_csv(adult, names=_ADULT, skipinitialspace=True, na_values="?")
        yield law_frame("Adult", frame)
    shoppers = data_dir / "tables" / "online_shoppers_intention.csv.gz"
    if shoppers.exists():
        yield law_frame("Shoppers", pd.read_csv(shoppers))
