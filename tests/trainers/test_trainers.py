"""Lightning trains a head behind an encoder as a loop of one's own does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import kdmkit as kdm
from helpers import normal, seeded

EPOCHS, BATCH, RATE, CLIP = 4, 32, 0.02, 0.5


def data() -> tuple[Tensor, Tensor]:
    x = normal(96, 3, seed=0, dtype=torch.float32)
    return x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long()


class Classifier(lightning.LightningModule):
    """An encoder and a head; `forward` returns the head's distribution."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng([]):
            torch.manual_seed(1)
            self.encoder = nn.Sequential(nn.Linear(3, 8), nn.Tanh())
        self.head = kdm.nn.JointLayer(8, 3, n_components=24, generator=seeded(2))
        x, y = data()
        self.head.initialize(self.encoder(x).detach(), y, generator=seeded(3))

    def forward(self, x: Tensor) -> kdm.KDM:
        return self.head(self.encoder(x))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        x, y = batch
        loss = -self(x).log_prob(y).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=RATE, weight_decay=0.0)


def trained(folder: Path, **options: Any) -> tuple[Classifier, lightning.Trainer]:
    module = Classifier()
    settings: dict[str, Any] = {
        "max_epochs": EPOCHS,
        "gradient_clip_val": CLIP,
        "accelerator": "cpu",
        "default_root_dir": folder,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        **options,
    }
    trainer = lightning.Trainer(**settings)
    trainer.fit(module, DataLoader(TensorDataset(*data()), BATCH))
    return module, trainer


def by_hand() -> Classifier:
    module = Classifier()
    optimizer = module.configure_optimizers()
    for _ in range(EPOCHS):
        for batch in DataLoader(TensorDataset(*data()), BATCH):
            optimizer.zero_grad()
            (-module(batch[0]).log_prob(batch[1]).mean()).backward()
            nn.utils.clip_grad_norm_(module.parameters(), CLIP)
            optimizer.step()
    return module


def accuracy(module: Callable[[Tensor], kdm.KDM]) -> float:
    x, y = data()
    with torch.no_grad():
        return float((module(x).probs.argmax(-1) == y).float().mean())


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
class TestTrainer:
    """Lightning's own warnings, about workers for example, say nothing about heads."""

    def test_a_loop_of_ones_own_gives_the_same(self, tmp_path: Path) -> None:
        module, _ = trained(tmp_path)
        for name, wanted in by_hand().state_dict().items():
            torch.testing.assert_close(module.state_dict()[name], wanted, rtol=1e-5, atol=1e-6)

    def test_bfloat16(self, tmp_path: Path) -> None:
        module, _ = trained(tmp_path, precision="bf16-mixed")
        exact = by_hand()
        assert abs(accuracy(module) - accuracy(exact)) < 0.05

    def test_averages_of_weights(self, tmp_path: Path) -> None:
        module, _ = trained(tmp_path, callbacks=[EMAWeightAveraging(decay=0.9)])
        last, _ = trained(tmp_path)
        assert not torch.equal(module.head.components["x"], last.head.components["x"])
        assert accuracy(module) > 0.8

    def test_checkpoints(self, tmp_path: Path) -> None:
        module, trainer = trained(tmp_path)
        trainer.save_checkpoint(tmp_path / "model.ckpt")
        loaded = Classifier.load_from_checkpoint(tmp_path / "model.ckpt", map_location="cpu")
        x, y = data()
        torch.testing.assert_close(loaded(x).log_prob(y), module(x).log_prob(y))

    def test_two_processes(self, tmp_path: Path) -> None:
        """Rows are dealt out, and gradients averaged."""
        module, _ = trained(tmp_path, devices=2, strategy="ddp_spawn", max_epochs=1)
        assert accuracy(module) > 0.5
