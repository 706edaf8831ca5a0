// Grouped-query attention of ragged rows over paged KV, on tensor cores. The keys of a tile of rows and one
// KV head are dealt out to RANKS ranks, chunk by chunk; the query heads of the group are rows of the
// matrices, so a key is read once for all of them. What the ranks found is merged in order. Where tiles
// are few, a rank is a block of threads, and from Hopper on the ranks of a tile are a cluster and merge
// by themselves; where there are many, a block of threads takes several ranks in turn, and `combine`
// merges.

// Two vectors of a lane: what they have seen so far, in quarters of a quad.
template <u32 DIM> struct Seen {
    float largest[2], weight[2], sums[DIM / 8][4];

    __device__ void clear()
    {
        largest[0] = largest[1] = LOWEST;
        weight[0] = weight[1] = 0.0f;
#pragma unroll
        for (u32 d = 0; d < DIM / 8; d++)
            sums[d][0] = sums[d][1] = sums[d][2] = sums[d][3] = 0.0f;
    }

    // Sees a warp's keys of a stage; `sees` says which of its scores count.
    template <typename Sees>
    __device__ void see(const char *q, const char *k, u32 v, float factor, Sees sees)
    {
        float scores[KEYS / 8][4] = {}, most[2] = {largest[0], largest[1]};
#pragma unroll
        for (u32 step = 0; step < DIM / 32; step++) {
            const uint4 a = *(const uint4 *)(q + step * 64);
            const uint4 b = *(const uint4 *)(q + 8 * Keys<DIM>::K_ROW + step * 64);
#pragma unroll
            for (u32 t = 0; t < KEYS / 8; t++) {
                const uint4 key = *(const uint4 *)(k + t * 8 * Keys<DIM>::K_ROW + step * 64);
                mma(scores[t], a.x, b.x, a.y, b.y, key.x, key.y);
                mma(scores[t], a.z, b.z, a.w, b.w, key.z, key.w);
            }
        }
#pragma unroll
        for (u32 t = 0; t < KEYS / 8; t++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                // No product is fused with what follows, or rows that all see would round otherwise.
                scores[t][i] = sees(t, i) ? __fmul_rn(scores[t][i], factor) : LOWEST;
                most[i / 2] = fmaxf(most[i / 2], scores[t][i]);
            }
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 1));
            most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 2));
            const float old = power(largest[i] - most[i]);
            largest[i] = most[i];
            weight[i] = __fmul_rn(weight[i], old);
#pragma unroll
            for (u32 d = 0; d < DIM / 8; d++) {
                sums[d][i * 2] *= old;
                sums[d][i * 2 + 1] *= old;
            }
        }
#pragma unroll
        for (u32 t = 0; t < KEYS / 8; t++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                scores[t][i] = scores[t][i] > LOWEST ? power(__fsub_rn(scores[t][i], largest[i / 2])) : 0.0f;
                weight[i / 2] = __fadd_rn(weight[i / 2], scores[t][i]);
            }
