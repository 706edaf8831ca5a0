// Grouped-query attention of ragged rows over paged KV, on tensor cores. A block of threads is one
// tile of rows, one KV head and one split of the keys; the query heads of the group are rows of its
// matrices, so a key is read once for all of them. Splits are merged in order by `combine`.

const u32 SPLIT = 128;  // keys
const u32 WARPS = 4;    // each 16 vectors of q
const u32 AT_ONCE = 8;  // splits whose loads do not wait for each other
const float LOG2_E = 1.4426950408889634f;
const float LOWEST = -3.402823466e38f;

const u32 THREADS = WARPS * 32;
static_assert(THREADS >= SPLIT, "a thread finds the place of one key");

// What a row sees of its own launch.
const u32 CAUSAL = 0, BOTH_WAYS = 1; // and 2: those behind it

// Rows that one block of threads takes: a part of a span.
struct Tile {
    u32 row;    // the first, in q
    u32 rows;
    u32 span;
    u32 offset; // of the first row in its span
    u32 width;  // rows of the span
};

// Elements of one split of one head of one row: the sums, then the largest score and the weight.
template <u32 DIM> static __device__ u32 stride() { return DIM + 4; }

template <u32 DIM>
static __device__ void attention(const u16 *q, u64 q_len, const u16 *keys, u64 keys_len,
                                 const u16 *values, u64 values_len, const u16 *tail_keys,
                                 u64 tail_keys_len, const u16 *tail_values, u64 tail_values_len,
                                 const u32 *pages, u64 pages_len, const u32 *firsts, u64 firsts_len,
                                 const u32 *lengths, u64 lengths_len, const u32 *tiles, u64 tiles_len,
                                 float *parts, u64 parts_len, u32 heads, u32 kv_heads, u32 page_size,
                                 u32 splits, u32 sight, u32 window, float scale)
{
    const u32 K_ROW = DIM * 2 + 64, V_ROW = DIM * 2 + 16; // bytes, so that lanes share no banks
    const u32 CHUNKS = DIM / 8;
    extern __shared__ char shared[];
    __shared__ u32 places[SPLIT]; // of each key: its page's token, before the head
    let_next_start();
    const u32 group = heads / kv_heads, split = blockIdx.x % splits;
    const u32 kv = blockIdx.x / splits % kv_heads, index = blockIdx.x / splits / kv_heads;
    expect(blockDim.x == THREADS && (u64)(index + 1) * 5 <= tiles_len);
    const Tile tile = {tiles[index * 5], tiles[index * 5 + 1], tiles[index * 5 + 2],
                       tiles[index * 5 + 3], tiles[index * 5 + 4]};
    expect(tile.span < lengths_len && tile.span < firsts_len && tile.rows * group <= WARPS * 16);
    expect((u64)(tile.row + tile.rows) * heads * DIM <= q_len && tile.offset <= tile.row);
    expect((u64)(tile.row + tile.rows) * heads * splits * stride<DIM>() <= parts_len);
    const u32 length = lengths[tile.span];
    const u32 context = sight == CAUSAL ? length + tile.offset + tile.rows : length;
    const u32 behind = (context + SPLIT - 1) / SPLIT; // splits in pages
    const bool tail = split >= behind;
    const u32 all = behind + (sight == CAUSAL ? 0 : 1);
    expect(all <= splits && (sight == CAUSAL || tile.width <= SPLIT));
    if (split >= all) {
        wait_for_earlier();
        return;
    }
    const u32 first = tail ? length : split * SPLIT; // position of the first key
    const u32 most = tail ? tile.width : context - first, count = most < SPLIT ? most : SPLIT;
    // Keys that this pass does not write: those of tokens before it.
    const u32 early = tail || first >= length ? 0 : length - first < count ? length - first : count;

    if (threadIdx.x < count && !tail) {
        const u64 entry = (u64)firsts[tile.span] + (first + threadIdx.x) / page_size;
        expect(entry < pages_len);
        const u64 token = (u64)pages[entry] * kv_heads * page_size + (first + threadIdx.x) % page_size;
        expect((token + (kv_heads - 1) * (u64)page_size + 1) * DIM <= (keys_len < values_len ? keys_len : values_len));
        expect(token <= ~0u);
        places[threadIdx.x] = (u32)token;
    }
    __syncthreads();
    char *k_shared = shared, *v_shared = shared + SPLIT * K_ROW;
    const u32 chunk = threadIdx.x % CHUNKS;
    for (u32 key = threadIdx.x / CHUNKS; key < early; key += THREADS / CHUNKS) {
        const u64 at = (places[key] + (u64)kv * page_size) * DIM + chunk * 8;
        copy_async(k_shared + key * K_ROW + chunk * 16, keys + at, 16);
        copy_async(v_shared + key * V_ROW + chunk * 16, values + at, 16);
    }
    wait_for_earlier();
    for (u32 key = threadIdx.x / CHUNKS; key < SPLIT; key += THREADS / CHUNKS) {
        if (key < early)
            continue;
        const u16 *k = keys, *v = values;
        if (key < count && tail) {
            const u64 at = ((u64)(tile.row - tile.offset + key) * kv_heads + kv) * DIM + chunk * 8;
            expect(at + 8 <= tail_keys_len && at + 8 <= tail_values_len);
            k = tail_keys + at;
            v = tail_values + at;
        } else if (key < count) {
            const u64 at = (places[key] + (u64)kv * page_size) * DIM + chunk * 8;
            k = keys + at;
            v = values + at;
        }
        // Past the last key there are zeros: what is multiplied by no weight has to be a number.
        copy_async(k_shared + key * K_ROW + chunk * 16, k, key < count ? 16 : 0);
        copy_async(v_shared + key * V_ROW + chunk * 16, v, key < count ? 16 : 0);
    }
    commit_copies();

    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, vectors = tile.rows * group;
    // This lane's two vectors.
    const u32 mine[2] = {warp * 16 + lane / 4, warp * 16 + lane / 4 + 8};
    u64 place[2];
    u32 position[2];
    uint4 query[2][DIM / 32];
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 row = mine[i] / group, head = kv * group + mine[i] % group;
        place[i] = (u64)(tile.row + row) * heads + head;
        position[i] = length + tile.offset + row;
#pragma unroll
        for (u32 step = 0; step < DIM / 32; step++) {
            query[i][step] = make_uint4(0, 0, 0, 0);
            if (mine[i] < vectors)
                query[i][step] = *(const uint4 *)(q + place[i] * DIM + step * 32 + lane % 4 * 8);
        }
    }
    await_copies<0>();
    __syncthreads();
    if (warp * 16 >= vectors)
        return;

    // 16 keys at a time, in a loop that stays one: code that runs once has to be fetched first.
    float largest[2] = {LOWEST, LOWEST}, weight[2] = {0.0f, 0.0f}, sums[DIM / 8][4] = {};
    const float factor = scale * LOG2_E;
    const char *k_lane = k_shared + lane / 4 * K_ROW + lane % 4 * 16;
    const u32 v_lane = (u32)__cvta_generic_to_shared(v_shared) + lane % 16 * V_ROW + lane / 16 * 16;
