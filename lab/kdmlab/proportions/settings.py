"""The settings of the methods of Table 2, and the paper's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

Interval = tuple[float, float]

INTERVALS: tuple[Interval, ...] = ((0.0, 0.5), (0.5, 1.0))
BAG_SIZES = (8, 32, 128, 512)

#: Components and learning rate of the KDM without an encoder, from the paper's appendix, by bag size.
APPENDIX: dict[tuple[str, Interval], dict[int, tuple[int, float]]] = {
    ("adult", (0.0, 0.5)): {8: (32, 0.005), 32: (16, 0.001), 128: (512, 0.001), 512: (64, 0.005)},
    ("adult", (0.5, 1.0)): {8: (16, 0.005), 32: (64, 0.001), 128: (128, 0.001), 512: (64, 0.005)},
    ("magic", (0.0, 0.5)): {8: (256, 0.005), 32: (128, 0.005), 128: (128, 0.001), 512: (256, 0.001)},
    ("magic", (0.5, 1.0)): {8: (16, 0.005), 32: (128, 0.005), 128: (32, 0.005), 512: (128, 0.001)},
}

#: AUC in the paper's table, by bag size.
PAPER: dict[tuple[str, Interval], dict[str, dict[int, float]]] = {
    ("adult", (0.0, 0.5)): {
        "LMMCM": {8: 0.8728, 32: 0.8693, 128: 0.8669, 512: 0.8674},
        "KDM": {8: 0.8797, 32: 0.8786, 128: 0.8757, 512: 0.8697},
    },
    ("adult", (0.5, 1.0)): {
        "LMMCM": {8: 0.8584, 32: 0.8644, 128: 0.8601, 512: 0.8500},
        "KDM": {8: 0.8810, 32: 0.8702, 128: 0.8666, 512: 0.8601},
    },
    ("magic", (0.0, 0.5)): {
        "LMMCM": {8: 0.8909, 32: 0.8799, 128: 0.8753, 512: 0.8734},
        "KDM": {8: 0.8957, 32: 0.8766, 128: 0.8709, 512: 0.8578},
    },
    ("magic", (0.5, 1.0)): {
        "LMMCM": {8: 0.8911, 32: 0.8790, 128: 0.8684, 512: 0.8567},
        "KDM": {8: 0.8957, 32: 0.8793, 128: 0.8709, 512: 0.8578},
    },
}

_COMMITTEE: dict[str, tuple[float, ...]] = {"dropout": (0.1, 0.3, 0.5), "input_dropout": (0.0, 0.2)}
_ENCODED: dict[str, tuple[float, ...]] = {**_COMMITTEE, "max_epochs": (8, 15)}
#: What `--search` compares on held-out bags. `sigma_factor` is the first bandwidth in mean distances between
#: rows, `travelled` is epochs times learning rate.
GRID: dict[str, dict[str, tuple[float, ...]]] = {
    "kdm": {"sigma_factor": (1.0, 2.0), "travelled": (0.4,)},
    "kdm-encoder": _ENCODED,
    "kdm-algorithm-4": {"sigma_factor": (1.0, 2.0), "travelled": (0.1, 0.4)},
    "network-likelihood": _ENCODED,
}

_LONGER = tuple(
    {"dropout": dropout, "input_dropout": inputs, "max_epochs": 30}
    for dropout, inputs in product(*_COMMITTEE.values())
)
#: Compared as well for bags of 8, where more epochs help: for `kdm-encoder` with the best of its grid only.
FURTHER: dict[tuple[str, str], tuple[dict[str, float], ...]] = {
    ("kdm-encoder", "adult"): ({"dropout": 0.5, "input_dropout": 0.2, "max_epochs": 30},),
    ("kdm-encoder", "magic"): ({"dropout": 0.1, "input_dropout": 0.0, "max_epochs": 30},),
    ("network-likelihood", "adult"): _LONGER,
    ("network-likelihood", "magic"): _LONGER,
}

#: The best of the grid by data set.
CHOSEN: dict[str, dict[str, dict[str, float]]] = {
    "kdm": {
        "adult": {"sigma_factor": 2.0, "travelled": 0.4},
        "magic": {"sigma_factor": 1.0, "travelled": 0.4},
    },
    "kdm-encoder": {
        "adult": {"dropout": 0.5, "input_dropout": 0.2, "max_epochs": 15},
        "magic": {"dropout": 0.1, "input_dropout": 0.0, "max_epochs": 15},
    },
    "kdm-algorithm-4": {
        "adult": {"sigma_factor": 2.0, "travelled": 0.4},
        "magic": {"sigma_factor": 1.0, "travelled": 0.4},
    },
    "network-likelihood": {
        "adult": {"dropout": 0.5, "input_dropout": 0.2, "max_epochs": 8},
        "magic": {"dropout": 0.1, "input_dropout": 0.0, "max_epochs": 8},
    },
}

#: The best by data set for bags of 8, where it is another one.
CHOSEN_FOR_8: dict[str, dict[str, dict[str, float]]] = {
    "kdm-encoder": {"magic": FURTHER["kdm-encoder", "magic"][0]},
    "network-likelihood": {
        "adult": {"dropout": 0.1, "input_dropout": 0.0, "max_epochs": 15},
        "magic": {"dropout": 0.1, "input_dropout": 0.0, "max_epochs": 15},
    },
}

#: Rows with the settings of another one, which were searched for that one.
AS = {"kdm-refined": "network-likelihood", "network-refined": "network-likelihood"}

METHODS = (
    "kdm",
    "kdm-encoder",
    "kdm-algorithm-4",
    "kdm-refined",
    "network-likelihood",
    "network-refined",
    "lmmcm",
    "network",
    "lmmcm-standardized",
)
_EPOCHS = 200
# The largest bags whose second phase learns from exact counts; larger ones have the likelihood of rows.
_COUNTED = 8
# The learning rate of the second phase.
_SECOND_RATE = {"adult": 9e-4, "magic": 3e-3}
# Rows per step; whole bags where a loss needs them.
_ROWS = 256


def settings(
    method: str, dataset: str, interval: Interval, bag_size: int, choice: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """The settings of a method in a cell of the table; `choice` is in place of what the search found."""
    if method == "lmmcm":
        return {}
    if method == "lmmcm-standardized":
        return {"standardize": True}
    if method == "network":
        return {"hidden": 64, "learning_rate": 3e-3, "max_epochs": 30, "batch_size": _bags(bag_size)}
    choice = _chosen(method, dataset, bag_size) if choice is None else choice
    if method == "kdm-encoder":
        return {"n_components": 64, "members": 4, "batch_size": _ROWS, **choice}
    if method in ("network-likelihood", *AS):
        counted = method in AS and bag_size <= _COUNTED
        phase = {"loss": "counts" if counted else "likelihood", "learning_rate": _SECOND_RATE[dataset]}
        head = {"n_components": 16, "sigma_factor": 0.25} if method == "kdm-refined" else {}
        return {**phase, **head, "members": 4, "batch_size": _ROWS, **choice}
    components, rate = APPENDIX[dataset, interval][bag_size]
    plain = {
        "n_components": components,
        "learning_rate": rate,
        "max_epochs": min(_EPOCHS, round(choice["travelled"] / rate)),
        "sigma_factor": choice["sigma_factor"],
    }
    if method == "kdm":
        return {"loss": "likelihood", **plain, "batch_size": _ROWS, "noise": 0.2}
    return {"loss": "proportions", **plain, "batch_size": _bags(bag_size)}


def _chosen(method: str, dataset: str, bag_size: int) -> Mapping[str, float]:
    """The settings that are best in the search."""
    method = AS.get(method, method)
    smallest = CHOSEN_FOR_8.get(method, {})
    return smallest[dataset] if bag_size == 8 and dataset in smallest else CHOSEN[method][dataset]


def _bags(size: int) -> int:
    return max(1, _ROWS // size)
