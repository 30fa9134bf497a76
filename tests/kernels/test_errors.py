"""Complaints of the kernels about events and arguments: the argument, what was expected, what came."""

import math

import numpy as np
import pytest
import torch

import kdmkit as kdm
from helpers import KERNELS, events
from kdmkit.kernels import FixedBandwidth, kernel_from_config

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize("n", [0, -1, 2.5, "three", None])
def test_number_of_categories(n: object) -> None:
    with pytest.raises(ValueError, match=f"^n: expected a number of categories ≥ 1, got {n}$"):
        kdm.Categorical(n)  # type: ignore[arg-type]


def test_numpy_counts_categories_too() -> None:
    assert kdm.Categorical(np.int64(3)).n == 3


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, 1.5, math.nan])
def test_smoothing(smoothing: float) -> None:
    with pytest.raises(ValueError, match=r"^smoothing: expected 0 ≤ smoothing < 1, got "):
        kdm.Categorical(3, smoothing=smoothing)


def test_no_smoothing_cannot_be_trained() -> None:
    with pytest.raises(ValueError, match=r"^smoothing: expected > 0 if it is trainable, got 0"):
        kdm.Categorical(3, trainable=True)


def test_a_smoothing_close_to_one_can_be_saved() -> None:
    kernel = kdm.Categorical(3, smoothing=0.5, trainable=True)
    with torch.no_grad():
        kernel.logit.fill_(20.0)
    again = kernel_from_config(kernel.config())
    torch.testing.assert_close(again.logit, kernel.logit, check_stride=False)


@pytest.mark.parametrize(("labels", "got"), [([0, 3], 3), ([-1, 0], -1)])
@pytest.mark.parametrize("name", ["categorical", "cosine"])
def test_labels_outside(name: str, labels: list[int], got: int) -> None:
    kernel = KERNELS[name]()
    event_shape = torch.Size([3][: kernel.event_dim])
    with pytest.raises(ValueError, match=f"^y: expected labels in 0 … 2, got {got}$"):
        kernel.check_events("y", torch.tensor(labels), event_shape)
    kernel.check_events("y", torch.tensor([0, 2]), event_shape)


def test_codes_are_integers() -> None:
    for values in (torch.zeros(2), torch.zeros(2, dtype=torch.bool)):
        with pytest.raises(TypeError, match=r"^y: expected integer codes, got torch"):
            kdm.Categorical(3).check_events("y", values, torch.Size())


def test_amplitudes_are_not_all_zero() -> None:
    with pytest.raises(
        ValueError, match=r"^y: expected amplitudes with at least one nonzero entry, got a zero"
    ):
        kdm.Cosine().check_events("y", torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.Size([2]))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", [name for name, make in KERNELS.items() if make().event_dim])
def test_events_are_finite(name: str, value: float) -> None:
    kernel = KERNELS[name]()
    if math.isnan(value) and getattr(kernel, "has_missing", False):
        return
    x = events(kernel, 3, seed=0)
    kernel.check_events("x", x, x.shape[1:])
    x = x.double()
    x[1, 0] = value
    with pytest.raises(ValueError, match=rf"^x: expected finite values, got 1 that are not \({value}\)$"):
        kernel.check_events("x", x, x.shape[1:])


@pytest.mark.parametrize("name", ["rbf", "tricube", "composed"])
def test_events_are_floating(name: str) -> None:
    with pytest.raises(TypeError, match=r"^x: expected a floating-point tensor, got torch.int64$"):
        KERNELS[name]().check_events("x", torch.zeros(3, 2, dtype=torch.long), torch.Size([2]))


@pytest.mark.parametrize("name", ["rbf", "tricube", "cosine"])
def test_events_of_another_shape(name: str) -> None:
    like = torch.zeros((), dtype=torch.float64)
    for shape in [(5, 2), (), (3, 1)]:
        with pytest.raises(ValueError, match=r"^x: expected shape \(\.\.\., 3\), got \("):
            KERNELS[name]().as_events("x", torch.zeros(shape), torch.Size([3]), like)
    with pytest.raises(TypeError, match=r"^x: expected a tensor or an array of numbers, got str$"):
        KERNELS[name]().as_events("x", "far", torch.Size([3]), like)


@pytest.mark.parametrize("name", ["composed", "composed-compact"])
def test_composed_is_no_density(name: str) -> None:
    kernel = KERNELS[name]()
    c = events(kernel, 3, seed=0)
    with pytest.raises(TypeError, match=r"^kernel: expected one with a density, got Composed, which"):
        kernel.log_norm(c)
    with pytest.raises(TypeError, match=r"^kernel: expected one that can be sampled, got Composed, which"):
        kernel.sample(c, torch.arange(3))


def test_composed_of_what() -> None:
    with pytest.raises(TypeError, match=r"^encoder: expected an nn\.Module, got function$"):
        kdm.Composed(lambda x: x, kdm.RBF(1.0))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^kernel: expected a kernel such as kdmkit.RBF\(0.3\), got Linear$"):
        kdm.Composed(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))  # type: ignore[arg-type]
    batched = kdm.RBF(FixedBandwidth("sigma", torch.ones(3, 4, 1)))
    with pytest.raises(ValueError, match=r"^kernel: expected one without a batch of bandwidths, got RBF"):
        kdm.Composed(torch.nn.Linear(2, 2), batched)


def test_configs() -> None:
    with pytest.raises(ValueError, match=r"^config\['kernel'\]: expected one of 'RBF', .*, got 'Gaussian'$"):
        kernel_from_config({"kernel": "Gaussian"})
    with pytest.raises(ValueError, match=r"^config\['kernel'\]: expected one of 'RBF', .*, got None$"):
        kernel_from_config({})
    with pytest.raises(ValueError, match=r"^encoder: expected the encoder of the Composed kernel, got None$"):
        kernel_from_config(KERNELS["composed"]().config())


def test_removed_names_say_what_to_use() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Ordinal' any more: use kdmkit.Levels"):
        kdm.Ordinal  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'find_resolution' any more: .* kdmkit.Rounded"):
        kdm.find_resolution  # noqa: B018
    with pytest.raises(ValueError, match=r"^config\['kernel'\]: expected .*Levels.*, got Ordinal$"):
        kernel_from_config({"kernel": "Ordinal", "width": 1.0, "width_min": 0.1, "low": 0, "high": None})
