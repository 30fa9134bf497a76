"""Log masses of regions against quadrature, in both tails and for the smallest intervals."""

import math
from collections.abc import Callable
from functools import partial

import mpmath as mp
import pytest
import torch
from torch import Tensor

import kdmkit as kdm
from helpers import KERNELS, M, close, components, events, normal, quadrature, real, seeded
from kdmkit.kernels import FixedBandwidth, Kernel
from kdmkit.kernels.calculus.integrals import in_pieces, log_bump_mass, log_sum
from kdmkit.kernels.calculus.normal import anchored_log_mass, composed_log_mass
from kdmkit.ops import log_mix

FAMILIES: dict[str, Callable[..., Kernel]] = {
    "rbf": lambda s: kdm.RBF(s),
    "epanechnikov": lambda s: kdm.Epanechnikov(s),
    "tricube": lambda s: kdm.Tricube(s),
}
every_family = pytest.mark.parametrize("family", FAMILIES)
INTERVAL_KERNELS = [
    name
    for name, make in KERNELS.items()
    if isinstance(make(), kdm.RBF | kdm.Epanechnikov | kdm.Tricube) and name != "rbf-metric"
]
SET_KERNELS = ["cosine", "categorical", "categorical-smooth"]


# ---- oracles


def exact_log_mass(family: str, low: float, high: float, c: float, s: float) -> float:
    """Differences of antiderivatives, with more digits than the difference loses."""
    with mp.workdps(720):
        a, b = (low - mp.mpf(c)) / mp.mpf(s), (high - mp.mpf(c)) / mp.mpf(s)
        if family == "rbf":
            mass, outside = (mp.erfc(a) - mp.erfc(b)) / 2, (mp.erfc(-a) + mp.erfc(b)) / 2
        else:
            a, b = max(a, mp.mpf(-1)), min(b, mp.mpf(1))
            mass = bump_cdf(family, b) - bump_cdf(family, a)
            outside = 1 - mass
        if mass <= 0:
            return -math.inf
        return float(mp.log1p(-outside) if mass > 0.5 else mp.log(mass))


def bump_cdf(family: str, u: mp.mpf) -> mp.mpf:
    n, p = (2, 2) if family == "epanechnikov" else (6, 3)

    def integral(v: mp.mpf) -> mp.mpf:
        return sum((-1) ** k * mp.binomial(n, k) * v ** (p * k + 1) / (p * k + 1) for k in range(n + 1))

    return mp.mpf(0.5) + mp.sign(u) * integral(abs(u)) / integral(mp.mpf(1)) / 2


def mixed_rows(dtype: torch.dtype, n: int) -> list[tuple[float, float, float, float]]:
    """Intervals of all kinds, `(low, high, centre, scale)`, exact in `dtype`."""
    reach, tiny = (26.0, 1e-14) if dtype == torch.float64 else (8.8, 1e-5)
    kind = torch.randint(7, (n,), generator=seeded(0))
    c = normal(n, seed=1) * torch.tensor([0.0, 1.0, 1000.0])[torch.randint(3, (n,), generator=seeded(2))]
    s = normal(n, seed=3).exp()
    u, v = torch.rand(2, n, dtype=torch.float64, generator=seeded(4))
    start = torch.where(kind == 0, reach * (2 * u - 1), 2 * u - 1)
    width = torch.where(kind == 1, tiny**v, torch.where(kind == 2, 3 * v, v))
    low, high = c + s * start, c + s * (start + width)
    low, high = (
        torch.where(kind == k, math.copysign(math.inf, k - 3.5), end) for k, end in ((3, low), (4, high))
    )
    # Up to the end of a compact support.
    low, high = torch.where(kind == 5, c + s * (1 - 1e-3 * u), low), torch.where(kind == 5, c + 2 * s, high)
    rows = torch.stack([low, high, c, s], -1).to(dtype).double()
    return [tuple(row) for row in rows.tolist() if row[0] <= row[1]]  # type: ignore[misc]


def log_masses(family: str, rows: list[tuple[float, ...]], dtype: torch.dtype) -> Tensor:
    """Each row has a component and an interval."""
    low, high, c, s = torch.tensor(rows, dtype=torch.float64).T.to(dtype).unsqueeze(-1)
    kernel = FAMILIES[family](FixedBandwidth("sigma" if family == "rbf" else "h", s.unsqueeze(-1)))
    rho = kdm.KDM(c.unsqueeze(-1), None, kernel)
    return rho.log_mass(kdm.Interval(low, high))


