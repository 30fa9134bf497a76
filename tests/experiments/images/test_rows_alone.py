"""Rows of the paper's algorithms alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kdmkit.experiments.common.lines import key_name
from kdmkit.experiments.images import Plan, claims, models, objectives, table1
from kdmkit.experiments.images.architectures import Shape, paper_encoder
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
