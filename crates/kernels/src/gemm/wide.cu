// Products of many rows on tensor cores, in the order of the skinny ones: every sum runs through the
// same steps of k with the same phases and pieces, so that a row has the same bits in both. Here one
// phase follows another, since a block of threads has room for the sums of one: those of step 0, 4, 8 …
// of a worker's run, then 2, 6, 10 …, then the odd ones.
//
// `arrange` lays the rows out first, [tile of rows][step][half][pair][row][8], in the order of k in which
// the weight is packed, so that a step of both operands is 8 KB in one piece each.

const u32 STEP = 32;               // of k
const u32 PHASES = 4;              // of a worker
const u32 ROWS = 128;              // of x, for a block of threads
const u32 WARPS = 8;               // each has 16 columns and all rows
const u32 EIGHTS = ROWS / 8;       // of rows
const u32 PART = BLOCK * STEP * 2; // bytes of a step of either operand
const u32 STAGES = 8;              // steps in shared memory
const u32 HELD = ROWS * BLOCK * 4; // bytes of the sums of pieces
const u32 GROUP = 8;               // tiles of rows that share what the card's cache has of x

static_assert(BLOCK == ROWS && BLOCK == WARPS * 16, "both operands are of one size");

// Hopper has an instruction for the 64 columns of four warps.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER 1
#else
#define HOPPER 0
#endif

// On Hopper four more warps, which ask for steps and leave their registers to the others.
const u32 THREADS = (WARPS + 4 * HOPPER) * 32;

// to[tile][step][half][pair][row][8] = the elements of x that one lane of a quad multiplies, for each of
// the quad: 8 q + 4 half + 2 pair and the one behind it. Rows past the last are zero. A thread is a
// row of a step.
extern "C" __global__ void __launch_bounds__(THREADS)
    arrange(const u16 *x, u64 x_len, float *out, u64 out_len, u32 steps, u32 rows, u32 tiles, u64 at)
{
    let_next_start();
    const u64 unit = blockIdx.x * (u64)THREADS + threadIdx.x;
    const u32 row = (u32)(unit % ROWS), step = (u32)(unit / ROWS % steps);
    const u64 tile = unit / ROWS / steps, all = tile * ROWS + row;
    expect(x_len >= (u64)rows * steps * STEP && out_len >= at + (u64)tiles * ROWS * steps * STEP / 2);
    wait_for_earlier();
    if (tile >= tiles)
        return;
    uint4 have[4] = {};
    if (all < rows)
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            have[i] = *(const uint4 *)(x + (all * steps + step) * STEP + i * 8);
    char *to = (char *)(out + at) + (tile * steps + step) * PART + row * 16;
    *(uint4 *)to = make_uint4(have[0].x, have[1].x, have[2].x, have[3].x);
    *(uint4 *)(to + PART / 4) = make_uint4(have[0].y, have[1].y, have[2].y, have[3].y);
    *(uint4 *)(to + PART / 2) = make_uint4(have[0].z, have[1].z, have[2].z, have[3].z);
    *(uint4 *)(to + PART / 4 * 3) = make_uint4(have[0].w, have[1].w, have[2].w, have[3].w);
}

// What one block of threads adds up: parts of one worker's run, or of one block of columns.
struct Work {
    u32 steps, workers, items;
    u32 worker, block; // of the first part
    u32 parts;
    bool runs; // the parts are those of a worker

    // The items of a part, and where its worker begins.
    __device__ void part(u32 index, u32 &block_of, u32 &lo, u32 &hi, u32 &begin) const
    {
        const u32 its = runs ? worker : worker + index;
        block_of = runs ? block + index : block;
        begin = items * its / workers;
        const u32 end = items * (its + 1) / workers;
        const u32 first = block_of * steps, last = first + steps;
        lo = begin > first ? begin : first;
        hi = end < last ? end : last;
    }
};

// The phase that is `turn`th: 0, 2, 1, 3.
static __device__ u32 phase(u32 turn) { return turn / 2 + turn % 2 * 2; }

// The first item from `lo` on of a phase of a run that begins at `begin`.
static __device__ u32 first_of(u32 phase, u32 lo, u32 begin)
{
    return lo + (phase + PHASES - (lo - begin) % PHASES) % PHASES;
}

