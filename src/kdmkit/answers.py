"""Types of answers of `KDMTable`, `KDMSequence` and distributions, and of errors, for type hints."""

from kdmkit.distributions.base import Estimate
from kdmkit.distributions.operands import Operand, Operands
from kdmkit.distributions.operator import Eigenstates
from kdmkit.distributions.tree import Completion, MutualInformation
from kdmkit.estimators.sequence import Forecast
from kdmkit.estimators.table import (
    Answer,
    Cell,
    Column,
    Columns,
    Dependence,
    Evaluation,
    EventAnswer,
    Explanation,
    Finding,
    FormulaRule,
    FunctionRule,
    Information,
    JoinedTables,
    OrderRule,
    QueryError,
    Rule,
    Rules,
)

__all__ = [
    "Answer",
    "Cell",
    "Column",
    "Columns",
    "Completion",
    "Dependence",
    "Eigenstates",
    "Estimate",
    "Evaluation",
    "EventAnswer",
    "Explanation",
    "Finding",
    "Forecast",
    "FormulaRule",
    "FunctionRule",
    "Information",
    "JoinedTables",
    "MutualInformation",
    "Operand",
    "Operands",
    "OrderRule",
    "QueryError",
    "Rule",
    "Rules",
]
