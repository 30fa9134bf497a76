"""Point masses beside a continuous kernel."""

import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor

import kdmkit as kdm
from helpers import close, normal, quadrature, real, seeded
from kdmkit.ops import score_matrix

NAN = math.nan
C = normal(3, 4, seed=0)  # two atoms
KERNELS: dict[str, Callable[[], kdm.Inflated]] = {
    "rbf": lambda: kdm.Inflated(kdm.RBF.from_std(0.5), [0.0, 1.0]),
    "rbf-missing": lambda: kdm.Inflated(kdm.RBF.from_std(0.5), [0.0, NAN]),
    "rbf-per-component": lambda: kdm.Inflated(kdm.RBF([[0.2], [0.5], [1.0]]), [0.0, 1.0]),
    "log": lambda: kdm.Inflated(kdm.Transformed.log(kdm.RBF.from_std(0.5)), [0.0, 1.0]),
    "truncated": lambda: kdm.Inflated(kdm.Truncated(kdm.RBF.from_std(0.5), 0.0, 2.0), [0.0, 2.0]),
    "rounded": lambda: kdm.Inflated(kdm.Rounded(kdm.RBF.from_std(0.5), 0.25), [0.0, 1.0]),
    "rounded-missing": lambda: kdm.Inflated(kdm.Rounded(kdm.RBF.from_std(0.5), 0.25), [0.0, NAN]),
}
every = pytest.mark.parametrize("name", KERNELS)


def log_prob(kernel: kdm.Kernel, x: Tensor, c: Tensor) -> Tensor:
    """Whole log-probabilities or log-densities of x `(n,)`, `(m, n)`."""
    events = x.unsqueeze(-1)
    scores = score_matrix([kernel.term(events, c)], torch.zeros(len(c), dtype=c.dtype))
    jacobian = kernel.log_jacobian(events)
    return (scores if jacobian is None else scores + jacobian.unsqueeze(-1)).mT


def parts(kernel: kdm.Inflated) -> tuple[Tensor, Tensor]:
    """The probabilities of (continuous, atoms), and the inner components."""
    return C[:, :3].softmax(-1), C[:, 3:]


@every
def test_formula(name: str) -> None:
    kernel = KERNELS[name]()
    probs, inner = parts(kernel)
    x = real([0.3, 0.55, 1.7])
    density = log_prob(kernel.kernel, x, inner) + kernel.kernel.log_norm(inner).reshape(-1, 1)
    close(log_prob(kernel, x, C).exp(), probs[:, :1] * density.exp())
    masses = probs[:, 1:]
    if isinstance(kernel.kernel, kdm.Rounded):
        cells = log_prob(kernel.kernel, kernel.atoms.nan_to_num(0.0), inner).exp()
        masses = masses + probs[:, :1] * torch.where(kernel.atoms.isnan(), 0.0, cells)
    close(log_prob(kernel, kernel.atoms, C).exp(), masses)
    both = torch.cat([x, kernel.atoms])
    jacobian = kernel.log_jacobian(both.unsqueeze(-1))
    pairs = kernel.log_overlap(both[:, None, None], C).mT + (0.0 if jacobian is None else jacobian)
    close(pairs, log_prob(kernel, both, C))


@every
def test_atoms_and_the_rest_sum_to_one(name: str) -> None:
    kernel = KERNELS[name]()
    atoms = log_prob(kernel, kernel.atoms, C).exp().sum(-1)
    if isinstance(kernel.kernel, kdm.Rounded):
        points = 0.25 * torch.arange(-60, 60).double()
        others = points[~kernel._match(points.unsqueeze(-1)).any(-1)]
        rest = log_prob(kernel, others, C).exp().sum(-1)
    else:
        low, high = (0.0, 2.0) if name == "truncated" else (0.0 if name == "log" else -20.0, 60.0)
        rest = quadrature(lambda x: log_prob(kernel, x, C), low, high, panels=700).exp()
    close(atoms + rest, torch.ones(3), rtol=0, atol=1e-6)


@every
def test_regions_include_atoms(name: str) -> None:
    kernel = KERNELS[name]()
    probs, inner = parts(kernel)
    for low, high in (
        (-0.5, 0.6),
        (0.0, 0.0),
        (0.1, 1.0),
        (-math.inf, math.inf),
        (1.2, 1.9),
        (2.0, math.inf),
    ):
        inside_atoms = probs[:, 1:] * ((kernel.atoms >= low) & (kernel.atoms <= high))
        inside = kernel.kernel.log_mass(kdm.Interval(low, high), inner).exp()
        close(kernel.log_mass(kdm.Interval(low, high), C).exp(), inside_atoms.sum(-1) + probs[:, 0] * inside)
    first = kernel.atoms[:1].tolist()
    close(kernel.log_mass(kdm.OneOf([*first, *first]), C), log_prob(kernel, real(first), C).squeeze(-1))
    other = kernel.log_mass(kdm.OneOf([0.75]), C)
    if isinstance(kernel.kernel, kdm.Rounded):
        close(other, log_prob(kernel, real([0.75]), C).squeeze(-1))
    else:
        assert torch.isneginf(other).all()
    both = kernel.log_mass(kdm.OneOf(kernel.atoms.tolist()), C)
    close(both.exp(), log_prob(kernel, kernel.atoms, C).exp().sum(-1))


