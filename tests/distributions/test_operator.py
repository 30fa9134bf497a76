"""Density operators against explicit matrices."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import linalg

import kdmkit as kdm
from helpers import close, normal, real, seeded, simplex

TOLERANCE = 1e-10


def amplitudes(rng: np.random.Generator, m: int, n: int) -> np.ndarray:
    """Components of a Cosine kernel, real or complex, and not of length 1."""
    c = rng.normal(size=(m, n)) * np.exp(rng.normal(size=(m, 1)))
    return c + 1j * rng.normal(size=(m, n)) if rng.random() < 0.5 else c


def unit_vectors(c: np.ndarray) -> np.ndarray:
    return c / np.linalg.norm(c, axis=-1, keepdims=True)


def embedded(k: np.ndarray) -> np.ndarray:
    """Vectors with the inner products k."""
    values, vectors = np.linalg.eigh(k)
    return vectors * np.sqrt(values.clip(0))


def code_vectors(n: int, smoothing: float) -> np.ndarray:
    return embedded(np.where(np.eye(n, dtype=bool), 1.0, math.sqrt(smoothing)))


def point_vectors(points: np.ndarray, sigma: float) -> np.ndarray:
    distance = np.square(points[:, None] - points).sum(-1)
    return embedded(np.exp(-distance / (2 * sigma**2)))


def variable(
    rng: np.random.Generator, sizes: list[int]
) -> tuple[kdm.Kernel, list[torch.Tensor], list[np.ndarray]]:
    """A kernel, components for several distributions, and their states as vectors of one space."""
    kind = rng.choice(["cosine", "codes", "points"])
    if kind == "cosine":
        n = int(rng.integers(2, 5))
        parts = [amplitudes(rng, m, n) for m in sizes]
        return kdm.Cosine(), [torch.from_numpy(c) for c in parts], [unit_vectors(c) for c in parts]
    if kind == "codes":
        n, smoothing = int(rng.integers(2, 5)), 0.5  # its logit is exact in float32
        codes, vectors = [rng.integers(0, n, m) for m in sizes], code_vectors(n, smoothing)
        kernel = kdm.Categorical(n, smoothing)
        return kernel, [torch.from_numpy(c) for c in codes], [vectors[c] for c in codes]
    points, sigma = rng.normal(size=(sum(sizes), 2)), 0.9
    ends = np.cumsum(sizes)[:-1]
    vectors = point_vectors(points, sigma)
    return kdm.RBF(sigma), [torch.from_numpy(p) for p in np.split(points, ends)], np.split(vectors, ends)


def joint_pair(rng: np.random.Generator) -> tuple[list[Any], list[np.ndarray], list[int]]:
    """Two KDMs over one to three variables, their density matrices, and the dimensions of the variables."""
    sizes = [int(rng.integers(1, 7)), int(rng.integers(1, 7))]
    weights = [rng.dirichlet(np.ones(m)) for m in sizes]
    names = "xyz"[: rng.integers(1, 4)]
    parts = {name: variable(rng, sizes) for name in names}
    rhos, matrices = [], []
    for i, w in enumerate(weights):
        components = {name: part[1][i] for name, part in parts.items()}
        kernels = {name: part[0] for name, part in parts.items()}
        if len(names) == 1:
            rhos.append(kdm.KDM(components["x"], torch.from_numpy(w), kernels["x"]))
        else:
            rhos.append(kdm.JointKDM(components, torch.from_numpy(w), kernels))
        states = parts[names[0]][2][i]
        for name in names[1:]:
            states = np.einsum("ja,jb->jab", states, parts[name][2][i]).reshape(len(w), -1)
        matrices.append(np.einsum("j,ja,jb->ab", w, states, states.conj()))
    return rhos, matrices, [part[2][0].shape[1] for part in parts.values()]


def psd_root(a: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(a)
    return (vectors * np.sqrt(np.where(values > 1e-13, values, 0.0))) @ vectors.conj().T


def entropy(a: np.ndarray) -> float:
    values = np.linalg.eigvalsh(a)
    values = values[values > 1e-300]
    return float(-(values * np.log(values)).sum())


_SEEDS = [*range(60), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(60, 200))]


@pytest.mark.parametrize("seed", _SEEDS)
def test_numbers_are_those_of_the_matrices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    (rho, sigma), (a, b), _ = joint_pair(rng)
    p, q = kdm.DensityOperator(rho), kdm.DensityOperator(sigma)
    values = np.linalg.eigvalsh(a)[::-1]
    ours = p.eigenvalues.numpy()
    n = max(len(ours), len(values))
    padded = [np.pad(v, (0, n - len(v))) for v in (ours, values)]
    pairs = {
        "eigenvalues": (padded[0], padded[1]),
        "purity": (p.purity(), np.trace(a @ a).real),
        "overlap": (p.overlap(q), np.trace(a @ b).real),
        "entropy": (p.entropy(), entropy(a)),
        "trace distance": (p.trace_distance(q), np.abs(np.linalg.eigvalsh(a - b)).sum() / 2),
        # The trace norm of √ρ·√σ: the formula with a root of √ρ·σ·√ρ loses half of the digits.
        "fidelity": (p.fidelity(q), linalg.svdvals(psd_root(a) @ psd_root(b)).sum() ** 2),
        "own fidelity": (p.fidelity(p), 1.0),
        "own distance": (p.trace_distance(p), 0.0),
        "rho's purity": (rho.purity(), p.purity()),
        "rho's overlap": (rho.overlap(sigma), p.overlap(q)),
    }
    # The smoothing of Categorical is a parameter in float32, which only `to(float64)` widens.
    loose = {"rho's purity": 1e-8, "rho's overlap": 1e-8}
    for name, (value, wanted) in pairs.items():
        error = np.abs(np.asarray(value) - np.asarray(wanted)).max()
        assert error < loose.get(name, TOLERANCE), (name, error)


@pytest.mark.parametrize("seed", range(60))
def test_fidelity_and_relative_entropy_of_matrices_of_full_rank(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 5))
    pair = []
    for _ in range(2):
        c, w = amplitudes(rng, n + 4, n), rng.dirichlet(np.full(n + 4, 5.0))
        u = unit_vectors(c)
        pair.append(
            (
                kdm.KDM(torch.from_numpy(c), torch.from_numpy(w), kdm.Cosine()),
                np.einsum("j,ja,jb->ab", w, u, u.conj()),
            )
        )
    (rho, a), (sigma, b) = pair
    p, q = kdm.DensityOperator(rho), kdm.DensityOperator(sigma)
    root = psd_root(a)
    fidelity = np.sqrt(np.linalg.eigvalsh(root @ b @ root).clip(0)).sum() ** 2
    assert abs(float(p.fidelity(q)) - fidelity) < TOLERANCE
    relative = np.trace(a @ (linalg.logm(a) - linalg.logm(b))).real
    assert abs(float(p.relative_entropy(q)) - relative) < TOLERANCE
    assert float(p.relative_entropy(q)) >= 0
    assert 0 <= float(p.relative_entropy(p)) < TOLERANCE


def test_relative_entropy_outside_of_the_support_is_infinite() -> None:
    pure, mixed = (kdm.DensityOperator(kdm.KDM.from_probs(torch.tensor(w))) for w in ([1.0, 0.0], [0.5, 0.5]))
    assert mixed.relative_entropy(pure).item() == math.inf
    close(pure.relative_entropy(mixed), real(math.log(2)))


@pytest.mark.parametrize("seed", range(30))
def test_the_partial_trace_is_the_marginal(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    (rho, _), (a, _), dims = joint_pair(rng)
    if len(dims) == 1:
        with pytest.raises(ValueError, match="names: expected some but not all"):
            kdm.DensityOperator(rho).partial_trace("")
        return
    traced = np.trace(a.reshape(*dims, *dims), axis1=0, axis2=len(dims)).reshape(math.prod(dims[1:]), -1)
    operator = kdm.DensityOperator(rho).partial_trace("x")
    rest = kdm.DensityOperator(rho.marginal(*[name for name in rho.variables if name != "x"]))
    assert abs(float(operator.purity()) - np.trace(traced @ traced).real) < TOLERANCE
    assert abs(float(operator.entropy()) - entropy(traced)) < TOLERANCE
    close(operator.eigenvalues, rest.eigenvalues)


@pytest.mark.parametrize("complex_too", [False, True])
def test_the_born_rule(complex_too: bool) -> None:
    c = normal(5, 3, seed=0)
    c = torch.complex(c, normal(5, 3, seed=1)) if complex_too else c
    x = torch.complex(normal(7, 3, seed=2), normal(7, 3, seed=3)) if complex_too else normal(7, 3, seed=2)
    rho = kdm.KDM(c, simplex(5, seed=4), kdm.Cosine())
    u, v = (t / t.norm(dim=-1, keepdim=True) for t in (c, x))
    matrix = torch.einsum("j,ja,jb->ab", rho.weights.to(u.dtype), u, u.conj())
    born = torch.einsum("na,ab,nb->n", v.conj(), matrix, v).real
    close(rho.projection(x), born, rtol=1e-12)
    close(rho.log_prob(x), born.log(), rtol=1e-12)
    close(rho.probs, matrix.diagonal().real, rtol=1e-12)
    close(rho.logits, matrix.diagonal().real.log(), rtol=1e-12)
    operator = kdm.DensityOperator(rho)
    states = operator.eigenstates()
    close((operator.amplitudes(x).abs().square() * states.probs).sum(-1), born, rtol=1e-10)
    labels = (operator.amplitudes(torch.arange(3)).abs().square() * states.probs).sum(-1)
    close(labels, rho.probs, rtol=1e-10)
    vectors = states.coefficients.mT @ u
    gram = vectors.conj() @ vectors.mT
    expected = torch.diag((states.probs > 1e-12).double())
    assert float((gram - expected).abs().max()) < TOLERANCE
    rebuilt = torch.einsum("k,ka,kb->ab", states.probs.to(vectors.dtype), vectors, vectors.conj())
    assert float((rebuilt - matrix).abs().max()) < TOLERANCE


def test_the_phase_of_an_amplitude_counts() -> None:
    plus = kdm.KDM(torch.tensor([[1.0, 1j]]), None, kdm.Cosine())
    assert plus.projection(torch.tensor([1.0, 1j])).item() == pytest.approx(1)
    assert plus.projection(torch.tensor([1.0, -1j])).item() == pytest.approx(0, abs=1e-12)
    assert plus.projection(torch.tensor([1.0, 1.0])).item() == pytest.approx(0.5)
    assert plus.sample((4,)).shape == (4, 2)


def test_complex_evidence_and_gradients() -> None:
    c = torch.complex(normal(4, 2, seed=0), normal(4, 2, seed=1)).requires_grad_()
    y, w = normal(4, 1, seed=2), simplex(4, seed=3)

    def mean(components: torch.Tensor) -> torch.Tensor:
        joint = kdm.JointKDM({"x": components, "y": y}, w, {"x": kdm.Cosine(), "y": kdm.RBF(0.5)})
        return joint.infer(x=torch.tensor([[1.0, 1j], [0.5, 0.0]], dtype=torch.complex128)).mean

    assert torch.autograd.gradcheck(mean, c)
    u = c.detach() / c.detach().norm(dim=-1, keepdim=True)
    x = torch.tensor([1.0, 1j], dtype=torch.complex128) / math.sqrt(2)
    posterior = w * (u @ x.conj()).abs().square()
    close(mean(c.detach())[0], (posterior / posterior.sum()) @ y, rtol=1e-12)


def test_complex_numbers_are_refused_elsewhere() -> None:
    with pytest.raises(TypeError, match="components: expected a dense tensor of real numbers"):
        kdm.KDM(torch.zeros(2, 1, dtype=torch.complex64), None, kdm.RBF(1.0))
    rho = kdm.KDM(torch.complex(normal(2, 2, seed=0), normal(2, 2, seed=1)), None, kdm.Cosine())
    assert rho.to(torch.float32).components.dtype == torch.complex64


def tree(conditioned: bool) -> kdm.TreeKDM:
    components = {"x": normal(3, 2, seed=0), "y": torch.arange(2), "s": normal(2, 3, seed=1)}
    kernels = {"x": kdm.RBF(0.9), "y": kdm.Categorical(2, 0.5), "s": kdm.Cosine()}
    edges = {"h": simplex(3, 2, seed=2), "y": simplex(2, 2, seed=3), "s": simplex(2, 2, seed=4)}
    rho = kdm.TreeKDM(
        components,
        kernels,
        {"x": None, "h": "x", "y": "h", "s": "h"},
        simplex(3, seed=5),
        edges,
        nodes={"x": ["x"], "h": [], "y": ["y"], "s": ["s"]},
    )
    return rho.infer(y=torch.tensor([0, 1]), target=["x", "s"]) if conditioned else rho


@pytest.mark.parametrize("conditioned", [False, True])
def test_a_tree_is_the_joint_of_its_product_states(conditioned: bool) -> None:
    rho = tree(conditioned)
    names = rho.variables
    flat = tree(False)
    sizes = [3, 2, 2, 2]
    z = torch.tensor(list(itertools.product(*map(range, sizes))))
    root, edges = flat.root_weights, flat.edge_weights
    weights = (
        root[z[:, 0]]
        * edges["h"][z[:, 0], z[:, 1]]
        * edges["y"][z[:, 1], z[:, 2]]
        * edges["s"][z[:, 1], z[:, 3]]
    )
    if conditioned:
        likelihood = flat.kernels["y"].probs(flat.components["y"])[z[:, 2]].mT
        weights = weights * likelihood
        weights = weights / weights.sum(-1, keepdim=True)
    place = {"x": 0, "y": 2, "s": 3}
    components = {name: flat.components[name][z[:, place[name]]] for name in names}
    joint = kdm.JointKDM(
        components, weights.double() / weights.sum(-1, keepdim=True), {n: flat.kernels[n] for n in names}
    )
    close(
        kdm.DensityOperator(rho).eigenvalues[..., :9],
        kdm.DensityOperator(joint).eigenvalues[..., :9],
        rtol=1e-7,
    )
    marginal = kdm.DensityOperator(rho.marginal("x"))
    close(kdm.DensityOperator(rho).partial_trace(*names[1:]).purity(), marginal.purity(), rtol=1e-7)


def test_many_product_states_are_drawn() -> None:
    rho = tree(False)
    exact = kdm.DensityOperator(rho)
    other = kdm.DensityOperator(rho.marginal("x"))
    drawn = [kdm.DensityOperator(rho, n_states=20, generator=seeded(i)) for i in range(40)]
    estimates = torch.stack([one.partial_trace("y", "s").overlap(other) for one in drawn])
    wanted = exact.partial_trace("y", "s").overlap(other)
    error = float(estimates.std() / math.sqrt(len(drawn)))
    assert abs(float(estimates.mean() - wanted)) < 4 * error
    assert float(torch.stack([one.entropy() for one in drawn]).mean()) < float(exact.entropy())


@pytest.mark.parametrize("batch", [(3,), (2, 3)])
def test_batches(batch: tuple[int, ...]) -> None:
    rho = kdm.KDM(normal(4, 2, seed=0), simplex(*batch, 4, seed=1), kdm.RBF(0.7))
    sigma = kdm.KDM(normal(*batch, 3, 2, seed=2), None, kdm.RBF(0.7))
    p, q = kdm.DensityOperator(rho), kdm.DensityOperator(sigma)
    numbers = {
        "entropy": lambda a, b: a.entropy(),
        "fidelity": lambda a, b: a.fidelity(b),
        "distance": lambda a, b: a.trace_distance(b),
    }
    for function in numbers.values():
        whole = function(p, q)
        assert whole.shape == batch
        one = function(
            kdm.DensityOperator(rho[(0,) * len(batch)]), kdm.DensityOperator(sigma[(0,) * len(batch)])
        )
        close(whole[(0,) * len(batch)], one)


def test_kernels_without_states() -> None:
    for kernel in (kdm.Epanechnikov(1.0), kdm.Tricube(1.0), kdm.Composed(torch.nn.Identity(), kdm.RBF(1.0))):
        with pytest.raises(TypeError, match="kernel: expected one with a feature map"):
            kdm.DensityOperator(kdm.KDM(torch.zeros(2, 1), None, kernel))
    with pytest.raises(ValueError, match="kernel: expected one bandwidth for all components"):
        kdm.DensityOperator(kdm.KDM(torch.zeros(2, 1), None, kdm.RBF([[0.5], [1.0]])))
    first = kdm.DensityOperator(kdm.KDM(torch.zeros(2, 1), None, kdm.RBF(1.0)))
    with pytest.raises(ValueError, match="other: expected a KDM with the kernel"):
        first.fidelity(kdm.DensityOperator(kdm.KDM(torch.zeros(2, 1), None, kdm.RBF(2.0))))
    x, y = torch.zeros(2, 1), torch.arange(2)
    pair = kdm.DensityOperator(
        kdm.JointKDM({"x": x, "y": y}, None, {"x": kdm.RBF(1.0), "y": kdm.Categorical(2)})
    )
    other = kdm.DensityOperator(
        kdm.JointKDM({"x": x, "z": y}, None, {"x": kdm.RBF(1.0), "z": kdm.Categorical(2)})
    )
    with pytest.raises(ValueError, match=r"other: expected the variables \['x', 'y'\], got \['x', 'z'\]"):
        pair.fidelity(other)
