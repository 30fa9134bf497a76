"""Fits that are killed, and go on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kdmkit as kdm
from estimators.problems import bags, blobs
from kdmkit.training.checkpoint import Checkpoint

X, y = blobs(150)


def fit_bags(model: Any) -> Any:
    return model.fit(*bags(150)[:3])


FITS: dict[str, tuple[Callable[[Path | None], Any], Callable[[Any], Any]]] = {
    "density": (
        lambda path: kdm.KDMDensity("likelihood", max_epochs=6, checkpoint_dir=path, random_state=0),
        lambda model: model.fit(X),
    ),
    "classifier": (
        lambda path: kdm.KDMClassifier(
            encoder="mlp", decoder="mlp", max_epochs=4, checkpoint_dir=path, random_state=0
        ),
        lambda model: model.fit(X, y),
    ),
    "classifier with all phases": (
        lambda path: kdm.KDMClassifier(
            encoder="mlp",
            decoder="mlp",
            head_epochs=2,
            averaging=0.3,
            max_epochs=2,
            checkpoint_dir=path,
            random_state=0,
        ),
        lambda model: model.fit(X, y),
    ),
    "regressor": (
        lambda path: kdm.KDMRegressor(max_epochs=6, checkpoint_dir=path, random_state=0),
        lambda model: model.fit(X, y),
    ),
    "proportions": (
        lambda path: kdm.KDMProportionClassifier(
            encoder="mlp", max_epochs=4, checkpoint_dir=path, random_state=0
        ),
        fit_bags,
    ),
}


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("epochs", [1, 3, 5, 9])
def test_a_killed_fit_ends_where_the_whole_one_ends(
    name: str, epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, fit = FITS[name]
    # With checkpoints: on a CPU other fits write out their gradients, which rounds differently.
    whole = fit(make(tmp_path / "whole"))
    saves = 0
    save = Checkpoint.save

    def killed(self: Checkpoint, state: dict[str, Any]) -> None:
        nonlocal saves
        if saves == epochs:
            raise KeyboardInterrupt
        saves += 1
        save(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", killed)
        model = make(tmp_path)
        try:
            fit(model)
        except KeyboardInterrupt:
            assert not hasattr(model, "module_")
    resumed = fit(make(tmp_path))
    assert np.array_equal(resumed.score_samples(X), whole.score_samples(X))
    assert resumed.history_ == whole.history_
    if "classifier" in name:
        assert np.array_equal(resumed.sample(3, y=0), whole.sample(3, y=0))