def test_masses_of_improbable_atoms_and_tails() -> None:
    for dtype, least, distance in ((torch.float64, -690.0, 25.5), (torch.float32, -80.0, 8.5)):
        kernel = kdm.Inflated(kdm.RBF(1.0), [0.0, 1.0])
        c = torch.tensor([[0.0, least, least - 1, 40.0]], dtype=dtype)
        got = kernel.log_mass(kdm.Interval(-1.0, 1.5), c)
        assert got.item() == pytest.approx(least + math.log1p(math.exp(-1)), rel=1e-5)
        far = torch.tensor([[0.0, 0.0, 0.0, distance]], dtype=dtype)
        got = kernel.log_mass(kdm.Interval(-1.0, -0.5), far)
        wanted = kdm.RBF(1.0).log_mass(kdm.Interval(-1.0, -0.5), far[:, 3:]) - math.log(3)
        close(got, wanted, rtol=1e-5)
        assert -690 <= got.item() <= -75


@every
def test_distribution_function_and_quantiles(name: str) -> None:
    kernel = KERNELS[name]()
    x = torch.linspace(-2.03, 4.01, 21, dtype=torch.float64)
    below = kernel.log_mass(kdm.Interval(torch.full((21, 1), -math.inf), x.unsqueeze(-1)), C).exp()
    close(kernel.cdf(x, C), below)
    rho = kdm.KDM(C, None, kernel)
    highest = 1 - rho.log_mass(kdm.OneOf([NAN])).exp().item() if kernel.has_missing else 1.0
    q = real([0.01, 0.1, 0.2, 0.3, 0.45]) * highest
    got = rho.icdf(q)
    eps = 1e-6
    assert (rho.cdf(got + eps) >= q - 1e-9).all()
    assert (rho.cdf(got - eps) <= q + 1e-9).all()


def test_quantiles_at_a_step_are_the_atom() -> None:
    kernel = kdm.Inflated(kdm.RBF.from_std(0.5), [0.0, 40.0])
    rho = kdm.KDM(real([[0.0, 2.0, 2.0, 20.0]]), None, kernel)
    assert torch.equal(rho.icdf(real([0.2, 0.9])), real([[0.0], [40.0]]))


@every
def test_draws_and_moments(name: str) -> None:
    kernel, n = KERNELS[name](), 3000
    x = kernel.sample(C.expand(n, 3, 4), torch.arange(3).expand(n, 3), seeded(1)).squeeze(-1)
    for j in range(3):
        counts = kernel._match(x[:, j : j + 1]).sum(0).double()
        wanted = n * log_prob(kernel, kernel.atoms, C)[j].exp()
        rest = n - counts.sum(), n - wanted.sum()
        pair = [torch.cat([a, b.reshape(1)]) for a, b in zip((counts, wanted), rest, strict=True)]
        assert stats.chisquare(*pair).pvalue > 1e-3
    numbers = [x[~x[:, j].isnan(), j] for j in range(3)]
    mean = kernel.mean(C).squeeze(-1)
    for j, values in enumerate(numbers):
        assert (values.mean() - mean[j]).abs() < 5 * values.std() / math.sqrt(len(values))
    if kernel.has_missing:
        with pytest.raises(TypeError, match="without NaN among the atoms"):
            kernel.variance(C)
    else:
        close(kernel.variance(C).squeeze(-1), torch.stack([v.var() for v in numbers]), rtol=0.3)


def test_the_mean_of_a_mixture_weighs_components_by_their_numbers() -> None:
    """A component that is missing nine times out of ten counts a tenth."""
    kernel = kdm.Inflated(kdm.RBF(1.0), [NAN])
    c = real([[0.0, 0.0, 1.0], [math.log(1 / 9), 0.0, 7.0]])
    wanted = (0.5 * 1.0 + 0.1 * 7.0) / 0.6
    close(kdm.KDM(c, None, kernel).mean, real([wanted]))


