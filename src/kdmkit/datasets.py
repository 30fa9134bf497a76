"""Was a package of data sets until 0.2. An import says what to use instead, as `kdmkit.datasets` does."""

import kdmkit

# Without `name=`: `from kdmkit import datasets` would hide an error that names this module.
raise ModuleNotFoundError(f"no module {__name__!r} any more: {kdmkit._REMOVED['datasets']}")
