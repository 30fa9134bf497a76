"""What a fit with default settings has to learn from a table, and what it must not learn."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kdmkit.estimators import KDMTable


def _weather(seed: int) -> pd.DataFrame:
    """Four years of days: a season, warm and cold months, and whole degrees Fahrenheit in Celsius."""
    rng = np.random.default_rng(seed)
    days = pd.date_range("2012-01-01", "2015-12-31")
    month = np.asarray((days.year - 2012) * 12 + days.month - 1)
    typical = 16.0 - 10.0 * np.cos(2 * np.pi * (days.dayofyear - 20) / 365.25)
    high = typical + rng.normal(0, 2.0, 48)[month] + rng.normal(0, 3.0, len(days))
    low = 0.7 * high - 3.0 + rng.normal(0, 2.0, len(days))
    celsius = {
        name: np.round((np.round(1.8 * t + 32) - 32) / 1.8, 1) for name, t in [("high", high), ("low", low)]
    }
    return pd.DataFrame({"date": days, **celsius})


def test_means_of_months_follow_year_and_month() -> None:
    weather = _weather(0)
    table = KDMTable(random_state=0).fit(weather)
    means = weather.groupby(weather.date.dt.to_period("M")).high.mean()
    answers = [table.query("high", given={"date": str(month)}).mean for month in means.index]
    seasons = weather.groupby(weather.date.dt.month).high.mean().loc[means.index.month]
    off, off_of_seasons = (np.abs(guess - means).mean() for guess in (answers, seasons.to_numpy()))
    assert off < 0.7 * off_of_seasons
