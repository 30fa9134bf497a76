"""Kernels on transformed values: a term of x joins densities and evidence, and no weights."""

import math
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import kdmkit as kdm
from helpers import close, grid, normal, real, seeded, simplex
from kdmkit.kernels import Kernel
from kdmkit.ops import Term


class LogNormal(Kernel):
    """The kernel of log x: its density is a log-normal one."""

    discrete: ClassVar[bool] = False

    def __init__(self, sigma: Any) -> None:
        super().__init__()
        self.inner = kdm.RBF(sigma)

    @property
    def per_component(self) -> bool:
        return self.inner.per_component

    @property
    def overlaps_everywhere(self) -> bool:
        return True

    def term(self, x: Tensor, components: Tensor) -> Term:
        return self.inner.term(x.log(), components.log())

    def log_overlap(self, x: Tensor, components: Tensor) -> Tensor:
        return self.inner.log_overlap(x.log(), components.log())

    def log_norm(self, components: Tensor) -> Tensor:
        return self.inner.log_norm(components)

    def log_jacobian(self, x: Tensor) -> Tensor:
        return -x.log().sum(-1)

    def sample(self, components: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.inner.sample(components.log(), index, generator).exp()

    def config(self) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def from_config(cls, config: dict[str, Any], *, encoder: nn.Module | None = None) -> "LogNormal":
        raise NotImplementedError


M = 5
SIGMAS = {"one": real(0.4), "per component": torch.linspace(0.3, 0.8, M, dtype=torch.float64).unsqueeze(-1)}
every_sigma = pytest.mark.parametrize("sigma", SIGMAS.values(), ids=SIGMAS)


def positive(*shape: int, seed: int) -> Tensor:
    return (0.7 * normal(*shape, seed=seed)).exp()


def parts(sigma: Any, x: Tensor, c: Tensor) -> Tensor:
    """The log-normal log-densities of every component, `(n, m)`, by torch."""
    std = sigma.reshape(-1) / math.sqrt(2)
    return torch.distributions.LogNormal(c.squeeze(-1).log(), std).log_prob(x)


@every_sigma
def test_densities_hold_the_jacobian_and_integrate_to_one(sigma: Any) -> None:
    c, w = positive(M, 1, seed=0), simplex(M, seed=1)
    rho = kdm.KDM(c, w, LogNormal(sigma))
    x = positive(7, 1, seed=2)
    close(rho.log_prob(x), (parts(sigma, x, c) + w.log()).logsumexp(-1))
    logs, width = grid(-8, 8, 4001)
    total = (rho.log_prob(logs.exp()).exp() * logs.exp().squeeze(-1)).sum() * width
    close(total, real(1.0), rtol=1e-8)
    # A projection holds neither normaliser nor Jacobian.
    assert (rho.projection(x) <= 1).all()
    draws = rho.sample((40_000,), generator=seeded(0)).log().mean()
    assert draws.item() == pytest.approx((w * c.squeeze(-1).log()).sum().item(), abs=0.02)


@pytest.fixture(params=SIGMAS, ids=str)
def joint(request: pytest.FixtureRequest) -> tuple[kdm.JointKDM, Any]:
    components = {"x": positive(M, 1, seed=0), "u": normal(M, 2, seed=1), "y": torch.arange(M) % 3}
    kernels = {
        "x": LogNormal(SIGMAS[request.param]),
        "u": kdm.RBF(0.9),
        "y": kdm.Categorical(3, smoothing=0.1),
    }
    return kdm.JointKDM(components, simplex(M, seed=2), kernels), SIGMAS[request.param]


def test_joint_densities(joint: tuple[kdm.JointKDM, Any]) -> None:
    rho, sigma = joint
    x, u, y = positive(6, 1, seed=3), normal(6, 2, seed=4), torch.arange(6) % 3
    each = [
        parts(sigma, x, rho.components["x"])[:, j]
        + kdm.JointKDM(
            {n: rho.components[n][j : j + 1] for n in "uy"}, None, {n: rho.kernels[n] for n in "uy"}
        ).log_prob(u=u, y=y)
        + rho.log_weights[j]
        for j in range(M)
    ]
    close(rho.log_prob(x=x, u=u, y=y), torch.stack(each, -1).logsumexp(-1), rtol=1e-6)


def test_as_evidence_the_jacobian_belongs_to_log_evidence_alone(joint: tuple[kdm.JointKDM, Any]) -> None:
    rho, sigma = joint
    x = positive(6, 1, seed=3)
    scores = parts(sigma, x, rho.components["x"]) + rho.log_weights
    inferred = rho.infer(x=x, target="u")
    close(inferred.log_evidence, scores.logsumexp(-1))
    close(inferred.log_weights, scores.log_softmax(-1), atol=1e-9)
    u = normal(6, 2, seed=5)
    log_u = torch.stack(
        [kdm.KDM(c[None], None, rho.kernels["u"]).log_prob(u) for c in rho.components["u"]], -1
    )
    close(inferred.log_prob(u), (scores.log_softmax(-1) + log_u).logsumexp(-1))
    # Uncertain evidence: a mixture of points.
    bag = kdm.KDM(positive(4, 1, seed=6), simplex(4, seed=7), LogNormal(1.0))
    each = (parts(sigma, bag.components, rho.components["x"]) + rho.log_weights).logsumexp(-1)
    close(rho.infer(x=bag, target="u").log_evidence, (bag.log_weights + each).logsumexp(-1))


def test_as_target_it_joins_the_density(joint: tuple[kdm.JointKDM, Any]) -> None:
    rho, sigma = joint
    u, x = normal(6, 2, seed=5), positive(6, 1, seed=3)
    inferred = rho.infer(u=u, target="x")
    wanted = (inferred.log_weights + parts(sigma, x, rho.components["x"])).logsumexp(-1)
    close(inferred.log_prob(x), wanted)


def test_where_the_variable_is_missing_so_is_its_jacobian(joint: tuple[kdm.JointKDM, Any]) -> None:
    rho, _ = joint
    x, u = positive(4, 1, seed=3), normal(4, 2, seed=4)
    x[1] = torch.nan
    seen = torch.tensor([True, False, True, False])
    both = rho.infer(x=x, u=u, observed={"x": seen}, target="y")
    whole, without = rho.infer(x=x.nan_to_num(1.0), u=u, target="y"), rho.infer(u=u, target="y")
    close(both.log_evidence, torch.where(seen, whole.log_evidence, without.log_evidence))
    close(both.probs, torch.where(seen.unsqueeze(-1), whole.probs, without.probs), rtol=1e-6)
