"""Shared by all experiments: the runner, lines of results, means, claims, tables and the hardware probe."""

from kdmlab.common.choices import chosen_device, some_of
from kdmlab.common.claims import Claim, claims_table
from kdmlab.common.lines import FORMAT, Row, append_row, newest, read_rows, remove_rows, select
from kdmlab.common.machine import machine, provenance, versions
from kdmlab.common.processes import Pool, processes
from kdmlab.common.runner import Part, Task, run_tasks
from kdmlab.common.statistics import CONFIDENCE, Mean
from kdmlab.common.tables import Report, markdown_table, write_report

__all__ = [
    "CONFIDENCE",
    "FORMAT",
    "Claim",
    "Mean",
    "Part",
    "Pool",
    "Report",
    "Row",
    "Task",
    "append_row",
    "chosen_device",
    "claims_table",
    "machine",
    "markdown_table",
    "newest",
    "processes",
    "provenance",
    "read_rows",
    "remove_rows",
    "run_tasks",
    "select",
    "some_of",
    "versions",
    "write_report",
]
