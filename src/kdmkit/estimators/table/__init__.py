"""Tables of mixed columns: what a column is, how its cells become events of a kernel and come back."""

from kdmkit.estimators.table.codecs import Codec
from kdmkit.estimators.table.schema import Column, Encoded, Schema

__all__ = ["Codec", "Column", "Encoded", "Schema"]
