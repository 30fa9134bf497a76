"""Learning from label proportions."""

import itertools
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import kdmkit as kdm
from estimators.problems import bags
from kdmkit.estimators.proportions.bag_likelihood import (
    BagLikelihood,
    CountLikelihood,
    LabelRatio,
    RowLikelihood,
)
from kdmkit.estimators.proportions.label_proportions import fit_log_proportions, log_posterior_proportions
from kdmkit.training import Bags, log_count_likelihood


@pytest.fixture(scope="module", params=[2, 3])
def fitted(request: pytest.FixtureRequest) -> Any:
    X, ids, proportions, _ = bags(900, classes=request.param)
    model = kdm.KDMProportionClassifier(max_epochs=40, random_state=0).fit(X, ids, proportions)
    return model, *bags(600, classes=request.param, seed=1)


def test_rows_are_told_apart(fitted: Any) -> None:
    model, X, _, _, y = fitted
    probs = model.predict_proba(X)
    truth, score = (y, probs[:, 1]) if probs.shape[1] == 2 else (y, probs)
    assert roc_auc_score(truth, score, multi_class="ovr") > 0.9
    assert model.score(X, y) > 0.8
    np.testing.assert_array_equal(model.predict(X), probs.argmax(1))


def test_proportions_of_new_bags(fitted: Any) -> None:
    model, X, ids, proportions, _ = fitted
    predicted = model.predict_proportions(X, ids)
    assert predicted.shape == proportions.shape
    np.testing.assert_allclose(predicted.sum(1), 1)
    sizes = np.bincount(ids)
    error = np.abs(predicted - proportions)[sizes >= 10]
    assert error.mean() < 0.1
    probs = model.predict_proba(X)
    np.testing.assert_allclose(predicted[3], probs[ids == 3].mean(0))


@pytest.mark.parametrize("classes", [2, 3])
def test_a_bag_is_an_input_distribution(classes: int) -> None:
    """The mean over rows is inference from a KDM with a component per row (the paper's Algorithm 4)."""
    X, ids, proportions, _ = bags(300, classes=classes)
    model = kdm.KDMProportionClassifier(loss="likelihood", max_epochs=3, random_state=0)
    model.fit(X, ids, proportions)
    joint = model.module_.joint()
    inside = kdm.KDM.from_samples(torch.from_numpy(X[ids == 0]), joint.kernels["x"])
    np.testing.assert_allclose(joint.infer(x=inside).probs, model.predict_proportions(X, ids)[0], atol=1e-9)


def test_density_in_the_units_of_the_data() -> None:
    X, ids, proportions, _ = bags(300)
    model = kdm.KDMProportionClassifier(max_epochs=3, random_state=0).fit(X * [30.0, 0.1], ids, proportions)
    axes = [30 * np.linspace(-8, 11, 301), 0.1 * np.linspace(-8, 11, 301)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    cell = (axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0])
    assert np.exp(model.score_samples(grid)).sum() * cell == pytest.approx(1, abs=1e-3)


def test_the_order_of_rows_does_not_matter() -> None:
    X, ids, proportions, _ = bags(300)
    order = np.random.default_rng(0).permutation(300)
    # Whole batches, no validation and no choice of components: nothing is left to chance.
    model = kdm.KDMProportionClassifier(
        max_epochs=3, n_components=300, batch_size=1000, validation_fraction=0, noise=0, random_state=0
    )
    first = model.fit(X, ids, proportions).predict_proba(X)
    second = model.fit(X[order], ids[order], proportions).predict_proba(X)
    np.testing.assert_allclose(first, second, atol=1e-4)


def test_proportions_written_with_three_digits() -> None:
    X, ids, proportions, _ = bags(200)
    model = kdm.KDMProportionClassifier(max_epochs=2, random_state=0)
    exact = model.fit(X, ids, proportions).predict_proba(X)
    rounded = model.fit(X, ids, proportions.round(4)).predict_proba(X)
    narrow = model.fit(X, ids, proportions.astype(np.float32)).predict_proba(X)
    np.testing.assert_allclose(rounded, exact, atol=1e-2)
    np.testing.assert_allclose(narrow, exact, atol=1e-3)


