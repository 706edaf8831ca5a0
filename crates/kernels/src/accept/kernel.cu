// Acceptance: the longest prefix of drafts that equals the target's own choices, and what the next step finds of
// it. One block of threads does it, a thread a row; 1024 rows at most.

const u32 WARPS = 32;

// The first row from `row` on that is marked, in bits of 32 rows.
static __device__ u32 next_of(const u32 *marked, u32 row)
{
    u32 at = row / 32, word = marked[at] & (0xffffffffu << row % 32);
    while (word == 0)
        word = marked[++at];
    return at * 32 + __ffs(word) - 1;
}

// tokens: the anchor and the drafts of each block, whose rows stand together and have its number in `spans`; choices:
// the target's own for each row. Of block i refused[i] is how many of its rows are not committed, and anchors[i] the
// token chosen behind those that are.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    accept(const u32 *tokens, u64 tokens_len, const u32 *spans, u64 spans_len, const u32 *choices, u64 choices_len,
           u32 *refused, u64 refused_len, u32 *anchors, u64 anchors_len)
{
    __shared__ u32 ends[WARPS], stops[WARPS];
    let_next_start();
    wait_for_earlier();
    const u32 row = threadIdx.x, rows = (u32)spans_len;
    expect(spans_len > 0 && blockDim.x >= spans_len && tokens_len >= spans_len && choices_len >= spans_len);
    const bool is_row = row < rows, has_next = row + 1 < rows;
    const u32 span = is_row ? spans[row] : 0, choice = is_row ? choices[row] : 0;
    const bool end = !has_next || spans[row + 1] != span;
    const u32 ending = __ballot_sync(~0u, end);
    const u32 stopping = __ballot_sync(~0u, end || tokens[row + 1] != choice);
    if (row % 32 == 0) {
        ends[row / 32] = ending;
        stops[row / 32] = stopping;
    }
    __syncthreads();
    if (is_row && (row == 0 || spans[row - 1] != span)) {
        expect(span < refused_len && span < anchors_len);
        const u32 last = next_of(stops, row);
        refused[span] = next_of(ends, row) - last;
        anchors[span] = choices[last];
    }
}
