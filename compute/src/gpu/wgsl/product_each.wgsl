
@group(0) @binding(BINDING_N) var<storage, read> w_N: array<u32>;

CODES_N

fn product_N(group: u32, thread: u32, first: u32, count: u32) {
    let head = INFO * N_INDEX;
    let act_blocks = info[head + ACT_BLOCKS];
    let stride = TOKEN + 12u * act_blocks;
    workgroupBarrier();
    if thread < count {
        units[thread] = unit_of(head, (first + thread) * stride, QMAX_N, HAS_MIN_N, BY_HALVES_N);
    }
    clear();
    let tile = 4u * group + thread / 64u;
    let lane = thread % 8u;
    if 8u * tile < info[head + ROWS] {
        let blocks = info[head + BLOCKS];
        var since = 0u;
        for (var b = (thread / 8u) % SHARE; b < blocks; b += SHARE) {
            let base = (tile * info[head + UNITS] + b / PER_UNIT_N) * UNIT_WORDS_N;
            let k = b % PER_UNIT_N;
            BODY_N
            since++;
            if since == FOLD {
                fold();
                since = 0u;
            }
        }
        fold();
    }
    settle(head, group, thread);
}
