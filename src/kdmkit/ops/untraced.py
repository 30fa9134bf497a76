"""Functions that `torch.compile` does not trace. Importing this module imports the compiler."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kdmkit.ops import chunked_given
from kdmkit.ops.implementations import choose
from kdmkit.ops.reduction import Reduction, Result
from kdmkit.ops.terms import Term
from kdmkit.ops.triton.backend import find_reason


@torch.compiler.disable
def reduce_in_blocks(reduction: Reduction) -> Result:
    """Backend `chunked`. Traced, the loop over blocks would be unrolled."""
    return choose(reduction, "chunked").run(reduction)


@torch.compiler.disable
def reduce_given_in_blocks(
    terms: Sequence[Term], more: Sequence[Term], log_weights: Tensor
) -> tuple[Tensor, Tensor]:
    """The same for a conditional log-probability."""
    return chunked_given.reduce(terms, more, log_weights)


#: Whether Triton works is found out once, by trying, and does not change.
find_reason_once = torch.compiler.assume_constant_result(find_reason)