# ---- values


@every_family
@pytest.mark.parametrize(
    ("dtype", "tolerance", "least"), [(torch.float64, 1e-12, -690), (torch.float32, 1e-4, -80)]
)
def test_intervals_against_exact_integrals(
    family: str, dtype: torch.dtype, tolerance: float, least: float
) -> None:
    rows = mixed_rows(dtype, 100)
    got = log_masses(family, rows, dtype).double()
    wanted = real([exact_log_mass(family, *row) for row in rows])
    assert torch.equal(torch.isneginf(got), torch.isneginf(wanted))
    used = (wanted >= least) & (wanted < -(torch.finfo(dtype).tiny))
    assert used.sum() > 50
    assert (((got - wanted) / wanted).abs()[used] <= tolerance).all()
    if family == "rbf":
        assert wanted[used].min() < 0.8 * least


@pytest.mark.parametrize("family", ["epanechnikov", "tricube"])
def test_next_to_the_end_of_a_support(family: str) -> None:
    """The distance to the end of the support keeps its digits where they exist: here the end is at 0."""
    rows = [(-e, high, -1.0, 1.0) for e in (1e-3, 1e-20, 1e-40, 1e-98) for high in (0.0, 1.0, -e / 2)]
    rows += [(e / 2, e, 1.0, 1.0) for e in (1e-3, 1e-98)]
    wanted = real([exact_log_mass(family, *row) for row in rows])
    close(log_masses(family, rows, torch.float64), wanted, rtol=1e-13)
    assert wanted.min() < -670


@pytest.mark.parametrize("name", INTERVAL_KERNELS)
def test_boxes_against_quadrature(name: str) -> None:
    """Every form of the bandwidth: a box has the product of the masses in both dimensions."""
    kernel, c = KERNELS[name](), 0.3 * normal(M, 2, seed=1)
    low, high = real([[-0.4, -0.7], [0.1, 0.2], [0.3, -2.0]]), real([[0.2, 0.9], [0.15, 0.7], [2.0, 2.0]])
    got = kernel.log_mass(kdm.Interval(low, high), c)
    wanted = torch.zeros(3, M, dtype=torch.float64)
    for k in (0, 1):
        part, column = kernel.coordinates([k]), c[:, [k]]

        def density(x: Tensor, part: Kernel = part, column: Tensor = column) -> Tensor:
            """`(m, nodes)`."""
            return (part.log_overlap(x.reshape(-1, 1, 1), column) + part.log_norm(column)).mT

        ends = zip(low[:, k].tolist(), high[:, k].tolist(), strict=True)
        wanted += torch.stack([quadrature(density, *pair, panels=200) for pair in ends])
    close(got, wanted, rtol=1e-6)


def test_a_batch_of_bandwidths() -> None:
    sigma = normal(3, M, 2, seed=0).exp()
    c, box = normal(M, 2, seed=1), kdm.Interval(-1.0, 0.5)
    rho = kdm.KDM(c, None, kdm.RBF(FixedBandwidth("sigma", sigma)))
    wanted = torch.stack([kdm.KDM(c, None, kdm.RBF(s)).log_mass(box) for s in sigma])
    close(rho.log_mass(box), wanted)


def test_a_metric_of_one_dimension_has_masses() -> None:
    c = normal(M, 1, seed=0)
    box = kdm.Interval(-0.2, 1.0)
    close(kdm.RBF.from_metric(real([[2.0]])).log_mass(box, c), kdm.RBF(0.5).log_mass(box, c))


@pytest.mark.parametrize("name", SET_KERNELS)
def test_sets_sum_the_probabilities(name: str) -> None:
    kernel, c = KERNELS[name]().double(), events(KERNELS[name](), M, seed=1)
    probs = kernel.probs(c)
    for codes in ([0], [2, 0], [1, 1, 1], [0, 1, 2]):
        got = kernel.log_mass(kdm.OneOf(codes), c)
        close(got.exp(), probs[:, sorted(set(codes))].sum(-1), rtol=1e-12)
    sets = torch.tensor([[0, 0], [1, 2]])
    close(kernel.log_mass(kdm.OneOf(sets), c), torch.stack([kernel.log_mass(kdm.OneOf(s), c) for s in sets]))


