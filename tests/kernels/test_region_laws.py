"""Laws of masses and of restricted kernels, for every kernel of one variable and all kinds of regions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import kdmkit as kdm
from helpers import close, normal, real, seeded
from kdmkit.kernels import Kernel
from kdmkit.kernels.regions import WHOLE, Region, union

SIGMA = [[0.5], [0.9], [2.0]]
CENTRES = real([[0.3], [1.0], [2.6]])


def decreasing(kernel: Kernel) -> Kernel:
    return kdm.Transformed(kernel, torch.distributions.AffineTransform(3.0, -1.5))


def inflated(kernel: Kernel, *atoms: float) -> Callable[[], Kernel]:
    return lambda: kdm.Inflated(kernel, list(atoms))


DENSITIES: dict[str, Callable[[], Kernel]] = {
    "rbf": lambda: kdm.RBF(SIGMA),
    "epanechnikov": lambda: kdm.Epanechnikov(SIGMA),
    "tricube": lambda: kdm.Tricube(2.5),
    "truncated": lambda: kdm.Truncated(kdm.RBF(SIGMA), 0.0, 3.0),
    "log": lambda: kdm.Transformed.log(kdm.RBF(SIGMA)),
    "decreasing": lambda: decreasing(kdm.RBF(SIGMA)),
    "log truncated": lambda: kdm.Transformed.log(kdm.Truncated(kdm.RBF(0.7), -1.0, 2.0)),
    "quantiles": lambda: kdm.Transformed.quantile_normal(kdm.RBF(0.4), torch.linspace(-1, 3, 99).exp()),
}
ROUNDED: dict[str, Callable[[], Kernel]] = {
    "rounded": lambda: kdm.Rounded(kdm.RBF(SIGMA), 0.5),
    "rounded tricube": lambda: kdm.Rounded(kdm.Tricube(2.5), 0.1),
    "rounded truncated": lambda: kdm.Rounded(kdm.Truncated(kdm.RBF(SIGMA), 0.0), 0.5),
    "rounded log": lambda: kdm.Rounded(kdm.Transformed.log(kdm.RBF(0.7)), 0.5),
    "rounded quantiles": lambda: kdm.Rounded(DENSITIES["quantiles"](), 0.5),
    "rounded decreasing": lambda: kdm.Rounded(decreasing(kdm.RBF(SIGMA)), 0.25, origin=0.25),
}
INFLATED: dict[str, Callable[[], Kernel]] = {
    "inflated": inflated(kdm.RBF(SIGMA), 0.0, 1.0),
    "inflated missing": inflated(kdm.Transformed.log(kdm.RBF(0.6)), 0.0, 1.0, math.nan),
    "inflated rounded": inflated(kdm.Rounded(kdm.RBF(SIGMA), 0.5), 0.0, 2.0, math.nan),
    "inflated truncated": inflated(kdm.Truncated(kdm.RBF(0.8), 0.0, 3.0), 0.0),
}
CIRCLES: dict[str, Callable[[], Kernel]] = {
    "circle": lambda: kdm.Periodic([[2.0], [0.5], [9.0]], 4.0),
    "whole circle": lambda: kdm.Periodic([[2.0], [0.5], [9.0]], 4, whole=True),
}
CODES: dict[str, Callable[[], Kernel]] = {
    "levels": lambda: kdm.Levels(4, smoothing=0.1),
    "categorical": lambda: kdm.Categorical(4, smoothing=0.3).double(),
    "cosine": lambda: kdm.Cosine(),
}
NUMBERS = {**DENSITIES, **ROUNDED, **INFLATED}
KERNELS = {**NUMBERS, **CIRCLES, **CODES}
DISCRETE = [*ROUNDED, "inflated rounded", "whole circle", *CODES]
VALUES = [-1.0, 0.0, 0.25, 0.3, 0.5, 1.0, 1.5, 2.0, 2.6, 3.0, 3.5, 40.0]


def components(name: str, kernel: Kernel) -> Tensor:
    if name == "cosine":
        return normal(3, 4, seed=1)
    if name == "categorical":
        return torch.tensor([0, 2, 3])
    shape = torch.Size() if name == "levels" else torch.Size([1])
    c = normal(3, *kernel.component_shape(shape), seed=2)
    return c if name == "levels" else torch.cat([c[:, :-1], CENTRES], -1)


def mass(kernel: Kernel, region: Region, c: Tensor) -> Tensor:
    return kernel.log_mass(region, c).exp()


def values_of(name: str) -> list[Any]:
    if name in CODES:
        return [0, 1, 2, 3]
    return [v for v in VALUES if name not in CIRCLES or 0 <= v < 4]


@st.composite
def regions(draw: st.DrawFn, name: str) -> Region:
    values = st.sampled_from(values_of(name))

    def interval() -> Region:
        low, high = sorted((draw(values), draw(values)))
        ends = draw(st.integers(0, 5))
        closed = draw(st.sampled_from(["both", "left", "right", "neither"]))
        return kdm.Interval(None if ends == 0 else low, None if ends == 1 else high, closed)

    parts = [
        interval() if draw(st.booleans()) else kdm.OneOf(draw(st.lists(values, min_size=1, max_size=3)))
        for _ in range(draw(st.integers(1, 3)))
    ]
    region = union(parts)
    return ~region if draw(st.booleans()) else region


every = pytest.mark.parametrize("name", KERNELS)
laws = settings(max_examples=12, deadline=None, derandomize=True)


# ---- masses


@every
@laws
@given(data=st.data())
def test_masses_are_a_measure(name: str, data: st.DataObject) -> None:
    kernel = KERNELS[name]()
    c = components(name, kernel)
    a, b = (data.draw(regions(name)) for _ in range(2))
    close(mass(kernel, a, c) + mass(kernel, ~a, c), torch.ones(3), rtol=1e-9)
    parts = mass(kernel, a & b, c) + mass(kernel, a & ~b, c)
    close(parts, mass(kernel, a, c), rtol=1e-8, atol=1e-9)
    both = mass(kernel, a, c) + mass(kernel, b, c) - mass(kernel, a & b, c)
    close(mass(kernel, a | b, c), both, rtol=1e-8, atol=1e-9)


@every
def test_below_at_and_above_sum_to_one(name: str) -> None:
    kernel = KERNELS[name]()
    c = components(name, kernel)
    for value in values_of(name):
        parts = (kdm.Interval(None, value, "left"), kdm.OneOf([value]), kdm.Interval(value, None, "right"))
        total = sum(mass(kernel, part, c) for part in (*parts, kdm.Missing))
        close(total, torch.ones(3), rtol=1e-9)
        at = mass(kernel, parts[1], c)
        if name in DENSITIES or name == "circle":
            assert at.eq(0).all()
    close(mass(kernel, WHOLE, c), torch.ones(3), rtol=1e-9)


@every
def test_single_precision_agrees(name: str) -> None:
    kernel = KERNELS[name]()
    c = components(name, kernel)
    single = c.float() if c.is_floating_point() else c
    for value in values_of(name):
        region = kdm.Interval(value, None, "right")
        # The events are those of float32 components: only arithmetic differs.
        wide = single.double() if c.is_floating_point() else c
        close(
            mass(kernel, region, single).double(), mass(kernel, region, wide).double(), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("name", [*NUMBERS, *CIRCLES])
def test_a_batch_of_regions_is_one_by_one(name: str) -> None:
    kernel = KERNELS[name]()
    c, values = components(name, kernel), real(values_of(name))
    for closed in ("both", "left", "right", "neither"):
        for low, high in ((values, values + 1.25), (values, math.inf), (-math.inf, values), (values, values)):
            low, high = (torch.as_tensor(end).expand_as(values) for end in (low, high))
            got = mass(kernel, kdm.Interval(low.unsqueeze(-1), high.unsqueeze(-1), closed), c)
            pairs = zip(low.tolist(), high.tolist(), strict=True)
            wanted = torch.stack([mass(kernel, kdm.Interval(*pair, closed), c) for pair in pairs])
            close(got, wanted, rtol=1e-9, atol=1e-12)
    sets = torch.stack([values, values.roll(1), values], -1)
    wanted = torch.stack([mass(kernel, kdm.OneOf(row), c) for row in sets.tolist()])
    close(mass(kernel, kdm.OneOf(sets), c), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", [*NUMBERS, *CIRCLES, "levels", "cosine"])
def test_masses_carry_gradients(name: str) -> None:
    kernel = KERNELS[name]()
    c = components(name, kernel).requires_grad_()
    low = 0 if name in CODES else 0.4
    region = kdm.Interval(low, 1) | kdm.OneOf([2])
    assert torch.autograd.gradcheck(lambda c: kernel.log_mass(region, c), (c,))
    if name in DENSITIES or name == "circle":
        ends = real([[0.4], [0.5]]).requires_grad_()
        assert torch.autograd.gradcheck(
            lambda e: kernel.log_mass(kdm.Interval(e, e + 0.7), c.detach()), (ends,)
        )


# ---- restricted kernels


def log_density(kernel: Kernel, c: Tensor, x: Tensor) -> Tensor:
    scores = kernel.log_overlap(x.unsqueeze(1), c) + kernel.log_norm(c)
    jacobian = kernel.log_jacobian(x)
    return scores if jacobian is None else scores + jacobian.unsqueeze(-1)


def some_regions(name: str) -> list[Region]:
    if name in CODES:
        return [kdm.Interval(1, 2), kdm.OneOf([0, 3]), ~kdm.OneOf([1])]
    result = [
        kdm.Interval(0.5, 2.0),
        kdm.Interval(0.5, 2.0, "neither"),
        kdm.Interval(None, 1.0, "left"),
        kdm.Interval(1.0, None, "right"),
        ~kdm.Interval(1.0, 2.0),
        ~kdm.OneOf([1.0]) & ~kdm.Missing,
        union(
            [kdm.Interval(0.0, 0.3), kdm.Interval(0.9, 1.1), kdm.OneOf([2.0] if name in DISCRETE else [1.0])]
        ),
    ]
    if name in DISCRETE or name in INFLATED:
        result += [kdm.OneOf([1.0]) if name in ("inflated", "inflated missing") else kdm.OneOf([0.0])]
    return result


def in_region(name: str, kernel: Kernel, region: Region, x: Tensor) -> list[bool]:
    """The decimal number that an event stands for counts on a grid."""
    numbers = x.reshape(-1)
    if any(word in name for word in ("rounded", "whole")):
        numbers = kernel.nearest_atom(numbers.double())
    if name in CIRCLES:
        region = kdm.Periodic(1.0, 4.0).in_one_turn(region)
    inside = region.contains(numbers.double().numpy())
    return np.where(numbers.isnan().numpy(), region.has_missing, inside).tolist()


@every
def test_restricted_densities_are_those_inside_over_their_mass(name: str) -> None:
    kernel = KERNELS[name]()
    c = components(name, kernel)
    if name in CODES:
        x = torch.arange(4)
    else:
        x = real([0.1, 0.3, 0.6, 0.95, 1.05, 1.7, 2.3, 2.9, 0.0, 1.0, 2.0]).unsqueeze(-1)
        x = x.round().unique(dim=0) if name == "whole circle" else x
        x = kernel.nearest_atom(x).unique(dim=0) if "rounded" in name else x
    for region in some_regions(name):
        inside, inner = kernel.restricted(region, c)
        got, whole = (log_density(k, part, x) for k, part in ((inside, inner), (kernel, c)))
        member = torch.tensor(in_region(name, kernel, region, x)).unsqueeze(-1)
        wanted = torch.where(member, whole - kernel.log_mass(region, c).reshape(-1), -math.inf)
        alive = kernel.log_mass(region, c).reshape(-1).isfinite()
        close(got.exp()[:, alive], wanted.exp()[:, alive], rtol=1e-7, atol=1e-9)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [200, pytest.param(700, marks=pytest.mark.slow)])
def test_draws_lie_inside(name: str, dtype: torch.dtype, n: int) -> None:
    kernel = KERNELS[name]()
    c = components(name, kernel)
    c = c.to(dtype) if c.is_floating_point() else c
    index = torch.arange(3).repeat(n)
    regions = some_regions(name)
    if name not in CODES:
        regions.append(
            kdm.Interval(0.7, 0.9) if "ounded" not in name and name != "whole circle" else regions[0]
        )
    # The time is that of searching quantiles for a region: few draws are of every other one in each dtype.
    for region in regions if n > 200 else regions[dtype == torch.float64 :: 2]:
        inside, inner = kernel.restricted(region, c)
        x = inside.sample(inner[index], index, seeded(0))
        inside.check_events("x", x, x.shape[1:])
        x = x.argmax(-1) if name == "cosine" else x
        assert all(in_region(name, kernel, region, x)), (region, x)
        if name not in ("cosine",):
            mode = inside.mode(inner)
            assert all(in_region(name, kernel, region, mode)), (region, mode)
        # Frequencies of a part of the region.
        part = region & (kdm.OneOf([1]) if name in CODES else kdm.Interval(None, 1.2))
        p = (kernel.log_mass(part, c) - kernel.log_mass(region, c)).exp().reshape(-1).double()
        hits = torch.tensor(in_region(name, kernel, part, x), dtype=torch.float64).reshape(-1, 3).mean(0)
        bound = 5 * (p * (1 - p) / n).clamp_min(0).sqrt() + 1e-6
        assert ((hits - p).abs() <= bound).logical_or(p.isnan()).all(), (region, hits, p)


@pytest.mark.parametrize("name", [*NUMBERS, *CIRCLES])
@pytest.mark.parametrize("n", [2000, pytest.param(8000, marks=pytest.mark.slow)])
def test_distribution_functions_and_moments_inside(name: str, n: int) -> None:
    kernel = KERNELS[name]()
    c, x = components(name, kernel), real([0.1, 0.5, 1.0, 1.3, 2.0, 2.7])
    for region in some_regions(name):
        inside, inner = kernel.restricted(region, c)
        total = kernel.log_mass(region, c).exp()
        alive = total > 0
        low = 0.0 if name in CIRCLES else None
        below = [
            mass(kernel, region & kdm.Interval(low, value) & ~kdm.Missing, c) / total for value in x.tolist()
        ]
        if inside.has_cdf:
            close(inside.cdf(x, inner)[:, alive], torch.stack(below)[:, alive], rtol=1e-7, atol=1e-8)
        for at, value in enumerate(x.tolist()):
            share = mass(inside, kdm.Interval(low, value), inner)
            close(share[alive], below[at][alive], rtol=1e-7, atol=1e-9)
        if not inside.has_moments or name in CIRCLES or region.has_missing:
            continue
        index = torch.arange(3).repeat(n)
        drawn = inside.sample(inner[index], index, seeded(2)).reshape(-1, 3)
        mean, variance = inside.mean(inner).squeeze(-1), inside.variance(inner).squeeze(-1)
        near = (drawn.mean(0) - mean).abs() <= 6 * (variance / n).sqrt() + 1e-9
        assert near.logical_or(~alive).all(), region
        # Of densities without long tails: those of others have draws of a variance that varies.
        regular = alive & (variance > 1e-2) & (torch.tensor("log" not in name and name != "inflated missing"))
        fourth = (drawn - drawn.mean(0)).pow(4).mean(0)
        error = ((fourth - drawn.var(0).square()) / n).clamp_min(0).sqrt()
        assert (drawn.var(0) - variance)[regular].abs().le((6 * error + 1e-9)[regular]).all(), region


@every
def test_restricted_twice_is_restricted_to_the_intersection(name: str) -> None:
    kernel = KERNELS[name]()
    c = components(name, kernel)
    pairs = [(0.3, 2.5), (0.5, 3.0)] if name not in CODES else [(0, 2), (1, 3)]
    first, second = (kdm.Interval(*pair) for pair in pairs)
    inside, inner = kernel.restricted(first, c)
    twice, twice_c = inside.restricted(second, inner)
    once, once_c = kernel.restricted(first & second, c)
    parts = [kdm.Interval(None, value) for value in values_of(name)]
    for part in parts if name not in CIRCLES else [kdm.Interval(0.0, value) for value in values_of(name)]:
        close(mass(twice, part, twice_c), mass(once, part, once_c), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", [*DENSITIES, *ROUNDED, *INFLATED])
def test_components_without_mass_stay_finite_and_rare_regions_are_exact(name: str) -> None:
    kernel = KERNELS[name]()
    c = components(name, kernel)
    for region in (kdm.Interval(2.9, 3.0), kdm.Interval(2.9, 2.95) | kdm.Interval(2.97, 3.0)):
        inside, inner = kernel.restricted(region, c)
        if inside.has_moments and not kernel.has_missing:
            assert inside.mean(inner).isfinite().all()
            assert inside.variance(inner).isfinite().all()
        x = inside.sample(inner, torch.arange(3), seeded(0))
        assert x.isfinite().all()


def test_rare_regions_far_in_a_tail() -> None:
    kernel, c = kdm.RBF.from_std(1.0), torch.zeros(1, 1, dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        for low in (7.0, 40.0, 1e6):
            for region in (
                kdm.Interval(low, None, "right"),
                kdm.Interval(low, low + 1) | kdm.Interval(-low - 1, -low),
            ):
                for make in (lambda k: k, lambda k: kdm.Rounded(k, 0.25), lambda k: kdm.Inflated(k, [0.0])):
                    outer = make(kernel)
                    rare = torch.zeros(
                        1, 1 if outer is kernel or isinstance(outer, kdm.Rounded) else 3, dtype=dtype
                    )
                    inside, inner = outer.restricted(region, rare)
                    x = inside.sample(inner.expand(500, -1), torch.zeros(500, dtype=torch.long), seeded(0))
                    assert all(v in region for v in x.flatten().tolist()), (dtype, low, outer)
    inside, _ = kernel.restricted(kdm.Interval(7.0, None), c)
    assert inside.mean(c).item() == pytest.approx(7.0 + 1 / 7.0, abs=0.01)


def test_restricted_kernels_are_saved() -> None:
    for name in NUMBERS | CIRCLES:
        kernel = KERNELS[name]()
        c = components(name, kernel)
        inside, inner = kernel.restricted(~kdm.Interval(1.0, 2.0) & kdm.Interval(0.0, 3.0), c)
        again = kdm.kernels.kernel_from_config(inside.config())
        again.load_state_dict(inside.state_dict())
        region = kdm.Interval(0.0, 0.6)
        close(mass(again, region, inner), mass(inside, region, inner))
        assert repr(again) == repr(inside)


@pytest.mark.parametrize("name", ["inflated truncated", "inflated log", "inflated rounded tricube"])
def test_a_region_with_an_atom_and_no_other_mass_is_the_atom(name: str) -> None:
    kernel: Kernel = {
        "inflated truncated": lambda: kdm.Inflated(kdm.Truncated(kdm.RBF(0.8), 0.0), [0.0]),
        "inflated log": lambda: kdm.Inflated(kdm.Transformed.log(kdm.RBF(0.8)), [0.0]),
        "inflated rounded tricube": lambda: kdm.Inflated(kdm.Rounded(kdm.Tricube(1.5), 0.5), [-9.0]),
    }[name]()
    c = components(name, kernel)[:, -3:]
    atom = float(kernel.steps().max())  # type: ignore[no-untyped-call]
    for region in (kdm.Interval(None, atom), kdm.Interval(None, atom) | kdm.Interval(-99.0, -98.0)):
        inside, inner = kernel.restricted(region, c)
        close(mass(inside, kdm.OneOf([atom]), inner), torch.ones(3))
        close(inside.mean(inner), torch.full((3, 1), atom, dtype=torch.float64))
        assert inside.sample(inner, torch.arange(3), seeded(0)).eq(atom).all()


@pytest.mark.parametrize("name", [*DENSITIES, *ROUNDED])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_means_inside_of_far_and_narrow_regions_lie_there(name: str, dtype: torch.dtype) -> None:
    kernel = KERNELS[name]()
    c = components(name, kernel).to(dtype)
    for low, high in ((1e7, math.inf), (1.0, 1.0 + 2e-16), (0.4, 0.4000001), (-math.inf, 1e-7)):
        inside, inner = kernel.restricted(kdm.Interval(low, high), c)
        alive = kernel.log_mass(kdm.Interval(low, high), c).isfinite().reshape(-1)
        mean, variance = inside.mean(inner)[alive].squeeze(-1), inside.variance(inner)[alive]
        margin = 1e-6 * mean.abs() + 1e-6 if "ounded" not in name else 0.5
        assert ((mean >= low - margin) & (mean <= high + margin)).all(), (low, high, mean)
        assert (variance.isfinite() & (variance >= 0)).all()
