"""Rules about the source text that linters do not know."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import kdmkit.kernels

SOURCE = Path(kdmkit.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
LONGEST_FILE = 400
MOST_WITH_ONE_IMPORTER = 45

#: File names that every package may have.
SHARED_NAMES = {"__init__", "__main__", "base"}

#: Classes that are extended though they have no abstract method, with a reason each.
CONCRETE_BASES = {"PageRequest": "the settings of pydantic that all requests share"}

#: Modules that cannot be imported here: without Triton its kernels cannot, and one says what replaces it.
UNIMPORTABLE = ("kdmkit.datasets", *(() if importlib.util.find_spec("triton") else (".triton",)))

#: Who may compute the exact matrix of overlaps, n × m in memory, and why.
EXACT = {
    "ops/dense.py": 'backend="reference", the slow twin of every fast path',
}

#: Tests for a kernel's class outside `kernels`, with a reason each.
KERNEL_CLASSES: dict[str, str] = {}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def room_of(path: Path) -> str:
    """The package, or the module, of kdmkit that a file belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


# ---- the oracle


def exact_calls(tree: ast.AST) -> Iterator[int]:
    """Lines that call `x.exact(...)` or `x.log_overlap_matrix(...)`."""
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in ("exact", "log_overlap_matrix"):
            yield called.lineno


def test_only_the_reference_computes_exact_matrices() -> None:
    result = {
        name_of(path): list(exact_calls(parsed(path)))
        for path in FILES
        if not name_of(path).startswith("ops/terms/")  # terms are made of terms
    }
    result = {name: lines for name, lines in result.items() if lines}
    assert result.keys() == EXACT.keys(), result


@pytest.mark.parametrize("code", ["term.exact()", "kernel.log_overlap_matrix(x, c)", "self.terms[0].exact()"])
def test_a_call_of_the_oracle_is_seen(code: str) -> None:
    assert list(exact_calls(ast.parse(code)))


# ---- kernels are asked what they can do


@cache
def kernel_classes() -> frozenset[str]:
    modules = pkgutil.iter_modules(kdmkit.kernels.__path__, "kdmkit.kernels.")
    return frozenset(
        name
        for module in modules
        for name, value in inspect.getmembers(importlib.import_module(module.name), inspect.isclass)
        if issubclass(value, kdmkit.Kernel) and value is not kdmkit.Kernel
    )


def class_tests(tree: ast.AST) -> Iterator[int]:
    """Lines that test for a kernel's class: isinstance, type(x) is C, case C()."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("isinstance", "issubclass") and mentions_kernel(node.args[1]):
                yield node.lineno
        elif isinstance(node, ast.Compare) and any(is_type_call(side) for side in sides(node)):
            if any(mentions_kernel(side) for side in sides(node)):
                yield node.lineno
        elif isinstance(node, ast.MatchClass) and mentions_kernel(node.cls):
            yield node.cls.lineno


def sides(node: ast.Compare) -> list[ast.expr]:
    return [node.left, *node.comparators]


def is_type_call(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type"


def mentions_kernel(node: ast.AST) -> bool:
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    names |= {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
    return not names.isdisjoint(kernel_classes())


def test_no_one_outside_kernels_tests_for_a_class_of_kernels() -> None:
    result = {name_of(path): list(class_tests(parsed(path))) for path in FILES if room_of(path) != "kernels"}
    result = {name: lines for name, lines in result.items() if lines}
    assert result.keys() == KERNEL_CLASSES.keys(), result


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(kernel, RBF)",
        "isinstance(rho.kernel, kdm.Cosine)",
        "isinstance(kernel, (Kernel, Categorical))",
        "isinstance(kernel, RBF | Tricube)",
        "type(kernel) is RBF",
        "type(kernel) in (RBF, Cosine)",
        "match kernel:\n    case RBF():\n        pass",
    ],
)
def test_a_test_for_a_class_is_seen(code: str) -> None:
    assert list(class_tests(ast.parse(code)))


@pytest.mark.parametrize("code", ["isinstance(kernel, Kernel)", "RBF(0.3)", "type(a) is type(b)"])
def test_what_is_no_test_for_a_class(code: str) -> None:
    assert not list(class_tests(ast.parse(code)))


# ---- what is imported


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Modules of kdmkit and the names imported from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kdmkit":
            yield from ((str(node.module), alias.name) for alias in node.names)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_no_private_name_is_imported_from_another_package() -> None:
    """This is about names; a contract of import-linter covers private modules."""
    result = [
        (name_of(path), module, name)
        for path in FILES
        for module, name in imports(parsed(path))
        if is_private(name) and name != "_core" and module.split(".")[1:2] != [room_of(path)]
    ]
    assert not result


# ---- names and classes


def twice(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Names that stand in several places, with the places."""
    places: dict[str, list[str]] = {}
    for name, place in names:
        places.setdefault(name, []).append(place)
    return {name: where for name, where in places.items() if len(where) > 1}


