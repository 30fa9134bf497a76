"""The heads of the page "Heads by task": its code runs, and every head learns its task."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import typecheck

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "heads.md"
CELLS = re.findall(r"```\{code-cell\} ipython3\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names of the page after all of its cells."""
    names: dict[str, Any] = {}
    with typecheck.off():
        for code in CELLS:
            exec(compile(code, PAGE.name, "exec"), names)
    return names


def test_heads_have_ten_lines() -> None:
    heads = CELLS[1:]  # after the data and the loop
    assert len(heads) == 8
    assert all(len(code.splitlines()) <= 11 for code in heads)


def test_labels(page: dict[str, Any]) -> None:
    z, y, head = page["z"], page["y"], page["head"].requires_grad_(False)
    accuracy = (head(z).probs.argmax(-1) == y).float().mean()
    assert float(accuracy) > 0.85
    assert bool((head(z[:50]).log_evidence.amin() > head(z[:50] + 8).log_evidence.amax() + 50).item())
    drawn = head.reverse(torch.tensor([0, 1, 2])).sample((200,)).mean(0)
    assert torch.equal(drawn[:, :3].argmax(-1), torch.arange(3))


def test_proportions_teach_labels(page: dict[str, Any]) -> None:
    predicted = page["bag_head"](page["z"]).detach().probs
    shares = page["shares"]
    error = (predicted.reshape(30, 20, 3).mean(1) - shares).abs().mean()
    assert float(error) < 0.05


def test_several_labels(page: dict[str, Any]) -> None:
    rho, labels = page["several"](page["z"]).detach(), page["labels"]
    for name, truth in labels.items():
        assert float((rho.marginal(name).probs.argmax(-1) == truth).float().mean()) > 0.85


def test_regression_has_two_modes(page: dict[str, Any]) -> None:
    x, target = page["x"], page["target"]
    rho = page["predict"](x).detach()
    error = (rho.mean - target).square().mean().sqrt()
    gaussian = torch.distributions.Normal(rho.mean, rho.stddev).log_prob(target).mean()
    assert float(rho.log_prob(target).mean()) > float(gaussian) + 0.1
    # The best mean is sin x: what is left is the distance of the modes, and the noise.
    best = (x.sin() - target).square().mean().sqrt()
    assert float(error) < 1.1 * float(best)


def test_what_else_works(page: dict[str, Any]) -> None:
    """Mixed precision, averages of weights, clipped gradients: as for any module."""
    z, y, head = page["z"], page["y"], page["head"]
    exact = head(z).log_prob(y).detach()
    with torch.autocast("cpu", torch.bfloat16):
        rough = head(z).log_prob(y).detach()
        latent = head(z.bfloat16()).log_prob(y).detach()
    assert rough.dtype == torch.float32
    assert float((rough - exact).abs().amax()) < 1e-4
    assert float((latent.float() - exact).abs().mean()) < 0.05
    trained = copy.deepcopy(head).requires_grad_()
    decay = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    average = torch.optim.swa_utils.AveragedModel(trained, multi_avg_fn=decay)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=0.01, weight_decay=0.0)
    for _ in range(5):
        optimizer.zero_grad()
        (-trained(z).log_prob(y)).mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(trained.parameters(), 0.1)
        assert bool(norm.isfinite())
        optimizer.step()
        average.update_parameters(trained)
    assert bool(average(z).log_prob(y).isfinite().all())
    # Weight decay pulls components towards 0.
    decayed = copy.deepcopy(head).requires_grad_()
    optimizer = torch.optim.AdamW(decayed.parameters(), lr=0.01, weight_decay=1.0)
    optimizer.zero_grad()
    (0 * decayed(z).log_prob(y)).sum().backward()
    optimizer.step()
    before, after = head.components["x"], decayed.components["x"]
    torch.testing.assert_close(after, 0.99 * before)
