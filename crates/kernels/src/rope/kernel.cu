// What becomes of the projections of q, k and v: each head as head.cuh makes it, and keys and values in their pages.

// A product's columns are, of each of some layers, `heads` heads of q, `kv_heads` of k and as many of v; where there
// are several layers, none of q. q goes to [rows][heads][DIM]; k and v to their slots in
// [pages][kv_heads][page_size][DIM], a layer's `pages_apart` elements from the one's before. `norms` holds the weights of
// q's and k's norm, a layer's `norms_apart` further, or nothing. The product's pieces may be whole.
template <u32 DIM, bool WHOLE>
static __device__ void rope_store(const float *pieces, u64 pieces_len, const float *norms, u64 norms_len,
                                  const float *angles, u64 angles_len, const u32 *slots, u64 slots_len,
                                  const Heads &to, u32 steps, u32 workers, u32 rows, u32 layers, u32 norms_apart, float eps)
{
    typedef Head<DIM> H;
    let_next_start();
    const u32 each = to.heads + 2 * to.kv_heads, all = layers * each;
    expect(to.q_len >= (u64)rows * to.heads * DIM && angles_len >= (u64)rows * DIM && slots_len >= rows);
    expect(!WHOLE || workers == 0);
    expect(layers == 1 || to.heads == 0 && layers > 0);
    expect((norms_len == 0 || norms_len >= (u64)(layers - 1) * norms_apart + 2 * DIM) && blockDim.x % 32 == 0);
    const u32 unit = (blockIdx.x * blockDim.x + threadIdx.x) / H::LANES;
    // Lanes past the end take part in the shuffles of their warp.
    const u32 row = unit < rows * all ? unit / all : 0, place = unit < rows * all ? unit % all : 0;
    const u32 layer = place / each, head = place % each;
    const bool value = to.value(head), normed = norms_len > 0 && !value;
    // No kernel writes weights.
    float4 w[H::FOURS] = {};
#pragma unroll
    for (u32 f = 0; f < H::FOURS; f++)
        if (normed)
            w[f] = *(const float4 *)(norms + layer * norms_apart + (to.key(head) ? DIM : 0) + H::element(f));
    wait_for_earlier();
    // What is read does not wait for one another.
    const Pieces sums(pieces, pieces_len, steps, workers, rows, all * DIM);
    const u32 slot = slots[row];
    const float4 cosine = *(const float4 *)(angles + (u64)row * DIM + H::pair());
    const float4 sine = *(const float4 *)(angles + (u64)row * DIM + DIM / 2 + H::pair());
    H x;
#pragma unroll
    for (u32 f = 0; f < H::FOURS; f++) {
        const u32 column = place * DIM + H::element(f);
        x.take(f, WHOLE ? sums.whole(row, column) : sums.four(row, column));
    }
    const float inverse = x.inverse(eps);
    if (normed)
        x.norm(inverse, w);
    const H rotated = x.rotated(cosine, sine);
    if (!value)
        x = rotated;
    if (unit >= rows * all)
        return;
#pragma unroll
    for (u32 f = 0; f < H::FOURS; f++)
        to.put(x.halves(f), row, layer, head, H::element(f), slot);
}

#define ROPE_STORE(NAME, DIM, WHOLE)                                                                     \
    extern "C" __global__ void NAME(const float *pieces, u64 pieces_len, const float *norms,             \
                                    u64 norms_len, const float *angles, u64 angles_len,                  \
                                    const u32 *slots, u64 slots_len, u16 *q, u64 q_len, u16 *keys,       \
                                    u64 keys_len, u16 *values, u64 values_len, u64 pages_apart,          \
                                    u32 steps, u32 workers, u32 rows, u32 heads, u32 kv_heads,           \
                                    u32 page_size, u32 layers, u32 norms_apart, float eps)               \
    {                                                                                                    \
        const Heads to = {q, q_len, keys, keys_len, values, values_len, pages_apart,                     \
                          heads, kv_heads, DIM, page_size};                                              \
        rope_store<DIM, WHOLE>(pieces, pieces_len, norms, norms_len, angles, angles_len, slots,          \
                               slots_len, to, steps, workers, rows, layers, norms_apart, eps);           \
    }

ROPE_STORE(rope_store_64, 64, false)
ROPE_STORE(rope_store_128, 128, false)
ROPE_STORE(rope_store_256, 256, false)
ROPE_STORE(rope_store_64_whole, 64, true)
ROPE_STORE(rope_store_128_whole, 128, true)
ROPE_STORE(rope_store_256_whole, 256, true)
