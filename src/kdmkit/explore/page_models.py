"""The models of a page, loaded or fitted in the background; classifiers of images; and two examples."""

from __future__ import annotations

import csv
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

import anyio
import anyio.to_thread
import numpy as np

from kdmkit._core.checks import bad_argument
from kdmkit._core.runtime import in_one_thread
from kdmkit.estimators import KDMClassifier
from kdmkit.estimators.table.display import plain, shown
from kdmkit.explore.endpoints import ImageLabel, ImagePixels
from kdmkit.explore.guard import RequestError

# Draws of every class with which an image is compared.
_DRAWS = 20
# Pixels whose mean is above this share of the brightest one are inside the frame that images fill.
_INSIDE = 0.15
_LEAST_SIDE = 4


def image_shape(model: KDMClassifier) -> tuple[int, int] | None:
    """Height and width, if the features of a model can be the pixels of a square image."""
    side = math.isqrt(int(model.n_features_in_))
    return (side, side) if side >= _LEAST_SIDE and side * side == model.n_features_in_ else None


class ImageModel:
    """A classifier of images with the methods that endpoints call.

    Args:
        name: the name on the page.
        model: a fitted classifier whose rows are images, pixel by pixel.
        shape: height and width.
    """

    kind = "images"

    def __init__(self, name: str, model: KDMClassifier, shape: tuple[int, int]) -> None:
        self.name, self.model, self.shape = name, model, shape
        drawn = np.concatenate([model.sample(_DRAWS, y=y, random_state=1) for y in model.classes_.tolist()])
        self._scores = np.sort(model.score_samples(drawn))
        typical = drawn if model.module_.encoder is not None else model.joint_.components["x"].cpu().numpy()
        self.low, self.high = _bounds(typical)
        self.box = _frame(typical.mean(0).reshape(shape))
        self.ink = float((typical.mean() - self.low) / (self.high - self.low))

    def view(self) -> dict[str, Any]:
        height, width = self.shape
        return {
            "kind": self.kind,
            "name": self.name,
            "height": height,
            "width": width,
            "low": self.low,
            "high": self.high,
            "box": list(self.box),
            "ink": self.ink,
            "classes": [plain(label) for label in self.model.classes_.tolist()],
        }

    def read(self, question: ImagePixels) -> dict[str, Any]:
        """Class probabilities of an image, and how usual it is."""
        if len(question.pixels) != math.prod(self.shape):
            raise ValueError(bad_argument("pixels", f"{math.prod(self.shape)} numbers", len(question.pixels)))
        row = np.asarray([question.pixels], dtype=np.float64).clip(self.low, self.high)
        probs = self.model.predict_proba(row)[0].tolist()
        score = float(self.model.score_samples(row)[0])
        return {
            "probabilities": probs,
            "shares": [f"{p:.1%}" for p in probs],
            "log_density": shown(score),
            "usual": float(np.searchsorted(self._scores, score) / len(self._scores)),
        }

    def draw(self, question: ImageLabel) -> dict[str, Any]:
        """Images of a label, from p(x|y)."""
        drawn = self.model.sample(
            question.n, y=question.label, spread=float(question.spread), random_state=question.seed
        )
        return {"images": np.round(drawn.clip(self.low, self.high), 3).tolist()}


def _bounds(images: np.ndarray) -> tuple[float, float]:
    """The values of black and white, rounded to whole numbers if their range is large."""
    low, high = map(float, np.quantile(images, [0.01, 0.99]))
    return (float(round(low)), float(round(high))) if high - low > 3 else (round(low, 1), round(high, 1))


def _frame(mean: np.ndarray) -> tuple[int, int, int, int]:
    """Top, left, bottom, right of the part of images that drawings fill; the ends are included."""
    inside = mean - mean.min() > _INSIDE * (mean.max() - mean.min())
    rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
    return int(rows[0]), int(columns[0]), int(rows[-1]), int(columns[-1])


Kind = Literal["table", "images"]

