"""Types of the answers of `KDMTable` and of distributions, for type hints and `isinstance`."""

from kdmkit.distributions.estimates import Estimate
from kdmkit.distributions.operands import Operand, Operands
from kdmkit.distributions.operator import Eigenstates
from kdmkit.distributions.tree import Completion, MutualInformation
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
    FunctionRule,
    Information,
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
    "FunctionRule",
    "Information",
    "MutualInformation",
    "Operand",
    "Operands",
    "Rule",
    "Rules",
]