def test_bags_of_one_row_are_labels() -> None:
    X, _, _, y = bags(200, classes=2)
    model = kdm.KDMProportionClassifier(max_epochs=20, random_state=0).fit(X, np.arange(200), np.eye(2)[y])
    assert model.score(X, y) > 0.95


def test_one_bag_is_not_an_error() -> None:
    X, _, _, _ = bags(50)
    model = kdm.KDMProportionClassifier(max_epochs=5, random_state=0).fit(
        X, np.zeros(50, int), [[0.2, 0.3, 0.5]]
    )
    np.testing.assert_allclose(model.predict_proportions(X, np.zeros(50, int)), [[0.2, 0.3, 0.5]], atol=0.1)


def test_ragged_bags_side_by_side() -> None:
    bags = Bags(torch.arange(5.0).unsqueeze(1), torch.tensor([2, 0, 2, 1, 2]))
    assert bags.first.tolist() == [0, 1, 2]
    assert bags.size.tolist() == [1, 1, 3]
    z, weights = bags.answers(None, bags.first[1:], bags.size[1:])
    assert z.squeeze(-1).tolist() == [[3, 0, 0], [0, 2, 4]]
    torch.testing.assert_close(weights, torch.tensor([[1.0, 0, 0], [1 / 3, 1 / 3, 1 / 3]]))


