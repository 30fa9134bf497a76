"""Tables whose columns are functions of others agree with sums over all rows in numpy."""

import pytest

from estimators.table.table_oracle import table_deviations
from tests import typecheck


def check(seed: int) -> None:
    with typecheck.off():
        for deviation in table_deviations(seed):
            assert deviation.size <= deviation.limit, deviation


@pytest.mark.parametrize("seed", range(8))
def test_tables_agree_with_the_oracle(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_many_tables_agree_with_the_oracle(seed: int) -> None:
    check(seed)
