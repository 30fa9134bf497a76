"""Layers answer as the joint of their parameters does."""

import math

import pytest
import torch

import kdmkit as kdm
from helpers import close, normal, simplex
from kdmkit.nn import JointLayer, Variable
from nn.layers import LAYERS, M, answer, classifier, density, explicit_joint, mixed, mixed_data, scrambled


def test_forward_is_inference_on_the_parameters():
    layer, x = scrambled("classifier"), normal(7, 2, seed=0)
    wanted = explicit_joint(layer).infer(x=x)
    close(layer(x).probs, wanted.probs)
    close(layer(x).log_prob(torch.tensor(1)), wanted.log_prob(torch.tensor(1)))
    close(layer(x).log_evidence, wanted.log_evidence)


def test_forward_by_hand():
    """Bayes' rule written out."""
    layer, x = scrambled("classifier"), normal(7, 2, seed=0)
    sigma = layer.kernels["x"].sigma
    overlap = (-torch.cdist(x, layer.components["x"]).square() / sigma**2).exp() * layer.logits.softmax(-1)
    amplitudes = layer.components["y"]
    classes = amplitudes.square() / amplitudes.square().sum(-1, keepdim=True)
    close(layer(x).probs, overlap / overlap.sum(-1, keepdim=True) @ classes)


def test_forward_takes_distributions():
    layer = scrambled("classifier")
    rho = kdm.KDM(normal(4, 3, 2, seed=1), simplex(4, 3, seed=2), kdm.RBF(1.0))
    close(layer(rho).probs, explicit_joint(layer).infer(x=rho).probs)


def test_joint_has_all_variables():
    layer, data = scrambled("mixed"), mixed_data()
    close(layer.joint().log_prob(**data), explicit_joint(layer).log_prob(**data))
    assert layer.joint().variables == ("age", "job", "income", "vote")


@pytest.mark.parametrize("given", [("age", "job"), ("age",), ("job",)])
def test_missing_inputs_are_marginalised(given):
    layer, data = scrambled("mixed"), mixed_data()
    evidence = {name: data[name] for name in given}
    wanted = explicit_joint(layer).infer(**evidence, target=("income", "vote"))
    rho = layer(**evidence)
    assert isinstance(rho, kdm.JointKDM)
    assert rho.variables == ("income", "vote")
    close(rho.weights, wanted.weights)


def test_inputs_by_position_and_by_name():
    layer, data = scrambled("mixed"), mixed_data()
    wanted = layer(**{name: data[name] for name in ("age", "job")}).weights
    close(layer(data["age"], data["job"]).weights, wanted)
    close(layer(data["age"], job=data["job"]).weights, wanted)


def test_observed_masks():
    layer, data = scrambled("mixed"), mixed_data()
    mask = torch.tensor([True, False, True, True, False])
    age = torch.where(mask[:, None], data["age"], torch.nan)
    rows = layer(age, data["job"], observed={"age": mask}).weights
    close(rows[mask], layer(data["age"], data["job"]).weights[mask])
    close(rows[~mask], layer(job=data["job"]).weights[~mask])


def test_a_target_of_ones_own():
    layer, data = scrambled("mixed"), mixed_data()
    close(
        layer(data["age"], target="vote").probs,
        explicit_joint(layer).infer(age=data["age"], target="vote").probs,
    )


def test_reverse():
    layer, data = scrambled("mixed"), mixed_data()
    rho = layer.reverse(vote=data["vote"])
    assert rho.variables == ("age", "job")
    close(rho.weights, explicit_joint(layer).infer(vote=data["vote"], target=("age", "job")).weights)
    close(
        layer.reverse(data["income"], data["vote"], target="age").mean,
        explicit_joint(layer).infer(income=data["income"], vote=data["vote"], target="age").mean,
    )


def test_density_by_hand():
    layer, x = scrambled("density"), normal(5, 2, seed=0)
    metric = layer.kernels["x"].metric
    u = (x[:, None] - layer.components["x"]) @ metric.mT
    parts = -u.square().sum(-1) + metric.diagonal().log().sum() - math.log(math.pi)
    close(layer().log_prob(x), torch.logsumexp(parts + layer.logits.log_softmax(-1), -1))


