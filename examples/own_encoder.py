"""A KDM head behind your own encoder, in a plain PyTorch loop
===========================================================

`kdm.nn.JointLayer` is an `nn.Module` whose forward pass returns a distribution: train it with
`-rho.log_prob(y)` like any other head. Beyond class probabilities it gives log p(z) of the latent vector,
which tells familiar inputs from novel ones, and it runs backwards, from a label to latent vectors.

You learn

- the order that works: pre-train the encoder with a dense head, then put components into its latent space
  (`initialize`), then train both together. The latent vectors of an untrained encoder form no clusters yet;
- to add log p(z) with z detached, so that it trains the head only. The encoder could make log p(z)
  arbitrarily large by shrinking z;
- to let the head learn alone at the end, with the encoder fixed, so that log p(z) describes the final latent
  vectors;
- to use `rho.log_evidence` as a novelty score. Here: digits 0 to 7 are known, 8 and 9 are novel.

To run it: ``python examples/own_encoder.py [folder for the figure]``.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from torch import nn

import kdmkit as kdm
from kdmkit.plotting import plot_image_grid

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "examples/output")
KNOWN, LATENT = 8, 12
torch.manual_seed(0)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
known, novel = labels < KNOWN, images[labels >= KNOWN]
x, x_test, y, y_test = train_test_split(images[known], labels[known], test_size=0.25, random_state=0)

# %%
# Any encoder. Normalised latent vectors keep the scale of z, and with it the bandwidth, in bounds.
encoder = nn.Sequential(
    nn.Conv2d(1, 24, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(24, 48, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(48 * 4 * 4, LATENT),
    nn.BatchNorm1d(LATENT),
)
head = kdm.nn.JointLayer(LATENT, KNOWN, n_components=64)


def train(objective, modules, epochs, rate):
    """The usual loop. `objective` takes a batch and returns its mean loss."""
    optimizer = torch.optim.Adam([p for module in modules for p in module.parameters()], lr=rate)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            objective(x[rows], y[rows]).backward()
            optimizer.step()


# %%
# 1. The encoder learns with a throw-away dense head.
dense = nn.Linear(LATENT, KNOWN)
train(lambda x, y: nn.functional.cross_entropy(dense(encoder(x)), y), [encoder, dense], epochs=8, rate=3e-3)

# %%
# 2. Components go where the latent vectors are: centres of clusters, class by class.
encoder.eval()
with torch.no_grad():
    head.initialize(encoder(x), y, method="kmeans", generator=torch.Generator().manual_seed(0))
encoder.train()


# %%
# 3. Both learn together: −log p(y|z) moves everything, −log p(z) only the head.
def hybrid(x, y):
    z = encoder(x)
    return -head(z).log_prob(y).mean() - head.joint().marginal("x").log_prob(z.detach()).mean()


train(hybrid, [encoder, head], epochs=8, rate=1e-3)

# %%
# 4. The head learns alone, by maximum likelihood of the final latent vectors.
encoder.eval()


def likelihood(x, y):
    with torch.no_grad():
        z = encoder(x)
    return -head.joint().log_prob(x=z, y=y).mean()


train(likelihood, [head], epochs=8, rate=1e-2)

# %%
# The output: a distribution over labels for every image, and log p(z), which is low for novel images.
with torch.no_grad():
    rho, rho_novel = head(encoder(x_test)), head(encoder(novel))
    accuracy = (rho.probs.argmax(-1) == y_test).float().mean().item()
    familiar, strange = rho.log_evidence, rho_novel.log_evidence
    # Backwards: draw latent vectors of class 3, and classify them with the same head.
    threes = head.reverse(torch.tensor(3)).sample((200,), generator=torch.Generator().manual_seed(0))
    read = (head(threes).probs.argmax(-1) == 3).float().mean().item()
truth = torch.cat([torch.zeros_like(familiar), torch.ones_like(strange)])
auroc = roc_auc_score(truth, -torch.cat([familiar, strange]))
confident = rho_novel.probs.amax(-1).gt(0.9).float().mean().item()

print(f"accuracy on known digits            {accuracy:.3f}")
print(f"novelty AUROC of log p(z), 8 and 9  {auroc:.3f}")
print(f"novel digits with a class probability > 90 %: {confident:.0%}")  # no sign of novelty
print(f"latent vectors drawn for 3, classified as 3: {read:.0%}")
assert accuracy > 0.95
assert auroc > 0.9

# %%
# Figure: log p(z) of known and novel digits, and some of the novel images.
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", width_ratios=[1.1, 1])
low = torch.cat([familiar, strange]).quantile(0.02).item()
bins = torch.linspace(low, familiar.max().item(), 32).tolist()
for scores, name, color in ((familiar, "known", "#0072B2"), (strange, "novel: 8 and 9", "#D55E00")):
    left.hist(scores.clamp_min(low), bins, alpha=0.65, color=color, label=f"{name} ({len(scores)})")
left.set(title="How familiar the latent vector is", xlabel="log p(z)", ylabel="held-out images")
left.spines[["top", "right"]].set_visible(False)
left.margins(y=0.25)
left.legend(frameon=False, loc="upper right")

order = strange.argsort(descending=True)
shown = novel[torch.cat([order[:16], order[-16:]]), 0]
plot_image_grid(shown, ["most familiar", "", "least familiar", ""], 8, ax=right)
right.set_title("Novel digits")

FOLDER.mkdir(parents=True, exist_ok=True)
figure.savefig(FOLDER / "own_encoder.png", dpi=150)
print(f"wrote {FOLDER / 'own_encoder.png'}")
