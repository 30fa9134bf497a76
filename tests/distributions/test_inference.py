"""Inference from points, KDMs and joint KDMs (the paper's Algorithm 1), alone, together and in chains."""

import itertools

import pytest
import torch

import kdmkit as kdm
from helpers import close, normal, real, simplex

M, L, B = 6, 4, 3
SIGMA_X, SIGMA_Y = 0.9, 0.7
CLASSES = 3


def _joint(validate_args=True):
    components = {"x": normal(M, 2, seed=0), "y": normal(M, 1, seed=1), "z": normal(M, CLASSES, seed=2)}
    kernels = {"x": kdm.RBF(SIGMA_X), "y": kdm.RBF(SIGMA_Y), "z": kdm.Cosine()}
    return kdm.JointKDM(components, simplex(M, seed=3), kernels, validate_args=validate_args)


def _overlaps(joint, name, points):
    """k²(x_l, x'_j), by the definition."""
    c = joint.components[name]
    if name == "z":
        unit, points = c / c.norm(dim=-1, keepdim=True), points / points.norm(dim=-1, keepdim=True)
        return (points @ unit.T) ** 2
    sigma = SIGMA_X if name == "x" else SIGMA_Y
    return (-(points[:, None] - c).square().sum(-1) / sigma**2).exp()


def _algorithm_1(joint, p, **points):
    """p''_j = Σ_l p_l p'_j Π k²(x_l, x'_j)/Σ_j' …, and Σ_l p_l f(x_l)."""
    overlap = torch.ones(len(p), M, dtype=torch.float64)
    for name, value in points.items():
        overlap = overlap * _overlaps(joint, name, value)
    scores = joint.weights * overlap
    return p @ (scores / scores.sum(-1, keepdim=True)), p @ scores.sum(-1)


def _kdm(name, batch_of_weights=(), batch_of_components=(), seed=10, count=L):
    d = {"x": 2, "y": 1, "z": CLASSES}[name]
    kernel = {"x": kdm.RBF(0.123), "y": kdm.RBF(4.0), "z": kdm.Cosine()}[
        name
    ]  # their bandwidths play no part
    components = normal(*batch_of_components, count, d, seed=seed)
    return kdm.KDM(components, simplex(*batch_of_weights, count, seed=seed + 1), kernel)


def _each(batch):
    return itertools.product(*map(range, batch))


def _row(rho, i):
    """One element of a batch of KDMs."""
    batch = rho.batch_shape
    components = rho.components.expand(*batch, rho.n_components, *rho.event_shape)[i]
    return kdm.KDM(components, rho.weights.expand(*batch, rho.n_components)[i], rho.kernel)


# ---- one KDM as evidence


@pytest.mark.parametrize("name", ["x", "y", "z"])
def test_a_kdm_means_its_weighted_components(name):
    joint, rho = _joint(), _kdm(name)
    weights, _ = _algorithm_1(joint, rho.weights, **{name: rho.components})
    inferred = joint.infer(**{name: rho})
    close(inferred.weights, weights)
    log_norm = joint.kernels[name].log_norm(joint.components[name]).double()
    _, evidence = _algorithm_1(joint, rho.weights, **{name: rho.components})
    close(inferred.log_evidence, evidence.log() + log_norm)


def test_a_kdm_gives_the_weighted_sum_of_conditional_densities():
    joint, rho = _joint(), _kdm("x")
    y = normal(20, 1, seed=5)
    conditional = joint.infer(x=rho.components, target="y").log_prob(y.unsqueeze(1)).exp()
    close(joint.infer(x=rho, target="y").log_prob(y).exp(), conditional @ rho.weights)
    probs = joint.infer(x=rho.components, target="z").probs
    close(joint.infer(x=rho, target="z").probs, rho.weights @ probs)


def test_a_pure_kdm_is_a_point():
    joint, x = _joint(), normal(5, 2, seed=5)
    points, pure = joint.infer(x=x), joint.infer(x=kdm.KDM.pure(x, kdm.RBF(1.0)))
    close(pure.weights, points.weights)
    close(pure.log_evidence, points.log_evidence)