#pragma unroll
        for (u32 t = 0; t < KEYS / 8; t += 2) {
            const u32 a0 = narrowed(scores[t][0], scores[t][1]), a1 = narrowed(scores[t][2], scores[t][3]);
            const u32 a2 = narrowed(scores[t + 1][0], scores[t + 1][1]);
            const u32 a3 = narrowed(scores[t + 1][2], scores[t + 1][3]);
#pragma unroll
            for (u32 d = 0; d < DIM / 16; d++) {
                u32 b[4];
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                             : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                             : "r"(v + t * 8 * Keys<DIM>::V_ROW + d * 32));
                mma(sums[d * 2], a0, a1, a2, a3, b[0], b[1]);
                mma(sums[d * 2 + 1], a0, a1, a2, a3, b[2], b[3]);
            }
        }
    }

    // Adds up the weight over the quad.
    __device__ void close()
    {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            weight[i] += __shfl_xor_sync(~0u, weight[i], 1);
            weight[i] += __shfl_xor_sync(~0u, weight[i], 2);
        }
    }

    // To or from an array of vectors, of which `mine` is this lane's first.
    __device__ void put(float *vectors, u32 mine, u32 lane) const
    {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            float *to = vectors + (mine + i * 8) * held<DIM>();
#pragma unroll
            for (u32 d = 0; d < DIM / 8; d++)
                *(float2 *)(to + d * 8 + lane % 4 * 2) = make_float2(sums[d][i * 2], sums[d][i * 2 + 1]);
            if (lane % 4 == 0)
                *(float2 *)(to + DIM) = make_float2(largest[i], weight[i]);
        }
    }

    // Merges with what another warp put.
    __device__ void meet(const float *vectors, u32 mine, u32 lane)
    {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const float *from = vectors + (mine + i * 8) * held<DIM>();
            const float2 its = *(const float2 *)(from + DIM);
            const float most = fmaxf(largest[i], its.x);
            const float old = power(largest[i] - most), more = power(its.x - most);
            largest[i] = most;
            weight[i] = __fadd_rn(__fmul_rn(weight[i], old), __fmul_rn(its.y, more));
#pragma unroll
            for (u32 d = 0; d < DIM / 8; d++) {
                const float2 sum = *(const float2 *)(from + d * 8 + lane % 4 * 2);
                sums[d][i * 2] = __fadd_rn(__fmul_rn(sums[d][i * 2], old), __fmul_rn(sum.x, more));
                sums[d][i * 2 + 1] = __fadd_rn(__fmul_rn(sums[d][i * 2 + 1], old), __fmul_rn(sum.y, more));
            }
        }
    }
};

// Where rows of heads are written: the first of a launch is row `first` there.
struct Out {
    u16 *at;
    u64 len;
    u32 width, first;
    bool tiles;

    __device__ Out(u16 *out, u64 len, u32 width, u32 first_and_tiles)
        : at(out), len(len), width(width), first(first_and_tiles / 2), tiles(first_and_tiles % 2 != 0)
    {
        expect(!tiles || width % 32 == 0);
    }

    __device__ bool holds(u32 rows) const
    {
        return (tiles ? Lines<true>{at, width}.elements(first + rows) : Lines<false>{at, width}.elements(first + rows)) <= len;
    }

    // Two elements of a row, from an even column on.
    __device__ u32 *two(u32 row, u32 column) const
    {
        return tiles ? Lines<true>{at, width}.two(first + row, column) : Lines<false>{at, width}.two(first + row, column);
    }
};

// What the ranks found of one vector, a head of a row, merged in order and written; a lane has DIM / 32 elements.
// A rank without weight saw no key, and what stands for its sums is nothing.
template <u32 DIM>
static __device__ void merge(const float (&sums)[RANKS][DIM / 32], const float2 (&found)[RANKS], const Out &out,
                             u32 row, u32 head, u32 lane)
{
    float largest = LOWEST, weight = 0.0f, all[DIM / 32] = {};
#pragma unroll
    for (u32 rank = 0; rank < RANKS; rank++)
        largest = found[rank].y > 0.0f ? fmaxf(largest, found[rank].x) : largest;
#pragma unroll
    for (u32 rank = 0; rank < RANKS; rank++) {
        if (!(found[rank].y > 0.0f))
            continue;
        const float factor = power(found[rank].x - largest);
        weight = __fadd_rn(weight, __fmul_rn(found[rank].y, factor));
#pragma unroll
        for (u32 i = 0; i < DIM / 32; i++)
            all[i] = __fadd_rn(all[i], __fmul_rn(sums[rank][i], factor));
    }
    const float inverse = weight > 0.0f ? 1.0f / weight : 0.0f;
    const u32 column = head * DIM + lane * (DIM / 32);
#pragma unroll
    for (u32 i = 0; i < DIM / 32; i += 2)
        *out.two(row, column + i) = narrowed(all[i] * inverse, all[i + 1] * inverse);
}

#if __CUDA_ARCH__ >= 900
static __device__ void arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }

