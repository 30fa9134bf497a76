"""Figures of KDMs, predictions and calibration. Needs matplotlib: `pip install 'kdmkit[plot]'`.

Every function draws into `ax`, or into a new figure where that is None, and returns the Axes. Nothing here
changes matplotlib's settings, and matplotlib is imported when the first figure is drawn.
"""

from kdmkit.plotting.bars import plot_bars, plot_matrix
from kdmkit.plotting.calibration import plot_calibration_curve, plot_pit
from kdmkit.plotting.decision import plot_decision_regions
from kdmkit.plotting.density import plot_density_1d, plot_density_2d
from kdmkit.plotting.images import plot_image_grid
from kdmkit.plotting.predictive import plot_predictive_bands
from kdmkit.plotting.reliability import plot_reliability

__all__ = [
    "plot_bars",
    "plot_calibration_curve",
    "plot_decision_regions",
    "plot_density_1d",
    "plot_density_2d",
    "plot_image_grid",
    "plot_matrix",
    "plot_pit",
    "plot_predictive_bands",
    "plot_reliability",
]
