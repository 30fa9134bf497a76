"""Layers whose variables share one index of components: a density, and a joint distribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

import torch
from torch import Tensor, nn

from kdmkit._core.checks import as_shape, bad_argument, check_generator, check_instance
from kdmkit.distributions import KDM, JointKDM
from kdmkit.distributions.base import is_trained
from kdmkit.distributions.evidence import evidence_of_points
from kdmkit.distributions.prepared import PreparedWeights, Versions, needs_no_gradient, versions_of
from kdmkit.distributions.weights import Given, Inferred, Weights
from kdmkit.kernels import RBF, Cosine, Kernel, check_kernel
from kdmkit.nn.initialize import Initializer, Method, Sigma, check_sigma
from kdmkit.nn.layer import KDMLayer, LayerOptions, Variable, options_from

#: Components by variable, weights, and kernels by variable.
Parts = tuple[dict[str, Tensor], Weights, dict[str, Kernel]]


class MixtureLayer(KDMLayer):
    """A layer whose variables share one index of components; log-weights are log_softmax(logits).

    >>> import kdmkit as kdm
    >>> layer = kdm.nn.DensityLayer(2, n_components=4)
    >>> isinstance(layer, MixtureLayer), layer.logits.shape
    (True, torch.Size([4]))
    """

    logits: nn.Parameter
    _prepares: bool = False
    _prepared: tuple[Versions, Parts] | None = None

    @property
    def weight_logits(self) -> Tensor:
        return self.logits

    def _make_weights(self, start: Tensor, *, trainable: bool) -> None:
        self.logits = nn.Parameter(start, requires_grad=trainable)

    def prepare(self) -> Self:
        """Caches the parts of answers that depend on parameters only, see `JointKDM.prepared`.

        For layers that are trained no more. After a change of a parameter the cache is computed again. It
        holds copies of parameters that still require gradients, so freeze large ones first.

        Returns:
            The layer.
        """
        self._prepares = True
        return self

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copies, which have no cache."""
        return {**self.__dict__, "_prepared": None}

    def _mixture(self) -> Parts:
        """Components, weights and kernels of a distribution, see `_parts`."""
        if not (self._prepares and needs_no_gradient([self.logits])):
            components, kernels = self._parts()
            return components, Given(torch.log_softmax(self.logits, -1)), kernels
        parts = [self.logits, *self.components.values()]
        if not torch.is_grad_enabled():
            # These are copied: the cache cannot see for itself that they have changed.
            trained = [kernel for kernel in self.kernels.children() if is_trained(kernel)]
            parts += [x for x in parts if x.requires_grad]
            parts += [x for kernel in trained for x in (*kernel.parameters(), *kernel.buffers())]
        versions = versions_of(parts)
        prepared = self._prepared
        if prepared is None or prepared[0] != versions:
            log_weights = torch.log_softmax(self.logits.detach(), -1)
            components, kernels = self._parts()
            prepared_weights = PreparedWeights(log_weights, kernels, components)
            self._prepared = prepared = versions, (components, prepared_weights, kernels)
        components, weights, kernels = prepared[1]
        return dict(components), weights, dict(kernels)

    @torch.no_grad()
    def assign(self, components: Mapping[str, Tensor], logits: Tensor) -> Self:
        """Sets components by variable, and logits; the layer is returned."""
        self._is_initialized = True
        self.logits.copy_(logits)
        for name, values in components.items():
            self.components[name].copy_(values)
        return self

    @torch.no_grad()
    def _initialize(
        self, data: Mapping[str, Any], method: Method, sigma: Sigma, generator: torch.Generator | None
    ) -> Self:
        """Sets components, weights and bandwidths from data; bad data raises before anything changes."""
        if set(data) != set(self.variables):
            raise ValueError(bad_argument("values", f"data for {list(self.variables)}", list(data)))
        check_sigma(sigma)
        check_generator(generator)
        initializer = Initializer(list(self.variables.values()), data, generator)
        components, logits = initializer.start(self.n_components, method)
        components = {name: value.to(self.components[name]) for name, value in components.items()}
        distances = initializer.distances(components) if sigma == "nearest" else {}
        for name, value in components.items():
            self.kernel(name).initialize_bandwidth(value, sigma, distance=distances.get(name))
        return self.assign(components, logits)


