"""Promises of every kernel, in every form of its parameters."""

import copy
import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kdmkit as kdm
from helpers import KERNELS, M, components, event_shape, events, normal, seeded
from kdmkit.kernels import Kernel, LocationScale, kernel_from_config
from kdmkit.ops import log_mix


def parametrized(keep: Callable[[Kernel], bool]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [name for name, make in KERNELS.items() if keep(make())])


every_kernel = parametrized(lambda kernel: True)
every_density = parametrized(lambda kernel: kernel.has_density)
every_continuous = parametrized(lambda kernel: isinstance(kernel, LocationScale))
# Overlaps of a kernel whose components are events are those of two points.
every_overlap = parametrized(lambda kernel: kernel.components_are_events)
# Codes and whole numbers have no floating dtype, and an encoder has its dtype.
every_vector = parametrized(
    lambda kernel: (
        not isinstance(kernel, kdm.Composed)
        and kernel.event_dim > 0
        and events(kernel, 1, seed=0).is_floating_point()
    )
)
every_differentiable = parametrized(
    lambda kernel: not isinstance(kernel, kdm.Categorical) or bool(kernel.smoothing > 0)
)


def pairs(kernel: Kernel, seed: int = 1) -> tuple[Tensor, Tensor]:
    """M pairs, as close as to lie inside compact supports."""
    c = components(kernel, M, seed=seed)
    if not kernel.components_are_events:
        return kernel.sample(c, torch.arange(M), seeded(seed)), c
    return (c + 0.1 * normal(*c.shape, seed=seed + 1) if c.is_floating_point() else c), c


def matrix_by_pairs(kernel: Kernel, x: Tensor, c: Tensor) -> Tensor:
    return kernel.log_overlap(x.unsqueeze(-1 - kernel.event_dim), c.unsqueeze(-2 - kernel.component_dim))


def log_density(kernel: Kernel, x: Tensor, c: Tensor) -> Tensor:
    jacobian = kernel.log_jacobian(x)
    return kernel.log_overlap(x, c) + kernel.log_norm(c) + (0.0 if jacobian is None else jacobian)


def parameters(kernel: Kernel) -> list[Tensor]:
    return [p.requires_grad_() for p in kernel.parameters() if torch.isfinite(p).all()]


@every_overlap
def test_overlap_with_itself_is_one(name: str) -> None:
    kernel = KERNELS[name]()
    x = events(kernel, M, seed=0)
    torch.testing.assert_close(kernel.log_overlap(x, x), torch.zeros(M), check_dtype=False)


@every_overlap
def test_overlap_is_symmetric(name: str) -> None:
    kernel = KERNELS[name]()
    x, c = pairs(kernel)
    torch.testing.assert_close(kernel.log_overlap(x, c), kernel.log_overlap(c, x))


@every_overlap
def test_overlap_is_at_most_one(name: str) -> None:
    kernel = KERNELS[name]()
    scores = matrix_by_pairs(kernel, events(kernel, 200, seed=0), events(kernel, M, seed=1))
    assert scores.max() <= 1e-12
    assert scores.min() < -0.1
    assert not (kernel.overlaps_everywhere and torch.isneginf(scores).any())


@every_kernel
def test_terms_are_the_overlaps_of_all_pairs(name: str) -> None:
    kernel = KERNELS[name]()
    x, c = events(kernel, 5, seed=0), components(kernel, M, seed=1)
    term, wanted = kernel.term(x, c), matrix_by_pairs(kernel, x, c)
    assert term.shape == ((), 5, M)
    prepared = term.prepared()
    row = prepared.row()
    fast = prepared.matrix() if row is None else prepared.matrix() + row.unsqueeze(-1)
    for got in (term.exact(), fast):
        torch.testing.assert_close(got, wanted, check_dtype=False)


@every_kernel
def test_terms_with_leading_dimensions(name: str) -> None:
    kernel = KERNELS[name]()
    x = torch.stack([events(kernel, 5, seed=seed) for seed in (0, 1)])
    batches = torch.stack([components(kernel, M, seed=seed) for seed in (2, 3)])
    for c in (batches, batches[0]):
        wanted = torch.stack([kernel.term(x[b], c[b] if c is batches else c).exact() for b in (0, 1)])
        torch.testing.assert_close(kernel.term(x, c).exact(), wanted)
        torch.testing.assert_close(matrix_by_pairs(kernel, x, c), wanted)


