"""Architectures, augmentation, measures and the table's arithmetic."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kdmkit.nn import JointLayer
from kdmkit.training import FitOptions, Rows, fit
from kdmlab.images import claims, report, searches
from kdmlab.images.architectures import Shape, features, paper_decoder, paper_encoder
from kdmlab.images.augment import AUGMENTS, Augment
from kdmlab.images.data import Pictures, _fitted, pictures
from kdmlab.images.generation import KDMGenerator, VAEGenerator, nearest
from kdmlab.images.measures import classification, frechet
from kdmlab.images.models import (
    DenseModel,
    KDMModel,
    count_parameters,
    make_head,
    make_layer,
    make_layout,
)
from kdmlab.images.objectives import (
    Dense,
    Discriminative,
    Distillation,
    Reconstruction,
    distillation_targets,
)
from kdmlab.images.phases import Setting, kdm_latents, train_decoder, vae_latents
from kdmlab.images.recipes import DATASETS, RECIPES, DecoderRecipe, Recipe, changed, settings_of_phase
from kdmlab.images.residual import residual_encoder
from kdmlab.images.vae import ConditionalVAE, NegativeELBO


def initialized_layer(recipe: Recipe) -> JointLayer:
    """The KDM of a recipe, with random latents as components."""
    z, y = torch.randn(recipe.components, recipe.latent), torch.arange(recipe.components) % 10
    return make_layer(recipe).initialize(z, y)


# ---- architectures


def weights(module: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(p.shape) for p in module.parameters() if p.ndim > 1]


def test_grey_encoder_is_the_papers() -> None:
    assert weights(paper_encoder(Shape(1, 28), 128)) == [
        (32, 1, 5, 5), (32, 32, 5, 5), (64, 32, 5, 5), (64, 64, 5, 5), (512, 64, 7, 7), (128, 512),
    ]  # fmt: skip


def test_colour_encoder_is_the_papers() -> None:
    assert weights(paper_encoder(Shape(3, 32), 32)) == [
        (32, 3, 3, 3), (32, 32, 3, 3), (64, 32, 3, 3), (64, 64, 3, 3), (64, 64, 3, 3), (64, 64, 3, 3),
        (32, 1024),
    ]  # fmt: skip


def test_decoders_are_the_papers() -> None:
    grey, colour = paper_decoder(Shape(1, 28), 128), paper_decoder(Shape(3, 32), 32)
    assert [shape[1] for shape in weights(grey)[:-1]] == [64, 64, 64, 32, 32, 32]
    assert [shape[1] for shape in weights(colour)[1:]] == [128, 128, 64, 64, 32, 32, 3]


def test_features_end_with_the_output() -> None:
    encoder = paper_encoder(Shape(1, 8), 4).eval()
    x = torch.rand(2, 1, 8, 8)
    results = features(encoder, x)
    assert len(results) == 6
    assert torch.equal(results[-1], encoder(x))


@pytest.mark.parametrize("dataset", DATASETS)
def test_heads_have_the_same_number_of_parameters(dataset: str) -> None:
    recipe = RECIPES[dataset, "paper"]
    kdm, dense = count_parameters(make_layer(recipe)), count_parameters(make_head(recipe))
    assert abs(dense / kdm - 1) < 0.05


# ---- augmentation


def test_nothing_to_vary_changes_nothing() -> None:
    x = torch.rand(3, 1, 8, 8)
    assert torch.allclose(Augment()(x), x, atol=1e-5)


def test_shifts_are_by_whole_pixels() -> None:
    x = torch.rand(50, 1, 8, 8)
    moved = Augment(shift=1)(x)
    candidates = torch.stack([x.roll((i, j), (2, 3)) for i in (-1, 0, 1) for j in (-1, 0, 1)])
    inner = (moved - candidates)[..., 1:-1, 1:-1].abs().amax((-1, -2, -3))
    assert (inner.amin(0) < 1e-5).all()
    assert inner.argmin(0).unique().numel() > 4


def test_mirrors_half_of_the_images() -> None:
    x = torch.rand(200, 1, 8, 8)
    mirrored = (Augment(mirror=True)(x) - x.flip(-1)).abs().amax((1, 2, 3)) < 1e-5
    assert 0.3 < mirrored.float().mean() < 0.7


def test_covers_a_square_at_most() -> None:
    x = torch.rand(100, 3, 16, 16)
    changed = ((Augment(cover=4)(x) - x).abs() > 1e-4).any(1).sum((-1, -2))
    assert changed.max() == 16
    assert changed.min() >= 4


@pytest.mark.parametrize("augment", AUGMENTS.values())
def test_pixels_stay_pixels(augment: Augment) -> None:
    varied = augment(torch.rand(4, 1, 8, 8))
    assert varied.shape == (4, 1, 8, 8)
    assert -1e-5 <= varied.min() <= varied.max() <= 1 + 1e-5


# ---- what the KDM is taught


def test_distillation_targets_are_between_label_and_teacher() -> None:
    recipe = changed(RECIPES["digits", "paper"], {"smoothing": 0.1, "teaching": 0.25})
    logits, y = torch.randn(6, 10), torch.arange(6)
    target = distillation_targets(logits, y, recipe)
    label = 0.9 * torch.nn.functional.one_hot(y, 10) + 0.01
    assert torch.allclose(target, 0.75 * label + 0.25 * logits.softmax(-1), atol=1e-6)
    assert torch.allclose(target.sum(-1), torch.ones(6))


@pytest.mark.parametrize("objective", ["dense", "discriminative"])
@pytest.mark.parametrize("weight", [0.0, 0.3])
@torch.no_grad()
def test_encoder_pays_for_what_it_has_lost(objective: str, weight: float) -> None:
    """A layout that says the mean image of the batch leaves all of the variance unexplained."""
    recipe = changed(RECIPES["digits", "paper"], {"layout_weight": weight})
    free = changed(recipe, {"layout_weight": 0})
    x, y = torch.rand(50, 1, 8, 8), torch.arange(50) % 10
    layout = make_layout(Shape(1, 8), recipe)
    layout.weight.zero_()
    layout.bias.copy_(nn.functional.avg_pool2d(x, 2).flatten(1).mean(0))
    start = DenseModel(paper_encoder(Shape(1, 8), recipe.latent).eval(), make_head(recipe), layout)
    if objective == "dense":
        paying, other = Dense(start, recipe, None), Dense(start, free, None)
    else:
        kdm = KDMModel(start.encoder, initialized_layer(recipe))
        paying, other = (Discriminative(kdm, start, r, None) for r in (recipe, free))
    paid = (paying.eval()(x, y) - other.eval()(x, y)).mean().item()
    assert paid == pytest.approx(weight, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("phase", "setting", "matters"),
    [
        ("encoder", "learning_rate", True),
        ("encoder", "joint_rate", False),
        ("dense", "joint_rate", True),
        ("dense", "teaching", False),
        ("kdm", "head_epochs", True),
        ("kdm", "likelihood_rate", False),
        ("ml-kdm", "likelihood_rate", True),
    ],
)
def test_weights_depend_on_what_was_trained(phase: str, setting: str, matters: bool) -> None:
    recipe = RECIPES["digits", "paper"]
    other = changed(recipe, {setting: getattr(recipe, setting) / 2})
    assert (settings_of_phase(recipe, phase) != settings_of_phase(other, phase)) is matters


def test_layout_matters_from_the_start() -> None:
    recipe = RECIPES["digits", "paper"]
    other = changed(recipe, {"layout_weight": 0.7})
    assert settings_of_phase(recipe, "encoder") != settings_of_phase(other, "encoder")


def decayed(objective: nn.Module, *tensors: torch.Tensor) -> set[str]:
    """Names of the parameters that one step with weight decay halves."""
    before = {name: p.detach().clone() for name, p in objective.named_parameters()}
    options = FitOptions(
        max_epochs=1,
        batch_size=len(tensors[0]),
        learning_rate=1e-3,
        weight_decay=500.0,
        schedule="constant",
        device="cpu",
    )
    fit(objective, Rows(tensors), options=options)
    after = dict(objective.named_parameters())
    return {
        name
        for name, p in before.items()
        if (after[name] - p / 2).abs().sum() < 0.5 * (after[name] - p).abs().sum()
    }


def test_weight_decay_is_for_networks_alone() -> None:
    recipe = changed(RECIPES["digits", "paper"], {"layout_weight": 0.3})
    encoder, layer = paper_encoder(Shape(1, 8), recipe.latent), initialized_layer(recipe)
    dense = DenseModel(encoder, make_head(recipe), make_layout(Shape(1, 8), recipe))
    maps = {name for name, p in dense.named_parameters() if p.ndim > 1}
    x, y = torch.randint(0, 256, (12, 1, 8, 8), dtype=torch.uint8), torch.arange(12) % 10
    assert decayed(Dense(dense, recipe, None), x, y) == {f"model.{name}" for name in maps}
    z, target = torch.randn(12, recipe.latent), torch.full((12, 10), 0.1)
    assert decayed(Distillation(layer), z, target) == set()
    joint = decayed(Discriminative(KDMModel(encoder, layer), dense, recipe, None), x, y)
    wanted = {f"model.{name}" if name.startswith("encoder") else name for name in maps}
    assert joint == wanted


@torch.no_grad()
def test_steps_of_all_objectives_can_be_replayed() -> None:
    recipe, shape = RECIPES["digits", "paper"], Shape(1, 8)
    encoder, layer = paper_encoder(shape, recipe.latent), initialized_layer(recipe)
    dense = DenseModel(encoder, make_head(recipe), make_layout(shape, recipe))
    kdm, decoder = KDMModel(encoder, layer), paper_decoder(shape, recipe.latent)
    for objective in (
        Dense(dense, recipe, None),
        Discriminative(kdm, dense, recipe, None),
        Distillation(layer),
        Reconstruction(encoder, decoder, feature_weight=1.0),
        NegativeELBO(ConditionalVAE(shape, 4)),
        Dense(DenseModel(residual_encoder(shape, 16, 4), dense.head, dense.layout), recipe, Augment()),
    ):
        parts = [part for part in objective.modules() if type(part).__module__.startswith("kdmlab")]
        assert parts
        assert all(part.replayable for part in parts)  # type: ignore[union-attr]


# ---- measures


def test_probabilities_may_be_rounded() -> None:
    """Log-densities of hundreds of nats leave errors of some 1e-5."""

    class Rounded(nn.Module):
        def log_probs(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[3e-5, *[-40.0] * 9]]).expand(len(x), -1)

    scores = classification(Rounded(), torch.zeros(4, 1), torch.zeros(4, dtype=torch.long))  # type: ignore[arg-type]
    assert scores == pytest.approx({"accuracy": 1.0, "nll": 0.0, "ece": 0.0}, abs=1e-6)


# ---- data


@pytest.mark.parametrize("held_out", [False, True])
def test_halves_are_disjoint(held_out: bool) -> None:
    whole = pictures("digits", "-", held_out=held_out)
    parts = [pictures("digits", "-", held_out=held_out, half=half) for half in (0, 1)]
    assert torch.equal(parts[0].x_test, whole.x_test)
    assert sum(len(part.y_train) for part in parts) == len(whole.y_train)
    merged = torch.cat([part.x_train for part in parts]).flatten(1).tolist()
    assert sorted(merged) == sorted(whole.x_train.flatten(1).tolist())


def test_held_out_images_are_training_images() -> None:
    whole, part = (pictures("digits", "-", held_out=validation) for validation in (False, True))
    together = torch.cat([part.x_train, part.x_test]).flatten(1).double().sum(1)
    assert torch.equal(together.sort().values, whole.x_train.flatten(1).double().sum(1).sort().values)
    assert len(part.y_test) == 144


def test_grey_images_become_coloured_ones() -> None:
    fitted = _fitted(torch.full((2, 1, 28, 28), 7, dtype=torch.uint8), Shape(3, 32))
    assert fitted.shape == (2, 3, 32, 32)
    assert (fitted == 7).all()


# ---- generation


@pytest.fixture
def identity() -> KDMGenerator:
    """Latent vectors are images of 2×2 pixels; label k has its component at k."""
    layer = JointLayer(4, 10, 10)
    with torch.no_grad():
        layer.components["x"].copy_(torch.arange(10.0).unsqueeze(1).expand(10, 4))
        layer.components["y"].copy_(torch.eye(10))
        layer.kernels["x"].sigma = 0.02
    return KDMGenerator(
        KDMModel(nn.Sequential(nn.Identity()), layer), nn.Sequential(nn.Unflatten(1, (1, 2, 2)))
    )


def test_draws_of_a_class(identity: KDMGenerator) -> None:
    assert torch.allclose(identity.sample(20, y=4), torch.full((20, 1, 2, 2), 4.0), atol=0.2)


def test_draws_of_mixed_classes(identity: KDMGenerator) -> None:
    half = torch.zeros(10)
    half[[3, 8]] = 0.5
    drawn = identity.sample(400, y=half, generator=torch.Generator().manual_seed(0)).mean((1, 2, 3)).round()
    assert set(drawn.tolist()) == {3.0, 8.0}
    assert 0.4 < (drawn == 3).double().mean() < 0.6


@pytest.mark.parametrize("label", [np.int64(4), torch.tensor(4)])
def test_labels_of_other_types(identity: KDMGenerator, label: Any) -> None:
    assert torch.allclose(identity.sample(20, y=label), torch.full((20, 1, 2, 2), 4.0), atol=0.2)


@pytest.mark.parametrize("label", [-1, 10, True, 3.5, "three", torch.ones(3) / 3])
def test_labels_that_are_none(identity: KDMGenerator, label: Any) -> None:
    with pytest.raises(ValueError, match="y: expected a label 0 … 9, or a tensor of 10 probabilities"):
        identity.sample(1, y=label)


def test_spread_of_draws(identity: KDMGenerator) -> None:
    wide, narrow = (
        float(identity.sample(2000, y=0, spread=spread, generator=torch.Generator().manual_seed(0)).std())
        for spread in (1.0, 0.5)
    )
    assert wide == pytest.approx(0.02 / math.sqrt(2), rel=0.05)
    assert narrow == pytest.approx(0.5 * wide, rel=1e-3)


@pytest.mark.slow
def test_decoder_does_not_fall_into_the_dark() -> None:
    """Sigmoids that start at ½ overshoot on dark images, and saturate at black for good."""
    torch.manual_seed(0)
    recipe = RECIPES["digits", "paper"]
    x = torch.zeros(256, 1, 8, 8, dtype=torch.uint8)
    y = torch.arange(256) % 4
    for label in range(4):
        x[y == label, :, 2 * label : 2 * label + 2, 3] = 255
    data = Pictures("digits", x, y, x, y)
    layer = make_layer(recipe)
    model = KDMModel(nn.Sequential(nn.Flatten(), nn.Linear(64, recipe.latent)), layer)
    decoder = paper_decoder(Shape(1, 8), recipe.latent)
    drawing = DecoderRecipe(epochs=60, batch_size=64, feature_weight=0, latent_noise=0)
    latents = kdm_latents(model, data, drawing.latent_noise)
    train_decoder(decoder, latents, model.encoder, data, Setting(recipe, 0, "cpu"), drawing)
    with torch.no_grad():
        error = (decoder(model.encoder(x.float() / 255)) - x / 255).square().mean()
    assert error < 0.5 * (x / 255 - (x / 255).mean(0)).square().mean()


def test_latents_of_a_vae_are_its_posterior() -> None:
    torch.manual_seed(0)
    vae, recipe = ConditionalVAE(Shape(1, 8), 3).eval(), RECIPES["digits", "paper"]
    x, y = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8), torch.arange(5)
    z, noise = vae_latents(vae, Pictures("digits", x, y, x, y))
    with torch.no_grad():
        mean, log_variance = vae.moments(x.float() / 255, y)
    torch.testing.assert_close(z, torch.cat([mean, torch.eye(10)[:5]], 1))
    torch.testing.assert_close(noise, torch.cat([(log_variance / 2).exp(), torch.zeros(5, 10)], 1))
    # A KDM's noise is a part of the kernel's standard deviation, σ/√2.
    layer = initialized_layer(recipe)
    layer.kernels["x"].sigma = 3.0
    model = KDMModel(paper_encoder(Shape(1, 8), recipe.latent), layer)
    noise = kdm_latents(model, Pictures("digits", x, y, x, y), 0.5).noise
    torch.testing.assert_close(noise, torch.full((5, recipe.latent), 1.5 / math.sqrt(2)))


def test_draws_of_a_vae_are_of_the_class_asked_for() -> None:
    decoder = nn.Sequential(nn.Linear(13, 13, bias=False), nn.Unflatten(1, (13, 1, 1)))
    with torch.no_grad():
        decoder[0].weight.copy_(torch.eye(13))
    drawn = VAEGenerator(3, decoder).sample(400, y=4, generator=torch.Generator().manual_seed(0)).flatten(1)
    assert torch.equal(drawn[:, 3:], torch.eye(10)[4].expand(400, 10))
    assert float(drawn[:, :3].std()) == pytest.approx(1, abs=0.06)


def test_evidence_is_the_bound() -> None:
    """Its terms by the distributions of torch, with the same draw."""
    torch.manual_seed(0)
    vae, x, y = ConditionalVAE(Shape(1, 8), 3).eval(), torch.rand(5, 1, 8, 8), torch.arange(5)
    torch.manual_seed(1)
    loss = NegativeELBO(vae)(x, y)
    torch.manual_seed(1)
    logits, mean, log_variance = vae(x, y)
    posterior = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    kl = torch.distributions.kl_divergence(posterior, torch.distributions.Normal(0.0, 1.0)).sum(-1)
    likelihood = torch.distributions.Bernoulli(logits=logits, validate_args=False).log_prob(x).sum((1, 2, 3))
    assert torch.allclose(64 * loss, kl - likelihood, rtol=1e-5)


def test_nearest_training_images() -> None:
    training = torch.randint(256, (30, 1, 4, 4), dtype=torch.uint8)
    results = nearest(training[[4, 17]].float() / 255, training, 2)
    assert torch.equal(results[:, 0], training[[4, 17]])
    assert results.shape == (2, 2, 1, 4, 4)


def test_frechet_of_gaussians() -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(4000, 3, generator=generator, dtype=torch.float64)
    assert frechet(a, a) == pytest.approx(0, abs=1e-9)
    turned = a @ torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64)).Q
    assert frechet(a, turned + 2) == pytest.approx(12, rel=0.05)
    assert frechet(a, 3 * a) == pytest.approx(3 * (3 - 1) ** 2, rel=0.05)


def test_frechet_of_unlike_features() -> None:
    with pytest.raises(ValueError, match="features: expected two or more rows of the same length"):
        frechet(torch.ones(4, 3), torch.ones(4, 2))


# ---- the table


def line(model: str, accuracy: float, **more: object) -> dict[str, object]:
    here = {"cpu": "x", "cores": 1, "threads": 1, "accelerator": "none"}
    common = {"test_nll": 0.1, "test_ece": 0.01, "settings": {"components": 1}, "augmented": False, "seed": 0}
    times = {"seconds": 1.0, "finished": "2026-01-01T00:00:00+00:00", "machine": here, "versions": {}}
    fields = {"dataset": "cifar10", "encoder": "paper", "model": model, "test_accuracy": accuracy}
    return {**common, **times, "novelty_auroc": {}, **fields, **more}


def test_targets_are_compared_with_means() -> None:
    rows = [line("kdm", a, seed=seed) for seed, a in enumerate((0.85, 0.856))]
    rows += [line("dense", 0.8515), line("ml-kdm", 0.843), line("dense", 0.1, seed=9)]
    results = {what: cells for what, *cells in claims.claims(rows, [])}
    assert results["cifar10, paper encoder, kdm: accuracy"] == ["≥ 0.852", "0.8530", "2", "yes, of 2 runs"]
    assert results["cifar10, paper encoder, ml-kdm: accuracy"][1:] == ["0.8430", "1", "no, of 1 run"]
    # Only runs of the same seed are compared.
    assert results["cifar10: KDM less Enc+Dense"][1:] == ["-0.0015", "1", "no, of 1 run"]
    assert results["cifar10: KDM less ML-KDM"][1:] == ["0.0070", "1", "no, of 1 run"]
    assert results["mnist, resnet encoder, kdm: accuracy"] == ["≥ 0.9965", "", "0", "not run"]


def test_ten_runs_make_a_claim() -> None:
    rows = [line("kdm", 0.853, seed=seed) for seed in range(10)]
    results = {what: cells for what, *cells in claims.claims(rows, [])}
    assert results["cifar10, paper encoder, kdm: accuracy"][1:] == ["0.8530", "10", "yes"]


def test_generation_is_compared_with_the_vae() -> None:
    drawn = [
        {"dataset": "cifar10", "generator": "ml-kdm", "recognised": 0.7, "frechet": 9.0},
        {"dataset": "cifar10", "generator": "vae", "recognised": 0.3, "frechet": 8.0},
    ]
    results = {what: cells for what, *cells in claims.claims([], drawn)}
    assert results["cifar10: generated images recognised"] == ["≥ 0.6", "0.7000", "1", "yes, of 1 run"]
    bound = results["cifar10: Fréchet distance, not above the conditional VAE's"]
    assert bound == ["≤ 8", "9.0000", "1", "no, of 1 run"]


def test_table_takes_the_newest_settings() -> None:
    old = line("kdm", 0.5, settings={"components": 2})
    rows = report.table([old, line("kdm", 0.85), line("kdm", 0.87, seed=1)], []).rows
    assert [row[4:6] for row in rows] == [["2", rows[0][5]]]
    assert rows[0][5].startswith("0.8600 ± ")


def test_search_shows_what_was_varied() -> None:
    def tried(accuracy: float, **settings: object) -> dict[str, object]:
        return {**line("kdm", 0, settings=settings), "validation_accuracy": accuracy}

    rows = [tried(0.8, latent=2, smoothing=0.1), tried(0.9, latent=2, smoothing=0), tried(0.7, latent=2)]
    rows += [{**tried(0.6, latent=4, smoothing=0.1), "dataset": "mnist"}]
    drawn = [
        {**line("", 0), "generator": "ml-kdm", "drawing": {"spread": s}, "recognised": 0.5, "frechet": 10 * s}
        for s in (1.0, 0.5)
    ]
    results = searches.search_table(rows, drawn)
    assert list(results.header[3:-2]) == ["smoothing"]
    assert [row[0:1] + row[3:] for row in map(list, results.rows)] == [
        ["cifar10", "0", "1", "0.9000"],
        ["cifar10", "0.1", "1", "0.8000"],
        ["cifar10", "", "1", "0.7000"],
        ["mnist", "0.1", "1", "0.6000"],
    ]
    assert "| cifar10 | ml-kdm | 0 | 0.5 | 0.5000 | 5.0000 |" in results.markdown()


def test_search_shows_the_grid() -> None:
    def tried(m: int, e: int, accuracy: float, **more: object) -> dict[str, object]:
        settings = {"components": m, "latent": e, "dense_components": 8, **more}
        return {**line("kdm-alone", 0, settings=settings), "validation_accuracy": accuracy}

    rows = [tried(4, 2, 0.5), tried(8, 2, 0.6), tried(4, 16, 0.7), tried(8, 16, 0.8), tried(8, 16, 0.9)]
    text = searches.search_table([*rows, tried(64, 64, 0.1, smoothing=1)]).markdown()
    assert "| cifar10 | e = 2 | e = 16 |" in text
    assert "| m = 8 | 0.6000 | 0.8500 (2 runs) |" in text
    assert "m = 64" not in text
    assert "## The KDM alone" not in searches.search_table(rows[:2]).markdown()


def test_heads_are_compared_by_seed() -> None:
    rows = [line("kdm-alone", 0.9), line("kdm-alone", 0.8, seed=1), line("dense-alone", 0.85)]
    text = report.table(rows, []).markdown()
    assert "| cifar10 | KDM alone (Algorithm 3) | Enc+Dense alone | 1 | 0.0500 |" in text
