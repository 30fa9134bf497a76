"""Predictive bands are quantiles, shadings are densities."""

import numpy as np
import pytest
import torch

import kdmkit as kdm
from helpers import CONTINUOUS, normal, real, simplex
from kdmkit.plotting import plot_density_1d, plot_predictive_bands

GRID = torch.linspace(-1, 1, 30, dtype=torch.float64)


def prediction(family="rbf"):
    return kdm.KDM(normal(6, 1, seed=0), simplex(30, 6, seed=1), CONTINUOUS[family](0.5))


def labels(ax):
    return ax.get_legend_handles_labels()[1]


@pytest.mark.parametrize("family", CONTINUOUS)
def test_bands_are_quantiles_and_the_line_is_the_mean(family):
    rho = prediction(family)
    ax = plot_predictive_bands(GRID, rho, levels=(0.5, 0.9))
    assert labels(ax) == ["90% interval", "50% interval", "mean"]
    for band, level in zip(ax.collections, (0.9, 0.5), strict=True):
        corners = {tuple(corner) for corner in np.round(band.get_paths()[0].vertices, 9)}
        for q in ((1 - level) / 2, (1 + level) / 2):
            edge = np.stack([GRID, rho.icdf(torch.full((30,), q, dtype=torch.float64)).squeeze(-1)], -1)
            assert {tuple(corner) for corner in np.round(edge, 9)} <= corners
    np.testing.assert_allclose(ax.lines[0].get_xdata(), GRID)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), rho.mean.squeeze(-1))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x", "y")


def test_inputs_may_come_in_any_order():
    rho, order = prediction(), torch.randperm(30, generator=torch.Generator().manual_seed(0))
    shuffled = kdm.KDM(rho.components, rho.weights[order], rho.kernel)
    ax = plot_predictive_bands(GRID[order, None], shuffled)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), rho.mean.squeeze(-1))


def test_data_are_shown():
    x, y = normal(20, 1, seed=3), normal(20, seed=4)
    ax = plot_predictive_bands(GRID, prediction(), data=(x, y.numpy()))
    (dots,) = [line for line in ax.lines if line.get_label() == "data"]
    np.testing.assert_allclose(dots.get_xdata(), x.squeeze(-1))
    np.testing.assert_allclose(dots.get_ydata(), y)


@pytest.mark.parametrize("family", CONTINUOUS)
def test_the_shading_is_the_density_relative_to_its_maximum(family):
    rho = prediction(family)
    ax = plot_predictive_bands(GRID, rho, show_density=True, n_grid=80)
    (mesh,) = ax.collections
    y = torch.as_tensor(mesh.get_coordinates()[:, 0, 1])
    density = rho.log_prob(y.reshape(-1, 1, 1)).exp()
    assert density.shape == (80, 30)
    np.testing.assert_allclose(mesh.get_array().reshape(80, 30), density / density.amax(0), atol=1e-12)
    assert labels(ax) == ["mean"]


def test_works_for_an_inferred_kdm_in_float32():
    joint = kdm.JointKDM(
        {"x": normal(50, 1, seed=0).float(), "y": normal(50, 1, seed=1).float()},
        None,
        {"x": kdm.RBF(0.3), "y": kdm.RBF(0.2)},
    )
    rho = joint.infer(x=GRID.float().unsqueeze(-1))
    for shade in (False, True):
        ax = plot_predictive_bands(GRID, rho, show_density=shade)
        np.testing.assert_allclose(ax.lines[-1].get_ydata(), rho.mean.squeeze(-1), rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((GRID[:7], prediction()), {}, r"rho: expected a batch of shape \(7,\), got \(30,\)"),
        ((torch.zeros(30, 2), prediction()), {}, r"x: expected shape \(n,\), got \(30, 2\)"),
        ((GRID, prediction(), (0.5, 1.0)), {}, "levels: expected numbers strictly between 0 and 1"),
        (
            (GRID, prediction()),
            {"data": (real([0.0]), real([0.0, 1.0]))},
            r"data\[1\]: expected shape \(1,\)",
        ),
    ],
)
def test_bad_input_is_named(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        plot_predictive_bands(*arguments, **options)


def test_data_have_two_parts():
    # Where annotations are checked at run time, they complain first.
    with pytest.raises(
        (ValueError, TypeError), match=r"data: expected a pair \(X, y\), got 1|parameter 'data'"
    ):
        plot_predictive_bands(GRID, prediction(), data=(GRID,))


def test_a_layer_in_training_can_be_drawn():
    layer = kdm.nn.JointLayer(1, 1, 5, out_kernel=kdm.RBF(0.3))
    rho = layer(GRID.float().unsqueeze(-1))
    assert rho.mean.requires_grad
    for shade in (False, True):
        plot_predictive_bands(GRID, rho, show_density=shade)
    plot_density_1d(layer.joint().marginal("y"))