#pragma unroll 1
    for (u32 begin = 0; begin < count; begin += 16) {
        float scores[2][4] = {}, most[2] = {largest[0], largest[1]};
#pragma unroll
        for (u32 t = 0; t < 2; t++)
#pragma unroll
            for (u32 step = 0; step < DIM / 32; step++) {
                const uint4 k = *(const uint4 *)(k_lane + (begin + t * 8) * K_ROW + step * 64);
                const uint4 a = query[0][step], b = query[1][step];
                mma(scores[t], a.x, b.x, a.y, b.y, k.x, k.y);
                mma(scores[t], a.z, b.z, a.w, b.w, k.z, k.w);
            }
#pragma unroll
        for (u32 t = 0; t < 2; t++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const u32 key = begin + t * 8 + lane % 4 * 2 + i % 2, at = first + key;
                const u32 own = position[i / 2], apart = at < own ? own - at : at - own;
                const bool seen = key < count && apart < window && (sight == BOTH_WAYS || at <= own);
                scores[t][i] = seen ? scores[t][i] * factor : LOWEST;
                most[i / 2] = fmaxf(most[i / 2], scores[t][i]);
            }
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 1));
            most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 2));
            const float old = exp2f(largest[i] - most[i]);
            largest[i] = most[i];
            weight[i] *= old;
#pragma unroll
            for (u32 d = 0; d < DIM / 8; d++) {
                sums[d][i * 2] *= old;
                sums[d][i * 2 + 1] *= old;
            }
        }
#pragma unroll
        for (u32 t = 0; t < 2; t++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const bool seen = scores[t][i] > LOWEST;
                scores[t][i] = seen ? exp2f(scores[t][i] - largest[i / 2]) : 0.0f;
                weight[i / 2] += scores[t][i];
            }
        const u32 a0 = narrowed(scores[0][0], scores[0][1]), a1 = narrowed(scores[0][2], scores[0][3]);
        const u32 a2 = narrowed(scores[1][0], scores[1][1]), a3 = narrowed(scores[1][2], scores[1][3]);
#pragma unroll
        for (u32 d = 0; d < DIM / 16; d++) {
            u32 b[4];
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                         : "r"(v_lane + begin * V_ROW + d * 32));
            mma(sums[d * 2], a0, a1, a2, a3, b[0], b[1]);
            mma(sums[d * 2 + 1], a0, a1, a2, a3, b[2], b[3]);
        }
    }
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        weight[i] += __shfl_xor_sync(~0u, weight[i], 1);
        weight[i] += __shfl_xor_sync(~0u, weight[i], 2);
    }
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        if (mine[i] >= vectors)
            continue;
        float *part = parts + (place[i] * splits + split) * stride<DIM>();
