"""Questions to a table whose distribution is known, against rows drawn from it and filtered."""

from typing import Any

import numpy as np
import pytest
import torch

from estimators.table.hand_made import hand_made
from kdmkit.distributions.events import as_event
from kdmkit.estimators.table.answering.answer import Answer
from kdmkit.estimators.table.answering.whole_rows import RowSampler

N = 200_000
Frame = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def engine() -> Any:
    return hand_made()


@pytest.fixture(scope="module")
def rows(engine: Any) -> Frame:
    return engine.schema.decode(engine.joint.sample((N,), generator=torch.Generator().manual_seed(0)))


def generators(random_state: Any) -> torch.Generator:
    return torch.Generator().manual_seed(random_state or 0)


def ask(engine: Any, target: str, **given: Any) -> Answer:
    posterior, log_evidence = engine.query(engine.column("target", target), as_event(given))
    return Answer(posterior, log_evidence, generators, engine, as_event(given))


def holds(rows: Frame, name: str, given: Any) -> np.ndarray:
    """Which rows satisfy a condition."""
    if isinstance(given, tuple):
        low, high = (np.inf * sign if end is None else end for end, sign in zip(given, (-1, 1), strict=True))
        return (rows[name] >= low) & (rows[name] <= high)
    return np.isin(rows[name], given)


GIVENS: list[dict[str, Any]] = [
    {},
    {"size": (0.5, 1.5)},
    {"size": (None, 0.9), "shop": ["north", "south"]},
    {"shop": "south", "size": (0.8, None)},
    {"weight": (10.5, 13.0), "shop": ["south", "east"]},
]


@pytest.mark.parametrize("given", GIVENS)
@pytest.mark.parametrize("target", ["size", "weight", "shop"])
def test_answers_agree_with_filtered_rows(
    engine: Any, rows: Frame, given: dict[str, Any], target: str
) -> None:
    given = {name: value for name, value in given.items() if name != target}
    kept = np.ones(N, dtype=bool)
    for name, value in given.items():
        kept &= holds(rows, name, value)
    found, answer = rows[target][kept], ask(engine, target, **given)
    n = len(found)
    assert n > 5000
    assert answer.log_evidence == pytest.approx(np.log(kept.mean()), abs=5 / np.sqrt(n))
    if target == "shop":
        for level, p in answer.probs.items():
            assert p == pytest.approx((found == level).mean(), abs=4.5 * np.sqrt(p * (1 - p) / n))
        return
    assert answer.mean == pytest.approx(found.mean(), abs=4.5 * found.std() / np.sqrt(n))
    assert answer.std == pytest.approx(found.std(), rel=0.03)
    for q in (0.05, 0.5, 0.95):
        assert (found <= answer.quantile(q)).mean() == pytest.approx(q, abs=4.5 * np.sqrt(q * (1 - q) / n))
    low, high = answer.interval(0.8)
    assert answer.probability((low, high)) == pytest.approx(0.8, abs=1e-6)
    inside = ((found >= 1.1) & (found <= 11.5)).mean()
    assert answer.probability((1.1, 11.5)) == pytest.approx(inside, abs=4.5 * np.sqrt(0.25 / n))


def test_a_set_of_numbers_is_a_mixture_of_its_values(engine: Any) -> None:
    one, two, both = (ask(engine, "weight", size=given) for given in (0.2, 1.1, [0.2, 1.1]))
    shares = np.exp([one.log_evidence, two.log_evidence])
    assert both.log_evidence == pytest.approx(np.log(shares.sum()))
    assert both.mean == pytest.approx((shares @ [one.mean, two.mean]) / shares.sum())


EVENTS: list[dict[str, Any]] = [
    {"weight": (None, 11.0)},
    {"shop": ["south", "north"]},
    {"weight": (10.5, None), "shop": "south"},
]


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("given", [{}, {"size": (0.5, 1.5)}])
def test_events_agree_with_filtered_rows(
    engine: Any, rows: Frame, event: dict[str, Any], given: dict[str, Any]
) -> None:
    kept = np.ones(N, dtype=bool)
    for name, value in given.items():
        kept &= holds(rows, name, value)
    happened = kept.copy()
    for name, value in event.items():
        happened &= holds(rows, name, value)
    share, n = happened.sum() / kept.sum(), kept.sum()
    p, _ = engine.event(as_event(event), as_event(given))
    assert p == pytest.approx(share, abs=4.5 * np.sqrt(p * (1 - p) / n))


