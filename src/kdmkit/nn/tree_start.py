"""The start of a tree: which tree connects the columns, and which rows become components.

The tree is a maximum spanning tree of pairwise mutual information. Components are rows of the data, and
neighbours in the tree start in agreement about the row.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kdmkit._core.checks import is_integer
from kdmkit._core.tensors import effective_rows
from kdmkit.nn.layer import Variable

# Bins of a column: quantiles of numbers; the most frequent levels and one bin for all others.
_BINS = 16
# Rows of one-hot vectors that exist at once. Their counts are exact in float32.
_ROWS = 8192
# Quantiles are taken from about this many values.
_SAMPLE = 10_000
# The share of a starting component's mass that is spread over the values of the column, if the kernel can.
_BACKGROUND = 0.3
# p(z_v = i | z_parent = i) at the start is about s/(s + 1.6): neighbours mostly come from the same row.
_AGREEMENT = 30.0


def learn_tree(
    variables: Sequence[Variable],
    data: Mapping[str, Tensor],
    observed: Mapping[str, Bool[Tensor, " n"]],
    weights: Float[Tensor, " n"] | None = None,
    *,
    targets: Collection[str] = (),
    preference: float = 1.0,
) -> dict[str, str | None]:
    """The parent of every variable in a maximum spanning tree of pairwise mutual information.

    The root is a centre of the tree, so that paths are short.

    Args:
        variables: the nodes.
        data: by variable, `(n, *event)`, or labels `(n,)`.
        observed: by variable, False if the value is missing; a variable without a mask has all values.
        weights: of the rows.
        targets: variables that will be predicted.
        preference: information between a target and another variable counts this many times. Then more
            variables are neighbours of a target, and their information need not pass through others.
    """
    masks = {name: mask.cpu() for name, mask in observed.items()}
    codes = [bin_codes(v, data[v.name].cpu(), masks.get(v.name)) for v in variables]
    information = mutual_information(codes, None if weights is None else weights.cpu())
    names = [variable.name for variable in variables]
    is_target = torch.tensor([name in targets for name in names])
    at_target = is_target.unsqueeze(0) | is_target.unsqueeze(1)
    parents = spanning_tree(torch.where(at_target, preference * information, information))
    return {name: None if parent < 0 else names[parent] for name, parent in zip(names, parents, strict=True)}


# ---- bins


def bin_codes(variable: Variable, value: Tensor, observed: Bool[Tensor, " n"] | None) -> Int[Tensor, " n"]:
    """The bin of every value, −1 if it is missing.

    Numbers go into bins between their quantiles; repeated values stay together. Codes of a discrete kernel
    are bins themselves, rare ones share one. Events of several dimensions are binned along the direction of
    their largest variance. Observed NaN, which is a state, has a separate bin.
    """
    if variable.kernel.discrete:
        codes = value.long() if is_integer(value) else value.abs().flatten(1).argmax(-1)
        return _pooled(codes, observed)
    return _quantile_bins(_main_direction(value.double().reshape(len(value), -1), observed), observed)


def _pooled(codes: Int[Tensor, " n"], observed: Bool[Tensor, " n"] | None) -> Int[Tensor, " n"]:
    """The most frequent codes in the order of their frequency, all others together."""
    seen = codes if observed is None else codes[observed]
    if not len(seen):
        return torch.full_like(codes, -1)
    levels, counts = seen.unique(return_counts=True)
    kept = levels[counts.argsort(descending=True, stable=True)[: _BINS - 1]]
    place = torch.full((int(levels.max()) + 1,), len(kept))
    place[kept] = torch.arange(len(kept))
    binned = place[codes.clamp(0, len(place) - 1)]
    return binned if observed is None else torch.where(observed, binned, -1)


def _main_direction(x: Float[Tensor, "n d"], observed: Bool[Tensor, " n"] | None) -> Float[Tensor, " n"]:
    if x.shape[1] == 1:
        return x[:, 0]
    seen = x if observed is None else x[observed]
    seen = seen[seen.isfinite().all(1)]
    if len(seen) < 2:
        return x[:, 0]
    seen = (seen - seen.mean(0)) / seen.std(0).clamp_min(torch.finfo(x.dtype).tiny)
    return x @ torch.linalg.eigh(seen.mT @ seen).eigenvectors[:, -1]


def _quantile_bins(x: Float[Tensor, " n"], observed: Bool[Tensor, " n"] | None) -> Int[Tensor, " n"]:
    seen = x[x.isfinite() if observed is None else x.isfinite() & observed]
    some = seen[:: max(1, len(seen) // _SAMPLE)].sort().values
    edges = some[torch.arange(1, _BINS) * len(some) // _BINS].unique() if len(some) else seen
    codes = torch.searchsorted(edges, x.contiguous(), right=True)
    codes = torch.where(x.isnan(), len(edges) + 1, codes)
    return codes if observed is None else torch.where(observed, codes, -1)


# ---- mutual information


def mutual_information(
    codes: Sequence[Int[Tensor, " n"]], weights: Float[Tensor, " n"] | None = None
) -> Float[Tensor, "v v"]:
    """Mutual information of all pairs of columns in nats, each pair by the rows that have both.

    The expected value of the estimate for independent columns, (a − 1)(b − 1)/2n for a and b bins in use
    (Miller and Madow), is taken off. It is 0 for constant columns and for pairs that no row has.

    Args:
        codes: by column, numbers of bins, −1 if the value is missing.
        weights: of the rows; n is then the effective number of rows, (Σw)²/Σw².
    """
    sizes = [int(column.max()) + 1 if len(column) else 0 for column in codes]
    counts = _pair_counts(codes, [max(1, size) for size in sizes], weights)
    starts = np.cumsum([0, *(max(1, size) for size in sizes)])
    rows = len(codes[0])
    share = 1.0 if weights is None else effective_rows(weights) / rows
    scale = share if weights is None else share * rows / float(weights.double().sum())
    return _information(counts * scale, starts)


def _pair_counts(
    codes: Sequence[Int[Tensor, " n"]], sizes: Sequence[int], weights: Tensor | None
) -> Float[Tensor, "b b"]:
    """The number of rows with both bins, for all pairs of bins: products of one-hot matrices."""
    width = sum(sizes)
    starts = torch.tensor(np.cumsum([0, *sizes[:-1]]))
    table = torch.stack(list(codes), 1)
    total = torch.zeros(width, width, dtype=torch.float64)
    for i in range(0, len(table), _ROWS):
        part = table[i : i + _ROWS]
        # One more column takes the missing cells.
        one_hot = torch.zeros(len(part), width + 1)
        one_hot.scatter_(1, torch.where(part >= 0, part + starts, width), 1.0)
        one_hot = one_hot[:, :width]
        left = one_hot if weights is None else one_hot * weights[i : i + _ROWS, None].float()
        total += (left.mT @ one_hot).double()
    return total


def _information(counts: Float[Tensor, "b b"], starts: np.ndarray) -> Float[Tensor, "v v"]:
    """I(u; v) − (a − 1)(b − 1)/2n of all pairs of columns."""
    v = len(starts) - 1
    column = torch.repeat_interleave(torch.arange(v), torch.tensor(np.diff(starts)))
    one_hot = torch.nn.functional.one_hot(column, v).double()
    by_row = counts @ one_hot  # rows that have the bin of u, and any value of v
    n = one_hot.mT @ by_row
    # Σ c·log(c·n / (c_u·c_v)) = Σ c·log c + n·log n − Σ c_u·log c_u − Σ c_v·log c_v
    joint = one_hot.mT @ _x_log_x(counts) @ one_hot
    marginal = one_hot.mT @ _x_log_x(by_row)
    bins = one_hot.mT @ (by_row > 0).double()
    bias = 0.5 * (bins - 1).clamp_min(0) * (bins.mT - 1).clamp_min(0)
    information = (joint + _x_log_x(n) - marginal - marginal.mT - bias) / n.clamp_min(1e-300)
    return torch.where(n > 0, information, 0.0).fill_diagonal_(0.0)


def _x_log_x(x: Tensor) -> Tensor:
    return torch.special.xlogy(x, x)


# ---- spanning trees


def spanning_tree(information: Float[Tensor, "v v"]) -> list[int]:
    """The parent of every node in a maximum spanning tree; −1 for the root, a centre of the tree.

    >>> spanning_tree(torch.tensor([[0.0, 0.5, 0.1], [0.5, 0.0, 0.4], [0.1, 0.4, 0.0]]))
    [1, -1, 1]
    """
    from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

    v = len(information)
    if v == 1:
        return [-1]
    # Positive lengths: a length of 0 means no edge.
    length = (information.max() - information + 1.0).numpy()
    np.fill_diagonal(length, 0.0)
    tree = minimum_spanning_tree(length)
    links = ((tree + tree.T) > 0).astype(np.float64)
    _, parents = breadth_first_order(links, _centre(links), directed=False)
    return [int(parent) if parent >= 0 else -1 for parent in parents]


def _centre(links: object) -> int:
    """The middle of a longest path."""
    from scipy.sparse.csgraph import breadth_first_order

    order, _ = breadth_first_order(links, 0, directed=False)
    order, parents = breadth_first_order(links, int(order[-1]), directed=False)
    path = [int(order[-1])]
    while parents[path[-1]] >= 0:
        path.append(int(parents[path[-1]]))
    return path[math.floor(len(path) / 2)]


# ---- components and edges


def choose_rows(
    data: Mapping[str, Tensor],
    masks: Mapping[str, Bool[Tensor, " n"]],
    k: int,
    weights: Float[Tensor, " n"] | None,
    generator: torch.Generator | None,
) -> Int[Tensor, " k"]:
    """k rows at random, as different as there are; a row that occurs w times has the chance √w.

    Args:
        data: by variable, `(n, *event)` or labels `(n,)`.
        masks: by variable, False if the value is missing.
        weights: of the rows.
    """
    device = "cpu" if generator is None else generator.device
    _, group = _row_keys(data, masks).unique(return_inverse=True)
    n, groups = len(group), int(group.max()) + 1
    weights = torch.ones(n, dtype=torch.float64) if weights is None else weights.double().cpu()
    total = torch.zeros(groups, dtype=torch.float64).index_add_(0, group, weights)
    first = torch.full((groups,), n).scatter_reduce_(0, group, torch.arange(n), "amin")
    chance = total.sqrt()
    # The largest log(u)/chance are a weighted draw without replacement.
    noise = torch.rand(groups, dtype=torch.float64, device=device, generator=generator).cpu()
    keys = torch.where(chance > 0, noise.log() / chance, -math.inf)
    chosen = keys.topk(min(k, int((chance > 0).sum()))).indices
    again = torch.randint(len(chosen), (k - len(chosen),), device=device, generator=generator).cpu()
    return first[torch.cat([chosen, chosen[again]])]


def _row_keys(data: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> Int[Tensor, " n"]:
    """A number for every row, equal for equal rows: sums of products with random numbers, modulo 2^64."""
    generator = torch.Generator().manual_seed(0)
    total: Tensor | int = 0
    for name, value in data.items():
        flat = value.reshape(len(value), -1)
        numbers = flat.double().view(torch.int64) if flat.is_floating_point() else flat.long()
        if name in masks:
            numbers = torch.where(masks[name].unsqueeze(-1), numbers, -1)
        factors = torch.randint(-(2**62), 2**62, (numbers.shape[1],), generator=generator)
        # The shift brings the high bits of floating-point numbers down.
        total = total + ((numbers ^ (numbers >> 31)) * factors).sum(1)
    assert isinstance(total, Tensor)
    return total


def start_components(
    variable: Variable,
    value: Tensor,
    observed: Bool[Tensor, " n"] | None,
    rows: Int[Tensor, " k"],
) -> Tensor | None:
    """Components at the values of the chosen rows; None if the column has no value at all.

    A missing value is replaced by the value of another row, the next one that has it.
    """
    present = torch.arange(len(value)) if observed is None else observed.nonzero().squeeze(-1)
    if not len(present):
        return None
    place = torch.searchsorted(present, rows)
    chosen = value[present[place % len(present)]]
    seen = value if observed is None else value[present]
    return variable.kernel.smoothed_components(chosen, seen, variable.shape, _BACKGROUND)


def start_edges(n_edges: int, k: int, generator: torch.Generator | None) -> Float[Tensor, "n_edges k k"]:
    """Logits of p(z_v | z_parent): large on the diagonal, standard normal noise everywhere."""
    device = "cpu" if generator is None else generator.device
    noise = torch.randn(n_edges, k, k, device=device, generator=generator)
    noise.diagonal(dim1=-2, dim2=-1).add_(math.log(_AGREEMENT * k))
    return noise
