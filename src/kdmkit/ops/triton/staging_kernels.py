# mypy: disable-error-code="no-untyped-def"
"""Triton kernels that stage operands in half precision, and the functions that all kernels share.

Scores are kept in units of log 2. The matrix units multiply half-precision numbers twice as fast as TF32 and
with the same 11 bits, but half precision has a narrow range. So operands are *staged*: centred, whitened,
multiplied by a power of two that moves the largest of a group of rows into [2^14, 2^15), and split into a
high and a low half. `PASSES` = 1 multiplies the high halves, as accurate as TF32; `PASSES` = 3 adds the
products of high with low and keeps 22 of the 24 bits of float32. Staged rows are padded to whole groups and
columns to whole blocks, so that the other kernels need no masks.

The matrix units truncate when they accumulate. Long sums are therefore computed outside of them: the product
of every tile is added to the running sum by ordinary float32 arithmetic, which rounds.

Runtime type checkers wrap functions, and Triton reads their source: `no_type_check` prevents that.
"""

from typing import no_type_check

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
# Rows that share a power of two; blocks of rows divide it.
GROUP = tl.constexpr(128)
# Weights are exp2(score − maximum + 15): as large as half precision holds, so that weights down to 2^-39 of
# the largest survive.
PEAK = tl.constexpr(15.0)
# Columns of the array of biases. All but the first are −∞: see `load_bias`.
COPIES = tl.constexpr(4)


