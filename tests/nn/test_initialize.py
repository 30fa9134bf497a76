"""Starting values from data."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import kdmkit as kdm
from helpers import close, normal, real, seeded
from kdmkit.kernels.bandwidth import BOUND, typical_distance
from kdmkit.kernels.cosine import LABEL_SMOOTHING
from kdmkit.nn import DensityLayer, JointLayer, Variable
from kdmkit.nn.initialize import Initializer
from nn.layers import M, blobs, classifier, density, mixed, mixed_data

METHODS = ["random", "kmeans++", "balanced", "kmeans"]
SAMPLES = ["random", "kmeans++", "balanced"]


def _started(method, x, y, m=M, seed=0, **options):
    layer = JointLayer(x.shape[1], int(y.max()) + 1, m, dtype=torch.float64)
    return layer.initialize(x, y, method=method, generator=seeded(seed), **options)


def _rows_of(components, x):
    """Which sample each component is."""
    matches = (components.detach()[:, None] == x).all(-1)
    assert bool(matches.any(1).all())
    return matches.double().argmax(1)


def _class_of(layer):
    return layer.components["y"].detach().argmax(-1)


def _numpy_state():
    """scikit-learn's source of randomness where it is given none."""
    return np.random.get_state()[1].copy()  # noqa: NPY002


# ---- which samples


@pytest.mark.parametrize("method", SAMPLES)
def test_components_are_different_samples_with_their_labels(method):
    x, y = blobs()
    layer = _started(method, x, y)
    rows = _rows_of(layer.components["x"], x)
    assert len(rows.unique()) == M
    assert torch.equal(_class_of(layer), y[rows])


@pytest.mark.parametrize("method", METHODS)
def test_seeds(method):
    x, y = blobs()
    first, again, other = (_started(method, x, y, seed=seed) for seed in (0, 0, 1))
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    assert not torch.equal(first.components["x"], other.components["x"])


@pytest.mark.parametrize("method", METHODS)
def test_global_randomness_is_left_alone(method):
    layer, (x, y) = classifier(), blobs()
    before, numpy_before = torch.get_rng_state(), _numpy_state()
    layer.initialize(x, y, method=method, generator=seeded(0))
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(_numpy_state(), numpy_before)


def test_without_a_generator_torch_seeds():
    x, y = blobs()
    layers = []
    for _ in range(2):
        torch.manual_seed(3)
        layers.append(classifier().initialize(x, y, method="kmeans++"))
    assert torch.equal(layers[0].components["x"], layers[1].components["x"])


def test_kmeanspp_spreads_over_standardised_dimensions():
    """Two groups that differ in dimensions of tiny scale: both get components."""
    x = normal(40, 9, seed=0) * real([1.0, *[1e-9] * 8])
    x[20:, 1:] += 1e-6
    layer = DensityLayer(9, 2, dtype=torch.float64)
    for seed in range(5):
        layer.initialize(x, method="kmeans++", generator=seeded(seed))
        assert len((layer.components["x"][:, 1] > 5e-7).unique()) == 2


def test_balanced_takes_as_many_of_every_class():
    x, y = normal(100, 2, seed=0), torch.cat([torch.zeros(80), torch.ones(15), torch.full((5,), 2)]).long()
    assert torch.equal(_class_of(_started("balanced", x, y, m=12)).bincount(), torch.tensor([4, 4, 4]))
    # A class that is too small gives all it has.
    layer = _started("balanced", x, y, m=30)
    assert torch.equal(_class_of(layer).bincount(), torch.tensor([13, 12, 5]))
    assert len(_rows_of(layer.components["x"], x).unique()) == 30


@pytest.mark.parametrize("method", ["balanced", "kmeans"])
def test_weights_are_the_shares_of_the_classes(method):
    x, y = normal(100, 2, seed=0), torch.cat([torch.zeros(80), torch.ones(15), torch.full((5,), 2)]).long()
    layer = _started(method, x, y, m=12)
    shares = torch.zeros(3, dtype=torch.float64).index_add(
        0, _class_of(layer), layer.logits.detach().softmax(-1)
    )
    close(shares, real([0.8, 0.15, 0.05]))


