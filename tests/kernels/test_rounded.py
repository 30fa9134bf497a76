"""Numbers recorded to a resolution."""

import math

import mpmath as mp
import pytest
import torch
from scipy import stats

import kdmkit as kdm
from helpers import close, real, seeded
from kdmkit.ops import score_matrix

C = real([[-0.4], [0.3], [1.7]])
KERNELS = {
    "rbf-per-component": lambda: kdm.Rounded(kdm.RBF([[0.1], [0.6], [1.1]]), 0.25),
    "shifted-grid": lambda: kdm.Rounded(kdm.RBF.from_std(0.6), 0.3, origin=0.11),
    "tricube": lambda: kdm.Rounded(kdm.Tricube(1.1), 0.25),
    "log": lambda: kdm.Rounded(kdm.Transformed.log(kdm.RBF.from_std(0.6)), 0.25),
    "truncated-off-grid": lambda: kdm.Rounded(kdm.Truncated(kdm.RBF.from_std(0.6), 0.07, 2.03), 0.25),
}
every = pytest.mark.parametrize("name", KERNELS)


def grid(kernel: kdm.Rounded, n: int = 1600) -> torch.Tensor:
    return kernel.at(torch.arange(-100, n).double())


def probs(kernel: kdm.Rounded, x: torch.Tensor) -> torch.Tensor:
    """`(m, n)`."""
    return score_matrix([kernel.term(x.unsqueeze(-1), C)], torch.zeros(3).double()).exp().mT


@every
def test_probabilities_sum_to_one(name: str) -> None:
    kernel = KERNELS[name]()
    every_point = probs(kernel, grid(kernel))
    close(every_point.sum(-1), torch.ones(3), rtol=0, atol=1e-6)
    pairs = kernel.log_overlap(grid(kernel)[:, None, None], C).exp().mT
    close(every_point, pairs, rtol=1e-9, atol=1e-15)


@every
def test_regions_are_sums_of_points(name: str) -> None:
    kernel, points = KERNELS[name](), grid(KERNELS[name]())
    masses = probs(kernel, points)
    for low, high in ((0.0, 1.0), (-0.3, 0.3), (0.26, 0.49), (0.75, 0.75), (-math.inf, 0.5), (0.2, math.inf)):
        inside = (points >= low - 1e-9) & (points <= high + 1e-9)
        got = kernel.log_mass(kdm.Interval(low, high), C).exp()
        close(got, (masses * inside).sum(-1), rtol=1e-9, atol=1e-12)
    chosen = points[[100, 103, 103, 110]]
    wanted = masses[:, [100, 103, 110]].sum(-1)
    close(kernel.log_mass(kdm.OneOf(chosen), C).exp(), wanted, rtol=1e-9, atol=1e-14)
    # Numbers between two points are no outcomes.
    assert kernel.log_mass(kdm.OneOf(chosen + 0.1 * kernel.step), C).exp().eq(0).all()
    x = torch.cat([points[95:115], points[95:115] + 0.4 * kernel.step])
    below = (masses.unsqueeze(0) * (points <= x[:, None, None] + 1e-9)).sum(-1)
    close(kernel.cdf(x, C), below, rtol=1e-9, atol=1e-9)


@every
def test_moments_modes_and_quantiles(name: str) -> None:
    kernel, points = KERNELS[name](), grid(KERNELS[name]())
    masses = probs(kernel, points)
    mean = (masses * points).sum(-1)
    close(kernel.mean(C).squeeze(-1), mean, rtol=1e-6, atol=1e-9)
    variance = (masses * (points - mean.unsqueeze(-1)).square()).sum(-1)
    close(kernel.variance(C).squeeze(-1), variance, rtol=1e-5)
    close(kernel.mode(C).squeeze(-1), points[masses.argmax(-1)])
    rho = kdm.KDM(C, None, kernel)
    q = real([0.01, 0.3, 0.5, 0.9])
    total = masses.mean(0).cumsum(0)
    close(rho.icdf(q).squeeze(-1), points[torch.searchsorted(total, q)], rtol=1e-9, atol=1e-9)


@every
def test_draws_are_points_of_the_grid(name: str) -> None:
    kernel, points = KERNELS[name](), grid(KERNELS[name]())
    n = 2000
    x = kernel.sample(C.expand(n, 3, 1), torch.arange(3).expand(n, 3), seeded(0)).squeeze(-1)
    k = kernel.position(x)
    close(k, k.round(), atol=1e-6)
    for j in range(3):
        counts = torch.bincount(k[:, j].round().long() + 100, minlength=len(points)).double()
        expected = n * probs(kernel, points)[j]
        often = expected > 5
        rest = n - counts[often].sum(), n - expected[often].sum()
        pairs = [
            torch.cat([a[often], torch.atleast_1d(b)]) for a, b in zip((counts, expected), rest, strict=True)
        ]
        if pairs[1][-1] > 1:
            assert stats.chisquare(*pairs).pvalue > 1e-3


