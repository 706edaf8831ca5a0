// Skinny products on tensor cores: the weight streams once through shared memory into the fragments
// of `mma`, whatever the number of rows. The weight is the operand of 16 rows, so that 8 activations
// cost what one does.
//
// The weight is packed as [block][step][tile][parity][half][pair][column][8]: 8 columns of 16 bytes are a matrix
// for `ldmatrix`, and for the tensor cores of Hopper, which read a step as it lies. A tile has its even columns
// and its odd ones, so that a lane's sums lie in twos. Within a step of 32, lane `t` of a quad multiplies the
// elements 8t .. 8t + 7 of k, which are 16 bytes of an activation row.

const u32 STEP = 32;               // of k
const u32 DEPTH = 14;              // steps in shared memory
const u32 WARPS = 8;               // that multiply, each 16 columns and all rows; two more ask for steps
const u32 THREADS = (WARPS + 2) * 32;
const u32 PART = BLOCK * STEP * 2; // bytes of a step of the weight
const u32 LINE = STEP * 2;         // of a row

static_assert(BLOCK == WARPS * 16, "a warp has a tile of columns");

// What a block of threads multiplies: a worker's items in one of the two blocks of each band, and the rows.
struct Run {
    const char *weight, *x;
    u32 blocks, steps, rows;
    u32 half; // of a band
    u32 begin, end;

    // That of `worker`, if there are so many.
    static __device__ Run of(const u16 *weight, const u16 *x, u32 blocks, u32 steps, u32 rows, u32 worker,
                             u32 workers)
    {
        const u32 items = (blocks + 1) / 2 * steps, none = worker >= workers;
        return {(const char *)weight,
                (const char *)x,
                blocks,
                steps,
                rows,
                blockIdx.x % 2,
                none ? 0 : items * worker / workers,
                none ? 0 : items * (worker + 1) / workers};
    }

    // Where an item lies. What would be behind the last block is no one's, and is read there.
    __device__ const char *columns(u32 item) const
    {
        const u32 band = item / steps, wanted = band * 2 + half, block = wanted < blocks ? wanted : blocks - 1;
        return weight + ((u64)block * steps + item - band * steps) * PART;
    }

    __device__ const char *lines(u32 item) const { return x + item % steps * LINE; }

    // The end of what lies behind an item.
    __device__ u32 stop(u32 item) const
    {
        const u32 stop = (item / steps + 1) * steps;
        return stop < end ? stop : end;
    }
};

// Steps of a run behind those that a ring holds, which the card's cache is to fetch. They stand apart, all over the run:
// where some come from the cache, those between them still come from memory at the same time.
struct Apart {
    static constexpr u32 SOME = 20;  // of a long run, or up to half as many more: 21 to 31 MB of all runs
    static constexpr u32 PACE = 400; // cycles from one to the next, which is what memory takes

    const Run &run;
    u32 item, each;

    __device__ explicit Apart(const Run &run)
        : run(run), item(run.begin + DEPTH), each(item < run.end ? (run.end - item) / SOME : 0)
    {
        each = each < 2 ? 2 : each;
    }

    // Those between them.
    __device__ Apart others() const
    {
        Apart others = *this;
        others.item += each / 2;
        return others;
    }

    __device__ bool any() const { return item < run.end; }

    __device__ void bring_near()
    {
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(run.columns(item)), "r"(PART) : "memory");
        item += each;
    }
};

// Steps that are on their way or in shared memory, of the weight and behind it of the rows. What has come once
// of a weight is not wanted again, so that it does not drive what is (activations, keys, the kernels' code) from
// the card's cache. They take more than half of a multiprocessor's shared memory, so that a product that starts
// early has one block of threads on each: two on one and none on another would take twice the time.
template <int N> struct Ring {
    static constexpr u32 BYTES = PART + N * 8 * LINE;

    u32 slots, barriers; // barriers of each slot: the weight has come, the rows have, all is read
    u32 slot = 0, round = 0;

    __device__ u32 here() const { return slots + slot * BYTES; }

    __device__ void advance()
    {
        if (++slot == DEPTH) {
            slot = 0;
            round++;
        }
    }

    // Asks for 16 of the bytes that a step has of the rows.
    __device__ static void copy_line(u32 to, const char *x, const Run &run, u32 index)
    {
        if (index < run.rows * (LINE / 16))
            copy_async(to + PART + index * 16, x + (u64)(index / 4) * run.steps * LINE + index % 4 * 16);
    }

#if __CUDA_ARCH__ >= 900
    // Warps of their own ask for steps, and barriers count what has come.
    __device__ u32 columns(u32 slot) const { return barriers + slot * 8; }
    __device__ u32 lines(u32 slot) const { return barriers + (DEPTH + slot) * 8; }
    __device__ u32 read(u32 slot) const { return barriers + (2 * DEPTH + slot) * 8; }

    // One thread: a barrier's address is one for a whole warp, and others would take turns.
    __device__ void prepare() const
    {
#pragma unroll
        for (u32 i = 0; i < DEPTH; i++) {
            init(columns(i), 1);
            init(lines(i), 32);
            init(read(i), WARPS);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }

    // Asks for the weight's steps as soon as there is room: one thread. At first `window` of them are on their
    // way at a time: what stands before this product may be short and wait for memory, behind all that is asked for.
    // While the ring is full and nobody reads it, memory has time for what comes later, of the next product's weight, too.
    __device__ void feed_columns(const Run &run, const Run &next, u32 window)
    {
        const u64 once = 0x12f0000000000000; // createpolicy.fractional.L2::evict_first
        for (u32 item = run.begin; item < run.end;) {
            const char *from = run.columns(item);
            const u32 stop = run.stop(item);
#pragma unroll 1
            for (; item < stop; item++, from += PART, advance()) {
                if (round == 1 && slot == 0 && waits()) {
                    bring_near(Apart(run));
                    bring_near(Apart(next).others());
                }
                if (round > 0)
                    wait(read(slot), round - 1);
                else if (slot >= window)
                    wait(columns(slot - window), 0);
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(columns(slot)), "r"(PART)
                             : "memory");
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                             "[%0], [%1], %2, [%3], %4;" ::"r"(here()),
                             "l"(from), "r"(PART), "r"(columns(slot)), "l"(once)
                             : "memory");
            }
        }
    }

    // Whether all of the first round has come before any of it is read.
    __device__ bool waits() const
    {
        bool read_one = false;
        while (!read_one && !come(columns(DEPTH - 1), 0))
            read_one = come(read(0), 0);
        return !read_one;
    }

    // Has the card's cache fetch steps until the first in the ring is read. All at once would be in the way of the
    // kernels that are waited for.
    __device__ void bring_near(Apart steps) const
    {
        for (long long at = clock64(); steps.any() && !come(read(0), 0);) {
            steps.bring_near();
            at += Apart::PACE;
            while (clock64() < at && !come(read(0), 0))
                ;
        }
    }

    // Asks for the steps of the rows: a warp.
    __device__ void feed_lines(const Run &run)
    {
        for (u32 item = run.begin; item < run.end;) {
            const char *from = run.lines(item);
            const u32 stop = run.stop(item);
#pragma unroll 1
            for (; item < stop; item++, from += LINE, advance()) {
                if (round > 0)
                    wait(read(slot), round - 1);
#pragma unroll
                for (u32 i = 0; i < N; i++)
                    copy_line(here(), from, run, i * 32 + threadIdx.x % 32);
                asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(lines(slot)) : "memory");
            }
        }
    }

    __device__ void await() const
    {
        wait(columns(slot), round);
        wait(lines(slot), round);
    }

    // This warp has multiplied what is in a slot. That it has asked for it would not do: behind other warps' stores
    // the answer may come later than what is copied there next.
    __device__ void release(u32 slot) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(read(slot)) : "memory");
    }

  private:
    static __device__ void init(u32 barrier, u32 count)
    {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
    }

    static __device__ void wait(u32 barrier, u32 round)
    {
        u32 come = 0;
        while (!come)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                         "selp.u32 %0, 1, 0, p; }"
                         : "=r"(come)
                         : "r"(barrier), "r"(round % 2)
                         : "memory");
    }

    // Whether that is so, at once: who waits may be put to sleep for longer than a pace.
    static __device__ bool come(u32 barrier, u32 round)
    {
        u32 has;
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; "
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(has)
                     : "r"(barrier), "r"(round % 2)
                     : "memory");
        return has != 0;
    }
#else
    // Each thread copies a part.
    __device__ void ask(const Run &run, u32 item, u32 slot) const
    {
        if (item < run.end) {
            const char *columns = run.columns(item);
            const u32 to = slots + slot * BYTES;
#pragma unroll
            for (u32 i = threadIdx.x * 16; i < PART; i += WARPS * 512)
                copy_async(to + i, columns + i);
            copy_line(to, run.lines(item), run, threadIdx.x);
        }
        commit_copies();
    }

    __device__ void start(const Run &run) const
    {
        for (u32 i = 0; i < DEPTH - 1; i++)
            ask(run, run.begin + i, i);
    }

    // Waits for an item, and asks for another where the one before it was.
    __device__ void await(const Run &run, u32 item) const
    {
        await_copies<DEPTH - 2>();
        __syncthreads();
        ask(run, item + DEPTH - 1, slot == 0 ? DEPTH - 1 : slot - 1);
    }
#endif
};

// Writes the sums of a warp and begins anew.
template <int N> static __device__ void flush(float (&sums)[N][4], float *to, u32 rows)
{
    const u32 lane = threadIdx.x % 32, first = lane % 4 * 2;
    to += first * BLOCK + lane / 4 * 2;
#pragma unroll
    for (u32 n = 0; n < N; n++) {
        float(&s)[4] = sums[n];
        if (n * 8 + first < rows)
            *(float2 *)(to + n * 8 * BLOCK) = make_float2(s[0], s[2]);
        if (n * 8 + first + 1 < rows)
            *(float2 *)(to + (n * 8 + 1) * BLOCK) = make_float2(s[1], s[3]);
        s[0] = s[1] = s[2] = s[3] = 0.0f;
    }
}

// out = x · weightᵀ in pieces; x is [rows][steps · STEP], rows at most 8 N. Of `next`, which is multiplied next, some
// comes near.
template <int N>
static __device__ void product(const u16 *weight, u64 weight_len, const u16 *x, u64 x_len, float *out,
                               u64 out_len, u32 blocks, u32 steps, u32 rows, u32 window, const u16 *next, u64 next_len,
                               u32 next_blocks, u32 next_steps, u32 next_workers)
{
    extern __shared__ __align__(128) char shared[];
    let_next_start();
    const u32 bands = (blocks + 1) / 2, items = bands * steps, workers = gridDim.x / 2;
    expect(blockDim.x == THREADS && rows <= N * 8 && gridDim.x % 2 == 0 && workers <= items && window > 0);
    expect(weight_len >= (u64)blocks * steps * BLOCK * STEP && x_len >= (u64)rows * steps * STEP);
    expect(out_len >= (u64)(bands + workers) * 2 * rows * BLOCK);
    expect(next_len >= (u64)next_blocks * next_steps * BLOCK * STEP);
    const u32 worker = blockIdx.x / 2, warp = threadIdx.x / 32;
    const Run run = Run::of(weight, x, blocks, steps, rows, worker, workers);
    __shared__ u64 barriers[3 * DEPTH];
    Ring<N> ring = {address(shared), address(barriers)};
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0)
        ring.prepare();
    __syncthreads();
    if (warp == WARPS) {
        if (threadIdx.x % 32 == 0)
            ring.feed_columns(run, Run::of(next, x, next_blocks, next_steps, rows, worker, next_workers), window);
        return;
    }
    wait_for_earlier();
    if (warp > WARPS) {
        ring.feed_lines(run);
        return;
    }
    u32 before = DEPTH; // none
#else
    if (warp >= WARPS)
        return;
    ring.start(run);
#endif

    const u32 lane = threadIdx.x % 32, column = warp * 1024 + place_of(lane), line = PART + lane * 16;
    float sums[N][4] = {};
    for (u32 item = run.begin; item < run.end;) {
        const u32 band = item / steps, stop = run.stop(item);
#pragma unroll 1
        for (; item < stop; item++) {
#if __CUDA_ARCH__ >= 900
            if (before < DEPTH)
                ring.release(before);
            before = ring.slot;
            ring.await();
#else
            ring.await(run, item);
#endif
            const uint4 low = fragment(ring.here() + column), high = fragment(ring.here() + column + 256);
#pragma unroll
            for (u32 n = 0; n < N; n++) {
                const uint4 x = loaded(ring.here() + line + n * 8 * LINE);
                mma(sums[n], low.x, low.y, low.z, low.w, x.x, x.y);
                mma(sums[n], high.x, high.y, high.z, high.w, x.z, x.w);
            }
            ring.advance();
        }
        flush<N>(sums, out + ((u64)(worker + band) * 2 + run.half) * rows * BLOCK + warp * 16, rows);
    }
}

#define PRODUCT(NAME, N)                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                             \
        NAME(const u16 *weight, u64 weight_len, const u16 *x, u64 x_len, float *out, u64 out_len,        \
             u32 blocks, u32 steps, u32 rows, u32 window, const u16 *next, u64 next_len,                 \
             u32 next_blocks, u32 next_steps, u32 next_workers)                                          \
    {                                                                                                    \
        product<N>(weight, weight_len, x, x_len, out, out_len, blocks, steps, rows, window, next,        \
                   next_len, next_blocks, next_steps, next_workers);                                     \
    }

PRODUCT(product_8, 1)
PRODUCT(product_16, 2)
PRODUCT(product_32, 4)

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