@pytest.mark.parametrize("method", ["random", "kmeans++"])
def test_weights_are_uniform_where_no_class_counts(method):
    x, y = blobs()
    assert torch.equal(_started(method, x, y).logits, torch.zeros(M, dtype=torch.float64))


def test_kmeans_finds_the_means_of_clusters():
    """Clusters so far apart that there is one answer."""
    centres = real([[0.0, 0.0], [50.0, 0.0], [0.0, 50.0]])
    y = torch.tensor([0, 0, 1]).repeat_interleave(20)
    x = centres.repeat_interleave(20, 0) + normal(60, 2, seed=0)
    layer = DensityLayer(2, 3, dtype=torch.float64).initialize(x, method="kmeans", generator=seeded(0))
    means = torch.stack([x[i : i + 20].mean(0) for i in (0, 20, 40)])
    close(layer.components["x"][torch.cdist(means, layer.components["x"]).argmin(1)], means)
    close(layer.logits.softmax(-1), real([1 / 3] * 3))
    assert torch.equal(_class_of(_started("kmeans", x, y, m=4)).bincount(), torch.tensor([2, 2]))


def test_kmeans_never_mixes_classes():
    x = normal(40, 1, seed=0) * 1e-3
    y = torch.arange(40) % 2
    layer = _started("kmeans", x, y, m=2)
    close(layer.components["x"], torch.stack([x[y == 0].mean(0), x[y == 1].mean(0)]))


def test_kmeans_on_a_sample_keeps_the_shares():
    """k-means sees only some rows of large classes; the weights speak of all of them."""
    x, y = normal(100, 2, seed=0), (torch.arange(100) >= 90).long()
    variables = list(JointLayer(2, 2, 4, dtype=torch.float64).variables.values())
    initializer = Initializer(variables, {"x": x, "y": y}, seeded(0), cluster_sample=10)
    components, logits = initializer.start(4, "kmeans")
    shares = torch.zeros(2, dtype=torch.float64)
    shares = shares.index_add(0, components["y"].argmax(-1), logits.softmax(-1))
    close(shares, real([0.9, 0.1]))
    # More components than that sample has rows.
    assert initializer.start(40, "kmeans")[0]["x"].shape == (40, 2)


def test_amplitudes_of_labels():
    x, y = blobs()
    layer = _started("random", x, y)
    one_hot = nn.functional.one_hot(_class_of(layer), 3).double()
    wanted = ((1 - LABEL_SMOOTHING) * one_hot + LABEL_SMOOTHING / 3).sqrt()
    close(layer.components["y"], wanted, rtol=1e-14, atol=0)
    close(layer.joint().marginal("y").kernel.probs(layer.components["y"]).sum(-1), torch.ones(M).double())


def test_amplitudes_of_distributions_over_labels():
    x, y = blobs(20)
    probs = 0.6 * nn.functional.one_hot(y, 3) + 0.4 / 3
    layer = JointLayer(2, 3, 20, dtype=torch.float64)
    layer.initialize(x, 5 * probs.double().sqrt(), generator=seeded(0))
    rows = _rows_of(layer.components["x"], x)
    wanted = (1 - LABEL_SMOOTHING) * probs[rows].double() + LABEL_SMOOTHING / 3
    close(layer.components["y"].square(), wanted, rtol=1e-6)
    layer.initialize(x, probs.double().sqrt(), method="balanced", generator=seeded(0))


def test_mixed_variables_keep_their_rows_together():
    data = mixed_data(30)
    layer = mixed().initialize(**data, method="balanced", generator=seeded(0))
    rows = _rows_of(layer.components["age"], data["age"])
    assert torch.equal(layer.components["job"], data["job"][rows])
    assert torch.equal(layer.components["income"], data["income"][rows])
    assert torch.equal(layer.components["vote"].argmax(-1), data["vote"][rows])
    assert torch.equal(data["vote"][rows].bincount(), torch.tensor([2, 2, 2]))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_mixed_variables(method):
    layer = mixed().initialize(*mixed_data(30).values(), method=method, generator=seeded(0))
    assert all(torch.isfinite(value).all() for value in layer.state_dict().values())
    data = mixed_data()
    close(layer(data["age"], data["job"], target="vote").probs.sum(-1), torch.ones(5).double())