class DensityLayer(MixtureLayer):
    """A trainable KDM over one variable.

    Args:
        features: the dimension of x.
        n_components: m.
        kernel: None is RBF.
        options: as of `JointLayer`.

    >>> import kdmkit as kdm
    >>> layer = kdm.nn.DensityLayer(2, n_components=8)
    >>> x = torch.randn(50, 2)
    >>> layer.initialize(x)().log_prob(x).shape
    torch.Size([50])
    """

    if TYPE_CHECKING:

        def __call__(self) -> KDM: ...

    def __init__(
        self,
        features: int,
        n_components: int,
        *,
        kernel: Kernel | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        kernel = check_kernel("kernel", RBF(1.0) if kernel is None else kernel)
        shape = as_shape("features", features, least=1) if kernel.event_dim else ()
        variable = Variable("x", kernel, shape)
        self._build([variable], n_components, **options)

    def forward(self) -> KDM:
        """The layer's distribution; gradients flow to the parameters, and values are checked on a CPU.

        Under `torch.no_grad` it is a snapshot, which later changes of the parameters do not move.
        """
        components, weights, kernels = self._mixture()
        return KDM._made(components["x"], weights, kernels["x"], self._checks_values(None))

    def initialize(
        self,
        x: Any,
        *,
        method: Method = "random",
        sigma: Sigma = "nearest",
        generator: torch.Generator | None = None,
    ) -> DensityLayer:
        """Sets components, weights and bandwidth from data, as in `JointLayer.initialize`."""
        return self._initialize({"x": x}, method, sigma, generator)

    def config(self) -> dict[str, Any]:
        return {
            "layer": "DensityLayer",
            "variable": self.variables["x"].config(),
            **self._common_config(),
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], *, encoders: Mapping[str, nn.Module] | None = None
    ) -> DensityLayer:
        variable = Variable.from_config(config["variable"], encoder=(encoders or {}).get("x"))
        features = variable.shape[0] if variable.shape else 1
        return cls(features, config["n_components"], kernel=variable.kernel, **options_from(config))

    def extra_repr(self) -> str:
        return f"n_components={self.n_components}"


