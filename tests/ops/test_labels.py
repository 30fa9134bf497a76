"""The short path of log p(label | x) agrees with the general one, and small steps stay short."""

import cProfile
import math
from collections.abc import Callable
from pathlib import Path
from types import CodeType

import pytest
import torch
from torch import Tensor

import bounds
import kdmkit as kdm
from helpers import Operations
from kdmkit.distributions import mixing
from kdmkit.ops import Lookup, SquaredDistance, Term, dense
from kdmkit.ops.labels import _QueuedLabels, log_labels_given
from kdmkit.ops.terms import Amplitudes

_LIBRARY = str(Path(kdm.__file__).parent)
N, M, D, K = 40, 24, 6, 4
Inputs = dict[str, Tensor]


def inputs(*, offset: float = 0.0, sigma: float = 2.0, width: int = 1) -> Inputs:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    made = {
        "query": normal(N, D) + offset,
        "components": normal(M, D) + offset,
        "scale": (normal(1, width).abs().double() + 1) / sigma,
        "log_weights": torch.log_softmax(normal(M), 0),
        "table": normal(M, K),
    }
    return {name: tensor.requires_grad_() for name, tensor in made.items()}


CODES = torch.arange(N).unsqueeze(-1) % K


def as_amplitudes(table: Tensor) -> Term:
    return Amplitudes(CODES, table)


def as_logarithms(table: Tensor) -> Term:
    return Lookup(CODES, torch.log_softmax(table, -1))


def both(p: Inputs, labels: Callable[[Tensor], Term]) -> tuple[Tensor | None, Tensor]:
    """The short path in float32, and the general one in float64."""
    short = log_labels_given(
        SquaredDistance(p["query"], p["components"], p["scale"]), labels(p["table"]), p["log_weights"]
    )
    wide = {name: tensor.double() for name, tensor in p.items()}
    distance = SquaredDistance(wide["query"], wide["components"], wide["scale"])
    return short, dense.reduce_given([distance], [labels(wide["table"])], wide["log_weights"])[1]


def tolerance(p: Inputs) -> float:
    """The relative error of weights, which are exponentials of scores, and of sums over all pairs."""
    query, components = p["query"] * p["scale"], p["components"] * p["scale"]
    spread = bounds.spread_about(components.mean(0), query, components).max()
    return 2 * bounds.distance_error(D, spread).item() + bounds.rounding(N + M)


@pytest.mark.parametrize("labels", [as_amplitudes, as_logarithms])
@pytest.mark.parametrize("width", [1, D])
@pytest.mark.parametrize("offset", [0.0, 30.0], ids=["about the origin", "far from the origin"])
def test_agrees_with_the_general_path(labels: Callable[[Tensor], Term], width: int, offset: float) -> None:
    p = inputs(width=width, offset=offset)
    short, general = both(p, labels)
    assert short is not None
    torch.testing.assert_close(short.double(), general, rtol=2e-6, atol=2e-6)
    upstream = torch.linspace(-1, 1, N, dtype=torch.float64)
    computed = torch.autograd.grad(short, list(p.values()), upstream.float())
    wanted = torch.autograd.grad(general, list(p.values()), upstream)
    for one, other in zip(computed, wanted, strict=True):
        # Entries are sums of terms that cancel: errors are relative to the largest entry.
        assert (one - other).abs().max() <= tolerance(p) * other.abs().max()


@pytest.mark.parametrize("labels", [as_amplitudes, as_logarithms])
@pytest.mark.parametrize("width", [1, D])
def test_the_path_of_other_devices_agrees_with_the_general_one(
    labels: Callable[[Tensor], Term], width: int
) -> None:
    """Also with amplitudes of 0 and labels that no component has."""
    p = inputs(width=width)
    with torch.no_grad():
        p["table"][0, 1:] = 0.0
        if labels is as_amplitudes:
            p["table"][:, K - 1] = 0.0
    general = both(p, labels)[1]
    table = p["table"] if labels is as_amplitudes else torch.log_softmax(p["table"], -1)
    points = p["query"], p["components"], p["scale"].float()
    queued = _QueuedLabels.apply(labels is as_amplitudes, *points, p["log_weights"], table, CODES)
    torch.testing.assert_close(queued.double(), general, rtol=2e-6, atol=2e-6)
    upstream = torch.linspace(-1, 1, N, dtype=torch.float64)
    computed = torch.autograd.grad(queued, list(p.values()), upstream.float())
    possible = torch.where(general.isfinite(), upstream, 0.0)  # others give no gradient
    wanted = torch.autograd.grad(general, list(p.values()), possible)
    for one, other in zip(computed, wanted, strict=True):
        assert bool(one.isfinite().all())
        assert (one - other).abs().max() <= 2 * tolerance(p) * other.abs().max()


