"""Arguments of the examples while the gallery runs them."""

from typing import Any


def reset_argv(gallery_conf: dict[str, Any], script_vars: dict[str, Any]) -> list[str]:
    """The folder of the figures, below that of the examples; git ignores it."""
    return ["output"]
