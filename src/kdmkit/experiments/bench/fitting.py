"""Seconds per epoch of a default fit beside the same model on the materialised formula."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import torch
from sklearn.datasets import make_classification
from torch import Tensor, nn

from kdmkit.estimators import KDMClassifier
from kdmkit.estimators._base import automatic_batch
from kdmkit.kernels import RBF
from kdmkit.nn import JointLayer
from kdmkit.training import FitOptions, Rows, fit, hybrid_nll

_ROWS, _FEATURES, _CLASSES, _COMPONENTS, _EPOCHS = 10_000, 64, 10, 256, 3


class LogSpaceLoss(nn.Module):
    """What KDMClassifier minimises by default."""

    def __init__(self, layer: JointLayer, noise: float) -> None:
        super().__init__()
        self.layer, self.noise = layer, noise

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return hybrid_nll(self.layer, x + self.noise * torch.randn_like(x), y, generative_weight=0.0)


class MaterialisedLoss(nn.Module):
    """The same by differences of all pairs and expanded outputs, on the same parameters."""

    def __init__(self, layer: JointLayer, noise: float) -> None:
        super().__init__()
        self.layer, self.noise = layer, noise

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        layer, kernel = self.layer, self.layer.kernels["x"]
        assert isinstance(kernel, RBF)
        z = x + self.noise * torch.randn_like(x)
        difference = (z.unsqueeze(1) - layer.components["x"].unsqueeze(0)) / kernel.sigma
        weights = torch.softmax(layer.logits, -1) * torch.exp(-difference.square().sum(-1))
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-12)
        packed = torch.cat([weights.unsqueeze(-1), layer.components["y"].expand(len(z), -1, -1)], -1)
        amplitudes = packed[..., 1:]
        amplitudes = amplitudes / amplitudes.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        probs = torch.einsum("ij,ijk->ik", packed[..., 0], amplitudes.square())
        return -probs.gather(1, y.unsqueeze(1)).squeeze(1).clamp_min(1e-12).log()


def epoch_times() -> list[dict[str, Any]]:
    """One record for each of the two, in the form of the other cases."""
    X, y = make_classification(_ROWS, _FEATURES, n_informative=20, n_classes=_CLASSES, random_state=0)
    x, labels = torch.from_numpy(X).float(), torch.from_numpy(y)
    default = KDMClassifier()
    options = FitOptions(
        max_epochs=_EPOCHS,
        batch_size=automatic_batch(_ROWS),
        learning_rate=default.learning_rate,
        device="cpu",
    )
    losses: dict[str, type[nn.Module]] = {"kdmkit": LogSpaceLoss, "materialised": MaterialisedLoss}
    return [
        _record(peer, loss(_layer(x, labels), default.noise), Rows((x, labels)), options)
        for peer, loss in losses.items()
    ]


def _layer(x: Tensor, labels: Tensor) -> JointLayer:
    layer = JointLayer(_FEATURES, _CLASSES, _COMPONENTS, in_kernel=RBF(torch.ones(_FEATURES)))
    return layer.initialize(x, labels, generator=torch.Generator().manual_seed(0))


def _record(peer: str, objective: nn.Module, rows: Rows, options: FitOptions) -> dict[str, Any]:
    stamps = [time.perf_counter()]
    fit(objective, rows, options=options, on_epoch=lambda _: stamps.append(time.perf_counter()))
    spent = sorted(b - a for a, b in pairwise(stamps))
    return {
        "case": f"epoch of KDMClassifier.fit, {_ROWS:,} rows, d={_FEATURES}, {_COMPONENTS} components",
        "peer": peer,
        "median": spent[len(spent) // 2],
        "low": spent[0],
        "high": spent[-1],
        "repetitions": len(spent),
        "extra_bytes": None,
        "error": None,
    }
