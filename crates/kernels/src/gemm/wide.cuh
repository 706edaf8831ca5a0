// Products of many rows on tensor cores, in the order of the skinny ones: every sum runs through the
// same steps of k in the same pieces, so that a row has the same bits in both.
//
// `arrange` lays the rows out first, [tile of rows][step][half][pair][row][8], in the order of k in which
// the weight is packed, so that a step of both operands is 8 KB in one piece each.

const u32 STEP = 32;               // of k
const u32 TILE = 128;              // rows that lie together
const u32 WARPS = 8;               // each has 16 columns and all rows
const u32 PART = BLOCK * STEP * 2; // bytes of a step of a block of columns or a tile of rows
const u32 GROUP = 4;               // heights that share what the card's cache has of x

static_assert(BLOCK == WARPS * 16 && BLOCK == TILE, "both operands are of one size");

// Hopper has an instruction for the 64 columns of four warps, and registers for two tiles of rows.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER 1
#else
#define HOPPER 0
#endif

// On Hopper four more warps, which ask for steps and leave their registers to the others.
const u32 THREADS = (WARPS + 4 * HOPPER) * 32;

// What is left of a product: the pieces of workers, or each band whole.
enum Left { PIECES, WHOLE };

// What its sums are: to be read by others, or gates and ups, of which SwiGLU is made here.
enum Made { SUMS, GATED };

// to[tile][step][half][pair][row][8] = the elements of x that one lane of a quad multiplies, for each of
// the quad: 8 q + 4 half + 2 pair and the one behind it. Rows past the last are zero. A thread is a
// row of a step.
extern "C" __global__ void __launch_bounds__(THREADS)
    arrange(const u16 *x, u64 x_len, u16 *out, u64 out_len, u32 steps, u32 rows, u32 tiles)
{
    let_next_start();
    const u64 unit = blockIdx.x * (u64)THREADS + threadIdx.x;
    const u32 row = (u32)(unit % TILE), step = (u32)(unit / TILE % steps);
    const u64 tile = unit / TILE / steps, all = tile * TILE + row;
    expect(x_len >= (u64)rows * steps * STEP && out_len >= (u64)tiles * TILE * steps * STEP);
    wait_for_earlier();
    if (tile >= tiles)
        return;
    uint4 have[4] = {};
    if (all < rows)
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            have[i] = *(const uint4 *)(x + (all * steps + step) * STEP + i * 8);
    char *to = (char *)out + (tile * steps + step) * PART + row * 16;
    *(uint4 *)to = make_uint4(have[0].x, have[1].x, have[2].x, have[3].x);
    *(uint4 *)(to + PART / 4) = make_uint4(have[0].y, have[1].y, have[2].y, have[3].y);
    *(uint4 *)(to + PART / 2) = make_uint4(have[0].z, have[1].z, have[2].z, have[3].z);
    *(uint4 *)(to + PART / 4 * 3) = make_uint4(have[0].w, have[1].w, have[2].w, have[3].w);
}

// Where SwiGLU goes, rows of `width` in tiles, and whether what a warp has of the second piece of its band is there,
// [band][half][warp]: nowhere between two products.
struct Gates {
    u16 *out;
    u32 *there;
    u32 width;
};

// A product. Two blocks of threads have a band between them, and the same rows.
struct Given {
    const char *weight, *x; // packed; arranged
    float *out;
    const float *bias;
    u32 blocks, steps, workers, rows;
    u32 columns; // that have a bias
    Gates gates;

    __device__ u32 bands() const { return (blocks + 1) / 2; }
    __device__ u32 items() const { return bands() * steps; }
};

// Items of a worker and a band.
struct Part {
    u32 band, lo, hi;
    bool first, last; // of what is added up
    u32 to;           // which of the pieces that are left
};

