"""The base of all estimators: options of a fit, rows in blocks, draws."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from kdmkit._core.checks import bad_argument, check_choice, check_count, warn_user
from kdmkit._core.runtime import keep_freed_memory, map_in_threads
from kdmkit.estimators.common.arrays import Array, CheckedRows, checked_rows, plain, to_tensor
from kdmkit.estimators.common.arrow import (
    BatchAnswer,
    answer_batch,
    answer_rows,
    check_answer_options,
    feature_matrix,
)
from kdmkit.estimators.common.csv_parquet import batches_of
from kdmkit.nn.mixture_layer import prepare_layers
from kdmkit.nn.predictor import BLOCK
from kdmkit.training import FitOptions, Rows, fit
from kdmkit.training.checkpoint import fingerprint
from kdmkit.training.seeds import derive_seed, draws_globally, global_seed, is_replayable

# The default meanings of "auto".
_AUTOMATIC = {"max_epochs": 100, "learning_rate": 1e-2, "patience": 40}

#: Maps rows on the device of the module to one tensor, or to several.
TensorAnswer = Callable[[Tensor], Any]


@dataclass(eq=False, repr=False, kw_only=True)
class KDMEstimator(BaseEstimator, ABC):
    """Base of the estimators: dataclasses, whose constructors only store.

    They compare and print as scikit-learn's estimators do: `eq=False, repr=False`. `fit` checks parameters
    and sets `module_`. The parameters here are those of all estimators; some have other defaults.
    """

    n_components: Any = "auto"
    max_epochs: Any = 100
    batch_size: Any = "auto"
    learning_rate: float | Literal["auto"] = "auto"
    validation_fraction: float = 0.1
    patience: int | Literal["auto"] | None = 20
    checkpoint_dir: Any = None
    device: str = "auto"
    random_state: Any = None
    verbose: bool = False

    module_: Any = field(init=False)
    _seed: int = field(init=False)
    _n_draws: int = field(init=False)

    # ---- fitting

    @contextmanager
    def _seeded(self) -> Iterator[None]:
        """Checks the options and sets the fit's seed.

        Fits have generators of their own. Only a user's module may draw from torch's global one: it is seeded
        for the fit and restored afterwards. Gradients are on, also inside the caller's `torch.no_grad` or
        `torch.inference_mode`.
        """
        if self.checkpoint_dir is not None and not isinstance(self.random_state, int | np.integer):
            wanted = "an integer beside checkpoint_dir: a killed fit resumes only with the same seed"
            raise ValueError(bad_argument("random_state", wanted, self.random_state))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        FitOptions(**self._settings(seed, rows=1))
        device = self._fit_device()
        self._seed, self._n_draws = seed, 0
        modules = [value for value in self.get_params(deep=False).values() if isinstance(value, nn.Module)]
        seeding = global_seed(seed, device) if any(map(draws_globally, modules)) else nullcontext()
        with seeding, torch.inference_mode(False), torch.enable_grad():
            yield

    def _torch_generator(self) -> torch.Generator:
        """A new generator with the fit's seed."""
        return torch.Generator().manual_seed(self._seed)

    def _settings(self, seed: int, rows: int) -> dict[str, Any]:
        """Keyword arguments of `FitOptions`."""
        names = ("max_epochs", "batch_size", "learning_rate", "patience", "checkpoint_dir", "device")
        automatic = {**_AUTOMATIC, "batch_size": automatic_batch(rows)}
        given = {name: getattr(self, name) for name in names}
        # NumPy's numbers as Python's, as in `plain`: grids of parameters are full of them.
        settings = {name: v.item() if isinstance(v, np.generic) else v for name, v in given.items()}
        is_auto = {name: isinstance(value, str) and value == "auto" for name, value in settings.items()}
        settings |= {name: value for name, value in automatic.items() if is_auto[name]}
        return {**settings, "verbose": bool(self.verbose), "seed": seed}

    def _run(
        self, objective: nn.Module, rows: Rows, validation: Rows | None, description: str, **changes: Any
    ) -> list[dict[str, float]]:
        """Minimises an objective with the estimator's settings and `changes`, then moves it to the CPU."""
        options = FitOptions(**{**self._settings(self._seed, len(rows)), **changes})
        settings: dict[str, Any] = {"options": options, "identity": self._identity()}
        history = fit(objective, rows, validation, description=description, **settings)
        objective.cpu()
        return history

    def _identity(self, *data: Tensor) -> dict[str, Any]:
        """The identity of checkpoints of this fit, in addition to the options and the rows.

        Args:
            data: tensors that the objective uses beside the rows.
        """
        if self.checkpoint_dir is None:
            return {}
        hidden = {"checkpoint_dir", "verbose", "device", "random_state"}
        parameters = {k: v for k, v in self.get_params(deep=False).items() if k not in hidden}
        modules = {k: v for k, v in parameters.items() if isinstance(v, nn.Module)}
        return {
            "estimator": type(self).__name__,
            **{name: repr(plain(value)) for name, value in parameters.items()},
            **{f"{k}_weights": fingerprint({}, list(v.state_dict().values())) for k, v in modules.items()},
            "data": fingerprint({}, data),
        }

    def _count_components(self, n: int, automatic: int) -> int:
        """The number of components; more than samples become as many, with a warning."""
        if isinstance(self.n_components, str) and self.n_components == "auto":
            return min(automatic, n)
        wanted = check_count("n_components", self.n_components, "a whole number ≥ 1 or 'auto'")
        if wanted > n:
            message = f"n_components: {wanted} is more than the {n} samples to learn from; {n} are used"
            warn_user(message)
        return min(wanted, n)

    def _keep(self, module: nn.Module) -> None:
        """Keeps the fitted module, on the device of the fit."""
        self.module_ = prepare_layers(module.requires_grad_(False).eval().to(self._fit_device()))

    def _fit_device(self) -> torch.device:
        available = torch.cuda.is_available()
        if self.device == "cuda" and not available:
            raise ValueError(bad_argument("device", "'cpu' or 'auto' without a CUDA device", "'cuda'"))
        return torch.device("cuda" if available and self.device != "cpu" else "cpu")

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "module_")

    def __getstate__(self) -> dict[str, Any]:
        """Pickles hold CPU tensors, so that they load on machines without a GPU."""
        state = dict(super().__getstate__())
        if "module_" in state and self._device.type != "cpu":
            state["module_"] = copy.deepcopy(state["module_"]).cpu()
        return state

    # ---- answering

    def _batch_answers(self) -> dict[str, BatchAnswer]:
        """The answers of `stream` by name: functions of the rows of a batch, with keyword-only options."""
        return {"score": self._score_batch}

    def _score_batch(self, rows: CheckedRows) -> Any:
        return answer_rows(lambda X: {"log_prob": self.score_samples(X)}, rows)

    def _batch_rows(self, columns: Sequence[str] | None, keep: Sequence[str]) -> Callable[[Any], Any]:
        """A function that takes the rows out of an Arrow table.

        Args:
            columns: those that the caller chose.
            keep: those that answers repeat.
        """
        names = getattr(self, "feature_names_in_", None) if columns is None else columns
        names, count = None if names is None else list(names), int(vars(self)["n_features_in_"])
        return lambda table: CheckedRows(feature_matrix(table, names, count))

    def stream(
        self,
        what: str,
        data: Any = None,
        *,
        batch_size: int = 1 << 16,
        columns: Sequence[str] | None = None,
        keep: Sequence[str] = (),
        **options: Any,
    ) -> Iterator[Any]:
        """Passes batches of rows through the fitted estimator; only one batch is in memory.

        `kdmkit.BatchFunction` is the same for one batch, as a function that other processes can be sent.

        Args:
            what: `"score"`: log p(x), in the column `log_prob`; of densities, if wanted with `rtol=1e-3`.
                `"predict"`: of classifiers the likeliest class, in the column `y`, and with `proba=True` all
                probabilities, in `P(<class>)`; of regressors the mean, in the column `y`, and if wanted
                `std=True` (`y std`), `interval=0.9` (`y low`, `y high`) and `quantiles=[0.1, 0.5]`
                (`y q0.1`, …); several outputs are `y 0`, `y 1`, …. `target="price"` replaces the `y`.
            data: a path to CSV or Parquet, or an iterable of Arrow batches or other frames.
            batch_size: rows of a batch of a file.
            columns: the columns that hold the features, in their order; None takes those that the estimator
                was fitted to by name, or all columns if it was fitted to an array. One column of lists may
                hold all features.
            keep: columns of the batch that stand in front of the answers.
            options: those of `what`.

        Returns:
            Arrow tables, one for each batch, in order.

        >>> from kdmkit import KDMDensity
        >>> density = KDMDensity(sigma=1.0).fit([[0.0], [1.0]])
        >>> next(density.stream("score", [{"id": [7], "x": [0.5]}], columns=["x"], keep=["id"])).to_pydict()
        {'id': [7], 'log_prob': [-0.822...]}
        """
        check_is_fitted(self)
        batch_size = check_count("batch_size", batch_size)
        answers = self._batch_answers()
        check_choice("what", what, list(answers))
        check_answer_options(what, answers[what], options)
        for name, value in {"columns": columns, "keep": keep}.items():
            if isinstance(value, str):
                raise TypeError(bad_argument(name, "a list of names", repr(value)))
        if data is None:
            raise ValueError(
                bad_argument("data", "a path, or an iterable of frames or Arrow batches", "None")
            )
        answer, read = partial(answers[what], **options), self._batch_rows(columns, keep)
        return map(partial(answer_batch, read, answer, keep), batches_of(data, batch_size))

    @abstractmethod
    def fit(self, *data: Any, **options: Any) -> Any:
        """Fits the estimator; every estimator names the data that it needs."""

    @abstractmethod
    def score_samples(self, X: Any) -> Array:
        """log p of every row."""

    def _answers(self) -> dict[str, TensorAnswer]:
        """The methods that can be exported, by name: functions of rows on the device."""
        return {}

    def to_module(self, method: str) -> nn.Module:
        """A method of the fitted estimator as a module of tensors, for `torch.export` and ONNX.

        The module owns copies of the parameters. It takes rows, float32 or float64 and any number of them,
        and returns what the method does, in the precision of the method.

        Args:
            method: `"score_samples"`; `"predict_proba"` of classifiers; `"predict"` of `KDMRegressor`, which
                gives a pair: means and standard deviations.
        """
        check_is_fitted(self)
        check_choice("method", method, list(self._answers()))
        other = copy.copy(self)
        other.module_ = copy.deepcopy(self.module_)
        return MethodModule(other.module_, other._answers()[method])

    @property
    def _device(self) -> torch.device:
        device: torch.device = next(self.module_.parameters()).device
        return device

    def _rows(self, X: Any, *, allow_nd: bool = False) -> Tensor:
        """New rows, checked against those of the fit."""
        check_is_fitted(self)
        if isinstance(X, CheckedRows):
            return to_tensor(X.array)
        return to_tensor(checked_rows(self, X, allow_nd=allow_nd, reset=False))

    def _rowwise(self, answer: Callable[..., Tensor], *rows: Tensor) -> Array:
        """`answer` of every row, block by block, without gradients."""
        keep_freed_memory()
        device = self._device
        blocks = list(zip(*(tensor.split(BLOCK) for tensor in rows), strict=True))

        def of_block(block: tuple[Tensor, ...]) -> Tensor:
            return answer(*(part.to(device) for part in block)).cpu()

        # Threads of a pool do not know the caller's autocast.
        if device.type == "cpu" and is_replayable(self.module_) and not torch.is_autocast_enabled("cpu"):
            parts = map_in_threads(of_block, blocks)
        else:
            # Modules that users brought may not be safe to call from several threads.
            with torch.no_grad():
                parts = [of_block(block) for block in blocks]
        answers = torch.cat(parts)
        if bool(answers.isnan().any()):
            has_encoder = getattr(self, "encoder", None) is not None
            what = "the encoder's outputs are finite" if has_encoder else "distances to components are finite"
            wanted = f"rows for which {what}"
            raise ValueError(bad_argument("X", wanted, f"NaN for row {int(answers.isnan().nonzero()[0, 0])}"))
        return np.asarray(answers)

    def _generator(self, random_state: Any) -> torch.Generator:
        """A new stream for every call of a fitted estimator, the same stream for a given `random_state`."""
        if random_state is None:
            self._n_draws += 1
            seed = derive_seed(self._seed, self._n_draws)
        else:
            seed = int(check_random_state(random_state).randint(2**31 - 1))
        return torch.Generator(self._device).manual_seed(seed)


def automatic_batch(rows: int) -> int:
    """A sixty-fourth of the rows, between 64 and 512: small data needs many steps, large data fast ones."""
    return max(64, min(512, rows // 64))


class MethodModule(nn.Module):
    """answer(x) as a module, which `torch.export` takes.

    Args:
        module: with the parameters that `answer` uses.
        answer: maps a batch of rows to tensors.
    """

    def __init__(self, module: nn.Module, answer: TensorAnswer) -> None:
        super().__init__()
        self.module, self._answer = module, answer

    def forward(self, x: Tensor) -> Any:
        return self._answer(x)
