"""Files that are no saved models, although most look like one.

Most come with a digest that fits: what has to be found is the damage itself.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import struct
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

import kdmkit as kdm
from kdmkit.nn import JointLayer, Variable
from kdmkit.serialize.io import KINDS, digest, read_tensors

MODELS = Path(__file__).parent / "models_0_2"
#: Saved models whose every entry is replaced.
NAMES = (
    "proportions-mlp",
    "regressor-memory",
    "density-full",
    "proportions",
    "joint",
    "kdm-rbf-per-component",
)
HUGE = (10**6, 10**9, 10**12, 2**63, -1, 0, 10**30)

#: Entries with a default value.
_OPTIONAL = ("layer", "trend", "dropout", "normalize", "shape", "clip")

#: The oldest safetensors does not write complex numbers.
_SAVES_COMPLEX = tuple(map(int, version("safetensors").split(".")[:2])) >= (0, 6)

Config = dict[str, Any]
Tensors = dict[str, Tensor]
Case = tuple[str, Callable[[Path], None]]


def mixed_layer() -> JointLayer:
    """A layer with codes: no tensor says how many there are."""
    variables = [Variable("job", kdm.Categorical(4, 0.1), ()), Variable("mood", kdm.Cosine(), 3)]
    return JointLayer.from_variables(variables, 6, inputs=["job"])


def contents(path: Path) -> tuple[Config, Tensors]:
    """Description and tensors of a saved file."""
    text, tensors = read_tensors(path)
    config = json.loads(text)
    del config["sha256"]
    return config, tensors


def write(path: Path, config: Any, tensors: Tensors) -> None:
    write_text(path, json.dumps(config), tensors)


def write_text(path: Path, text: str, tensors: Tensors) -> None:
    try:
        checksum = digest(text, tensors)
    except (RuntimeError, TypeError):  # a dtype that no model has
        checksum = ""
    plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
    if text.startswith("{"):
        text = f'{{"sha256":"{checksum}",{text[1:]}'
    path.write_bytes(save(plain, {"kdmkit": text}))


# ---- places in a description


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every entry of nested dicts and lists; of long lists the first two items."""
    if path:
        yield path, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    if isinstance(value, list):
        for i, item in enumerate(value[:2]):
            yield from places(item, (*path, i))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with another entry; `...` removes it."""
    copy = json.loads(json.dumps(value))
    target = copy
    for key in path[:-1]:
        target = target[key]
    if new is ...:
        del target[path[-1]]
    else:
        target[path[-1]] = new
    return copy


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def _descriptions(name: str, config: Config, tensors: Tensors) -> Iterator[Case]:
    def case(kind: str, path: tuple[Any, ...], new: Any) -> Case:
        bad = changed(config, path, new)
        return f"{name}: {_dotted(path)} {kind}", lambda target: write(target, bad, tensors)

    for path, value in places(config):
        if not isinstance(value, dict):
            yield case("is an object", path, {"a": 1})
        if isinstance(value, dict | list):
            yield case("is a number", path, 3)
            yield case("is text", path, "x")
        is_size = isinstance(value, int) and not isinstance(value, bool)
        if path[0] in ("module", "layer", "kernels"):
            if is_size:
                for number in HUGE:
                    # A million categories are legal.
                    if (path[-1], number) != ("n", 10**6):
                        yield case(f"is {number:.0g}", path, number)
            optional = path[-1] in _OPTIONAL or "train" in path[:-1]
            if len(path) < 5 and not optional and isinstance(path[-1], str):
                yield case("is missing", path, ...)
    for entry in ("format", "class", "fitted", "parameters"):
        if entry in config:
            yield case("is missing", (entry,), ...)
    yield f"{name}: an unknown entry", lambda target: write(target, {**config, "magic": 1}, tensors)


def _classes(name: str, config: Config, tensors: Tensors) -> Iterator[Case]:
    same = {config["class"], "JointKDM"}  # a KDM is a joint of one variable
    for other in [*sorted(set(KINDS) - same), "nn.Module", "os.system", "", [], None, 3]:
        bad = {**config, "class": other}
        yield f"{name}: class {other!r}", lambda target, bad=bad: write(target, bad, tensors)
    for number in (0, -1, 1, 3, 10**30, "2", 2.5, True, None, [2]):
        bad = {**config, "format": number}
        yield f"{name}: format {number!r}", lambda target, bad=bad: write(target, bad, tensors)


# ---- tensors


def _tensors(name: str, config: Config, tensors: Tensors) -> Iterator[Case]:
    def case(kind: str, key: str, new: Tensor | None) -> Case:
        others = {k: v for k, v in tensors.items() if k != key}
        bad = others if new is None else {**others, key: new}
        return f"{name}: {key} {kind}", lambda target: write(target, config, bad)

    for key, tensor in tensors.items():
        yield case("is missing", key, None)
        yield case("has one row more", key, torch.zeros(tensor.shape[0] + 1 if tensor.ndim else 1))
        yield case("is empty", key, torch.zeros(0))
        if _SAVES_COMPLEX:
            yield case("is complex", key, tensor.to(torch.complex64))
        yield case("is float8", key, tensor.to(torch.float8_e5m2))
        if tensor.is_floating_point():
            yield case("holds NaN", key, _with(tensor, torch.nan))
            yield case("is infinite", key, _with(tensor, torch.inf))
            yield case("is integer", key, tensor.long())
            yield case("is boolean", key, tensor.bool())
        else:
            yield case("is float", key, tensor.double())
            yield case("is out of range", key, tensor + 10**6)
    for extra in ("magic", "../../magic", "__class__", "layer.magic", "x" * 10_000):
        yield case("is extra", extra, torch.zeros(3))
    yield f"{name}: no tensors", lambda target: write(target, config, {})


def _with(tensor: Tensor, value: float) -> Tensor:
    tensor = tensor.clone()
    tensor.view(-1)[0] = value
    return tensor


# ---- bytes


def _bytes(data: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    for cut in (0, 1, 7, 8, 9, 100, len(data) // 2, len(data) - 1):
        yield f"the first {cut} bytes", data[:cut]
    yield "one byte more", data + b"\0"
    for _ in range(40):
        position, bit = rng.randrange(len(data)), rng.randrange(8)
        flipped = bytearray(data)
        flipped[position] ^= 1 << bit
        yield f"bit {bit} of byte {position} flipped", bytes(flipped)
    for length in (2**63, 2**40, 10**8, len(data), 0):
        yield f"a header of {length} bytes", struct.pack("<Q", length) + data[8:]
    yield "a pickle", pickle.dumps({"model": 1})
    yield "text", b"hello" * 100
    yield "random bytes", rng.randbytes(5000)
    yield "zeros", bytes(5000)


def _headers(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Headers that lie about the data behind them."""
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    first = next(name for name in header if name != "__metadata__")

    def made(new: Any) -> bytes:
        text = new if isinstance(new, bytes) else json.dumps(new).encode()
        return struct.pack("<Q", len(text)) + text + body

    yield "no metadata", made({k: v for k, v in header.items() if k != "__metadata__"})
    for entry in header["__metadata__"]:
        rest = {k: v for k, v in header["__metadata__"].items() if k != entry}
        yield f"metadata without {entry}", made({**header, "__metadata__": rest})
        yield f"metadata with empty {entry}", made({**header, "__metadata__": {**rest, entry: ""}})
        yield f"metadata with a number as {entry}", made({**header, "__metadata__": {**rest, entry: 3}})
    changes: dict[str, Any] = {
        "a shape of 10¹²": {"shape": [10**12]},
        "a shape of 2⁶³": {"shape": [2**63, 2]},
        "a negative shape": {"shape": [-1]},
        "offsets beyond the file": {"data_offsets": [0, 10**12]},
        "offsets backwards": {"data_offsets": [8, 0]},
        "an unknown dtype": {"dtype": "OBJECT"},
    }
    for name, change in changes.items():
        yield f"{name} in the header", made({**header, first: {**header[first], **change}})
    yield "a list as header", made([1, 2])
    yield "a deep header", made(b"[" * 100_000 + b"]" * 100_000)
    yield "a header of 20 MB", made(b"{" + b" " * (20 << 20) + b"}")


