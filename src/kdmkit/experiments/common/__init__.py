"""What all experiments share: the runner, lines of results, means, claims, tables and the hardware probe."""

from kdmkit.experiments.common.choices import chosen_device, some_of
from kdmkit.experiments.common.claims import Claim, claims_table
from kdmkit.experiments.common.lines import FORMAT, Row, append_row, newest, read_rows, remove_rows, select
from kdmkit.experiments.common.machine import machine, provenance, versions
from kdmkit.experiments.common.processes import Pool, processes
from kdmkit.experiments.common.runner import Part, Task, run_tasks
from kdmkit.experiments.common.statistics import CONFIDENCE, Mean
from kdmkit.experiments.common.tables import Report, markdown_table, write_report

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