def test_uneven_bags_take_no_more_memory_than_their_rows() -> None:
    """Side by side, one bag of 20,000 rows and 2,000 of one would be 40 million vectors."""
    n = 20_000
    X = np.random.default_rng(0).normal(size=(n + 2000, 3))
    ids = np.concatenate([np.zeros(n, int), np.arange(1, 2001)])
    model = kdm.KDMProportionClassifier(max_epochs=1, n_components=4, batch_size=200, random_state=0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model.fit(X, ids, np.full((2001, 2), 0.5))
    # Kilobytes; a batch with the large bag is 4 million vectors and their overlaps.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000


# ---- losses


@pytest.mark.parametrize("loss", ["likelihood", "counts", "proportions"])
def test_all_losses_tell_rows_apart(loss: Any) -> None:
    X, ids, proportions, y = bags(600, classes=2)
    model = kdm.KDMProportionClassifier(loss=loss, n_components=16, max_epochs=25, random_state=0)
    model.fit(X, ids, proportions)
    assert roc_auc_score(y, model.predict_proba(X)[:, 1]) > 0.95


def test_likelihood_of_rows_is_that_of_the_mixture_of_classes() -> None:
    """−log Σ_y γ_y p(y|x)/p(y) = −log Σ_y γ_y p(x|y) + log p(x), by the joint's own densities."""
    torch.manual_seed(0)
    layer = kdm.nn.JointLayer(2, 3, 5, dtype=torch.float64)
    x, shares = torch.randn(7, 2).double(), torch.rand(7, 3).double()
    shares /= shares.sum(1, keepdim=True)
    prior = layer.joint().marginal("y").probs
    loss = RowLikelihood(LabelRatio(None, layer, 0.0, prior))(x, shares)
    of_classes = torch.stack([layer.reverse(torch.tensor(y)).log_prob(x) for y in range(3)], -1).exp()
    mixture = (shares * of_classes).sum(-1).log()
    torch.testing.assert_close(loss, layer.joint().marginal("x").log_prob(x) - mixture)


def enumerated(ratio: Any, k: int) -> tuple[float, Any]:
    """The likelihood of a bag with k second labels, and the posterior of every label, label by label."""
    n = len(ratio)
    labels = np.array([y for y in itertools.product((0, 1), repeat=n) if sum(y) == k])
    each = np.array([np.prod(ratio[np.arange(n), y]) for y in labels])
    return each.mean(), each @ labels / each.sum()


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_counts_are_summed_over_all_labels_that_have_them(scale: float) -> None:
    """Bags of different sizes, with all counts; with sure answers that contradict the counts, too."""
    rng = np.random.default_rng(0)
    sizes, counts = [5, 5, 5, 3, 3, 1, 1], [0, 2, 5, 1, 3, 0, 1]
    log_ratio = torch.from_numpy(scale * rng.normal(size=(7, 5, 2)))
    present = torch.arange(5) < torch.tensor(sizes).unsqueeze(1)
    # What stands in the padding does not matter.
    log_ratio[~present] = torch.nan
    k = torch.tensor(counts)
    result, posterior = log_count_likelihood(log_ratio, present, k), posterior_labels(log_ratio, present, k)
    for bag, (n, count) in enumerate(zip(sizes, counts, strict=True)):
        wanted, labels = enumerated(log_ratio[bag, :n].exp().numpy(), count)
        assert result[bag].item() == pytest.approx(np.log(wanted), rel=1e-9, abs=1e-9)
        np.testing.assert_allclose(posterior[bag, :n], labels, atol=1e-9)
        assert posterior[bag, n:].abs().sum() == 0


def posterior_labels(log_ratio: torch.Tensor, present: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """p(y_j = 1 | all rows of the bag, k): the derivative of the log-likelihood by log r_j1."""
    leaf = log_ratio.detach().requires_grad_()
    (slope,) = torch.autograd.grad(log_count_likelihood(leaf, present, counts).sum(), leaf)
    return slope[..., 1]


def test_counts_of_large_bags_in_float32() -> None:
    """The mode of the tilted distribution cannot underflow, however wrong the answers are."""
    log_ratio = torch.zeros(1, 512, 2)
    log_ratio[..., 1] = 40.0
    present, k = torch.ones(1, 512, dtype=torch.bool), torch.tensor([100])
    # All rows are alike: every assignment has the same likelihood, e^{40·100}.
    assert log_count_likelihood(log_ratio, present, k).item() == pytest.approx(4000, rel=1e-5)
    torch.testing.assert_close(posterior_labels(log_ratio, present, k), torch.full((1, 512), 100 / 512))


def test_counts_have_to_be_counts() -> None:
    X = np.random.default_rng(0).normal(size=(20, 2))
    model = kdm.KDMProportionClassifier(loss="counts", max_epochs=1)
    with pytest.raises(
        ValueError, match=r"proportions: expected whole counts .*, got .*2.4.* of 20 in bag 0"
    ):
        model.fit(X, np.zeros(20, int), [[0.88, 0.12]])
    with pytest.raises(ValueError, match="loss: expected 'auto' or 'likelihood' for ranges"):
        model.fit(X, np.zeros(20, int), RANGES)


def test_counts_of_several_labels() -> None:
    """Half the sum over labels of each against the others: with two labels that is the exact likelihood."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(10, 3, generator=generator)
    bags, head = Bags(x, torch.tensor([0] * 6 + [1] * 4)), torch.nn.Linear(3, 4)
    counts = torch.tensor([[1, 2, 3, 0], [4, 0, 0, 0]])
    prior = counts.sum(0) / 10
    labels = LabelRatio(None, head, 0.0, prior)
    got = CountLikelihood(labels, bags)(bags.first, bags.size, counts)
    probs = head(x).softmax(-1)[:, :3].double()
    present = torch.ones(1, 6, dtype=torch.bool)
    wanted = torch.zeros(2).double()
    for y in range(3):
        each = torch.stack([(probs.sum(1) - probs[:, y]) / (1 - prior[y]), probs[:, y] / prior[y]], -1).log()
        for bag, rows in enumerate((slice(0, 6), slice(6, 10))):
            size = rows.stop - rows.start
            likelihood = log_count_likelihood(each[None, rows], present[:, :size], counts[bag, y].view(1))
            wanted[bag] -= 0.5 * likelihood[0] / size
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-5)
    got.sum().backward()
    assert bool(head.weight.grad.isfinite().all())


@pytest.mark.parametrize(
    ("n_bags", "encoder"),
    [(20, None), (100, None), (20, "mlp"), pytest.param(100, "mlp", marks=pytest.mark.slow)],
)
def test_the_default_learns_from_small_bags(encoder: Any, n_bags: int, tmp_path: Path) -> None:
    """Eight classes in random bags of 10: the likelihood of rows alone learns little from them."""
    rng = np.random.default_rng(0)
    y = rng.integers(8, size=10 * n_bags)
    X = rng.normal(size=(len(y), 2)) * 0.3 + 3 * np.column_stack([y % 4, y // 4])
    ids = np.arange(len(y)) // 10
    shares = np.stack([np.bincount(y[ids == bag], minlength=8) / 10 for bag in range(n_bags)])
    model = kdm.KDMProportionClassifier(encoder=encoder, random_state=0).fit(X, ids, shares)
    assert model.loss_ in ("proportions", "likelihood")
    assert ("validation_loss" in model.pretraining_history_[0]) == (n_bags == 100)
    assert np.isfinite([entry["loss"] for entry in model.history_]).all()
    if n_bags == 100:
        assert (model.predict(X) == y).mean() > 0.9
    rows = X[:50] + 0.1
    kdm.save(model, tmp_path / "model")
    loaded = kdm.load(tmp_path / "model")
    np.testing.assert_allclose(loaded.predict_proba(rows), model.predict_proba(rows))
    assert loaded.loss_ == model.loss_
    assert np.isfinite(model.score_samples(rows)).all()


def test_likelihood_is_smallest_at_the_truth() -> None:
    """Over very many rows no other p(y|x) explains the bags better: not a surer one, nor a vaguer one."""
    rng = np.random.default_rng(0)
    share = np.repeat(rng.uniform(0, 0.5, 200), 500)
    y = rng.random(len(share)) < share
    x = rng.normal(size=len(share)) + 1.5 * y
    prior = share.mean()
    logit = 1.5 * x - 1.5**2 / 2 + np.log(prior / (1 - prior))
    shares, priors = torch.tensor(np.stack([1 - share, share], 1)), torch.tensor([1 - prior, prior])

    def loss(sharpness: float) -> float:
        head = torch.nn.Identity()
        objective = RowLikelihood(LabelRatio(None, head, 0.0, priors))
        logits = torch.tensor(sharpness * np.stack([0 * logit, logit], 1))
        return float(objective(logits, shares).mean())

    assert loss(1.0) < min(loss(0.5), loss(2.0))


def test_a_class_that_no_bag_has() -> None:
    X, ids, proportions, _ = bags(200, classes=2)
    padded = np.column_stack([proportions, np.zeros(len(proportions))])
    model = kdm.KDMProportionClassifier(max_epochs=30, random_state=0).fit(X, ids, padded)
    assert model.predict_proba(X)[:, 2].mean() < 0.05


def test_chosen_bags_validate() -> None:
    X, ids, proportions, _ = bags(300)
    model = kdm.KDMProportionClassifier(loss="likelihood", max_epochs=3, random_state=0)
    history = model.fit(X, ids, proportions, validation_bags=[0, 3]).history_
    assert all("validation_loss" in entry for entry in history)
    # Their proportions are not learned from.
    changed = proportions.copy()
    changed[[0, 3]] = [0.2, 0.3, 0.5]
    again = model.fit(X, ids, changed, validation_bags=[0, 3]).history_
    assert [entry["loss"] for entry in again] == [entry["loss"] for entry in history]
    assert again[0]["validation_loss"] != history[0]["validation_loss"]


@pytest.mark.parametrize("chosen", [[], [-1], [10_000], [0.5], "all"])
def test_validation_bags_are_some_of_them(chosen: Any) -> None:
    X, ids, proportions, _ = bags(100)
    validation = np.arange(len(proportions)) if chosen == "all" else chosen
    with pytest.raises(ValueError, match="validation_bags: expected some but not all ids"):
        kdm.KDMProportionClassifier(max_epochs=1).fit(X, ids, proportions, validation_bags=validation)


def test_features_as_they_are() -> None:
    """Without standardising, what is learned does not depend on where bags' rows lie on average."""
    X, ids, proportions, y = bags(300, classes=2)
    model = kdm.KDMProportionClassifier(standardize=False, max_epochs=20, random_state=0)
    assert model.fit(X, ids, proportions).score(X, y) > 0.9
    sigma = model.module_.layer.kernels["x"].sigma
    assert sigma.shape == (2,)


# ---- proportions that are not known exactly


def with_margin(proportions: Any, margin: float) -> Any:
    return np.stack([np.clip(proportions - margin, 0, 1), np.clip(proportions + margin, 0, 1)], -1)


@pytest.mark.parametrize("classes", [2, 3])
def test_ranges_of_proportions(classes: int) -> None:
    X, ids, proportions, y = bags(600, classes=classes)
    model = kdm.KDMProportionClassifier(n_components=16, max_epochs=25, random_state=0)
    assert model.fit(X, ids, with_margin(proportions, 0.15)).score(X, y) > 0.85


def test_a_poll_of_each_bag() -> None:
    """LabelProportions counted from six of thirty labels: far off in single bags, right on average."""
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(40), 30)
    y = (rng.random(1200) < rng.random(40)[ids]).astype(int)
    X = rng.normal(size=(1200, 2)) + 2.0 * y[:, None]
    polled = rng.binomial(6, np.bincount(ids, y) / 30) / 6
    model = kdm.KDMProportionClassifier(n_components=16, max_epochs=30, random_state=0)
    model.fit(X, ids, np.stack([1 - polled, polled], 1), counted=6)
    assert model.score(X, y) > 0.85


def test_narrow_ranges_and_large_polls_are_exact_proportions() -> None:
    torch.manual_seed(0)
    ratio = torch.rand(4, 6, 3).double()
    weights = torch.full((4, 6), 1 / 6).double()
    mean = torch.tensor([[0.2, 0.3, 0.5]] * 4).double()
    everything = torch.zeros_like(mean), torch.ones_like(mean)
    none, many = torch.zeros(4).double(), torch.full((4,), 1e9).double()
    torch.testing.assert_close(posterior_proportions(ratio, weights, mean, mean, mean, none), mean)
    torch.testing.assert_close(
        posterior_proportions(ratio, weights, mean, *everything, many), mean, atol=1e-6, rtol=0
    )


def test_beliefs_go_uphill_and_stay_in_their_ranges() -> None:
    torch.manual_seed(0)
    ratio, weights = torch.rand(5, 20, 3).double(), torch.full((5, 20), 1 / 20).double()
    low, high = torch.tensor([[0.1, 0.0, 0.3]] * 5).double(), torch.tensor([[0.5, 0.2, 0.8]] * 5).double()
    start = fit_log_proportions((low + high).log(), low, high).exp()
    end = posterior_proportions(ratio, weights, start, low, high, torch.zeros(5).double())
    assert bool(((end >= low - 1e-9) & (end <= high + 1e-9)).all())
    torch.testing.assert_close(end.sum(1), torch.ones(5).double())

    def likelihood(gamma: torch.Tensor) -> torch.Tensor:
        return (gamma.unsqueeze(1) * ratio).sum(-1).log().sum(1)

    assert bool((likelihood(end) >= likelihood(start)).all())
    assert bool((likelihood(end) > likelihood(start) + 1e-3).any())


@pytest.mark.parametrize("classes", [3, 6])
def test_mostly_unknown_proportions_behind_an_encoder(classes: int) -> None:
    """A label that the model rules out for a row may be the only one that its bag allows."""
    rng = np.random.default_rng(classes)
    y = rng.integers(classes, size=480)
    X, ids = 2 * rng.normal(size=(classes, 5))[y] + rng.normal(size=(480, 5)), np.repeat(np.arange(40), 12)
    shares = np.zeros((40, classes))
    np.add.at(shares, (ids, y), 1 / 12)
    ranges = np.repeat(shares[..., None], 2, -1)
    ranges[rng.random(shares.shape) < 0.9] = [0, 1]
    model = kdm.KDMProportionClassifier(encoder="mlp", max_epochs=10, random_state=0).fit(X, ids, ranges)
    losses = [entry["loss"] for entry in model.pretraining_history_ + model.history_]
    assert np.isfinite(losses).all()
    assert np.isfinite(model.predict_proba(X)).all()


@pytest.mark.parametrize("exact", [True, False])
def test_likelihood_of_a_row_that_its_bag_rules_out(exact: bool) -> None:
    """p(0|x) = e^−300 underflows in float32; the loss, log p(0) − log p(0|x), and its gradient do not."""
    logits = torch.tensor([[-300.0, 0.0]], requires_grad=True)
    labels = LabelRatio(None, torch.nn.Identity(), 0.0, torch.tensor([0.5, 0.5]))
    only = torch.tensor([[1.0, 0.0]])
    if exact:
        loss = RowLikelihood(labels)(logits, only)
    else:
        bag = Bags(logits, torch.tensor([0]))
        likelihood = BagLikelihood(labels, bag)
        loss = likelihood(bag.first, bag.size, only, only, only, torch.zeros(1))
    torch.testing.assert_close(loss, torch.tensor([300.0 + np.log(0.5)]).float())
    loss.sum().backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[-1.0, 1.0]]))