// The items of some work in the order in which they are added up.
struct Walk {
    Work work;
    u32 index, turn, item, block, lo, hi, begin;
    bool more;

    __device__ Walk() {}
    __device__ explicit Walk(const Work &work) : work(work), index(0), turn(0), more(true)
    {
        work.part(0, block, lo, hi, begin);
        item = first_of(0, lo, begin);
        settle();
    }

    __device__ void advance()
    {
        item += PHASES;
        settle();
    }

    __device__ void settle()
    {
        while (more && item >= hi) {
            if (++turn == PHASES) {
                turn = 0;
                if (++index == work.parts) {
                    more = false;
                    return;
                }
                work.part(index, block, lo, hi, begin);
            }
            item = first_of(phase(turn), lo, begin);
        }
    }
};

// Steps on their way to a block of threads, or there.
struct Belt {
    char *slots;
    const char *weight, *x; // packed; arranged, of this tile
    u64 *full, *empty;

    __device__ const char *step(u32 done) const { return slots + done % STAGES * 2 * PART; }

#if HOPPER
    __device__ static u32 address(const void *shared) { return (u32)__cvta_generic_to_shared(shared); }

    // A warp of its own asks for steps.
    __device__ void prepare(const Work &) const
    {
        if (threadIdx.x == 0) {
            for (u32 i = 0; i < STAGES; i++) {
                asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(full + i)) : "memory");
                asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(empty + i)), "r"(WARPS)
                             : "memory");
            }
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        }
        __syncthreads();
        wait_for_earlier();
    }

    __device__ static void wait(u32 barrier, u32 parity)
    {
        u32 come = 0;
        while (!come)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                         "selp.u32 %0, 1, 0, p; }"
                         : "=r"(come)
                         : "r"(barrier), "r"(parity)
                         : "memory");
    }

    __device__ static void copy(u32 to, const char *from, u32 barrier)
    {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                     "l"(from), "r"(PART), "r"(barrier)
                     : "memory");
    }

    // Asks for every step, as soon as there is room: one thread.
    __device__ void feed(const Work &work) const
    {
        // What is copied was written by stores.
        asm volatile("fence.proxy.async;" ::: "memory");
        u32 asked = 0;
        for (Walk walk(work); walk.more; walk.advance(), asked++) {
            const u32 slot = asked % STAGES, round = asked / STAGES, barrier = address(full + slot);
            if (round > 0)
                wait(address(empty + slot), (round - 1) % 2);
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(2 * PART)
                         : "memory");
            copy(address(step(asked)), weight + (u64)walk.item * PART, barrier);
            copy(address(step(asked)) + PART, x + (u64)(walk.item - walk.block * work.steps) * PART, barrier);
        }
    }

    // Until the step has come.
    __device__ void await(u32 done) const { wait(address(full + done % STAGES), done / STAGES % 2); }

    // This warp has multiplied the step. Its lanes meet first: what one of them says orders the next copy
    // behind what all of them have read.
    __device__ void release(u32 done) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(empty + done % STAGES)) : "memory");
    }
#else
    Walk walk; // of the next step to ask for
    u32 asked;

    __device__ void prepare(const Work &work)
    {
        wait_for_earlier();
        walk = Walk(work);
        asked = 0;
        for (u32 i = 0; i < STAGES - 1; i++)
            ask();
    }

    __device__ void ask()
    {
        if (walk.more) {
            char *to = slots + asked % STAGES * 2 * PART + threadIdx.x * 16;
            const char *w = weight + (u64)walk.item * PART + threadIdx.x * 16;
            const char *rows = x + (u64)(walk.item - walk.block * walk.work.steps) * PART + threadIdx.x * 16;
#pragma unroll
            for (u32 i = 0; i < PART; i += THREADS * 16) {
                copy_async(to + i, w + i, 16);
                copy_async(to + PART + i, rows + i, 16);
            }
            asked++;
            walk.advance();
        }
        commit_copies();
    }

    __device__ void await(u32)
    {
        await_copies<STAGES - 2>();
        __syncthreads();
        ask();
    }

    __device__ void release(u32) {}
#endif
};

// What a lane multiplies of the weight, a half of a step each.
struct Operand {
    uint4 a, b;

