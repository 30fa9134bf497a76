"""The laboratory uses documented names of kdmkit only."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "lab").rglob("*.py"))


@cache
def documented() -> frozenset[str]:
    """Full names on the pages of `docs/api`, and the packages that the pages are about."""
    names: set[str] = {"kdmkit.__version__"}
    for page in (ROOT / "docs" / "api").glob("*.rst"):
        package = ""
        for line in page.read_text(encoding="utf-8").splitlines():
            if match := re.fullmatch(r"\.\. currentmodule:: (\S+)", line):
                package = match[1]
                names.add(package)
            elif match := re.fullmatch(
                r"(?:   |\.\. (?:data|(?:auto)?class|function):: )([A-Za-z]\w*)(?:\(.*)?", line
            ):
                names.add(f"{package}.{match[1]}")
    return frozenset(names)


def used(tree: ast.Module) -> Iterator[str]:
    """Full names of what a module takes from kdmkit: imported, or an attribute of what it imported."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "kdmkit":
                    aliases[alias.asname or "kdmkit"] = alias.name if alias.asname else "kdmkit"
                    yield alias.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "kdmkit":
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}"
    packages = {name for name in documented() if any(other.startswith(f"{name}.") for other in documented())}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = aliases.get(ast.unparse(node.value).partition(".")[0])
            full = ".".join([owner or "", *ast.unparse(node.value).split(".")[1:]])
            if owner is not None and full in packages:
                yield f"{full}.{node.attr}"


def test_pages_are_read() -> None:
    assert {"kdmkit.KDM", "kdmkit.nn.JointLayer", "kdmkit.training.fit", "kdmkit.ops"} <= documented()


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import kdmkit as kdm\nkdm.nn.MLP(3)", {"kdmkit", "kdmkit.nn", "kdmkit.nn.MLP"}),
        ("from kdmkit.ops import chunked", {"kdmkit.ops.chunked"}),
        ("from kdmkit import KDM\nKDM.from_samples", {"kdmkit.KDM"}),
    ],
)
def test_uses_are_seen(code: str, names: set[str]) -> None:
    assert set(used(ast.parse(code))) == names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT / "lab").as_posix())
def test_only_documented_names_are_used(path: Path) -> None:
    assert set(used(ast.parse(path.read_text(encoding="utf-8")))) <= documented()
