"""Joint densities, marginals of any subset, and inference from any subset to any subset by Bayes' rule.

The oracle is a table of the joint density over a grid of all variables, made from the formulas; marginals are
its sums, conditionals ratios of sums.
"""

import itertools
import math

import pytest
import torch

import kdmkit as kdm
from helpers import close, grid, normal, real, simplex, unit_density

M = 5
POINTS = 161
X, CELL_X = grid(-7, 7, POINTS)
U, CELL_U = grid(-7, 7, POINTS)
BASIS, CODES = torch.eye(3, dtype=torch.float64), torch.arange(4)
AXES = {"x": X, "u": U, "y": BASIS, "k": CODES}
CELLS = {"x": CELL_X, "u": CELL_U, "y": 1.0, "k": 1.0}
VARIABLES = tuple(AXES)
SUBSETS = [s for n in (1, 2, 3) for s in itertools.combinations(VARIABLES, n)]
PAIRS = [(e, t) for e in SUBSETS for t in SUBSETS if not set(e) & set(t)]
SIGMA, H, SMOOTHING = 0.9, 2.5, 0.25


def _components():
    return {
        "x": 1.5 * normal(M, 1, seed=0),
        "u": 1.5 * normal(M, 1, seed=1),
        "y": normal(M, 3, seed=2),
        "k": torch.tensor([0, 3, 1, 1, 2]),
    }


def _joint(x_scale=SIGMA):
    kernels = {
        "x": kdm.RBF(x_scale),
        "u": kdm.Epanechnikov(H),
        "y": kdm.Cosine(),
        "k": kdm.Categorical(4, SMOOTHING),
    }
    return kdm.JointKDM(_components(), simplex(M, seed=3), kernels)


def _table(x_scale=SIGMA):
    """f̂(x, u, y, k) on the grid of all axes, straight from the definition."""
    c = _components()
    scale = torch.as_tensor(x_scale, dtype=torch.float64).reshape(-1)
    x = unit_density("rbf", (X - c["x"].T) / scale) / scale
    u = unit_density("epanechnikov", (U - c["u"].T) / H) / H
    y = (c["y"] / c["y"].norm(dim=-1, keepdim=True)).T ** 2
    same = (CODES[:, None] == c["k"]).double()
    k = (same + SMOOTHING * (1 - same)) / (1 + 3 * SMOOTHING)
    return torch.einsum("aj,bj,cj,dj,j->abcd", x, u, y, k, simplex(M, seed=3))


def _sum_out(table, keep):
    for axis, name in enumerate(VARIABLES):
        if name not in keep:
            table = table.sum(axis, keepdim=True) * CELLS[name]
    return table


def _mesh(names):
    """The grid of some variables, as values with one leading dimension each."""
    values = {}
    for i, name in enumerate(names):
        axis = AXES[name]
        shape = [1] * len(names)
        shape[i] = len(axis)
        values[name] = axis.reshape(*shape, *axis.shape[1:])
    return values


def _log_prob(rho, values):
    return rho.log_prob(**values) if isinstance(rho, kdm.JointKDM) else rho.log_prob(*values.values())


def test_joint_density_is_the_formula_and_integrates_to_one():
    density = _joint().log_prob(**_mesh(VARIABLES)).exp()
    close(density, _table(), rtol=1e-6, atol=1e-12)
    assert density.sum().item() * CELL_X * CELL_U == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("names", SUBSETS, ids="".join)
def test_marginals_are_sums_of_the_joint(names):
    marginal = _joint().marginal(*names)
    density = _log_prob(marginal, _mesh(names)).exp()
    wanted = _sum_out(_table(), names)
    close(density, wanted.reshape(density.shape), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("given", "target"), PAIRS, ids=lambda names: "".join(names))
def test_inference_is_bayes_rule(given, target):
    where = {"x": [60, 90], "u": [70, 85], "y": [0, 2], "k": [3, 1]}
    evidence = {name: AXES[name][where[name]] for name in given}
    inferred = _joint().infer(target=target, **evidence)
    mesh = {n: v.unsqueeze(len(target)) for n, v in _mesh(target).items()}  # then the batch of two
    density = _log_prob(inferred, mesh).exp()
    table = _sum_out(_table(), (*given, *target))
    for row in range(2):
        chosen = table
        for axis, name in enumerate(VARIABLES):
            if name in given:
                chosen = chosen.narrow(axis, where[name][row], 1)
        total = chosen.sum() * math.prod(CELLS[n] for n in target)
        got = density[..., row]
        close(got, (chosen / total).reshape(got.shape), rtol=2e-4, atol=1e-5)