SHAPES = {
    "shared": ((), ()),
    "weights": ((B,), ()),
    "components": ((), (B,)),
    "both": ((B,), (B,)),
    "as many points as rows": ((L,), ()),
    "two dimensions": ((2, 1), (B,)),
    "one row": ((1,), ()),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_batches_of_kdms_equal_a_loop(shape):
    joint, rho = _joint(), _kdm("x", *SHAPES[shape])
    inferred = joint.infer(x=rho)
    y, z = inferred.marginal("y"), inferred.marginal("z")
    value = normal(7, *[1] * len(rho.batch_shape), 1, seed=6)
    assert inferred.batch_shape == rho.batch_shape
    for i in _each(rho.batch_shape):
        weights, _ = _algorithm_1(joint, _row(rho, i).weights, x=_row(rho, i).components)
        one = kdm.JointKDM(joint.components, weights, joint.kernels)
        close(inferred.weights[i], weights)
        close(z.probs[i], one.marginal("z").probs)
        close(y.mean[i], one.marginal("y").mean)
        close(y.variance[i], one.marginal("y").variance)
        close(y.log_prob(value)[:, *i], one.marginal("y").log_prob(value.reshape(7, 1)))
        close(inferred.log_evidence[i], joint.infer(x=_row(rho, i)).log_evidence)


@pytest.mark.parametrize("prior", ["weights", "x", "z"])
@pytest.mark.parametrize("shape", SHAPES)
def test_kdms_against_a_batch_of_joints(shape, prior):
    """The joint's own batch, in its weights, in the evidence's components or in the target's."""
    base, rho = _joint(), _kdm("x", *SHAPES[shape])
    batch = (L,) if shape == "as many points as rows" else (B,)
    components, weights = dict(base.components), base.weights
    if prior == "weights":
        weights = simplex(*batch, M, seed=20)
    else:
        components[prior] = normal(*batch, M, components[prior].shape[-1], seed=20)
    joint = kdm.JointKDM(components, weights, base.kernels)
    inferred = joint.infer(x=rho, target="z")
    full = torch.broadcast_shapes(batch, rho.batch_shape)
    labels = torch.arange(CLASSES).reshape(-1, *[1] * len(full))
    assert inferred.batch_shape == full
    for i in _each(full):
        element = {n: c.expand(*full, *c.shape[-2:])[i] for n, c in components.items()}
        one = kdm.JointKDM(element, weights.expand(*full, M)[i], base.kernels)
        wanted = one.infer(x=_row(rho.expand(full), i), target="z")
        close(inferred.probs[i], wanted.probs)
        close(inferred.weights[i], wanted.weights)
        close(inferred.log_prob(labels).exp()[:, *i], wanted.probs)
        close(inferred.log_evidence[i], wanted.log_evidence)


def test_padded_bags_equal_ragged_ones():
    joint, bags = _joint(), [normal(n, 2, seed=n) for n in (1, 3, 4)]
    components, weights = torch.zeros(3, 4, 2, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64)
    for i, bag in enumerate(bags):
        components[i, : len(bag)], weights[i, : len(bag)] = bag, 1 / len(bag)
    inferred = joint.infer(x=kdm.KDM(components, weights, kdm.RBF(1.0)), target="z")
    for i, bag in enumerate(bags):
        one = joint.infer(x=kdm.KDM.from_samples(bag, kdm.RBF(1.0)), target="z")
        close(inferred.probs[i], one.probs)
        close(inferred.weights[i], one.weights)
        close(inferred.log_evidence[i], one.log_evidence)
        close(inferred.log_prob(torch.tensor(2))[i], one.log_prob(torch.tensor(2)))


def test_weights_given_many_points_are_the_mean_of_those_given_parts():
    """Evidence of 17 million pairs of points and components is taken in blocks, that of its halves is not."""
    n, m = 170_000, 100
    joint = kdm.JointKDM(
        {"x": normal(m, 2, seed=0).float(), "z": normal(m, CLASSES, seed=1).float()},
        simplex(m, seed=2).float(),
        {"x": kdm.RBF(0.9), "z": kdm.Cosine()},
    )
    points = normal(n, 2, seed=3).float()

    def weights(points):
        return joint.infer(x=kdm.KDM.from_samples(points, kdm.RBF(1.0))).weights

    mean = torch.stack([weights(half) for half in points.chunk(2)]).mean(0)
    # Logarithms of sums of n exponentials of float32, each off by |log| ≤ log n times the rounding.
    close(weights(points), mean, rtol=1e-5, atol=0)


def test_gradients_of_inference_from_a_kdm():
    """Evidence, its weights, the joint and its bandwidth: all against finite differences."""
    base = _joint()

    def probs(points, logits, x, log_weights):
        joint = kdm.JointKDM(
            {"x": x, "z": base.components["z"]},
            None,
            {"x": kdm.RBF(0.9), "z": kdm.Cosine()},
            log_weights=log_weights.log_softmax(-1),
        )
        rho = joint.infer(x=kdm.KDM(points, logits.softmax(-1), kdm.RBF(1.0)))
        return rho.probs, rho.log_evidence, rho.log_prob(torch.tensor(1)), rho.weights

    leaves = normal(2, L, 2, seed=5), normal(2, L, seed=6), normal(M, 2, seed=7), normal(M, seed=8)
    assert torch.autograd.gradcheck(probs, [leaf.requires_grad_() for leaf in leaves], atol=1e-6)


# ---- several pieces of evidence


@pytest.mark.parametrize("rows", [B, L], ids=["rows", "as many rows as points"])
@pytest.mark.parametrize("shape", ["shared", "weights", "components", "both"])
def test_points_beside_a_kdm(shape, rows):
    joint, x = _joint(), normal(rows, 2, seed=5)
    of_weights, of_components = ((rows,) if part else () for part in SHAPES[shape])
    rho = _kdm("y", of_weights, of_components)
    inferred = joint.infer(x=x, y=rho)
    assert inferred.batch_shape == (rows,)
    for i in range(rows):
        one = _row(rho.expand((rows,)), (i,))
        weights, evidence = _algorithm_1(joint, one.weights, x=x[i].expand(L, 2), y=one.components)
        close(inferred.weights[i], weights)
        log_norm = sum(joint.kernels[n].log_norm(joint.components[n]) for n in "xy")
        close(inferred.log_evidence[i], evidence.log() + log_norm)
    close(joint.infer(y=rho, x=x).probs, inferred.probs)


def test_separate_kdms_are_independent():
    joint, x, y = _joint(), _kdm("x"), _kdm("y", seed=30, count=5)
    pairs_x = x.components.repeat_interleave(5, 0)
    pairs_y = y.components.repeat(L, 1)
    p = torch.outer(x.weights, y.weights).flatten()
    weights, _ = _algorithm_1(joint, p, x=pairs_x, y=pairs_y)
    close(joint.infer(x=x, y=y).weights, weights)
    together = kdm.JointKDM({"x": pairs_x, "y": pairs_y}, p, {"x": x.kernel, "y": y.kernel})
    close(joint.infer(together).weights, weights)
    close(joint.infer(together).log_evidence, joint.infer(x=x, y=y).log_evidence)


def test_three_separate_kdms_with_batches():
    base = _joint()
    components = base.components | {"t": normal(M, 1, seed=7)}
    joint = kdm.JointKDM(components, base.weights, base.kernels | {"t": kdm.RBF(1.0)})
    x, y, z = _kdm("x", (B,)), _kdm("y", (), (B,), seed=30, count=2), _kdm("z", seed=40, count=5)
    inferred = joint.infer(x=x, y=y, z=z)
    for i in range(B):
        one_y = _row(y.expand((B,)), (i,))
        p = torch.einsum("a,b,c->abc", x.weights[i], one_y.weights, z.weights).flatten()
        index = torch.cartesian_prod(torch.arange(L), torch.arange(2), torch.arange(5)).T
        points = {"x": x.components[index[0]], "y": one_y.components[index[1]], "z": z.components[index[2]]}
        close(inferred.weights[i], _algorithm_1(joint, p, **points)[0])


def test_joint_evidence_carries_dependence():
    """Two clouds on a diagonal as joint evidence are not the product of their marginals."""
    components = {
        "x": real([[-1.0], [-1], [1], [1]]),
        "y": real([[-1.0], [1], [-1], [1]]),
        "z": torch.arange(4),
    }
    joint = kdm.JointKDM(components, None, {"x": kdm.RBF(0.2), "y": kdm.RBF(0.2), "z": kdm.Categorical(4)})
    diagonal = kdm.JointKDM(
        {"x": real([[-1.0], [1]]), "y": real([[-1.0], [1]])}, None, {"x": kdm.RBF(0.2), "y": kdm.RBF(0.2)}
    )
    close(joint.infer(diagonal).probs, real([0.5, 0, 0, 0.5]), atol=1e-6)
    independent = joint.infer(x=diagonal.marginal("x"), y=diagonal.marginal("y"))
    close(independent.probs, real([0.25, 0.25, 0.25, 0.25]), rtol=1e-6)


def test_joint_evidence_beside_points_and_kdms():
    base = _joint()
    joint = kdm.JointKDM(
        base.components | {"t": normal(M, 1, seed=7)}, base.weights, base.kernels | {"t": kdm.RBF(1.0)}
    )
    pair = kdm.JointKDM(
        {"x": normal(L, 2, seed=8), "y": normal(L, 1, seed=9)},
        simplex(B, L, seed=10),
        {n: base.kernels[n] for n in "xy"},
    )
    z = torch.tensor([0, 2, 1])
    inferred = joint.infer(pair, z=z)
    for i in range(B):
        points = {n: pair.components[n] for n in "xy"} | {
            "z": torch.eye(CLASSES).double()[z[i]].expand(L, -1)
        }
        close(inferred.weights[i], _algorithm_1(joint, pair.weights[i], **points)[0])


def test_conditioning_step_by_step_is_conditioning_at_once():
    joint = _joint()
    x, y = normal(B, 2, seed=5), normal(B, 1, seed=6)
    first = joint.infer(x=x)
    second, once = first.infer(y=y), joint.infer(x=x, y=y)
    close(second.weights, once.weights)
    close(second.probs, once.probs)
    close(first.log_evidence + second.log_evidence, once.log_evidence)  # p(x)·p(y|x) = p(x, y)


# ---- what it is good for


def test_the_mean_is_nadaraya_watson_regression():
    x, y, queries, h = normal(50, 2, seed=0), normal(50, 3, seed=1), normal(9, 2, seed=2), 0.4
    joint = kdm.JointKDM({"x": x, "y": y}, None, {"x": kdm.RBF.from_std(h), "y": kdm.RBF(1.0)})
    kernel = (-(queries[:, None] - x).square().sum(-1) / (2 * h**2)).exp()
    close(joint.infer(x=queries).mean, kernel @ y / kernel.sum(-1, keepdim=True))


def test_labels_and_basis_vectors_are_the_same_evidence():
    joint, labels = _joint(), torch.tensor([2, 0, 1, 1])
    one_hot = torch.eye(CLASSES, dtype=torch.float64)[labels]
    close(joint.infer(z=labels).weights, joint.infer(z=one_hot).weights)
    close(joint.infer(z=labels).weights, joint.infer(z=kdm.KDM.from_probs(one_hot)).weights)
    for dtype in (torch.int32, torch.uint8, torch.int16):
        close(joint.infer(z=labels.to(dtype)).weights, joint.infer(z=labels).weights)
        close(joint.marginal("z").log_prob(labels.to(dtype)), joint.marginal("z").log_prob(labels))


def test_amplitudes_and_mixtures_of_labels_differ_under_a_skewed_prior():
    # As DESIGN says: √p is one state, from_probs(p) a mixture of inferences.
    components = {"y": torch.eye(2).double(), "x": real([[0.0], [1]])}
    joint = kdm.JointKDM(components, [0.9, 0.1], {"y": kdm.Cosine(), "x": kdm.RBF(0.1)})
    p = real([0.5, 0.5])
    close(joint.infer(y=p.sqrt()).mean, real([0.1]))
    close(joint.infer(y=kdm.KDM.from_probs(p)).mean, real([0.5]))


def _separated():
    """Three classes in clusters ten bandwidths apart."""
    centres = real([[0.0, 0], [5, 0], [0, 5]])
    labels = torch.arange(30) % 3
    x = centres[labels] + 0.2 * normal(30, 2, seed=0)
    components = {"x": x, "y": torch.eye(3, dtype=torch.float64)[labels]}
    return kdm.JointKDM(components, None, {"x": kdm.RBF(0.5), "y": kdm.Cosine()})


def test_class_to_input_to_class_returns_the_class():
    joint = _separated()
    rho_x = joint.infer(y=torch.arange(3))
    close(rho_x.mean, joint.components["x"].reshape(10, 3, 2).mean(0))
    close(joint.infer(x=rho_x).probs, torch.eye(3).double(), rtol=0, atol=1e-9)
    drawn = rho_x.sample((200,), generator=torch.Generator().manual_seed(0))
    assert (joint.infer(x=drawn).probs.argmax(-1) == torch.arange(3)).all()


@pytest.mark.parametrize("start", ["points", "kdm"])
def test_a_chain_equals_the_brute_force_sum(start):
    m_yz = 5
    xy = kdm.JointKDM(
        {"x": normal(M, 2, seed=0), "y": normal(M, 1, seed=1)},
        simplex(M, seed=2),
        {"x": kdm.RBF(0.8), "y": kdm.RBF(0.5)},
    )
    yz = kdm.JointKDM(
        {"y": normal(m_yz, 1, seed=3), "z": normal(m_yz, CLASSES, seed=4)},
        simplex(m_yz, seed=5),
        {"y": kdm.RBF(0.6), "z": kdm.Cosine()},
    )
    x = normal(B, 2, seed=6) if start == "points" else _kdm("x", (B,))
    rho_y = xy.infer(x=x)
    rho_z = yz.infer(y=rho_y)
    # Σ_j p(y_j | x) Σ_i p(z_i | y_j) |z_i|², with every factor written out.
    k_y = (-(xy.components["y"] - yz.components["y"].T).square() / 0.6**2).exp() * yz.weights
    z_given_y = k_y / k_y.sum(-1, keepdim=True)
    unit = yz.components["z"] / yz.components["z"].norm(dim=-1, keepdim=True)
    close(rho_z.weights, rho_y.weights @ z_given_y)
    close(rho_z.probs, rho_y.weights @ z_given_y @ unit**2)
    close(rho_z.log_prob(torch.arange(CLASSES)[:, None]).exp(), rho_z.probs.T)
    close(
        rho_z.log_evidence,
        (rho_y.weights @ k_y.sum(-1)).log() - 0.5 * torch.tensor(torch.pi * 0.6**2).log(),
        rtol=1e-6,
    )


def test_log_prob_of_an_inferred_kdm_agrees_with_its_weights():
    joint = _joint()
    for evidence in ({"x": normal(B, 2, seed=5)}, {"x": _kdm("x", (B,))}, {"x": _kdm("x", (), (B,))}):
        lazy = joint.infer(**evidence, target="y")
        given = kdm.KDM(lazy.components, lazy.weights, lazy.kernel)
        y = normal(7, B, 1, seed=6)
        close(lazy.log_prob(y), given.log_prob(y))
        close(lazy.log_projection(y), given.log_projection(y))
        close(lazy.mean, given.mean)
        close(lazy.variance, given.variance)
        close(lazy.cdf(y), given.cdf(y))
        close(lazy.purity(), given.purity())
        both = joint.infer(**evidence)
        z = torch.arange(7)[:, None] % CLASSES
        wanted = kdm.JointKDM(both.components, both.weights, both.kernels).log_prob(y=y, z=z)
        close(both.log_prob(y=y, z=z), wanted)


# ---- evidence missing in some rows


def test_masked_rows_are_marginalised():
    joint = _joint()
    x, y = normal(4, 2, seed=5), normal(4, 1, seed=6)
    seen = {"x": torch.tensor([True, True, False, False]), "y": torch.tensor([True, False, True, False])}
    x = x.masked_fill(~seen["x"].unsqueeze(-1), torch.nan)
    y = y.masked_fill(~seen["y"].unsqueeze(-1), torch.inf)
    inferred = joint.infer(x=x, y=y, observed=seen)
    wanted = [joint.infer(x=x[0], y=y[0]), joint.infer(x=x[1], target="z"), joint.infer(y=y[2], target="z")]
    for i, one in enumerate(wanted):
        close(inferred.probs[i], one.probs)
        close(inferred.weights[i], one.weights)
        close(inferred.log_evidence[i], one.log_evidence)
        close(inferred.log_prob(torch.arange(3)[:, None])[:, i], one.log_prob(torch.arange(3)))
    close(inferred.probs[3], joint.marginal("z").probs)
    assert inferred.log_evidence[3].item() == pytest.approx(0, abs=1e-12)


def test_masked_evidence_takes_no_gradient():
    joint = _joint()
    x = normal(2, 2, seed=5).requires_grad_()
    joint.infer(x=x, observed={"x": torch.tensor([True, False])}, target="z").probs[:, 0].sum().backward()
    assert (x.grad[1] == 0).all()
    assert (x.grad[0] != 0).all()


def test_one_point_under_a_mask_of_many_rows():
    joint, x = _joint(), normal(2, seed=5)
    inferred = joint.infer(x=x, observed={"x": torch.tensor([True, False, True])}, target="z")
    close(inferred.probs[0], joint.infer(x=x, target="z").probs)
    close(inferred.probs[1], joint.marginal("z").probs)
    assert inferred.batch_shape == (3,)


@pytest.mark.parametrize("shape", ["shared", "weights", "components", "both"])
@pytest.mark.parametrize("rows", [B, L], ids=["rows", "as many rows as points"])
def test_masks_on_kdms(shape, rows):
    joint = _joint()
    rho = _kdm("x", *((rows,) if part else () for part in SHAPES[shape]))
    mask = torch.arange(rows) % 2 == 0
    inferred = joint.infer(x=rho, observed={"x": mask}, target="z")
    complete = joint.infer(x=rho, target="z")
    wanted = complete.probs.expand(rows, CLASSES)
    close(inferred.probs[mask], wanted[mask])
    close(inferred.probs[~mask], joint.marginal("z").probs.expand((~mask).sum(), CLASSES))
    close(inferred.log_evidence[mask], complete.log_evidence.expand(rows)[mask])
    close(inferred.log_evidence[~mask], torch.zeros(int((~mask).sum())).double())
    given = kdm.KDM(inferred.components, inferred.weights, inferred.kernel)
    close(inferred.probs, given.probs)
    close(inferred.log_prob(torch.tensor(1)), given.log_prob(torch.tensor(1)))


def test_masks_with_a_bandwidth_per_component_and_with_labels():
    sigma = 0.5 + torch.rand(M, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    base = _joint()
    joint = kdm.JointKDM(base.components, base.weights, base.kernels | {"x": kdm.RBF(sigma)})
    x, z = normal(2, 2, seed=5), torch.tensor([2, -1])  # −1 is no label, but nobody looks
    seen = {"x": torch.tensor([False, True]), "z": torch.tensor([True, False])}
    inferred = joint.infer(x=x, z=z, observed=seen)
    for i, one in enumerate((joint.infer(z=z[0], target="y"), joint.infer(x=x[1], target="y"))):
        close(inferred.mean[i], one.mean)
        close(inferred.log_evidence[i], one.log_evidence)


def test_masks_that_hide_nothing_change_nothing():
    joint, x = _joint(), normal(B, 2, seed=5)
    masked, plain = joint.infer(x=x, observed={"x": torch.ones(B, dtype=torch.bool)}), joint.infer(x=x)
    close(masked.weights, plain.weights)
    close(masked.log_evidence, plain.log_evidence)
    close(joint.infer(x=x, observed={}).weights, plain.weights)


# ---- a learned similarity


def test_a_composed_kernel_infers_though_it_has_no_density():
    encoder = torch.nn.Linear(5, 2).double()
    images, y = normal(M, 5, seed=0), normal(M, CLASSES, seed=1)
    joint = kdm.JointKDM(
        {"x": images, "y": y}, None, {"x": kdm.Composed(encoder, kdm.RBF(0.9)), "y": kdm.Cosine()}
    )
    x = normal(B, 5, seed=2)
    with torch.no_grad():
        features = kdm.JointKDM(
            {"x": encoder(images), "y": y}, None, {"x": kdm.RBF(0.9), "y": kdm.Cosine()}
        ).infer(x=encoder(x))
    close(joint.infer(x=x).probs, features.probs)
    with pytest.raises(TypeError, match="kernel: expected one with a density"):
        _ = joint.infer(x=x).log_evidence
    with pytest.raises(TypeError, match="kernel: expected one with a density"):
        _ = joint.infer(x=x, observed={"x": torch.ones(B, dtype=torch.bool)}).log_evidence


def test_images_are_events_of_three_dimensions():
    encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)).double()
    kernel = kdm.Composed(encoder, kdm.RBF(0.9), event_dim=3)
    images, y = normal(M, 3, 2, 2, seed=0), normal(M, CLASSES, seed=1)
    joint = kdm.JointKDM({"x": images, "y": y}, None, {"x": kernel, "y": kdm.Cosine()})
    x = normal(B, 3, 2, 2, seed=2)
    with torch.no_grad():
        flat = kdm.JointKDM({"x": encoder(images), "y": y}, None, {"x": kdm.RBF(0.9), "y": kdm.Cosine()})
        points, codes = joint.infer(x=x), flat.infer(x=encoder(x))
        close(points.probs, codes.probs)
        close(joint.marginal("x").log_projection(x), flat.marginal("x").log_projection(encoder(x)))
        bag = joint.infer(x=kdm.KDM(x, simplex(2, B, seed=3), kernel))
        close(bag.probs, flat.infer(x=kdm.KDM(encoder(x), simplex(2, B, seed=3), kdm.RBF(1.0))).probs)
        x[1] = torch.nan
        masked = joint.infer(x=x, observed={"x": torch.tensor([True, False, True])})
        close(masked.probs[0], points.probs[0])
        close(masked.probs[1], joint.marginal("y").probs)
        # Evidence for the other direction: the images themselves are the target.
        close(
            joint.infer(y=torch.tensor(1)).log_projection(images),
            flat.infer(y=torch.tensor(1)).log_projection(encoder(images)),
        )
