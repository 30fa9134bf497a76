"""Which kind of differentiation or compilation is active."""

import torch
from torch.autograd import forward_ad


def only_reverse_mode() -> bool:
    """Whether operations run eagerly and only reverse-mode autograd may differentiate them.

    Explicit gradients are possible then. Compilers, `torch.func` and forward mode need every operation.
    """
    return not (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def is_exporting() -> bool:
    """Whether `torch.export` traces: the size of a batch is unknown then."""
    # torch 2.6 does not tell.
    asked = getattr(torch.compiler, "is_exporting", None)
    return asked is not None and bool(asked())
