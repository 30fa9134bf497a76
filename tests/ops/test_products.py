"""Products with narrow matrices: the same numbers, whichever way they are computed."""

import pytest
import torch

from kdmkit.ops.scaled_points import narrow_product, narrow_product_transposed


@pytest.mark.parametrize("columns", [0, 1, 2, 10, 16, 40, 130])
def test_products_are_those_of_torch(columns: int) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b, c = (torch.randn(s, generator=generator) for s in ((30, 20), (20, columns), (30, columns)))
    torch.testing.assert_close(narrow_product(a, b), a @ b)
    torch.testing.assert_close(narrow_product_transposed(a, c), a.mT @ c)
    assert narrow_product(a, b).is_contiguous()
    assert narrow_product_transposed(a, c).is_contiguous()
