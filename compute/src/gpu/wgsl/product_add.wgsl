
// Results, added to the blocks that are there: the residual.
@compute @workgroup_size(256)
fn join(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = COLS * id.y;
    let count = min(COLS, step.tokens - first);
    let group = id.x;
    product_0(group, thread, first, count);
    let c = thread / 32u;
    let i = thread % 32u;
    let own = c < count && c < COLS;
    let slot = select(0u, c, own);
    let peak = peak_of(slot);
    let m = mantissa(settled[32u * slot + i], peak, units[slot].x);
    let e = block_exponent(peak, units[slot].x);
    let at = (first + slot) * info[OUT_GROUPS] + group;
    let xe = i32(out[BLOCK * at + 16u]);
    let word = out[BLOCK * at + i / 2u];
    let xm = select(low_half(word), high_half(word), i % 2u == 1u);
    let top = max(e, xe);
    workgroupBarrier();
    let z = select(aligned(xm, top - xe) + aligned(m, top - e), 0, top == ZERO);
    if own {
        settled[32u * slot + i] = z;
    }
    workgroupBarrier();
    let sum_peak = peak_of(slot);
    let unit = top - 14;
    write_block(at, slot, i, mantissa(settled[32u * slot + i], sum_peak, unit),
        block_exponent(sum_peak, unit), own);
}
