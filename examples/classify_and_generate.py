"""One model classifies, detects novelty and generates
===================================================

`KDMClassifier` learns the joint distribution of inputs and labels. It gives p(y|x) for classification,
log p(x) for novelty, and draws from p(x|y).

You learn

- `predict_proba` for labels, `score_samples` for novelty, and why both are needed: far from the data, class
  probabilities may be close to 1, but log p(x) is low;
- `sample` for a label or for a distribution over labels;
- to choose a loss: `method="discriminative"` (the default) places components for the boundary between
  classes, `method="likelihood"` for the density of the data, and `generative_weight` mixes the two.

To run it: ``python examples/classify_and_generate.py [folder for the figure]``.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons
from sklearn.model_selection import train_test_split

import kdmkit as kdm
from kdmkit.plotting import plot_decision_regions

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "examples/output")
X, labels = make_moons(800, noise=0.2, random_state=0)
y = np.where(labels == 0, "sun", "moon")
X, X_test, y, y_test = train_test_split(X, y, test_size=0.25, random_state=0)

# %%
# The hybrid loss: −log p(y|x) − 0.5·log p(x).
model = kdm.KDMClassifier(n_components=24, generative_weight=0.5, max_epochs=40, random_state=0).fit(X, y)
accuracy = model.score(X_test, y_test)
print(f"accuracy {accuracy:.3f}, mean log p(x) {model.score_samples(X_test).mean():.2f} nats")
assert accuracy > 0.95

# %%
# A point far from the data: the class probability is high, log p(x) is low.
strange = np.array([[4.0, -3.0]])
usual = model.score_samples(X_test)
print(
    f"at {strange[0].tolist()}: probability of {model.predict(strange)[0]} "
    f"{model.predict_proba(strange).max():.3f}, but log p(x) {model.score_samples(strange)[0]:.0f} "
    f"where data have {np.quantile(usual, 0.01):.1f} or more (99 % of them)"
)
assert model.score_samples(strange)[0] < usual.min()

# %%
# Draws for one label, and for a distribution over labels with one sun in four.
suns = model.sample(300, y="sun", random_state=0)
mixed = model.sample(300, y=[0.75, 0.25], random_state=1)  # in the order of classes_: moon, sun
read = (model.predict(suns) == "sun").mean()
share = (model.predict(mixed) == "sun").mean()
print(f"draws of sun classified as sun: {read:.0%}; suns among draws with one sun in four: {share:.0%}")
assert read > 0.9

# %%
# The paper's three methods on the same data: the joint KDM alone, without the networks of a trend.
for method in ("nonparametric", "likelihood", "discriminative"):
    other = kdm.KDMClassifier(method, trend=None, random_state=0).fit(X, y)
    print(
        f"{method:>14}: accuracy {other.score(X_test, y_test):.3f}, "
        f"log p(x) {other.score_samples(X_test).mean():7.2f}, "
        f"{other.joint_.n_components} components"
    )

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
plot_decision_regions(
    model.predict_proba, X_test, y_test, ax=left, log_prob=model.score_samples, classes=model.classes_
)
left.set_title("p(y|x) in colour, log p(x) as contours of held-out data")
for draws, color, name in ((suns, "#D55E00", "sun"), (model.sample(300, y="moon"), "#0072B2", "moon")):
    right.plot(*draws.T, "o", markersize=3, alpha=0.6, markeredgewidth=0, color=color, label=name)
right.set(
    title="300 draws of each class",
    xlim=left.get_xlim(),
    ylim=left.get_ylim(),
    xlabel="$x_1$",
    ylabel="$x_2$",
)
right.spines[["top", "right"]].set_visible(False)
right.legend(frameon=False)

FOLDER.mkdir(parents=True, exist_ok=True)
figure.savefig(FOLDER / "classify_and_generate.png", dpi=150)
print(f"wrote {FOLDER / 'classify_and_generate.png'}")
