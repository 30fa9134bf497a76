"""Scores of a tree's variables for training: equal kernels together, and equal values once."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from kdmkit.distributions.component_scores import distinct_events, relative_scores, scores_of_each
from kdmkit.distributions.mixing import Entry
from kdmkit.kernels import Kernel
from kdmkit.ops.messages import Indexed, NodeScores


@dataclass(frozen=True)
class TreeScores:
    """log f̂(x | c_i) of the cells of rows, in two parts that have to be added.

    Attributes:
        by_name: by variable, `(n, k)`, `Indexed` if few values differ; 0 for cells that are missing.
        tops: by variable, what all components have in common, `(n,)`; variables without one may be left out.
    """

    by_name: Mapping[str, NodeScores]
    tops: Mapping[str, Float[Tensor, " n"]]

    def total_top(self, names: Iterable[str] | None = None) -> Float[Tensor, " n"] | float:
        """The sum of what the components of all variables, or of some, have in common."""
        some = self.tops if names is None else {name: self.tops[name] for name in names if name in self.tops}
        return torch.stack(list(some.values())).sum(0) if some else 0.0

    def expanded(self) -> TreeScores:
        """The same with scores of all rows for every variable."""
        scores = {
            name: score.expanded() if isinstance(score, Indexed) else score
            for name, score in self.by_name.items()
        }
        return TreeScores(scores, self.tops)

    def without(self, names: Collection[str]) -> TreeScores:
        """The scores of rows in which the cells of some variables are missing."""
        scores = {name: _nothing(score) if name in names else score for name, score in self.by_name.items()}
        return TreeScores(scores, {name: top for name, top in self.tops.items() if name not in names})


def _nothing(score: NodeScores) -> Float[Tensor, "1 k"]:
    some = score.distinct if isinstance(score, Indexed) else score
    return some.new_zeros(1, some.shape[-1])


def group_kernels(kernels: Mapping[str, Kernel], components: Mapping[str, Tensor]) -> list[list[str]]:
    """Variables in groups that may share one kernel: equal settings, shapes, and nothing that is trained."""
    groups: dict[str, list[str]] = {}
    for name, kernel in kernels.items():
        is_trained = any(parameter.requires_grad for parameter in kernel.parameters())
        value = components[name]
        shared = [kernel.config(), list(value.shape), str(value.dtype)]
        key = name if is_trained else json.dumps(shared)
        groups.setdefault(key, []).append(name)
    return list(groups.values())


def grouped_scores(
    groups: Sequence[Sequence[str]],
    kernels: Mapping[str, Kernel],
    components: Mapping[str, Tensor],
    values: Mapping[str, Tensor],
    masks: Mapping[str, Tensor] | None,
) -> TreeScores:
    """log f̂(x | c_i) relative to the largest one of the row, and the largest ones, by variable.

    Args:
        groups: of `group_kernels`.
        values: by variable, `(n, *event)` or labels `(n,)`.
        masks: by variable, False if the value is missing.
    """
    scores: dict[str, NodeScores] = {}
    tops: dict[str, Tensor] = {}
    alone: dict[str, Entry] = {}
    for names in groups:
        kernel, first = kernels[names[0]], names[0]
        value = torch.stack([values[name] for name in names], 1)
        few = distinct_events(value)
        if few is None and len(names) == 1:
            keep = None if masks is None else masks[first]
            alone[first] = Entry(kernel, values[first], components[first], keep=keep)
            continue
        keep = None if masks is None else torch.stack([masks[name] for name in names], 1)
        together = torch.stack([components[name] for name in names])
        if few is None:
            relative, top = _scores_of_all(Entry(kernel, value, together, keep=keep))
        else:
            relative, top = _scores_of_few(kernel, *few, together, keep)
        scores |= dict(zip(names, relative, strict=True))
        tops |= dict(zip(names, top.unbind(1), strict=True))
    for name, (score, top) in zip(alone, scores_of_each(list(alone.values())), strict=True):
        scores[name], tops[name] = score, top
    return TreeScores(scores, tops)


def _scores_of_all(entry: Entry) -> tuple[list[NodeScores], Float[Tensor, "n g"]]:
    """Scores of g variables with one kernel, values `(n, g, *event)`, and their largest ones."""
    relative, top = relative_scores([entry])
    n, g = entry.value.shape[:2]
    return list(relative.expand(n, g, -1).unbind(1)), top.expand(n, g)


def _scores_of_few(
    kernel: Kernel,
    events: Shaped[Tensor, "u *event"],
    index: Int[Tensor, "n g"],
    components: Shaped[Tensor, "g k *component"],
    keep: Bool[Tensor, "n g"] | None,
) -> tuple[list[NodeScores], Float[Tensor, "n g"]]:
    """As `_scores_of_all`, from the distinct events and which of them each value is."""
    u, g = len(events), index.shape[1]
    events = events.unsqueeze(1).expand(u, g, *events.shape[1:])
    relative, top = relative_scores([Entry(kernel, events, components)])
    relative, top = relative.expand(u, g, -1), top.expand(u, g)
    if keep is not None:
        # One row more, of missing values: their scores are 0.
        relative, top = (torch.cat([part, torch.zeros_like(part[:1])]) for part in (relative, top))
        index = torch.where(keep, index, u)
    scores = [Indexed(*part) for part in zip(relative.unbind(1), index.unbind(1), strict=True)]
    return list(scores), top.gather(0, index)