def test_the_last_discrete_variable_is_the_class():
    variables = [Variable("y", kdm.Categorical(2), ()), Variable("z", kdm.Categorical(3), ())]
    layer = JointLayer.from_variables(variables, 6, inputs=["y"])
    y, z = torch.arange(30) % 2, torch.tensor([0] * 20 + [1] * 6 + [2] * 4)
    layer.initialize(y, z, method="balanced", generator=seeded(0))
    assert torch.equal(layer.components["z"].bincount(), torch.tensor([2, 2, 2]))


def test_encoded_cosine_values_are_no_labels():
    """k-means of the outputs: vectors that an encoder compares by angle are no classes."""
    inside = kdm.Composed(nn.Linear(4, 2, dtype=torch.float64), kdm.Cosine())
    layer = JointLayer(4, 1, 3, in_kernel=inside, out_kernel=kdm.RBF(1.0), dtype=torch.float64)
    layer.initialize(normal(30, 4, seed=0), normal(30, 1, seed=1), method="kmeans", generator=seeded(0))
    close(layer.logits.logsumexp(-1), real(math.log(30)))
    with pytest.raises(ValueError, match="method: expected one for continuous variables"):
        layer.initialize(normal(30, 4, seed=0), normal(30, 1, seed=1), method="balanced")


def test_arrays_and_lists():
    x, y = blobs(20)
    wanted = _started("random", x, y)
    got = classifier().initialize(x.numpy(), y.tolist(), generator=seeded(0))
    assert torch.equal(got.components["x"], wanted.components["x"])


def test_a_layer_takes_its_own_precision():
    x, y = blobs()
    layer = JointLayer(2, 3, M, dtype=torch.float32).initialize(x, y, generator=seeded(0))
    assert {p.dtype for p in layer.parameters()} == {torch.float32}


def test_frozen_parameters_are_set_too_and_stay_frozen():
    x, y = blobs()
    layer = classifier(train_components=False, train_weights=False, train_kernels=False)
    layer.initialize(x, y, generator=seeded(0))
    _rows_of(layer.components["x"], x)
    assert not any(p.requires_grad for p in layer.parameters())


def test_data_behind_an_encoder_leaves_no_graph():
    encoder = nn.Linear(2, 2, dtype=torch.float64)
    layer = classifier().initialize(encoder(blobs()[0]), blobs()[1], generator=seeded(0))
    assert layer.components["x"].is_leaf
    assert layer.components["x"].requires_grad


# ---- how wide


def test_sigma_is_the_median_distance_to_the_nearest_component():
    x = normal(M, 2, seed=0)
    layer = DensityLayer(2, M, dtype=torch.float64).initialize(x)
    distances = torch.cdist(x, x) + torch.diag(torch.full((M,), math.inf).double())
    close(layer.kernels["x"].sigma, distances.amin(1).median())


def test_sigma_is_the_mean_distance():
    x = normal(M, 2, seed=0)
    layer = DensityLayer(2, M, dtype=torch.float64).initialize(x, sigma="mean")
    close(layer.kernels["x"].sigma, torch.pdist(x).mean())


@pytest.mark.parametrize("kind", ["nearest", "mean"])
def test_distances_by_blocks(kind):
    points = normal(50, 3, seed=0)
    wanted = typical_distance(points, kind)
    assert typical_distance(points, kind, pairs=70) == pytest.approx(wanted, rel=1e-12)


def test_distances_of_many_components_take_little_memory(monkeypatch):
    """A matrix of 2,048 × 20,000 distances would be 330 MB."""
    largest = []
    cdist = torch.cdist

    def spy(a, b, **options):
        largest.append(len(a) * len(b))
        return cdist(a, b, **options)

    monkeypatch.setattr(torch, "cdist", spy)
    typical_distance(normal(20_000, 2, seed=0), "nearest")
    assert max(largest) <= 1 << 22