def test_gradients() -> None:
    kernel = kdm.Inflated(kdm.Transformed.log(kdm.RBF.from_std(0.5)), [0.0, NAN])
    raw, c = kernel.learned_bandwidth.raw.requires_grad_(), C.clone().requires_grad_()
    x = real([[0.0], [0.7], [NAN], [-3.0]])

    def function(c: Tensor, raw: Tensor) -> tuple[Tensor, ...]:
        mass = kernel.log_mass(kdm.Interval(-1.0, 0.5), c), kernel.log_mass(kdm.OneOf([NAN]), c)
        return kernel.term(x, c).matrix().exp(), kernel.log_overlap(x[:, None], c).exp(), *mass

    assert torch.autograd.gradcheck(function, (c, raw), fast_mode=True)
    (slope,) = torch.autograd.grad(kernel.term(x[3:], c).matrix().exp().sum(), c)
    assert not slope.any()


def test_missing_as_a_state() -> None:
    """A missing value is evidence about another variable."""
    kernel = kdm.Inflated(kdm.RBF.from_std(0.3), [NAN])
    x = real([[0.0], [1.0], [NAN], [NAN]])
    y = real([[0.0], [0.0], [5.0], [5.0]])
    joint = kdm.JointKDM({"x": kernel.components_from(x), "y": y}, None, {"x": kernel, "y": kdm.RBF(0.5)})
    assert joint.infer(x=real([[NAN]])).mean.item() > 4.9
    assert joint.infer(x=real([[0.5]])).mean.item() < 0.2
    drawn = joint.infer(y=real([[5.0]])).sample((50,), generator=seeded(0))
    assert drawn.isnan().float().mean() > 0.9


def test_components_from_values() -> None:
    kernel = kdm.Inflated(kdm.Transformed.log(kdm.RBF(1.0)), [0.0, NAN])
    x = real([[0.0], [2.0], [NAN], [3.0], [0.0]])
    c = kernel.components_from(x)
    states = c[:, :3].softmax(-1)
    assert states.argmax(-1).tolist() == [1, 0, 2, 0, 1]
    close(states.amax(-1), torch.full((5,), 0.99 + 0.01 / 3))
    # Components at atoms have the continuous parts of the numbers, in turn.
    close(c[:, 3].exp(), real([2.0, 2.0, 3.0, 3.0, 2.0]))
    only = kernel.components_from(real([[0.0], [NAN]]))
    assert torch.isfinite(only).all()


@pytest.mark.parametrize(
    ("values", "share", "wanted"),
    [
        ([0.0] * 5 + [1.0, 2.0, 3.0, 4.0, 5.0], 0.2, [0.0]),
        ([0.0] * 5 + [40.0] * 4 + [NAN] * 2, 0.15, [0.0, 40.0, NAN]),
        ([1.0, 2.0, 3.0], 0.5, []),
        ([1, 1, 2], 0.5, [1.0]),
    ],
)
def test_finding_atoms(values: list[float], share: float, wanted: list[float]) -> None:
    atoms = kdm.find_atoms(values, share)
    assert torch.equal(atoms.nan_to_num(-1.0), real(wanted).nan_to_num(-1.0))


def test_finding_at_most_so_many_atoms() -> None:
    values = torch.tensor([1.0] * 3 + [2.0] * 9 + [3.0] * 5)
    assert kdm.find_atoms(values, 0.01, most=2).tolist() == [2.0, 3.0]


def test_atoms_of_other_precision() -> None:
    """A float32 column has the atom 0.1 where its values are 0.1 in float32."""
    kernel = kdm.Inflated(kdm.RBF(1.0), [0.1])
    c = torch.tensor([[0.0, 0.0, 0.0]])
    close(kernel.log_overlap(torch.tensor([0.1]), c).exp(), torch.tensor([0.5]), rtol=1e-6)
    again = kdm.Inflated(kdm.RBF(1.0), [0.1]).float()
    for x in (torch.tensor([0.1]), real([0.1])):
        close(again.log_overlap(x, c.to(x)).exp(), torch.full((1,), 0.5).to(x), rtol=1e-6)


def test_bad_input(unchecked: None) -> None:
    for atoms in ([], [math.inf], [[1.0]], 1.0):
        with pytest.raises(ValueError, match=r"^atoms: expected one or more numbers"):
            kdm.Inflated(kdm.RBF(1.0), atoms)
    with pytest.raises(TypeError, match=r"^kernel: expected a kernel of numbers"):
        kdm.Inflated(kdm.Categorical(3), [0.0])
    kernel = kdm.Inflated(kdm.RBF(1.0), [0.0])
    with pytest.raises(ValueError, match=r"^value: expected finite values"):
        kdm.KDM(torch.zeros(1, 3), None, kernel).log_prob(torch.tensor([NAN]))
    with pytest.raises(ValueError, match=r"^components: expected shape \(..., 3\)"):
        kdm.KDM(torch.zeros(1, 4), None, kernel)
    with pytest.raises(ValueError, match=r"^share: expected 0 < share ≤ 1"):
        kdm.find_atoms([1.0], 0.0)
