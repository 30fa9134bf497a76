"""A demonstration in a minute: one model of handwritten digits classifies, detects novelty and generates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from kdmkit import KDMClassifier, plotting
from kdmkit.metrics import expected_calibration_error
from kdmlab.common import Report
from kdmlab.common.files import make_folder

Array = NDArray[Any]
_SIDE, _WHITE = 8, 16.0
# Figures show draws with narrower kernels than the fitted ones: pixels then have less noise.
_SPREAD = 0.3
# Images of each digit in a figure: held-out ones, and draws.
_READ, _DRAWN = 6, 10
# Nats up to which the figure's scale of log p(x) is linear.
_LINEAR = 100.0


def run(folder: Path, *, seed: int = 0, verbose: bool = True, say: Callable[[str], None] = print) -> Report:
    """Fits one joint KDM to scikit-learn's digits: classes, calibration, novelty and generated images.

    Args:
        folder: where the figures go.
        seed: of the split, the fit and the draws.
        verbose: whether to show the fit's progress.
        say: takes one line of commentary at a time.
    """
    make_folder(folder)
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.25, stratify=y, random_state=seed)
    say(f"Fitting one joint KDM of image and digit to {len(X)} images …")
    model = KDMClassifier(random_state=seed, verbose=verbose).fit(X, y)
    answers = _Answers(model, X_test, y_test, seed)
    say("Predicting held-out images, scoring novelty, generating images …")
    return Report("One model of digits", ["what", "value"], answers.table(), files=answers.figures(folder))


class _Answers:
    """A fitted model's answers on held-out images."""

    def __init__(self, model: KDMClassifier, X: Array, y: Array, seed: int) -> None:
        self.model, self.X, self.y = model, X, y
        self.probs = model.predict_proba(X)
        self.digits = model.score_samples(X)
        noise = np.random.default_rng(seed).uniform(0, _WHITE, X.shape)
        self.novel = {"noise": model.score_samples(noise), "inverted": model.score_samples(_WHITE - X)}
        self.drawn = np.concatenate(
            [model.sample(10, y=digit, random_state=digit) for digit in model.classes_]
        )
        asked = [[digit] for digit in model.classes_] + [[3, 8]]
        self.shown = np.concatenate([_clear_draws(model, digits, seed) for digits in asked])

    def table(self) -> list[Sequence[str]]:
        right = self.probs.argmax(1) == self.y
        asked = np.repeat(self.model.classes_, 10)
        rows: list[Sequence[str]] = [
            ("images held out", f"{len(self.y)}"),
            ("accuracy", f"{right.mean():.4f}"),
            ("expected calibration error", f"{float(expected_calibration_error(self.probs, self.y)):.4f}"),
            (
                "mean log p(y|x)",
                f"{self.model.predict_log_proba(self.X)[np.arange(len(self.y)), self.y].mean():.4f}",
            ),
            ("mean log p(x), nats", f"{self.digits.mean():.1f}"),
            ("drawn digits read as asked", f"{(self.model.predict(self.drawn) == asked).mean():.3f}"),
        ]
        for name, scores in self.novel.items():
            rows.append((f"mean log p(x), {name}", f"{scores.mean():.1f}"))
            rows.append((f"novelty AUROC against {name}", f"{self._auroc(scores):.4f}"))
        return rows

    def _auroc(self, novel: Array) -> float:
        truth = np.r_[np.zeros(len(self.digits)), np.ones(len(novel))]
        return float(roc_auc_score(truth, -np.r_[self.digits, novel]))

    def figures(self, folder: Path) -> list[Path]:
        drawings = {
            "generated.png": self._plot_images,
            "reliability.png": lambda: plotting.plot_reliability(self.probs, self.y),
            "novelty.png": lambda: _plot_novelty({"digits": self.digits, **self.novel}),
        }
        return [_save(folder / name, draw) for name, draw in drawings.items()]

    def _plot_images(self) -> Any:
        """Held-out images by the digit they were read as, beside images drawn for each digit."""
        import matplotlib.pyplot as plt

        _, (left, right) = plt.subplots(
            1, 2, figsize=(10.5, 6.9), layout="constrained", width_ratios=[0.93 * _READ, _DRAWN]
        )
        read = self.probs.argmax(1)
        shown = np.concatenate([self.X[read == digit][:_READ] for digit in range(len(self.model.classes_))])
        names = [str(digit) for digit in self.model.classes_]
        _grid(shown, names, _READ, left, "held-out images, by the digit it reads")
        title = f"draws for each digit, at {_SPREAD} of the fitted spread"
        _grid(self.shown, [*names, "3 or 8"], _DRAWN, right, title)
        return left


def _clear_draws(model: KDMClassifier, digits: list[int], seed: int) -> Array:
    """Images of any of some digits, drawn from the model run backwards with narrower kernels."""
    probs = np.zeros(len(model.classes_))
    probs[digits] = 1 / len(digits)
    return model.sample(_DRAWN, y=probs, spread=_SPREAD, random_state=seed)


def _grid(images: Array, labels: list[str], columns: int, ax: Any, title: str) -> None:
    tiles = images.clip(0, _WHITE).reshape(-1, _SIDE, _SIDE)
    plotting.plot_image_grid(tiles, labels, columns, ax=ax, value_range=(0, _WHITE))
    for tile in ax.images:
        # Eight by eight pixels are easier to read with their edges smoothed.
        tile.set_interpolation("bicubic")
    ax.set_title(title, fontsize="medium")
    ax.set_anchor("N")


def _plot_novelty(scores: dict[str, Array]) -> Any:
    """Histograms of log p(x) of known and of novel inputs."""
    import matplotlib.pyplot as plt

    _, ax = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
    everything = np.concatenate(list(scores.values()))
    # Even steps of a scale that is linear near zero and logarithmic beyond.
    ends = np.arcsinh([everything.min() / _LINEAR, everything.max() / _LINEAR])
    bins = (_LINEAR * np.sinh(np.linspace(ends[0], ends[1], 90))).tolist()
    for (name, values), colour in zip(scores.items(), ("#0072B2", "#D55E00", "#009E73"), strict=True):
        ax.hist(values, bins=bins, label=name, color=colour, alpha=0.75)
    ax.set_xscale("asinh", linear_width=_LINEAR)
    ax.set_yscale("log")
    ax.set(xlabel="log p(x), nats", ylabel="images", title="log p(x) of digits and of other images")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, loc="upper center")
    return ax


def _save(path: Path, draw: Callable[[], Any]) -> Path:
    import matplotlib.pyplot as plt

    figure = draw().figure
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path
