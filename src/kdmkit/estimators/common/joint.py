"""The base of estimators of a joint distribution."""

from __future__ import annotations

import warnings
from typing import Any

from sklearn.utils import Tags
from torch import Tensor, nn

from kdmkit._core.checks import check_number
from kdmkit.estimators.common.arrays import Array
from kdmkit.estimators.common.base import KDMEstimator, TensorAnswer
from kdmkit.nn import Predictor, Scaler
from kdmkit.nn.initialize import Sigma
from kdmkit.nn.predictor import dtype_of

# Standardised inputs beyond this are compressed: ordinary columns hardly reach it.
INPUT_LIMIT = 5.0


class JointEstimator(KDMEstimator):
    """Base of the estimators whose module is a `Predictor`: a joint KDM over rows and targets."""

    module_: Predictor
    history_: list[dict[str, float]]
    pretraining_history_: list[dict[str, float]]

    encoder: Any
    sigma: Any

    # ---- fitting

    @property
    def _takes_anything(self) -> bool:
        """Whether inputs may have any shape: a user's encoder gets them as they are, images for example."""
        return isinstance(self.encoder, nn.Module)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = self._takes_anything
        return tags

    def _input_scaler(self, x: Tensor, weights: Tensor | None) -> dict[str, Scaler]:
        return {} if self._takes_anything else {"x": Scaler.from_data(x, weights, limit=INPUT_LIMIT)}

    def _training_inputs(self, x: Tensor, scalers: dict[str, Scaler]) -> Tensor:
        return scalers["x"](x).float() if "x" in scalers else x.to(dtype_of(self.encoder))

    def _keep_histories(self, histories: dict[str, list[dict[str, float]]]) -> None:
        self.history_ = histories["joint"]
        self.pretraining_history_ = histories.get("pretraining", [])

    def _first_sigma(self, automatic: Sigma) -> Sigma:
        """Where a learned bandwidth starts."""
        if isinstance(self.sigma, str) and self.sigma == "auto":
            return automatic
        return check_number("sigma", self.sigma, "'auto' or a number > 0", positive=True)

    # ---- answers

    def _inputs(self, X: Any) -> Tensor:
        return self._rows(X, allow_nd=self._takes_anything)

    def score_samples(self, X: Any) -> Array:
        """log p(x) of every row: low for rows unlike the training data.

        Behind an encoder it is log p(z) of the latent vector, which tells novel rows only if the fit learned
        it: with `generative_weight` > 0.
        """
        x = self._inputs(X)
        if self._takes_anything and self._density_weight() == 0:
            message = (
                "score_samples: log p(z) was no part of the fit and tells little about novelty; fit with "
                "generative_weight=1, and normalise the output of an encoder of your own"
            )
            warnings.warn(message, UserWarning, stacklevel=2)
        return self._rowwise(self._answers()["score_samples"], x)

    def _density_weight(self) -> float:
        """How much log p(z) counted in the loss behind an encoder, where that can be chosen."""
        return 1.0

    def _answers(self) -> dict[str, TensorAnswer]:
        return {"score_samples": self.module_.log_density}