# Questions that are computed at the same time in one process, and characters of an error.
_AT_ONCE, _LONGEST_ERROR = 1, 500
# The example of digits: deformed copies of every digit, their rotation and shift (in pixels), and the
# bandwidth in standard deviations of pixels. Fitted to the first 1,200 digits, none of 28 settings reads more
# of the others (96.8 %), and this one finds fewer than 5 % of them novel.
_COPIES, _TURN, _MOVE, _SIGMA = 3, 0.06, 0.3, 1.0


@dataclass(eq=False, repr=False)
class PageModel:
    """A model of the page, and whether it is loaded. `example_models` returns them.

    Args:
        name: the name on the page.
        source: a fitted model, or a function that makes one.
        kind: the kind of page until the model is ready.
        message: the text on the page until then.
        path: the file that the model comes from.

    >>> from kdmkit.explore import PageModel
    >>> PageModel("penguins", source=lambda: None).state
    'loading'
    """

    name: str
    source: Any
    kind: Kind = "table"
    message: str = "Loading the model …"
    path: str | None = None
    state: Literal["loading", "ready", "failed"] = field(default="loading", init=False)
    model: Any = field(default=None, init=False)
    error: Exception | None = field(default=None, init=False)

    def prepare(self) -> None:
        """Makes the model, or stores the error."""
        try:
            model = self.source() if callable(self.source) else self.source
            self.model = wrap(self.name, model, self.path)
            self.kind, self.state, self.message = self.model.kind, "ready", ""
        except Exception as error:
            self.error, self.state, self.message = error, "failed", str(error)

    def view(self) -> dict[str, str]:
        """The state of the model as JSON for the page."""
        return {"name": self.name, "kind": self.kind, "state": self.state, "message": self.message}


def wrap(name: str, model: Any, path: str | None = None) -> Any:
    """A fitted estimator with the methods that endpoints call."""
    from kdmkit.estimators import KDMClassifier, KDMTable
    from kdmkit.explore.page_models import ImageModel, image_shape
    from kdmkit.explore.table_page import TableModel

    if isinstance(model, KDMTable):
        return TableModel(name, model, path)
    if isinstance(model, KDMClassifier):
        shape = image_shape(model)
        if shape is not None:
            return ImageModel(name, model, shape)
        got = f"one of {model.n_features_in_} features"
        raise ValueError(bad_argument("model", "a classifier of square images, or a KDMTable", got))
    raise TypeError(bad_argument("model", "a KDMTable or a KDMClassifier", type(model).__name__))


class Models(ABC):
    """The models of a server, by name.

    Args:
        entries: models, or functions that make them; in the order in which they are made.
        on_failure: called with the error of a model that could not be made.
    """

    def __init__(
        self, entries: Mapping[str, Any], on_failure: Callable[[Exception], None] | None = None
    ) -> None:
        if not entries:
            raise ValueError(bad_argument("models", "at least one", "none"))
        self.entries = {n: e if isinstance(e, PageModel) else PageModel(n, e) for n, e in entries.items()}
        self.on_failure = on_failure

    @abstractmethod
    def start(self) -> None:
        """Makes the models in the background."""

    @abstractmethod
    def stop(self) -> None:
        """Ends what `start` began."""

    @abstractmethod
    async def ask(self, name: str, kind: Kind | None, method_name: str, *arguments: Any) -> Any:
        """The answer of a model's method; raises if the model is not ready."""

    @abstractmethod
    def counts(self) -> dict[str, dict[str, int]]:
        """Numbers for the metrics, by model."""

    def view(self) -> list[dict[str, str]]:
        return [entry.view() for entry in self.entries.values()]

    def check(self, name: str, kind: Kind | None = None) -> PageModel:
        """A model that is ready; raises if it is unknown, not ready, or of another kind."""
        entry = self.entries.get(name)
        if entry is None:
            raise RequestError(404, "there is no model of this name")
        if entry.state != "ready":
            raise RequestError(503, entry.message)
        if kind is not None and entry.kind != kind:
            raise RequestError(404, f"this question is for models of {kind}")
        return entry


