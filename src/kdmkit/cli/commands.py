"""Commands about models: fit a file, describe and ask the model, explore it in a browser."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from kdmkit._core.checks import bad_argument
from kdmkit.cli.row_commands import COMMANDS
from kdmkit.cli.shell import AsJson, Data, Model, app, console, errors, errors_in_one_line, load_table, source

# The kinds of columns; the help of a command imports no estimator.
_KINDS = "float, integer, count, duration, boolean, category, ordinal, date, time, constant, identifier, text"


@app.command()
def fit(
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file of the model to write.")],
    targets: Annotated[
        list[str] | None,
        typer.Option("--targets", "--target", help="A column to predict; may be repeated."),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--types", "--type", help=f"The kind of a column, zip=category; may be repeated. Kinds: {_KINDS}."
        ),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            "--rules", "--rule", help="A rule between columns, 'low <= high'; or none, auto; may be repeated."
        ),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="Kinds of columns, as `kdmkit schema` writes them.")
    ] = None,
    missing: Annotated[
        Literal["outcome", "unknown"],
        typer.Option(help="What an empty cell is: an outcome of its column, or an unknown value."),
    ] = "outcome",
    texts: Annotated[
        Literal["left out", "pooled", "drawn"],
        typer.Option(help="Texts of single people: left out, rare ones drawn as (other), or all drawn."),
    ] = "left out",
    min_level_rows: Annotated[
        int | None,
        typer.Option(min=1, help="Levels with fewer rows are drawn as (other); else by the number of rows."),
    ] = None,
    components: Annotated[int | None, typer.Option(min=1, help="Components of every column.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the rows at most.")] = None,
    rows: Annotated[
        int | None,
        typer.Option(min=1, help="Rows to learn from at most; a larger file is sampled uniformly."),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A folder for checkpoints; a killed fit resumes from it.")
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute.")] = "auto",
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the fit.")] = 0,
) -> None:
    """Learns the joint distribution of all columns of a CSV or Parquet file, which is never held in memory.

    Example: kdmkit fit diamonds.csv --type clarity=category -o diamonds
    """
    from kdmkit import KDMTable, save

    with errors_in_one_line(), source(data) as path:
        if not output.parent.is_dir():  # before the fit, not after it
            raise ValueError(bad_argument("--output", "a file in a folder that exists", str(output)))
        options: dict[str, Any] = {"n_components": components, "max_epochs": epochs, "max_rows": rows}
        options["min_level_rows"] = min_level_rows
        table = KDMTable(
            types=_types(kind or []),
            schema=schema,
            targets=targets or None,
            rules=_rules(rule or []),
            missing=missing,
            texts=texts,
            checkpoint_dir=checkpoint,
            device=device,
            random_state=seed,
            verbose=sys.stderr.isatty(),
            **{name: value for name, value in options.items() if value is not None},
        )
        start = time.perf_counter()
        table.fit(path)
        save(table, output)
    for column in table.columns_.values():
        if not column.variables and column.kind != "empty":  # there was a warning about these
            errors.print(f"left out: {column.name!r} ({column.reason})", markup=False, highlight=False)
    if table.columns_.origin:
        errors.print(table.columns_.origin, highlight=False)
    errors.print(f"fitted in {time.perf_counter() - start:.0f} s, wrote {output}", highlight=False)


def _rules(texts: list[str]) -> bool | list[str]:
    """The rules beside those that the rows keep; "none" alone switches the search off."""
    if texts == ["none"]:
        return False
    return ["auto", *(text for text in texts if text not in ("auto", "none"))] if texts else True


def _types(kinds: list[str]) -> dict[str, str] | None:
    pairs = [kind.rpartition("=") for kind in kinds]
    for kind, (name, sign, _) in zip(kinds, pairs, strict=True):
        if not sign or not name:
            raise ValueError(f"--type: expected column=kind, got {kind!r}")
    return {name: kind for name, _, kind in pairs} or None


@app.command("schema")
def print_schema(
    data: Data,
    rows: Annotated[int, typer.Option(min=1, help="Rows to look at; a larger file is sampled.")] = 100_000,
) -> None:
    """Prints what the columns of a file are taken for, as JSON: edit it, and give it to `fit --schema`.

    Only "kind" and "missing" (texts for missing cells) are read again.

    Example: kdmkit schema diamonds.csv > schema.json
    """
    with errors_in_one_line(), source(data) as path:
        from kdmkit.estimators.table.decisions import described
        from kdmkit.estimators.table.learning import sample_frame
        from kdmkit.estimators.table.rule_fitting import with_rules
        from kdmkit.estimators.table.schema import Schema

        frame = sample_frame("data", path, rows, seed=0)
        columns = with_rules(Schema.from_frame(frame), frame, True, "impossible").columns
        typer.echo(json.dumps(described(columns), indent=2, ensure_ascii=False))


@app.command()
def describe(model: Model, as_json: AsJson = False) -> None:
    """Shows the kind of every column, the rules between them, and how columns depend on each other.

    Example: kdmkit describe diamonds
    """
    with errors_in_one_line():
        table = load_table(model)
        dependence = table.dependence()
    if as_json:
        names = ("kind", "why", "details", "missing", "examples", "unsure")
        columns = {n: {key: getattr(c, key) for key in names} for n, c in table.columns_.items()}
        pairs = [
            {"columns": [a, b], "mutual_information": v, "interval": dependence.interval(a, b)}
            for a, b, v in dependence.pairs()
        ]
        typer.echo(json.dumps({"columns": columns, "rules": table.rules_.config(), "dependence": pairs}))
        return
    console.print(table.columns_)
    if table.rules_:
        console.print(table.rules_)
    console.print(dependence)


@app.command()
def ask(
    model: Model,
    query: Annotated[str, typer.Argument(help="For example: P(price | carat in [0.5, 1], cut = Ideal)")],
    as_json: AsJson = False,
) -> None:
    """Answers a question: the distribution of a column, or the probability of an event.

    Examples:
    kdmkit ask diamonds "P(price | 0.5 <= carat <= 1, cut in {Ideal, Good})"
    kdmkit ask diamonds "P(price > 1000 | cut = Ideal)"
    """
    with errors_in_one_line():
        answer = load_table(model).query(query)
        if as_json:
            typer.echo(json.dumps(answer.to_dict()))
        else:
            console.print(answer)


for command in COMMANDS:
    app.command()(command)


Host = Annotated[str, typer.Option(help="The address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0 is any free port.")]
Workers = Annotated[int, typer.Option(min=1, max=64, help="Processes that answer questions to each model.")]
AllowHost = Annotated[
    list[str] | None, typer.Option(help="A host name to allow in requests; may be repeated.")
]
TimeLimit = Annotated[float, typer.Option(min=0.1, help="Seconds that one question may take.")]


@app.command()
def explore(
    model: Annotated[
        Path | None,
        typer.Argument(help="A saved KDMTable or KDMClassifier of images; without one, two examples."),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    workers: Workers = 2,
    allow_host: AllowHost = None,
    time_limit: TimeLimit = 30.0,
) -> None:
    """Opens a page that shows how columns change when others are fixed. Ctrl+C ends it.

    Example: kdmkit explore diamonds
    """
    with errors_in_one_line():
        from kdmkit.explore import Server, example_models

        server = Server(
            example_models() if model is None else {model.stem: _entry(model)},
            host=host,
            port=port,
            allowed_hosts=allow_host or (),
            stop_on_failure=model is not None,
            workers=workers,
            time_limit=time_limit,
        )
        console.print(f"kdmkit explore: {server.url}", soft_wrap=True, highlight=False)
        server.run(open_browser=browser)
        if server.error is not None:
            raise server.error


@app.command()
def serve(
    models: Annotated[list[Path], typer.Argument(help="Saved models; each is served under its file's name.")],
    host: Host = "127.0.0.1",
    port: Port = 8000,
    workers: Workers = 2,
    allow_host: AllowHost = None,
    time_limit: TimeLimit = 30.0,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="KDMKIT_TOKEN", help="What requests need as `Authorization: Bearer …`; else a random one."
        ),
    ] = None,
) -> None:
    """Serves models over HTTP: questions, rows as JSON or Arrow, metrics. Ctrl+C or SIGTERM ends it.

    Example: kdmkit serve loans diamonds --port 8000
    """
    with errors_in_one_line():
        from kdmkit.explore import Server

        names = [model.stem for model in models]
        if len(set(names)) < len(names):
            raise ValueError(bad_argument("models", "files of different names", ", ".join(names)))
        server = Server(
            {model.stem: _entry(model) for model in models},
            host=host,
            port=port,
            allowed_hosts=allow_host or (),
            stop_on_failure=True,
            workers=workers,
            time_limit=time_limit,
            token=token,
            page=False,
        )
        shown = "" if token else f", token {server.token}"
        console.print(f"kdmkit serve: {server.address}/openapi.json{shown}", soft_wrap=True, highlight=False)
        server.run()
        if server.error is not None:
            raise server.error


def _entry(path: Path) -> Any:
    """A model of the page that is loaded while the page opens."""
    from kdmkit import load
    from kdmkit.explore import PageModel

    if not path.exists():
        raise ValueError(bad_argument("model", "a file that kdmkit wrote", f"no file {path}"))
    return PageModel(path.stem, partial(load, path), path=str(path))
