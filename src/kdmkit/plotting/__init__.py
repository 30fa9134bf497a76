"""Figures of KDMs, predictions and calibration. Needs matplotlib: `pip install 'kdmkit[plot]'`.

Every function draws into `ax`, or into a new figure if that is None, and returns the Axes. Nothing here
changes matplotlib's settings, and matplotlib is imported when the first figure is drawn.
"""

from kdmkit.plotting.calibration_plots import plot_calibration_curve, plot_pit, plot_reliability
from kdmkit.plotting.decision_regions import plot_decision_regions
from kdmkit.plotting.densities import plot_density_1d, plot_density_2d, plot_predictive_bands
from kdmkit.plotting.grids import plot_bars, plot_image_grid, plot_matrix

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
