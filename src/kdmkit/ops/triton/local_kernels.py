# mypy: disable-error-code="no-untyped-def"
"""Triton kernels for few dimensions: products about a local centre of every group of components.

Components are in an order in which each group of `GROUP` is compact. With c the centre of a group,
u = unit ∘ (x − c) and z = unit ∘ (component − c), a score is −‖u‖² + 2 u·z − ‖z‖². What cancels is no larger
than the radius of the group, whatever the distance to other groups or to the origin; far from a group, the
score itself is large. u is computed from x in every tile, once for all components of a group.
"""

from typing import no_type_check

import triton
import triton.language as tl

from kdmkit.ops.triton.kernels import (
    COPIES,
    GROUP,
    LOG2E,
    PEAK,
    add_exactly,
    load_bias,
    load_halves,
    power_of_two,
    product,
    split_product,
)


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


@triton.jit(do_not_specialize=["n", "n_groups", "groups", "resume"])
@no_type_check
def forward_local(
    points,
    unit,
    components,
    components_low,
    exponents,
    bias,
    centres,
    values,
    values_low,
    value_unit,
    sums,
    tops,
    totals,
    n,
    n_padded,
    n_groups,
    groups,
    resume,
    stride_row,
    D: tl.constexpr,
    V: tl.constexpr,
    WIDTH: tl.constexpr,
    PASSES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    WARPS: tl.constexpr,
):
    """Online softmax of a block of points against `groups` of the `n_groups` groups of components.

    `points` are as they were given; other arguments are those of `forward_kernel`.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, WIDTH)
    x = tl.load(
        points + tl.minimum(rows, n - 1).to(tl.int64)[:, None] * stride_row + dims[None, :],
        mask=(dims < D)[None, :],
        other=0.0,
    ).to(tl.float32)
    scale = tl.load(unit + dims, mask=dims < D, other=0.0)[None, :]
    places = tl.program_id(1).to(tl.int64) * n_padded + rows
    resumed = (rows >= 0) & (resume != 0)
    top = tl.load(tops + places, mask=resumed, other=float("-inf"))
    total = tl.load(totals + places, mask=resumed, other=0.0)
    lost = tl.zeros_like(total)
    if V > 0:
        value_columns = tl.arange(0, V)
        undo = 1 / tl.load(value_unit + value_columns)
        sum_places = sums + places[:, None] * V + value_columns[None, :]
        sum_values = tl.load(sum_places, mask=resumed[:, None], other=0.0)
    first = tl.program_id(1) * groups
    for group in tl.range(first, tl.minimum(first + groups, n_groups), num_stages=STAGES):
        u = (x - tl.load(centres + group * WIDTH + dims)[None, :]) * scale
        norms = tl.sum(u * u, 1)
        # A power of two for every point, so that u fits into half precision; 0 where ‖u‖² overflows.
        exponent = 14 - (((norms.to(tl.int32, bitcast=True) >> 23) - 126) >> 1)
        lifted = tl.where((norms < float("inf"))[:, None], u * power_of_two(exponent)[:, None], 0.0)
        u_high = lifted.to(tl.float16)
        u_low = (lifted - u_high.to(tl.float32)).to(tl.float16) if PASSES == 3 else u_high
        factor = 2 * LOG2E * power_of_two(-exponent) * power_of_two(-tl.load(exponents + group))
        norms *= LOG2E
        for part in tl.static_range(GROUP // BLOCK_N):
            columns = group * GROUP + part * BLOCK_N + tl.arange(0, BLOCK_N)
            b = load_bias(bias, columns, WARPS, BLOCK_N)
            c_high, c_low = load_halves(components, components_low, columns, dims, WIDTH, PASSES)
            raw = product(u_high, u_low, tl.trans(c_high), tl.trans(c_low), PASSES)
            # Scores plus ‖u‖², which is taken out of every row.
            scores = raw * factor[:, None] + b[None, :]
            tile_top = tl.max(scores, 1)
            new_top = tl.maximum(top, tile_top - norms)
            base = tl.where(new_top == float("-inf"), 0.0, new_top)
            shrink = tl.exp2(top - base)
            # Never below the largest score, whatever the rounding of the sum: weights stay in range.
            shift = tl.maximum(base + norms, tile_top, propagate_nan=tl.PropagateNan.ALL)
            weights = tl.exp2(scores - (shift - PEAK)[:, None])
            total, lost = add_exactly(total, lost, shrink, tl.sum(weights, 1))
            if V > 0:
                v_high, v_low = load_halves(values, values_low, columns, value_columns, V, PASSES)
                gained = split_product(weights, v_high, v_low, PASSES)
                sum_values = sum_values * shrink[:, None] + gained * undo[None, :]
            top = new_top
    tl.store(tops + places, top)
    tl.store(totals + places, total)
    if V > 0:
        tl.store(sum_places, sum_values)
