"""Errors of the reductions name the argument, what was expected and what was given."""

import pytest
import torch

from kdmkit.ops import Lookup, SquaredDistance, attend, log_mix

pytestmark = pytest.mark.usefixtures("unchecked")


def term(n: int = 2, m: int = 3) -> SquaredDistance:
    return SquaredDistance(torch.zeros(n, 1), torch.zeros(m, 1), torch.ones(1, 1))


def test_unknown_backend() -> None:
    with pytest.raises(ValueError, match=r"backend: expected one of 'auto', .*'chunked'.*, got 'numpy'"):
        log_mix(term(), torch.zeros(3), backend="numpy")  # type: ignore[arg-type]


def test_no_terms() -> None:
    with pytest.raises(ValueError, match="terms: expected at least one, got none"):
        log_mix([], torch.zeros(3))


@pytest.mark.parametrize("backend", ["auto", "reference", "torch", "chunked"])
def test_no_components(backend: str) -> None:
    with pytest.raises(ValueError, match="terms: expected at least one component, got 0"):
        log_mix(term(m=0), torch.zeros(0), backend=backend)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(), (2,), (3, 2), (4, 3)])
def test_log_weights_of_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"log_weights: expected shape \(3,\) or \(\.\.\., 1 or 2, 3\), got \("
    ):
        log_mix(term(), torch.zeros(shape))


@pytest.mark.parametrize("shape", [(3,), (2, 1)])
def test_values_of_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"values: expected shape \(\.\.\., 3, v\), got \("):
        attend(term(), torch.zeros(3), torch.zeros(shape))


def test_terms_of_different_sizes() -> None:
    other = Lookup(torch.zeros(2, 1, dtype=torch.long), torch.zeros(4, 5))
    with pytest.raises(ValueError, match=r"terms: expected the same numbers.*queries \(2, 2\).*\(3, 4\)"):
        log_mix([term(), other], torch.zeros(3))


@pytest.mark.parametrize("block", [(0, 1), (1, 0), (-1, 2)])
def test_empty_blocks(block: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"block: expected two positive numbers, got \("):
        log_mix(term(), torch.zeros(3), backend="chunked", block=block)
