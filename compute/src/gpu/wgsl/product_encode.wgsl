
// Results as blocks, with biases where there are any: rows of several matrices side by side.
@compute @workgroup_size(256)
fn encode(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = COLS * id.y;
    let count = min(COLS, step.tokens - first);
    var group = id.x;
    var head = 0u;
    DISPATCH
    let c = thread / 32u;
    let i = thread % 32u;
    let own = c < count && c < COLS;
    let slot = select(0u, c, own);
    let peak = peak_of(slot);
    var m = mantissa(settled[32u * slot + i], peak, units[slot].x);
    var e = block_exponent(peak, units[slot].x);
    let bias = info[head + BIAS];
    if bias != 0u {
        let at = bias + BLOCK * group;
        let be = i32(info[at + 16u]);
        let word = info[at + i / 2u];
        let bm = select(low_half(word), high_half(word), i % 2u == 1u);
        let top = max(e, be);
        workgroupBarrier();
        settled[32u * slot + i] = select(aligned(m, top - e) + aligned(bm, top - be), 0, top == ZERO);
        workgroupBarrier();
        let sum_peak = peak_of(slot);
        m = mantissa(settled[32u * slot + i], sum_peak, top - 14);
        e = block_exponent(sum_peak, top - 14);
    }
    let at = (first + c) * info[head + OUT_GROUPS] + info[head + OUT_GROUP] + group;
    write_block(at, slot, i, m, e, own);
}
