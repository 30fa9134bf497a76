"""The predictive module: scaler, encoder, layer and trend in one place."""

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import kdmkit as kdm
from helpers import close, normal, seeded
from kdmkit.nn import MLP, JointLayer, MLPEnsemble, Predictor, ResidualMemory, Scaler, Trend

M, D, OUTPUTS = 7, 3, 2


def layer(outputs: int = OUTPUTS) -> JointLayer:
    out = kdm.RBF(torch.rand(M, outputs, generator=seeded(0), dtype=torch.float64) + 0.2)
    made = JointLayer(D, outputs, M, out_kernel=out, dtype=torch.float64)
    return made.initialize(normal(40, D, seed=1), normal(40, outputs, seed=2), generator=seeded(3))


def trend(*, memory: bool) -> Trend:
    ensemble = MLPEnsemble([D, 4, OUTPUTS], n_members=5)
    with torch.no_grad():
        for parameter in ensemble.parameters():
            parameter.normal_(generator=seeded(4))
    rows = normal(20, D, seed=5).float(), normal(20, OUTPUTS, seed=6).float(), torch.zeros(20)
    scalers = (
        Scaler(normal(D, seed=7), torch.full((D,), 2.0)),
        Scaler(normal(OUTPUTS, seed=8), torch.ones(OUTPUTS)),
    )
    return Trend(ensemble, ResidualMemory(*rows) if memory else None, *scalers, torch.full((OUTPUTS,), 0.1))


PREDICTORS: dict[str, Any] = {
    "plain": lambda: Predictor(layer()),
    "encoder": lambda: Predictor(
        layer(),
        scaler=Scaler(torch.ones(4), torch.full((4,), 3.0)),
        encoder=MLP([4, 8, D], dropout=0.0),
        decoder=MLP([D, 8, 4], dropout=0.0, normalize=False),
    ),
    "trend": lambda: Predictor(layer(), trend=trend(memory=False)),
    "memory": lambda: Predictor(layer(), trend=trend(memory=True)),
}


def inputs(predictor: Predictor, n: int = 5) -> torch.Tensor:
    return normal(n, D if predictor.encoder is None else 4, seed=9)


@pytest.mark.parametrize("name", PREDICTORS)
def test_the_answer_is_the_layers_about_the_trend(name: str) -> None:
    """log p(y|x) = log Σ_j w_j N(y; c_j + f, s_j² + v), put together by hand."""
    predictor = PREDICTORS[name]().eval()
    x, y = inputs(predictor), normal(5, OUTPUTS, seed=10)
    z = x if predictor.encoder is None else predictor.encoder(predictor.scaler(x).float()).double()
    weights = predictor.layer(z).log_weights
    centre, excess = (0.0, 0.0) if predictor.trend is None else (t[:, None] for t in predictor.trend(x))
    mean = predictor.layer.components["y"] + centre
    variance = predictor.layer.kernels["y"].std.square() + excess
    normal_ = torch.distributions.Normal(mean, variance.sqrt() + 0 * mean)
    wanted = (weights + normal_.log_prob(y[:, None]).sum(-1)).logsumexp(-1)
    rho = predictor(x)
    close(rho.log_prob(y), wanted, rtol=1e-6)
    close(rho.log_evidence, predictor.log_density(x))
    close(rho.mean, (weights.exp()[..., None] * mean).sum(1), rtol=1e-6)


def test_members_that_disagree_add_variance() -> None:
    parts = trend(memory=False)
    x = normal(6, D, seed=11)
    answers = parts.ensemble(parts.x(x).float()).double()
    shift, excess = parts(x)
    close(shift, parts.y.inverse(answers.mean(1)), rtol=1e-5)
    close(excess, (answers.var(1) - 0.1).clamp_min(0), rtol=1e-4)
    assert excess.max() > 0