def test_sets_of_small_probabilities() -> None:
    """Amplitudes whose squares underflow."""
    c = torch.tensor([[1.0, 1e-17, 2e-17]])
    close(
        kdm.Cosine().log_mass(kdm.OneOf([1, 2]), c), torch.tensor([[math.log(5e-34)]]).squeeze(0), rtol=1e-6
    )
    kernel = kdm.Categorical(5, smoothing=1e-34)
    close(kernel.log_mass(kdm.OneOf([1, 2]), torch.tensor([0])), torch.tensor([math.log(2e-34)]), rtol=1e-6)


def test_log_sums() -> None:
    parts = normal(4, 3, seed=0) * 300
    close(log_sum(lambda i: parts[i], 4), torch.logsumexp(parts, 0))
    assert log_sum(lambda i: real([-math.inf]), 3).item() == -math.inf


# ---- gradients


INTERVALS = [
    (-1.0, 2.0, 0.3, 0.8),
    (3.0, 3.5, 0.0, 1.0),
    (-5.0, -3.0, 0.0, 1.0),
    (1.0, 1.001, 0.2, 0.9),
    (0.1, 0.9, 0.0, 1.0),
    (-0.9, -0.8, 0.0, 1.0),
    (-0.3, 0.2, 0.0, 1.0),
    (-0.9, 0.8, 0.0, 1.0),
    (-math.inf, 0.2, 0.0, 1.0),
    (0.5, math.inf, 0.0, 1.0),
]


@every_family
def test_gradients_equal_finite_differences(family: str) -> None:
    rows = [row for row in INTERVALS if exact_log_mass(family, *row) > -math.inf]
    values = real(rows)
    finite = torch.isfinite(values)

    def function(leaves: Tensor) -> Tensor:
        ends = values.masked_scatter(finite, leaves)
        return FAMILIES[family](1.0).interval_log_mass(*ends.T)  # type: ignore[operator]

    leaves = values[finite].requires_grad_()
    assert torch.autograd.gradcheck(function, (leaves,))


@every_family
def test_bandwidths_learn_from_intervals(family: str) -> None:
    kernel = FAMILIES[family](real([[0.8], [1.5]])).requires_grad_()
    low, c = real([[-0.4], [0.3]]).requires_grad_(), normal(2, 1, seed=3).requires_grad_()

    def function(low: Tensor, c: Tensor, *_: Tensor) -> Tensor:
        return kernel.log_mass(kdm.Interval(low, low + 0.5), 0.1 * c)

    assert torch.autograd.gradcheck(function, (low, c, *kernel.parameters()))


@every_family
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_gradient_where_there_is_no_mass_and_no_nan_anywhere(family: str, dtype: torch.dtype) -> None:
    huge, tiny = (1e300, 1e-300) if dtype == torch.float64 else (1e37, 1e-37)
    rows = [
        (0.0, 0.0, 0.0, 1.0),
        (huge, math.inf, 0.0, 1e-10),
        (huge, 2 * huge, 0.0, 1e-10),
        (-math.inf, math.inf, 5.0, 1e-30),
        (5.0, 5.0 + 1e-6, 5.0, 1.0),
        (0.0, tiny, 0.0, 1.0),
        (-math.inf, -math.inf, 0.0, 1.0),
        (-huge, huge, 0.0, 1e-5),
        (-1.0, 1.0, 0.0, 1.0),
        (1.0, 2.0, 0.0, 1.0),
        (0.0, 1.0, 0.0, 1.0),
    ]
    leaves = [part.clone().requires_grad_() for part in torch.tensor(rows, dtype=dtype).T]
    log_mass = FAMILIES[family](1.0).interval_log_mass(*leaves)  # type: ignore[operator]
    dead = torch.isneginf(log_mass)
    assert dead[[0, 1, 6]].all()
    assert (log_mass[[3, 7]] == 0).all()
    assert not torch.isnan(log_mass).any()
    gradients = torch.autograd.grad(log_mass[~dead].sum(), leaves, retain_graph=True)
    assert all(torch.isfinite(g).all() for g in gradients)
    gradients = torch.autograd.grad(log_mass[dead].sum(), leaves)
    assert not any(g.any() for g in gradients)


def test_the_gradient_of_a_narrow_interval_keeps_its_digits() -> None:
    """−dφ/φ of a component from an interval of a millionth of its width, in float32."""
    c = torch.tensor([[0.7]], requires_grad=True)
    (slope,) = torch.autograd.grad(kdm.RBF.from_std(1.0).log_mass(kdm.Interval(0.0, 1e-6), c).sum(), c)
    assert slope.item() == pytest.approx(-0.7, rel=1e-5)


