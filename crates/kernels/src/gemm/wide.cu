// Products of many rows where warps bring what they multiply with `mma`, and the kernels of all cards.

#if !HOPPER
// The items of some work in the order in which they are added up.
struct Walk {
    Work work;
    Part part;
    u32 index, turn, item;
    bool more;

    __device__ explicit Walk(const Work &work) : work(work), part(work.part(0)), index(0), turn(0), more(true)
    {
        item = first_of(part, 0);
        settle();
    }

    __device__ void advance()
    {
        item += PHASES;
        settle();
    }

    __device__ void settle()
    {
        while (more && item >= part.hi) {
            if (++turn == PHASES) {
                turn = 0;
                if (++index == work.parts) {
                    more = false;
                    return;
                }
                part = work.part(index);
            }
            item = first_of(part, phase(turn));
        }
    }
};

// Steps on their way to a block of threads, or there.
struct Belt {
    char *slots;
    Walk walk; // of the next step to ask for
    u32 asked, done;

    __device__ Belt(char *slots, const Work &work) : slots(slots), walk(work), asked(0), done(0)
    {
        for (u32 i = 0; i < STAGES - 1; i++)
            ask();
    }

    __device__ void ask()
    {
        if (walk.more) {
            char *to = slots + asked % STAGES * 2 * PART + threadIdx.x * 16;
            const Given &given = walk.work.given;
            const u64 step = (u64)walk.work.tile * given.steps + walk.item - walk.part.block * given.steps;
            const char *w = given.weight + (u64)walk.item * PART + threadIdx.x * 16;
            const char *rows = given.x + step * PART + threadIdx.x * 16;
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

    // The next step, as soon as it has come.
    __device__ const char *next()
    {
        await_copies<STAGES - 2>();
        __syncthreads();
        ask();
        return slots + done++ % STAGES * 2 * PART;
    }
};

// Adds up a phase.
static __device__ void add_phase(Belt &belt, Sums &d, const Part &part, u32 phase)
{
    clear(d);
#pragma unroll 1
    for (u32 item = first_of(part, phase); item < part.hi; item += PHASES) {
        const char *step = belt.next(), *x = step + PART + threadIdx.x % 32 * 4;
        const char *w = step + threadIdx.x / 32 * 1024 + place_of(threadIdx.x % 32);
        const uint4 a = fragment(w), b = fragment(w + 256);
#pragma unroll
        for (u32 n = 0; n < EIGHTS; n++) {
            float(&sum)[4] = *(float(*)[4])(d + n * 4);
            const char *rows = x + n * 128;
            mma(sum, a.x, a.y, a.z, a.w, *(const u32 *)rows, *(const u32 *)(rows + PART / 4));
            mma(sum, b.x, b.y, b.z, b.w, *(const u32 *)(rows + PART / 2), *(const u32 *)(rows + PART / 4 * 3));
        }
    }
}
template <Sharing SHARED> static __device__ void product(const Given &given)
{
    extern __shared__ __align__(128) char shared[];
    wait_for_earlier();
    for (u32 i = blockIdx.x; i < given.places(); i += gridDim.x) {
        const Work work(given, i);
        Belt belt(shared + HELD, work);
        for (u32 index = 0; index < work.parts; index++) {
            Sums even, odd, sums;
            const Part part = work.part(index);
            // (0 + 2) + (1 + 3).
            add_phase(belt, even, part, 0);
            add_phase(belt, sums, part, 2);
            add(even, sums);
            add_phase(belt, odd, part, 1);
            add_phase(belt, sums, part, 3);
            add(odd, sums);
            add(even, odd);
            put(work, part, (float4 *)shared, even);
        }
        await_copies<0>();
        __syncthreads();
    }
}
#endif

#define PARAMETERS                                                                                       \
    const u16 *weight, u64 weight_len, const u16 *x, u64 x_len, float *out, u64 out_len, u32 blocks,     \
        u32 steps, u32 workers, u32 rows, u32 tiles, u32 apart

// Two kernels: without and with a bias for each column.
#define PRODUCT(NAME, SHARED, CLUSTER)                                                                   \
    static __device__ void NAME##_of(PARAMETERS, const float *bias, u32 columns)                         \
    {                                                                                                    \
        let_next_start();                                                                                \
        expect(blockDim.x == THREADS && weight_len >= (u64)blocks * steps * BLOCK * STEP);               \
        expect(x_len >= (u64)tiles * ROWS * steps * STEP && (u64)tiles * ROWS >= rows);                  \
        expect(out_len >= (u64)(blocks + (apart ? workers : 0)) * rows * BLOCK);                         \
        expect(columns <= blocks * BLOCK);                                                               \
        product<SHARED>({(const char *)weight, (const char *)x, out, bias, blocks, steps, workers,       \
                         rows, tiles, apart, columns});                                                  \
    }                                                                                                    \
    extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1) NAME(PARAMETERS)                    \
    {                                                                                                    \
        NAME##_of(weight, weight_len, x, x_len, out, out_len, blocks, steps, workers, rows, tiles,       \
                  apart, nullptr, 0);                                                                    \
    }                                                                                                    \
    extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1)                                     \
        NAME##_biased(const float *bias, u64 bias_len, PARAMETERS)                                       \
    {                                                                                                    \
        NAME##_of(weight, weight_len, x, x_len, out, out_len, blocks, steps, workers, rows, tiles,       \
                  apart, bias, (u32)bias_len);                                                           \
    }

PRODUCT(product_wide, NOTHING, )
#if HOPPER
PRODUCT(product_weight, WEIGHT, __cluster_dims__(2, 1, 1))
PRODUCT(product_tile, TILE, __cluster_dims__(2, 1, 1))
#endif
