"""When the Triton backend is used, and what happens where it cannot be."""

import math
import sys
from typing import Never

import pytest
import torch
from torch import Tensor

from kdmkit.ops import BACKENDS, SquaredDistance, api, choose_backend, log_mix
from kdmkit.ops.api import IMPLEMENTATIONS, Implementation
from kdmkit.ops.terms import Reduction
from kdmkit.ops.triton import backend as triton_backend
from kdmkit.ops.triton import staging


def term(
    n: int = 3, m: int = 4, d: int = 2, dtype: torch.dtype = torch.float32
) -> tuple[SquaredDistance, Tensor]:
    x, c = (torch.zeros(k, d, dtype=dtype) for k in (n, m))
    return SquaredDistance(x, c, torch.ones(1, 1, dtype=dtype)), torch.zeros(m, dtype=dtype)


@pytest.fixture
def _untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a new process: Triton has not been tried, and no warning was given."""
    monkeypatch.setattr(triton_backend, "_REASONS", {})
    monkeypatch.setattr(triton_backend, "_warned", False)


@pytest.mark.usefixtures("_untried")
def test_triton_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    squared, log_weights = term()
    with pytest.raises(RuntimeError, match=r'^backend: "triton" does not work here \(ModuleNotFoundError'):
        log_mix(squared, log_weights, backend="triton")


@pytest.mark.usefixtures("_untried")
def test_triton_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("no C compiler found\nand much more")

    monkeypatch.setattr(staging, "stage", broken)
    squared, log_weights = term()
    with pytest.raises(RuntimeError, match=r"\(OSError: no C compiler found\)"):
        log_mix(squared, log_weights, backend="triton")


def test_a_cpu_needs_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert triton_backend._try_triton("cpu") == "expected tensors on a CUDA device, got cpu"


@pytest.mark.usefixtures("_untried")
def test_one_warning_says_why(monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder) -> None:
    monkeypatch.setitem(triton_backend._REASONS, "cuda", "OSError: no C compiler found")
    reduction = Reduction([term()[0]], term()[1])
    object.__setattr__(reduction, "device_type", "cuda")
    assert not triton_backend.is_usable(reduction)
    assert not triton_backend.is_usable(reduction)
    (warning,) = recwarn.list
    assert warning.category is RuntimeWarning
    assert str(warning.message) == (
        'backend "triton" does not work here, using "chunked" instead (OSError: no C compiler found)'
    )


@pytest.mark.usefixtures("_untried")
def test_a_failing_kernel_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` on a GPU where a kernel does not compile: a warning, and the result of `chunked`."""

    def fail(reduction: Reduction) -> Never:
        raise triton_backend.KernelError("out of registers")

    def works(reduction: Reduction) -> bool:
        return triton_backend.why_unusable(reduction.device_type) is None

    failing = Implementation("failing", "triton", fail, automatic=works)
    monkeypatch.setattr(api, "IMPLEMENTATIONS", (failing, *IMPLEMENTATIONS))
    squared, log_weights = term()
    with pytest.warns(RuntimeWarning, match="out of registers"):
        lse = log_mix(squared, log_weights)
    torch.testing.assert_close(lse, torch.full((3,), math.log(4)))
    assert triton_backend.why_unusable("cpu") == "out of registers"


def test_errors_in_kernels_are_kernel_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("ptxas: command not found")

    monkeypatch.setattr(staging.Whitening, "stage", fail)
    squared, log_weights = term()
    with pytest.raises(triton_backend.KernelError, match="OSError: ptxas"):
        log_mix(squared, log_weights, backend="triton")


def test_auto_takes_triton_only_on_a_gpu() -> None:
    squared, log_weights = term(3000, 3000)
    assert choose_backend([squared], log_weights) == "chunked"
    assert choose_backend([squared]) == "chunked"


X = torch.zeros(3, 2)
LOG_WEIGHTS = torch.zeros(4)


@pytest.mark.parametrize(
    ("squared", "log_weights", "values", "message"),
    [
        (*term(dtype=torch.float64), None, "expected float32, bfloat16 or float16, got torch.float64"),
        (*term(d=513), None, "expected at most 512 dimensions, got 513"),
        (*term(), torch.zeros(4, 129), "expected 1 to 128 values, got 129"),
        (term()[0], torch.zeros(3, 4), None, "without leading dimensions, got .3, 4."),
        (SquaredDistance(X, torch.zeros(5, 4, 2), torch.ones(1, 1)), LOG_WEIGHTS, None, "got .5, 4, 2."),
    ],
)
def test_unsupported_problems(
    squared: SquaredDistance, log_weights: Tensor, values: Tensor | None, message: str
) -> None:
    with pytest.raises(ValueError, match='^backend "triton": .*' + message):
        api.reduce(Reduction([squared], log_weights, values), "triton")


def test_sums_of_terms_are_unsupported() -> None:
    squared, log_weights = term()
    with pytest.raises(ValueError, match="expected one term of squared distances, got"):
        log_mix([squared, squared], log_weights, backend="triton")


def test_backends_are_named() -> None:
    assert {"auto", *(implementation.backend for implementation in IMPLEMENTATIONS)} == set(BACKENDS)


@pytest.mark.parametrize("programs", [1, 8, 32, 500])
@pytest.mark.parametrize("blocks", [1, 7, 600])
def test_splits_fill_the_device(programs: int, blocks: int) -> None:
    splits = staging.choose_splits(programs, blocks, 264)
    assert 1 <= splits <= min(blocks, 64)
    if programs * blocks <= 264:
        assert splits == blocks or programs * splits >= 132


@pytest.mark.parametrize("d", [2, 20, 64, 100, 512])
@pytest.mark.parametrize("v", [0, 1, 16, 100])
@pytest.mark.parametrize("passes", [1, 3])
def test_blocks_divide_groups(d: int, v: int, passes: int) -> None:
    plan = staging.Plan(d, v, passes)
    assert plan.width >= d
    assert plan.width % plan.block_d == plan.width % plan.block_out == 0
    assert plan.segment % 128 == plan.point_rows % 128 == 0
    for kernel in ("forward", "points", "components"):
        for config in staging.configs(kernel, plan):  # type: ignore[arg-type]
            assert 128 % config.block_m == 128 % config.block_n == 0


def test_a_device_with_little_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_WORKING", {})
    plan, tried = staging.Plan(64, 16, 3), []

    def start(config: staging.Config, limit: int) -> None:
        tried.append(config)
        if config.block_n > limit:
            raise staging.OutOfResources(1, 0, "shared memory")

    staging.launch("forward", plan, start, 32)
    assert [config.block_n for config in tried] == [64, 32]
    staging.launch("forward", plan, start, 32)
    assert len(tried) == 3, "the second time it begins with what worked"
    with pytest.raises(triton_backend.KernelError, match="no configuration of the forward kernel fits"):
        staging.launch("forward", plan, start, 0)