@pytest.mark.parametrize("name", PREDICTORS)
def test_blocks_change_nothing(name: str) -> None:
    predictor = PREDICTORS[name]().eval()
    x, y = inputs(predictor, 23), normal(23, OUTPUTS, seed=10)
    whole = predictor(x).log_prob(y)
    rho = predictor.distribution(x, block=4)
    assert not rho.mean.requires_grad
    close(rho.log_prob(y), whole, rtol=1e-5)
    with pytest.raises(ValueError, match="value: expected finite"):
        rho.log_prob(torch.full((23, OUTPUTS), torch.nan))


def test_gradients_reach_inputs_and_parameters() -> None:
    predictor = PREDICTORS["memory"]()
    x = inputs(predictor).requires_grad_()
    predictor(x).log_prob(normal(5, OUTPUTS, seed=10)).sum().backward()
    reached = [x, predictor.layer.logits, predictor.layer.components["y"], predictor.trend.ensemble.linear]
    assert all(bool(tensor.grad.abs().sum() > 0) for tensor in reached)


@pytest.mark.parametrize("name", PREDICTORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_precisions(name: str, dtype: torch.dtype) -> None:
    predictor = PREDICTORS[name]().eval()
    x = inputs(predictor)
    wanted = predictor(x).mean
    close(predictor.to(dtype)(x).mean, wanted, rtol=1e-4, atol=1e-5)


def test_parts_that_would_be_ignored_are_refused() -> None:
    with pytest.raises(ValueError, match="scaler: expected None without an encoder, got Scaler"):
        Predictor(layer(), scaler=Scaler.identity(D))
    with pytest.raises(ValueError, match="decoder: expected None without an encoder, got MLP"):
        Predictor(layer(), decoder=MLP([D, 4]))
    with pytest.raises(ValueError, match="trend: expected None behind an encoder, got Trend"):
        Predictor(layer(), encoder=MLP([4, D]), trend=trend(memory=False))


@pytest.mark.parametrize("name", PREDICTORS)
def test_what_comes_back_from_disk(name: str, tmp_path: Path) -> None:
    predictor = PREDICTORS[name]().eval()
    kdm.save(predictor, tmp_path / "model")
    loaded = kdm.load(tmp_path / "model", kind=Predictor).eval()
    x, y = inputs(predictor), normal(5, OUTPUTS, seed=10)
    assert torch.equal(loaded(x).log_prob(y), predictor(x).log_prob(y))
    if predictor.decoder is not None:
        z = predictor.encode(x)
        assert torch.equal(loaded.decode(z), predictor.decode(z))
    with pytest.raises(TypeError, match="path: expected a saved JointLayer, got a Predictor"):
        kdm.load(tmp_path / "model", kind=JointLayer)


def test_a_kind_that_is_no_class(tmp_path: Path, unchecked: None) -> None:
    kdm.save(Predictor(layer()), tmp_path / "model")
    with pytest.raises(TypeError, match="kind: expected a class, for example KDMRegressor, got 'Predictor'"):
        kdm.load(tmp_path / "model", kind="Predictor")


@pytest.mark.parametrize("name", PREDICTORS)
def test_answers_are_first_class(name: str, tmp_path: Path) -> None:
    """The result of `distribution` can be saved, copied, pickled and cast, and stays what it was."""
    predictor = PREDICTORS[name]().eval()
    x, y = inputs(predictor), normal(5, OUTPUTS, seed=10)
    rho = predictor.distribution(x)
    wanted = rho.log_prob(y)
    kdm.save(rho, tmp_path / "rho")
    buffer = io.BytesIO()
    torch.save(rho, buffer)
    buffer.seek(0)
    others = {
        "loaded": kdm.load(tmp_path / "rho", kind=kdm.KDM),
        "copied": copy.deepcopy(rho),
        "pickled": pickle.loads(pickle.dumps(rho)),
        "from torch": torch.load(buffer, weights_only=False),
        "moved": rho.to("cpu"),
    }
    with torch.no_grad():
        for parameter in predictor.parameters():
            parameter.add_(1.0)
    for how, other in others.items():
        if how != "moved":  # tensors that are where they should be are not copied
            torch.testing.assert_close(other.log_prob(y), wanted, rtol=1e-9, atol=1e-9, msg=how)
    assert rho.to(torch.float32).mean.dtype == torch.float32
