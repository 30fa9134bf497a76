"""Memory that the C library keeps for the next step."""

import functools

import torch

# glibc's largest size of a block that changes what it keeps, less its own use of the block.
_LARGEST_BLOCK = (1 << 25) - (1 << 16)


@functools.cache
def keep_freed_memory() -> None:
    """Makes glibc keep up to 64 MiB of freed memory in this process. The first call does it, at no cost.

    glibc returns the end of its heap to the system when more is free there than twice the largest block that
    was ever freed. What a training step frees then has to be mapped and zeroed again for the next step, which
    takes a tenth of it. So a large block is freed here; it is never written to.
    """
    torch.empty(_LARGEST_BLOCK, dtype=torch.uint8, device="cpu")
