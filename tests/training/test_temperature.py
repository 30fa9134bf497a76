"""The temperature of logits."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from kdmkit.training import fit_temperature


@pytest.mark.parametrize("t", [0.3, 1.0, 4.0])
def test_it_minimises_the_cross_entropy(t: float) -> None:
    generator = torch.Generator().manual_seed(0)
    true = torch.randn(4000, 3, dtype=torch.float64, generator=generator)
    labels = torch.multinomial(true.softmax(-1), 1, generator=generator).squeeze(1)
    result = float(fit_temperature(t * true, labels))
    assert result == pytest.approx(t, rel=0.1)

    def objective(t_: float) -> float:
        """The cross-entropy with a prior of 1/T about 1, which counts as much as a row."""
        return float(cross_entropy(t * true / t_, labels)) + (1 / t_ - 1) ** 2 / 4000

    assert objective(result) < min(objective(0.98 * result), objective(1.02 * result))


def test_of_labels_that_are_all_right() -> None:
    result = fit_temperature(torch.eye(2).repeat(10, 1), torch.arange(2).repeat(10))
    assert 0.01 < float(result) < 1


def test_a_row_of_weight_two_counts_twice() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(300, 4, generator=generator), torch.randint(4, (300,), generator=generator)
    labels[:200] = logits[:200].argmax(1)
    weights = torch.ones(300, dtype=torch.float64)
    weights[:200] = 2
    twice = fit_temperature(torch.cat([logits, logits[:200]]), torch.cat([labels, labels[:200]]))
    # The prior counts relative to the number of rows.
    assert float(fit_temperature(logits, labels, weights)) == pytest.approx(float(twice), rel=0.02)


def test_probabilities_of_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="logits: expected finite"):
        fit_temperature(torch.tensor([[0.0, -torch.inf]]), torch.tensor([0]))


def test_huge_logits_converge() -> None:
    logits, labels = torch.tensor([[4e8, 0.0]] * 300), torch.tensor([0, 0, 1] * 100)
    assert float(fit_temperature(logits, labels)) == pytest.approx(4e8 / math.log(2), rel=0.02)


def test_rows_and_weights_are_needed() -> None:
    with pytest.raises(ValueError, match="logits"):
        fit_temperature(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long))
    with pytest.raises(ValueError, match="weights"):
        fit_temperature(torch.zeros(2, 2), torch.tensor([0, 1]), torch.zeros(2))
