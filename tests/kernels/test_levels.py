"""A distribution over levels per component."""

import itertools
import math

import pytest
import torch
from scipy import stats

import kdmkit as kdm
from helpers import Operations, close, normal, real, seeded, simplex
from kdmkit.ops import log_mix, score_matrix

C = normal(5, 4, seed=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_formula(smoothing: float) -> None:
    kernel = kdm.Levels(4, smoothing)
    wanted = (1 - smoothing) * C.softmax(-1) + smoothing / 4
    close(kernel.probs(C), wanted, rtol=1e-6)
    close(wanted.sum(-1), torch.ones(5))
    codes = torch.arange(4)
    close(kernel.log_overlap(codes[:, None], C).exp(), wanted.mT, rtol=1e-6)
    # Fewer queries than levels, and more: two ways to the same scores.
    for queries in (codes[:3], codes.repeat(3)):
        scores = score_matrix([kernel.term(queries, C)], torch.zeros(5).double())
        close(scores.exp(), wanted.mT[queries], rtol=1e-6)
    assert torch.equal(kernel.mode(C), wanted.argmax(-1))


def test_tiny_smoothing_does_not_underflow() -> None:
    c = torch.tensor([[0.0, -300.0]])
    for smoothing in (1e-5, 1e-60):
        log_probs = kdm.Levels(2, smoothing).log_probs(c)
        assert log_probs[0, 1].item() == pytest.approx(math.log(smoothing / 2), rel=1e-6)


def test_unseen_levels_keep_a_share() -> None:
    certain = real([[60.0, 0.0, 0.0, 0.0]])
    assert kdm.Levels(4).log_overlap(torch.tensor([1]), certain).item() == pytest.approx(-60)
    close(kdm.Levels(4, 0.02).probs(certain)[0, 1:], torch.full((3,), 0.005), rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_masses_of_every_set(smoothing: float) -> None:
    kernel = kdm.Levels(4, smoothing)
    probs = kernel.probs(C)
    for k in (1, 2, 3, 4):
        for codes in itertools.combinations(range(4), k):
            got = kernel.log_mass(kdm.OneOf([*codes, codes[0]]), C)
            close(got.exp(), probs[:, list(codes)].sum(-1))
    close(kernel.log_mass(kdm.OneOf(torch.tensor([[0, 0], [3, 1]])), C).exp(),
          torch.stack([probs[:, 0], probs[:, [1, 3]].sum(-1)]))  # fmt: skip


@pytest.mark.parametrize(("dtype", "least"), [(torch.float64, -690.0), (torch.float32, -80.0)])
def test_masses_of_improbable_sets(dtype: torch.dtype, least: float) -> None:
    c = torch.tensor([[0.0, least, least - math.log(2), -5.0]], dtype=dtype)
    got = kdm.Levels(4).log_mass(kdm.OneOf([1, 2, 1]), c)
    wanted = least + math.log(1.5) - math.log1p(math.exp(-5))
    assert got.item() == pytest.approx(wanted, rel=1e-6)
    assert got.dtype == dtype


def test_gradients() -> None:
    kernel = kdm.Levels(4, 0.3, trainable=True).double()
    c, codes = C.clone().requires_grad_(), torch.tensor([2, 0, 3])

    def function(c: torch.Tensor, logit: torch.Tensor) -> tuple[torch.Tensor, ...]:
        few, many = (kernel.term(q, c).exact() for q in (codes, codes.repeat(2)))
        return few, many, kernel.log_mass(kdm.OneOf([1, 3, 3]), c)

    assert torch.autograd.gradcheck(function, (c, kernel.logit), fast_mode=True)


def test_ten_thousand_levels() -> None:
    """512 components, 4,096 rows: forward and backward without one-hot vectors of rows (41 M entries)."""
    kernel = kdm.Levels(10_000, 0.01)
    c = torch.randn(512, 10_000, generator=seeded(0)).requires_grad_()
    codes = torch.randint(10_000, (4096,), generator=seeded(1))
    with Operations() as operations:
        loss = log_mix(kernel.term(codes, c), torch.zeros(512)).sum()
        loss.backward()
    assert operations.largest <= c.numel()
    assert operations.calls <= 200
    assert c.grad is not None
    few = codes[:3]
    table = kernel.log_probs(c)
    close(log_mix(kernel.term(few, c), torch.zeros(512)), table[:, few].logsumexp(0), rtol=1e-5)


def test_draws() -> None:
    kernel, n = kdm.Levels(4, 0.1), 4000
    for draw in (kernel.draw(C, torch.arange(5).expand(n, 5), seeded(0)),
                 kernel.sample(C.expand(n, 5, 4), torch.arange(5).expand(n, 5), seeded(0))):  # fmt: skip
        assert draw.shape == (n, 5)
        for j in range(5):
            expected = kernel.probs(C)[j] * n
            assert stats.chisquare(torch.bincount(draw[:, j], minlength=4), expected).pvalue > 1e-3


def test_many_draws_of_many_levels_share_one_table() -> None:
    rho = kdm.KDM(normal(8, 10_000, seed=0, dtype=torch.float32), None, kdm.Levels(10_000))
    drawn = rho.sample((50_000,), generator=seeded(0))
    assert drawn.shape == (50_000,)
    joint = kdm.JointKDM({"a": rho.components}, None, {"a": rho.kernel})
    assert torch.equal(joint.sample((50_000,), generator=seeded(0))["a"], drawn)


def test_a_distribution_is_evidence_by_its_probabilities() -> None:
    kernel = kdm.Levels(4, 0.1)
    joint = kdm.JointKDM({"a": C, "y": normal(5, 1, seed=1)}, None, {"a": kernel, "y": kdm.RBF(0.5)})
    rho = kdm.KDM(normal(3, 4, seed=2), simplex(3, seed=3), kernel)
    wanted = (rho.probs.unsqueeze(-1) * joint.infer(a=torch.arange(4)).weights).sum(0)
    close(joint.infer(a=rho).weights, wanted, rtol=1e-6)
    with pytest.raises(TypeError, match=r"^noisy: expected False, for Levels"):
        joint.infer(a=rho, noisy=True)
    both = kdm.JointKDM({"a": C}, None, {"a": kernel})
    with pytest.raises(TypeError, match=r"^a: expected points, a region or a KDM for Levels"):
        joint.infer(both, target="y")


def test_a_layer_learns_the_frequencies(tmp_path) -> None:
    codes = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
    layer = kdm.nn.DensityLayer(1, 3, kernel=kdm.Levels(4, 0.01, trainable=True))
    layer.initialize(codes, generator=seeded(0))
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.2)
    for _ in range(40):
        optimizer.zero_grad()
        (-layer().log_prob(codes).mean()).backward()
        optimizer.step()
    close(layer().probs.double(), real([0.6, 0.3, 0.1, 0.0]), rtol=0, atol=0.03)
    assert layer.kernel("x").smoothing.item() != pytest.approx(0.01)
    kdm.save(layer, tmp_path / "levels")
    assert torch.equal(kdm.load(tmp_path / "levels")().probs, layer().probs)
    fixed = kdm.nn.DensityLayer(1, 3, kernel=kdm.Levels(4, 0.01))
    assert "kernels.x.logit" not in dict(fixed.named_parameters())


def test_components_sit_at_codes() -> None:
    kernel = kdm.Levels(4)
    start = kernel.initial_components(torch.tensor([2, 0]), torch.Size())
    close(kernel.probs(start), 0.99 * torch.eye(4).double()[[2, 0]] + 0.0025)


@pytest.mark.parametrize("arguments", [(0,), (2.5,), (3, -0.1), (3, 1.0)])
def test_bad_arguments(arguments: tuple[float, ...], unchecked: None) -> None:
    with pytest.raises(ValueError, match=r"^(n|smoothing): expected"):
        kdm.Levels(*arguments)


def test_bad_input(unchecked: None) -> None:
    kernel = kdm.Levels(4)
    with pytest.raises(ValueError, match=r"^smoothing: expected > 0 if it is trainable"):
        kdm.Levels(4, trainable=True)
    with pytest.raises(ValueError, match=r"^region: expected labels in 0 … 3, got 4"):
        kernel.log_mass(kdm.OneOf([1, 4]), C)
    with pytest.raises(TypeError, match=r"^region: expected integer codes"):
        kernel.log_mass(kdm.OneOf([1.0]), C)
    with pytest.raises(
        TypeError, match=r"^region: expected a region of integer codes, got Interval\('a', None"
    ):
        kernel.log_mass(kdm.Interval("a", None), C)
    close(kernel.log_mass(kdm.Interval(0, 1), C), kernel.log_mass(kdm.OneOf([0, 1]), C))
    with pytest.raises(ValueError, match=r"^components: expected shape \(..., 4\)"):
        kdm.KDM(C[:, :3], None, kernel)
