// Acceptance: the longest prefix of drafts that equals the target's own choices, and what the next
// step finds: the length and the anchor. A thread is a request whose block begins at a row.

// tokens[starts[i] .. + width]: the anchor and the drafts; choices: the target's own for each row.
// kept[i] is how many tokens the step commits; the length grows by it and the last is the anchor.
extern "C" __global__ void accept(const u32 *tokens, u64 tokens_len, const u32 *choices, u64 choices_len,
                                  const u32 *starts, u64 starts_len, u32 *lengths, u64 lengths_len,
                                  u32 *anchors, u64 anchors_len, u32 *kept, u64 kept_len, u32 width)
{
    let_next_start();
    wait_for_earlier();
    expect(lengths_len >= starts_len && anchors_len >= starts_len && kept_len >= starts_len);
    const u64 all = gridDim.x * (u64)blockDim.x;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < starts_len; i += all) {
        const u64 start = starts[i];
        expect(width > 0 && start + width <= tokens_len && start + width <= choices_len);
        u32 accepted = 0;
        while (accepted + 1 < width && tokens[start + accepted + 1] == choices[start + accepted])
            accepted++;
        kept[i] = accepted + 1;
        lengths[i] += accepted + 1;
        anchors[i] = choices[start + accepted];
    }
}