#pragma unroll
        for (u32 d = 0; d < DIM / 8; d++)
            *(float2 *)(part + d * 8 + lane % 4 * 2) = make_float2(sums[d][i * 2], sums[d][i * 2 + 1]);
        if (lane % 4 == 0)
            *(float2 *)(part + DIM) = make_float2(largest[i], weight[i]);
    }
}

// out[row][head] = the splits that the row sees, merged in order. A warp is one head of one row.
template <u32 DIM>
static __device__ void combine(const float *parts, u64 parts_len, const u32 *lengths, u64 lengths_len,
                               const u32 *spans, u64 spans_len, const u32 *offsets, u64 offsets_len,
                               u16 *out, u64 out_len, u32 heads, u32 splits, u32 sight)
{
    let_next_start();
    const u64 rows = spans_len, unit = (blockIdx.x * (u64)blockDim.x + threadIdx.x) / 32;
    expect(offsets_len >= rows && out_len >= rows * heads * DIM);
    expect(parts_len >= rows * heads * splits * stride<DIM>());
    wait_for_earlier();
    if (unit >= rows * heads)
        return;
    const u64 row = unit / heads;
    const u32 lane = threadIdx.x % 32, span = spans[row];
    expect(span < lengths_len);
    const u32 context = sight == CAUSAL ? lengths[span] + offsets[row] + 1 : lengths[span];
    const u32 all = (context + SPLIT - 1) / SPLIT + (sight == CAUSAL ? 0 : 1);
    expect(all <= splits);
    const float *part = parts + unit * splits * stride<DIM>();
    float largest = LOWEST, weight = 0.0f, sums[DIM / 32] = {};
    // A lane looks at a split; those without a weight saw no key.
    for (u32 split = lane; split < all; split += 32)
        if (part[split * stride<DIM>() + DIM + 1] > 0.0f)
            largest = fmaxf(largest, part[split * stride<DIM>() + DIM]);
#pragma unroll
    for (u32 apart = 16; apart > 0; apart /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, apart));
    for (u32 begin = 0; begin < all; begin += AT_ONCE) {
        float more[AT_ONCE][DIM / 32], factor[AT_ONCE], its[AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            const float *from = part + (begin + i < all ? begin + i : begin) * stride<DIM>();
            factor[i] = from[DIM];
            its[i] = begin + i < all ? from[DIM + 1] : 0.0f;
#pragma unroll
            for (u32 j = 0; j < DIM / 32; j++)
                more[i][j] = from[j * 32 + lane];
        }
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            if (!(its[i] > 0.0f))
                continue;
            const float scaled = exp2f(factor[i] - largest);
            weight += its[i] * scaled;
#pragma unroll
            for (u32 j = 0; j < DIM / 32; j++)
                sums[j] += more[i][j] * scaled;
        }
    }
    const float inverse = weight > 0.0f ? 1.0f / weight : 0.0f;
#pragma unroll
    for (u32 i = 0; i < DIM / 32; i++)
        out[unit * DIM + i * 32 + lane] = narrowed(sums[i] * inverse);
}

#define ATTENTION(DIM)                                                                                   \
    extern "C" __global__ void __launch_bounds__(WARPS * 32)                                             \
        attention_##DIM(const u16 *q, u64 q_len, const u16 *keys, u64 keys_len, const u16 *values,       \
                        u64 values_len, const u16 *tail_keys, u64 tail_keys_len,                         \
                        const u16 *tail_values, u64 tail_values_len, const u32 *pages, u64 pages_len,    \
                        const u32 *firsts, u64 firsts_len, const u32 *lengths, u64 lengths_len,          \
                        const u32 *tiles, u64 tiles_len, float *parts, u64 parts_len, u32 heads,         \
                        u32 kv_heads, u32 page_size, u32 splits, u32 sight, u32 window, float scale)     \
    {                                                                                                    \
        attention<DIM>(q, q_len, keys, keys_len, values, values_len, tail_keys, tail_keys_len,           \
                       tail_values, tail_values_len, pages, pages_len, firsts, firsts_len, lengths,      \
                       lengths_len, tiles, tiles_len, parts, parts_len, heads, kv_heads, page_size,      \
                       splits, sight, window, scale);                                                    \
    }                                                                                                    \
    extern "C" __global__ void combine_##DIM(                                                            \
        const float *parts, u64 parts_len, const u32 *lengths, u64 lengths_len, const u32 *spans,        \
        u64 spans_len, const u32 *offsets, u64 offsets_len, u16 *out, u64 out_len, u32 heads,            \
        u32 splits, u32 sight)                                                                           \
    {                                                                                                    \
        combine<DIM>(parts, parts_len, lengths, lengths_len, spans, spans_len, offsets, offsets_len,     \
                     out, out_len, heads, splits, sight);                                                \
    }

ATTENTION(64)
ATTENTION(128)