@pytest.mark.parametrize(
    ("dtype", "reach", "tolerance"), [(torch.float64, 37.2, 1e-10), (torch.float32, 12.0, 1e-4)]
)
def test_cells_in_the_tails(dtype: torch.dtype, reach: float, tolerance: float) -> None:
    """Down to −690 and −80: cells wide and narrow against a Gaussian's exact masses."""
    for step in (1.0, 1e-3):
        kernel = kdm.Rounded(kdm.RBF.from_std(1.0), step)
        x = torch.tensor([0.0, 3.0, -9.0, reach, -reach], dtype=dtype).unsqueeze(-1)
        got = kernel.log_overlap(x, torch.zeros(1, dtype=dtype))
        with mp.workdps(400):
            half = mp.mpf(step) / 2
            middles = [mp.mpf(k) * mp.mpf(step) for k in kernel.position(x).round().flatten().tolist()]
            # By the lower tail, where nothing cancels.
            wanted = [float(mp.log(mp.ncdf(half - abs(m)) - mp.ncdf(-half - abs(m)))) for m in middles]
        assert min(wanted) < (-650 if dtype == torch.float64 else -69)
        close(got.double(), real(wanted), rtol=tolerance, atol=tolerance)


def test_few_cells_are_read_from_a_table() -> None:
    """Rows that repeat give the same scores and gradients as rows that do not."""
    kernel, c = kdm.Rounded(kdm.RBF.from_std(0.6), 0.25), C.clone().requires_grad_()
    few = 0.25 * torch.randint(-2, 4, (16, 1), generator=seeded(0)).double()
    alone = torch.cat([kernel.term(row[None], c).matrix() for row in few])
    together = kernel.term(few, c).matrix()
    close(together, alone)
    slopes = [torch.autograd.grad(t.sin().sum(), c)[0] for t in (together, alone)]
    close(*slopes)


def test_gradients() -> None:
    kernel = kdm.Rounded(kdm.Truncated(kdm.RBF.from_std(0.6), 0.0, 2.0), 0.25)
    raw = kernel.learned_bandwidth.raw.requires_grad_()
    c, x = C.clone().requires_grad_(), real([[0.0], [0.25], [2.0]])

    def function(c: torch.Tensor, raw: torch.Tensor) -> tuple[torch.Tensor, ...]:
        region = kernel.log_mass(kdm.Interval(0.1, 1.3), c), kernel.log_mass(kdm.OneOf([0.0, 1.0]), c)
        return kernel.log_overlap(x, c), kernel.term(x, c).matrix(), *region

    assert torch.autograd.gradcheck(function, (c, raw), fast_mode=True)


def test_bad_input(unchecked: None) -> None:
    for step in (0.0, -1.0, math.inf):
        with pytest.raises(ValueError, match=r"^step: expected a finite number > 0"):
            kdm.Rounded(kdm.RBF(1.0), step)
    with pytest.raises(TypeError, match=r"^kernel: expected a continuous kernel"):
        kdm.Rounded(kdm.Cosine())
    with pytest.raises(ValueError, match=r"^components: expected shape \(..., 1\)"):
        kdm.KDM(torch.zeros(3, 2), None, kdm.Rounded(kdm.RBF(1.0)))
    assert kdm.Rounded(kdm.RBF(1.0)).log_mass(kdm.Missing, C).exp().eq(0).all()


def test_moments_of_narrow_components_beside_wide_ones() -> None:
    """Components with many cells have the moments of the number that is rounded, others sums over cells."""
    change = kdm.QuantileNormal([0.0, 10.0, 90.0, 600.0], [-2.0, 0.0, 0.7, 2.0])
    kernel = kdm.Rounded(kdm.Transformed(kdm.RBF.from_std(real([[0.02], [0.3], [0.5]])), change), 1.0)
    c = real([[-0.63], [-0.5], [1.0]])
    points = torch.arange(-50.0, 2500.0, dtype=torch.float64)
    masses = kernel.log_overlap(points.reshape(-1, 1, 1), c).exp()
    mean = (masses * points.unsqueeze(-1)).sum(0)
    close(kernel.mean(c).squeeze(-1), mean, rtol=1e-5, atol=1e-3)
    variance = (masses * (points.unsqueeze(-1) - mean).square()).sum(0)
    close(kernel.variance(c).squeeze(-1), variance, rtol=1e-3)
