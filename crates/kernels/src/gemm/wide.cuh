// Products of many rows on tensor cores, in the order of the skinny ones: every sum runs through the
// same steps of k with the same phases and pieces, so that a row has the same bits in both. Here one
// phase follows another, since a block of threads has room for the sums of one beside what others left:
// those of step 0, 4, 8 … of a worker's run, then 2, 6, 10 …, then the odd ones. Pieces are added up here.
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

// What the two blocks of threads of a cluster, if they are one, share: a weight between two tiles of rows,
// or the phases of one tile.
enum Sharing { NOTHING, WEIGHT, TILE };

// What is multiplied: columns of the weight, rows of x.
enum Operand { COLUMNS, LINES };

// to[tile][step][half][pair][row][8] = the elements of x that one lane of a quad multiplies, for each of
// the quad: 8 q + 4 half + 2 pair and the one behind it. Rows past the last are zero. A thread is a
// row of a step.
extern "C" __global__ void __launch_bounds__(THREADS)
    arrange(const u16 *x, u64 x_len, u16 *out, u64 out_len, u32 steps, u32 rows, u32 tiles)
{
    let_next_start();
    const u64 unit = blockIdx.x * (u64)THREADS + threadIdx.x;
    const u32 row = (u32)(unit % ROWS), step = (u32)(unit / ROWS % steps);
    const u64 tile = unit / ROWS / steps, all = tile * ROWS + row;
    expect(x_len >= (u64)rows * steps * STEP && out_len >= (u64)tiles * ROWS * steps * STEP);
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

// A product. The tiles of rows and either the blocks of columns, whose pieces are added up here, or the
// workers, which leave them apart.
struct Given {
    const char *weight, *x; // packed; arranged
    float *out;
    const float *bias;
    u32 blocks, steps, workers, rows, tiles;
    u32 apart;
    u32 columns; // that have a bias

    __device__ u32 items() const { return blocks * steps; }
    __device__ u32 places() const { return (apart ? workers : blocks) * tiles; }
};

// Items of a worker and a block of columns.
struct Part {
    u32 block, lo, hi, begin; // where its worker begins
    bool first, last;         // of what is added up
    u32 to;                   // which of the blocks that are left
};

// What comes at a place: a tile of rows, and the parts of a block of columns or of a worker. Most of it stays
// with the kernel's parameters, which take no registers.
struct Work {
    const Given &given;
    u32 tile, block, worker, parts; // of the first part

    __device__ Work(const Given &given, u32 at) : given(given)
    {
        const u32 items = given.items(), steps = given.steps, workers = given.workers;
        if (given.apart) {
            tile = at % given.tiles;
            worker = at / given.tiles;
            block = items * worker / workers / steps;
            parts = (items * (worker + 1) / workers - 1) / steps - block + 1;
            return;
        }
        // A group of rows with all columns, then the next.
        const u32 before = at / (GROUP * given.blocks) * GROUP;
        const u32 wide = given.tiles - before < GROUP ? given.tiles - before : GROUP;
        const u32 within = at - before * given.blocks;
        tile = before + within % wide;
        block = within / wide;
        worker = ((block * steps + 1) * workers - 1) / items;
        parts = ((block + 1) * steps * workers - 1) / items - worker + 1;
    }

    __device__ Part part(u32 index) const
    {
        Part part;
        const u32 its = given.apart ? worker : worker + index;
        part.block = given.apart ? block + index : block;
        part.begin = given.items() * its / given.workers;
        const u32 end = given.items() * (its + 1) / given.workers;
        const u32 first = part.block * given.steps, last = first + given.steps;
        part.lo = part.begin > first ? part.begin : first;
        part.hi = end < last ? end : last;
        part.first = given.apart || index == 0;
        part.last = given.apart || index + 1 == parts;
        part.to = given.apart ? part.block + worker : block;
        return part;
    }
};

// The phase that is `turn`th: 0, 2, 1, 3.
static __device__ u32 phase(u32 turn) { return turn / 2 + turn % 2 * 2; }

// The first item of a phase.
static __device__ u32 first_of(const Part &part, u32 phase)
{
    return part.lo + (phase + PHASES - (part.lo - part.begin) % PHASES) % PHASES;
}

typedef float Sums[EIGHTS * 4];

static __device__ void add(Sums &to, const Sums &more)
{
#pragma unroll
    for (u32 i = 0; i < EIGHTS * 4; i++)
        to[i] += more[i];
}

static __device__ void clear(Sums &sums)
{
#pragma unroll
    for (u32 i = 0; i < EIGHTS * 4; i++)
        sums[i] = 0.0f;
}

// Adds a piece to the thread's sums, to 0 if it is the first, as readers do, and writes the last. A bias is part
// of the first piece of its block.
static __device__ void put(const Work &work, const Part &part, float4 *held, const Sums &piece)
{
    const Given &given = work.given;
    const u32 column = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, first_row = work.tile * ROWS + threadIdx.x % 4 * 2;
    const bool biased = given.columns > 0 && part.lo == part.block * given.steps;
    float biases[2] = {0.0f, 0.0f};
    if (biased)
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 at = part.block * BLOCK + column + i * 8;
            biases[i] = at < given.columns ? given.bias[at] : 0.0f;
        }
    held += threadIdx.x;
    float *to = given.out + (u64)part.to * given.rows * BLOCK + column;
#pragma unroll
    for (u32 n = 0; n < EIGHTS; n++) {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (!part.first)
            sum = held[n * WARPS * 32];
        sum.x += biased ? piece[n * 4] + biases[0] : piece[n * 4];
        sum.y += biased ? piece[n * 4 + 1] + biases[0] : piece[n * 4 + 1];
        sum.z += biased ? piece[n * 4 + 2] + biases[1] : piece[n * 4 + 2];
        sum.w += biased ? piece[n * 4 + 3] + biases[1] : piece[n * 4 + 3];
        if (!part.last) {
            held[n * WARPS * 32] = sum;
            continue;
        }
        const u64 row = first_row + n * 8;
        if (row < given.rows) {
            to[row * BLOCK] = sum.x;
            to[row * BLOCK + 8] = sum.z;
        }
        if (row + 1 < given.rows) {
            to[(row + 1) * BLOCK] = sum.y;
            to[(row + 1) * BLOCK + 8] = sum.w;
        }
    }
}
