"""Seeds of independent random streams."""

from __future__ import annotations

import numpy as np


def derive_seed(seed: int, *key: int) -> int:
    """The seed of one of many independent random streams.

    Args:
        seed: of all streams.
        key: names the stream.

    >>> derive_seed(0, 1) == derive_seed(0, 1), derive_seed(0, 1) == derive_seed(0, 1, 0)
    (True, False)
    """
    return int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint64)[0])
