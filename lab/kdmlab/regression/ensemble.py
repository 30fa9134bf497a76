"""Deep ensembles (Lakshminarayanan et al., 2017): networks that predict a mean and a variance."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Bool, Float
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from kdmkit.nn import MLPEnsemble
from kdmkit.training import FitOptions, Rows, fit
from kdmlab.regression.data import Split
from kdmlab.regression.scores import Gaussians

MEMBERS = 5
HIDDEN = (64, 64)
# The least variance of standardised targets.
LEAST_VARIANCE = 1e-4


class GaussianLikelihood(nn.Module):
    """−log N(y; μ_k(x), σ_k²(x)) per row, the mean over members."""

    def __init__(self, ensemble: MLPEnsemble) -> None:
        super().__init__()
        self.ensemble = ensemble

    def forward(self, x: Float[Tensor, "n d"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        mean, variance = moments(self.ensemble(x))
        log_likelihood = -0.5 * ((y.unsqueeze(1) - mean).square() / variance + variance.log())
        return 0.5 * math.log(2 * math.pi) - log_likelihood.mean(1)


def moments(outputs: Float[Tensor, "n k 2"]) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n k"]]:
    """Mean and variance from the two outputs of every member."""
    mean, raw = outputs.unbind(-1)
    return mean, nn.functional.softplus(raw) + LEAST_VARIANCE


def deep_ensemble(split: Split, seed: int) -> Gaussians:
    """The Gaussian with the mean and variance of the members' mixture, as in the paper."""
    of_x, mean, std = StandardScaler().fit(split.X), split.y.mean(), split.y.std()
    x = torch.from_numpy(of_x.transform(split.X)).float()
    y = torch.from_numpy((split.y - mean) / std).float()
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)
        ensemble = MLPEnsemble([x.shape[1], *HIDDEN, 2], n_members=MEMBERS)
    apart = _some(len(x), 0.1, seed)
    options = FitOptions(
        max_epochs=300,
        batch_size=max(64, min(512, len(x) // 32)),
        learning_rate=3e-3,
        weight_decay=1e-2,
        patience=40,
        seed=seed,
        device="cpu",
    )
    fit(
        GaussianLikelihood(ensemble),
        Rows((x[~apart], y[~apart])),
        Rows((x[apart], y[apart])),
        options=options,
    )
    with torch.no_grad():
        answers, variances = moments(ensemble(torch.from_numpy(of_x.transform(split.X_test)).float()))
    variance = variances.mean(1) + answers.var(1, unbiased=False)
    return Gaussians(
        mean + std * np.asarray(answers.mean(1).double()), std * np.asarray(variance.double().sqrt())
    )


def _some(n: int, share: float, seed: int) -> Bool[Tensor, " n"]:
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return order < round(share * n)
