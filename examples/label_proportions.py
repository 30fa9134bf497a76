"""Learning from label proportions: how people vote, from district results alone.

A ballot is secret. What is public is the result of each polling district; what a polling institute knows is
age and income of the people it interviewed there, but not their votes. `KDMProportionClassifier` learns
p(vote | age, income) from that: the people of a district are draws from a mixture of the parties' voters, and
the district's result says in which proportions.

You learn

- `fit(X, bags, proportions)`: a district per person, a row of shares per district, districts of any size;
- what is lost: the comparison is with a classifier that was told every vote;
- `predict_proportions`: forecasts for districts whose result is not known yet;
- results that are not exact: ranges (small districts publish no more, to protect their voters), and
  `counted=` for exit polls, where a share of one half may be two voters of four;
- `loss="proportions"`, the paper's Algorithm 4, which fits a district's mean answer to its result.

    python examples/label_proportions.py [folder for the figure]
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
    """People of several districts: age and income (thousands), the district, and the vote nobody sees."""
    sizes = rng.integers(20, 60, n_districts)
    districts = np.repeat(np.arange(n_districts), sizes)
    mood = rng.dirichlet([1.0, 1.0, 1.0], n_districts)  # districts differ, or nothing could be learned
    votes = np.array([rng.choice(3, p=mood[district]) for district in districts])
    centre = np.array([[31, 36], [47, 62], [66, 37]])[votes]
    people = centre + rng.normal(size=centre.shape) * [8, 11]
    people = np.array([18, 0]) + np.abs(
        people - [18, 0]
    )  # nobody is younger than 18 or earns less than nothing
    return people, districts, votes


def results(districts: np.ndarray, votes: np.ndarray) -> np.ndarray:
    """The published shares, one row per district."""
    counts = np.zeros((districts.max() + 1, len(PARTIES)))
    np.add.at(counts, (districts, votes), 1)
    return counts / counts.sum(1, keepdims=True)


X, districts, votes = electorate(60)
X_new, districts_new, votes_new = electorate(40)
shares, shares_new = results(districts, votes), results(districts_new, votes_new)
sizes = np.bincount(districts)
print(f"{len(X)} people in {len(shares)} districts of {sizes.min()} to {sizes.max()}")

# ---- `votes` is not used here.
model = kdm.KDMProportionClassifier(n_components=32, random_state=0).fit(X, districts, shares)

# ---- Single votes in new districts, against one who was told all votes, and one who knows no voter.
accuracy = (model.predict(X_new) == votes_new).mean()
told = kdm.KDMClassifier(n_components=32, random_state=0).fit(X, votes).score(X_new, votes_new)
largest = (shares.mean(0).argmax() == votes_new).mean()
print(
    f"votes guessed right: {accuracy:.3f} from shares, {told:.3f} had votes been known, {largest:.3f} blind"
)
assert accuracy > told - 0.05

# ---- Whole districts. Their mix is their own: a mean of p(vote|x) would be drawn to the country's.
forecast = model.predict_proportions(X_new, districts_new, method="likelihood")
error, blind = np.abs(forecast - shares_new).mean(), np.abs(shares.mean(0) - shares_new).mean()
print(f"district forecasts are {100 * error:.1f} points off; the country's average is {100 * blind:.1f} off")
assert error < 0.3 * blind

# ---- Results that are not exact: shares within ten points, or exit polls of twelve voters per district.
ranges = np.stack([np.clip(shares - 0.1, 0, 1), np.clip(shares + 0.1, 0, 1)], -1)
polls = rng.multinomial(12, shares) / 12
learner = kdm.KDMProportionClassifier(n_components=32, random_state=0)
algorithm_4 = kdm.KDMProportionClassifier(loss="proportions", n_components=32, random_state=0)
others = {
    "ranges of 20 points": clone(learner).fit(X, districts, ranges),
    "exit polls of 12": clone(learner).fit(X, districts, polls, counted=12),
    "shares by the paper's loss": algorithm_4.fit(X, districts, shares),
}
for name, other in others.items():
    share = (other.predict(X_new) == votes_new).mean()
    print(f"votes guessed right from {name}: {share:.3f}")
    assert share > told - 0.08

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained", width_ratios=[1.25, 1])
plot_decision_regions(model.predict_proba, X_new[::3], votes_new[::3], ax=left, classes=PARTIES)
left.set(title="Learned from shares; dots are the true votes", xlabel="age", ylabel="income, thousands")
for party, (name, color) in enumerate(zip(PARTIES, ("#0072B2", "#D55E00", "#009E73"), strict=True)):
    right.plot(
        shares_new[:, party], forecast[:, party], "o", color=color, markersize=5, alpha=0.7, label=name
    )
right.axline((0, 0), slope=1, color="#9A9A9A", linewidth=0.8, linestyle="--")
right.set(title="Results of 40 new districts", xlabel="share of the vote", ylabel="forecast", aspect="equal")
right.spines[["top", "right"]].set_visible(False)
right.legend(frameon=False)

FOLDER.mkdir(parents=True, exist_ok=True)
figure.savefig(FOLDER / "label_proportions.png", dpi=150)
print(f"wrote {FOLDER / 'label_proportions.png'}")
