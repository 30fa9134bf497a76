"""The models of a page: loaded or fitted in the background, while the page is there already."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

from kdmkit._core.checks import bad_argument
from kdmkit.explore.errors import NotReadyError, UnknownError

#: A fitted model, or what makes one.
Source = Any
Kind = Literal["table", "images"]


class Entry:
    """One model of the page, and whether it is loaded. `example_models` returns them.

    Args:
        name: what the page calls it.
        source: a fitted model, or a function that makes one.
        kind: what the page shows until the model is there.
        message: what the page says until then.
        path: the file that the model comes from.

    >>> from kdmkit.explore import Entry
    >>> Entry("penguins", source=lambda: None).state
    'loading'
    """

    def __init__(
        self,
        name: str,
        source: Source,
        kind: Kind = "table",
        message: str = "Loading the model …",
        path: str | None = None,
    ) -> None:
        self.name, self.source, self.kind, self.message, self.path = name, source, kind, message, path
        self.state: Literal["loading", "ready", "failed"] = "loading"
        self.model: Any = None
        self.error: Exception | None = None

    def prepare(self) -> None:
        """Makes the model; an error is kept."""
        try:
            model = self.source() if callable(self.source) else self.source
            self.model = wrap(self.name, model, self.path)
            self.kind, self.state, self.message = self.model.kind, "ready", ""
        except Exception as error:
            self.error, self.state, self.message = error, "failed", str(error)

    def view(self) -> dict[str, str]:
        """What the page is told about the model."""
        return {"name": self.name, "kind": self.kind, "state": self.state, "message": self.message}


def wrap(name: str, model: Any, path: str | None = None) -> Any:
    """A fitted estimator as the page asks it."""
    from kdmkit.estimators import KDMClassifier, KDMTable
    from kdmkit.explore.images import ImageModel, image_shape
    from kdmkit.explore.tables import TableModel

    if isinstance(model, KDMTable):
        return TableModel(name, model, path)
    if isinstance(model, KDMClassifier):
        shape = image_shape(model)
        if shape is not None:
            return ImageModel(name, model, shape)
        got = f"one of {model.n_features_in_} features"
        raise ValueError(bad_argument("model", "a classifier of square images, or a KDMTable", got))
    raise TypeError(bad_argument("model", "a KDMTable or a KDMClassifier", type(model).__name__))


class Models:
    """The models of a page, by name.

    Args:
        entries: models, or functions that make them; in the order in which they are made.
        on_failure: called with the error of a model that could not be made.
    """

    def __init__(
        self, entries: Mapping[str, Any], on_failure: Callable[[Exception], None] | None = None
    ) -> None:
        if not entries:
            raise ValueError(bad_argument("models", "at least one", "none"))
        self._entries = {n: e if isinstance(e, Entry) else Entry(n, e) for n, e in entries.items()}
        self._on_failure = on_failure
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Makes the models in the background, one after the other."""
        if self._thread is None:
            self._thread = threading.Thread(target=self.prepare, daemon=True, name="kdmkit-explore-models")
            self._thread.start()

    def prepare(self) -> None:
        for entry in self._entries.values():
            if entry.state == "loading":
                entry.prepare()
            if entry.error is not None and self._on_failure is not None:
                self._on_failure(entry.error)

    def view(self) -> list[dict[str, str]]:
        return [entry.view() for entry in self._entries.values()]

    def get(self, name: str, kind: Kind | None = None) -> Any:
        """A model that is there; one that is absent, of another kind or not there yet raises."""
        entry = self._entries.get(name)
        if entry is None:
            raise UnknownError("there is no model of this name")
        if entry.state != "ready":
            raise NotReadyError(entry.message)
        if kind is not None and entry.kind != kind:
            raise UnknownError(f"this question is for models of {kind}")
        return entry.model