@every_overlap
def test_no_gradient_and_no_nan_at_minus_infinity(name: str) -> None:
    kernel = KERNELS[name]()
    c = events(kernel, M, seed=1)
    x = c.roll(1) if not c.is_floating_point() else c + 100.0
    if name == "cosine":  # orthogonal amplitudes
        x, c = torch.eye(3)[[0, 1, 2, 0]].double(), torch.eye(3)[[1, 2, 0, 2]].double()
    leaves = [t.requires_grad_() for t in (x, c) if t.is_floating_point()] + parameters(kernel)
    for scores in (kernel.log_overlap(x, c), kernel.term(x, c).matrix()):
        dead = torch.isneginf(scores)
        assert dead.any() != (kernel.overlaps_everywhere or name == "categorical-smooth")
        if not leaves:
            continue
        gradients = torch.autograd.grad(scores[dead].sum(), leaves, allow_unused=True, retain_graph=True)
        assert not any(g.any() for g in gradients if g is not None)
        gradients = torch.autograd.grad(scores.exp().sum(), leaves, allow_unused=True)
        assert all(torch.isfinite(g).all() for g in gradients if g is not None)


@every_differentiable
def test_gradients_inside_the_support(name: str) -> None:
    kernel = KERNELS[name]()
    x, c = pairs(kernel)
    # Probabilities of single events jump from one to the next.
    inputs = [t.requires_grad_() for t in ([c] if kernel.has_atoms else [x, c]) if t.is_floating_point()]
    weights = parameters(kernel)

    def function(*_: Tensor) -> tuple[Tensor, ...]:
        overlaps = [
            kernel.log_overlap(x, c),
            kernel.term(x, c).exact().exp(),
            kernel.term(x, c).matrix().exp(),
        ]
        if kernel.has_density and weights:
            overlaps.append(kernel.log_norm(c))
        return tuple(o for o in overlaps if o.requires_grad)

    kernel.double()
    assert torch.autograd.gradcheck(function, [*inputs, *weights])


@every_vector
def test_precision_follows_the_values(name: str) -> None:
    kernel = KERNELS[name]()
    for dtype in (torch.float32, torch.float64):
        x, c = events(kernel, M, seed=0, dtype=dtype), components(kernel, M, seed=1, dtype=dtype)
        assert kernel.log_overlap(x, c).dtype == dtype
        assert log_mix(kernel.term(x, c), torch.zeros(M, dtype=dtype)).dtype == dtype
        assert kernel.sample(c, torch.arange(M), seeded(0)).dtype == dtype


@every_vector
def test_half_precision_components_keep_the_bandwidth(name: str) -> None:
    """Stored values are rounded before; the kernel adds no error."""
    kernel = KERNELS[name]()
    x, c = (make(kernel, M, seed=0, dtype=torch.bfloat16) for make in (events, components))
    got = log_mix(kernel.term(x, c), torch.zeros(M))
    wanted = log_mix(kernel.term(x.double(), c.double()), torch.zeros(M))
    torch.testing.assert_close(got, wanted.float(), rtol=1e-5, atol=1e-5)


@every_vector
def test_autocast_changes_nothing(name: str) -> None:
    kernel = KERNELS[name]()
    x, c = (make(kernel, M, seed=0, dtype=torch.float32) for make in (events, components))
    methods = [kernel.log_overlap, lambda x, c: log_mix(kernel.term(x, c), torch.zeros(M))]
    if isinstance(kernel, LocationScale):
        methods.append(lambda x, c: kernel.unwhiten(kernel.whiten(x) - kernel.whiten(c)))
    wanted = [method(x, c) for method in methods]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(torch.equal(m(x, c), w) for m, w in zip(methods, wanted, strict=True))


@every_kernel
def test_config_survives_json(name: str) -> None:
    kernel = KERNELS[name]()
    encoder = kernel.encoder if isinstance(kernel, kdm.Composed) else None
    again = kernel_from_config(json.loads(json.dumps(kernel.config(), allow_nan=False)), encoder=encoder)
    assert type(again) is type(kernel)
    x, c = pairs(kernel)
    torch.testing.assert_close(again.log_overlap(x, c), kernel.log_overlap(x, c), rtol=1e-7, atol=1e-7)
    third = kernel_from_config(again.config(), encoder=encoder)
    torch.testing.assert_close(third.state_dict(), again.state_dict(), rtol=1e-7, atol=0)