def test_padding_takes_no_part_in_beliefs() -> None:
    ratio = torch.rand(1, 4, 2).double()
    mean, none = torch.tensor([[0.5, 0.5]]).double(), torch.zeros(1).double()
    weights = torch.tensor([[0.5, 0.5, 0.0, 0.0]]).double()
    padded = posterior_proportions(ratio, weights, mean, 0 * mean, 0 * mean + 1, none)
    alone = posterior_proportions(ratio[:, :2], weights[:, :2], mean, 0 * mean, 0 * mean + 1, none)
    torch.testing.assert_close(padded, alone)


def posterior_proportions(ratio: torch.Tensor, *known: torch.Tensor) -> torch.Tensor:
    return log_posterior_proportions(ratio.log(), *known).exp()


RANGES = np.array([[[0.2, 0.4], [0.6, 0.8]]])


@pytest.mark.parametrize(
    ("proportions", "counted", "message"),
    [
        (RANGES[..., ::-1], None, r"proportions: expected ranges with 0 ≤ low ≤ high ≤ 1, got .* in row 0"),
        (RANGES + np.array([0, 0.5]), None, "proportions: expected ranges with 0 ≤ low"),
        (
            RANGES / 4,
            None,
            "proportions: expected ranges with room for a sum of 1, got sums from 0.2 to 0.3 in row 0",
        ),
        (RANGES[:, :, :1], None, r"proportions: expected ranges of shape \(n_bags, n_classes ≥ 2, 2\)"),
        (RANGES * np.nan, None, "proportions: expected ranges with 0 ≤ low"),
        (RANGES, 5, "counted: expected None beside ranges of proportions"),
        ([[0.5, 0.5]], 0, "counted: expected finite numbers > 0, got 0"),
        ([[0.5, 0.5]], [3, 3], r"counted: expected a number, or one for each of 1 bags, got \(2,\)"),
        ([[0.5, 0.5]], np.inf, "counted: expected finite numbers > 0, got inf"),
        ([[1.5, -0.5]], None, "proportions: expected non-negative rows that sum to 1, got a value of -0.5"),
    ],
)
def test_what_is_no_belief(proportions: Any, counted: Any, message: str) -> None:
    X = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises(ValueError, match=message):
        kdm.KDMProportionClassifier(max_epochs=1).fit(X, np.zeros(20, int), proportions, counted=counted)


