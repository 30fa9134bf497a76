"""`python -m kdmkit.cli`."""

from kdmkit.cli import app

app()
