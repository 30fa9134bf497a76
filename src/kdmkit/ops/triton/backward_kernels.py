# mypy: disable-error-code="no-untyped-def"
"""Triton kernels of the backward pass, which compute the scores again, tile by tile.

With g_ij the derivative by score ij, y the whitened points and z the whitened components, the gradients need
Σ_j g_ij z_j per point, and Σ_i g_ij y_i, Σ_i g_ij and Σ_i w_ij upstream_i per component: one kernel for each.
g_ij = w_ij·(upstream_i · v_j + slope_i). Both kernels use g_ij divided by a bound, so that it fits into half
precision: exp2(score − maximum + 14) times a number of at most 1.
"""

from typing import no_type_check

import triton
import triton.language as tl

from kdmkit.ops.triton.kernels import (
    GROUP,
    LOG2E,
    inner_products,
    load_bias,
    load_halves,
    power_of_two,
    product,
    split_product,
)


@triton.jit(do_not_specialize=["n_blocks", "blocks"])
@no_type_check
def points_kernel(
    points,
    points_low,
    point_exponents,
    components,
    components_low,
    exponents,
    bias,
    values,
    values_low,
    upstream,
    upstream_low,
    upstream_exponents,
    coefficients,
    out,
    n,
    n_blocks,
    blocks,
    V: tl.constexpr,
    WIDTH: tl.constexpr,
    PASSES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_O: tl.constexpr,
    STAGES: tl.constexpr,
    WARPS: tl.constexpr,
):
    """Adds Σ_j g_ij z_j over a split of the components to `out`.

    The rows of `coefficients` are, per point: the maximum less 14, the factor of upstream · v, and the slope,
    the last two over the point's bound.
    """
    block_m = tl.program_id(0)
    rows = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    dims_out = tl.program_id(2) * BLOCK_O + tl.arange(0, BLOCK_O)
    group = block_m * BLOCK_M // GROUP
    point_factor = 2 * LOG2E * power_of_two(-tl.load(point_exponents + group))
    if WIDTH == BLOCK_D:
        p_high, p_low = load_halves(points, points_low, rows, dims, WIDTH, PASSES)
    top = tl.load(coefficients + rows)
    slope = tl.load(coefficients + 2 * n + rows)
    if V > 0:
        value_columns = tl.arange(0, V)
        u_high, u_low = load_halves(upstream, upstream_low, rows, value_columns, V, PASSES)
        factor_u = tl.load(coefficients + n + rows) * power_of_two(-tl.load(upstream_exponents + group))
    places = tl.program_id(1).to(tl.int64) * n + rows
    targets = out + places[:, None] * WIDTH + dims_out[None, :]
    total = tl.load(targets)
    first = tl.program_id(1) * blocks
    for block in tl.range(first, tl.minimum(first + blocks, n_blocks), num_stages=STAGES):
        columns = block * BLOCK_N + tl.arange(0, BLOCK_N)
        b = load_bias(bias, columns, WARPS, BLOCK_N)
        undo = power_of_two(-tl.load(exponents + block * BLOCK_N // GROUP))
        if WIDTH == BLOCK_D:
            c_high, c_low = load_halves(components, components_low, columns, dims, WIDTH, PASSES)
            raw = product(p_high, p_low, tl.trans(c_high), tl.trans(c_low), PASSES)
        else:
            raw = inner_products(
                points, points_low, rows, components, components_low, columns,
                WIDTH, PASSES, BLOCK_M, BLOCK_N, BLOCK_D, STAGES,
            )  # fmt: skip
        if BLOCK_O != WIDTH:
            c_high, c_low = load_halves(components, components_low, columns, dims_out, WIDTH, PASSES)
        scores = raw * (point_factor * undo) + b[None, :]
        g = tl.exp2(scores - top[:, None])
        if V > 0:
            v_high, v_low = load_halves(values, values_low, columns, value_columns, V, PASSES)
            dot = product(u_high, u_low, tl.trans(v_high), tl.trans(v_low), PASSES)
            g *= dot * factor_u[:, None] + slope[:, None]
        else:
            g *= slope[:, None]
        total += split_product(g, c_high, c_low, PASSES) * undo
    tl.store(targets, total)


@triton.jit
@no_type_check
def _load_pair(pairs, rows, BLOCK: tl.constexpr):
    """The first two of four numbers per row: four, so that there are as many as threads (`load_bias`)."""
    quadruple = tl.load(pairs + rows[:, None] * 4 + tl.arange(0, 4)[None, :])
    evens, odds = tl.split(tl.reshape(quadruple, (BLOCK, 2, 2)))
    first, _ = tl.split(evens)
    second, _ = tl.split(odds)
    return first, second


@triton.jit(do_not_specialize=["n_blocks", "blocks"])
@no_type_check
def components_kernel(
    points,
    points_low,
    point_exponents,
    components,
    components_low,
    exponents,
    bias,
    values,
    values_low,
    upstream,
    upstream_low,
    upstream_exponents,
    pairs,
    out,
    out_weights,
    out_values,
    m,
    n_blocks,
    blocks,
    V: tl.constexpr,
    WIDTH: tl.constexpr,
    PASSES: tl.constexpr,
    WITH_OUT: tl.constexpr,
    WITH_VALUES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_O: tl.constexpr,
    STAGES: tl.constexpr,
    WARPS: tl.constexpr,
):
    """Over a split of the points: `out` is Σ_i g_ij y_i, `out_weights` Σ_i g_ij and `out_values`
    Σ_i w_ij upstream_i.

    `pairs` holds, per point, the maximum less 14, the slope over the largest bound, and two unused numbers.
    The factor 2^14 and that bound are undone later.
    Tiles are transposed, components by points: then the g_ij lie as the next product needs them.
    """
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)
    dims_out = tl.program_id(2) * BLOCK_O + tl.arange(0, BLOCK_O)
    b = load_bias(bias, columns, WARPS, BLOCK_N)
    component_factor = 2 * LOG2E * power_of_two(-tl.load(exponents + tl.program_id(0) * BLOCK_N // GROUP))
    if WIDTH == BLOCK_D:
        c_high, c_low = load_halves(components, components_low, columns, dims, WIDTH, PASSES)
    places = tl.program_id(1).to(tl.int64) * m + columns
    total_weights = tl.zeros((BLOCK_N,), dtype=tl.float32)
    if WITH_OUT:
        total = tl.zeros((BLOCK_N, BLOCK_O), dtype=tl.float32)
    if V > 0:
        value_columns = tl.arange(0, V)
        v_high, v_low = load_halves(values, values_low, columns, value_columns, V, PASSES)
        total_values = tl.zeros((BLOCK_N, V), dtype=tl.float32)
    first = tl.program_id(1) * blocks
    for block in tl.range(first, tl.minimum(first + blocks, n_blocks), num_stages=STAGES):
        rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
        top, slope = _load_pair(pairs, rows, BLOCK_M)
        undo = power_of_two(-tl.load(point_exponents + block * BLOCK_M // GROUP))
        if WIDTH == BLOCK_D:
            p_high, p_low = load_halves(points, points_low, rows, dims, WIDTH, PASSES)
            raw = product(c_high, c_low, tl.trans(p_high), tl.trans(p_low), PASSES)
        else:
            raw = inner_products(
                components, components_low, columns, points, points_low, rows,
                WIDTH, PASSES, BLOCK_N, BLOCK_M, BLOCK_D, STAGES,
            )  # fmt: skip
        if BLOCK_O != WIDTH:
            p_high, p_low = load_halves(points, points_low, rows, dims_out, WIDTH, PASSES)
        scores = raw * (component_factor * undo) + b[:, None]
        weights = tl.exp2(scores - top[None, :])
        if V > 0:
            undo_u = power_of_two(-tl.load(upstream_exponents + block * BLOCK_M // GROUP))
            u_high, u_low = load_halves(upstream, upstream_low, rows, value_columns, V, PASSES)
            dot = product(v_high, v_low, tl.trans(u_high), tl.trans(u_low), PASSES)
            g = weights * (dot * undo_u + slope[None, :])
            if WITH_VALUES:
                total_values += split_product(weights, u_high, u_low, PASSES) * undo_u
        else:
            g = weights * slope[None, :]
        total_weights += tl.sum(g, 1)
        if WITH_OUT:
            total += split_product(g, p_high, p_low, PASSES) * undo
    if WITH_OUT:
        tl.store(out + places[:, None] * WIDTH + dims_out[None, :], total)
    if tl.program_id(2) == 0:
        tl.store(out_weights + places, total_weights)
        if V > 0 and WITH_VALUES:
            tl.store(out_values + places[:, None] * V + value_columns[None, :], total_values)