    __device__ Operand() : a(make_uint4(0, 0, 0, 0)), b(a) {}
    __device__ explicit Operand(const char *step)
    {
        const char *at = step + threadIdx.x / 32 * 1024 + threadIdx.x % 32 * 16;
        a = *(const uint4 *)at;
        b = *(const uint4 *)(at + 512);
    }
};

#if HOPPER
#define TEN(i) "%" #i "0,%" #i "1,%" #i "2,%" #i "3,%" #i "4,%" #i "5,%" #i "6,%" #i "7,%" #i "8,%" #i "9,"
#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)

// d += a · b for the 64 columns of four warps and 128 rows, 16 elements of k; a is a lane's own, b in
// shared memory.
static __device__ void multiply(float (&d)[EIGHTS * 4], uint4 a, u64 b)
{
    asm volatile("{ .reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60,%61,%62,%63}, "
                 "{%64,%65,%66,%67}, %68, p, 1, 1, 0; }"
                 : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}

// Adds a step to d. The operands' registers are free again only when that is done, so nothing else is
// begun before; meanwhile the other four warps multiply.
static __device__ void multiply(float (&d)[EIGHTS * 4], const Operand &mine, const char *step)
{
    // 8 rows of 16 bytes are 128 bytes; the next rows lie behind them, the other pair PART / 4 away.
    const u64 x = (Belt::address(step + PART) & 0x3ffff) / 16 | (u64)(PART / 4 / 16) << 16 | (u64)(128 / 16) << 32;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    multiply(d, mine.a, x);
    multiply(d, mine.b, x + PART / 2 / 16);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48)::"memory");
}
#else
// Adds a step to d.
static __device__ void multiply(float (&d)[EIGHTS * 4], const Operand &mine, const char *step)
{
    const char *x = step + PART + threadIdx.x % 32 * 4;
    const uint4 a = mine.a, b = mine.b;
#pragma unroll
    for (u32 n = 0; n < EIGHTS; n++) {
        float(&sum)[4] = *(float(*)[4])(d + n * 4);
        const char *rows = x + n * 128;
        mma(sum, a.x, a.y, a.z, a.w, *(const u32 *)rows, *(const u32 *)(rows + PART / 4));
        mma(sum, b.x, b.y, b.z, b.w, *(const u32 *)(rows + PART / 2), *(const u32 *)(rows + PART / 4 * 3));
    }
}
#endif

typedef float Sums[EIGHTS * 4];

static __device__ void copy(Sums &to, const Sums &from)
{
#pragma unroll
    for (u32 i = 0; i < EIGHTS * 4; i++)
        to[i] = from[i];
}

static __device__ void add(Sums &to, const Sums &more)
{
#pragma unroll
    for (u32 i = 0; i < EIGHTS * 4; i++)
        to[i] += more[i];
}

// Adds up this warp's columns of some work, and writes them: pieces to `out`, or what they sum up to. A
// bias, where there is one, is added to the first piece of its block.
static __device__ void add_up(Belt &belt, const Work &work, float4 *held, float *out, u32 rows, u32 first_row,
                              const float *bias, u32 columns)
{
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Sums sums = {}, even, odd;
    u32 done = 0;
    for (u32 index = 0; index < work.parts; index++) {
        u32 block, lo, hi, begins;
        work.part(index, block, lo, hi, begins);
#pragma unroll
        for (u32 turn = 0; turn < PHASES; turn++) {
#pragma unroll 1
            for (u32 item = first_of(phase(turn), lo, begins); item < hi; item += PHASES) {
                belt.await(done);
                multiply(sums, Operand(belt.step(done)), belt.step(done));
                belt.release(done);
                done++;
            }
            // (0 + 2) + (1 + 3).
            if (turn == 0)
                copy(even, sums);
            else if (turn == 1)
                add(even, sums);
            else if (turn == 2)
                copy(odd, sums);
            else
                add(odd, sums);
#pragma unroll
            for (u32 i = 0; i < EIGHTS * 4; i++)
                sums[i] = 0.0f;
        }
        add(even, odd);
        // Pieces are added to 0, in order, as their readers do.
        const bool last = work.runs || index + 1 == work.parts;
        float biases[2] = {0.0f, 0.0f};
        const bool biased = columns > 0 && lo == block * work.steps;
        if (biased)
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const u32 column = block * BLOCK + warp * 16 + lane / 4 + i * 8;
                biases[i] = column < columns ? bias[column] : 0.0f;
            }
        float *to = out + (u64)(work.runs ? work.worker + block : block) * rows * BLOCK + warp * 16 + lane / 4;
#pragma unroll
        for (u32 n = 0; n < EIGHTS; n++) {
            float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (!work.runs && index > 0)
                sum = held[n * WARPS * 32];
            sum.x += biased ? even[n * 4] + biases[0] : even[n * 4];
            sum.y += biased ? even[n * 4 + 1] + biases[0] : even[n * 4 + 1];
            sum.z += biased ? even[n * 4 + 2] + biases[1] : even[n * 4 + 2];
            sum.w += biased ? even[n * 4 + 3] + biases[1] : even[n * 4 + 3];
            if (!last) {
                held[n * WARPS * 32] = sum;
                continue;
            }
            const u64 row = first_row + n * 8 + lane % 4 * 2;
            if (row < rows) {
                to[row * BLOCK] = sum.x;
                to[row * BLOCK + 8] = sum.z;
            }
            if (row + 1 < rows) {
                to[(row + 1) * BLOCK] = sum.y;
                to[(row + 1) * BLOCK + 8] = sum.w;
            }
        }
    }
}

