"""Decision regions: colours are probabilities, lines enclose points."""

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb

import kdmkit as kdm
from helpers import normal
from kdmkit.plotting import plot_decision_regions
from kdmkit.plotting._canvas import MANY, PALETTE, class_colors

X = normal(60, 2, seed=0)
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long()


def joint(x=X, y=None, kernel=None):
    y = {"y": torch.eye(3, dtype=torch.float64)[Y]} if y is None else y
    return kdm.JointKDM({"x": x, **y}, None, {"x": kernel or kdm.RBF(0.5), "y": kdm.Cosine()})


def grid(ax, n):
    x0, x1, y0, y1 = ax.images[0].get_extent()
    return np.stack(np.meshgrid(np.linspace(x0, x1, n), np.linspace(y0, y1, n)), -1)


def test_colours_blend_by_probability():
    rho = joint()
    ax = plot_decision_regions(rho, X, Y, n_grid=40)
    probs = rho.infer(x=torch.as_tensor(grid(ax, 40))).probs.numpy()
    colors = np.array([to_rgb(color) for color in PALETTE[:3]])
    np.testing.assert_allclose(ax.images[0].get_array(), 0.5 + 0.5 * probs @ colors, atol=1e-12)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("$x_1$", "$x_2$")


def test_lines_of_log_density_enclose_fractions_of_the_points():
    rho = joint()
    ax = plot_decision_regions(rho, X, Y, levels=(0.5, 0.9), n_grid=40)
    (lines,) = [part for part in ax.collections if hasattr(part, "levels")]
    inside = rho.marginal("x").log_prob(X).numpy()[:, None] > lines.levels
    np.testing.assert_allclose(sorted(inside.mean(0)), [0.5, 0.9], atol=1 / 60)
    assert {text.get_text() for text in ax.texts} <= {"50%", "90%"}
    without = plot_decision_regions(rho, X, Y, levels=(), n_grid=20)
    assert not [part for part in without.collections if hasattr(part, "levels")]


def test_points_are_shown_by_class_with_a_legend():
    ax = plot_decision_regions(joint(), X, Y, classes=["a", "b", "c"], levels=(), n_grid=10)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b", "c"]
    for i, dots in enumerate(ax.collections):
        np.testing.assert_allclose(dots.get_offsets(), X[Y == i])
    assert plot_decision_regions(joint(), X, n_grid=10).get_legend() is None


def test_functions_stand_in_for_a_joint():
    asked = []

    def predict(points):
        asked.append(points)
        return np.full((len(points), 2), 0.5)

    names = np.array(["yes", "no"])
    y = names[(X[:, 0] > 0).long().numpy()]
    ax = plot_decision_regions(
        predict, X.numpy(), y, classes=names, log_prob=lambda x: -(x**2).sum(1), n_grid=10, levels=(0.8,)
    )
    np.testing.assert_allclose(asked[0], grid(ax, 10).reshape(-1, 2))
    (lines,) = [part for part in ax.collections if hasattr(part, "levels")]
    assert (-(X**2).sum(1).numpy() > lines.levels[0]).mean() == pytest.approx(0.8)
    dots = next(part for part in ax.collections if part.get_label() == "no")
    np.testing.assert_allclose(dots.get_offsets(), X[y == "no"])


def test_compact_kernels_have_places_without_density():
    ax = plot_decision_regions(joint(kernel=kdm.Epanechnikov(0.3)), X, Y, n_grid=40)
    assert np.isfinite(ax.images[0].get_array()).all()


def test_colours_differ_for_any_number_of_classes():
    for n in (2, 6, 7, 10, 25):
        assert len({to_rgb(color) for color in class_colors(n)}) == n
    assert class_colors(10) == MANY


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((3, X, Y), TypeError, "model: expected a JointKDM or a function .*, got int|parameter 'model'"),
        ((joint(), X[:, :1], Y), ValueError, r"X: expected shape \(n, 2\), got \(60, 1\)"),
        ((joint(), X, Y[:5]), ValueError, r"y: expected shape \(60,\), a class for each point, got \(5,\)"),
        ((joint(), X, Y + 1), ValueError, r"y: expected classes among \[0, 1, 2\], got 3"),
        (
            (joint(normal(60, 3, seed=0)), X, Y),
            ValueError,
            "model: expected a two-dimensional x and a discrete y",
        ),
        ((lambda x: x[:5], X, Y), ValueError, r"model\(X\): expected shape \(100, n\), got \(5, 2\)"),
        (
            (kdm.JointKDM({"z": X, "y": X}, None, {"z": kdm.RBF(1.0), "y": kdm.RBF(1.0)}), X),
            ValueError,
            "model: expected one joint of the variables x and y",
        ),
    ],
)
def test_bad_input_is_named(arguments, error, message):
    with pytest.raises(error, match=message):
        plot_decision_regions(*arguments, n_grid=10)


def test_bad_classes_are_named():
    with pytest.raises(ValueError, match="classes: expected 3 names, one for each probability, got 2"):
        plot_decision_regions(joint(), X, Y, classes=["a", "b"], n_grid=10)
    labels = np.array(["a", "b", "d"])[Y]
    with pytest.raises(ValueError, match=r"y: expected classes among \['a', 'b', 'c'\], got 'd'"):
        plot_decision_regions(joint(), X, labels, classes=["a", "b", "c"], n_grid=10)
