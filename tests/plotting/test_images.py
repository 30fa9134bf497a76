"""Image grids: every tile in its place."""

import numpy as np
import pytest
import torch

from helpers import normal
from kdmkit.plotting import plot_image_grid


def test_tiles_are_the_images_in_rows():
    images = normal(12, 8, 6, seed=0)
    ax = plot_image_grid(images, row_labels=["a", "b", "c"], n_columns=4)
    assert len(ax.images) == 12
    scaled = (images - images.min()) / (images.max() - images.min())
    for i, tile in enumerate(ax.images):
        np.testing.assert_allclose(tile.get_array(), scaled[i])
        left, right, bottom, top = tile.get_extent()
        assert (round(left), round(top / (8 / 6))) == (i % 4, i // 4)
        assert right - left == pytest.approx(1)
        assert bottom - top == pytest.approx(8 / 6)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b", "c"]
    assert not len(ax.get_xticks())


def test_the_last_row_may_be_shorter():
    ax = plot_image_grid(torch.rand(7, 4, 4), n_columns=3)
    assert len(ax.images) == 7
    assert ax.get_ylim()[0] == pytest.approx(3.12)
    assert not len(ax.get_yticks())
    assert len(plot_image_grid(torch.rand(2, 4, 4)).images) == 2


def test_colour_images_keep_their_colours():
    images = np.linspace(0.2, 0.7, 2 * 4 * 4 * 3).reshape(2, 4, 4, 3)
    for given in (images, torch.as_tensor(images), 255 * images):
        ax = plot_image_grid(given)
        np.testing.assert_allclose(ax.images[1].get_array(), images[1])
    one_channel = plot_image_grid(images[..., :1])
    assert one_channel.images[0].get_array().shape == (4, 4)


def test_values_outside_the_range_are_clipped():
    ax = plot_image_grid(torch.tensor([[[-1.0, 0.25], [0.5, 3.0]]]), value_range=(0, 1))
    np.testing.assert_allclose(ax.images[0].get_array(), [[0, 0.25], [0.5, 1]])
    constant = plot_image_grid(torch.ones(1, 2, 2))
    assert np.isfinite(constant.images[0].get_array()).all()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((torch.zeros(8, 8),), {}, r"images: expected shape \(n, h, w\) or .*, got \(8, 8\)"),
        ((torch.zeros(2, 8, 8, 2),), {}, "images: expected .* 1, 3 or 4 channels"),
        ((torch.full((2, 8, 8), torch.nan),), {}, "images: expected finite values"),
        ((torch.zeros(4, 8, 8), ["a"], 2), {}, "row_labels: expected 2, one for each row, got 1"),
        ((torch.zeros(4, 8, 8), None, 0), {}, "n_columns: expected a whole number ≥ 1, got 0"),
        ((torch.zeros(4, 8, 8),), {"value_range": (1, 0)}, "value_range: expected the lower value first"),
    ],
)
def test_bad_input_is_named(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        plot_image_grid(*arguments, **options)
