"""What the page may ask, and the form of the answers. Everything else is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

#: Limits of one request.
MOST_ROWS, MOST_COLUMNS, MOST_VALUES, MOST_TEXT, MOST_PIXELS = 10_000, 5_000, 1_000, 200_000, 65_536

_Text = Annotated[StrictStr, Field(max_length=1_000)]
_Number = Annotated[StrictFloat, Field(allow_inf_nan=False)]
# Whole numbers of more digits are no numbers of a column, and take long to convert.
_Whole = Annotated[StrictInt, Field(ge=-(2**63), le=2**63 - 1)]
Value = StrictBool | _Whole | _Number | _Text


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Range(Request):
    """A closed range; an end that is absent or null is open."""

    low: Value | None = None
    high: Value | None = None


class Condition(Request):
    """What is known of a column: exactly one of the three."""

    range: Range | None = None
    values: Annotated[list[Value], Field(min_length=1, max_length=MOST_VALUES)] | None = None
    missing: Literal[True] | None = None

    def known(self) -> Any:
        """As `KDMTable.query` takes it: a pair, a list, one value, or None for unknown."""
        if sum(part is not None for part in (self.range, self.values, self.missing)) != 1:
            raise ValueError("given: expected one of range, values and missing for a column")
        if self.range is not None:
            ends = (self.range.low, self.range.high)
            return None if ends == (None, None) else ends
        if self.values is None:
            return None
        return self.values[0] if len(self.values) == 1 else list(self.values)


Given = Annotated[dict[_Text, Condition], Field(max_length=MOST_COLUMNS)]


class Evidence(Request):
    """What is known, by column."""

    given: Given = {}
    target: _Text | None = None

    def known(self) -> dict[str, Any]:
        return {name: condition.known() for name, condition in self.given.items()}


class Draws(Evidence):
    """How many rows to draw."""

    n: Annotated[StrictInt, Field(ge=1, le=MOST_ROWS)] = 10
    seed: Annotated[StrictInt, Field(ge=0, lt=2**32)] | None = None


class Target(Evidence):
    """The column that one would like to know."""

    target: _Text


class Row(Request):
    """A row as CSV with a header line, and which of its rows."""

    csv: Annotated[StrictStr, Field(min_length=1, max_length=MOST_TEXT)]
    row: Annotated[StrictInt, Field(ge=0, lt=MOST_ROWS)] = 0


class Image(Request):
    """The pixels of one image, row by row."""

    pixels: Annotated[list[_Number | _Whole], Field(min_length=1, max_length=MOST_PIXELS)]


class Label(Request):
    """The label that images are drawn for."""

    label: Value
    n: Annotated[StrictInt, Field(ge=1, le=100)] = 12
    spread: Annotated[_Number | _Whole, Field(gt=0, le=2)] = 1.0
    seed: Annotated[StrictInt, Field(ge=0, lt=2**32)] | None = None


# ---- answers


class Card(BaseModel):
    """The distribution of one column: numbers are texts as the library prints them.

    `probabilities` are of the bins or of the levels of the column, in their order.
    """

    mean: str | None
    interval: list[str] | None
    probabilities: list[float]
    shares: list[str] | None
    beyond: str | None


class ColumnView(BaseModel):
    """A column: `bins` are closed ranges of ordered columns, else there are `levels`."""

    name: str
    kind: str
    details: str
    missing: str
    ordered: bool
    bins: list[tuple[Value, Value]] | None
    labels: list[str]
    levels: list[Value] | None
    prior: Card


class Texts(BaseModel):
    """The question, to paste into Python and into a shell."""

    python: str
    shell: str


class Marginals(BaseModel):
    """All columns of which nothing is given, and how common what is given is.

    `probability` is null where log p is that of a density: single values of continuous columns.
    """

    log_evidence: str
    probability: str | None
    cards: dict[str, Card]
    texts: Texts


class Held(BaseModel):
    """The columns of which something is known, except of those that are held to one level."""

    cards: dict[str, Card]


class TableView(BaseModel):
    kind: Literal["table"]
    name: str
    rows: int
    columns: list[ColumnView]
    left_out: list[str]
    targets: list[str]


class Link(BaseModel):
    columns: tuple[str, str]
    information: float


class Links(BaseModel):
    """Neighbours in the tree of columns, with their mutual information in nats."""

    columns: list[str]
    links: list[Link]


class Next(BaseModel):
    """How much each column would tell about the target, in nats; the most first."""

    target: str
    columns: list[tuple[str, float]]


class Rows(BaseModel):
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
    """Images: `low` is black and `high` is white.

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


class Read(BaseModel):
    """`usual` is the share of the model's own draws that are less probable than this image."""

    probabilities: list[float]
    shares: list[str]
    log_density: str
    usual: float


class Drawn(BaseModel):
    images: list[list[float]]


class ModelState(BaseModel):
    name: str
    kind: Literal["table", "images"]
    state: Literal["loading", "ready", "failed"]
    message: str


class State(BaseModel):
    version: str
    models: list[ModelState]


class Problem(BaseModel):
    error: str
