"""Density estimation with one component per sample, or with a few learned components
==================================================================================

You learn

- the two methods of `KDMDensity`: `"nonparametric"` keeps every sample and only chooses bandwidths (by
  leave-one-out likelihood unless told otherwise); `"likelihood"` learns a few components and a full metric;
- to judge a density: `score` on held-out data is its mean log-density, in nats;
- that `kdm_` is a `torch.distributions.Distribution`: its density integrates to 1, draws are exact, and σ is
  √2 times the standard deviation of a component.

To run it: ``python examples/density.py [folder for the figure]``.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons

import kdmkit as kdm
from kdmkit.plotting import plot_density_2d

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "examples/output")
X, _ = make_moons(600, noise=0.15, random_state=0)
X, X_test = X[:400], X[400:]

# %%
# The first model has 400 components, the second 16, the third one.
every = kdm.KDMDensity(method="nonparametric").fit(X)
learned = kdm.KDMDensity(method="likelihood", n_components=16, random_state=0).fit(X)
gauss = kdm.KDMDensity(method="likelihood", n_components=1, random_state=0).fit(X)  # one Gaussian

for name, model in {"every sample": every, "16 learned": learned, "1 learned": gauss}.items():
    print(f"{name:>13}: held-out log-density {model.score(X_test):6.3f} nats")
assert min(every.score(X_test), learned.score(X_test)) > gauss.score(X_test) + 0.2

# %%
# The bandwidths that leave-one-out likelihood chose, in both conventions: one per dimension and sample.
kernel = every.kdm_.kernel
print(f"bandwidths: σ = {kernel.sigma.mean():.3f} on average, standard deviations {kernel.std.mean():.3f}")

# %%
# A density integrates to 1.
side = np.linspace(-4, 5, 300)
grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
mass = np.exp(learned.score_samples(grid)).sum() * (side[1] - side[0]) ** 2
print(f"integral over the plane: {mass:.4f}")
assert abs(mass - 1) < 1e-3

# %%
# Draws of the second model are as likely under the first model as held-out data.
drawn = learned.sample(2000, random_state=0)
print(f"draws of 16 learned, scored by every sample: {every.score(drawn):.3f} nats")

figure, axes = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
for ax, (title, model) in zip(axes, {"every sample": every, "16 learned": learned}.items(), strict=False):
    plot_density_2d(model.kdm_, ax, samples=X_test)
    ax.set_title(f"{title}: {model.score(X_test):.2f} nats")
axes[2].plot(*drawn[:400].T, "o", markersize=2.5, alpha=0.6, markeredgewidth=0, color="#009E73")
axes[2].set(xlabel="$x_1$", ylabel="$x_2$", xlim=axes[1].get_xlim(), ylim=axes[1].get_ylim())
axes[2].spines[["top", "right"]].set_visible(False)
axes[2].set_title("400 draws of the 16", pad=20)  # aligned with the titles above a legend

FOLDER.mkdir(parents=True, exist_ok=True)
figure.savefig(FOLDER / "density.png", dpi=150)
print(f"wrote {FOLDER / 'density.png'}")
