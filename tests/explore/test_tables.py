"""What the page shows of a table is what the library answers."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from pydantic import TypeAdapter
from starlette.testclient import TestClient

import kdmkit as kdm
from kdmkit.explore import endpoints as r
from kdmkit.explore.table_page import shown

pytestmark = pytest.mark.usefixtures("unchecked")

GIVEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "a level": ({"size": {"values": ["huge"]}}, {"size": "huge"}),
    "levels and a range": (
        {"size": {"values": ["huge", "large"]}, "items": {"range": {"low": 15, "high": 25}}},
        {"size": ["huge", "large"], "items": (15, 25)},
    ),
    "an open range": ({"weight": {"range": {"low": 3.5}}}, {"weight": (3.5, None)}),
    "a value": ({"weight": {"values": [4.25]}}, {"weight": 4.25}),
    "dates": (
        {"sent": {"range": {"low": "2024-01-10", "high": "2024-02-01"}}},
        {"sent": ("2024-01-10", "2024-02-01")},
    ),
    "a missing cell": (
        {"weight": {"missing": True}, "fragile": {"values": [True]}},
        {"weight": kdm.Missing, "fragile": True},
    ),
    "a missing cell of a complete column": (
        {"stars": {"missing": True}, "fragile": {"values": [True]}},
        {"fragile": True},
    ),
}


def ask(client: TestClient, path: str, body: Any = None, code: int = 200) -> Any:
    url = f"/api/models/parcels{path}"
    response = client.get(url) if body is None else client.post(url, json=body)
    assert response.status_code == code, response.text
    return response.json()


@pytest.mark.parametrize("case", GIVEN)
def test_cards_have_the_numbers_of_queries(client: TestClient, table: kdm.KDMTable, case: str) -> None:
    asked, given = GIVEN[case]
    found = ask(client, "/marginals", {"given": asked})
    r.Marginals.model_validate(found)
    assert set(found["cards"]) == set(table.marginals()) - set(given)
    for name, card in found["cards"].items():
        answer = table.query(name, given)
        assert found["log_evidence"] == shown(answer.log_evidence)
        printed = repr(answer)
        is_complete = table.columns_[name].presence is None
        assert card["missing"] == (None if is_complete else f"{answer.p_missing:.1%}")
        if card["mean"] is not None:
            assert f"mean: {card['mean']}\n" in printed
        if answer.ordered:
            assert card["interval"] == [shown(end) for end in answer.interval(0.9)]
        if card["shares"] is not None:
            assert card["shares"] == [f"{answer.probs[level]:.1%}" for level in answer.levels or ()]


@pytest.mark.parametrize("case", ["levels and a range", "an open range", "a value", "dates"])
def test_held_cards_have_the_numbers_of_queries(client: TestClient, table: kdm.KDMTable, case: str) -> None:
    asked, given = GIVEN[case]
    found = ask(client, "/held", {"given": asked})
    TypeAdapter(r.Conditioned).validate_python(found)
    assert set(found["cards"]) == set(given)
    for name, card in found["cards"].items():
        answer = table.query(name, given)
        if card["mean"] is not None:
            assert card["mean"] == shown(answer.mean)
        if answer.ordered:
            assert card["interval"] == [shown(end) for end in answer.interval(0.9)]
        if card["shares"] is not None:
            assert card["shares"] == [f"{answer.probs[level]:.1%}" for level in answer.levels or ()]
        assert sum(card["probabilities"]) == pytest.approx(1.0, abs=0.01)


def test_one_level_needs_no_held_card(client: TestClient) -> None:
    assert ask(client, "/held", {"given": {"size": {"values": ["huge"]}}}) == {"cards": {}}


def test_ranges_of_dates_are_converted_once(table: kdm.KDMTable, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (table.query("sent", {"size": size}) for size in ("huge", "small"))
    bins = tuple(first.bins(7))
    first.histogram(bins)
    expected = [second.probability(span) for span in bins]
    codec = table.schema_.columns["sent"].codec
    monkeypatch.setattr(type(codec), "read", lambda *_: pytest.fail("converted again"))
    assert second.histogram(bins) == pytest.approx(expected)


@pytest.mark.parametrize("case", ["levels and a range", "a value"])
def test_bars_are_probabilities_of_their_ranges(client: TestClient, table: kdm.KDMTable, case: str) -> None:
    asked, given = GIVEN[case]
    columns = {column["name"]: column for column in ask(client, "")["columns"]}
    for name, card in ask(client, "/marginals", {"given": asked})["cards"].items():
        answer, bins = table.query(name, given), columns[name]["bins"]
        if bins is None:
            continue
        assert len(card["probabilities"]) == len(bins) == len(columns[name]["labels"])
        for place in range(0, len(bins), 15):
            wanted = answer.probability(tuple(bins[place]))
            assert card["probabilities"][place] == pytest.approx(wanted, abs=2e-5)
        told = 0.0 if card["beyond"] is None else float(card["beyond"].rstrip("%")) / 100
        assert sum(card["probabilities"]) + told == pytest.approx(1, abs=0.011)


@pytest.mark.parametrize("case", GIVEN)
def test_the_text_of_the_question_asks_the_same(client: TestClient, table: kdm.KDMTable, case: str) -> None:
    asked, given = GIVEN[case]
    texts = ask(client, "/marginals", {"given": asked, "target": "items"})["texts"]
    answer = eval(texts["python"], {"table": table})
    assert answer.mean == pytest.approx(table.query("items", given).mean)
    assert texts["shell"].startswith("kdmkit ask parcels 'P(items")


def test_the_description_of_the_table(client: TestClient, table: kdm.KDMTable) -> None:
    found = ask(client, "")
    view = r.TableView.model_validate(found)
    assert view.left_out == ["note"]
    assert view.rows == 120
    assert {column.name: column.kind for column in view.columns} == {
        name: table.columns_[name].kind for name in table.marginals()
    }
    by_name = {column.name: column for column in view.columns}
    assert by_name["size"].levels == ["huge", "large", "small"]
    assert by_name["stars"].levels == [1, 2, 3, 4, 5]
    assert by_name["items"].levels is None


def test_probabilities_are_told_but_no_densities(client: TestClient) -> None:
    rows = ask(client, "/marginals", {"given": GIVEN["a level"][0]})
    assert rows["probability"].endswith("%")
    assert ask(client, "/marginals", {"given": GIVEN["a value"][0]})["probability"] is None


def test_all_columns_may_be_known(client: TestClient, table: kdm.KDMTable) -> None:
    row = {"size": "huge", "weight": 9.0, "items": 20, "stars": 3, "fragile": True, "sent": "2024-02-02"}
    asked = {name: {"values": [value]} for name, value in row.items()}
    found = ask(client, "/marginals", {"given": asked})
    assert found["cards"] == {}
    assert found["log_evidence"] == shown(table.query("size", row).log_evidence)


def test_links_are_those_of_the_tree(client: TestClient, table: kdm.KDMTable) -> None:
    found = r.Links.model_validate(ask(client, "/links"))
    dependence = table.dependence(n_samples=2)
    assert {frozenset(link.columns) for link in found.links} == {frozenset(pair) for pair in dependence.links}
    assert len(found.links) >= len(found.columns) - 1


def test_the_column_that_tells_most(client: TestClient, table: kdm.KDMTable) -> None:
    found = ask(client, "/next", {"target": "size", "given": {"size": {"values": ["huge"]}}})
    r.NextColumns.model_validate(found)
    assert found["columns"][0]["column"] == "weight"
    low, high = found["columns"][0]["interval"]
    assert 0 < low < found["columns"][0]["information"] < high
    assert ask(client, "/next", {"target": "colour"}, 422)["error"].startswith("target: expected")


def test_draws_satisfy_what_is_given(client: TestClient) -> None:
    given = GIVEN["levels and a range"][0]
    found = r.DrawnRows.model_validate(ask(client, "/draws", {"given": given, "n": 30, "seed": 1}))
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    assert len(rows) == 30
    assert {row["size"] for row in rows} <= {"huge", "large"}
    assert all(15 <= float(row["items"]) <= 25 for row in rows)


def test_draws_as_csv(client: TestClient) -> None:
    url, body = "/api/models/parcels/draws.csv", {"n": 7, "seed": 1}
    response = client.post(url, json=body)
    assert response.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(response.text)))
    assert len(rows) == 7
    assert rows[0]["size"] == ask(client, "/draws", body)["rows"][0][0]


def test_surprising_cells_of_a_row_are_marked(client: TestClient, table: kdm.KDMTable) -> None:
    pytest.importorskip("pyarrow")
    text = "weight,size,items,other\n,small,20,x\n30,small,20,y\n"
    found = r.Explained.model_validate(ask(client, "/explain", {"csv": text, "row": 1}))
    assert found.n_rows == 2
    assert found.cells[0].column == "weight"
    assert found.cells[0].surprising
    explained = table.explain({"weight": 30, "size": "small", "items": 20})
    assert [cell.probability for cell in found.cells] == pytest.approx([c.probability for c in explained])
    assert [
        cell.column for cell in r.Explained.model_validate(ask(client, "/explain", {"csv": text})).cells
    ] != []
    first = {cell["column"]: cell for cell in ask(client, "/explain", {"csv": text})["cells"]}
    assert (first["weight"]["value"], first["weight"]["known"]) == ("missing", None)


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "size\n", "size\n1,2,3\n4\n", "\x00"])
def test_rows_that_cannot_be_read(client: TestClient, text: str) -> None:
    pytest.importorskip("pyarrow")
    assert ask(client, "/explain", {"csv": text}, 422)["error"].startswith("csv: expected")


def test_answers_to_the_same_question_are_kept(client: TestClient, table: kdm.KDMTable) -> None:
    first = ask(client, "/marginals", {"given": {"items": {"range": {"low": 3}}}})
    assert ask(client, "/marginals", {"given": {"items": {"range": {"low": 3}}}}) == first


def test_information_given_evidence(table: kdm.KDMTable) -> None:
    alone = table.information("size", n_samples=300)
    assert next(iter(alone)) == "weight"
    dependence = table.dependence()
    assert alone.intervals["weight"] == dependence.interval("weight", "size")
    assert (dependence.information[dependence.names.index("size")] == alone["weight"]).any()
    known = table.information("size", given={"weight": 9.0}, n_samples=300)
    assert "weight" not in known
    assert max(known.values()) < alone["weight"]
    with pytest.raises(ValueError, match="given: expected nothing about the target"):
        table.information("size", given={"size": "huge"})


def test_information_given_a_union_of_boxes(table: kdm.KDMTable) -> None:
    given = {"sent": ("2024-01-03", "2024-01-05")}
    found = table.information("fragile", given, n_samples=2)
    assert set(found) == {"size", "weight", "items", "stars"}


def test_conditions_that_are_unlike_the_data_are_told(client: TestClient) -> None:
    usual = ask(client, "/marginals", {"given": {"weight": {"range": {"low": 3.5}}}})
    assert not usual["unusual"]
    with pytest.warns(UserWarning, match="between the least and the greatest of the data"):
        found = ask(client, "/marginals", {"given": {"weight": {"values": [1000]}}})
    assert found["unusual"]