// What comes at a place: some tiles of rows, and the parts of a worker or of a band. Most of it stays
// with the kernel's parameters, which take no registers.
template <u32 TILES, Left LEFT> struct Work {
    const Given &given;
    u32 height;              // of so many tiles, which are multiplied together
    u32 band, worker, parts; // of the first part

    static __device__ u32 heights(const Given &given) { return (given.rows + TILES * TILE - 1) / (TILES * TILE); }

    static __device__ u32 places(const Given &given)
    {
        return (LEFT == PIECES ? given.workers : given.bands()) * heights(given);
    }

    // Of `at_once` places at a time. Heights go round, since the last may be less work than the others.
    __device__ Work(const Given &given, u32 at, u32 at_once) : given(given)
    {
        const u32 items = given.items(), steps = given.steps, workers = given.workers, all = heights(given);
        if (LEFT == PIECES) {
            // Who waits for the one behind it starts later than that.
            worker = workers - 1 - at / all;
            height = (at + worker * all / at_once) % all;
            band = items * worker / workers / steps;
            parts = (items * (worker + 1) / workers - 1) / steps - band + 1;
            return;
        }
        // A group of rows with all columns, then the next.
        const u32 bands = given.bands(), before = at / (GROUP * bands) * GROUP;
        const u32 high = all - before < GROUP ? all - before : GROUP;
        const u32 within = at - before * bands;
        band = within / high;
        height = before + (within + band * high / at_once) % high;
        worker = ((band * steps + 1) * workers - 1) / items;
        parts = ((band + 1) * steps * workers - 1) / items - worker + 1;
    }

    __device__ Part part(u32 index) const
    {
        Part part;
        const u32 its = LEFT == PIECES ? worker : worker + index;
        part.band = LEFT == PIECES ? band + index : band;
        const u32 begin = given.items() * its / given.workers, end = given.items() * (its + 1) / given.workers;
        const u32 first = part.band * given.steps, last = first + given.steps;
        part.lo = begin > first ? begin : first;
        part.hi = end < last ? end : last;
        part.first = LEFT == PIECES || index == 0;
        part.last = LEFT == PIECES || index + 1 == parts;
        part.to = LEFT == PIECES ? part.band + worker : band;
        return part;
    }

    __device__ u32 first_row() const { return height * TILES * TILE; }

    // The step of k with which a part begins.
    __device__ u32 step(const Part &part) const { return part.lo - part.band * given.steps; }

    // Where a part of the weight lies. What would be behind the last block is no one's, and is read there.
    __device__ const char *columns(const Part &part, u32 half) const
    {
        const u32 wanted = part.band * 2 + half, block = wanted < given.blocks ? wanted : given.blocks - 1;
        return given.weight + ((u64)block * given.steps + step(part)) * PART;
    }

    // The same of one of the tiles of rows.
    __device__ const char *lines(const Part &part, u32 tile) const
    {
        return given.x + ((u64)(height * TILES + tile) * given.steps + step(part)) * PART;
    }
};

// Of a thread: two columns, and two of every eight rows.
template <u32 TILES> struct Sums {
    float at[TILES * TILE / 2] = {};
};

// What is added to the two columns of a thread: a bias is part of the first piece of its band.
struct Biases {
    float low = 0.0f, high = 0.0f;
    bool any;

    __device__ Biases(const Given &given, const Part &part, u32 first)
        : any(given.columns > 0 && part.lo == part.band * given.steps)
    {
        if (any) {
            low = first < given.columns ? given.bias[first] : 0.0f;
            high = first + 1 < given.columns ? given.bias[first + 1] : 0.0f;
        }
    }

    // Adds both columns of two rows, [column][row], to sums.
    __device__ void add(float4 &sum, const float *s) const
    {
        sum.x += any ? s[0] + low : s[0];
        sum.y += any ? s[1] + low : s[1];
        sum.z += any ? s[2] + high : s[2];
        sum.w += any ? s[3] + high : s[3];
    }
};

// The first of a thread's columns in its block.
static __device__ u32 own_column() { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 * 2; }

// Adds a piece to the thread's sums, to 0 if it is the first, as readers do, and writes the last.
template <u32 TILES, Left LEFT>
static __device__ void put(const Work<TILES, LEFT> &work, const Part &part, u32 half, float4 *held,
                           const Sums<TILES> &piece)
{
    const Given &given = work.given;
    const u32 column = own_column(), first_row = work.first_row() + threadIdx.x % 4 * 2;
    const Biases biases(given, part, (part.band * 2 + half) * BLOCK + column);
    held += threadIdx.x;
    float *to = given.out + ((u64)part.to * 2 + half) * given.rows * BLOCK + column;
#pragma unroll
    for (u32 n = 0; n < TILES * TILE / 8; n++) {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (LEFT == WHOLE && !part.first)
            sum = held[n * WARPS * 32];
        biases.add(sum, piece.at + n * 4);
        if (LEFT == WHOLE && !part.last) {
            held[n * WARPS * 32] = sum;
            continue;
        }
        const u64 row = first_row + n * 8;
        if (row < given.rows)
            *(float2 *)(to + row * BLOCK) = make_float2(sum.x, sum.z);
        if (row + 1 < given.rows)
            *(float2 *)(to + (row + 1) * BLOCK) = make_float2(sum.y, sum.w);
    }
}