def test_sets_carry_gradients() -> None:
    c = normal(M, 3, seed=0).requires_grad_()
    assert torch.autograd.gradcheck(lambda c: kdm.Cosine().log_mass(kdm.OneOf([0, 2]), c), (c,))
    kernel = kdm.Categorical(4, smoothing=0.2, trainable=True).double()
    codes = torch.tensor([0, 1, 2])
    assert torch.autograd.gradcheck(lambda _: kernel.log_mass(kdm.OneOf([0, 3]), codes), (kernel.logit,))
    basis = torch.eye(3).requires_grad_()
    log_mass = kdm.Cosine().log_mass(kdm.OneOf([1]), basis)
    assert torch.isneginf(log_mass).sum() == 2
    (slope,) = torch.autograd.grad(log_mass[0], basis)
    assert not slope.any()


# Of every kind: open, empty, in both tails, around the centre, narrow and tiny; beside a far anchor.
_ENDS = [
    *((low, high) for low, high, _, _ in INTERVALS),
    *(
        (-math.inf, math.inf),
        (-math.inf, -math.inf),
        (5.0, 5.0),
        (30.0, 31.0),
        (-math.inf, -2.0),
        (60.0, math.inf),
    ),
    *((0.3, 0.3 + 1e-9), (-0.4, -0.38), (-0.2, 0.6), (7.0, 7.001), (-7.2, -7.1)),
]


@pytest.mark.parametrize("anchor", [0.0, 2.0])
def test_explicit_derivatives_equal_those_of_the_operations(anchor: float) -> None:
    low, high = real(_ENDS).T.unsqueeze(-1)
    parameters = (real([anchor, anchor, anchor]), real([0.0, 0.4, -3.0]), real([1.4, 0.3, 5.0]))
    results = []
    for function in (anchored_log_mass, composed_log_mass):
        leaves = [part.clone().requires_grad_() for part in (low, high, *parameters)]
        log_mass = function(*leaves)
        weights = normal(*log_mass.shape, seed=0)
        total = (weights * log_mass).where(torch.isfinite(log_mass), 0.0).sum()
        gradients = torch.autograd.grad(total, leaves, create_graph=True)
        plain = torch.autograd.grad(total, leaves)
        results.append([log_mass, *plain, *gradients])
    for one, other in zip(*results, strict=True):
        close(one, other, rtol=1e-9, atol=1e-11)


def test_masses_of_normals_pass_every_transform() -> None:
    low, high = real([[0.3, 2.0, -0.2]]).mT, real([[0.7, 9.0, 3.0]]).mT
    leaves = [real([0.1, 1.0]).requires_grad_(), real([0.5, 2.0]).requires_grad_()]

    def masses(c: Tensor, scale: Tensor) -> Tensor:
        return anchored_log_mass(low, high, real([0.2, 1.1]), c, scale)

    assert torch.autograd.gradcheck(masses, leaves)
    assert torch.autograd.gradgradcheck(masses, leaves)
    mapped = torch.func.vmap(
        lambda end: anchored_log_mass(end, end + 1, *(leaf.detach() for leaf in [leaves[0], *leaves]))
    )(low)
    close(mapped, anchored_log_mass(low, low + 1, leaves[0], *leaves).detach())


def test_pieces_change_nothing() -> None:
    low, c, parts = normal(7, 1, seed=0), 0.3 * normal(1, 5, seed=1), []
    function = partial(log_bump_mass, bump=kdm.Tricube.unit_bump)
    for size in (1 << 16, 10):
        leaves = [part.clone().requires_grad_() for part in (low, low + 1, c, real(2.0))]
        log_mass = in_pieces(function, *leaves, size=size)
        parts.append([log_mass, *torch.autograd.grad(log_mass.sum(), leaves)])
    for got, wanted in zip(*parts, strict=True):
        close(got, wanted)


# ---- shapes and errors