def test_algorithm_4_needs_exact_proportions() -> None:
    X = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises(
        ValueError, match="loss: expected 'auto' or 'likelihood' for ranges of proportions or polls"
    ):
        kdm.KDMProportionClassifier(loss="proportions").fit(X, np.zeros(20, int), RANGES)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"loss": "mean"}, "loss: expected one of 'auto', 'likelihood', 'counts', 'proportions', got 'mean'"),
        ({"noise": -1}, "noise: expected a number ≥ 0, got -1"),
    ],
)
def test_parameters_are_checked(parameters: dict[str, Any], message: str) -> None:
    X, ids, proportions, _ = bags(50)
    with pytest.raises(ValueError, match=message):
        kdm.KDMProportionClassifier(**parameters).fit(X, ids, proportions)


@pytest.mark.slow
def test_the_likeliest_proportions_of_new_bags() -> None:
    """The mean of p(y|x) is drawn to the mix that was learned from; the likelihood finds the bag's own."""
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(60), 30)
    y = (rng.random(1800) < rng.uniform(0, 0.5, 60)[ids]).astype(int)
    X = rng.normal(size=(1800, 1)) + 1.5 * y[:, None]
    share = np.bincount(ids, y) / 30
    model = kdm.KDMProportionClassifier(n_components=16, max_epochs=30, random_state=0)
    model.fit(X, ids, np.stack([1 - share, share], 1))
    np.testing.assert_allclose(model.class_prior_, [1 - y.mean(), y.mean()], atol=1e-6)
    new = (rng.random(4000) < 0.9).astype(int)
    X_new, one = rng.normal(size=(4000, 1)) + 1.5 * new[:, None], np.zeros(4000, int)
    assert model.predict_proportions(X_new, one)[0, 1] < 0.75
    assert model.predict_proportions(X_new, one, method="likelihood")[0, 1] == pytest.approx(0.9, abs=0.08)
    with pytest.raises(ValueError, match="method: expected one of 'mean', 'likelihood', got 'mode'"):
        model.predict_proportions(X_new, one, method="mode")  # type: ignore[arg-type]
