"""Data sets as arrays: from files where they are, else from OpenML; `digits` comes with scikit-learn.

Nothing here knows of models.
"""

from kdmlab.datasets._load import load
from kdmlab.datasets._types import NAMES, Dataset, Name
from kdmlab.datasets.uci import Census, read_adult, read_magic

__all__ = ["NAMES", "Census", "Dataset", "Name", "load", "read_adult", "read_magic"]