FLAGS = {
    "components": lambda layer: [v for v in layer.components.values() if v.is_floating_point()],
    "weights": lambda layer: [layer.logits],
    "kernels": lambda layer: list(layer.kernels.parameters()),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("frozen", FLAGS)
def test_flags(name, frozen):
    layer = scrambled(name, **{f"train_{frozen}": False})
    answer(layer).sum().backward()
    for what, parameters in FLAGS.items():
        for parameter in parameters(layer):
            assert parameter.requires_grad == (what != frozen)
            if what == frozen:
                assert parameter.grad is None
            else:
                assert parameter.grad.abs().sum() > 0


def test_no_smoothing_is_no_parameter():
    """log 0 cannot be trained: its gradient would be NaN."""
    variables = [Variable("x", kdm.RBF(1.0), 1), Variable("y", kdm.Categorical(3), ())]
    layer = JointLayer.from_variables(variables, 4, inputs=["x"])
    assert not layer.kernels["y"].logit.requires_grad
    assert layer.kernels["x"].bandwidth.raw.requires_grad


def test_kernels_are_copied():
    kernel = kdm.RBF(0.5)
    first, second = (JointLayer(2, 3, 4, in_kernel=kernel) for _ in range(2))
    with torch.no_grad():
        first.kernels["x"].bandwidth.raw.add_(1)
    assert second.kernels["x"].sigma.item() == pytest.approx(0.5)
    assert kernel.sigma.item() == pytest.approx(0.5)
    assert not kernel.bandwidth.raw.requires_grad


def test_nothing_is_remembered_between_steps():
    layer, x = classifier(), normal(3, 2, seed=0)
    before = layer(x).probs
    with torch.no_grad():
        layer.components["x"].add_(1.0)
    assert not torch.allclose(layer(x).probs, before)


def test_repr_says_the_direction():
    assert "age, job → income, vote, n_components=6" in repr(mixed())
    assert f"n_components={M}" in repr(density())


# ---- bad input


def test_values_are_given_once():
    layer, data = scrambled("mixed"), mixed_data()
    with pytest.raises(TypeError, match="values: expected each variable once, got age twice"):
        layer(data["age"], age=data["age"])
    with pytest.raises(TypeError, match="values: expected at most 2, for age, job, got 3"):
        layer(data["age"], data["job"], data["vote"])
    with pytest.raises(TypeError, match="values: expected at most 2, for income, vote, got 3"):
        layer.reverse(data["income"], data["vote"], data["age"])
    with pytest.raises(TypeError, match="values: expected each variable once, got vote twice"):
        layer.reverse(data["income"], data["vote"], vote=data["vote"])
    with pytest.raises(TypeError, match="values: expected at most 4"):
        layer.initialize(*data.values(), data["age"])
    with pytest.raises(TypeError, match="values: expected each variable once, got age twice"):
        layer.initialize(*data.values(), age=data["age"])


def test_some_input_is_needed():
    with pytest.raises(ValueError, match="evidence: expected at least one variable"):
        mixed()()
    with pytest.raises(ValueError, match="evidence: expected variables among"):
        mixed()(height=torch.zeros(2, 1))
    with pytest.raises(ValueError, match="target: expected variables without evidence"):
        mixed()(vote=torch.tensor(1))


@pytest.mark.parametrize("inputs", [[], ["a", "b"], ["c"], ["a", "a"]])
def test_inputs_are_some_of_the_variables(inputs):
    variables = [Variable("a", kdm.RBF(1.0), 1), Variable("b", kdm.RBF(1.0), 1)]
    with pytest.raises(ValueError, match="inputs: expected some but not all of"):
        JointLayer.from_variables(variables, 3, inputs=inputs)


def test_variables_have_different_names():
    twice = [Variable("a", kdm.RBF(1.0), 1)] * 2
    with pytest.raises(ValueError, match="variables: expected one or more with different names"):
        JointLayer.from_variables(twice, 3, inputs=["a"])


@pytest.mark.parametrize("n", [0, -1, 2.5, True, "4"])
@pytest.mark.usefixtures("unchecked")
def test_number_of_components(n):
    with pytest.raises(ValueError, match="n_components: expected a whole number ≥ 1"):
        JointLayer(2, 3, n)


@pytest.mark.parametrize("name", ["target", "observed", "given", "self", "sigma", "method", "generator"])
def test_names_of_arguments_are_taken(name):
    with pytest.raises(ValueError, match="name: expected one other than"):
        Variable(name, kdm.RBF(1.0), 1)


@pytest.mark.parametrize("name", ["training", "values", "forward"])
def test_names_of_attributes_are_taken(name):
    variables = [Variable(name, kdm.RBF(1.0), 1), Variable("y", kdm.RBF(1.0), 1)]
    with pytest.raises(ValueError, match="name: expected one that no attribute of a module has"):
        JointLayer.from_variables(variables, 3, inputs=["y"])


def test_names_are_identifiers():
    with pytest.raises(ValueError, match="name: expected a Python identifier, got 'my age'"):
        Variable("my age", kdm.RBF(1.0), 1)


@pytest.mark.usefixtures("unchecked")
def test_variables_need_a_kernel_and_its_shape():
    with pytest.raises(
        TypeError, match=r"kernel of 'x': expected a kernel such as kdmkit.RBF\(0.3\), got float"
    ):
        Variable("x", 0.5, 1)
    with pytest.raises(ValueError, match="shape of 'x': expected 1 positive dimension"):
        Variable("x", kdm.RBF(1.0), 0)
    with pytest.raises(ValueError, match="shape of 'x': expected 0 positive dimension"):
        Variable("x", kdm.Categorical(3), 2)
    with pytest.raises(ValueError, match="shape of 'x': expected 1 positive dimension"):
        Variable("x", kdm.RBF(1.0), (2, 2))


@pytest.mark.parametrize("name", LAYERS)
def test_unknown_options(name):
    with pytest.raises(TypeError, match="train_everything"):
        LAYERS[name](train_everything=True)
