"""Bars of probabilities and matrices."""

import numpy as np
import pytest

from kdmkit.plotting import plot_bars, plot_matrix


def test_bars_have_the_lengths_of_the_probabilities() -> None:
    ax = plot_bars({"a": 0.25, "b": 0.75}, title="P(x)", x="x")
    assert [bar.get_width() for bar in ax.patches] == [0.25, 0.75]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]
    assert ax.get_title(loc="left") == "P(x)"
    with pytest.raises(ValueError, match="shares: expected one or more probabilities, got none"):
        plot_bars({})


def test_linked_entries_of_a_matrix_are_framed() -> None:
    values = np.array([[0.0, 0.5, 0.1], [0.5, 0.0, 0.2], [0.1, 0.2, 0.0]])
    ax = plot_matrix(values, ["a", "b", "c"], links=[("a", "b")], label="nats")
    assert sorted(patch.get_xy() for patch in ax.patches) == [(-0.5, 0.5), (0.5, -0.5)]
    shown = ax.images[0].get_array()
    assert shown.mask.tolist() == np.eye(3, dtype=bool).tolist()
    with pytest.raises(ValueError, match=r"values: expected shape \(2, 2\), got \(3, 3\)"):
        plot_matrix(values, ["a", "b"])