@triton.jit
@no_type_check
def power_of_two(exponent):
    """2^exponent, exactly (the hardware's exponential is an approximation), for exponents in −126 … 127."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
@no_type_check
def add_exactly(total, lost, shrink, more):
    """total·shrink + more, and its rounding error, to be subtracted the next time (Kahan's sum).

    Sums of millions of weights would lose three digits to rounding.
    """
    shrunk = total * shrink
    wanted = more - lost * shrink
    new = shrunk + wanted
    return new, (new - shrunk) - wanted


@triton.jit
@no_type_check
def load_tile(pointer, rows, columns, WIDTH: tl.constexpr):
    """A tile of a staged array."""
    return tl.load(pointer + rows[:, None] * WIDTH + columns[None, :])


@triton.jit
@no_type_check
def load_bias(bias, rows, WARPS: tl.constexpr, BLOCK: tl.constexpr):
    """One number per row.

    With fewer numbers than threads Triton would have every thread load all that it needs by itself. A load of
    at least as many numbers as threads goes through shared memory, once.
    """
    WANTED: tl.constexpr = 32 * WARPS // BLOCK
    WIDE: tl.constexpr = 1 if WANTED <= 1 else (2 if WANTED == 2 else COPIES)
    return tl.max(tl.load(bias + rows[:, None] * COPIES + tl.arange(0, WIDE)[None, :]), 1)


@triton.jit
@no_type_check
def load_halves(high, low, rows, columns, WIDTH: tl.constexpr, PASSES: tl.constexpr):
    """A tile in halves; with one pass, which does not use the low half, the high one twice."""
    tile = load_tile(high, rows, columns, WIDTH)
    return tile, load_tile(low, rows, columns, WIDTH) if PASSES == 3 else tile


@triton.jit
@no_type_check
def add_product(start, a_high, a_low, b_high, b_low, PASSES: tl.constexpr):
    """start + a·b for operands in halves."""
    if PASSES == 3:
        start = tl.dot(a_low, b_high, start)
        start = tl.dot(a_high, b_low, start)
    return tl.dot(a_high, b_high, start)


@triton.jit
@no_type_check
def product(a_high, a_low, b_high, b_low, PASSES: tl.constexpr):
    """a·b for operands in halves."""
    zero = tl.zeros((a_high.shape[0], b_high.shape[1]), dtype=tl.float32)
    return add_product(zero, a_high, a_low, b_high, b_low, PASSES)


@triton.jit
@no_type_check
def split_product(a, b_high, b_low, PASSES: tl.constexpr):
    """a·b for b in halves; a is split here."""
    a_high = a.to(tl.float16)
    a_low = (a - a_high.to(tl.float32)).to(tl.float16) if PASSES == 3 else a_high
    return product(a_high, a_low, b_high, b_low, PASSES)


@triton.jit
@no_type_check
def inner_products(
    a_high,
    a_low,
    a_rows,
    b_high,
    b_low,
    b_rows,
    WIDTH: tl.constexpr,
    PASSES: tl.constexpr,
    BLOCK_A: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Products of staged rows over more dimensions than shared memory holds at once."""
    total = tl.zeros((BLOCK_A, BLOCK_B), dtype=tl.float32)
    for chunk in tl.range(0, WIDTH // BLOCK_D, num_stages=STAGES):
        dims = chunk * BLOCK_D + tl.arange(0, BLOCK_D)
        ah, al = load_halves(a_high, a_low, a_rows, dims, WIDTH, PASSES)
        bh, bl = load_halves(b_high, b_low, b_rows, dims, WIDTH, PASSES)
        total = add_product(total, ah, al, tl.trans(bh), tl.trans(bl), PASSES)
    return total


# Not specialised for sizes: they differ from call to call, and each would be compiled again.
@triton.jit(do_not_specialize=["n"])
@no_type_check
def stage_kernel(
    x,
    centre,
    unit,
    offset,
    high,
    low,
    bias,
    exponents,
    n,
    stride_row,
    stride_column,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PASSES: tl.constexpr,
    LIFT: tl.constexpr,
    HAS_OFFSET: tl.constexpr,
):
    """y = unit ∘ (x − centre) for one group of rows, in halves.

    With `LIFT` the rows share an exponent; `PASSES` = 0 stores y itself in `high`. With `HAS_OFFSET`, `bias`
    is offset − ‖y‖² (without `LIFT`: offset) in units of log 2, −∞ beyond the last row; else it is ‖y‖².
    """
    group = tl.program_id(0)
    rows = group * GROUP + tl.arange(0, GROUP)
    inside = rows < n
    places = tl.minimum(rows, n - 1).to(tl.int64)
    norms = tl.zeros((GROUP,), dtype=tl.float32)
    largest = tl.zeros((GROUP,), dtype=tl.float32)
    if LIFT:
        for start in tl.range(0, WIDTH, BLOCK_D):
            dims = start + tl.arange(0, BLOCK_D)
            y = _whiten(x, centre, unit, places, dims, stride_row, stride_column, D)
            norms += tl.sum(y * y, 1)
            largest = tl.maximum(largest, tl.max(tl.abs(y), 1))
        # The exponent of the largest number, read off its bits.
        peak = (tl.max(largest, 0).to(tl.int32, bitcast=True) >> 23) - 127
        exponent = tl.minimum(14 - peak, 100)
        tl.store(exponents + group, exponent)
        lift = power_of_two(exponent)
    else:
        lift = 1.0
    for start in tl.range(0, WIDTH, BLOCK_D):
        dims = start + tl.arange(0, BLOCK_D)
        y = _whiten(x, centre, unit, places, dims, stride_row, stride_column, D)
        if PASSES == 0:
            tl.store(high + rows[:, None] * D + dims[None, :], y, mask=(dims < D)[None, :])
        else:
            y = y * lift
            y_high = y.to(tl.float16)
            targets = rows[:, None] * WIDTH + dims[None, :]
            tl.store(high + targets, y_high)
            if PASSES == 3:
                tl.store(low + targets, (y - y_high.to(tl.float32)).to(tl.float16))
    if HAS_OFFSET:
        b = (tl.load(offset + places).to(tl.float32) - norms) * LOG2E
        b = tl.where(inside, b, float("-inf"))
        copies = tl.arange(0, COPIES)[None, :]
        tl.store(bias + rows[:, None] * COPIES + copies, tl.where(copies == 0, b[:, None], float("-inf")))
    elif LIFT:
        tl.store(bias + rows, norms)


@triton.jit
@no_type_check
def _whiten(x, centre, unit, places, dims, stride_row, stride_column, D: tl.constexpr):
    inside = dims < D
    pointers = x + places[:, None] * stride_row + dims.to(tl.int64)[None, :] * stride_column
    tile = tl.load(pointers, mask=inside[None, :], other=0.0).to(tl.float32)
    shift = tl.load(centre + dims, mask=inside, other=0.0)
    return (tile - shift[None, :]) * tl.load(unit + dims, mask=inside, other=0.0)[None, :]


@triton.jit(do_not_specialize=["n"])
@no_type_check
def stage_local(
    x,
    order,
    unit,
    offset,
    high,
    low,
    bias,
    exponents,
    centres,
    compact,
    n,
    stride_row,
    stride_column,
    limit,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    PASSES: tl.constexpr,
):
    """One group of components about the middle of its box, in halves; see `stage_kernel`.

    `compact` tells whether all ‖z‖² of the group are at most `limit` (and no number is NaN or infinite).
    """
    group = tl.program_id(0)
    rows = group * GROUP + tl.arange(0, GROUP)
    dims = tl.arange(0, WIDTH)
    places = tl.load(order + tl.minimum(rows, n - 1)).to(tl.int64)
    pointers = x + places[:, None] * stride_row + dims.to(tl.int64)[None, :] * stride_column
    tile = tl.load(pointers, mask=(dims < D)[None, :], other=0.0).to(tl.float32)
    centre = tl.min(tile, 0) * 0.5 + tl.max(tile, 0) * 0.5
    z = (tile - centre[None, :]) * tl.load(unit + dims, mask=dims < D, other=0.0)[None, :]
    norms = tl.sum(z * z, 1)
    largest = tl.max(tl.max(tl.abs(z), 1), 0)
    exponent = tl.minimum(14 - ((largest.to(tl.int32, bitcast=True) >> 23) - 127), 100)
    lifted = z * power_of_two(exponent)
    z_high = lifted.to(tl.float16)
    targets = rows[:, None] * WIDTH + dims[None, :]
    tl.store(high + targets, z_high)
    if PASSES == 3:
        tl.store(low + targets, (lifted - z_high.to(tl.float32)).to(tl.float16))
    b = tl.where(rows < n, (tl.load(offset + places).to(tl.float32) - norms) * LOG2E, float("-inf"))
    copies = tl.arange(0, COPIES)[None, :]
    tl.store(bias + rows[:, None] * COPIES + copies, tl.where(copies == 0, b[:, None], float("-inf")))
    tl.store(exponents + group, exponent)
    tl.store(centres + group * WIDTH + dims, centre)
    tl.store(compact + group, tl.sum((norms <= limit).to(tl.int32), 0) == GROUP)