def test_a_number_is_sigma_itself():
    x = normal(20, 2, seed=0)
    close(DensityLayer(2, 4, dtype=torch.float64).initialize(x, sigma=0.3).kernels["x"].sigma, real(0.3))
    layer = DensityLayer(2, 4, kernel=kdm.RBF([1.0, 2.0]), dtype=torch.float64).initialize(x, sigma=1)
    close(layer.kernels["x"].sigma, real([1.0, 1.0]))


def test_sigma_per_dimension_follows_the_spread():
    x = normal(200, 3, seed=0) * real([1.0, 10.0, 0.1])
    layer = DensityLayer(3, 200, kernel=kdm.Epanechnikov([1.0] * 3), dtype=torch.float64).initialize(x)
    sigma = layer.kernels["x"].bandwidth.value.detach()
    close(sigma / sigma[0], x.std(0) / x.std(0)[0], rtol=1e-6)
    close(sigma.square().mean().sqrt(), real(typical_distance(x, "nearest")), rtol=1e-6)


def _columns(n_columns, m, **options):
    """A layer over single columns."""
    names = [f"v{i}" for i in range(n_columns)]
    variables = [Variable(name, kdm.RBF(1.0), 1) for name in names]
    return JointLayer.from_variables(variables, m, inputs=names[:-1], **options)


def _by_column(x):
    return {f"v{i}": x[:, [i]] for i in range(x.shape[1])}


def test_columns_start_as_in_one_variable():
    x = normal(50, 3, seed=0)
    x = (x - x.mean(0)) / x.std(0, unbiased=False)
    layer = _columns(3, 50, dtype=torch.float64).initialize(**_by_column(x * real([1.0, 10.0, 0.1])))
    sigmas = torch.stack([layer.kernel(name).sigma.detach() for name in layer.variables])
    close(sigmas, typical_distance(x, "nearest") * real([1.0, 10.0, 0.1]), rtol=1e-6)


def test_columns_that_do_not_vary_do_not_count():
    x = normal(50, 3, seed=0)
    x[:, 1] = 7.0
    layer = _columns(3, 50, dtype=torch.float64).initialize(**_by_column(x))
    others = _columns(2, 50, dtype=torch.float64).initialize(**_by_column(x[:, [0, 2]]))
    close(layer.kernel("v2").sigma, others.kernel("v1").sigma, rtol=1e-6)
    close(layer.kernel("v1").sigma, real(1.0), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["random", "kmeans"])
@pytest.mark.parametrize("n_columns", [2, 4])
def test_held_out_likelihood_of_normal_columns(n_columns, method):
    """The density itself has −1.42 nats per column. A column's own neighbours would give σ = .02."""
    x = normal(1000, n_columns, seed=0, dtype=torch.float32)
    layer = _columns(n_columns, 50).initialize(**_by_column(x[:500]), method=method, generator=seeded(0))

    def likelihood(rows):
        return layer.joint().log_prob(**_by_column(rows)).mean()

    assert likelihood(x[500:]) > -2.2 * n_columns
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    for _ in range(100):
        optimizer.zero_grad()
        likelihood(x[:500]).neg().backward()
        optimizer.step()
    assert likelihood(x[500:]) > -1.7 * n_columns


def test_sigma_per_component():
    kernel = kdm.RBF(torch.ones(M, 1, dtype=torch.float64))
    layer = DensityLayer(2, M, kernel=kernel, dtype=torch.float64).initialize(normal(M, 2, seed=0))
    assert layer.kernels["x"].sigma.shape == (M, 1)
    assert len(layer.kernels["x"].sigma.unique()) == 1


def test_sigma_of_encoded_values():
    encoder = nn.Linear(2, 4, dtype=torch.float64)
    layer = JointLayer(2, 3, M, in_kernel=kdm.Composed(encoder, kdm.RBF(1.0)), dtype=torch.float64)
    x, y = blobs(M)
    layer.initialize(x, y)
    close(layer.kernels["x"].kernel.sigma, real(typical_distance(encoder(x), "nearest")), rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-14, 1e-3, 1.0, 1e6])
