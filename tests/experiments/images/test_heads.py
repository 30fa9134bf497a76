"""Rows of the paper's algorithms alone; calibration by a temperature; scores of novelty."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kdmkit.experiments import images
from kdmkit.experiments.common import read_rows
from kdmkit.experiments.common.lines import key_name
from kdmkit.experiments.images import Plan, claims, heads, jobs, models, objectives, table1
from kdmkit.experiments.images.architectures import Shape, paper_encoder
from kdmkit.experiments.images.data import _fitted
from kdmkit.experiments.images.generation import GenerationJob
from kdmkit.experiments.images.recipes import (
    ALONE,
    MODELS,
    OWN,
    RECIPES,
    DecoderRecipe,
    Model,
    changed,
    recipe_for,
    recipe_of,
    settings,
    settings_of_phase,
)

# Fits take twice the time where annotations are checked.
pytestmark = pytest.mark.usefixtures("unchecked")


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


# ---- rows of the paper's algorithms


def test_a_kdm_alone_has_no_teacher_and_no_layout() -> None:
    recipe = changed(RECIPES["mnist", "paper"], {"layout_weight": 0.3})
    alone = recipe_of("kdm-alone", recipe)
    assert (alone.teaching, alone.head_weight, alone.layout_weight) == (0, 0, 0)
    assert recipe_of("kdm", recipe) == recipe
    y, logits = torch.tensor([3, 1]), torch.randn(2, 10)
    smooth = torch.full((2, 10), alone.smoothing / 10)
    smooth[torch.arange(2), y] += 1 - alone.smoothing
    torch.testing.assert_close(objectives.distillation_targets(logits, y, alone), smooth)
    # Its encoder is that of Enc+Dense alone, and not that of the other rows.
    other = recipe_of("dense-alone", recipe)
    assert settings_of_phase(alone, "encoder") == settings_of_phase(other, "encoder")
    assert settings_of_phase(alone, "encoder") != settings_of_phase(recipe, "encoder")


@torch.no_grad()
def test_a_kdm_alone_does_not_use_the_dense_head() -> None:
    """A head that answers nan changes nothing."""
    recipe = recipe_of("kdm-alone", RECIPES["digits", "paper"])
    kdm = models.KDMModel(paper_encoder(Shape(1, 8), recipe.latent), models.make_layer(recipe))
    head = models.make_head(recipe)
    head[-1].bias.fill_(float("nan"))
    start = models.DenseModel(kdm.encoder, head, models.make_layout(Shape(1, 8), recipe))
    objective = objectives.Discriminative(kdm, start, recipe, None).eval()
    x, y = torch.rand(5, 1, 8, 8), torch.arange(5)
    target = objectives.smoothed(y, recipe)
    torch.testing.assert_close(objective(x, y), -(target * kdm.log_probs(x)).sum(-1), rtol=1e-4, atol=1e-4)


def test_kdms_of_other_sizes_can_share_an_encoder() -> None:
    recipe = recipe_of("kdm-alone", RECIPES["mnist", "paper"])
    other = changed(recipe, {"components": 64, "dense_components": recipe.components})
    assert settings_of_phase(recipe, "encoder") == settings_of_phase(other, "encoder")
    assert settings_of_phase(recipe, "kdm") != settings_of_phase(other, "kdm")
    sizes = [models.count_parameters(models.make_head(r)) for r in (recipe, other)]
    assert sizes[0] == sizes[1]
    assert "dense_components" not in settings(recipe)


def test_rows_alone_are_a_chain_of_their_own(digits: Plan) -> None:
    def jobs_of(encoder: Any) -> dict[Model, Any]:
        return {model: digits.jobs("digits", encoder, model)[0] for model in MODELS}

    tasks = {task.key["model"]: task for task in table1._chain(jobs_of("paper"))}
    assert list(tasks) == list(MODELS)
    assert tasks["kdm-alone"].after == tasks["dense-alone"].key
    assert tasks["dense-alone"].after is None
    residual = [task.key["model"] for task in table1._chain(jobs_of("resnet"))]
    assert not set(residual) & set(ALONE)


def test_rows_alone_have_recipes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OWN, ("digits", False), {"joint_epochs": 3})
    found = {model: recipe_for("digits", "paper", model) for model in MODELS}
    usual = RECIPES["digits", "paper"]
    assert found["kdm"] == found["dense"] == usual
    assert found["dense-alone"] == recipe_of("dense-alone", usual)
    assert found["kdm-alone"] == found["ml-kdm-alone"]
    assert found["kdm-alone"] == recipe_of("kdm-alone", changed(usual, {"joint_epochs": 3}))


def test_three_runs_are_each_others_critics(digits: Plan, tmp_path: Path) -> None:
    (run,) = digits.jobs("digits", "paper")
    recipe = DecoderRecipe(epochs=1, critics=2)
    jobs = [GenerationJob(replace(run, seed=seed), recipe, None) for seed in range(5)]
    assert [job.critics() for job in jobs] == [[1, 2], [0, 2], [0, 1], [4, 5], [3, 5]]
    tasks = {task.key["generator"]: task for task in table1.generators(jobs[1])}
    assert list(tasks) == ["ml-kdm", "vae", "ml-kdm-plain", "vae-plain"]
    models = [key_name(job.key("models")) for job in jobs[:3]]
    assert tasks["vae"].waits_for == {key_name(jobs[0].key("judge")), *models}
    assert tasks["vae-plain"].waits_for == tasks["vae"].waits_for | {key_name(tasks["vae"].key)}
    assert (tasks["vae"].key["half"], jobs[0].key("judge")["half"]) == (0, 1)
    plain = tasks["ml-kdm-plain"].key["drawing"]
    assert (plain["feature_weight"], plain["critics"], plain["critic_weight"]) == (0, 0, 0)


def test_claims_about_kdms_alone_pair_seeds() -> None:
    def line(model: str, accuracy: float, seed: int) -> dict[str, Any]:
        return {
            "dataset": "cifar10",
            "encoder": "paper",
            "model": model,
            "seed": seed,
            "test_accuracy": accuracy,
        }

    rows = [line("kdm-alone", 0.85, 0), line("kdm-alone", 0.86, 1), line("dense-alone", 0.851, 0)]
    found = {claim.what: claim for claim in claims._alone(rows)}
    assert found["cifar10: KDM alone, accuracy"].value == pytest.approx(0.855)
    behind = found["cifar10: KDM alone less Enc+Dense alone"]
    assert behind.values == pytest.approx([-0.001])
    assert behind.met


# ---- calibration


def test_a_temperature_undoes_a_scale() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(4000, 3, generator=generator)
    y = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(1)
    t = heads.temperature(3 * logits, y)
    assert t == pytest.approx(3, rel=0.1)
    before, after = heads.scores(3 * logits, y), heads.scores(3 * logits, y, t)
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
    score = heads.mahalanobis(torch.from_numpy(z), torch.from_numpy(y))
    np.testing.assert_allclose(score(torch.from_numpy(v)), wanted, rtol=1e-4)


def test_the_nearest_neighbour_is_the_tenth_on_the_sphere() -> None:
    angles = torch.linspace(0, 1, 101)
    memory = torch.stack([angles.cos(), angles.sin()], 1) * torch.rand(101, 1).add(0.5)
    found = heads._nearest(memory, torch.tensor([[7.0, 0.0]]))
    assert found.item() == pytest.approx(-2 * np.sin(0.09 / 2), rel=1e-3)


def test_smaller_images_are_padded_or_enlarged() -> None:
    x = torch.full((1, 1, 28, 28), 9, dtype=torch.uint8)
    padded, enlarged = (_fitted(x, Shape(3, 32), choice) for choice in (True, False))
    assert padded.shape == enlarged.shape == (1, 3, 32, 32)
    assert enlarged.min() == 9
    assert (padded[0, 0].sum(), padded[0, 0, 2:30, 2:30].min()) == (9 * 28 * 28, 9)


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
    dense, kdm = read_rows(tmp_path / "table1-heads.jsonl")
    for row in (dense, kdm):
        assert row["calibrated_accuracy"] == row["test_accuracy"] > 0.3
        assert row["calibrated_nll"] <= row["test_nll"] + 0.02
        assert all(0 <= value <= 1 for of in row["novelty_auroc"].values() for value in of.values())
    common = {"max-probability", "Mahalanobis", "nearest neighbour"}
    assert set(dense["novelty_auroc"]) == {*common, "energy"}
    assert set(kdm["novelty_auroc"]) == {*common, "log evidence"}
    assert [row[:2] for row in report.rows] == [["digits", "dense-alone"], ["digits", "kdm-alone"]]
    assert "| digits | kdm-alone | log evidence | noise |" in (tmp_path / "table1-heads.md").read_text()
    assert heads.run(tmp_path, plan, verbose=False).rows == report.rows
    assert len(read_rows(tmp_path / "table1-heads.jsonl")) == 2
