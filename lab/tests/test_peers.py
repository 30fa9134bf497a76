"""Other libraries beside kdmkit: questions, the worker, the report."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from kdmlab.peers import experiment, worker
from kdmlab.peers.environments import LIBRARIES
from kdmlab.peers.model import Array, Box, Codes, NotOffered, Peer, Rows, holds, load_peer, normal_mass
from kdmlab.peers.questions import QUESTIONS


class Counts(Peer):
    """Shares of rows: what `mass` gives can be compared with counting."""

    def fit(self, rows: Rows) -> None:
        self.rows = rows

    def mass(self, box: Box) -> float:
        return float(holds([box], self.rows).mean())

    def draw(self, n: int, given: Box | None = None) -> Rows:
        index = np.flatnonzero(holds([given or {}], self.rows))
        chosen = np.random.default_rng(0).choice(index, n)
        return {name: column[chosen] for name, column in self.rows.items()}


def small_rows(n: int = 300) -> Rows:
    """Rows with the columns that the questions name."""
    rng = np.random.default_rng(0)
    age = rng.integers(20, 60, n).astype(float)
    age[:20] = 40.0

    def texts(*levels: str) -> Array:
        return rng.choice(levels, n).astype(object)

    return {
        "age": age,
        "hours_per_week": rng.integers(20, 60, n).astype(float),
        "education": texts("Bachelors", "Masters", "Doctorate", "HS-grad"),
        "occupation": texts("Sales", "Exec-managerial", "Craft-repair"),
        "sex": texts("Female", "Male"),
        "income": np.where(age + rng.normal(0, 10, n) > 45, ">50K", "<=50K").astype(object),
    }


@pytest.mark.parametrize("name", [key for key in QUESTIONS if QUESTIONS[key].among(small_rows()) is not None])
def test_sums_and_ratios_of_masses_are_shares(name: str) -> None:
    rows, peer = small_rows(), Counts(0)
    peer.fit(rows)
    question = QUESTIONS[name]
    if name in ("a column above another", "information of two columns"):
        with pytest.raises(NotOffered):
            question.ask(peer)
        return
    assert question.ask(peer) == pytest.approx(question.among(rows))


def test_draws_that_break_their_condition_are_no_answer() -> None:
    class Careless(Counts):
        def draw(self, n: int, given: Box | None = None) -> Rows:
            return super().draw(n)

    peer = Careless(0)
    peer.fit(small_rows())
    with pytest.raises(ValueError, match="of the draws satisfy"):
        QUESTIONS["draws given cells"].ask(peer)


def test_codes_return_the_rows() -> None:
    rows = small_rows(20)
    codes = Codes(rows)
    again = codes.rows(codes.matrix(rows))
    assert all(np.array_equal(again[name], rows[name]) for name in rows)
    assert codes.code("sex", "unseen") == 2.0


def test_normal_mass() -> None:
    inside = normal_mass(-1.0, 1.0, np.zeros(1), np.ones(1))
    assert inside == pytest.approx(math.erf(1 / math.sqrt(2)))


def test_the_worker_measures_kdmkit_and_the_report_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kdmkit import KDMTable

    def short(seed: int) -> Peer:
        peer = load_peer("kdm", seed)
        monkeypatch.setattr(
            peer, "fit", lambda rows: setattr(peer, "table", _short_fit(KDMTable, rows)), raising=True
        )
        return peer

    monkeypatch.setattr(worker, "load_peer", lambda name, seed: short(seed))
    rows = small_rows()
    data = {
        "seed": 0,
        "packages": LIBRARIES["kdm"].packages,
        "questions": True,
        "train": worker.as_lists(rows),
        "test": worker.as_lists({name: column[:50] for name, column in rows.items()}),
        "asked": {
            "target": "income",
            "levels": ["<=50K", ">50K"],
            "given": ["age", "sex"],
            "rows": [0, 1, 2],
        },
    }
    table, answers = tmp_path / "table.json", tmp_path / "answers.json"
    table.write_text(json.dumps(data))
    worker.main("kdm", table, answers)
    measured = json.loads(answers.read_text())

    assert all(answer["value"] is not None for answer in measured["questions"].values())
    assert measured["asked"]["value"]["log_loss"] < math.log(2)
    line = {
        **{"format": 1, "dataset": "adult", "library": "kdm", "settings": {}, **measured, "c2st": 0.9},
        "shares": {key: question.among(rows) for key, question in QUESTIONS.items()},
        **{"seconds": 1.0, "finished": "2026-11-20", "machine": {"cpu": "a"}, "versions": {"kdmkit": "0"}},
    }
    (tmp_path / "peers.jsonl").write_text(json.dumps(line) + "\n")
    text = experiment.summarize(tmp_path).markdown()
    assert f"| answered, of {len(QUESTIONS)} |  | {len(QUESTIONS)} |" in text
    assert "| kdmkit |" in text
    assert "Errors" not in text


def _short_fit(table: type, rows: Rows) -> object:
    import pandas as pd

    return table(n_components=8, max_epochs=5, random_state=0, device="cpu").fit(pd.DataFrame(rows))


def test_a_failed_call_is_recorded() -> None:
    def fails() -> None:
        raise ValueError("no such level")

    def not_offered() -> None:
        raise NotOffered

    assert worker.timed(fails) == {"value": None, "error": "ValueError: no such level"}
    assert worker.timed(not_offered) == {"value": None}
    assert worker.timed(lambda: 3)["value"] == 3