class JointLayer(MixtureLayer):
    """A trainable joint KDM: inputs go in, the distribution of the outputs comes out.

    `JointLayer(in_features, out_features, n_components)` has the variables `x` and `y`;
    `JointLayer.from_variables` takes any number of them.

    Args:
        in_features: the dimension of x.
        out_features: the dimension of y, the number of classes under a Cosine kernel.
        n_components: m.
        in_kernel: kernel of x; None is RBF.
        out_kernel: kernel of y; None is Cosine, a distribution over classes.
        options: `train_components`, `train_weights`, `train_kernels` (True by default): what is trained;
            `dtype` and `device` of the parameters; `generator` of the first components.

    >>> import kdmkit as kdm
    >>> layer = kdm.nn.JointLayer(4, 3, n_components=16)
    >>> x, y = torch.randn(100, 4), torch.randint(3, (100,))
    >>> rho = layer.initialize(x, y)(x)
    >>> rho.probs.shape, rho.log_prob(y).shape
    (torch.Size([100, 3]), torch.Size([100]))
    >>> layer.reverse(torch.tensor([0, 1])).mean.shape
    torch.Size([2, 4])
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n_components: int,
        *,
        in_kernel: Kernel | None = None,
        out_kernel: Kernel | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        in_kernel = check_kernel("in_kernel", RBF(1.0) if in_kernel is None else in_kernel)
        out_kernel = check_kernel("out_kernel", Cosine() if out_kernel is None else out_kernel)
        in_shape = as_shape("in_features", in_features, least=1)
        out_shape = as_shape("out_features", out_features, least=1) if out_kernel.event_dim else ()
        variables = [Variable("x", in_kernel, in_shape), Variable("y", out_kernel, out_shape)]
        self._make(variables, ["x"], n_components, options)

    @classmethod
    def from_variables(
        cls,
        variables: Sequence[Variable],
        n_components: int,
        *,
        inputs: Sequence[str],
        **options: Unpack[LayerOptions],
    ) -> JointLayer:
        """A layer over named variables: `forward` takes the `inputs` and infers the others.

        `options` are those of the constructor.

        >>> import kdmkit as kdm
        >>> from kdmkit.nn import JointLayer, Variable
        >>> layer = JointLayer.from_variables(
        ...     [
        ...         Variable("age", kdm.RBF(5.0), 1),
        ...         Variable("job", kdm.Categorical(9, 0.1), ()),
        ...         Variable("income", kdm.RBF(1.0), 1),
        ...     ],
        ...     n_components=32,
        ...     inputs=["age", "job"],
        ... )
        >>> layer(age=torch.zeros(5, 1), job=torch.zeros(5, dtype=torch.long)).mean.shape
        torch.Size([5, 1])
        """
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._make(list(variables), list(inputs), n_components, options)
        return layer

    def _make(
        self, variables: list[Variable], inputs: list[str], n_components: int, options: LayerOptions
    ) -> None:
        for variable in variables:
            check_instance("variables", variable, Variable, "a sequence of kdmkit.nn.Variable")
        names = [variable.name for variable in variables]
        if len(set(names)) < len(names) or not names:
            raise ValueError(bad_argument("variables", "one or more with different names", names))
        unknown = [name for name in inputs if name not in names]
        if unknown or len(set(inputs)) < len(inputs) or not 0 < len(inputs) < len(names):
            raise ValueError(bad_argument("inputs", f"some but not all of {names}", inputs))
        self.inputs = tuple(inputs)
        self.outputs = tuple(name for name in names if name not in inputs)
        self._build(variables, n_components, **options)

    def joint(self, *, validate_args: bool | None = None) -> JointKDM:
        """The layer's distribution over all its variables; gradients flow to the parameters.

        Under `torch.no_grad` it is a snapshot, which later changes of the parameters do not move.

        Args:
            validate_args: whether values are checked; None checks on a CPU. On another device a check would
                wait for it, and compilers and function transforms cannot check numbers.
        """
        return JointKDM._made(*self._mixture(), self._checks_values(validate_args))

    @overload
    def forward(self, *values: Any, target: str, **named: Any) -> KDM: ...
    @overload
    def forward(self, *values: Any, **named: Any) -> KDM | JointKDM: ...
    def forward(self, *values: Any, **named: Any) -> KDM | JointKDM:
        """The distribution of the outputs given the inputs: a KDM of one output, a JointKDM of several.

        Args:
            values: tensors or KDMs, in the order of `inputs`; those left out are marginalised.
            named: the same by name; `target` and `observed` as in `JointKDM.infer`.
        """
        return self._infer(self.inputs, self.outputs, values, named)

    @overload
    def reverse(self, *values: Any, target: str, **named: Any) -> KDM: ...
    @overload
    def reverse(self, *values: Any, **named: Any) -> KDM | JointKDM: ...
    def reverse(self, *values: Any, **named: Any) -> KDM | JointKDM:
        """The distribution of the inputs given the outputs."""
        return self._infer(self.outputs, self.inputs, values, named)

    def _infer(
        self, given: Sequence[str], target: Sequence[str], values: Sequence[Any], named: dict[str, Any]
    ) -> KDM | JointKDM:
        if len(given) == len(target) == len(values) == 1 and isinstance(values[0], Tensor) and not named:
            return self._infer_from_points(given[0], target[0], values[0])
        # A new mapping: the compiler traces no reads of read-only mappings after a change of another one.
        named = {"target": target, **named}
        evidence = self._evidence(by_name("values", given, values, named))
        rho: KDM | JointKDM = self.joint().infer(**evidence)
        return rho

    def _infer_from_points(self, given: str, target: str, value: Tensor) -> KDM:
        """The answer of `infer` in the usual case, without the joint: training calls this at every step."""
        value = self._evidence({given: value})[given]
        components, weights, kernels = self._mixture()
        validate, batch = self._checks_values(None), weights.batch_shape
        evidence = evidence_of_points(
            given, value, kernels[given], components[given], batch, validate=validate
        )
        return KDM._made(components[target], Inferred(evidence, weights), kernels[target], validate)

    def initialize(
        self,
        *values: Any,
        method: Method = "random",
        sigma: Sigma = "nearest",
        generator: torch.Generator | None = None,
        **named: Any,
    ) -> JointLayer:
        """Sets components, weights and bandwidths from data; the layer is returned.

        Args:
            values: one tensor per variable `(n, *event)` (or labels `(n,)`), in the order of the variables.
            method: `"random"` samples; `"kmeans++"`, samples spread over the continuous variables;
                `"balanced"`, equally many samples of every label of the last discrete variable; `"kmeans"`,
                centres of clusters, equally many for every label if there is a discrete variable.
            sigma: `"nearest"` for the typical distance between neighbouring components, measured in all
                continuous variables together; `"mean"` for the mean distance between any two, variable by
                variable; or a number.
            generator: source of randomness.
            named: the same tensors by name.
        """
        data = by_name("values", list(self.variables), values, named)
        return self._initialize(data, method, sigma, generator)

    def config(self) -> dict[str, Any]:
        return {
            "layer": "JointLayer",
            "variables": [variable.config() for variable in self.variables.values()],
            "inputs": list(self.inputs),
            **self._common_config(),
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], *, encoders: Mapping[str, nn.Module] | None = None
    ) -> JointLayer:
        encoders = {} if encoders is None else encoders
        variables = [Variable.from_config(v, encoder=encoders.get(v["name"])) for v in config["variables"]]
        options = options_from(config)
        return cls.from_variables(variables, config["n_components"], inputs=config["inputs"], **options)

    def extra_repr(self) -> str:
        return f"{', '.join(self.inputs)} → {', '.join(self.outputs)}, n_components={self.n_components}"


def prepare_layers(module: nn.Module) -> nn.Module:
    """Prepares all layers of a module that is trained no more; it is returned."""
    for layer in module.modules():
        if isinstance(layer, MixtureLayer):
            layer.prepare()
    return module


def by_name(
    argument: str, names: Sequence[str], values: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Positional values, in the order of `names`, together with the keyword values."""
    if len(values) > len(names):
        raise TypeError(bad_argument(argument, f"at most {len(names)}, for {', '.join(names)}", len(values)))
    repeated = [name for name in names[: len(values)] if name in named]
    if repeated:
        raise TypeError(bad_argument(argument, "each variable once", f"{', '.join(repeated)} twice"))
    return {**dict(zip(names, values, strict=False)), **named}