@pytest.mark.parametrize(
    "given",
    [
        {"size": (0.5, 1.2)},
        {"size": (0.5, 1.2), "shop": ["south", "east"]},
        {"size": (None, 0.4), "weight": (10.2, None), "shop": "north"},
        {"size": [0.2, 1.1], "shop": ["south", "north"]},
    ],
)
def test_rows_drawn_inside_ranges_agree_with_filtered_ones(
    engine: Any, rows: Frame, given: dict[str, Any]
) -> None:
    n = 8000
    drawn = engine.schema.decode(
        RowSampler(engine, as_event(given)).draw(n, torch.Generator().manual_seed(1))
    )
    for name, value in given.items():
        assert holds(drawn, name, value).all()
    if isinstance(given["size"], list):
        posterior, _ = engine.query(engine.column("target", "weight"), as_event(given))
        assert drawn["weight"].mean() == pytest.approx(float(posterior.mean()), abs=0.1)
        return
    kept = np.all([holds(rows, name, value) for name, value in given.items()], 0)
    for name in ("size", "weight"):
        expected = rows[name][kept]
        for q in (0.1, 0.5, 0.9):
            error = 4.5 * np.sqrt(q * (1 - q) * (1 / n + 1 / kept.sum()))
            assert (drawn[name] <= np.quantile(expected, q)).mean() == pytest.approx(q, abs=error)
    assert (drawn["shop"] == "south").mean() == pytest.approx(
        (rows["shop"][kept] == "south").mean(), abs=0.02
    )


def test_rows_with_missing_cells(engine: Any) -> None:
    frame = {
        "size": [0.1, None, 1.0, None],
        "weight": [None, 12.1, 11.0, None],
        "shop": [None, "east", None, None],
    }
    encoded = engine.schema.encode(frame)
    column = engine.column("target", "shop")
    found = engine.rows.by_groups(column, encoded, lambda rho: rho.probs())
    for row, known in enumerate(({"size": 0.1}, {"weight": 12.1}, {"size": 1.0, "weight": 11.0}, {})):
        alone, _ = engine.query(column, as_event(known))
        assert found[row] == pytest.approx(alone.probs(), abs=1e-12)
    log_prob = engine.rows.log_prob(encoded)
    size, _ = engine.query(engine.column("target", "size"), as_event({}))
    assert float(log_prob[0]) == pytest.approx(float(size.log_density(0.1)))
    assert float(log_prob[3]) == pytest.approx(0.0, abs=1e-12)


def test_impossible_evidence_raises() -> None:
    engine = hand_made(["north", "south", "east", "west"], smoothing=0.0)
    with pytest.raises(ValueError, match="given: expected values that can occur together"):
        engine.query(engine.column("target", "size"), as_event({"shop": "west"}))


def test_evidence_far_in_the_tail_is_exact(engine: Any) -> None:
    """The last component holds nearly all of the mass above 100."""
    assert ask(engine, "size", weight=(100.0, None)).mean == pytest.approx(1.0, abs=1e-9)


OWN: list[tuple[str, dict[str, Any]]] = [
    ("size", {"size": (0.5, 1.4)}),
    ("size", {"size": (1.2, None), "shop": ["south", "east"]}),
    ("weight", {"weight": (None, 11.3), "size": (0.5, 1.5)}),
    ("shop", {"shop": ["north", "south"], "size": (0.2, None)}),
]


@pytest.mark.parametrize(("target", "given"), OWN)
def test_conditions_on_the_target_agree_with_filtered_rows(
    engine: Any, rows: Frame, target: str, given: dict[str, Any]
) -> None:
    kept = np.all([holds(rows, name, value) for name, value in given.items()], 0)
    found, answer, n = rows[target][kept], ask(engine, target, **given), int(kept.sum())
    assert answer.log_evidence == pytest.approx(np.log(kept.mean()), abs=5 / np.sqrt(n))
    assert answer.probability(given[target]) == pytest.approx(1.0, abs=1e-6)
    drawn = answer.sample(500, random_state=1)
    assert holds({target: drawn}, target, given[target]).all()
    if target == "shop":
        assert answer.probs["east"] == 0
        assert answer.probs["north"] == pytest.approx((found == "north").mean(), abs=4.5 * np.sqrt(0.25 / n))
        return
    assert answer.mean == pytest.approx(found.mean(), abs=4.5 * found.std() / np.sqrt(n))
    assert answer.std == pytest.approx(found.std(), rel=0.05)
    for q in (0.05, 0.5, 0.95):
        assert (found <= answer.quantile(q)).mean() == pytest.approx(q, abs=4.5 * np.sqrt(q * (1 - q) / n))
    assert sum(answer.bars().values()) == pytest.approx(0.99, abs=1e-3)