class ThreadModels(Models):
    """Models of this process: questions are answered one after the other, in a thread."""

    def __init__(
        self, entries: Mapping[str, Any], on_failure: Callable[[Exception], None] | None = None
    ) -> None:
        super().__init__(entries, on_failure)
        self._thread: threading.Thread | None = None
        self._limiter: anyio.CapacityLimiter | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self.prepare, daemon=True, name="kdmkit-explore-models")
            self._thread.start()

    def prepare(self) -> None:
        """Makes the models, one after the other."""
        for entry in self.entries.values():
            if entry.state == "loading":
                entry.prepare()
            if entry.error is not None and self.on_failure is not None:
                self.on_failure(entry.error)

    def stop(self) -> None:
        """Nothing: threads end with their process."""

    async def ask(self, name: str, kind: Kind | None, method_name: str, *arguments: Any) -> Any:
        method = getattr(self.check(name, kind).model, method_name)
        if self._limiter is None:  # belongs to the event loop
            self._limiter = anyio.CapacityLimiter(_AT_ONCE)
        return await anyio.to_thread.run_sync(
            in_one_thread, answer_or_refuse, method, *arguments, limiter=self._limiter
        )

    def counts(self) -> dict[str, dict[str, int]]:
        return {}


def answer_or_refuse(call: Callable[..., Any], *arguments: Any) -> Any:
    """An answer; a question that a model cannot take is a refused request."""
    try:
        return call(*arguments)
    except (ValueError, TypeError, OverflowError) as error:
        raise RequestError(422, str(error)[:_LONGEST_ERROR]) from error


# ---- examples


def example_models() -> dict[str, PageModel]:
    """Penguins and digits, which are fitted while the page opens: this takes some seconds.

    Returns:
        Models by name for `show` and `create_app`, which fit them in the background.

    >>> sorted(example_models())
    ['digits', 'penguins']
    """
    return {
        "penguins": PageModel("penguins", fit_penguins, "table", "Fitting a table of 344 penguins …"),
        "digits": PageModel("digits", fit_digits, "images", "Fitting 1,797 handwritten digits …"),
    }


def penguins() -> dict[str, Any]:
    """Penguins of the Palmer Archipelago (Gorman, Williams and Fraser 2014; package palmerpenguins, CC0)."""
    text = resources.files("kdmkit.explore").joinpath("data", "penguins.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    columns: dict[str, Any] = {}
    for name in rows[0]:
        cells = [row[name] for row in rows]
        if name.endswith(("_mm", "_g")):
            columns[name] = np.array([float(cell or "nan") for cell in cells])
        else:
            columns[name] = np.array([cell or None for cell in cells], dtype=object)
    return columns


def fit_penguins() -> Any:
    """A table of penguins, with few components and epochs: a fit takes seconds."""
    from kdmkit.estimators import KDMTable

    return KDMTable(n_components=16, max_epochs=60, random_state=0).fit(penguins())


def fit_digits(n: int | None = None) -> Any:
    """A joint KDM of scikit-learn's digits, or of the first n: every image is a component.

    Deformed copies stand for the ways in which other people write, here with a mouse.
    """
    from sklearn.datasets import load_digits

    from kdmkit.estimators import KDMClassifier

    X, y = load_digits(return_X_y=True)
    X, y, rng = X[:n], y[:n], np.random.default_rng(0)
    images = [X, *(np.stack([_deformed(row, rng) for row in X]) for _ in range(_COPIES))]
    model = KDMClassifier("nonparametric", sigma=_SIGMA)
    return model.fit(np.concatenate(images), np.tile(y, len(images)))


def _deformed(row: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An image of 8 × 8 pixels, slightly turned, stretched, slanted and moved."""
    from scipy import ndimage

    turn = np.eye(2) + rng.normal(0.0, _TURN, (2, 2))
    turn[1, 0] += rng.normal(0.0, _TURN)
    middle = np.full(2, 3.5)
    offset = middle - turn @ middle + rng.normal(0.0, _MOVE, 2)
    moved = ndimage.affine_transform(row.reshape(8, 8), turn, offset, order=1)
    return np.asarray(moved.reshape(-1).clip(0.0, 16.0))
