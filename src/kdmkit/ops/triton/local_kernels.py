# mypy: disable-error-code="no-untyped-def"
"""Triton kernels for few dimensions and few values: differences, and products about local centres.

In few dimensions points lie many bandwidths from the centre and close to each other. Expanding the square
would subtract large numbers from each other; differences lose no digits, and few of them cost little.
Gradients are sums of g_ij (z_j − y_i), which do not cancel either. The first dimension of a tile is the one
that is summed over, so that every thread computes whole sums. `factor` multiplies squared distances: scores
are in units of log 2. Other arguments are those of `product_kernels`, with all operands in float32.

With many points, products about local centres are faster.
Components are in an order in which each group of `GROUP` is compact. With c the centre of a group,
u = unit ∘ (x − c) and z = unit ∘ (component − c), a score is −‖u‖² + 2 u·z − ‖z‖². What cancels is no larger
than the radius of the group, whatever the distance to other groups or to the origin; far from a group, the
score itself is large. u is computed from x in every tile, once for all components of a group.
"""

from typing import no_type_check

import triton
import triton.language as tl

from kdmkit.ops.triton.staging_kernels import (
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


@triton.jit
@no_type_check
def _distances(a, a_rows, b, b_rows, D: tl.constexpr, BLOCK_A: tl.constexpr, BLOCK_B: tl.constexpr):
    """Σ_k (a_ik − b_jk)²."""
    total = tl.zeros((BLOCK_A, BLOCK_B), dtype=tl.float32)
    for k in tl.static_range(D):
        difference = tl.load(a + a_rows * D + k)[:, None] - tl.load(b + b_rows * D + k)[None, :]
        total += difference * difference
    return total


@triton.jit
@no_type_check
def _products(a, a_rows, b, b_rows, V: tl.constexpr, BLOCK_A: tl.constexpr, BLOCK_B: tl.constexpr):
    """Σ_k a_ik b_jk."""
    total = tl.zeros((BLOCK_A, BLOCK_B), dtype=tl.float32)
    for k in tl.static_range(V):
        total += tl.load(a + a_rows * V + k)[:, None] * tl.load(b + b_rows * V + k)[None, :]
    return total


@triton.jit
@no_type_check
def _add_weighted(weights, a, a_rows, total, places, V: tl.constexpr):
    """total_kj + Σ_i weights_ij a_ik."""
    for k in tl.static_range(V):
        gained = tl.sum(weights * tl.load(a + a_rows * V + k)[:, None], 0)
        total += tl.where(places[:, None] == k, gained[None, :], 0.0)
    return total


@triton.jit
@no_type_check
def _add_differences(g, a, a_rows, b, b_rows, total, places, D: tl.constexpr):
    """total_kj + Σ_i g_ij (a_ik − b_jk)."""
    for k in tl.static_range(D):
        difference = tl.load(a + a_rows * D + k)[:, None] - tl.load(b + b_rows * D + k)[None, :]
        total += tl.where(places[:, None] == k, tl.sum(g * difference, 0)[None, :], 0.0)
    return total


@triton.jit(do_not_specialize=["n_blocks", "blocks", "resume"])
@no_type_check
def forward_direct(
    points,
    components,
    bias,
    values,
    factor,
    sums,
    tops,
    totals,
    n,
    n_blocks,
    blocks,
    resume,
    D: tl.constexpr,
    N_VALUES: tl.constexpr,
    V: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Online softmax of a block of points against a split of the components."""
    precision = tl.load(factor)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    places = tl.program_id(1).to(tl.int64) * n + rows
    resumed = (rows >= 0) & (resume != 0)
    top = tl.load(tops + places, mask=resumed, other=float("-inf"))
    total = tl.load(totals + places, mask=resumed, other=0.0)
    lost = tl.zeros_like(total)
    if V > 0:
        value_columns = tl.arange(0, V)
        sum_places = sums + places[None, :] * V + value_columns[:, None]
        sum_values = tl.load(sum_places, mask=resumed[None, :], other=0.0)
    first = tl.program_id(1) * blocks
    for block in tl.range(first, tl.minimum(first + blocks, n_blocks)):
        columns = block * BLOCK_N + tl.arange(0, BLOCK_N)
        distances = _distances(components, columns, points, rows, D, BLOCK_N, BLOCK_M)
        scores = tl.load(bias + columns * COPIES)[:, None] - distances * precision
        new_top = tl.maximum(top, tl.max(scores, 0))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        shrink = tl.exp2(top - base)
        weights = tl.exp2(scores - (base - PEAK)[None, :])
        total, lost = add_exactly(total, lost, shrink, tl.sum(weights, 0))
        if V > 0:
            sum_values = _add_weighted(
                weights, values, columns, sum_values * shrink[None, :], value_columns, N_VALUES
            )
        top = new_top
    tl.store(tops + places, top)
    tl.store(totals + places, total)
    if V > 0:
        tl.store(sum_places, sum_values)


@triton.jit(do_not_specialize=["n_blocks", "blocks"])
@no_type_check
def points_direct(
    points,
    components,
    bias,
    values,
    upstream,
    factor,
    coefficients,
    out,
    n,
    n_blocks,
    blocks,
    D: tl.constexpr,
    N_VALUES: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Adds Σ_j g_ij (z_j − y_i) over a split of the components to `out`."""
    precision = tl.load(factor)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, WIDTH)
    top = tl.load(coefficients + rows)
    ratio = tl.load(coefficients + n + rows)
    slope = tl.load(coefficients + 2 * n + rows)
    places = tl.program_id(1).to(tl.int64) * n + rows
    targets = out + places[None, :] * WIDTH + dims[:, None]
    total = tl.load(targets)
    first = tl.program_id(1) * blocks
    for block in tl.range(first, tl.minimum(first + blocks, n_blocks)):
        columns = block * BLOCK_N + tl.arange(0, BLOCK_N)
        distances = _distances(components, columns, points, rows, D, BLOCK_N, BLOCK_M)
        scores = tl.load(bias + columns * COPIES)[:, None] - distances * precision
        g = tl.exp2(scores - top[None, :])
        if N_VALUES > 0:
            dot = _products(values, columns, upstream, rows, N_VALUES, BLOCK_N, BLOCK_M)
            g *= dot * ratio[None, :] + slope[None, :]
        else:
            g *= slope[None, :]
        total = _add_differences(g, components, columns, points, rows, total, dims, D)
    tl.store(targets, total)


@triton.jit(do_not_specialize=["n_blocks", "blocks"])
@no_type_check
def components_direct(
    points,
    components,
    bias,
    values,
    upstream,
    factor,
    pairs,
    out,
    out_weights,
    out_values,
    m,
    n_blocks,
    blocks,
    D: tl.constexpr,
    N_VALUES: tl.constexpr,
    V: tl.constexpr,
    WIDTH: tl.constexpr,
    WITH_OUT: tl.constexpr,
    WITH_VALUES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Over a split of the points: Σ_i g_ij (y_i − z_j), Σ_i g_ij and Σ_i w_ij upstream_i."""
    precision = tl.load(factor)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, WIDTH)
    b = tl.load(bias + columns * COPIES)
    total_weights = tl.zeros((BLOCK_N,), dtype=tl.float32)
    if WITH_OUT:
        total = tl.zeros((WIDTH, BLOCK_N), dtype=tl.float32)
    if WITH_VALUES:
        value_columns = tl.arange(0, V)
        total_values = tl.zeros((V, BLOCK_N), dtype=tl.float32)
    first = tl.program_id(1) * blocks
    for block in tl.range(first, tl.minimum(first + blocks, n_blocks)):
        rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
        slope = tl.load(pairs + rows * 4 + 1)
        distances = _distances(points, rows, components, columns, D, BLOCK_M, BLOCK_N)
        weights = tl.exp2(b[None, :] - distances * precision - tl.load(pairs + rows * 4)[:, None])
        if N_VALUES > 0:
            dot = _products(upstream, rows, values, columns, N_VALUES, BLOCK_M, BLOCK_N)
            g = weights * (dot + slope[:, None])
        else:
            g = weights * slope[:, None]
        if WITH_VALUES:
            total_values = _add_weighted(weights, upstream, rows, total_values, value_columns, N_VALUES)
        total_weights += tl.sum(g, 0)
        if WITH_OUT:
            total = _add_differences(g, points, rows, components, columns, total, dims, D)
    places = tl.program_id(1).to(tl.int64) * m + columns
    tl.store(out_weights + places, total_weights)
    if WITH_OUT:
        tl.store(out + places[None, :] * WIDTH + dims[:, None], total)
    if WITH_VALUES:
        tl.store(out_values + places[None, :] * V + value_columns[:, None], total_values)


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