// What a warp has of the second piece of a band, on its way to the worker that has the first. That one comes to it in
// the end and this one begins with it, and starts no later, so hardly anybody waits. Nobody waits before its own second
// piece is there, so nobody waits for long.
struct Meeting {
    float4 *piece; // of this thread, every WARPS · 32
    u32 *there;

    __device__ Meeting(const Given &given, u32 band, u32 half)
    {
        const u32 block = band * 2 + half, eights = (given.rows + 7) / 8;
        piece = (float4 *)given.out + (u64)block * eights * (WARPS * 32) + threadIdx.x;
        there = given.gates.there + block * WARPS + threadIdx.x / 32;
    }

    __device__ void arrive() const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(there) : "memory");
    }

    __device__ void await() const
    {
        if (threadIdx.x % 32 == 0) {
            u32 come = 0;
            while (!come)
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(come) : "l"(there) : "memory");
            *there = 0;
        }
        __syncwarp();
    }
};

// silu(gate) · up of a thread's two columns and two rows, [column][row]. Of the two columns' element and of the next one,
// which a neighbour has, a lane writes one row.
static __device__ void put_two(u32 *to, bool wanted, float4 sum)
{
    const bool odd = threadIdx.x / 4 % 2 != 0;
    const float first = gated(sum.x, sum.z), second = gated(sum.y, sum.w);
    const float others = __shfl_xor_sync(~0u, odd ? first : second, 4);
    if (wanted)
        *to = odd ? narrowed(others, second) : narrowed(first, others);
}

// The same of gates and ups. Of pieces a band has two at most.
template <u32 TILES, Left LEFT>
static __device__ void put_gated(const Work<TILES, LEFT> &work, const Part &part, u32 half, float4 *held,
                                 const Sums<TILES> &piece)
{
    const u32 FEW = 8; // whose loads do not wait for each other
    const Given &given = work.given;
    const u32 column = (part.band * 2 + half) * BLOCK + own_column(), rows = given.rows - work.first_row();
    const bool begins = part.lo == part.band * given.steps, ends = part.hi == (part.band + 1) * given.steps;
    const Meeting meeting(given, part.band, half);
    const bool meets = LEFT == PIECES && begins && !ends;
    if (meets)
        meeting.await();
    const Biases biases(given, part, column);
    const u32 lane = threadIdx.x % 32, own_row = lane % 4 * 2 + lane / 4 % 2;
    const u32 element = column / 64 * 32 + lane / 8 * 8 + column % 64 / 16 * 2, of_tile = given.gates.width / 32 * 2048;
    const Lines<true> lines = {given.gates.out, given.gates.width};
    u32 *to = lines.two(work.first_row() + own_row, element);
    held += threadIdx.x;
#pragma unroll
    for (u32 group = 0; group < TILES * TILE / 8; group += FEW) {
        if (group * 8 >= rows)
            break;
        float4 others[FEW] = {};
        if (meets)
#pragma unroll
            for (u32 i = 0; i < FEW; i++)
                if ((group + i) * 8 < rows)
                    others[i] = __ldcg(meeting.piece + (group + i) * WARPS * 32);
#pragma unroll
        for (u32 i = 0; i < FEW; i++) {
            const u32 n = group + i;
            float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (LEFT == WHOLE && !part.first)
                sum = held[n * WARPS * 32];
            biases.add(sum, piece.at + n * 4);
            if (LEFT == WHOLE ? !part.last : !begins) {
                float4 *at = LEFT == WHOLE ? held : meeting.piece;
                if (LEFT == WHOLE || n * 8 < rows)
                    at[n * WARPS * 32] = sum;
                continue;
            }
            Pieces::add(sum, others[i]);
            const bool wanted = n * 8 + own_row < rows && element < given.gates.width;
            put_two(to + n / 16 * of_tile + n % 16 * 32, wanted, sum);
        }
    }
    if (LEFT == PIECES && !begins)
        meeting.arrive();
}