static __device__ void await_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Two floats of another block of threads of the cluster.
static __device__ float2 theirs(const float *mine, u32 rank)
{
    float2 x;
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %2, %3; "
                 "ld.shared::cluster.v2.f32 {%0, %1}, [there]; }"
                 : "=f"(x.x), "=f"(x.y)
                 : "r"((u32)__cvta_generic_to_shared(mine)), "r"(rank)
                 : "memory");
    return x;
}
#endif

// The chunks of some ranks of a tile, rank by rank.
struct Walk {
    u32 start, all, from, end; // the first chunk looked at, how many there are; the ranks
    u32 rank, chunk;

    __device__ Walk(u32 start, u32 all, u32 from, u32 end)
        : start(start), all(all), from(from), end(end), rank(from)
    {
        chunk = first();
        settle();
    }

    __device__ u32 first() const { return start + (rank + RANKS - start % RANKS) % RANKS; }

    __device__ bool more() const { return rank < end; }

    __device__ void settle()
    {
        while (chunk >= all && ++rank < end)
            chunk = first();
    }

    __device__ void advance()
    {
        chunk += RANKS;
        settle();
    }
};

// The vectors of a tile.
struct Rows {
    Tile tile;
    u32 group, kv, heads, low; // and the position of the first row

    __device__ u32 row(u32 vector) const { return tile.row + vector / group; }
    __device__ u32 head(u32 vector) const { return kv * group + vector % group; }
    __device__ u64 place(u32 vector) const { return (u64)row(vector) * heads + head(vector); }
};

// What a warp finds for its vectors in the chunks of some ranks, each rank's handed to `found`.
template <u32 DIM, typename Take>
static __device__ void look(const Keys<DIM> &keys, const Rows &rows, const u16 *q, Walk ahead, char *shared,
                            u32 sight, u32 window, float factor, Take found)
{
    typedef Keys<DIM> K;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, set = warp / SHARES, share = warp % SHARES;
    const u32 vectors = rows.tile.rows * rows.group, high = rows.low + rows.tile.rows - 1;
    const bool works = set * 16 < vectors;
    Walk walk = ahead;
    u32 places[K::EACH];
    // Before the others have ended, only keys that this pass does not write: those of tokens before it.
    u32 asked = 0;
    for (; asked < STAGES && ahead.more() && ahead.chunk < keys.behind && keys.first(ahead.chunk) + CHUNK <= keys.length;
         asked++, ahead.advance()) {
        keys.find(ahead.chunk, places);
        keys.fetch(ahead.chunk, places, shared + asked * K::STAGE);
    }
    wait_for_earlier();
    for (u32 i = threadIdx.x; i < VECTORS * K::PIECES; i += THREADS) {
        const u32 vector = i / K::PIECES, piece = i % K::PIECES;
        const bool there = vector < vectors;
        copy_async(shared + K::HELD + vector * K::K_ROW + piece * 16,
                   q + (there ? rows.place(vector) * DIM + piece * 8 : 0), there ? 16 : 0);
    }
    for (; asked < STAGES; asked++) {
        if (ahead.more()) {
            keys.find(ahead.chunk, places);
            keys.fetch(ahead.chunk, places, shared + asked * K::STAGE);
            ahead.advance();
        }
    }
    commit_copies();
    if (ahead.more())
        keys.find(ahead.chunk, places);

    // This lane's two vectors.
    const u32 mine = set * 16 + lane / 4;
    const u32 position[2] = {rows.low + mine / rows.group, rows.low + (mine + 8) / rows.group};
    const u32 k_lane = (share * KEYS + lane / 4) * K::K_ROW + lane % 4 * 16;
    const u32 v_lane = CHUNK * K::K_ROW + (share * KEYS + lane % 16) * K::V_ROW + lane / 16 * 16;
    const char *q_lane = shared + K::HELD + mine * K::K_ROW + lane % 4 * 16;
    Seen<DIM> seen;
    bool begun = false;
    u32 slot = 0;
    for (u32 rank = walk.from; rank < walk.end; rank++) {
        seen.clear();
        const bool some = walk.more() && walk.rank == rank;
#pragma unroll 1
        for (; walk.more() && walk.rank == rank; walk.advance()) {
            await_copies<0>();
            __syncthreads();
            // Everyone is through with the chunk before.
            if (begun && ahead.more()) {
                keys.fetch(ahead.chunk, places, shared + (slot ^ 1) * K::STAGE);
                commit_copies();
                ahead.advance();
                if (ahead.more())
                    keys.find(ahead.chunk, places);
            }
            begun = true;
            const char *stage = shared + slot * K::STAGE;
            slot ^= 1;
            if (!works)
                continue;
            const u32 first = keys.first(walk.chunk), count = keys.count(walk.chunk);
            const char *k = stage + k_lane;
            const u32 v = (u32)__cvta_generic_to_shared(stage) + v_lane;
            const bool near = sight == BOTH_WAYS ? window == ~0u : first + CHUNK - 1 <= rows.low && high - first < window;
            if (count == CHUNK && near)
                seen.see(q_lane, k, v, factor, [](u32, u32) { return true; });
            else
                seen.see(q_lane, k, v, factor, [&](u32 t, u32 i) {
                    const u32 key = share * KEYS + t * 8 + lane % 4 * 2 + i % 2, at = first + key;
                    const u32 own = position[i / 2], apart = at < own ? own - at : at - own;
                    return key < count && apart < window && (sight == BOTH_WAYS || at <= own);
                });
        }
        // The two shares meet where the last chunk was.
        seen.close();
        float *meeting = (float *)(shared + (slot ^ 1) * K::STAGE);
        if (some) {
            __syncthreads();
            if (works && share == 1)
                seen.put(meeting, mine, lane);
            __syncthreads();
            if (works && share == 0)
                seen.meet(meeting, mine, lane);
        }
        found(seen, rank, works && share == 0, mine, lane);
    }
    await_copies<0>();
}

