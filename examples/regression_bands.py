"""Regression that predicts distributions: noise that depends on x, and targets with two branches
==============================================================================================

You learn

- `predict(X, return_std=True)`, `predict_interval`, `predict_quantiles`, and `predict_dist`, the KDM
  that they are computed from, with exact quantiles and densities;
- to check a predictive distribution by coverage of intervals, CRPS and calibration (`kdmkit.metrics`);
- that the mean may be a value that never occurs, and how to see it (`show_density=True`).

To run it: ``python examples/regression_bands.py [folder for the figure]``.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import kdmkit as kdm
from kdmkit.metrics import crps, interval_coverage, pit, quantile_calibration_error
from kdmkit.plotting import plot_predictive_bands

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "examples/output")
rng = np.random.default_rng(0)
N = 800  # rows to fit, and as many to test

# %%
# Noise that depends on x: a gauge that is precise only in the middle of its range.
position = rng.uniform(-3, 3, (2 * N, 1))
reading = np.sin(position[:, 0]) + (0.05 + 0.2 * np.abs(position[:, 0])) * rng.normal(size=2 * N)

# %%
# Two answers to one question: a ball landed at this distance. Was it thrown at a low or a high angle?
distance = rng.uniform(15, 98, (2 * N, 1))
low = np.degrees(np.arcsin(distance[:, 0] / 100)) / 2
angle = np.where(rng.random(2 * N) < 0.5, low, 90 - low) + 1.5 * rng.normal(size=2 * N)

models = {}
for name, x, y in (("gauge", position, reading), ("throw", distance, angle)):
    model = kdm.KDMRegressor(random_state=0).fit(x[:N], y[:N])
    low, high = model.predict_interval(x[N:], coverage=0.9).T
    coverage = interval_coverage(low, high, y[N:]).item()
    rho = model.predict_dist(x[N:])  # all 800 distributions in one object
    error = quantile_calibration_error(pit(rho, y[N:])).item()
    print(
        f"{name}: 90 % intervals hold {coverage:.1%} of held-out values, "
        f"CRPS {crps(rho, y[N:]).mean():.3f}, calibration error {error:.3f}"
    )
    assert 0.85 < coverage < 0.95
    models[name] = model

# %%
# The predicted noise follows the true one.
_, std = models["gauge"].predict(np.array([[0.0], [2.5]]), return_std=True)
print(f"gauge: predicted noise {std[0]:.2f} at 0 (true 0.05), {std[1]:.2f} at 2.5 (true 0.55)")
assert std[1] > 2.5 * std[0]

# %%
# The mean of a low and a high angle is neither: that throw goes too far. Drawn angles are right.
wanted = np.array([[60.0]])
mean = models["throw"].predict(wanted)
draws = models["throw"].sample_y(wanted, n_samples=500, random_state=0)
by_mean = 100 * np.sin(2 * np.radians(mean[0]))
by_draws = np.median(100 * np.sin(2 * np.radians(draws)))
print(
    f"throw, for 60 m: the mean, {mean[0]:.0f}°, lands at {by_mean:.0f} m; drawn angles at {by_draws:.0f} m"
)
assert abs(by_draws - 60) < 5 < abs(by_mean - 60)

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
grid = np.linspace(-3, 3, 200).reshape(-1, 1)
plot_predictive_bands(grid, models["gauge"].predict_dist(grid), data=(position[N:], reading[N:]), ax=left)
left.set(title="A gauge that is precise in the middle", xlabel="position", ylabel="reading")
grid = np.linspace(15, 98, 200).reshape(-1, 1)
plot_predictive_bands(
    grid, models["throw"].predict_dist(grid), data=(distance[N:], angle[N:]), ax=right, show_density=True
)
right.set(title="Which angle did the throw have?", xlabel="distance, m", ylabel="angle, °")

FOLDER.mkdir(parents=True, exist_ok=True)
figure.savefig(FOLDER / "regression_bands.png", dpi=150)
print(f"wrote {FOLDER / 'regression_bands.png'}")
