"""Image heads: calibration by a temperature, scores of novelty, and the tables of both."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kdmkit as kdm
from kdmlab import images
from kdmlab.common import read_rows
from kdmlab.images import heads, heads_report, jobs, novelty
from kdmlab.images.architectures import Shape
from kdmlab.images.data import _fitted
from kdmlab.images.models import encode
from kdmlab.images.recipes import RECIPES, changed

KINDS = ("latent", "all layers")
# Fits take twice the time where annotations are checked.


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs._pictures.cache_clear()
    short = {
        "batch_size": 32,
        "components": 20,
        "encoder_epochs": 2,
        "joint_epochs": 1,
        "head_epochs": 1,
        "likelihood_epochs": 1,
    }
    monkeypatch.setitem(RECIPES, ("digits", "paper"), changed(RECIPES["digits", "paper"], short))


# ---- calibration


def test_a_temperature_calibrates() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(4000, 3, generator=generator)
    y = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(1)
    before, after = heads.scores(3 * logits, y), heads.scores(3 * logits, y, 3)
    assert after["ece"] < 0.02 < before["ece"]
    assert after["nll"] < before["nll"]
    assert after["accuracy"] == before["accuracy"]


# ---- novelty


def test_mahalanobis_scores() -> None:
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(300, 3)) @ np.diag([1, 2, 5]), np.arange(300) % 2
    z[y == 1] += 10
    means = [z[y == c].mean(0) for c in (0, 1)]
    inverse = np.linalg.inv(np.mean([np.cov(z[y == c].T, bias=True) for c in (0, 1)], 0))
    v = rng.normal(size=(5, 3))
    wanted = [-min((row - m) @ inverse @ (row - m) for m in means) for row in v]
    score = novelty.mahalanobis(torch.from_numpy(z), torch.from_numpy(y))
    np.testing.assert_allclose(score(torch.from_numpy(v)), wanted, rtol=1e-4)


def test_the_nearest_neighbour_is_the_tenth() -> None:
    memory = torch.arange(101.0).unsqueeze(1)
    assert novelty.nearest_neighbour(memory, torch.tensor([[0.0], [50.0]])).tolist() == [-9, -5]


def test_the_density_has_the_bandwidth_of_the_largest_held_out_likelihood() -> None:
    generator = torch.Generator().manual_seed(0)
    seen, held_out = torch.randn(2, 200, 3, generator=generator)
    score = novelty.density(seen, held_out)
    best = float(score(held_out).mean())
    for std in (0.1, 0.3, 0.5, 1.0):
        rho = kdm.KDM.from_samples(seen, kdm.RBF.from_std(std))
        assert float(rho.log_prob(held_out).mean()) <= best + 1e-3
    assert score(torch.full((1, 3), 9.0)) < score(held_out).min()


def test_vectors_of_layers_have_normalised_moments_of_channels_and_the_latent_vector() -> None:
    encoder = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 1), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(32, 3)
    )
    x = torch.randint(256, (5, 1, 4, 4), dtype=torch.uint8)
    vectors = novelty.vectors(encoder, x)
    h = encoder[:2](x / 255).detach().flatten(2)
    moments = torch.cat([h.std(-1), h.mean(-1)], 1)
    moments = moments / moments.norm(dim=1, keepdim=True)
    torch.testing.assert_close(vectors["all layers"].values, torch.cat([moments, encoder(x / 255)], 1))
    torch.testing.assert_close(vectors["latent"].values, encoder(x / 255))
    squares = vectors["all layers"].weights.square()
    torch.testing.assert_close(squares[:4].sum(), squares[4:].sum())
    assert squares.mean() == pytest.approx(1)


def test_outsiders_are_made_of_the_images() -> None:
    x = torch.randint(256, (6, 1, 8, 8), dtype=torch.uint8)
    made = novelty.outsiders(x)
    assert (len(made["mixed"]), made["inverted"][0, 0, 0, 0]) == (3, 255 - x[0, 0, 0, 0])
    assert torch.equal(made["shuffled"].flatten(1).sort().values, x.flatten(1).sort().values)
    assert not torch.equal(made["shuffled"], x)
    assert {images.shape[1:] for images in made.values()} == {x.shape[1:]}


def test_smaller_images_are_padded_or_enlarged() -> None:
    x = torch.full((1, 1, 28, 28), 9, dtype=torch.uint8)
    padded, enlarged = (_fitted(x, Shape(3, 32), choice) for choice in (True, False))
    assert padded.shape == enlarged.shape == (1, 3, 32, 32)
    assert enlarged.min() == 9
    assert (padded[0, 0].sum(), padded[0, 0, 2:30, 2:30].min()) == (9 * 28 * 28, 9)


def line(model: str, seed: int, nll: float, ece: float, areas: dict[str, float]) -> dict[str, Any]:
    return {
        "dataset": "mnist",
        "model": model,
        "seed": seed,
        "settings": {"smoothing": 0.0},
        "calibrated_nll": nll,
        "calibrated_ece": ece,
        "novelty_auroc": {score: {"fashion_mnist": area} for score, area in areas.items()},
    }


def test_claims_pair_seeds_and_compare_with_the_best_rival() -> None:
    scores = {"KDM, all layers": 0.97, "log evidence, latent": 1.0}
    vectors = heads_report.groups(
        [
            line("dense", 0, 0.02, 0.001, {"KDM, all layers": 0.9}),
            line("kdm", 0, 0.03, 0.004, {**scores, "energy, latent": 0.975}),
            line("kdm", 1, 0.01, 0.008, {**scores, "energy, latent": 0.983}),
        ]
    )
    error, difference = heads_report.calibration_claims(vectors)
    assert (error.value, error.met, difference.met) == (pytest.approx(0.006), False, False)
    assert difference.values == pytest.approx([0.01])
    (novel,) = heads_report.novelty_claims(vectors)
    assert novel == ["mnist, kdm, against fashion_mnist", "≥ 0.99", "0.9700", "-0.0090", "yes, of 2 runs"]


@pytest.mark.usefixtures("quick")
def test_heads_are_measured_and_written(tmp_path: Path, few_digits: None) -> None:
    plan = images.plan(
        ["digits"],
        ["dense-alone", "kdm-alone"],
        ["paper"],
        data_dir="-",
        work_dir=tmp_path,
        runs=1,
        device="cpu",
    )
    report = heads.run(tmp_path, plan, verbose=False)
    dense, kdm_alone = read_rows(tmp_path / "table1-heads.jsonl")
    for row in (dense, kdm_alone):
        assert row["settings"]["smoothing"] == heads.SETTINGS["smoothing"]
        assert row["calibrated_accuracy"] == pytest.approx(row["test_accuracy"], abs=0.05)
        assert row["test_accuracy"] > 0.3
        assert row["calibrated_nll"] <= row["test_nll"] + 0.02
        assert all(0 <= value <= 1 for of in row["novelty_auroc"].values() for value in of.values())
    assert (dense["width"], dense["calibrated_accuracy"]) == (1, dense["test_accuracy"])
    common = {f"{score}, {kind}" for score in ("KDM", "Mahalanobis", "nearest neighbour") for kind in KINDS}
    assert set(dense["novelty_auroc"]) == {*common, "max-probability, latent", "energy, latent"}
    assert set(kdm_alone["novelty_auroc"]) == {*common, "max-probability, latent", "log evidence, latent"}
    assert [list(row[:2]) for row in report.rows] == [["digits", "dense-alone"], ["digits", "kdm-alone"]]
    assert "| digits | kdm-alone | 0 | KDM, all layers |" in (tmp_path / "table1-heads.md").read_text()
    assert heads.run(tmp_path, plan, verbose=False).rows == report.rows
    assert len(read_rows(tmp_path / "table1-heads.jsonl")) == 2


@pytest.mark.usefixtures("quick")
def test_settings_are_compared_without_test_images(
    tmp_path: Path, few_digits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("test images or other sets were read")

    monkeypatch.setattr(heads, "pictures", forbidden)
    monkeypatch.setattr(heads, "novel_images", forbidden)
    options: Any = {"data_dir": "-", "work_dir": tmp_path, "runs": 1, "device": "cpu"}
    plan = images.plan(["digits"], ["kdm-alone"], ["paper"], **options)
    heads.search(tmp_path, plan, {"smoothing": [0.1]}, verbose=False)
    rows = read_rows(tmp_path / "table1-heads-search.jsonl")
    assert [row["settings"]["smoothing"] for row in rows] == [0.1]
    assert "shuffled" in rows[0]["novelty_auroc"]["KDM, all layers"]
    assert "| digits | kdm-alone | 0.1 | 1 |" in (tmp_path / "table1-heads-search.md").read_text()
    kept = heads.NormalizedTrained(plan.jobs("digits", "paper")[0])
    z = encode(kept.new_encoder(), kept.data.x_test[:5])
    torch.testing.assert_close(z.std(1, correction=0), torch.ones(5), atol=0.01, rtol=0)
