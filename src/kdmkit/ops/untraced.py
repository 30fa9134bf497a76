"""What `torch.compile` leaves to the interpreter. Importing this imports the compiler."""

import torch

from kdmkit.ops.chunked import reduce_chunked
from kdmkit.ops.triton_backend import find_reason

#: A loop over blocks would unroll into a graph without end.
reduce_untraced = torch.compiler.disable(reduce_chunked)

#: Whether Triton works is found out by trying, once, and does not change.
why_unusable_untraced = torch.compiler.assume_constant_result(find_reason)