def test_a_class_name_means_one_class() -> None:
    classes = (
        (node.name, name_of(path))
        for path in FILES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
    )
    assert not twice(classes)


def test_a_module_name_means_one_module() -> None:
    modules = ((path.stem, name_of(path)) for path in FILES)
    assert not {name: where for name, where in twice(modules).items() if name not in SHARED_NAMES}


@cache
def library_classes() -> frozenset[type]:
    modules = pkgutil.walk_packages(kdmkit.__path__, "kdmkit.")
    names = [module.name for module in modules if not module.name.endswith(("__main__", *UNIMPORTABLE))]
    return frozenset(
        value
        for name in names
        for value in vars(importlib.import_module(name)).values()
        if inspect.isclass(value) and value.__module__ == name
    )


def test_a_class_is_abstract_or_final() -> None:
    """A class that others extend has abstract methods; exceptions are a hierarchy of names."""
    bases = {
        base
        for value in library_classes()
        for base in value.__bases__
        if base in library_classes() and not issubclass(base, Exception)
    }
    concrete = {base.__qualname__ for base in bases if not inspect.isabstract(base)}
    assert concrete == CONCRETE_BASES.keys()


# ---- size


def test_files_are_short() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in FILES}
    assert not {name: length for name, length in lengths.items() if length >= LONGEST_FILE}


# ---- rooms

MODULES = {".".join(("kdmkit", *path.relative_to(SOURCE).with_suffix("").parts)): path for path in FILES}


def defining_module(module: str, name: str) -> str | None:
    """The module of kdmkit that a name comes from, through the packages that pass it on."""
    if f"{module}.{name}" in MODULES:
        return f"{module}.{name}"
    package = MODULES.get(f"{module}.__init__")
    sources = {} if package is None else {part: source for source, part in imports(parsed(package))}
    if name in sources and sources[name] != module:
        return defining_module(sources[name], name)
    return module if module in MODULES else None


def importers() -> dict[str, set[str]]:
    """The modules that import from a module; a package that only passes names on is none of them."""
    result: dict[str, set[str]] = {}
    for importer, path in MODULES.items():
        if path.stem != "__init__":
            for module in {defining_module(*pair) for pair in imports(parsed(path))} - {None, importer}:
                result.setdefault(str(module), set()).add(importer)
    return result


def test_few_modules_have_one_importer() -> None:
    """A module for one importer, that nobody would look for alone, belongs into the importer's file."""
    single = sorted(module for module, users in importers().items() if len(users) == 1)
    assert len(single) <= MOST_WITH_ONE_IMPORTER, single


def test_names_are_followed_through_packages() -> None:
    assert defining_module("kdmkit", "RBF") == "kdmkit.kernels.rbf"
    assert defining_module("kdmkit.training", "Rows") == "kdmkit.training.fit_arguments"


# ---- documents


ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(path for pattern in ("*.md", "docs/*.md", "results/*.md") for path in ROOT.glob(pattern))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", document.read_text(encoding="utf-8"))
    paths = [target for target in targets if "://" not in target]
    assert not [path for path in paths if not (document.parent / path).exists()]


def test_the_architecture_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/.]+(?:\.py|/))`", text))
    assert len(named) > 30
    assert not [name for name in named if not any((root / name).exists() for root in (SOURCE, ROOT))]
