"""`python -m kdmlab`."""

from kdmlab.cli import app

app()