template <u32 DIM> struct Given {
    const u16 *q;
    u64 q_len;
    Keys<DIM> keys;
    const u32 *firsts;
    u64 firsts_len;
    const u32 *lengths;
    u64 lengths_len;
    const u32 *tiles;
    u64 tiles_len;
    Out out;
    u32 heads, splits, sight, window;

    // What the tile and the KV head of some index look at.
    __device__ Rows look_at(u32 index, Keys<DIM> &its) const
    {
        its = keys;
        its.kv = index % keys.kv_heads;
        const u32 at = index / keys.kv_heads, group = heads / keys.kv_heads;
        expect(blockDim.x == THREADS && (u64)(at + 1) * 5 <= tiles_len);
        const Tile tile = {tiles[at * 5], tiles[at * 5 + 1], tiles[at * 5 + 2], tiles[at * 5 + 3], tiles[at * 5 + 4]};
        expect(tile.span < lengths_len && tile.span < firsts_len && tile.rows * group <= VECTORS);
        expect(tile.offset <= tile.row);
        expect((u64)(tile.row + tile.rows) * heads * DIM <= q_len && out.holds(tile.row + tile.rows));
        const u32 length = lengths[tile.span];
        its.first_page = firsts[tile.span];
        its.length = length;
        its.context = sight == CAUSAL ? length + tile.offset + tile.rows : length;
        its.behind = (its.context + CHUNK - 1) / CHUNK;
        its.tail_row = tile.row - tile.offset;
        its.width = sight == CAUSAL ? 0 : tile.width;
        expect(its.behind <= splits * 2);
        return {tile, group, its.kv, heads, length + tile.offset};
    }

    // The chunks that some ranks look at: those that no row sees are left out.
    __device__ Walk walk(const Keys<DIM> &its, const Rows &rows, u32 rank, u32 end) const
    {
        const u32 all = its.behind + (its.width + CHUNK - 1) / CHUNK;
        const u32 start = rows.low < window ? 0 : (rows.low - window + 1) / CHUNK;
        return Walk(start < its.behind ? start : its.behind, all, rank, end);
    }
};

