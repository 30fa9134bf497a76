"""Densities in one and two dimensions: what is drawn is the density."""

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

import kdmkit as kdm
from helpers import CONTINUOUS, normal, seeded, simplex
from kdmkit.plotting import plot_density_1d, plot_density_2d
from kdmkit.plotting.densities import _thresholds


def labels(ax):
    return ax.get_legend_handles_labels()[1]


@pytest.mark.parametrize("family", CONTINUOUS)
def test_the_curve_is_the_density(family):
    rho = kdm.KDM(normal(5, 1, seed=0), simplex(5, seed=1), CONTINUOUS[family](0.7))
    ax = plot_density_1d(rho)
    x, y = ax.lines[0].get_data()
    np.testing.assert_allclose(y, rho.log_prob(torch.as_tensor(x)[:, None]).exp().numpy())
    assert np.trapezoid(y, x) == pytest.approx(1, abs=1e-3)
    assert np.isin(rho.components.numpy(), x).all()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x", "density")
    assert labels(ax) == ["density", "5 components"]


def test_stems_are_the_components_shares_of_the_density():
    c, w, std = normal(3, 1, seed=0), simplex(3, seed=1), simplex(3, 1, seed=2)
    ax = plot_density_1d(kdm.KDM(c, w, kdm.RBF.from_std(std)))
    centres, heights = ax.lines[1].get_data()
    np.testing.assert_allclose(centres, c.squeeze(-1))
    np.testing.assert_allclose(heights, w / (std.squeeze(-1) * np.sqrt(2 * np.pi)))
    assert len(ax.collections[0].get_segments()) == 3


def test_many_components_are_marks_on_the_axis():
    rho = kdm.KDM.from_samples(normal(200, 1, seed=0), kdm.RBF(0.3))
    ax = plot_density_1d(rho)
    segments = np.array(ax.collections[0].get_segments())
    assert segments.shape == (200, 2, 2)
    assert segments[..., 1].max() < 0.1
    assert labels(ax) == ["density", "200 components"]
    bare = plot_density_1d(rho, show_components=False)
    assert labels(bare) == ["density"]
    assert not bare.collections


@pytest.mark.parametrize("shape", [(500,), (500, 1)])
def test_samples_are_a_histogram_of_area_one(shape):
    rho = kdm.KDM(normal(5, 1, seed=0), None, kdm.RBF(0.7))
    data = rho.sample((500,), generator=seeded(1)).reshape(shape)
    ax = plot_density_1d(rho, samples=data.numpy())
    assert sum(bar.get_height() * bar.get_width() for bar in ax.patches) == pytest.approx(1)
    assert labels(ax)[0] == "data"
    assert ax.get_xlim()[0] <= data.min()
    assert ax.get_xlim()[1] >= data.max()


def test_far_components_of_no_weight_do_not_stretch_the_axis():
    c, w = torch.tensor([[0.0], [1.0], [1e6], [-1e6]]), torch.tensor([0.5, 0.4999, 0.0, 1e-4])
    ax = plot_density_1d(kdm.KDM(c, w, kdm.RBF(0.5)))
    assert ax.get_xlim()[0] > -5
    assert ax.get_xlim()[1] < 5


def test_a_given_axes_is_used():
    _, ax = plt.subplots()
    assert plot_density_1d(kdm.KDM([[0.0]], None, kdm.RBF(1.0)), ax) is ax
    assert plot_density_2d(kdm.KDM([[0.0, 0.0]], None, kdm.RBF(1.0)), ax) is ax
    assert len(plt.get_fignums()) == 1


@pytest.mark.parametrize("family", CONTINUOUS)
def test_the_map_is_the_log_density(family):
    rho = kdm.KDM(normal(6, 2, seed=0), simplex(6, seed=1), CONTINUOUS[family](1.5))
    ax = plot_density_2d(rho, n_grid=50, depth=10.0)
    image = ax.images[0]
    x0, x1, y0, y1 = image.get_extent()
    axes = torch.linspace(x0, x1, 50, dtype=torch.float64), torch.linspace(y0, y1, 50, dtype=torch.float64)
    points = torch.stack(torch.meshgrid(*axes, indexing="xy"), -1)
    wanted = rho.log_prob(points)
    np.testing.assert_allclose(image.get_array(), wanted.clamp_min(wanted.max() - 10))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("$x_1$", "$x_2$")
    assert ax.figure.axes[1].get_ylabel() == "log-density"


def test_components_have_areas_in_proportion_to_their_weights():
    c, w = normal(4, 2, seed=0), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    ax = plot_density_2d(kdm.KDM(c, w, kdm.RBF(0.5)), samples=normal(30, 2, seed=1))
    (dots,) = [part for part in ax.collections if part.get_label() == "4 components"]
    np.testing.assert_allclose(dots.get_offsets(), c)
    np.testing.assert_allclose(dots.get_sizes() / dots.get_sizes()[0], [1, 2, 3, 4])
    assert labels(ax) == ["data", "4 components"]
    np.testing.assert_allclose(np.stack(ax.lines[0].get_data(), -1), normal(30, 2, seed=1))


def test_regions_hold_what_they_say():
    """The level of a Gaussian's highest-density region of probability p is log f(0) + log(1 − p)."""
    rho = kdm.KDM(torch.zeros(1, 2, dtype=torch.float64), None, kdm.RBF.from_std(1.0))
    axis = torch.linspace(-6, 6, 400, dtype=torch.float64)
    values = rho.log_prob(torch.cartesian_prod(axis, axis)).numpy()
    result = _thresholds(values, (0.5, 0.9, 0.99))
    wanted = [-np.log(2 * np.pi) + np.log(1 - p) for p in (0.5, 0.9, 0.99)]
    assert list(result) == pytest.approx(wanted, abs=0.01)
    assert list(result.values()) == [0.5, 0.9, 0.99]


@pytest.mark.parametrize(
    ("rho", "error", "message"),
    [
        ("rho", TypeError, "rho: expected a KDM, got str|parameter 'rho'"),
        (kdm.KDM(torch.eye(2), None, kdm.Cosine()), TypeError, "continuous kernel .*, got Cosine"),
        (
            kdm.KDM(torch.eye(3), None, kdm.RBF(1.0)),
            ValueError,
            r"rho: expected events of shape \(\d,\), got \(3,\)",
        ),
    ],
)
def test_bad_kdms_are_named(rho, error, message):
    for plot in (plot_density_1d, plot_density_2d):
        with pytest.raises(error, match=message):
            plot(rho)
    assert not plt.get_fignums()


def test_bad_input_is_named():
    rho = kdm.KDM(torch.zeros(5, 1, 1), None, kdm.RBF(1.0))
    with pytest.raises(ValueError, match=r"rho: expected a batch of shape \(\), got \(5,\)"):
        plot_density_1d(rho)
    one = kdm.KDM([[0.0]], None, kdm.RBF(1.0))
    with pytest.raises(ValueError, match=r"samples: expected shape \(n,\), got \(3, 2\)"):
        plot_density_1d(one, samples=torch.zeros(3, 2))
    with pytest.raises(ValueError, match="samples: expected finite values, got 1 that are not"):
        plot_density_1d(one, samples=[0.0, np.nan])
    with pytest.raises(ValueError, match="samples: expected at least one value"):
        plot_density_1d(one, samples=[])
    with pytest.raises(TypeError, match="samples: expected a tensor or an array of numbers, got list"):
        plot_density_1d(one, samples=["a"])
    with pytest.raises(TypeError, match="ax: expected matplotlib Axes, got int"):
        plot_density_1d(one, 3)
