"""The two reductions of kernel density matrices, `log_mix` and `attend`, and the terms that they reduce."""

from kdmkit.ops.api import BACKENDS, Backend, attend, choose_backend, log_mix
from kdmkit.ops.chunked import combine
from kdmkit.ops.dense import score_matrix
from kdmkit.ops.terms import (
    ComponentDistance,
    LogSum,
    Lookup,
    Restricted,
    Score,
    SquaredDistance,
    Sum,
    Term,
)

__all__ = [
    "BACKENDS",
    "Backend",
    "ComponentDistance",
    "LogSum",
    "Lookup",
    "Restricted",
    "Score",
    "SquaredDistance",
    "Sum",
    "Term",
    "attend",
    "choose_backend",
    "combine",
    "log_mix",
    "score_matrix",
]

_REMOVED = {
    "Amplitudes": "use Lookup of log-probabilities",
    "InDtype": "convert the tensors of the term",
    "Masked": "kdmkit.JointKDM.infer has an argument observed",
    "PreparedSum": "use kdmkit.JointKDM.prepared",
    "PrunedSum": "use kdmkit.PreparedKDM",
    "RelativeScores": "use score_matrix",
    "attend_beside": "use attend, with a component for the background",
    "block_order": "kdmkit.PreparedKDM puts its components in order",
    "common_dtype": "use torch.promote_types",
    "log_labels_given": "use log_prob of kdmkit.JointKDM.infer",
    "log_mix_given": "use log_prob of kdmkit.JointKDM.infer",
    "log_posterior": "use log_softmax of score_matrix",
    "restricted": "use Restricted",
    "score_dtype": "use torch.promote_types",
    "whole": "use score_matrix",
}


def __getattr__(name: str) -> None:
    """Says what replaces a name that was public."""
    if name in _REMOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r} any more: {_REMOVED[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
