"""Tables of mixed columns: `KDMTable`, its columns and its answers."""

from kdmkit.estimators.table.answering.answer import Answer, EventAnswer
from kdmkit.estimators.table.answering.explanations import Cell, Explanation
from kdmkit.estimators.table.answering.insights import Dependence, Information
from kdmkit.estimators.table.codecs.base import Codec
from kdmkit.estimators.table.column import Column
from kdmkit.estimators.table.evaluation import Evaluation, Finding
from kdmkit.estimators.table.joining import JoinedTables, join_tables
from kdmkit.estimators.table.kdm_table import KDMTable
from kdmkit.estimators.table.language import QueryError
from kdmkit.estimators.table.rules import FormulaRule, FunctionRule, OrderRule, Rule, Rules
from kdmkit.estimators.table.schema import Columns, Schema

__all__ = [
    "Answer",
    "Cell",
    "Codec",
    "Column",
    "Columns",
    "Dependence",
    "Evaluation",
    "EventAnswer",
    "Explanation",
    "Finding",
    "FormulaRule",
    "FunctionRule",
    "Information",
    "JoinedTables",
    "KDMTable",
    "OrderRule",
    "QueryError",
    "Rule",
    "Rules",
    "Schema",
    "join_tables",
]