# ---- JSON


def _texts(config: Config) -> Iterator[tuple[str, str]]:
    text = json.dumps(config)
    yield "two digests", text[:-1] + ', "sha256": "0"}'
    yield "a digest that is a list", text[:-1] + ', "sha256": [0]}'
    opened = text[:-1]
    yield "deep nesting", opened + ', "a": ' + "[" * 100_000 + "]" * 100_000 + "}"
    yield "nesting below the recursion limit", opened + ', "a": ' + "[" * 500 + "]" * 500 + "}"
    yield "deep objects", opened + ', "a": ' + '{"a": ' * 500 + "1" + "}" * 500 + "}"
    yield "a long string", opened + f', "a": "{"x" * 10**6}"' + "}"
    yield "a long key", opened + f', "{"x" * 10**6}": 1' + "}"
    yield "a million entries", opened + ', "a": [' + "[]," * 10**6 + "1]}"
    yield "nine million characters", opened + ', "a": [' + "1," * 4_500_000 + "1]}"
    yield "a hundred thousand keys", opened + "".join(f', "k{i}": 1' for i in range(10**5)) + "}"
    yield "a whole number of 5,000 digits", opened + ', "a": ' + "9" * 5000 + "}"
    yield "a float of 1e999", opened + ', "a": 1e999}'
    yield "NaN", opened + ', "a": NaN}'
    yield "Infinity", opened + ', "a": -Infinity}'
    yield "a list", "[1, 2]"
    yield "a number", "3"
    yield "nothing", ""
    yield "half of it", text[: len(text) // 2]
    yield "two objects", text + text
    yield "lone surrogates", opened + ', "a\\ud800": "\\udfff"}'


def _tricks(config: Config) -> Iterator[tuple[str, Config]]:
    """Entries of an estimator that a constructor or an attribute would take."""
    for name in (
        "predict",
        "module_",
        "__class__",
        "__dict__",
        "fit",
        "classes_x",
        "_device",
        "n_components",
    ):
        yield f"fitted {name}", changed(config, ("fitted", name), 3)
    for name in ("magic", "self", "__init__"):
        yield f"parameter {name}", changed(config, ("parameters", name), 1)
    for folder in ("/tmp/elsewhere", "../..", "", {"$array": ["x"], "dtype": "<U1"}):
        yield f"checkpoint_dir {folder!r}", changed(config, ("parameters", "checkpoint_dir"), folder)
    for dtype in ("<U1000000000", "(1000000000,)f8", "V8", "M8[D]", "f8,f8", "magic", 3, None, {"names": []}):
        array = {"$array": [0, 1, 2], "dtype": dtype}
        yield f"classes of dtype {dtype!r}", changed(config, ("fitted", "classes_"), array)
    for values in ([], [0], [0, 1, 2, 3], [[0], [1], [2]], [[0], [1, 2]], "abc", {"$array": [1]}):
        array = {"$array": values, "dtype": "<i8"}
        yield f"classes {values!r}", changed(config, ("fitted", "classes_"), array)
    for module in ("Linear", "os.system"):
        yield f"a module {module}", changed(config, ("parameters", "encoder"), {"$module": module})
        custom = changed(config, ("module", "encoder"), {"own": module})
        yield f"an own encoder {module}", custom
    for number in ("x", "nan()", None, 3):
        yield f"a float {number!r}", changed(config, ("parameters", "sigma"), {"$float": number, "a": 1})
    for n in (0, -1, 3, 5, 10**6, 10**9, 10**12, 2.5):
        yield f"{n} features", changed(config, ("fitted", "n_features_in_"), n)
    for name in ("a b", "../x", "__class__", "training", "target", "", "x.y", "é" * 70_000):
        yield f"variable {name[:20]!r}", changed(config, ("module", "layer", "variables", 0, "name"), name)
    for width in ([4], [4, 8], [4] * 5000, [0, 0], [4, -1, 2], [4, 10**9, 2], []):
        mlp = {"mlp": {"sizes": width, "dropout": 0.1, "normalize": True, "shape": None}}
        yield f"an encoder of widths {str(width)[:30]}", changed(config, ("module", "encoder"), mlp)
    layer = ("module", "layer")
    for dtype in ("int64", "complex64", "float8_e5m2", "float32", "nn", "magic", ""):
        yield f"layer of dtype {dtype!r}", changed(config, (*layer, "dtype"), dtype)
    variable = config["module"]["layer"]["variables"][0]
    many = {
        "sigmas": ((*layer, "variables", 0, "kernel", "sigma"), [1.0] * 500_000),
        "rows of sigmas": ((*layer, "variables", 0, "kernel", "sigma"), [[1.0]] * 300_000),
        "variables": ((*layer, "variables"), [{**variable, "name": f"x{i}"} for i in range(8000)]),
        "variables of one name": ((*layer, "variables"), [variable] * 8000),
        "inputs": ((*layer, "inputs"), ["x"] * 300_000),
        "epochs of text": (("fitted", "history_"), [{"loss": "x"}] * 200_000),
        "classes": (("fitted", "classes_"), {"$array": list(range(300_000)), "dtype": "<i8"}),
        "dimensions": ((*layer, "variables", 0, "shape"), [1] * 300_000),
    }
    for name, (path, value) in many.items():
        yield f"many {name}", changed(config, path, value)
    for n in (10**3, 10**6, 10**9):
        members = {"ensemble": {"sizes": [4, 8, 3], "n_members": n}, "memory": None}
        yield f"a trend of {n} members", changed(config, ("module", "trend"), members)
        memory = {"rows": n, "d": 4, "outputs": 3}
        trend = {"ensemble": {"sizes": [4, 8, 3], "n_members": 2}, "memory": memory}
        yield f"a memory of {n} rows", changed(config, ("module", "trend"), trend)


# ---- other things than files


def link_to_nothing(target: Path) -> None:
    target.symlink_to(target.parent / "nowhere")


def pipe(target: Path) -> None:
    os.mkfifo(target)


def empty_folder(target: Path) -> None:
    target.mkdir()


def folder_of_version_0_1(target: Path) -> None:
    target.mkdir()
    (target / "config.json").write_text('{"format": 1, "kdmkit": "0.1.0", "class": "KDMDensity"}')
    (target / "model.safetensors").write_bytes(save({"x": torch.zeros(3)}))


_OTHER_THINGS = (link_to_nothing, pipe, empty_folder, folder_of_version_0_1)


def cases(scratch: Path, seed: int = 0) -> list[Case]:
    """Names of hostile files, and functions that write them to a path.

    Args:
        scratch: a folder for the models that they are made from.
    """
    rng = random.Random(seed)
    every: list[Case] = [(thing.__name__, thing) for thing in _OTHER_THINGS]
    for name in (*NAMES, "mixed"):
        kdm.save(mixed_layer() if name == "mixed" else kdm.load(MODELS / name), scratch / name)
        config, tensors = contents(scratch / name)
        for part in (_descriptions, _classes, _tensors):
            every += part(name, config, tensors)
    data = (scratch / "proportions-mlp").read_bytes()
    for name, bad in [*_bytes(data, rng), *_headers(data)]:
        every.append((f"bytes: {name}", lambda target, bad=bad: target.write_bytes(bad) and None))
    config, tensors = contents(scratch / "proportions")
    for name, text in _texts(config):
        every.append((f"text: {name}", lambda target, text=text: write_text(target, text, tensors)))
    for name, trick in _tricks(config):
        every.append((f"trick: {name}", lambda target, trick=trick: write(target, trick, tensors)))
    return every
