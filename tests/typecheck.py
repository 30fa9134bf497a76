"""Runtime checks of the jaxtyping annotations, switched on by `make test` for some packages."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, get_args

import beartype
import beartype.roar
import jaxtyping

# As in static typing, an int passes for a float.
_beartype = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))


def check(function: Any) -> Any:
    """beartype, less what it cannot do for jaxtyping, which decorates one method at a time.

    Without its class beartype does not know what `Self` is. Functions inside of functions are left alone:
    they are decorated at every call of the outer one.
    """
    if "<locals>" in getattr(function, "__qualname__", ""):
        return function
    hints = {} if isinstance(function, type) else getattr(function, "__annotations__", {})
    if hints:
        function.__annotations__ = {k: Any if _names_self(hint) else hint for k, hint in hints.items()}
    try:
        return _beartype(function)
    except beartype.roar.BeartypeDecorHintPep3119Exception:
        return function  # An argument is a protocol that only static checkers understand.


def _names_self(hint: Any) -> bool:
    """Whether a hint is `Self` or a union with it, as text or resolved."""
    parts = hint.split(" | ") if isinstance(hint, str) else (hint, *get_args(hint))
    return Self in parts or "Self" in parts


@contextmanager
def off() -> Iterator[None]:
    """No checks: for tests of what a user sees of bad input."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