def test_one_bandwidth_per_component_is_weighed_in_density_and_inference():
    sigma = real([[0.5], [0.8], [1.4], [0.6], [1.0]])
    joint, table = _joint(sigma), _table(sigma.squeeze(-1))
    close(joint.log_prob(**_mesh(VARIABLES)).exp(), table, rtol=1e-6, atol=1e-12)
    conditional = _sum_out(table, "xy").squeeze()
    conditional = conditional / conditional.sum(-1, keepdim=True)
    inferred = joint.infer(target="y", x=X)
    close(inferred.probs, conditional, rtol=1e-5, atol=1e-6)
    close(inferred.log_evidence.exp(), _sum_out(table, "x").squeeze(), rtol=1e-5, atol=1e-7)


def test_order_of_the_variables_does_not_matter():
    joint = _joint()
    assert joint.marginal("k", "x").variables == ("k", "x")
    values = {name: AXES[name][1] for name in VARIABLES}
    backwards = dict(reversed(values.items()))
    close(joint.log_prob(**values), joint.log_prob(**backwards))
    x, k = X[:5], CODES[[0, 1, 2, 3, 0]]
    close(joint.infer(x=x, k=k, target="y").probs, joint.infer(k=k, x=x, target="y").probs)


def test_a_joint_of_one_variable_is_a_kdm():
    rho = kdm.KDM(normal(M, 1, seed=0), simplex(M, seed=1), kdm.RBF(0.5))
    joint = kdm.JointKDM({"x": rho.components}, rho.weights, {"x": rho.kernel})
    close(joint.log_prob(x=X), rho.log_prob(X))
    assert isinstance(joint.marginal("x"), kdm.KDM)


def test_projection_is_the_density_without_normalisers():
    joint = _joint()
    values = {name: AXES[name][len(AXES[name]) // 2] for name in VARIABLES}
    log_norms = [joint.kernels[n].log_norm(joint.components[n]).double() for n in VARIABLES]
    close(joint.log_projection(**values) + sum(log_norms), joint.log_prob(**values), rtol=1e-6)
    assert 0 < joint.projection(**values) <= 1


BATCHES = [((), (), ()), ((3,), (), (4, 3)), ((), (3,), (3,)), ((2, 1), (3,), (3,)), ((1,), (), (4,))]


@pytest.mark.parametrize(("of_weights", "of_components", "lead"), BATCHES)
def test_batches_equal_a_loop(of_weights, of_components, lead):
    x, y = normal(*of_components, M, 2, seed=0), normal(M, 3, seed=1)
    w, kernels = simplex(*of_weights, M, seed=2), {"x": kdm.RBF(0.9), "y": kdm.Cosine()}
    joint = kdm.JointKDM({"x": x, "y": y}, w, kernels)
    batch = torch.broadcast_shapes(of_weights, of_components)
    full = torch.broadcast_shapes(batch, lead)
    assert joint.batch_shape == batch
    value_x, value_y = normal(*lead, 2, seed=3), normal(*lead, 3, seed=4)
    density, inferred = joint.log_prob(x=value_x, y=value_y), joint.infer(x=value_x)
    assert density.shape == full
    assert inferred.batch_shape == inferred.log_evidence.shape == full
    for i in itertools.product(*map(range, full)):
        vx, vy = value_x.expand(*full, 2)[i], value_y.expand(*full, 3)[i]
        one = kdm.JointKDM({"x": x.expand(*full, M, 2)[i], "y": y}, w.expand(*full, M)[i], kernels)
        close(density[i], one.log_prob(x=vx, y=vy))
        close(inferred.probs[i], one.infer(x=vx).probs)
        close(inferred.weights[i], one.infer(x=vx).weights)
        close(inferred.log_evidence[i], one.infer(x=vx).log_evidence)
    reverse = joint.infer(y=value_y)
    for i in itertools.product(*map(range, full)):
        one = kdm.JointKDM({"x": x.expand(*full, M, 2)[i], "y": y}, w.expand(*full, M)[i], kernels)
        vy = value_y.expand(*full, 3)[i]
        close(reverse.mean[i], one.infer(y=vy).mean)
        close(reverse.log_prob(value_x)[i], one.infer(y=vy).log_prob(value_x.expand(*full, 2)[i]))
