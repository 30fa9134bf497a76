"""Seconds per epoch of `KDMClassifier.fit` beside the same model on the materialised formula."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from sklearn.datasets import make_classification
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from kdmkit import RBF, KDMClassifier
from kdmkit.nn import JointLayer
from kdmkit.training import FitOptions, Rows, fit
from kdmlab.bench.measure import Timing

_CLASSES = 10
# The learning rate of estimators.
_RATE = 1e-2


class MaterialisedLoss(nn.Module):
    """−log p(y|x) of a layer with this input kernel, by differences of all pairs and expanded outputs."""

    def __init__(self, layer: JointLayer, kernel: RBF, noise: float) -> None:
        super().__init__()
        self.layer, self.kernel, self.noise = layer, kernel, noise

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        layer = self.layer
        z = x + self.noise * torch.randn_like(x) if self.training else x
        difference = (z.unsqueeze(1) - layer.components["x"].unsqueeze(0)) / self.kernel.sigma
        weights = torch.softmax(layer.logits, -1) * torch.exp(-difference.square().sum(-1))
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-12)
        packed = torch.cat([weights.unsqueeze(-1), layer.components["y"].expand(len(z), -1, -1)], -1)
        amplitudes = packed[..., 1:]
        amplitudes = amplitudes / amplitudes.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        probs = torch.einsum("ij,ijk->ik", packed[..., 0], amplitudes.square())
        return -probs.gather(1, y.unsqueeze(1)).squeeze(1).clamp_min(1e-12).log()


@dataclass(frozen=True)
class EpochCase:
    """An epoch of fitting rows with ten classes."""

    rows: int
    features: int
    components: int = 256
    repetitions: int = 5

    @property
    def key(self) -> dict[str, Any]:
        sizes = f"{self.rows:,} rows, d={self.features}, {self.components} components"
        return {"case": f"epoch of KDMClassifier.fit, {sizes}"}

    def peers(self) -> dict[str, Callable[[Any, Any, int, int], list[float]]]:
        return {"kdmkit": _estimator, "materialised": _materialised}

    def measure(self, peer: str, seconds: float) -> dict[str, Any]:
        """The median and the range of seconds per epoch; the number of repetitions is fixed."""
        X, y = make_classification(
            self.rows,
            self.features,
            n_informative=self.features // 2,
            n_classes=_CLASSES,
            random_state=0,
        )
        times = sorted(self.peers()[peer](X, y, self.components, self.repetitions))
        timing = Timing(statistics.median(times), times[0], times[-1], len(times))
        return {**asdict(timing), "extra_bytes": None, "error": None}


def epoch_cases() -> list[EpochCase]:
    return [EpochCase(10_000, 64), EpochCase(50_000, 30)]


def _estimator(X: Any, y: Any, m: int, repetitions: int) -> list[float]:
    """The cost of one more epoch: fits differ in nothing else."""
    model = KDMClassifier(trend=None, n_components=m, device="cpu", random_state=0)
    few, many = 1, 4
    model.set_params(max_epochs=few).fit(X, y)
    times = []
    for _ in range(repetitions):
        seconds = []
        for epochs in (few, many):
            start = time.perf_counter()
            model.set_params(max_epochs=epochs).fit(X, y)
            seconds.append(time.perf_counter() - start)
        times.append((seconds[1] - seconds[0]) / (many - few))
    return times


def _materialised(X: Any, y: Any, m: int, repetitions: int) -> list[float]:
    """Epochs of the same loop, with the same part held out."""
    default = KDMClassifier()
    parts = train_test_split(X, y, test_size=default.validation_fraction, random_state=0)
    x, x_held, labels, labels_held = (torch.from_numpy(part) for part in parts)
    x, x_held = x.float(), x_held.float()
    kernel = RBF(torch.ones(x.shape[1]))
    layer = JointLayer(x.shape[1], _CLASSES, m, in_kernel=kernel)
    layer.initialize(x, labels, generator=torch.Generator().manual_seed(0))
    options = FitOptions(
        max_epochs=repetitions + 1,
        batch_size=max(64, min(512, len(x) // 64)),  # that of estimators
        learning_rate=_RATE,
        patience=None,
        device="cpu",
    )
    stamps: list[float] = []
    fit(
        MaterialisedLoss(layer, kernel, default.noise),
        Rows((x, labels)),
        Rows((x_held, labels_held)),
        options=options,
        on_epoch=lambda _: stamps.append(time.perf_counter()),
    )
    return [b - a for a, b in pairwise(stamps)]