def test_sigma_has_the_scale_of_the_data(scale):
    x = normal(50, 2, seed=0)
    one, other = (DensityLayer(2, 10, dtype=torch.float64) for _ in range(2))
    one.initialize(x, generator=seeded(0))
    other.initialize(x * scale, generator=seeded(0))
    close(other.kernels["x"].sigma / scale, one.kernels["x"].sigma, rtol=1e-6)


@pytest.mark.parametrize("kernel", [kdm.RBF(1.0), kdm.RBF([1.0, 3.0]), kdm.Tricube(1e-9)])
def test_lower_bound_of_sigma(kernel):
    """A hundredth of the smallest σ; training cannot go below it."""
    layer = DensityLayer(2, M, kernel=kernel, dtype=torch.float64).initialize(normal(30, 2, seed=0))
    bandwidth = layer.kernels["x"].bandwidth
    close(bandwidth.minimum, BOUND * bandwidth.value.min().detach())
    bound = bandwidth.minimum.clone()
    with torch.no_grad():
        bandwidth.raw.fill_(-1000.0)
    assert bool((bandwidth.value == bound).all())


def test_initialize_again_forgets_the_bound():
    layer = DensityLayer(2, M, dtype=torch.float64)
    x = normal(30, 2, seed=0)
    layer.initialize(1e6 * x, generator=seeded(0))
    layer.initialize(1e-6 * x, generator=seeded(0))
    fresh = DensityLayer(2, M, dtype=torch.float64).initialize(1e-6 * x, generator=seeded(0))
    close(layer.kernels["x"].sigma, fresh.kernels["x"].sigma)
    close(layer.kernels["x"].bandwidth.minimum, fresh.kernels["x"].bandwidth.minimum)


# ---- awkward data


AWKWARD = {
    "identical": torch.ones(20, 2),
    "zero": torch.zeros(20, 2),
    "duplicates": torch.tensor([[0.0, 0.0], [1.0, 2.0]]).repeat(10, 1),
    "constant column": torch.cat([normal(20, 1, seed=0), torch.full((20, 1), 7.0)], 1),
    "tiny beside a constant column": torch.cat([1e-4 * normal(20, 1, seed=0), torch.full((20, 1), 1e3)], 1),
    "far away": 1e6 + normal(20, 2, seed=0),
}


@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("data", AWKWARD)
def test_awkward_data(data, method, per_dimension):
    x, y = AWKWARD[data].double(), torch.arange(20) % 3
    kernel = kdm.RBF([1.0, 1.0] if per_dimension else 1.0)
    layer = JointLayer(2, 3, 12, in_kernel=kernel, dtype=torch.float64)
    layer.initialize(x, y, method=method, generator=seeded(0))
    for value in layer.state_dict().values():
        assert torch.isfinite(value).all()
    loss = -layer.joint().log_prob(x=x, y=y)
    assert torch.isfinite(loss).all()
    loss.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


def test_coinciding_components_do_not_count():
    """All distances are 0 or 2."""
    layer = DensityLayer(1, 20, dtype=torch.float64).initialize(real([[0.0], [2.0]]).repeat(10, 1))
    close(layer.kernels["x"].sigma, real(2.0))


def test_where_all_points_coincide_sigma_is_one():
    layer = DensityLayer(1, 4, dtype=torch.float64).initialize(torch.full((9, 1), 1e3).double())
    close(layer.kernels["x"].sigma, real(1.0))


def test_a_constant_column_does_not_count_for_the_others():
    """With σ per dimension its scale is free, and must not pull that of the others to zero."""
    x = torch.cat([1e-3 * normal(50, 1, seed=0), torch.full((50, 1), 5.0)], 1)
    layer = DensityLayer(2, 10, kernel=kdm.RBF([1.0, 1.0]), dtype=torch.float64)
    layer.initialize(x, generator=seeded(0))
    close(layer.kernels["x"].sigma[0], real(typical_distance(layer.components["x"], "nearest")), rtol=1e-6)


