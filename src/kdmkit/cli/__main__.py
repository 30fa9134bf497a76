"""`python -m kdmkit.cli`."""

from kdmkit.cli import main

main()
