"""Time zones: what clocks of one zone show when those of another show a time."""

from __future__ import annotations

import datetime
import re
import zoneinfo
from typing import Any

import numpy as np

_OFFSET = re.compile(r"(?:UTC)?([+-])(\d\d):?(\d\d)$")
_WITH_OFFSET = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*(Z|[+-]\d\d:?\d\d)$")


def zone_of(name: str) -> datetime.tzinfo:
    """The zone of a name, or of a difference from UTC.

    >>> zone_of("UTC+02:00").utcoffset(None)
    datetime.timedelta(seconds=7200)
    """
    offset = _OFFSET.match(name)
    if offset is None:
        return zoneinfo.ZoneInfo(name)
    sign, hours, minutes = offset.groups()
    delta = datetime.timedelta(hours=int(hours), minutes=int(minutes))
    return datetime.timezone(delta if sign == "+" else -delta)


def between_zones(dates: np.ndarray, own: str, wanted: str) -> np.ndarray:
    """Times of clocks in zone `own` as times of clocks in zone `wanted`.

    >>> between_zones(np.array(["2024-07-01T12:00"], "M8[us]"), "UTC", "Europe/Berlin")
    array(['2024-07-01T14:00:00.000000'], dtype='datetime64[us]')
    """
    source, target = zone_of(own), zone_of(wanted)
    distinct, place = np.unique(dates, return_inverse=True)
    clocks = [
        date and date.replace(tzinfo=source).astimezone(target).replace(tzinfo=None)
        for date in distinct.tolist()
    ]
    found: np.ndarray = np.array(clocks, "datetime64[us]")[place.reshape(-1)]
    return found


def in_zone(value: Any, zone: str) -> Any:
    """A date-time that has a zone as clocks in another zone show it; every other value as it is."""
    if isinstance(value, str) and zone and _WITH_OFFSET.match(value.strip()):
        value = datetime.datetime.fromisoformat(value.strip())
    if zone and isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(zone_of(zone)).replace(tzinfo=None)
    return value