// out = x · weightᵀ, as Pieces says, in pieces or, with `whole`, added up; x lies arranged at `at` of out.
static __device__ void product(const u16 *weight, u64 weight_len, const float *bias, u64 columns, float *out,
                               u64 out_len, u32 blocks, u32 steps, u32 workers, u32 rows, u32 tiles, u32 whole,
                               u64 at)
{
    extern __shared__ __align__(128) char shared[];
    __shared__ u64 full[STAGES], empty[STAGES];
    let_next_start();
    const u32 items = blocks * steps;
    expect(blockDim.x == THREADS && weight_len >= (u64)items * BLOCK * STEP && at % 4 == 0);
    expect(columns <= (u64)blocks * BLOCK);
    expect(at >= (u64)(blocks + (whole ? 0 : workers)) * rows * BLOCK);
    expect(out_len >= at + (u64)tiles * ROWS * steps * STEP / 2 && (u64)tiles * ROWS >= rows);
    u32 tile = blockIdx.x % tiles, column = blockIdx.x / tiles;
    if (whole) {
        // A group of rows with all columns, then the next.
        const u32 before = blockIdx.x / (GROUP * blocks) * GROUP;
        const u32 wide = tiles - before < GROUP ? tiles - before : GROUP;
        const u32 within = blockIdx.x - before * blocks;
        tile = before + within % wide;
        column = within / wide;
    }
    expect(column < (whole ? blocks : workers) && tile < tiles);
    Work work = {steps, workers, items, column, column, 1, !whole};
    if (whole) {
        work.worker = ((column * steps + 1) * workers - 1) / items;
        work.parts = ((column + 1) * steps * workers - 1) / items - work.worker + 1;
    } else {
        const u32 begin = items * column / workers, end = items * (column + 1) / workers;
        work.block = begin / steps;
        work.parts = (end - 1) / steps - work.block + 1;
    }
    Belt belt = {shared + HELD, (const char *)weight, (const char *)(out + at) + (u64)tile * steps * PART, full, empty};
    belt.prepare(work);
    float4 *held = (float4 *)shared + threadIdx.x;
#if HOPPER
    if (threadIdx.x < WARPS * 32) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        add_up(belt, work, held, out, rows, tile * ROWS, bias, (u32)columns);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == WARPS * 32)
            belt.feed(work);
    }
#else
    add_up(belt, work, held, out, rows, tile * ROWS, bias, (u32)columns);
    await_copies<0>();
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    product_wide(const u16 *weight, u64 weight_len, float *out, u64 out_len, u32 blocks, u32 steps, u32 workers,
                 u32 rows, u32 tiles, u32 whole, u64 at)
{
    product(weight, weight_len, nullptr, 0, out, out_len, blocks, steps, workers, rows, tiles, whole, at);
}

// The same with a bias for each column.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    product_wide_biased(const u16 *weight, u64 weight_len, const float *bias, u64 bias_len, float *out,
                        u64 out_len, u32 blocks, u32 steps, u32 workers, u32 rows, u32 tiles, u32 whole, u64 at)
{
    product(weight, weight_len, bias, bias_len, out, out_len, blocks, steps, workers, rows, tiles, whole, at);
}