#if __CUDA_ARCH__ >= 900
// A cluster of RANKS blocks of threads is a tile and a KV head, and merges what its ranks found.
template <u32 DIM> static __device__ void together(const Given<DIM> &given, float factor)
{
    extern __shared__ __align__(16) char shared[];
    let_next_start();
    Keys<DIM> keys;
    const u32 own = blockIdx.x % RANKS;
    const Rows rows = given.look_at(blockIdx.x / RANKS, keys);
    if (rows.tile.rows == 0) {
        wait_for_earlier();
        return;
    }
    float *found = (float *)shared;
    look<DIM>(keys, rows, given.q, given.walk(keys, rows, own, own + 1), shared, given.sight, given.window, factor,
              [=](const Seen<DIM> &seen, u32, bool mine, u32 vector, u32 lane) {
                  await_copies<0>();
                  __syncthreads();
                  if (mine)
                      seen.put(found, vector, lane);
              });
    arrive();
    await_cluster();
    const u32 lane = threadIdx.x % 32, vectors = rows.tile.rows * rows.group;
    for (u32 vector = threadIdx.x / 32 * RANKS + own; vector < vectors; vector += THREADS / 32 * RANKS) {
        const float *from = found + vector * held<DIM>();
        float sums[RANKS][DIM / 32];
        float2 its[RANKS];
#pragma unroll
        for (u32 i = 0; i < RANKS; i++) {
            its[i] = theirs(from + DIM, i);
#pragma unroll
            for (u32 j = 0; j < DIM / 32; j += 2) {
                const float2 two = theirs(from + lane * (DIM / 32) + j, i);
                sums[i][j] = two.x;
                sums[i][j + 1] = two.y;
            }
        }
        merge<DIM>(sums, its, given.out, rows.row(vector), rows.head(vector), lane);
    }
    // Nobody leaves before the others have read.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    await_cluster();
}
#endif

// parts[row][head][rank] = what the rank found, `each` ranks to a block of threads.
template <u32 DIM>
static __device__ void apart(const Given<DIM> &given, float *parts, u64 parts_len, u32 each, float factor)
{
    extern __shared__ __align__(16) char shared[];
    let_next_start();
    Keys<DIM> keys;
    const u32 blocks = RANKS / each, first = blockIdx.x % blocks * each;
    const Rows rows = given.look_at(blockIdx.x / blocks, keys);
    if (rows.tile.rows == 0) {
        wait_for_earlier();
        return;
    }
    expect(each > 0 && RANKS % each == 0);
    expect((u64)(rows.tile.row + rows.tile.rows) * rows.heads * RANKS * stride<DIM>() <= parts_len);
    look<DIM>(keys, rows, given.q, given.walk(keys, rows, first, first + each), shared, given.sight, given.window, factor,
              [=](const Seen<DIM> &seen, u32 rank, bool mine, u32 vector, u32 lane) {
#pragma unroll
                  for (u32 i = 0; i < 2; i++) {
                      if (!mine || vector + i * 8 >= rows.tile.rows * rows.group)
                          continue;
                      float *part = parts + (rows.place(vector + i * 8) * RANKS + rank) * stride<DIM>();
                      if (lane % 4 == 0)
                          *(float2 *)(part + DIM) = make_float2(seen.largest[i], seen.weight[i]);
                      // What saw no key is not looked at.
                      if (!(seen.weight[i] > 0.0f))
                          continue;
#pragma unroll
                      for (u32 d = 0; d < DIM / 8; d++)
                          *(float2 *)(part + d * 8 + lane % 4 * 2) = make_float2(seen.sums[d][i * 2], seen.sums[d][i * 2 + 1]);
                  }
              });
}

// out[row][head] = what the ranks found, merged in order. A warp is one head of one row.
template <u32 DIM>
static __device__ void combine(const float *parts, u64 parts_len, const Out &out, u32 rows, u32 heads)
{
    let_next_start();
    const u64 unit = (blockIdx.x * (u64)blockDim.x + threadIdx.x) / 32;
    const u32 lane = threadIdx.x % 32;
    expect(out.holds(rows) && parts_len >= (u64)rows * heads * RANKS * stride<DIM>());
    wait_for_earlier();
    if (unit >= (u64)rows * heads)
        return;
    float sums[RANKS][DIM / 32];
    float2 found[RANKS];
    // Of a short context most ranks saw no key, and what they would have left is most of what there is.
#pragma unroll
    for (u32 rank = 0; rank < RANKS; rank++)
        found[rank] = *(const float2 *)(parts + (unit * RANKS + rank) * stride<DIM>() + DIM);
#pragma unroll
    for (u32 rank = 0; rank < RANKS; rank++) {
        const float *part = parts + (unit * RANKS + rank) * stride<DIM>();
#pragma unroll
        for (u32 i = 0; i < DIM / 32; i++)
            sums[rank][i] = found[rank].y > 0.0f ? part[lane * (DIM / 32) + i] : 0.0f;
    }
    merge<DIM>(sums, found, out, (u32)unit / heads, (u32)unit % heads, lane);
}

