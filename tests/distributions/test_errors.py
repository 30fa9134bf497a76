"""Bad input: a ValueError or TypeError that names the argument, what was expected and what came."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import kdmkit as kdm
import typecheck

NAN, INF = float("nan"), float("inf")
C = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 0.0]])
W = torch.tensor([0.2, 0.3, 0.5])
RBF = kdm.RBF(0.5)


def make(components=C, weights=W, kernel=RBF, **options):
    return kdm.KDM(components, weights, kernel, **options)


def joint(**options):
    components = {"x": C, "y": torch.eye(3), "k": torch.tensor([0, 1, 1])}
    kernels = {"x": RBF, "y": kdm.Cosine(), "k": kdm.Categorical(2, 0.1)}
    return kdm.JointKDM(components, W, kernels, **options)


def raises(kind, message, function, *args, **kwargs):
    with typecheck.off(), pytest.raises(kind, match=re.escape(message)):
        function(*args, **kwargs)


WEIGHTS = {
    "negative": (
        [0.5, -0.5, 1.0],
        "weights: expected non-negative values that sum to 1, got a value of -0.5",
    ),
    "sum": ([0.2, 0.2, 0.3], "weights: expected non-negative values that sum to 1, got a sum of 0.7"),
    "ones": ([1, 1, 1], "weights: expected non-negative values that sum to 1, got a sum of 3"),
    "nan": ([NAN, 0.5, 0.5], "weights: expected finite values, got 1 that are not (nan)"),
    "inf": ([INF, 0.5, 0.5], "weights: expected finite values, got 1 that are not (inf)"),
    "too few": ([0.5, 0.5], "weights: expected shape (..., 3), one per component, got (2,)"),
    "scalar": (1.0, "weights: expected shape (..., 3), one per component, got ()"),
    "one bad row": (
        torch.stack([W, 0.5 * W]),
        "weights: expected non-negative values that sum to 1, got a sum of 0.5",
    ),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name):
    weights, message = WEIGHTS[name]
    raises(ValueError, message, make, weights=weights)
    raises(ValueError, message, kdm.KDM.from_samples, C, RBF, weights=weights)
    raises(ValueError, message, kdm.JointKDM, {"x": C}, weights, {"x": RBF})


def test_nearly_normalised_weights_in_float64():
    # Off by 4e-8: they were computed in float32.
    kdm.KDM(C, torch.softmax(torch.tensor([0.1, 0.2, 0.7]), 0).double(), RBF)
    kdm.KDM(C, W.double() * (1 + 1e-6), RBF)
    raises(ValueError, "got a sum of 1.00001", make, weights=W.double() * (1 + 1e-5))


def test_log_weights():
    raises(ValueError, "weights: expected either weights or log_weights, got both", make, log_weights=W.log())
    wanted = "log_weights: expected logarithms of weights that sum to 1, got a sum of"
    raises(ValueError, wanted + " 3", make, weights=None, log_weights=torch.zeros(3))
    raises(ValueError, wanted + " 0", make, weights=None, log_weights=torch.full((3,), -INF))
    for bad in (NAN, INF):
        log_weights = torch.tensor([bad, -1.0, -1.0])
        raises(
            ValueError, "log_weights: expected values below +∞", make, weights=None, log_weights=log_weights
        )
    raises(
        TypeError,
        "log_weights: expected a floating-point tensor, got torch.int64",
        make,
        weights=None,
        log_weights=torch.zeros(3, dtype=torch.int64),
    )
    raises(ValueError, "log_weights: expected shape (..., 3)", make, weights=None, log_weights=torch.zeros(2))


def test_words_are_no_numbers():
    raises(
        TypeError,
        "weights: expected a tensor or an array of numbers, got list",
        make,
        weights=["a", "b", "c"],
    )
    raises(TypeError, "components: expected a tensor or an array of numbers, got str", make, components="abc")


def test_kernels():
    raises(TypeError, "kernel: expected a kernel such as kdmkit.RBF(0.3), got float", make, kernel=0.3)
    raises(TypeError, "kernel: expected a kernel such as kdmkit.RBF(0.3), got NoneType", kdm.KDM, C)
    raises(TypeError, "kernel: expected a kernel such as kdmkit.RBF(0.3), got ABCMeta", make, kernel=kdm.RBF)
    three = kdm.RBF([0.1, 0.2, 0.3])
    raises(ValueError, "sigma: expected a scalar, (2,), (m, 1) or (m, 2)", make, kernel=three)
    raises(ValueError, "sigma: expected a scalar, (2,)", kdm.JointKDM, {"x": C}, W, {"x": three})
    for rows in (1, 2, 4):
        many = kdm.RBF(torch.ones(rows, 1))
        message = f"expected a bandwidth for each of 3 components, got {rows}"
        raises(ValueError, "kernel: " + message, make, kernel=many)
        raises(ValueError, "kernels['x']: " + message, kdm.JointKDM, {"x": C}, W, {"x": many})


def test_components():
    for bad in (NAN, INF):
        components = C.clone()
        components[1, 0] = bad
        message = f"components: expected finite values, got 1 that are not ({bad})"
        raises(ValueError, message, make, components=components)
        raises(ValueError, message, make, components=components.numpy())
        raises(ValueError, message, make, components=components + 1, kernel=kdm.Cosine())
    raises(
        ValueError,
        "components: expected shape (..., m, d) with m ≥ 1, got (0, 2)",
        make,
        components=torch.zeros(0, 2),
        weights=None,
    )
    raises(ValueError, "components: expected shape (..., m, d) with m ≥ 1, got (3,)", make, components=W)
    raises(TypeError, "components: expected a floating-point tensor for RBF, got torch.int64", make, C.long())
    raises(
        TypeError, "components: expected integer codes, got torch.float32", make, W, kernel=kdm.Categorical(3)
    )
    codes = torch.tensor([0, 1, 3])
    raises(ValueError, "components: expected labels in 0 … 2, got 3", make, codes, kernel=kdm.Categorical(3))
    zero = C.clone()
    message = "components: expected amplitudes with at least one nonzero entry, got a zero vector"
    raises(ValueError, message, make, zero, kernel=kdm.Cosine())
    raises(
        ValueError,
        "weights, components: expected leading dimensions that broadcast, got (4,), (5,)",
        make,
        components=torch.zeros(5, 3, 2),
        weights=W.expand(4, 3),
    )


def test_constructors():
    raises(ValueError, "x: expected at least 1 dimension(s), got ()", kdm.KDM.pure, torch.tensor(1.0), RBF)
    raises(ValueError, "components: expected finite values", kdm.KDM.pure, torch.tensor([NAN]), RBF)
    raises(ValueError, "probs: expected floating-point probabilities (*batch, n)", kdm.KDM.from_probs, 0.3)
    raises(ValueError, "probs: expected floating-point", kdm.KDM.from_probs, torch.tensor([0, 1]))
    wanted = "probs: expected non-negative values that sum to 1, got a sum of 0.7"
    raises(ValueError, wanted, kdm.KDM.from_probs, torch.tensor([0.2, 0.5]))


def test_values():
    rho = make()
    for method in (rho.log_prob, rho.log_projection, rho.projection):
        raises(ValueError, "value: expected shape (..., 2), got (5, 3)", method, torch.zeros(5, 3))
        raises(ValueError, "value: expected shape (..., 2), got ()", method, torch.tensor(0.0))
        raises(
            ValueError,
            "value: expected finite values, got 2 that are not (nan)",
            method,
            [[NAN, 0], [0, INF]],
        )
        raises(
            TypeError,
            "value: expected a floating-point tensor, got torch.int64",
            method,
            torch.zeros(2).long(),
        )
        raises(TypeError, "value: expected a tensor or an array of numbers, got NoneType", method, None)
    raises(
        ValueError,
        "value, batch_shape: expected leading dimensions that broadcast, got (4,), (5,)",
        make(weights=W.expand(5, 3)).log_prob,
        torch.zeros(4, 2),
    )
    cosine = kdm.KDM.from_probs(W)
    raises(ValueError, "value: expected labels in 0 … 2, got 3", cosine.log_prob, torch.tensor([0, 3]))
    raises(ValueError, "value: expected labels in 0 … 2, got -1", cosine.log_prob, torch.tensor(-1))
    raises(
        ValueError, "value: expected amplitudes with at least one nonzero", cosine.log_prob, torch.zeros(3)
    )
    raises(ValueError, "value: expected shape (..., 3), got (2,)", cosine.log_prob, torch.ones(2))
    codes = make(torch.arange(3), kernel=kdm.Categorical(3))
    raises(ValueError, "value: expected labels in 0 … 2, got 7", codes.log_prob, np.array([7]))
    raises(TypeError, "value: expected integer codes, got torch.float32", codes.log_prob, torch.tensor(1.0))
    raises(TypeError, "value: expected integer codes, got torch.bool", codes.log_prob, torch.tensor(True))


def test_checks_do_not_depend_on_torch():
    # torch.compile switches the checks of all torch distributions off, for the whole process.
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        raises(ValueError, "weights: expected non-negative values", make, weights=[0.2, 0.2, 0.3])
        raises(ValueError, "value: expected finite values", make().log_prob, torch.tensor([NAN, 0.0]))
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)


def test_checks_can_be_switched_off():
    rho = make(weights=[1.0, 1.0, 1.0], validate_args=False)
    assert rho.log_prob(torch.tensor([NAN, 0.0])).isnan()


def test_summaries():
    cosine, codes = kdm.KDM.from_probs(W), make(torch.arange(3), kernel=kdm.Categorical(3))
    for rho in (cosine, codes):
        for what in ("mean", "variance"):
            raises(TypeError, f"{what}: expected a continuous kernel", getattr, rho, what)
        raises(TypeError, "cdf: expected a continuous kernel", rho.cdf, torch.zeros(1))
        raises(TypeError, "icdf: expected a continuous kernel", rho.icdf, torch.tensor(0.5))
    raises(
        TypeError,
        "kernel: expected a discrete kernel (Cosine, Categorical, Levels), got RBF",
        getattr,
        make(),
        "probs",
    )
    wanted = "expected a one-dimensional KDM (event shape (1,)), got (2,)"
    raises(ValueError, "cdf: " + wanted, make().cdf, torch.zeros(2))
    raises(ValueError, "icdf: " + wanted, make().icdf, torch.tensor(0.5))
    line = make(C[:, :1])
    for bad in (0.0, 1.0, -0.1, 1.5, NAN):
        message = f"value: expected quantiles strictly between 0 and 1, got [{torch.tensor(bad).item()}]"
        raises(ValueError, message, line.icdf, torch.tensor([0.5, bad]))
    raises(ValueError, "value: expected finite values", line.cdf, torch.tensor([NAN]))
    raises(ValueError, "value: expected shape (..., 1), got (3,)", line.cdf, torch.zeros(3))
    batch = make(C[:, :1], W.expand(5, 3))
    raises(
        ValueError, "value, batch_shape: expected leading dimensions that", batch.icdf, torch.full((4,), 0.5)
    )
    raises(ValueError, "value, batch_shape: expected leading dimensions that", batch.cdf, torch.zeros(4, 1))


def test_overlaps():
    raises(TypeError, "other: expected a KDM, got Tensor", make().overlap, C)
    raises(
        ValueError,
        "other: expected a KDM with the kernel RBF(sigma=0.5), got RBF(sigma=0.6)",
        make().overlap,
        make(kernel=kdm.RBF(0.6)),
    )
    raises(ValueError, "other: expected a KDM with the kernel", make().overlap, kdm.KDM.from_probs(W))
    raises(
        ValueError,
        "other: expected a KDM over events of shape (2,), got (1,)",
        make().overlap,
        make(C[:, :1]),
    )
    raises(
        ValueError,
        "batch_shape, other: expected leading dimensions that broadcast, got (4,), (5,)",
        make(weights=W.expand(4, 3)).overlap,
        make(weights=W.expand(5, 3)),
    )


def test_draws():
    composed = make(kernel=kdm.Composed(nn.Linear(2, 2), RBF))
    raises(TypeError, "kernel: expected one that can be sampled, got Composed", composed.sample, (3,))
    raises(TypeError, "kernel: expected one with a density", composed.log_prob, C)
    raises(
        TypeError,
        "expected a continuous kernel (RBF, LowRank, Epanechnikov, Tricube), got Composed",
        composed.rsample,
    )
    raises(
        TypeError,
        "kernel: expected one with differentiable draws, got Composed",
        composed.rsample,
        method="gumbel",
    )
    raises(
        ValueError,
        "method: expected one of 'implicit', 'gumbel', got 'pathwise'",
        make().rsample,
        method="pathwise",
    )
    for bad in (0.0, -1.0, NAN):
        raises(
            ValueError,
            f"temperature: expected > 0, got {bad}",
            make().rsample,
            method="gumbel",
            temperature=bad,
        )
    discrete = kdm.KDM.from_probs(W)
    raises(TypeError, "rsample(method='implicit'): expected a continuous kernel", discrete.rsample)
    codes = make(torch.arange(3), kernel=kdm.Categorical(3))
    raises(
        TypeError,
        "kernel: expected one with differentiable draws, got Categorical",
        codes.rsample,
        method="gumbel",
    )
    mixed = kdm.JointKDM({"x": C}, W, {"x": composed.kernel})
    raises(TypeError, "kernel: expected one that can be sampled", mixed.sample, (2,))


def test_joint_constructor():
    both = {"x": C, "y": torch.eye(3)}
    raises(
        TypeError,
        "components: expected a mapping from variable to tensor, got Tensor",
        kdm.JointKDM,
        C,
        W,
        {"x": RBF},
    )
    raises(TypeError, "components: expected a mapping from variable to tensor, got", kdm.JointKDM, {}, W, {})
    raises(
        TypeError, "kernels: expected a mapping from variable to kernel, got RBF", kdm.JointKDM, both, W, RBF
    )
    raises(
        TypeError, "kernels: expected a mapping from variable to kernel, got NoneType", kdm.JointKDM, both, W
    )
    raises(
        ValueError,
        "kernels: expected the variables of components, ['x', 'y'], got ['x']",
        kdm.JointKDM,
        both,
        W,
        {"x": RBF},
    )
    raises(TypeError, "kernels['x']: expected a kernel", kdm.JointKDM, {"x": C}, W, {"x": 0.3})
    for name in ("given", "target", "observed", "self", 7):
        message = "components: expected variables not named given, target, observed, noisy, self, got"
        raises(ValueError, message, kdm.JointKDM, {name: C}, W, {name: RBF})
    uneven = {"x": C, "y": torch.eye(2)}
    message = "components: expected the same number of components for every variable, got {'x': 3, 'y': 2}"
    raises(ValueError, message, kdm.JointKDM, uneven, W, {"x": RBF, "y": kdm.Cosine()})
    raises(ValueError, "components['x']: expected finite values", kdm.JointKDM, {"x": C * NAN}, W, {"x": RBF})
    raises(ValueError, "components['x']: expected shape (..., m, d)", kdm.JointKDM, {"x": W}, W, {"x": RBF})
    raises(
        ValueError,
        "weights, components['x']: expected leading dimensions that broadcast, got (4,), (5,)",
        kdm.JointKDM,
        {"x": C.expand(5, 3, 2)},
        W.expand(4, 3),
        {"x": RBF},
    )


def test_joint_values_and_marginals():
    rho, x, y, k = joint(), torch.zeros(2), torch.tensor(1), torch.tensor(0)
    raises(
        ValueError,
        "values: expected all of ['x', 'y', 'k'] (marginal() drops variables), got none for ['k']",
        rho.log_prob,
        x=x,
        y=y,
    )
    raises(
        ValueError,
        "values: expected variables among ['x', 'y', 'k'], got ['z']",
        rho.log_prob,
        x=x,
        y=y,
        k=k,
        z=x,
    )
    raises(ValueError, "y: expected labels in 0 … 2, got 3", rho.log_prob, x=x, y=torch.tensor(3), k=k)
    raises(ValueError, "k: expected labels in 0 … 1, got 2", rho.log_prob, x=x, y=y, k=torch.tensor(2))
    raises(ValueError, "x: expected finite values", rho.log_prob, x=x * NAN, y=y, k=k)
    raises(ValueError, "x: expected shape (..., 2), got (3,)", rho.log_prob, x=torch.zeros(3), y=y, k=k)
    raises(
        ValueError,
        "x, y: expected leading dimensions that broadcast, got (4,), (5,)",
        rho.log_prob,
        x=torch.zeros(4, 2),
        y=torch.zeros(5).long(),
        k=k,
    )
    raises(ValueError, "target: expected variables among ['x', 'y', 'k'], got ['z']", rho.marginal, "z")
    raises(
        ValueError, "target: expected one or more different variables, got ['x', 'x']", rho.marginal, "x", "x"
    )
    raises(ValueError, "target: expected one or more different variables, got []", rho.marginal)


def test_evidence():
    rho, x = joint(), torch.zeros(2)
    raises(ValueError, "evidence: expected variables among ['x', 'y', 'k'], got ['z']", rho.infer, z=x)
    raises(
        ValueError, "evidence: expected at least one variable, got none (marginal() needs none)", rho.infer
    )
    everything = {"x": x, "y": torch.tensor(0), "k": torch.tensor(0)}
    raises(
        ValueError,
        "evidence: expected a variable left to infer (log_prob scores whole rows), got all of them",
        rho.infer,
        **everything,
    )
    raises(
        ValueError,
        "target: expected variables without evidence, got ['x']",
        rho.infer,
        x=x,
        target=["x", "y"],
    )
    raises(
        ValueError, "target: expected variables among ['x', 'y', 'k'], got ['z']", rho.infer, x=x, target="z"
    )
    raises(ValueError, "target: expected one or more different variables, got []", rho.infer, x=x, target=[])
    for bad in (NAN, INF):
        raises(
            ValueError, "x: expected finite values, got 2 that are not", rho.infer, x=torch.tensor([bad, bad])
        )
    raises(ValueError, "x: expected shape (..., 2), got (3,)", rho.infer, x=torch.zeros(3))
    raises(ValueError, "y: expected labels in 0 … 2, got 5", rho.infer, y=torch.tensor([0, 5]))
    raises(ValueError, "k: expected labels in 0 … 1, got -1", rho.infer, k=torch.tensor(-1))
    raises(TypeError, "k: expected integer codes, got torch.float32", rho.infer, k=torch.tensor(0.5))
    raises(ValueError, "y: expected amplitudes with at least one nonzero entry", rho.infer, y=torch.zeros(3))
    raises(
        ValueError,
        "x, y: expected leading dimensions that broadcast, got (4,), (5,)",
        rho.infer,
        x=torch.zeros(4, 2),
        y=torch.zeros(5).long(),
    )
    wide = kdm.JointKDM({"x": C, "y": torch.eye(3)}, W.expand(3, 3), {"x": RBF, "y": kdm.Cosine()})
    raises(
        ValueError,
        "weights of the joint, x: expected leading dimensions that broadcast, got (3,), (4,)",
        wide.infer,
        x=torch.zeros(4, 2),
    )


def test_evidence_kdms():
    rho = joint()
    flat = kdm.KDM(C[:, :1], None, RBF)
    raises(ValueError, "x: expected events of shape (2,), got (1,)", rho.infer, x=flat)
    epanechnikov = kdm.KDM(C, None, kdm.Epanechnikov(1.0))
    raises(
        ValueError,
        "x: expected a KDM with the kernel RBF(sigma=0.5), got Epanechnikov(h=1)",
        rho.infer,
        x=epanechnikov,
    )
    raises(
        ValueError,
        "k: expected a KDM with the kernel Categorical",
        rho.infer,
        k=kdm.KDM(torch.tensor([2]), None, kdm.Categorical(3)),
    )
    raises(
        ValueError, "y: expected events of shape (3,), got (2,)", rho.infer, y=kdm.KDM.from_probs([0.5, 0.5])
    )
    raises(
        TypeError, "given: expected a JointKDM (points and KDMs are passed by name), got KDM", rho.infer, flat
    )
    raises(TypeError, "given: expected a JointKDM", rho.infer, torch.zeros(2), x=torch.zeros(2))
    pair = kdm.JointKDM({"x": C, "y": torch.eye(3)}, None, {"x": RBF, "y": kdm.Cosine()})
    raises(
        ValueError,
        "evidence: expected variables that the joint evidence does not hold, got ['x']",
        rho.infer,
        pair,
        x=torch.zeros(2),
    )
    other = kdm.JointKDM({"z": C}, None, {"z": RBF})
    raises(ValueError, "evidence: expected variables among ['x', 'y', 'k'], got ['z']", rho.infer, other)
    rows = kdm.KDM(C, W.expand(5, 3), RBF)
    raises(
        ValueError,
        "k, weights of the evidence: expected leading dimensions that broadcast, got (4,), (5,)",
        rho.infer,
        x=rows,
        k=torch.zeros(4).long(),
    )


def test_observed():
    rho, x = joint(), torch.zeros(4, 2)
    mask = torch.tensor([True, False, True, True])
    raises(
        ValueError,
        "observed: expected variables with evidence, ['x'], got 'y'",
        rho.infer,
        x=x,
        observed={"y": mask},
    )
    for bad in (mask.long(), mask.float(), [1, 0, 1, 1]):
        raises(
            TypeError,
            "observed['x']: expected a boolean mask, got torch.",
            rho.infer,
            x=x,
            observed={"x": bad},
        )
    raises(
        TypeError,
        "observed: expected a mapping from variable to boolean mask, got Tensor",
        rho.infer,
        x=x,
        observed=mask,
    )
    raises(
        ValueError,
        "x, observed['x']: expected leading dimensions that broadcast, got (4,), (3,)",
        rho.infer,
        x=x,
        observed={"x": mask[:3]},
    )
    # Only what is hidden may be nonsense.
    x[0] = NAN
    raises(ValueError, "x: expected finite values", rho.infer, x=x, observed={"x": mask})
