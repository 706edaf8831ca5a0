// Grouped-query attention of ragged rows over paged KV, on tensor cores. The keys of a tile of rows and one
// KV head are dealt out to RANKS ranks, chunk by chunk; the query heads of the group are rows of the
// matrices, so a key is read once for all of them. What the ranks found is merged in order. Where tiles
// are few, a rank is a block of threads, and from Hopper on the ranks of a tile are a cluster and merge
// by themselves; where there are many, a block of threads takes several ranks in turn, and `combine`
// merges, or all of them, and merges as it goes.

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
    for (u32 rank = 0; rank < RANKS; rank++) {
        const bool saw = found[rank].y > 0.0f;
        float most = largest, both = weight;
        const Meeting meeting(most, both, found[rank]);
        largest = saw ? most : largest, weight = saw ? both : weight;
#pragma unroll
        for (u32 i = 0; i < DIM / 32; i++)
            all[i] = saw ? meeting.of(all[i], sums[rank][i]) : all[i];
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
template <u32 DIM, u32 SETS, typename Take>
static __device__ void look(const Keys<DIM, SETS> &keys, const Rows &rows, const u16 *q, Walk ahead, char *shared,
                            u32 sight, u32 window, float factor, Take found)
{
    typedef Keys<DIM, SETS> K;
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
    // Those that have not yet.
    let_next_start();
    for (u32 i = threadIdx.x; i < K::VECTORS * K::PIECES; i += K::THREADS) {
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
        found(seen, rank, Place{(float *)(shared + (slot ^ 1) * K::STAGE), share, mine, lane, some, works});
    }
    await_copies<0>();
}

template <u32 DIM, u32 SETS> struct Given {
    typedef ::Keys<DIM, SETS> Keys;
    const u16 *q;
    u64 q_len;
    Keys keys;
    const u32 *firsts;
    u64 firsts_len;
    const u32 *lengths;
    u64 lengths_len;
    const u32 *tiles;
    u64 tiles_len;
    Out out;
    u32 heads, splits, sight, window;

    // What the tile and the KV head of some index look at.
    __device__ Rows look_at(u32 index, Keys &its) const
    {
        its = keys;
        its.kv = index % keys.kv_heads;
        const u32 at = index / keys.kv_heads, group = heads / keys.kv_heads;
        expect(blockDim.x == Keys::THREADS && (u64)(at + 1) * 5 <= tiles_len);
        const Tile tile = {tiles[at * 5], tiles[at * 5 + 1], tiles[at * 5 + 2], tiles[at * 5 + 3], tiles[at * 5 + 4]};
        expect(tile.span < lengths_len && tile.span < firsts_len && tile.rows * group <= Keys::VECTORS);
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
    __device__ Walk walk(const Keys &its, const Rows &rows, u32 rank, u32 end) const
    {
        const u32 all = its.behind + (its.width + CHUNK - 1) / CHUNK;
        const u32 start = rows.low < window ? 0 : (rows.low - window + 1) / CHUNK;
        return Walk(start < its.behind ? start : its.behind, all, rank, end);
    }
};

#if __CUDA_ARCH__ >= 900
// A cluster of RANKS blocks of threads is a tile and a KV head, and merges what its ranks found.
template <u32 DIM, u32 SETS> static __device__ void together(const Given<DIM, SETS> &given, float factor)
{
    extern __shared__ __align__(16) char shared[];
    // Narrow tiles are of small models, where the next kernel has its weight in no time once they have waited.
    if (SETS > FEWER_SETS)
        let_next_start();
    Keys<DIM, SETS> keys;
    const u32 own = blockIdx.x % RANKS;
    const Rows rows = given.look_at(blockIdx.x / RANKS, keys);
    if (rows.tile.rows == 0) {
        wait_for_earlier();
        return;
    }
    float *found = (float *)shared;
    look<DIM, SETS>(keys, rows, given.q, given.walk(keys, rows, own, own + 1), shared, given.sight, given.window, factor,
              [=](Seen<DIM> &seen, u32, const Place &at) {
                  const bool mine = join(seen, at);
                  await_copies<0>();
                  __syncthreads();
                  if (mine)
                      seen.put(found, at.mine, at.lane);
              });
    arrive();
    await_cluster();
    const u32 lane = threadIdx.x % 32, vectors = rows.tile.rows * rows.group;
    for (u32 vector = threadIdx.x / 32 * RANKS + own; vector < vectors; vector += blockDim.x / 32 * RANKS) {
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
static __device__ void apart(const Given<DIM, SETS> &given, float *parts, u64 parts_len, u32 each, float factor)
{
    extern __shared__ __align__(16) char shared[];
    let_next_start();
    Keys<DIM, SETS> keys;
    const u32 blocks = RANKS / each, first = blockIdx.x % blocks * each;
    const Rows rows = given.look_at(blockIdx.x / blocks, keys);
    if (rows.tile.rows == 0) {
        wait_for_earlier();
        return;
    }
    expect(each > 0 && RANKS % each == 0);
    expect((u64)(rows.tile.row + rows.tile.rows) * rows.heads * RANKS * stride<DIM>() <= parts_len);
    look<DIM, SETS>(keys, rows, given.q, given.walk(keys, rows, first, first + each), shared, given.sight, given.window, factor,
              [=](Seen<DIM> &seen, u32 rank, const Place &at) {
                  const u32 vector = at.mine, lane = at.lane;
                  const bool mine = join(seen, at);
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

// A block of threads is a tile and a KV head, goes through all ranks and merges what it finds. Fewer vectors leave
// a lane registers for what they have seen in the ranks before.
template <u32 DIM> static __device__ void whole(const Given<DIM, FEWER_SETS> &given, float factor)
{
    typedef Keys<DIM, FEWER_SETS> K;
    extern __shared__ __align__(16) char shared[];
    let_next_start();
    K keys;
    const Rows rows = given.look_at(blockIdx.x, keys);
    if (rows.tile.rows == 0) {
        wait_for_earlier();
        return;
    }
    Merged<DIM> all;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    look<DIM, FEWER_SETS>(keys, rows, given.q, given.walk(keys, rows, 0, RANKS), shared, given.sight, given.window, factor,
                          [&](Seen<DIM> &seen, u32, const Place &at) { all.add(seen, at); });
    // Where q was; then in the order in which they lie in `out`.
    __syncthreads();
    all.leave(shared + K::HELD, K::K_ROW, Place{nullptr, warp % SHARES, warp / SHARES * 16 + lane / 4, lane, true, true});
    __syncthreads();
    const u32 count = rows.tile.rows, words = count * rows.group * (DIM / 2);
    for (u32 i = threadIdx.x; i < words; i += K::THREADS) {
        u32 row, head, column;
        if (given.out.tiles) {
            const u32 step = i / 4 / count / 4;
            row = i / 4 % count, head = step / (DIM / 32);
            column = step % (DIM / 32) * 32 + i % 4 * 8 + i / 4 / count % 4 * 2;
        } else {
            const u32 vector = i / (DIM / 2);
            row = vector / rows.group, head = vector % rows.group, column = i % (DIM / 2) * 2;
        }
        const u32 *from = (const u32 *)(shared + K::HELD + (row * rows.group + head) * K::K_ROW);
        *given.out.two(rows.tile.row + row, (rows.kv * rows.group + head) * DIM + column) = from[column / 2];
    }
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
#define GIVEN(DIM, SETS)                                                                                 \
    expect(page_size > 0 && (page_size & (page_size - 1)) == 0);                                         \
    const u64 len = keys_len < values_len ? keys_len : values_len;                                       \
    const u64 tail_len = tail_keys_len < tail_values_len ? tail_keys_len : tail_values_len;              \
    const Keys<DIM, SETS> where = {keys, values, tail_keys, tail_values, len, tail_len, pages, pages_len,\
                             0, kv_heads, 0, (u32)__ffs(page_size) - 1, 0, 0, 0, 0, 0};                  \
    const Given<DIM, SETS> given = {q, q_len, where, firsts, firsts_len, lengths, lengths_len, tiles,    \
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
        GIVEN(DIM, SETS)                                                                                 \
        together<DIM>(given, scale * LOG2_E);                                                            \
    }

// Of narrow tiles half of the threads look at nothing. Without them a rank fits beside what still runs, and is there
// before it is waited for. Of larger heads it is slower: half of the threads ask for as many keys.
#define NARROW(DIM)                                                                                      \
    extern "C" __global__ void __cluster_dims__(8, 1, 1) __launch_bounds__(128, 1) narrow_##DIM(PARAMETERS) \
    {                                                                                                    \
        GIVEN(DIM, FEWER_SETS)                                                                           \
        together<DIM>(given, scale * LOG2_E);                                                            \
    }

NARROW(64)
#else
#define TOGETHER(DIM, REGISTERS)
#endif

// `BLOCKS` of threads fit on a multiprocessor.
#define ATTENTION(DIM, REGISTERS, BLOCKS)                                                                \
    TOGETHER(DIM, REGISTERS)                                                                             \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS) apart_##DIM(PARAMETERS)                    \
    {                                                                                                    \
        GIVEN(DIM, SETS)                                                                                 \
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

#define WHOLE(DIM)                                                                                       \
    extern "C" __global__ void __launch_bounds__(128, 2) whole_##DIM(PARAMETERS)                         \
    {                                                                                                    \
        GIVEN(DIM, FEWER_SETS)                                                                           \
        whole<DIM>(given, scale * LOG2_E);                                                               \
    }

// Of heads of 256 elements a lane has no registers for that.
WHOLE(64)
WHOLE(128)
