"""Tables of mixed columns: what a column is, how its cells become events of a kernel and come back."""

from kdmkit.estimators.table.answers.answer import Answer, EventAnswer
from kdmkit.estimators.table.answers.dependence import Dependence
from kdmkit.estimators.table.answers.explain import Cell, Explanation
from kdmkit.estimators.table.codecs.base import Codec
from kdmkit.estimators.table.columns import Columns
from kdmkit.estimators.table.recipe import TABLE_RECIPE, TableRecipe
from kdmkit.estimators.table.schema import Column, Encoded, Schema
from kdmkit.estimators.table.table import KDMTable

__all__ = [
    "TABLE_RECIPE",
    "Answer",
    "Cell",
    "Codec",
    "Column",
    "Columns",
    "Dependence",
    "Encoded",
    "EventAnswer",
    "Explanation",
    "KDMTable",
    "Schema",
    "TableRecipe",
]
