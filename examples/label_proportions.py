"""Learning from label proportions: how people vote, from the results of districts alone
=====================================================================================

Votes are secret, but the result of every district is public. A polling institute also knows the age and
income of some people in each district. `KDMProportionClassifier` learns p(vote | age, income) from both: the
people of a district are draws from a mixture of the parties' voters, and the result gives the mixture's
proportions.

You learn

- `fit(X, bags, proportions)`: the district of each person and the result of each district, of any size;
- how much is lost, compared with a classifier that knows every vote;
- `predict_proportions`: forecasts for districts whose result is not known yet;
- inexact results: ranges, and `counted=` for exit polls, where a proportion of ½ may be two voters of four;
- `loss="proportions"`, the paper's Algorithm 4, which fits the mean of p(vote|x) in a district to its result.

To run it: ``python examples/label_proportions.py [folder for the figure]``.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import clone

import kdmkit as kdm
from kdmkit.plotting import plot_decision_regions

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "examples/output")
PARTIES = ["Future", "Centre", "Heritage"]
rng = np.random.default_rng(0)


def electorate(n_districts: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """People of several districts: age and income (thousands), the district, and the secret vote."""
    sizes = rng.integers(20, 60, n_districts)
    districts = np.repeat(np.arange(n_districts), sizes)
    # Districts must differ: otherwise nothing can be learned.
    mood = rng.dirichlet([1.0, 1.0, 1.0], n_districts)
    votes = np.array([rng.choice(3, p=mood[district]) for district in districts])
    centre = np.array([[31, 36], [47, 62], [66, 37]])[votes]
    people = centre + rng.normal(size=centre.shape) * [8, 11]
    people = np.array([18, 0]) + np.abs(people - [18, 0])  # at least 18 years old, no negative income
    return people, districts, votes


def results(districts: np.ndarray, votes: np.ndarray) -> np.ndarray:
    """The published proportions, one row per district."""
    counts = np.zeros((districts.max() + 1, len(PARTIES)))
    np.add.at(counts, (districts, votes), 1)
    return counts / counts.sum(1, keepdims=True)


X, districts, votes = electorate(60)
X_new, districts_new, votes_new = electorate(40)
proportions, proportions_new = results(districts, votes), results(districts_new, votes_new)
sizes = np.bincount(districts)
print(f"{len(X)} people in {len(proportions)} districts of {sizes.min()} to {sizes.max()}")

# %%
# The fit does not use `votes`.
model = kdm.KDMProportionClassifier(n_components=32, random_state=0).fit(X, districts, proportions)

# %%
# Single votes in new districts, compared with a classifier that knew all votes, and the largest party.
accuracy = (model.predict(X_new) == votes_new).mean()
supervised = kdm.KDMClassifier(max_epochs=30, random_state=0).fit(X, votes).score(X_new, votes_new)
largest = (proportions.mean(0).argmax() == votes_new).mean()
print(f"votes predicted correctly: {accuracy:.3f} from proportions")
print(f"for comparison: {supervised:.3f} from all votes, {largest:.3f} by the largest party")
assert accuracy > supervised - 0.05

# %%
# Whole districts. The mean of p(vote|x) would be biased towards the average of all districts.
forecast = model.predict_proportions(X_new, districts_new, method="likelihood")
error = np.abs(forecast - proportions_new).mean()
constant = np.abs(proportions.mean(0) - proportions_new).mean()
print(f"error of district forecasts: {100 * error:.1f} points; of a constant forecast: {100 * constant:.1f}")
assert error < 0.3 * constant

# %%
# Inexact results: proportions within ten points, or exit polls of twelve voters per district.
ranges = np.stack([np.clip(proportions - 0.1, 0, 1), np.clip(proportions + 0.1, 0, 1)], -1)
polls = rng.multinomial(12, proportions) / 12
learner = kdm.KDMProportionClassifier(n_components=32, random_state=0)
algorithm_4 = kdm.KDMProportionClassifier(loss="proportions", n_components=32, random_state=0)
others = {
    "ranges of 20 points": clone(learner).fit(X, districts, ranges),
    "exit polls of 12": clone(learner).fit(X, districts, polls, counted=12),
    "proportions, by the paper's loss": algorithm_4.fit(X, districts, proportions),
}
for name, other in others.items():
    accuracy = (other.predict(X_new) == votes_new).mean()
    print(f"votes predicted correctly from {name}: {accuracy:.3f}")
    assert accuracy > supervised - 0.08

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained", width_ratios=[1.25, 1])
plot_decision_regions(model.predict_proba, X_new[::3], votes_new[::3], ax=left, classes=PARTIES)
left.set(title="Learned from proportions; dots are the true votes", xlabel="age", ylabel="income, thousands")
for party, (name, color) in enumerate(zip(PARTIES, ("#0072B2", "#D55E00", "#009E73"), strict=True)):
    right.plot(
        proportions_new[:, party], forecast[:, party], "o", color=color, markersize=5, alpha=0.7, label=name
    )
right.axline((0, 0), slope=1, color="#9A9A9A", linewidth=0.8, linestyle="--")
right.set(title="Results of 40 new districts", xlabel="share of the vote", ylabel="forecast", aspect="equal")
right.spines[["top", "right"]].set_visible(False)
right.legend(frameon=False)

FOLDER.mkdir(parents=True, exist_ok=True)
figure.savefig(FOLDER / "label_proportions.png", dpi=150)
print(f"wrote {FOLDER / 'label_proportions.png'}")
