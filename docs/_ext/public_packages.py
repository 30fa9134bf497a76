"""The packages whose names are public: pages describe them, and tests read their docstrings."""

PACKAGES = (
    "kdmkit",
    "kdmkit.answers",
    "kdmkit.nn",
    "kdmkit.metrics",
    "kdmkit.training",
    "kdmkit.plotting",
    "kdmkit.kernels",
    "kdmkit.ops",
    "kdmkit.explore",
)
