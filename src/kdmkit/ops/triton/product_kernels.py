# mypy: disable-error-code="no-untyped-def"
"""Triton kernels over staged operands: the forward reduction, the merging of its splits, and its gradients.

Kernels of the backward pass compute the scores again, tile by tile.
With g_ij the derivative by score ij, y the whitened points and z the whitened components, the gradients need
Σ_j g_ij z_j per point, and Σ_i g_ij y_i, Σ_i g_ij and Σ_i w_ij upstream_i per component: one kernel for each.
g_ij = w_ij·(upstream_i · v_j + slope_i). Both kernels use g_ij divided by a bound, so that it fits into half
precision: exp2(score − maximum + 14) times a number of at most 1.
"""

from typing import no_type_check

import triton
import triton.language as tl

from kdmkit.ops.triton.staging_kernels import (
    GROUP,
    LOG2E,
    PEAK,
    add_exactly,
    inner_products,
    load_bias,
    load_halves,
    power_of_two,
    product,
    split_product,
)

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit(do_not_specialize=["n_blocks", "blocks", "resume"])
@no_type_check
def forward_kernel(
    points,
    points_low,
    point_exponents,
    components,
    components_low,
    exponents,
    bias,
    values,
    values_low,
    value_unit,
    sums,
    tops,
    totals,
    n,
    n_blocks,
    blocks,
    resume,
    V: tl.constexpr,
    WIDTH: tl.constexpr,
    PASSES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
    WARPS: tl.constexpr,
):
    """Online softmax of a block of points against `blocks` of the `n_blocks` blocks of staged components.

    `V` is the padded number of values, 0 without any. `resume` continues from the sums of earlier components.
    Neighbouring programs take the same components, so that all but one of them read the second-level cache.
    """
    block_m = tl.program_id(0)
    rows = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    point_factor = 2 * LOG2E * power_of_two(-tl.load(point_exponents + block_m * BLOCK_M // GROUP))
    if WIDTH == BLOCK_D:
        p_high, p_low = load_halves(points, points_low, rows, dims, WIDTH, PASSES)
    places = tl.program_id(1).to(tl.int64) * n + rows
    resumed = (rows >= 0) & (resume != 0)
    top = tl.load(tops + places, mask=resumed, other=float("-inf"))
    total = tl.load(totals + places, mask=resumed, other=0.0)
    lost = tl.zeros_like(total)
    if V > 0:
        value_columns = tl.arange(0, V)
        undo = 1 / tl.load(value_unit + value_columns)
        sum_places = sums + places[:, None] * V + value_columns[None, :]
        sum_values = tl.load(sum_places, mask=resumed[:, None], other=0.0)
    first = tl.program_id(1) * blocks
    for block in tl.range(first, tl.minimum(first + blocks, n_blocks), num_stages=STAGES):
        columns = block * BLOCK_N + tl.arange(0, BLOCK_N)
        b = load_bias(bias, columns, WARPS, BLOCK_N)
        factor = point_factor * power_of_two(-tl.load(exponents + block * BLOCK_N // GROUP))
        if WIDTH == BLOCK_D:
            c_high, c_low = load_halves(components, components_low, columns, dims, WIDTH, PASSES)
            raw = product(p_high, p_low, tl.trans(c_high), tl.trans(c_low), PASSES)
        else:
            raw = inner_products(
                points, points_low, rows, components, components_low, columns,
                WIDTH, PASSES, BLOCK_M, BLOCK_N, BLOCK_D, STAGES,
            )  # fmt: skip
        scores = raw * factor + b[None, :]
        new_top = tl.maximum(top, tl.max(scores, 1))
        # If all scores so far are −∞, the maximum is −∞, and −∞ − (−∞) would be NaN.
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        shrink = tl.exp2(top - base)
        weights = tl.exp2(scores - (base - PEAK)[:, None])
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


@triton.jit(do_not_specialize=["n", "n_splits"])
@no_type_check
def combine_kernel(
    sums,
    tops,
    totals,
    norms,
    averages,
    logsumexps,
    maxima,
    top_weights,
    n,
    n_padded,
    n_splits,
    N_VALUES: tl.constexpr,
    V: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Merges the splits of the components: averages, logsumexps, and what the backward pass starts from.

    `maxima` are the largest scores in units of log 2, +∞ where all scores of a point are −∞, so that all its
    weights are 0. `top_weights` are the largest weights after normalisation.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    top = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    if V > 0:
        value_columns = tl.arange(0, V)
        sum_values = tl.zeros((BLOCK_M, V), dtype=tl.float32)
    for split in tl.range(0, n_splits):
        places = (split * n_padded + rows).to(tl.int64)
        other = tl.load(tops + places)
        new_top = tl.maximum(top, other)
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        shrink = tl.exp2(top - base)
        grow = tl.exp2(other - base)
        total = total * shrink + tl.load(totals + places) * grow
        if V > 0:
            part = tl.load(sums + places[:, None] * V + value_columns[None, :])
            sum_values = sum_values * shrink[:, None] + part * grow[:, None]
        top = new_top
    inside = rows < n
    alive = total > 0
    safe = tl.where(alive, total, 1.0)
    # The sum of weights is divided by that of the top before its logarithm is rounded.
    lse = (top + tl.log2(safe / 32768.0)) * LN2
    if HAS_NORMS:
        lse -= tl.load(norms + rows)
    tl.store(logsumexps + rows, tl.where(alive, lse, float("-inf")), mask=inside)
    tl.store(maxima + rows, tl.where(alive, top, float("inf")), mask=inside)
    tl.store(top_weights + rows, tl.where(alive, 32768.0 / safe, 0.0), mask=inside)
    if V > 0:
        targets = averages + rows.to(tl.int64)[:, None] * N_VALUES + value_columns[None, :]
        mask = inside[:, None] & (value_columns < N_VALUES)[None, :]
        tl.store(targets, sum_values / safe[:, None], mask=mask)


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
