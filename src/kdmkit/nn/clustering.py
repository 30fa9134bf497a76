"""k-means, by scikit-learn.

scikit-learn takes a second to import. It is imported inside the functions, so that code without clusters does
not load it.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

# A few rounds: clusters only have to spread the components over the data.
_ROUNDS = 20


def cluster(
    vectors: Float[Tensor, "n p"],
    m: int,
    *,
    seed: int,
    weights: Float[Tensor, " n"] | None = None,
    sample: int | None = None,
) -> Int[Tensor, " n"]:
    """The cluster of every row, counted from 0: at most m, fewer where rows coincide.

    Args:
        weights: of the rows.
        sample: fit on at most this many rows, chosen by `seed`; None fits on all.

    >>> cluster(torch.tensor([[0.0], [0.1], [9.0]]), 2, seed=0).unique().tolist()
    [0, 1]
    """
    from sklearn.cluster import KMeans

    vectors = vectors.double()
    seen = vectors
    if sample is not None:
        rows = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(seed))[:sample]
        seen, weights = vectors[rows], None if weights is None else weights[rows]
    means = KMeans(_distinct(seen, m), n_init=1, max_iter=_ROUNDS, random_state=seed).fit(
        seen.numpy(), sample_weight=None if weights is None else weights.double().numpy()
    )
    found = means.labels_ if sample is None else means.predict(vectors.numpy())
    return torch.unique(torch.from_numpy(found).long(), return_inverse=True)[1]


def _distinct(vectors: Float[Tensor, "n p"], most: int) -> int:
    """The number of distinct rows, or `most` where there are more; the first rows mostly suffice to tell."""
    found = 0
    for n in (2 * most, len(vectors)):
        found = min(most, len(torch.unique(vectors[:n], dim=0)))
        if found == most:
            break
    return found


def spread_out(vectors: Float[Tensor, "n p"], m: int, *, seed: int) -> Int[Tensor, " m"]:
    """m rows that lie far from each other (k-means++); a row may repeat where rows coincide."""
    from sklearn.cluster import kmeans_plusplus

    _, index = kmeans_plusplus(vectors.numpy(), m, random_state=seed)
    return torch.from_numpy(index).long()