// `sight_and_each`: four times the ranks of a block of threads, and what rows see. `first_and_tiles`: twice the
// row of `out` that is the first one's, and whether its rows lie in tiles.
#define PARAMETERS                                                                                       \
    const u16 *q, u64 q_len, const u16 *keys, u64 keys_len, const u16 *values, u64 values_len,           \
        const u16 *tail_keys, u64 tail_keys_len, const u16 *tail_values, u64 tail_values_len,            \
        const u32 *pages, u64 pages_len, const u32 *firsts, u64 firsts_len, const u32 *lengths,          \
        u64 lengths_len, const u32 *tiles, u64 tiles_len, float *parts, u64 parts_len, u16 *out,         \
        u64 out_len, u32 heads, u32 kv_heads, u32 page_size, u32 splits, u32 sight_and_each, u32 window, \
        u32 first_and_tiles, float scale
#define GIVEN(DIM)                                                                                       \
    expect(page_size > 0 && (page_size & (page_size - 1)) == 0);                                         \
    const u64 len = keys_len < values_len ? keys_len : values_len;                                       \
    const u64 tail_len = tail_keys_len < tail_values_len ? tail_keys_len : tail_values_len;              \
    const Keys<DIM> where = {keys, values, tail_keys, tail_values, len, tail_len, pages, pages_len,      \
                             0, kv_heads, 0, (u32)__ffs(page_size) - 1, 0, 0, 0, 0, 0};                  \
    const Given<DIM> given = {q, q_len, where, firsts, firsts_len, lengths, lengths_len, tiles,          \
                              tiles_len, Out(out, out_len, heads * DIM, first_and_tiles),                \
                              heads, splits, sight_and_each % 4, window};

#if __CUDA_ARCH__ >= 900
// Registers of a thread where ranks are few: so few that the next product starts beside a rank, and so
// many that no two ranks share a multiprocessor while others have none. Heads of 256 elements need what there
// is.
const u32 SPREAD = 160, ALL = 255;

#define TOGETHER(DIM, REGISTERS)                                                                         \
    extern "C" __global__ void __cluster_dims__(8, 1, 1) __maxnreg__(REGISTERS)                          \
        together_##DIM(PARAMETERS)                                                                       \
    {                                                                                                    \
        GIVEN(DIM)                                                                                       \
        together<DIM>(given, scale * LOG2_E);                                                            \
    }
#else
#define TOGETHER(DIM, REGISTERS)
#endif

// `BLOCKS` of threads fit on a multiprocessor.
#define ATTENTION(DIM, REGISTERS, BLOCKS)                                                                \
    TOGETHER(DIM, REGISTERS)                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) apart_##DIM(PARAMETERS)                \
    {                                                                                                    \
        GIVEN(DIM)                                                                                       \
        apart<DIM>(given, parts, parts_len, sight_and_each / 4, scale * LOG2_E);                         \
    }                                                                                                    \
    extern "C" __global__ void combine_##DIM(const float *parts, u64 parts_len, u16 *out, u64 out_len,   \
                                             u32 rows, u32 heads, u32 first_and_tiles)                   \
    {                                                                                                    \
        combine<DIM>(parts, parts_len, Out(out, out_len, heads * DIM, first_and_tiles), rows, heads);    \
    }

ATTENTION(64, SPREAD, 2)
ATTENTION(128, SPREAD, 2)
ATTENTION(256, ALL, 1)
