"""Uncertain inputs, missing evidence, chains and reversal: inference with joint KDMs, without any training
========================================================================================================

A bird survey recorded place, pitch of the song and species. Another study weighed birds of the same species.
Every question below is one call of `infer` on one of the two joint distributions.

You learn how to

- make a `JointKDM` of mixed variables from samples,
- infer from a distribution instead of a point: an input that is known only roughly is itself a `KDM`,
- mark evidence as missing, row by row (`observed=`),
- chain models that share a variable (place → species → weight), and
- go backwards (weight → species → place).

To run it: ``python examples/uncertain_inputs_and_chains.py [folder for the figure]``.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import kdmkit as kdm
from kdmkit.plotting import plot_density_2d

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "examples/output")
SPECIES = ["wren", "robin", "thrush"]
torch.set_default_dtype(torch.float64)
generator = torch.Generator().manual_seed(0)


def around(centres: list[list[float]], spread: float, kinds: torch.Tensor) -> torch.Tensor:
    """A noisy value near the centre of each bird's species."""
    chosen = torch.tensor(centres)[kinds]
    return chosen + spread * torch.randn(chosen.shape, generator=generator)


def described(probs: torch.Tensor) -> str:
    return ", ".join(f"{name} {p:.2f}" for name, p in zip(SPECIES, probs.tolist(), strict=True))


# %%
# Two studies, two joint distributions. Every observation is a component; labels are one-hot vectors.
seen = torch.randint(3, (300,), generator=generator)
place = around([[1.0, 1.0], [3.0, 1.5], [2.0, 3.5]], 0.6, seen)  # kilometres
pitch = around([[5.2], [4.4], [2.6]], 0.4, seen)  # kilohertz
survey = kdm.JointKDM(
    {"place": place, "pitch": pitch, "species": torch.eye(3)[seen]},
    None,  # all observations count alike
    {"place": kdm.RBF.from_std(0.3), "pitch": kdm.RBF.from_std(0.2), "species": kdm.Cosine()},
)
ringed = torch.randint(3, (150,), generator=generator)
scales = kdm.JointKDM(
    {"species": torch.eye(3)[ringed], "weight": around([[9.0], [18.0], [80.0]], 1.5, ringed)},
    None,
    {"species": kdm.Cosine(), "weight": kdm.RBF.from_std(1.0)},
)

# %%
# 1. A point. Which species live here? Low log-evidence: the survey has no observations nearby.
here = torch.tensor([1.9, 1.2])
at_point = survey.infer(place=here, target="species")
print("at a point           ", described(at_point.probs))
far = survey.infer(place=torch.tensor([9.0, 9.0]), target="species")
print(f"log-evidence         {at_point.log_evidence:.1f} here, {far.log_evidence:.1f} far outside the survey")

# %%
# 2. An uncertain point: three measured positions, the first more credible than the others.
positions = torch.tensor([[1.9, 1.2], [2.6, 1.4], [2.0, 2.9]])
credence = torch.tensor([0.5, 0.3, 0.2])
somewhere = kdm.KDM(positions, credence, survey.kernels["place"])
at_positions = survey.infer(place=somewhere, target="species")
print("at one of three      ", described(at_positions.probs))

# An input KDM stands for its weighted components: the result is the average of the results for each of them.
average = credence @ survey.infer(place=positions, target="species").probs
assert torch.allclose(at_positions.probs, average)

# %%
# 3. Missing evidence. Two birds at the same place; the song of the second was not recorded.
heard = survey.infer(
    place=here.expand(2, 2),
    pitch=torch.tensor([[4.4], [0.0]]),  # the value of a missing entry does not matter
    observed={"pitch": torch.tensor([True, False])},
    target="species",
)
print("with its song        ", described(heard.probs[0]))
print("without              ", described(heard.probs[1]))
assert torch.allclose(heard.probs[1], at_point.probs)

# %%
# 4. A chain from place to weight. No bird has both; the species, which both studies have, connects them.
weight = scales.infer(species=at_positions)
print(f"weight               {weight.mean.item():.0f} ± {weight.stddev.item():.0f} g")
by_hand = at_positions.probs @ torch.cat([scales.infer(species=torch.tensor(i)).mean for i in range(3)])
assert torch.allclose(weight.mean.squeeze(), by_hand)

# %%
# 5. Backwards: where would a bird of 18 grams have been seen?
origin = survey.infer(species=scales.infer(weight=torch.tensor([18.0])), target="place")
print(f"a bird of 18 g       near ({origin.mean[0]:.1f}, {origin.mean[1]:.1f}); robins live at (3.0, 1.5)")
assert (origin.mean - torch.tensor([3.0, 1.5])).norm() < 0.3

# %%
# Figure.
figure, (left, middle, right) = plt.subplots(
    1, 3, figsize=(13, 3.9), layout="constrained", width_ratios=[1, 1, 1.25]
)
colors = ["#0072B2", "#D55E00", "#009E73"]
for kind, (name, color) in enumerate(zip(SPECIES, colors, strict=True)):
    left.scatter(*place[seen == kind].T, s=10, color=color, alpha=0.6, linewidths=0, label=name)
left.scatter(*positions.T, s=500 * credence, marker="X", color="black", edgecolors="white")
left.set(title="A survey, and three measured positions (×) of one bird", xlabel="km", ylabel="km")
left.legend(frameon=False, fontsize="small", loc="upper right", markerscale=1.5, handletextpad=0.1)

grams = torch.linspace(0, 100, 800).unsqueeze(-1)
at_first = scales.infer(species=at_point)
middle.plot(grams, weight.log_prob(grams).exp(), color="#333333", label="all three positions")
middle.plot(
    grams, at_first.log_prob(grams).exp(), color="#CC79A7", linestyle="--", label="the first position"
)
middle.set(title="place → species → weight", xlabel="g", ylabel="density", ylim=(0, None))
middle.legend(frameon=False, fontsize="small")
for ax in (left, middle):
    ax.spines[["top", "right"]].set_visible(False)

# An inferred KDM computes its weights at every call. For a map of many points, compute them once.
fixed = kdm.KDM(origin.components, origin.weights, origin.kernel)
plot_density_2d(fixed, right, samples=place, show_components=False, levels=(0.5, 0.9))
right.set(title="18 g → species → place", xlabel="km", ylabel="km")
left.set(xlim=right.get_xlim(), ylim=right.get_ylim())

FOLDER.mkdir(parents=True, exist_ok=True)
figure.savefig(FOLDER / "uncertain_inputs_and_chains.png", dpi=150)
print(f"wrote {FOLDER / 'uncertain_inputs_and_chains.png'}")
