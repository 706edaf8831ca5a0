// The numbers that attention is cut by, and where its keys are.

const u32 CHUNK = 64;              // keys
const u32 RANKS = 8;               // chunk c is the work of rank c mod RANKS
const u32 SETS = 4;                // of 16 vectors, which are rows of the matrices, a warp each
const u32 FEWER_SETS = 2;          // where a block of threads merges what its ranks found
const u32 SHARES = 2;              // of a chunk's keys, warps of a set beside each other: on two schedulers
const u32 KEYS = CHUNK / SHARES;   // of a warp
const u32 STAGES = 2;              // chunks in shared memory: one is looked at, the other comes
const float LOG2_E = 1.4426950408889634f;
const float LOWEST = -3.402823466e38f;

// What a row sees of its own launch.
const u32 CAUSAL = 0, BOTH_WAYS = 1; // and 2: those behind it

// Rows that one block of threads takes: a part of a span. A tile of no rows fills a launch up.
struct Tile {
    u32 row;    // the first, in q
    u32 rows;
    u32 span;
    u32 offset; // of the first row in its span
    u32 width;  // rows of the span
};

// Floats of one vector in shared memory, so that lanes share no banks, and in `parts`: the sums, then
// the largest score and the weight.
template <u32 DIM> static __device__ constexpr u32 held() { return DIM + 8; }
template <u32 DIM> static __device__ constexpr u32 stride() { return DIM + 4; }

static __device__ float power(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Where keys are: in pages, and behind the context in an array of the launch's own rows. A tile has so many
// sets of vectors.
template <u32 DIM, u32 SETS> struct Keys {
    static const u32 THREADS = SETS * SHARES * 32;
    static const u32 VECTORS = SETS * 16;
    static const u32 PIECES = DIM / 8;                    // of a key, 16 bytes each
    static const u32 EACH = CHUNK * PIECES / THREADS;     // keys of a chunk that a thread fetches a piece of
    static const u32 K_ROW = DIM * 2 + 64, V_ROW = DIM * 2 + 16; // bytes, so that lanes share no banks
    static const u32 STAGE = CHUNK * (K_ROW + V_ROW);
    static const u32 HELD = STAGES * STAGE;               // and behind them the vectors of q, rows as of keys

    const u16 *keys, *values, *tail_keys, *tail_values;
    u64 len, tail_len;
    const u32 *pages;
    u64 pages_len, first_page;
    u32 kv_heads, kv, page_bits;
    u32 length, context;           // tokens before the span; tokens in pages that the tile sees
    u32 behind;                    // chunks in pages
    u32 tail_row, width;           // of the span; no width where its keys are in pages

    // The first key of a chunk, and how many there are.
    __device__ u32 first(u32 chunk) const
    {
        return chunk < behind ? chunk * CHUNK : length + (chunk - behind) * CHUNK;
    }

    __device__ u32 count(u32 chunk) const
    {
        const u32 end = chunk < behind ? context : length + width, left = end - first(chunk);
        return left < CHUNK ? left : CHUNK;
    }

    // Asks which pages this thread's keys of a chunk are in; `fetch` looks at the answer.
    __device__ void find(u32 chunk, u32 (&found)[EACH]) const
    {
        const u32 from = first(chunk), all = count(chunk);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const u32 key = threadIdx.x / PIECES + i * (THREADS / PIECES);
            if (chunk >= behind || key >= all)
                continue;
            const u64 entry = first_page + ((from + key) >> page_bits);
            expect(entry < pages_len);
            found[i] = pages[entry];
        }
    }

    // Past the last key there are zeros: what is multiplied by no weight has to be a number.
    __device__ void fetch(u32 chunk, const u32 (&found)[EACH], char *stage) const
    {
        const bool tail = chunk >= behind;
        const u32 piece = threadIdx.x % PIECES, from = first(chunk), all = count(chunk);
        const u16 *k = tail ? tail_keys : keys, *v = tail ? tail_values : values;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const u32 key = threadIdx.x / PIECES + i * (THREADS / PIECES), at = from + key;
            const bool there = key < all;
            u64 place = (u64)(tail ? tail_row + at - length : found[i]) * kv_heads + kv;
            if (!tail)
                place = (place << page_bits) + (at & ((1u << page_bits) - 1));
            expect(!there || (place + 1) * DIM <= (tail ? tail_len : len));
            const u64 element = there ? place * DIM + piece * 8 : 0;
            copy_async(stage + key * K_ROW + piece * 16, k + element, there ? 16 : 0);
            copy_async(stage + CHUNK * K_ROW + key * V_ROW + piece * 16, v + element, there ? 16 : 0);
        }
    }
};
