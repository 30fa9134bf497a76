"""The most probable values and states of a tree, given evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kdmkit._core.tensors import broadcast, pick
from kdmkit.distributions.arguments import event_shape_of
from kdmkit.distributions.mixing import Entry
from kdmkit.distributions.tree.sources import ScoreSource, Source, by_node, in_blocks
from kdmkit.distributions.tree.states import Scores, States
from kdmkit.kernels import Kernel
from kdmkit.ops.messages import maximize


@dataclass(frozen=True)
class Completion:
    """The most probable completion of the evidence: values and component indices, jointly.

    `TreeKDM.mode` returns it.

    Attributes:
        values: by variable, `(*batch, *event)`: the evidence if it is a point, otherwise the most probable
            value. Variables with a region as evidence have none.
        indices: by node, the component that was chosen, `(*batch,)`.
        log_prob: log p(values, indices), `(*batch,)`, with the masses of regions; −∞ if the evidence has
            probability zero.

    >>> import kdmkit as kdm
    >>> import torch
    >>> joint = kdm.JointKDM({"x": torch.tensor([[0.0], [5.0]])}, [0.7, 0.3], {"x": kdm.RBF(1.0)})
    >>> kdm.TreeKDM.from_joint(joint).mode().values["x"]
    tensor([0.])
    """

    values: dict[str, Tensor]
    indices: dict[str, Int[Tensor, "..."]]
    log_prob: Float[Tensor, "..."]


def complete(
    states: States,
    components: Mapping[str, Tensor],
    kernels: Mapping[str, Kernel],
    entries: Mapping[str, Entry],
    earlier: Sequence[Source] = (),
) -> Completion:
    """Maximises log p(x, z) over the values x without evidence and over all states z.

    The best value under component j is the mode of its density, whatever the other variables are: its
    log-density there is a score of the state j. Over the states the maximum is that of messages with maxima
    in place of sums.

    Args:
        components, kernels: of all variables; they have no batch.
        entries: the evidence, by variable.
        earlier: evidence that the tree has already; `log_prob` is not relative to its probability.
    """
    with torch.no_grad():
        places = states.topology.node_of
        modes = {name: kernels[name].mode(components[name]) for name in kernels if _has_gaps(entries, name)}
        peaks = {name: _peak(kernels[name], mode, components[name]) for name, mode in modes.items()}
        sources = [*by_node(places, entries), *_peak_sources(places, peaks, entries), *earlier]
        lead = broadcast(*[source.lead for source in sources])

        def best(scores: Scores, tops: Tensor | float) -> tuple[Tensor, ...]:
            rows = broadcast(*[score.shape[:-1] for score in scores if score is not None])
            value, chosen = maximize(states.topology.parents, states.with_root(scores), states.tables)
            return value.reshape(rows) + tops, *[state.reshape(rows) for state in chosen]

        log_prob, *chosen = in_blocks(best, [sources], states.sizes, states.batch_shape)
        named = zip(states.topology.nodes, chosen, strict=True)
        indices = {node: state.expand(lead) for node, state in named}
        values = {}
        for name, kernel in kernels.items():
            at = indices[states.topology.nodes[places[name]]]
            if name in modes and (name not in entries or not entries[name].is_region):
                event = len(event_shape_of(kernel, components[name]))
                best_value = pick(modes[name], at.unsqueeze(0), event).squeeze(0)
                values[name] = _filled(best_value, entries.get(name), event)
            elif not entries[name].is_region:
                value, rank = entries[name].value, entries[name].event_rank
                values[name] = value.expand((*lead, *value.shape[value.ndim - rank :]))
    return Completion(values, indices, log_prob.expand(lead))


def _has_gaps(entries: Mapping[str, Entry], name: str) -> bool:
    """Whether a variable has no evidence, at least in some rows."""
    return name not in entries or entries[name].keep is not None


def _peak(kernel: Kernel, mode: Tensor, components: Tensor) -> Float[Tensor, " k"]:
    """The log-density of every component at its mode."""
    peak = kernel.log_overlap(mode, components) + kernel.log_norm(components).to(components.device)
    jacobian = kernel.log_jacobian(mode)
    return peak if jacobian is None else peak + jacobian


def _peak_sources(
    places: Mapping[str, int], peaks: Mapping[str, Tensor], entries: Mapping[str, Entry]
) -> list[Source]:
    """Scores of variables that may take their best values: in all rows, or in those without evidence."""
    sources: list[Source] = []
    for name, peak in peaks.items():
        keep = entries[name].keep if name in entries else None
        score = peak if keep is None else torch.where(keep.unsqueeze(-1), torch.zeros_like(peak), peak)
        sources.append(ScoreSource.of(places[name], score))
    return sources


def _filled(chosen: Tensor, entry: Entry | None, event: int) -> Tensor:
    """The evidence, with the chosen values where it is missing."""
    if entry is None:
        return chosen
    if entry.event_rank < event:
        chosen = chosen.argmax(-1)  # labels, as in the evidence
    assert entry.keep is not None
    keep = entry.keep.reshape(*entry.keep.shape, *([1] * entry.event_rank))
    return torch.where(keep, entry.value, chosen)
