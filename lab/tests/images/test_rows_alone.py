"""Rows of the paper's algorithms alone, and the tasks of a table."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kdmlab.common.lines import key_name
from kdmlab.images import Plan, claims, jobs, models, objectives, phases, table1
from kdmlab.images.architectures import Shape, paper_encoder
from kdmlab.images.generation import GenerationJob
from kdmlab.images.recipes import (
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
    z, y = torch.randn(recipe.components, recipe.latent), torch.arange(recipe.components) % 10
    layer = models.make_layer(recipe).initialize(z, y)
    kdm = models.KDMModel(paper_encoder(Shape(1, 8), recipe.latent), layer)
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
    assert not {"dense_components", "sigma_start"} & set(settings(recipe))


def test_the_first_bandwidth_can_be_wider(few_digits: None, digits: Plan) -> None:
    (job,) = digits.jobs("digits", "paper")
    results = []
    for start in (1.0, 2.0):
        trained = jobs.Trained(replace(job, recipe=changed(job.recipe, {"sigma_start": start})))
        dense, kdm = trained._new_dense(), trained._new_kdm()
        kdm.encoder.load_state_dict(dense.encoder.state_dict())
        phases.place_components(kdm, trained.data, trained.setting)
        results.append(float(kdm.layer.kernel("x").sigma.detach()))
    assert results[1] == pytest.approx(2 * results[0], rel=1e-5)
    other = changed(job.recipe, {"sigma_start": 2})
    assert settings_of_phase(other, "dense") == settings_of_phase(job.recipe, "dense")
    assert settings_of_phase(other, "kdm") != settings_of_phase(job.recipe, "kdm")


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
    results = {model: recipe_for("digits", "paper", model) for model in MODELS}
    usual = RECIPES["digits", "paper"]
    assert results["kdm"] == results["dense"] == usual
    assert results["dense-alone"] == recipe_of("dense-alone", usual)
    assert results["kdm-alone"] == results["ml-kdm-alone"]
    assert results["kdm-alone"] == recipe_of("kdm-alone", changed(usual, {"joint_epochs": 3}))


def test_what_draws_waits_for_judge_and_kdm(digits: Plan) -> None:
    (run,) = digits.jobs("digits", "paper")
    job = GenerationJob(run, DecoderRecipe(epochs=1), None)
    tasks = {task.key["generator"]: task for task in table1._drawing(job)}
    assert list(tasks) == ["classifier", "ml-kdm", "vae", "ml-kdm-plain", "vae-plain"]
    assert tasks["vae"].waits_for == {key_name(job.key("judge")), key_name(job.key("classifier"))}
    assert tasks["vae-plain"].waits_for == tasks["vae"].waits_for | {key_name(tasks["vae"].key)}
    assert (tasks["vae"].key["half"], job.key("judge")["half"]) == (0, 1)
    weights = {name: task.key["drawing"].get("feature_weight") for name, task in tasks.items()}
    assert weights == {"classifier": None, "ml-kdm": 1, "vae": 1, "ml-kdm-plain": 0, "vae-plain": 0}


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
    results = {claim.what: claim for claim in claims._alone(rows)}
    assert results["cifar10: KDM alone, accuracy"].value == pytest.approx(0.855)
    behind = results["cifar10: KDM alone less the best Enc+Dense"]
    assert behind.values == pytest.approx([-0.001])
    assert behind.met
    # The other recipe of Enc+Dense is better.
    results = {claim.what: claim for claim in claims._alone([*rows, line("dense", 0.853, 0)])}
    behind = results["cifar10: KDM alone less the best Enc+Dense"]
    assert behind.values == pytest.approx([-0.003])
    assert not behind.met