@every_kernel
def test_state_dict_round_trip(name: str) -> None:
    kernel, other = KERNELS[name](), KERNELS[name]()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.copy_(torch.rand_like(parameter))
    other.load_state_dict(kernel.state_dict())
    x, c = pairs(kernel)
    assert torch.equal(other.log_overlap(x, c), kernel.log_overlap(x, c))


@every_kernel
def test_copies_are_independent(name: str) -> None:
    kernel = KERNELS[name]()
    other = copy.deepcopy(kernel)
    x, c = pairs(kernel)
    before = kernel.log_overlap(x, c)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    assert torch.equal(kernel.log_overlap(x, c), before)


@every_kernel
def test_parameters_are_frozen_unless_asked(name: str) -> None:
    kernel = KERNELS[name]()
    parameters = [p for key, p in kernel.named_parameters() if not key.startswith("encoder")]
    assert not any(p.requires_grad for p in parameters)


@every_kernel
def test_vmap_over_components(name: str) -> None:
    kernel = KERNELS[name]()
    x = events(kernel, 5, seed=0)
    batches = torch.stack([components(kernel, M, seed=seed) for seed in (1, 2)])

    def reduce(c: Tensor) -> Tensor:
        return log_mix(kernel.term(x, c), torch.zeros(M, dtype=torch.float64))

    wanted = torch.stack([reduce(c) for c in batches])
    torch.testing.assert_close(torch.func.vmap(reduce)(batches), wanted)


@every_kernel
def test_same_family(name: str) -> None:
    kernel = KERNELS[name]()
    assert kernel.same_family(KERNELS[name]())
    others = [other() for other in KERNELS.values()]
    assert {type(other) for other in others if kernel.same_family(other)} == {type(kernel)}


@every_kernel
def test_repr_names_the_kernel(name: str) -> None:
    kernel = KERNELS[name]()
    assert repr(kernel).startswith(type(kernel).__name__ + "(")


@every_kernel
def test_moments_and_probabilities_belong_to_their_kind(name: str) -> None:
    kernel = KERNELS[name]()
    c = components(kernel, M, seed=0)
    wrong = [kernel.variance] if kernel.discrete or not kernel.has_density else []
    wrong += [kernel.probs] if not kernel.discrete or not kernel.has_density else []
    assert wrong
    for method in wrong:
        with pytest.raises(TypeError, match=f"kernel: expected (a|one) .*, got {type(kernel).__name__}"):
            method(c)


@every_density
def test_draws_follow_the_generator(name: str) -> None:
    kernel = KERNELS[name]()
    c = components(kernel, M, seed=0).repeat(50, *[1] * kernel.component_dim)
    index = torch.arange(M).repeat(50)
    first, second = (kernel.sample(c, index, seeded(7)) for _ in range(2))
    assert first.nan_to_num(9.0).equal(second.nan_to_num(9.0))
    assert first.shape == (len(c), *event_shape(kernel))
    assert first.dtype == events(kernel, 1, seed=0).dtype
    if name != "categorical":
        assert not torch.equal(first, kernel.sample(c, index, seeded(8)))
    # Draws are events of the kernel, and likely ones.
    assert torch.isfinite(log_density(kernel, first.unflatten(0, (50, M)), c.unflatten(0, (50, M)))).all()


@every_density
@pytest.mark.parametrize("lead", [(), (0,), (2, 3)])
def test_draws_of_any_shape(name: str, lead: tuple[int, ...]) -> None:
    kernel = KERNELS[name]()
    index = torch.randint(M, lead, generator=seeded(0))
    c = components(kernel, M, seed=0)[index]
    assert kernel.sample(c, index, seeded(0)).shape == (*lead, *event_shape(kernel))


@every_continuous
def test_whitening_is_invertible(name: str) -> None:
    kernel = KERNELS[name]()
    assert isinstance(kernel, LocationScale)
    x, c = events(kernel, M, seed=0), events(kernel, M, seed=1)
    torch.testing.assert_close(kernel.unwhiten(kernel.whiten(x)), x)
    overlap = kernel.whitened().log_overlap(kernel.whiten(x), kernel.whiten(c))
    torch.testing.assert_close(overlap, kernel.log_overlap(x, c))
