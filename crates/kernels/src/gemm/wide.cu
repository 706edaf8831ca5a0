// Products of many rows where warps bring what they multiply with `mma`, and the kernels of all cards.

#if !HOPPER
const u32 STAGES = 6; // steps in shared memory

// The steps of a part on their way to a block of threads, or there.
struct Belt {
    char *slots;
    const char *w, *x; // what a thread copies of the first step
    u32 count;

    __device__ char *slot(u32 step) const { return slots + step % STAGES * 2 * PART; }

    __device__ void ask(u32 step) const
    {
        if (step < count) {
            const u32 to = address(slot(step)) + threadIdx.x * 16;
#pragma unroll
            for (u32 i = 0; i < PART; i += THREADS * 16) {
                copy_async(to + i, w + (u64)step * PART + i);
                copy_async(to + PART + i, x + (u64)step * PART + i);
            }
        }
        commit_copies();
    }
};

// Adds up a part.
static __device__ void add_up(const Belt &belt, Sums<1> &sums)
{
    // What is asked for goes where the part before was read.
    __syncthreads();
    for (u32 step = 0; step < STAGES - 1; step++)
        belt.ask(step);
#pragma unroll 1
    for (u32 step = 0; step < belt.count; step++) {
        await_copies<STAGES - 2>();
        __syncthreads();
        belt.ask(step + STAGES - 1);
        const char *x = belt.slot(step) + PART + threadIdx.x % 32 * 4;
        const u32 w = address(belt.slot(step)) + threadIdx.x / 32 * 1024 + place_of(threadIdx.x % 32);
        const uint4 a = fragment(w), b = fragment(w + 256);
#pragma unroll
        for (u32 n = 0; n < TILE / 8; n++) {
            float(&sum)[4] = *(float(*)[4])(sums.at + n * 4);
            const char *rows = x + n * 128;
            mma(sum, a.x, a.y, a.z, a.w, *(const u32 *)rows, *(const u32 *)(rows + PART / 4));
            mma(sum, b.x, b.y, b.z, b.w, *(const u32 *)(rows + PART / 2), *(const u32 *)(rows + PART / 4 * 3));
        }
    }
}

// out = x · weightᵀ, as Pieces says, or what it makes of that.
template <u32 TILES, Left LEFT, Made MADE> static __device__ void product(const Given &given)
{
    extern __shared__ __align__(128) char shared[];
    const u32 half = blockIdx.x % 2, places = Work<1, LEFT>::places(given), at_once = gridDim.x / 2;
    char *slots = shared + (LEFT == WHOLE ? TILE * BLOCK * 4 : 0);
    wait_for_earlier();
    for (u32 i = blockIdx.x / 2; i < places; i += at_once) {
        const Work<1, LEFT> work(given, i, at_once);
        for (u32 index = 0; index < work.parts; index++) {
            const Part part = work.part(index);
            const char *w = work.columns(part, half) + threadIdx.x * 16;
            const char *x = work.lines(part, 0) + threadIdx.x * 16;
            Sums<1> sums;
            add_up({slots, w, x, part.hi - part.lo}, sums);
            if constexpr (MADE == GATED)
                put_gated(work, part, half, (float4 *)shared, sums);
            else
                put(work, part, half, (float4 *)shared, sums);
        }
    }
}
#endif

#if HOPPER
#define CLUSTER __cluster_dims__(2, 1, 1)
#else
#define CLUSTER
#endif

#define PARAMETERS                                                                                       \
    const u16 *weight, u64 weight_len, const u16 *x, u64 x_len, float *out, u64 out_len, u32 blocks,     \
        u32 steps, u32 workers, u32 rows

// Two kernels: without and with a bias for each column.
#define PRODUCT(NAME, TILES, LEFT)                                                                       \
    static __device__ void NAME##_of(PARAMETERS, const float *bias, u32 columns)                         \
    {                                                                                                    \
        let_next_start();                                                                                \
        expect(blockDim.x == THREADS && gridDim.x % 2 == 0);                                             \
        expect(weight_len >= (u64)blocks * steps * BLOCK * STEP);                                        \
        expect(x_len >= (u64)(rows + TILE - 1) / TILE * TILE * steps * STEP);                            \
        const u32 pieces = (blocks + 1) / 2 + (LEFT == PIECES ? workers : 0);                            \
        expect(out_len >= (u64)pieces * 2 * rows * BLOCK && columns <= blocks * BLOCK);                  \
        product<TILES, LEFT, SUMS>({(const char *)weight, (const char *)x, out, bias, blocks, steps,     \
                                    workers, rows, columns});                                            \
    }                                                                                                    \
    extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1) NAME(PARAMETERS)                    \
    {                                                                                                    \
        NAME##_of(weight, weight_len, x, x_len, out, out_len, blocks, steps, workers, rows, nullptr, 0); \
    }                                                                                                    \
    extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1)                                     \
        NAME##_biased(const float *bias, u64 bias_len, PARAMETERS)                                       \
    {                                                                                                    \
        NAME##_of(weight, weight_len, x, x_len, out, out_len, blocks, steps, workers, rows, bias,        \
                  (u32)bias_len);                                                                        \
    }

// Of gates and ups, whose bias may be none: `pieces` are what two workers have of a band between them, [block][eight of
// rows][thread][4].
#define GATED_PRODUCT(NAME, TILES, LEFT)                                                                 \
    extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1)                                     \
        NAME(const float *bias, u64 bias_len, const u16 *weight, u64 weight_len, const u16 *x,           \
             u64 x_len, float *pieces, u64 pieces_len, u32 *there, u64 there_len, u16 *out, u64 out_len, \
             u32 blocks, u32 steps, u32 workers, u32 rows, u32 width)                                    \
    {                                                                                                    \
        let_next_start();                                                                                \
        const u64 tiles = (rows + TILE - 1) / TILE;                                                      \
        expect(blockDim.x == THREADS && gridDim.x % 2 == 0);                                             \
        expect(weight_len >= (u64)blocks * steps * BLOCK * STEP && x_len >= tiles * TILE * steps * STEP);  \
        expect(out_len >= tiles * TILE * width && width % 32 == 0);                                      \
        expect(width * 2 <= blocks * BLOCK && bias_len <= blocks * BLOCK);                               \
        const u32 bands = (blocks + 1) / 2;                                                              \
        expect(LEFT == WHOLE || workers <= bands && rows <= TILES * TILE);                               \
        expect(LEFT == WHOLE || gridDim.x / 2 >= workers && there_len >= bands * 2 * WARPS);             \
        expect(LEFT == WHOLE || pieces_len >= (u64)bands * 2 * BLOCK * ((rows + 7) / 8 * 8));            \
        product<TILES, LEFT, GATED>({(const char *)weight, (const char *)x, pieces, bias, blocks, steps, \
                                     workers, rows, (u32)bias_len, {out, there, width}});                \
    }

PRODUCT(product_low, 1, PIECES)
PRODUCT(product_pieces, 2, PIECES)
PRODUCT(product_whole, 2, WHOLE)
GATED_PRODUCT(gated_low, 1, PIECES)
GATED_PRODUCT(gated_pieces, 2, PIECES)
GATED_PRODUCT(gated_whole, 2, WHOLE)
