"""Checks of the names of variables that users pass to distributions over several of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from kdmkit._core.checks import bad_argument, check_instance
from kdmkit.kernels import Kernel, check_kernel

Target = str | Sequence[str] | None
Masks = Mapping[str, Any] | None

RESERVED = ("given", "target", "observed", "noisy", "self")


def check_variables(components: Any, kernels: Any) -> dict[str, Kernel]:
    """Kernels by variable, in the order of the components."""
    if not isinstance(components, Mapping) or not components:
        raise TypeError(
            bad_argument("components", "a mapping from variable to tensor", type(components).__name__)
        )
    if not isinstance(kernels, Mapping):
        raise TypeError(bad_argument("kernels", "a mapping from variable to kernel", type(kernels).__name__))
    if set(components) != set(kernels):
        raise ValueError(
            bad_argument("kernels", f"the variables of components, {list(components)}", list(kernels))
        )
    bad = [name for name in components if not isinstance(name, str) or name in RESERVED]
    if bad:
        raise ValueError(bad_argument("components", f"variables not named {', '.join(RESERVED)}", bad))
    return {name: check_kernel(f"kernels[{name!r}]", kernels[name]) for name in components}


def check_names(argument: str, names: Iterable[str], variables: Collection[str]) -> None:
    unknown = [name for name in names if name not in variables]
    if unknown:
        raise ValueError(bad_argument(argument, f"variables among {list(variables)}", unknown))


def check_complete(values: Mapping[str, Any], variables: Collection[str]) -> None:
    """Raises where a variable has no value."""
    missing = [name for name in variables if name not in values]
    if missing:
        wanted = f"all of {list(variables)} (marginal() drops variables)"
        raise ValueError(bad_argument("values", wanted, f"none for {missing}"))


def check_target(names: Sequence[str], variables: Collection[str]) -> None:
    check_names("target", names, variables)
    if not names or len(set(names)) < len(names):
        raise ValueError(bad_argument("target", "one or more different variables", list(names)))


def choose_targets(target: Target, known: Sequence[str], variables: Collection[str]) -> tuple[str, ...]:
    """The variables to infer: the named ones, or all without evidence."""
    if not known:
        raise ValueError(bad_argument("evidence", "at least one variable", "none (marginal() needs none)"))
    if target is None:
        rest = tuple(name for name in variables if name not in known)
        if not rest:
            raise ValueError(
                bad_argument(
                    "evidence", "a variable left to infer (log_prob scores whole rows)", "all of them"
                )
            )
        return rest
    check_instance("target", target, Iterable, "a name or several")
    targets = (target,) if isinstance(target, str) else tuple(target)
    check_target(targets, variables)
    both = [name for name in targets if name in known]
    if both:
        raise ValueError(bad_argument("target", "variables without evidence", both))
    return targets
