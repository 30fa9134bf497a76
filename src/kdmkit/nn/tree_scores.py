"""Scores of a tree's variables, those with equal kernels together: a table of 200 columns is one look-up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from kdmkit.distributions.mixing import Entry, relative_scores
from kdmkit.kernels import Kernel


def group_kernels(kernels: Mapping[str, Kernel], components: Mapping[str, Tensor]) -> list[list[str]]:
    """Variables in groups that may share one kernel: equal settings, shapes, and nothing that is trained."""
    groups: dict[str, list[str]] = {}
    for name, kernel in kernels.items():
        own = any(parameter.requires_grad for parameter in kernel.parameters())
        value = components[name]
        shared = [kernel.config(), list(value.shape), str(value.dtype)]
        key = name if own else json.dumps(shared)
        groups.setdefault(key, []).append(name)
    return list(groups.values())


def grouped_scores(
    groups: Sequence[Sequence[str]],
    kernels: Mapping[str, Kernel],
    components: Mapping[str, Tensor],
    values: Mapping[str, Tensor],
    masks: Mapping[str, Tensor] | None,
) -> tuple[dict[str, Float[Tensor, "n k"]], Float[Tensor, " n"]]:
    """By variable, log f̂(x | c_i) relative to the largest one of the row; and the sum of the largest ones.

    Args:
        groups: of `group_kernels`.
        values: by variable, `(n, *event)` or labels `(n,)`.
        masks: by variable, False where the value is missing.
    """
    scores: dict[str, Tensor] = {}
    tops: list[Tensor] = []
    for names in groups:
        kernel = kernels[names[0]]
        together = torch.stack([components[name] for name in names])
        keep = None if masks is None else torch.stack([masks[name] for name in names], 1)
        entry = Entry(kernel, torch.stack([values[name] for name in names], 1), together, keep=keep)
        relative, top = relative_scores([entry])
        n = len(values[names[0]])
        scores |= dict(zip(names, relative.expand(n, len(names), -1).unbind(1), strict=True))
        tops.append(top.expand(n, len(names)).sum(1))
    return scores, torch.stack(tops).sum(0)
