"""How derivatives are being taken."""

import torch
from torch.autograd import forward_ad


def only_reverse_mode() -> bool:
    """Whether operations run eagerly and at most reverse-mode autograd watches.

    Then derivatives can be written out; compilers, `torch.func` and forward mode need to see every step.
    """
    return not (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )
