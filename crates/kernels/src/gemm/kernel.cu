// Skinny products on tensor cores: the weight streams once through shared memory into the fragments
// of `mma`, whatever the number of rows. The weight is the operand of 16 rows, so that 8 activations
// cost what one does.
//
// The weight is packed as [block][step][side][tile][eight][half][pair][column][8]: 8 columns of 16 bytes
// are a matrix for `ldmatrix`, and for the tensor cores of Hopper, which read a step as it lies. A warp
// fetches what it multiplies itself, so warps meet only where a block of columns ends. Within a step of
// 32, lane `t` of a quad multiplies the elements 8t .. 8t + 7 of k, which are 16 bytes of an activation row.

const u32 DEPTH = 7; // halves of steps that a warp has in shared memory
const u32 SIDES = 2; // of a block of columns
const u32 STEP = 32;               // of k
const u32 WARPS = 8;               // of a block of threads
const u32 PHASES = WARPS / SIDES;  // warps that share the columns of a side
const u32 TILES = 4;               // of 16 columns, of a side
const u32 SIDE = TILES * 16;       // columns
const u32 PART = TILES * 2 * 512;  // bytes of a side of a step
const u32 HALF = PART / 2;         // what is fetched at a time: two tiles

static_assert(SIDES * SIDE == BLOCK && PHASES == 4, "a block is two sides, each of four phases");

// The halves of steps of a warp that are on their way or in shared memory. What has come once is not wanted
// again, so that it does not drive what is (activations, keys, the kernels' code) from the card's
// cache. They take more than half of a multiprocessor's shared memory, so that a product that starts
// early has one block of threads on each: two on one and none on another would take twice the time.
// From Hopper on one lane asks for a half and a barrier counts its bytes; before, each lane
// copies what it multiplies.
struct Ring {
    u32 lane;
    const char *weight; // this warp's side of item 0
    char *slots;
    u64 *arrived;

    __device__ void prepare() const
    {
#if __CUDA_ARCH__ >= 900
        if (lane < DEPTH)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier(lane)) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
#endif
    }

    __device__ u32 barrier(u32 slot) const { return (u32)__cvta_generic_to_shared(arrived + slot); }

    // Every lane has read what the slot held.
    __device__ void fetch(u32 slot, u32 item, u32 half) const
    {
        const char *from = weight + (u64)item * SIDES * PART + half * HALF;
#if __CUDA_ARCH__ >= 900
        if (lane == 0) {
            const u64 once = 0x12f0000000000000ull; // createpolicy.fractional.L2::evict_first
            const u32 to = (u32)__cvta_generic_to_shared(slots + slot * HALF);
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier(slot)),
                         "r"(HALF)
                         : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                         "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                         "l"(from), "r"(HALF), "r"(barrier(slot)), "l"(once)
                         : "memory");
        }
#else
#pragma unroll
        for (u32 i = 0; i < TILES; i++)
            copy_async(slots + slot * HALF + i * 512 + lane * 16, from + i * 512 + lane * 16, 16);
#endif
    }

    // Until the slot's next half has come: `round` is how often it was filled before.
    __device__ void await(u32 slot, u32 round) const
    {
#if __CUDA_ARCH__ >= 900
        u32 come = 0;
        while (!come)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                         "selp.u32 %0, 1, 0, p; }"
                         : "=r"(come)
                         : "r"(barrier(slot)), "r"(round % 2)
                         : "memory");
#else
        await_copies<DEPTH - 1>();
#endif
    }
};

// 16 bytes of each row: what this lane multiplies in the step at `x`.
template <int N>
static __device__ void activations(uint4 (&b)[N], const u16 *x, u32 k, u32 rows, u32 lane)
{
#pragma unroll
    for (u32 n = 0; n < N; n++) {
        const u32 row = n * 8 + lane / 4;
        b[n] = make_uint4(0, 0, 0, 0);
        if (row < rows)
            b[n] = *(const uint4 *)(x + (u64)row * k + lane % 4 * 8);
    }
}

// The sums of a warp on their way to another of its side: each lane's own, 16 bytes at a time.
template <int N> static __device__ void give(const float (&sums)[N][TILES][4], float4 *to)
{
#pragma unroll
    for (u32 n = 0; n < N; n++)
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) {
            const float(&s)[4] = sums[n][tile];
            to[(n * TILES + tile) * 32] = make_float4(s[0], s[1], s[2], s[3]);
        }
}

template <int N> static __device__ void take(float (&sums)[N][TILES][4], const float4 *from)
{
#pragma unroll
    for (u32 n = 0; n < N; n++)
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) {
            const float4 more = from[(n * TILES + tile) * 32];
            sums[n][tile][0] += more.x;
            sums[n][tile][1] += more.y;
            sums[n][tile][2] += more.z;
            sums[n][tile][3] += more.w;
        }
}

// Adds the sums of a side's phases, (0 + 2) + (1 + 3), and writes them.
template <int N>
static __device__ void flush(float (&sums)[N][TILES][4], float4 *shared, float *piece, u32 rows, u32 side,
                             u32 phase, u32 lane)
{
    float4 *even = shared + (side * 2) * N * TILES * 32 + lane, *odd = even + N * TILES * 32;
    // Everyone has taken what was given for the block before.
    __syncthreads();
    if (phase >= 2)
        give<N>(sums, phase == 2 ? even : odd);
    __syncthreads();
    if (phase < 2)
        take<N>(sums, phase == 0 ? even : odd);
    if (phase == 1)
        give<N>(sums, odd);
    __syncthreads();
    if (phase == 0) {
        take<N>(sums, odd);
        float *to = piece + (lane % 4 * 2) * BLOCK + side * SIDE + lane / 4;
#pragma unroll
        for (u32 n = 0; n < N; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                if (n * 8 + lane % 4 * 2 + i % 2 < rows)
#pragma unroll
                    for (u32 tile = 0; tile < TILES; tile++)
                        to[(n * 8 + i % 2) * BLOCK + tile * 16 + i / 2 * 8] = sums[n][tile][i];
    }
#pragma unroll
    for (u32 n = 0; n < N; n++)
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                sums[n][tile][i] = 0.0f;
}

// out = x · weightᵀ in pieces; x is [rows][steps · STEP], rows at most 8 N. Until it may begin, a warp has
// `window` halves on their way at a time.
template <int N>
static __device__ void product(const u16 *weight, u64 weight_len, const u16 *x, u64 x_len, float *out,
                               u64 out_len, u32 blocks, u32 steps, u32 rows, u32 window)
{
    extern __shared__ __align__(128) char shared[];
    let_next_start();
    const u32 items = blocks * steps, k = steps * STEP;
    expect(blockDim.x == WARPS * 32 && rows <= N * 8 && gridDim.x <= items && window > 0);
    expect(weight_len >= (u64)items * BLOCK * STEP && x_len >= (u64)rows * k);
    expect(out_len >= (u64)(blocks + gridDim.x) * rows * BLOCK);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 side = warp % SIDES, phase = warp / SIDES;
    const u32 begin = items * blockIdx.x / gridDim.x, end = items * (blockIdx.x + 1) / gridDim.x;
    __shared__ u64 arrived[WARPS * DEPTH];
    const Ring ring = {lane, (const char *)weight + side * PART, shared + warp * DEPTH * HALF,
                       arrived + warp * DEPTH};
    ring.prepare();
    float4 *meeting = (float4 *)(shared + WARPS * DEPTH * HALF);
    // What stands before this product may be short and wait for memory, behind all that is asked for here.
#pragma unroll 1
    for (u32 i = 0; i < DEPTH; i++) {
        const u32 ahead = begin + phase + i / 2 * PHASES;
        if (ahead < end) {
            if (i >= window)
                ring.await(i - window, 0);
            ring.fetch(i, ahead, i % 2);
        }
        commit_copies();
    }
    wait_for_earlier();

    float sums[N][TILES][4] = {};
    uint4 now[N], next[N];
    u32 item = begin + phase, slot = 0, round = 0;
    if (item < end)
        activations<N>(next, x + item % steps * STEP, k, rows, lane);
    for (u32 block = begin / steps; block * steps < end; block++) {
        const u32 stop = (block + 1) * steps < end ? (block + 1) * steps : end;
        while (item < stop) {
#pragma unroll
            for (u32 n = 0; n < N; n++)
                now[n] = next[n];
            if (item + PHASES < end)
                activations<N>(next, x + (item + PHASES) % steps * STEP, k, rows, lane);
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                ring.await(slot, round);
                const char *from = ring.slots + slot * HALF + place_of(lane);
#pragma unroll
                for (u32 t = 0; t < TILES / 2; t++) {
                    const uint4 a = fragment(from + t * 1024), b = fragment(from + t * 1024 + 256);
#pragma unroll
                    for (u32 n = 0; n < N; n++) {
                        float(&sum)[4] = sums[n][half * (TILES / 2) + t];
                        mma(sum, a.x, a.y, a.z, a.w, now[n].x, now[n].y);
                        mma(sum, b.x, b.y, b.z, b.w, now[n].z, now[n].w);
                    }
                }
                __syncwarp();
                const u32 after = item + (half + DEPTH) / 2 * PHASES;
                if (after < end)
                    ring.fetch(slot, after, (half + DEPTH) % 2);
                commit_copies();
                slot++;
                if (slot == DEPTH) {
                    slot = 0;
                    round++;
                }
            }
            item += PHASES;
        }
        float *piece = out + (u64)(blockIdx.x + block) * rows * BLOCK;
        flush<N>(sums, meeting, piece, rows, side, phase, lane);
    }
    await_copies<0>();
}

#define PRODUCT(NAME, N)                                                                       \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 1)                                   \
        NAME(const u16 *weight, u64 weight_len, const u16 *x, u64 x_len, float *out, u64 out_len,        \
             u32 blocks, u32 steps, u32 rows, u32 window)                                                \
    {                                                                                                    \
        product<N>(weight, weight_len, x, x_len, out, out_len, blocks, steps, rows, window);             \
    }

PRODUCT(product_8, 1)
PRODUCT(product_16, 2)
PRODUCT(product_32, 4)
PRODUCT(product_64, 8)

// to[row][column] = the sum of a product's pieces: for those that want it whole.
extern "C" __global__ void gather_pieces(const float *pieces, u64 pieces_len, float *to, u64 to_len,
                                         u32 steps, u32 workers, u32 rows, u32 columns)
{
    let_next_start();
    wait_for_earlier();
    const Pieces sums(pieces, pieces_len, steps, workers, rows, columns);
    expect(to_len >= (u64)rows * columns);
    const u64 all = (u64)rows * columns;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < all; i += gridDim.x * (u64)blockDim.x)
        to[i] = sums.one((u32)(i / columns), (u32)(i % columns));
}
