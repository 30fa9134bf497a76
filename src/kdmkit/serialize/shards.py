"""Parts of a saved mixture: every process reads its own components."""

from __future__ import annotations

import json
import math
import os
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kdmkit._core.checks import bad_argument, check_device
from kdmkit.distributions import KDM, JointKDM
from kdmkit.distributions.shards import Processes, shard_of
from kdmkit.kernels import Kernel, check_continuous, kernel_from_config
from kdmkit.serialize.file import check_format, checked_path, described
from kdmkit.serialize.modules import check_values, put
from kdmkit.serialize.weights import check_no_nan, clear_errors, read_header

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_DTYPES |= {"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8}


def load_shard(
    path: str | Path,
    *,
    group: Any = None,
    device: str | torch.device = "cpu",
    prepared: bool = False,
) -> Any:
    """The KDM or JointKDM that `save` wrote, divided among processes: see `join_shards`.

    All processes call it. Each reads its own components, an equal share of them in the order of the file, and
    their weights. Checking the digest of the file would need all of its bytes. `load` does so; `load_shard`
    compares the digest in the header between processes, so that all read the same file.

    Args:
        path: the file, which all processes see.
        group: of `torch.distributed`; None is all processes.
        device: where the shard goes.
        prepared: whether a JointKDM is prepared for many questions (`JointKDM.prepared`).

    Returns:
        A KDM or a JointKDM, as was saved.

    >>> import tempfile
    >>> import kdmkit as kdm
    >>> store = torch.distributed.HashStore()
    >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kdm.save(kdm.KDM.from_samples(torch.tensor([[0.0], [1.0]]), kdm.RBF(1.0)), f"{folder}/rho")
    ...     kdm.load_shard(f"{folder}/rho").mean
    tensor([0.5000])
    >>> torch.distributed.destroy_process_group()
    """
    place, processes = check_device("device", device), Processes(group)
    file = checked_path(path)
    shard, problem = None, None
    try:
        with clear_errors(file), file.open("rb") as stream:
            shard = _Shard.of(file, stream, processes)
    except ValueError as error:
        problem = error
    # All processes learn of an error in one of them: none waits for ever.
    told = processes.gather((None if shard is None else shard.digest, str(problem or "")))
    for rank, (digest, message) in enumerate(told):
        if message:
            raise ValueError(f"process {rank}: {message}") from problem
        if digest != told[0][0]:
            raise ValueError(bad_argument("path", "one file for all processes", f"another in process {rank}"))
    assert shard is not None
    rho = shard.rho.to(place)
    return shard_of(rho.prepared() if prepared else rho, shard.log_share, processes)


class _Shard:
    """The components of one process.

    Attributes:
        rho: a KDM or JointKDM with them.
        log_share: the logarithm of the sum of their weights in the mixture of all processes.
        digest: of the whole file, as its description says.
    """

    rho: Any
    log_share: float
    digest: str

    @classmethod
    def of(cls, file: Path, stream: BufferedReader, processes: Processes) -> _Shard:
        start = read_header(file, stream)
        header = json.loads(start[8:])
        metadata, entries = header.pop("__metadata__", {}), header
        config = described(file, metadata, os.fstat(stream.fileno()).st_size)
        check_format(file, config)
        if config.get("class") not in ("KDM", "JointKDM"):
            raise ValueError(bad_argument(str(file), "a saved KDM or JointKDM", config.get("class")))
        shape = entries["log_weights"]["shape"]
        if len(shape) != 1 or shape[0] < processes.count:
            wanted = f"at least {processes.count} components, without a batch"
            raise ValueError(bad_argument(str(file), wanted, f"weights of shape {tuple(shape)}"))
        reader = _Reader(stream, entries, len(start), shape[0], processes)
        shard = cls()
        shard.digest = config["sha256"]
        kernels = {name: reader.kernel(name, described) for name, described in config["kernels"].items()}
        components = {name: reader.rows(f"components.{name}") for name in kernels}
        log_weights = reader.rows("log_weights")
        check_no_nan(str(file), {**components, "log_weights": log_weights})
        shard.log_share = float(log_weights.double().logsumexp(0))
        own = (log_weights.double() - shard.log_share).to(log_weights.dtype)
        if config["class"] == "KDM":
            shard.rho = KDM(components["x"], None, kernels["x"], log_weights=own)
        else:
            shard.rho = JointKDM(components, None, kernels, log_weights=own)
        return shard


class _Reader:
    """Reads tensors, or some of their rows, from a safetensors file.

    Args:
        entries: of its header.
        start: where the data begins.
        m: the number of components.
    """

    def __init__(
        self, stream: BufferedReader, entries: dict[str, Any], start: int, m: int, processes: Processes
    ) -> None:
        self._stream, self._entries, self._start, self._m = stream, entries, start, m
        rank, count = processes.rank, processes.count
        self._part = slice(m * rank // count, m * (rank + 1) // count)

    def rows(self, name: str) -> Tensor:
        """The rows of this process's components."""
        if self._entries[name]["shape"][:1] != [self._m]:
            wanted = f"{self._m} components"
            raise ValueError(bad_argument(name, wanted, f"shape {tuple(self._entries[name]['shape'])}"))
        return self._read(name, self._part)

    def kernel(self, name: str, config: dict[str, Any]) -> Kernel:
        """A variable's kernel; where every component has a bandwidth, with those of this process."""
        start = f"kernels.{name}."
        names = [key.removeprefix(start) for key in self._entries if key.startswith(start)]
        part = _for_components(config, self._m, self._part.stop - self._part.start)
        tensors = {}
        for key in names:
            whole = self._entries[start + key]["shape"][:1] != [self._m] or part == config
            tensors[key] = self._read(start + key, slice(None) if whole else self._part)
        kernel = kernel_from_config(part)
        put(kernel, tensors)
        check_values(kernel)
        # A few numbers are in the description, and read whole.
        if part == config and kernel.per_component:
            return check_continuous(name, kernel).take(self._part)
        return kernel

    def _read(self, name: str, part: slice) -> Tensor:
        entry = self._entries[name]
        dtype, shape, (begin, end) = _DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        rows = range(shape[0] if shape else 1)[part]
        row = dtype.itemsize * math.prod(shape[1:])
        whole = range(os.fstat(self._stream.fileno()).st_size - self._start + 1)
        if end - begin != dtype.itemsize * math.prod(shape) or begin not in whole or end not in whole:
            raise ValueError(bad_argument(name, f"the bytes of shape {tuple(shape)}", f"{begin} to {end}"))
        self._stream.seek(self._start + begin + rows.start * row)
        data = bytearray(len(rows) * row)
        if self._stream.readinto(data) != len(data):
            raise ValueError(bad_argument(name, f"{len(data)} bytes", "the end of the file"))
        return torch.frombuffer(data, dtype=dtype).reshape((len(rows), *shape[1:]) if shape else ())


def _for_components(config: Any, m: int, count: int) -> Any:
    """A kernel's description for some of its m components: shapes that begin with m begin with `count`."""
    if not isinstance(config, dict):
        return config
    shape = config.get("shape")
    if isinstance(shape, list) and shape[:1] == [m]:
        return {**config, "shape": [count, *shape[1:]]}
    return {key: _for_components(value, m, count) for key, value in config.items()}
