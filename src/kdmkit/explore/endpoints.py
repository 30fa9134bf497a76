"""The API of the page: the forms of requests and answers, and the endpoints.

Requests that do not have one of these forms are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from kdmkit.kernels import Missing

#: Limits of one request.
MOST_ROWS, MOST_COLUMNS, MOST_VALUES, MOST_TEXT, MOST_PIXELS = 10_000, 5_000, 1_000, 200_000, 65_536
#: Rows in the body of a request, and their cells.
MOST_ROWS_OF_BODY, MOST_CELLS = 200_000, 10_000_000

_Text = Annotated[StrictStr, Field(max_length=1_000)]
_Number = Annotated[StrictFloat, Field(allow_inf_nan=False)]
# No column has whole numbers of more digits, and they take long to convert.
_Whole = Annotated[StrictInt, Field(ge=-(2**63), le=2**63 - 1)]
_Seed = Annotated[StrictInt, Field(ge=0, lt=2**32)] | None
Value = StrictBool | _Whole | _Number | _Text


# ---- requests


class PageRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class QuestionCondition(PageRequest):
    """A condition on one column: exactly one of the three.

    `range` is closed; an end that is absent or null is open. `missing` means that the cell is missing.
    """

    range: dict[Literal["low", "high"], Value | None] | None = None
    values: Annotated[list[Value], Field(min_length=1, max_length=MOST_VALUES)] | None = None
    missing: Literal[True] | None = None

    def as_given(self) -> Any:
        """The condition as `KDMTable.query` takes it: a pair, a list, one value, `Missing`; None for none."""
        if sum(part is not None for part in (self.range, self.values, self.missing)) != 1:
            raise ValueError("given: expected one of range, values and missing for a column")
        if self.range is not None:
            ends = (self.range.get("low"), self.range.get("high"))
            return None if ends == (None, None) else ends
        if self.values is None:
            return Missing
        return self.values[0] if len(self.values) == 1 else list(self.values)


class TableQuestion(PageRequest):
    """Conditions by column, the column in question, and the columns wanted (none: all).

    For draws, the number of rows and the seed.
    """

    given: Annotated[dict[_Text, QuestionCondition], Field(max_length=MOST_COLUMNS)] = {}
    target: _Text | None = None
    columns: Annotated[list[_Text], Field(max_length=MOST_COLUMNS)] | None = None
    n: Annotated[StrictInt, Field(ge=1, le=MOST_ROWS)] = 10
    seed: _Seed = None

    def conditions(self) -> dict[str, Any]:
        conditions = {name: condition.as_given() for name, condition in self.given.items()}
        return {name: value for name, value in conditions.items() if value is not None}


class WantedColumns(PageRequest):
    """Columns by name."""

    columns: Annotated[list[_Text], Field(max_length=MOST_COLUMNS)]


class TextQuestion(PageRequest):
    """A question in the query language."""

    query: Annotated[StrictStr, Field(min_length=1, max_length=10_000)]


class RowQuestion(PageRequest):
    """What is asked about rows; the body has them, as Arrow or `{"column": [cells]}`.

    The answer has a column for each quantity, in the form of the body.
    """

    what: Literal["score", "predict", "probability", "impute"]
    target: _Text | None = None
    event: Annotated[str, Field(max_length=10_000)] | None = None
    interval: Annotated[float, Field(gt=0, lt=1)] | None = None
    proba: bool = False

    def options(self) -> dict[str, Any]:
        """The options that were given."""
        options = self.model_dump(exclude={"what"}, exclude_none=True)
        return options if options["proba"] else {key: v for key, v in options.items() if key != "proba"}


class CsvRow(PageRequest):
    """CSV with a header line, and the number of the row in question."""

    csv: Annotated[StrictStr, Field(min_length=1, max_length=MOST_TEXT)]
    row: Annotated[StrictInt, Field(ge=0, lt=MOST_ROWS)] = 0


class CsvRows(PageRequest):
    """CSV with a header line, and the column to predict; none: missing cells are filled in."""

    csv: Annotated[StrictStr, Field(min_length=1, max_length=MOST_TEXT)]
    target: _Text | None = None


class ImagePixels(PageRequest):
    """The pixels of one image, row by row."""

    pixels: Annotated[list[_Number | _Whole], Field(min_length=1, max_length=MOST_PIXELS)]


class ImageLabel(PageRequest):
    """The label that images are drawn for."""

    label: Value
    n: Annotated[StrictInt, Field(ge=1, le=100)] = 12
    spread: Annotated[_Number | _Whole, Field(gt=0, le=2)] = 1.0
    seed: _Seed = None


# ---- answers


class Card(BaseModel):
    """The distribution of one column: numbers are texts as the library prints them.

    `probabilities` are those of the bins or levels of the column, in their order, if the cell is there.
    `missing` is the share of missing cells, null if no cell was missing.
    """

    mean: str | None
    interval: list[str] | None
    probabilities: list[float]
    shares: list[str] | None
    beyond: str | None
    missing: str | None


class ColumnView(BaseModel):
    """A column. Ordered columns have `bins`, which are ranges; others have `levels`.

    The last columns of a wide table lack `prior`, `bins` and `labels` in the view: `/columns` has them.
    """

    name: str
    kind: str
    details: str
    missing: str
    can_be_missing: bool
    ordered: bool
    bins: list[tuple[Value, Value]] | None
    labels: list[str]
    levels: list[Value] | None
    prior: Card | None


class RuleView(BaseModel):
    """What holds between columns: the text, the rows of the fit that it is about, and those that break it."""

    text: str
    rows: int
    exceptions: int


class TableView(BaseModel):
    kind: Literal["table"]
    name: str
    rows: int
    columns: list[ColumnView]
    left_out: list[str]
    targets: list[str]
    rules: list[RuleView]


class Marginals(BaseModel):
    """All columns without a condition, and log p of the conditions.

    `probability` is null if log p is that of a density: single values of continuous columns. `unusual` is
    whether the conditions are unlike the data. `texts` are the question, for Python and, if there is a
    file of the model, for a shell.
    """

    log_evidence: str
    probability: str | None
    unusual: bool
    cards: dict[str, Card]
    texts: dict[Literal["python", "shell"], str]


#: The columns with a condition, except those that are fixed to one level.
SomeColumns = dict[Literal["columns"], list[ColumnView]]
Conditioned = dict[Literal["cards"], dict[str, Card]]


class Link(BaseModel):
    columns: tuple[str, str]
    information: float
    interval: tuple[float, float]


class Links(BaseModel):
    """Neighbours in the tree of columns, with their mutual information in nats."""

    columns: list[str]
    links: list[Link]


class NextColumn(BaseModel):
    column: str
    information: float
    interval: tuple[float, float]


class NextColumns(BaseModel):
    """The information of each column about the target, in nats, with 90 % intervals; the largest first."""

    target: str
    columns: list[NextColumn]


class DrawnRows(BaseModel):
    columns: list[str]
    rows: list[list[str]]


class CellView(BaseModel):
    column: str
    value: str
    expected: str
    probability: float
    surprising: bool
    known: Value | None


class Explained(BaseModel):
    """The cells of a row, the most surprising first."""

    n_rows: int
    cells: list[CellView]


class ImageView(BaseModel):
    """A classifier of images: `low` is black and `high` is white.

    `box` (top, left, bottom, right) is the part that drawings fill, `ink` their mean brightness from 0 to 1.
    """

    kind: Literal["images"]
    name: str
    height: int
    width: int
    low: float
    high: float
    box: tuple[int, int, int, int]
    ink: float
    classes: list[Value]


class ImageReading(BaseModel):
    """Class probabilities; `usual` is the share of the model's draws with a smaller density."""

    probabilities: list[float]
    shares: list[str]
    log_density: str
    usual: float


