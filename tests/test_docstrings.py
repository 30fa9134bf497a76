"""Every public name says what it means, what it takes, what it returns, and shows a use."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from public_packages import PACKAGES
from torch import nn

PAGES = Path(__file__).parents[1] / "docs" / "api"


@cache
def exported(package: str) -> dict[str, Any]:
    """What a package exports, but modules."""
    if package == "kdmkit.explore":
        pytest.importorskip("starlette")
    module = importlib.import_module(package)
    values = {name: getattr(module, name) for name in module.__all__}
    return {name: value for name, value in values.items() if not isinstance(value, ModuleType)}


def documented(package: str) -> dict[str, Any]:
    """Its classes and functions."""
    return {
        name: value
        for name, value in exported(package).items()
        if inspect.isclass(value) or inspect.isfunction(value)
    }


def text_of(value: Any) -> str:
    return inspect.getdoc(value) or ""


def is_called(value: Any) -> bool:
    """Whether users call it with arguments: not abstract classes, answers, and modules without arguments."""
    if not inspect.isclass(value):
        return True
    is_answer = value in exported("kdmkit.answers").values()
    return not (is_answer or inspect.isabstract(value) or value.__init__ is nn.Module.__init__)


def parameters(value: Any) -> set[str]:
    """What a caller gives."""
    if not is_called(value):
        return set()
    return {name for name in inspect.signature(value).parameters if not name.startswith("_")}


def described(text: str) -> set[str]:
    """The names in the section Args; `a, b: …` describes two."""
    section = re.search(r"^Args:\n((?:    .*\n?|\n)*)", text, re.MULTILINE)
    lines = re.findall(r"^    ([\w, ]+):", section[1], re.MULTILINE) if section else []
    return {name.strip() for line in lines for name in line.split(",")}


def returns_something(value: Any) -> bool:
    return inspect.isfunction(value) and inspect.signature(value).return_annotation not in (None, "None")


def gaps(value: Any) -> list[str]:
    """What the docstring of a class or a function lacks."""
    text = text_of(value)
    result = [f"the argument {name}" for name in sorted(parameters(value) - described(text))]
    result += [] if re.match(r"\S.+", text) else ["what it means"]
    result += ["Returns"] if returns_something(value) and "\nReturns:\n" not in text else []
    return result + ([] if ">>> " in text else ["an example"])


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_described(package: str) -> None:
    result = {name: gaps(value) for name, value in documented(package).items()}
    assert not {name: lacking for name, lacking in result.items() if lacking}


def test_a_gap_is_seen() -> None:
    def bare(x: int, y: int = 0) -> int:
        """Adds.

        Args:
            x: a number.
        """
        return x + y

    assert gaps(bare) == ["the argument y", "Returns", "an example"]


def own_members(value: type) -> Iterator[str]:
    """Public methods and properties that are written in kdmkit."""
    for name in dir(value):
        member = inspect.getattr_static(value, name)
        function = member.fget if isinstance(member, property) else getattr(value, name)
        module = getattr(function, "__module__", None) or ""
        if not name.startswith("_") and inspect.isroutine(function) and module.startswith("kdmkit."):
            yield name


def is_described(value: type, member: str) -> bool:
    """Whether the class, or the base class whose method it overrides, describes a member."""
    return any(text_of(getattr(base, member)) for base in value.__mro__ if member in base.__dict__)


@pytest.mark.parametrize("package", PACKAGES)
def test_methods_and_properties_are_described(package: str) -> None:
    classes = {name: value for name, value in documented(package).items() if inspect.isclass(value)}
    assert not [
        f"{name}.{member}"
        for name, value in classes.items()
        for member in own_members(value)
        if not is_described(value, member)
    ]


def listed() -> set[str]:
    """The names on the pages of the reference, with their packages."""
    result, package = set(), ""
    for page in PAGES.glob("*.rst"):
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith(".. currentmodule:: "):
                package = line.split()[-1]
            elif match := re.fullmatch(r"(?:   |\.\. data:: |\.\. autoclass:: )(\w+)(?:\(\))?", line):
                result.add(f"{package}.{match[1]}")
    return result


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_on_a_page(package: str) -> None:
    """Names that `kdmkit` exports, too, are listed there."""
    names = exported(package).keys() - (set() if package == "kdmkit" else exported("kdmkit").keys())
    pages = listed()
    assert not [name for name in sorted(names) if f"{package}.{name}" not in pages]


#: Returned classes that users know by what they are: a base class of estimators, and kernels.
INTERNAL = {"KDMEstimator", "Around", "WithBandwidth", "Bounds"}


def methods(value: Any) -> Iterator[Any]:
    """A function, or the functions behind the methods and properties of a class."""
    if inspect.isfunction(value):
        yield value
    elif inspect.isclass(value):
        for name in own_members(value):
            member = inspect.getattr_static(value, name)
            yield getattr(member, "fget", None) or getattr(member, "__func__", None) or member


def returned_classes(function: Any) -> Iterator[type]:
    """Classes of kdmkit that the annotation of the return value names."""
    annotation = getattr(function, "__annotations__", {}).get("return")
    for word in re.findall(r"\w+", annotation if isinstance(annotation, str) else ""):
        result = inspect.unwrap(function).__globals__.get(word)
        if inspect.isclass(result) and result.__module__.startswith("kdmkit."):
            yield result


@pytest.mark.parametrize("package", PACKAGES)
def test_classes_that_calls_return_are_public(package: str) -> None:
    public = [value for name in PACKAGES for value in exported(name).values()]
    assert not [
        f"{name}: {returned.__name__}"
        for name, value in documented(package).items()
        for function in methods(value)
        for returned in returned_classes(function)
        if returned not in public and returned.__name__ not in INTERNAL
    ]
