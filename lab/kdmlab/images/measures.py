"""How good classifiers and generated images are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float
from sklearn.metrics import roc_auc_score
from torch import Tensor

from kdmkit.metrics import expected_calibration_error
from kdmlab.common.checks import bad_argument
from kdmlab.images.models import DenseModel, KDMModel, in_parts


def classification(model: DenseModel | KDMModel, x: Tensor, y: Tensor) -> dict[str, float]:
    """Accuracy, mean −log p(y|x) in nats, and expected calibration error."""
    model.eval()
    # Log-densities of hundreds of nats leave rounding errors: probabilities may exceed one by a few 1e-5.
    log_probs = in_parts(model.log_probs, x).log_softmax(-1)
    chosen = log_probs.gather(1, y.unsqueeze(1))
    return {
        "accuracy": float((log_probs.argmax(1) == y).double().mean()),
        "nll": float(-chosen.double().mean()),
        "ece": float(expected_calibration_error(log_probs.exp(), y)),
    }


def novelty(model: KDMModel, familiar: Tensor, novel: Mapping[str, Tensor]) -> dict[str, float]:
    """The area under the ROC curve of −log p(z) as a score of novelty, against every set of novel images."""
    model.eval()
    inside = in_parts(model.log_density, familiar)
    return {
        name: auroc(inside, in_parts(model.log_density, images.to(familiar.device)))
        for name, images in novel.items()
    }


def auroc(familiar: Float[Tensor, " n"], novel: Float[Tensor, " k"]) -> float:
    """The probability that a novel value is below a known one, ties counted half.

    >>> auroc(torch.tensor([2.0, 3.0]), torch.tensor([1.0, 2.5]))
    0.75
    """
    truth = np.r_[np.zeros(len(familiar)), np.ones(len(novel))]
    return float(roc_auc_score(truth, -np.r_[familiar.double().cpu().numpy(), novel.double().cpu().numpy()]))


def frechet(a: Float[Tensor, "n d"], b: Float[Tensor, "k d"]) -> float:
    """‖μ_a − μ_b‖² + tr(Σ_a + Σ_b − 2(Σ_a^½ Σ_b Σ_a^½)^½): the squared distance of two fitted Gaussians.

    >>> x = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
    >>> round(frechet(x, 2 * x + 3), 6)      # means 1 and 5, standard deviations √2 and 2√2: 16 + 2
    18.0
    """
    if a.ndim != 2 or a.shape[1:] != b.shape[1:] or min(len(a), len(b)) < 2:
        wanted = "two or more rows of the same length on both sides"
        raise ValueError(bad_argument("features", wanted, (tuple(a.shape), tuple(b.shape))))
    (mean_a, cov_a), (mean_b, cov_b) = _moments(a), _moments(b)
    values, vectors = torch.linalg.eigh(cov_a)
    root = (vectors * values.clamp_min(0).sqrt()) @ vectors.mT
    both = torch.linalg.eigvalsh(root @ cov_b @ root).clamp_min(0).sqrt().sum()
    return float((mean_a - mean_b).square().sum() + cov_a.trace() + cov_b.trace() - 2 * both)


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.double().cpu()
    return x.mean(0), torch.cov(x.mT).reshape(x.shape[1], x.shape[1])