DrawnImages = dict[Literal["images"], list[list[float]]]


class ModelState(BaseModel):
    name: str
    kind: Literal["table", "images"]
    state: Literal["loading", "ready", "failed"]
    message: str


class PageState(BaseModel):
    version: str
    models: list[ModelState]


class Health(BaseModel):
    status: Literal["ready", "loading", "failed"]


# ---- endpoints


@dataclass(frozen=True)
class Endpoint:
    """One question to a model.

    Args:
        path: below `/api/models/{model}`.
        summary: the question in words.
        method_name: the method of the model that answers; it takes the request, if there is one.
        answer: the form of the answer; text is CSV.
        body: the form of the request; None is a request without a body (GET).
        kind: the kind of model that answers; None is any.
    """

    path: str
    summary: str
    method_name: str
    answer: Any
    body: type[BaseModel] | None = None
    kind: Literal["table", "images"] | None = None

    @property
    def method(self) -> str:
        return "GET" if self.body is None else "POST"


_MODEL = "The model: its columns with their marginals, or its classes"
_COLUMNS = "Some columns with their marginals"
_MARGINALS = "The distribution of every column without a condition, and log p of the conditions"
_HELD = "The distribution of the columns with a condition, given all conditions"
_LINKS = "The tree of columns with the strength of every edge"
_NEXT = "The columns that would tell most about the target"
_DRAWS = "Complete rows drawn given the conditions"
_EXPLAIN = "How surprising every cell of a row is"
_COMPLETED = "Rows of CSV with missing cells filled in, or with predictions and their intervals"
_ASK = "The answer to a question in the query language"
_ROWS = "Scores, predictions, probabilities or filled cells of rows"
_READ = "Class probabilities of an image, and how usual it is"

ENDPOINTS = (
    Endpoint("", _MODEL, "view", TableView | ImageView),
    Endpoint("/columns", _COLUMNS, "columns_view", SomeColumns, WantedColumns, "table"),
    Endpoint("/marginals", _MARGINALS, "marginals", Marginals, TableQuestion, "table"),
    Endpoint("/held", _HELD, "conditioned", Conditioned, TableQuestion, "table"),
    Endpoint("/links", _LINKS, "links", Links, None, "table"),
    Endpoint("/next", _NEXT, "next_columns", NextColumns, TableQuestion, "table"),
    Endpoint("/draws", _DRAWS, "draws", DrawnRows, TableQuestion, "table"),
    Endpoint("/draws.csv", f"{_DRAWS}, as CSV", "draws_csv", str, TableQuestion, "table"),
    Endpoint("/explain", _EXPLAIN, "explain", Explained, CsvRow, "table"),
    Endpoint("/completed.csv", _COMPLETED, "completed_csv", str, CsvRows, "table"),
    Endpoint("/ask", _ASK, "ask", dict[str, Any], TextQuestion, "table"),
    Endpoint("/rows/{what}", _ROWS, "rows", dict[str, list[Any]], RowQuestion, "table"),
    Endpoint("/read", _READ, "read", ImageReading, ImagePixels, "images"),
    Endpoint("/images", "Images of a label", "draw", DrawnImages, ImageLabel, "images"),
)
