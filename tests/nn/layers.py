"""Layers for the tests, and data that fits them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import kdmkit as kdm
from helpers import normal, seeded, simplex
from kdmkit.nn import DensityLayer, JointLayer, Variable

M = 6


def mixed(**options: Any) -> JointLayer:
    """Two inputs and two outputs, continuous and discrete on either side."""
    variables = [
        Variable("age", kdm.RBF(0.8), 2),
        Variable("job", kdm.Categorical(4, 0.1), ()),
        Variable("income", kdm.Epanechnikov(9.0), 1),
        Variable("vote", kdm.Cosine(), 3),
    ]
    options = {"dtype": torch.float64, **options}
    return JointLayer.from_variables(variables, M, inputs=["age", "job"], **options)


def classifier(**options: Any) -> JointLayer:
    return JointLayer(2, 3, M, **{"dtype": torch.float64, **options})


def regressor(**options: Any) -> JointLayer:
    kernel = kdm.RBF(torch.full((M, 1), 0.7, dtype=torch.float64))
    return JointLayer(2, 1, M, out_kernel=kernel, **{"dtype": torch.float64, **options})


def density(**options: Any) -> DensityLayer:
    metric = kdm.RBF.from_metric(torch.tensor([[1.0, 0.0], [0.4, 2.0]], dtype=torch.float64))
    return DensityLayer(2, M, kernel=metric, **{"dtype": torch.float64, **options})


def codes(**options: Any) -> DensityLayer:
    return DensityLayer(1, M, kernel=kdm.Categorical(4, 0.2), **{"dtype": torch.float64, **options})


#: Layers with parameters that are nobody's starting values.
LAYERS: dict[str, Callable[..., Any]] = {
    "mixed": mixed,
    "classifier": classifier,
    "regressor": regressor,
    "density": density,
    "codes": codes,
}


def scrambled(name: str, **options: Any) -> Any:
    """A layer of the registry with random parameters."""
    layer = LAYERS[name](**options)
    generator = seeded(7)
    with torch.no_grad():
        for parameter in layer.parameters():
            noise = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            parameter.add_(0.1 * noise if parameter.ndim < 2 else noise)
        for value in layer.components.values():
            if not value.is_floating_point():
                value.copy_(torch.randint(4, value.shape, generator=generator))
    return layer


def mixed_data(n: int = 5) -> dict[str, Tensor]:
    generator = seeded(8)
    return {
        "age": normal(n, 2, seed=1),
        "job": torch.randint(4, (n,), generator=generator),
        "income": normal(n, 1, seed=2),
        "vote": torch.randint(3, (n,), generator=generator),
    }


def explicit_joint(layer: JointLayer) -> kdm.JointKDM:
    """The joint of a layer's parameters, put together by hand."""
    components = {name: layer.components[name].detach() for name in layer.variables}
    kernels = dict(layer.kernels.items())
    weights = torch.softmax(layer.logits.detach(), -1)
    return kdm.JointKDM(components, weights, kernels)


def rows(layer: Any) -> dict[str, Tensor]:
    """Values of all variables of a layer of the registry."""
    if "age" in layer.variables:
        return mixed_data()
    labels = torch.tensor([0, 1, 2, 0, 1])
    if isinstance(layer, DensityLayer):
        return {"x": labels if layer.variables["x"].kernel.discrete else normal(5, 2, seed=3)}
    return {
        "x": normal(5, 2, seed=3),
        "y": labels if layer.variables["y"].kernel.discrete else normal(5, 1, seed=4),
    }


def answer(layer: Any, values: dict[str, Tensor] | None = None) -> Tensor:
    """One number per row that depends on every parameter of a layer."""
    values = rows(layer) if values is None else values
    if isinstance(layer, DensityLayer):
        return layer().log_prob(values["x"])
    return layer.joint().log_prob(**values)


def blobs(
    n: int = 60, d: int = 2, classes: int = 3, *, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Points around well separated centres, and unbalanced labels."""
    y = torch.multinomial(simplex(classes, seed=5), n, replacement=True, generator=seeded(6))
    x = 4 * normal(classes, d, seed=10)[y] + normal(n, d, seed=11)
    return x.to(dtype), y