def test_masses_in_blocks_equal_those_at_once() -> None:
    c, low = normal(30, 2, seed=0).requires_grad_(), normal(40, 2, seed=1)
    kernel = kdm.Tricube(normal(30, 1, seed=2).exp() + 1)
    zeros, term = (
        torch.zeros(30).double(),
        kernel.region_term(kernel.pack("region", kdm.Interval(low, low + 1), c.shape[1:]), c),
    )
    whole, blocks = (log_mix(term, zeros, backend=name) for name in ("reference", "chunked"))
    close(blocks, whole)
    close(*(torch.autograd.grad(part.sum(), c)[0] for part in (blocks, whole)))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_say_which_regions_they_know(name: str) -> None:
    kernel = KERNELS[name]()
    c = events(kernel, M, seed=0)
    wrong, message = {
        kdm.RBF: (kdm.OneOf([0]), "an interval, for events of several dimensions"),
        kdm.Epanechnikov: (~kdm.Interval(0, 1), "an interval, for events of several dimensions"),
        kdm.Tricube: (kdm.OneOf([0]), "an interval, for events of several dimensions"),
        kdm.Cosine: (kdm.Interval("a", None), "a region of integer codes"),
        kdm.Categorical: (kdm.OneOf([0.5]), "integer codes"),
        kdm.Composed: (kdm.Interval(0, 1), "points, for Composed"),
    }.get(type(kernel), (None, ""))
    if name == "rbf-metric":
        wrong, message = kdm.Interval(0, 1), "points, or a kernel without a metric"
    if wrong is None:
        return
    for ask in (
        lambda: kernel.log_mass(wrong, c),
        lambda: kernel.pack("region", wrong, c.shape[1:]),
        lambda: kdm.KDM(c, None, kernel).log_mass(wrong),
    ):
        with pytest.raises(TypeError, match=rf"^region: expected {message}"):
            ask()


@pytest.mark.usefixtures("unchecked")
def test_sets_hold_known_labels() -> None:
    for kernel, c in ((kdm.Cosine(), torch.eye(3)), (kdm.Categorical(3), torch.arange(3))):
        with pytest.raises(ValueError, match=r"^region: expected labels in 0 … 2, got 3$"):
            kernel.log_mass(kdm.OneOf([0, 3]), c)
        with pytest.raises(TypeError, match=r"^region: expected integer"):
            kernel.log_mass(kdm.OneOf([0.5]), c)


@pytest.mark.parametrize("name", [name for name, make in KERNELS.items() if make().has_density])
def test_no_event_is_likelier_than_the_mode(name: str) -> None:
    kernel = KERNELS[name]()
    c = components(kernel, M, seed=0)
    best = log_density(kernel, kernel.mode(c), c)
    draws = kernel.sample(c.repeat(20, *[1] * kernel.component_dim), torch.arange(M).repeat(20), seeded(0))
    others = log_density(kernel, draws.unflatten(0, (20, M)), c)
    if isinstance(kernel, kdm.Inflated) and not isinstance(kernel.kernel, kdm.Rounded):
        # Masses and densities cannot be compared: atoms with atoms, other numbers with other numbers.
        is_mass = kernel._match(kernel.mode(c)).any(-1)
        others = torch.where(kernel._match(draws.unflatten(0, (20, M))).any(-1) == is_mass, others, -math.inf)
    assert (others <= best + 1e-12).all()


def log_density(kernel: kdm.Kernel, x: Tensor, c: Tensor) -> Tensor:
    """The log-density of pairs up to what all events share."""
    jacobian = kernel.log_jacobian(x)
    return kernel.log_overlap(x, c) + (0.0 if jacobian is None else jacobian)


@every_family
@pytest.mark.parametrize("ends", [(0.0, None), (None, 1.0), (-0.5, 0.7), (1.0, 1.0001), (8.0, 9.0)])
def test_differences_of_distribution_functions_agree_with_masses(family, ends):
    """F between bounds by the quick way, where it serves, and by the masses of intervals."""
    kernel = kdm.Truncated(FAMILIES[family](real([[0.4], [0.9], [2.0]])), *ends)
    c = real([[-0.8], [0.1], [0.9]])
    x = torch.cat([torch.linspace(-1, 10, 23, dtype=torch.float64), real([-torch.inf, torch.inf])])
    quick = kernel._difference(x, c)
    if quick is not None:
        close(quick, kernel._mass_below(x, c), rtol=1e-9, atol=1e-12)
    assert quick is not None or family != "rbf"
    close(kernel.cdf(x, c), kernel._mass_below(x, c), rtol=1e-9, atol=1e-12)


def test_no_intervals_have_no_masses() -> None:
    none, one = torch.zeros(0, 1), torch.ones(3)
    assert anchored_log_mass(none, none + 1, one, one, one).shape == (0, 3)
