"""Functions that `torch.compile` does not trace. Importing this module imports the compiler."""

import torch

from kdmkit.ops.implementations import choose
from kdmkit.ops.reduction import Reduction, Result
from kdmkit.ops.triton.backend import find_reason


@torch.compiler.disable
def reduce_in_blocks(reduction: Reduction) -> Result:
    """Backend `chunked`. Traced, the loop over blocks would be unrolled."""
    return choose(reduction, "chunked").run(reduction)


#: Whether Triton works is found out once, by trying, and does not change.
find_reason_once = torch.compiler.assume_constant_result(find_reason)