def test_shares_survive_coinciding_points():
    """k-means finds one cluster per class; the class shares must not shift for that."""
    x, y = torch.ones(40, 2).double(), (torch.arange(40) >= 30).long()
    layer = _started("kmeans", x, y, m=10)
    shares = torch.zeros(2, dtype=torch.float64).index_add(
        0, _class_of(layer), layer.logits.detach().softmax(-1)
    )
    close(shares, real([0.75, 0.25]))
    # Halving the 30 rows of the first class four times leaves at most 8 of them to a component.
    close(layer.logits.softmax(-1).max(), real(8 / 40))


@pytest.mark.parametrize("method", METHODS)
def test_as_many_components_as_samples(method):
    x, y = blobs(20)
    layer = _started(method, x, y, m=20)
    assert torch.equal(layer.components["x"].detach().sort(0).values, x.sort(0).values)


def test_one_component():
    layer = DensityLayer(2, 1, dtype=torch.float64).initialize(normal(5, 2, seed=0), method="kmeans")
    close(layer.components["x"], normal(5, 2, seed=0).mean(0, keepdim=True))
    close(layer.kernels["x"].sigma, real(1.0))


# ---- bad input


@pytest.mark.parametrize("method", METHODS)
def test_fewer_samples_than_components(method):
    x, y = blobs(5)
    with pytest.raises(
        ValueError, match=r"values: expected at least as many samples as components \(6\), got 5"
    ):
        classifier().initialize(x, y, method=method)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_data_is_finite(bad):
    x, y = blobs(20)
    x[3, 1] = bad
    with pytest.raises(ValueError, match="x: expected finite values"):
        classifier().initialize(x, y)


BAD = {
    "one variable missing": (lambda x, y: (x,), ValueError, "values: expected data for"),
    "lengths differ": (lambda x, y: (x, y[1:]), ValueError, "as many samples of every variable"),
    "a dimension too few": (lambda x, y: (x[:, :1], y), ValueError, r"x: expected shape \(n, 2\)"),
    "one point": (lambda x, y: (x[0], y[:1]), ValueError, r"x: expected shape \(n, 2\)"),
    "labels as a column": (lambda x, y: (x, y[:, None]), ValueError, r"y: expected labels of shape \(n,\)"),
    "label outside": (lambda x, y: (x, y + 1), ValueError, "y: expected labels in 0 … 2, got 3"),
    "negative label": (lambda x, y: (x, y - 1), ValueError, "y: expected labels in 0 … 2, got -1"),
    "zero amplitude": (lambda x, y: (x, torch.zeros(20, 3)), ValueError, "y: expected amplitudes"),
    "text": (lambda x, y: (x, ["a"] * 20), TypeError, "y: expected a tensor"),
    "whole numbers": (lambda x, y: (x.long(), y), TypeError, "x: expected a floating-point tensor"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_changes_nothing(case):
    spoil, error, message = BAD[case]
    layer = classifier()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    with pytest.raises(error, match=message):
        layer.initialize(*spoil(*blobs(20)))
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "best"}, "method: expected one of 'random', 'kmeans"),
        ({"sigma": "scott"}, "sigma: expected one of 'nearest', 'mean'"),
        ({"sigma": 0.0}, "sigma: expected 'nearest', 'mean' or a number > 0, got 0.0"),
        ({"sigma": -1}, "sigma: expected 'nearest', 'mean' or a number > 0, got -1"),
        ({"sigma": math.nan}, "sigma: expected 'nearest', 'mean' or a number > 0, got nan"),
        ({"sigma": math.inf}, "sigma: expected 'nearest', 'mean' or a number > 0, got inf"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_options_change_nothing(options, message):
    layer = classifier()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        layer.initialize(*blobs(20), **options)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_methods_that_need_a_kind_of_variable():
    with pytest.raises(ValueError, match="method: expected one for continuous variables"):
        density().initialize(normal(20, 2, seed=0), method="balanced")
    discrete = DensityLayer(1, 3, kernel=kdm.Categorical(4))
    for method in ("kmeans", "kmeans++"):
        with pytest.raises(ValueError, match="method: expected one for discrete variables"):
            discrete.initialize(torch.arange(20) % 4, method=method)