def test_conditions_on_the_target_far_in_the_tail(engine: Any) -> None:
    """Above 20 there is the tail of the component at 14 with σ = .2: 20 + σ²/6 on average."""
    answer = ask(engine, "weight", weight=(20.0, None))
    assert answer.log_evidence < -400
    assert answer.mean == pytest.approx(20 + 0.04 / 6, rel=1e-4)
    assert 20 < answer.interval(0.9)[0] < answer.interval(0.9)[1] < 20.03


def test_the_target_is_one_of_some_numbers(engine: Any) -> None:
    one, both, free = ask(engine, "size", size=1.0), ask(engine, "size", size=[1.0, 0.0]), ask(engine, "size")
    assert (one.mean, one.median, one.sample(2).tolist()) == (1.0, 1.0, [1.0, 1.0])
    densities = np.exp([free.log_density(0.0), free.log_density(1.0)])
    assert both.probability(1.0) == pytest.approx(densities[1] / densities.sum())
    assert both.probability((0.5, None)) == pytest.approx(both.probability(1.0))


@pytest.mark.parametrize(
    ("event", "given"),
    [
        ({"size": (0.9, None)}, {"size": (0.5, 1.5)}),
        ({"size": (0.9, None), "shop": ["south", "east"]}, {"size": (None, 1.5), "shop": ["north", "south"]}),
    ],
)
def test_events_on_given_columns_agree_with_filtered_rows(
    engine: Any, rows: Frame, event: dict[str, Any], given: dict[str, Any]
) -> None:
    kept = np.all([holds(rows, name, value) for name, value in given.items()], 0)
    happened = kept & np.all([holds(rows, name, value) for name, value in event.items()], 0)
    p, n = engine.event(as_event(event), as_event(given))[0], kept.sum()
    assert p == pytest.approx(happened.sum() / n, abs=4.5 * np.sqrt(p * (1 - p) / n))
    assert engine.event(as_event({"size": (3.0, None)}), as_event({"size": (None, 1.0)}))[0] == 0


def test_marginals_agree_with_queries(engine: Any) -> None:
    given = {"size": (0.5, 1.4), "shop": ["south", "east"]}
    columns = list(engine.columns.values())
    marginals = engine.marginals(columns, as_event(given))
    for column in columns:
        alone, log_evidence = engine.query(column, as_event(given))
        assert marginals.log_evidence == pytest.approx(log_evidence)
        if column.codec.levels is None:
            assert float(marginals.posteriors[column.name].mean()) == pytest.approx(float(alone.mean()))
        else:
            assert marginals.posteriors[column.name].probs() == pytest.approx(alone.probs())


def test_unknown_columns_are_told_with_the_nearest(engine: Any) -> None:
    with pytest.raises(ValueError, match=r"got 'wieght' \(did you mean 'weight'\?\)"):
        engine.query(engine.column("target", "size"), as_event({"wieght": 1}))


def test_answers_refuse_what_a_column_does_not_have(engine: Any) -> None:
    shop, size = ask(engine, "shop"), ask(engine, "size")
    with pytest.raises(
        TypeError, match="mean of 'shop': expected a numeric column, got one of kind category"
    ):
        _ = shop.mean
    with pytest.raises(TypeError, match="probs of 'size'"):
        _ = size.probs
    with pytest.raises(ValueError, match="coverage: expected 0 < coverage < 1, got 1"):
        size.interval(1)
    assert shop.interval(0.9) == list(shop.probs)
    assert shop.interval(0.3) == ["south"]


def test_answers_print_and_draw(engine: Any) -> None:
    shop, size = ask(engine, "shop", size=(0.5, 1.5)), ask(engine, "size", shop="south")
    assert "south" in repr(shop)
    assert "median" in repr(size)
    assert sum(size.bars().values()) == pytest.approx(0.99, abs=1e-4)
    assert set(shop.sample(50)) <= {"north", "south", "east"}
    assert size.sample(5, random_state=1).tolist() == size.sample(5, random_state=1).tolist()
    assert size.mode == pytest.approx(1.0)
    assert shop.to_dict()["probs"].keys() == {"north", "south", "east"}


def test_answers_draw_themselves(engine: Any) -> None:
    mpl = pytest.importorskip("matplotlib")
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    ax = ask(engine, "shop").plot()
    assert len(ax.patches) == 3
    plt.close("all")