def test_only_what_needs_a_gradient_gets_one() -> None:
    p = inputs()
    p["query"], p["table"] = p["query"].detach(), p["table"].detach()
    short, _ = both(p, as_amplitudes)
    assert short is not None
    short.sum().backward()
    assert {name for name, tensor in p.items() if tensor.grad is not None} == {
        "components",
        "scale",
        "log_weights",
    }


def test_second_derivatives() -> None:
    p = inputs()
    kept = list(p.values())
    curvatures = []
    for result in both(p, as_amplitudes):
        assert result is not None
        first = torch.autograd.grad(result.sum(), kept, create_graph=True)
        total = sum((gradient.double() ** 2).sum() for gradient in first)
        assert isinstance(total, Tensor)
        curvatures.append(torch.autograd.grad(total, kept))
    torch.testing.assert_close(*curvatures, rtol=1e-4, atol=1e-4)


def test_amplitudes_of_zero_and_of_any_size() -> None:
    p = inputs()
    with torch.no_grad():
        p["table"][0, 1:] = 0.0
        p["table"][1] *= 1e-6
        p["table"][2] *= 1e6
    short, general = both(p, as_amplitudes)
    assert short is not None
    torch.testing.assert_close(short.double(), general, rtol=2e-6, atol=2e-6)
    (computed,) = torch.autograd.grad(short.sum(), p["table"])
    (wanted,) = torch.autograd.grad(general.sum(), p["table"])
    torch.testing.assert_close(computed, wanted, rtol=1e-4, atol=1e-6)


def _unlikely(p: Inputs) -> None:
    p["table"].copy_(torch.eye(K)[torch.arange(M) % (K - 1)])


def _huge(p: Inputs) -> None:
    p["table"] *= 1e25


def _empty(p: Inputs) -> None:
    p["table"][3] = 0.0


def _far(p: Inputs) -> None:
    p["components"][0] += 1e3


def _nan(p: Inputs) -> None:
    p["query"][0, 0] = math.nan


@pytest.mark.parametrize("change", [_unlikely, _huge, _empty, _far, _nan])
def test_unusual_numbers_are_left_to_the_general_path(change: Callable[[Inputs], None]) -> None:
    p = inputs()
    with torch.no_grad():
        change(p)
    assert both(p, as_amplitudes)[0] is None


def test_unusual_arguments_are_left_to_the_general_path() -> None:
    p = inputs()
    distance, labels = SquaredDistance(p["query"], p["components"], p["scale"]), as_amplitudes(p["table"])
    weights = p["log_weights"]
    assert log_labels_given(labels, labels, weights) is None
    assert log_labels_given(distance, distance, weights) is None
    assert log_labels_given(distance, labels, weights.expand(N, M)) is None
    assert log_labels_given(distance, labels, weights.double()) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert log_labels_given(distance, labels, weights) is None


# ---- through the public interface


def layer() -> kdm.nn.JointLayer:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(200, D, generator=generator)
    made = kdm.nn.JointLayer(D, K, M, generator=generator)
    return made.initialize(x, torch.arange(200) % K, sigma=3.0, generator=generator)


def test_layers_take_the_short_path(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, y = layer(), inputs()["query"].detach(), CODES.squeeze(-1)
    computed = net(x).log_prob(y)
    by_short = torch.autograd.grad(computed.sum(), list(net.parameters()))
    monkeypatch.setattr(mixing, "log_labels_given", lambda *_: None)
    wanted = net(x).log_prob(y)
    by_general = torch.autograd.grad(wanted.sum(), list(net.parameters()))
    assert "_LogLabels" in str(computed.grad_fn)
    assert "_LogLabels" not in str(wanted.grad_fn)
    torch.testing.assert_close(computed, wanted)
    torch.testing.assert_close(by_short, by_general, rtol=1e-4, atol=1e-5)


def _is_of_library(code: CodeType | str) -> bool:
    """Built-in functions are given by name."""
    return isinstance(code, CodeType) and code.co_filename.startswith(_LIBRARY)


def test_a_small_step_takes_few_operations_and_calls() -> None:
    """Plain torch takes 90 operations for the same step; the time of small steps is that of the calls."""
    net, x, y = layer(), inputs()["query"].detach(), CODES.squeeze(-1)

    def step() -> None:
        (-net(x).log_prob(y)).mean().backward()

    step()
    with Operations() as count:
        step()
    profile = cProfile.Profile()
    profile.runcall(step)
    # Those of the library: checks of types in tests call more.
    calls = sum(entry.callcount for entry in profile.getstats() if _is_of_library(entry.code))
    assert count.calls <= 105
    assert calls <= 220
