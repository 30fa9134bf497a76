"""The table of held-out likelihoods."""

import numpy as np
from sklearn.neighbors import KernelDensity

from kdmlab import density


def rows(values: dict[str, float]) -> list[dict]:  # type: ignore[type-arg]
    """Two folds of every method on one data set."""
    here = {"machine": {"cpu": "x", "cores": 1, "threads": 1, "accelerator": "none"}, "versions": {}}
    return [
        {
            "dataset": "iris",
            "fold": fold,
            "method": name,
            "log_likelihood": value + step,
            "seconds": 1.0,
            "finished": "2026-01-01T00:00:00+00:00",
            **here,
        }
        for name, value in values.items()
        for fold, step in enumerate((-0.25, 0.25))
    ]


def test_report_compares_with_the_best_peer() -> None:
    values = {method.name: -float(i) for i, method in enumerate(density.METHODS)}
    table = dict(density.report(rows(values), 2).rows)  # type: ignore[arg-type]
    peers = [method.name for method in density.METHODS if method.peer]
    best = max(values[name] for name in peers)
    assert table["KDM nonparametric"] == f"{values['KDM nonparametric']:.3f}"
    assert table["KDM likelihood − best peer"] == f"{values['KDM likelihood'] - best:+.3f}"
    assert not any(name.startswith(peer) and name.endswith("best peer") for name in table for peer in peers)


def test_every_method_meets_every_fold() -> None:
    keys = [task.key for task in density.tasks(3)]
    assert len(keys) == 4 * 3 * len(density.METHODS)
    assert len({str(key) for key in keys}) == len(keys)


def test_scaling_is_by_training_rows() -> None:
    rng = np.random.default_rng(0)
    method = density.Method("kde", KernelDensity(), {"bandwidth": [0.2, 0.5]}, peer=True)
    train, test = rng.normal(size=(60, 2)), rng.normal(size=(20, 2))
    result = density.held_out(method, train, test)
    assert result["chosen"]["bandwidth"] in (0.2, 0.5)
    moved = density.held_out(method, 100 * train + 7, 100 * test + 7)
    assert np.isclose(result["log_likelihood"], moved["log_likelihood"])
    assert method.settings["bandwidth"] == [0.2, 0.5]
