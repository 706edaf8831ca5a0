// Products of many rows where the tensor cores read both operands in shared memory and bulk copies bring them.

#if HOPPER
const u32 MIDDLE = 192; // rows between one tile and two that are multiplied as such

// A barrier in shared memory.
struct Barrier {
    u32 at;

    __device__ void init(u32 count) const
    {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
    }

    __device__ void arrive() const { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory"); }

    // At the same barrier of a block of threads of the cluster.
    __device__ void arrive_at(u32 rank) const
    {
        asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
                     "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(at),
                     "r"(rank)
                     : "memory");
    }

    __device__ void expect_bytes(u32 bytes) const
    {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
    }

    // Until all have arrived for the `round`th time, counted from 0.
    __device__ void wait(u32 round) const
    {
        u32 come = 0;
        while (!come)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                         "selp.u32 %0, 1, 0, p; }"
                         : "=r"(come)
                         : "r"(at), "r"(round % 2)
                         : "memory");
    }
};

static __device__ u32 own_rank()
{
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// A part of a ring, and how often it was used before.
template <u32 STAGES> struct Slot {
    u32 at = 0, round = 0;

    __device__ void advance()
    {
        if (++at == STAGES) {
            at = 0;
            round++;
        }
    }
};

// Steps on their way to a block of threads, or there. The two of a cluster have the same rows, of which each
// asks for a half of a step for both, and the two blocks of columns of a band.
template <u32 TILES, Left LEFT> struct Belt {
    static constexpr u32 HELD = LEFT == WHOLE ? TILES * TILE * BLOCK * 4 : 0; // bytes of the sums of pieces
    static constexpr u32 BOTH = PART + TILES * PART;                          // of a step
    static constexpr u32 QUARTER = PART / 4;                                  // of a step of a tile of rows
    static constexpr u32 STAGES = (229376 - HELD) / BOTH;                     // as many as there is room for
    typedef Slot<STAGES> At;
    typedef Work<TILES, LEFT> Its;

    u32 slots, barriers; // one for each slot that is full, then one for each that is empty
    u32 rank;

    __device__ Barrier full(const At &at) const { return {barriers + at.at * 8}; }
    __device__ Barrier empty(u32 slot) const { return {barriers + STAGES * 8 + slot * 8}; }

    __device__ void prepare() const
    {
#pragma unroll
        for (u32 i = 0; i < STAGES; i++) {
            full({i, 0}).init(2);
            empty(i).init(2 * WARPS);
        }
    }

    // Rows that are multiplied: one tile, half of another with it, or two.
    __device__ static u32 filled(const Its &work)
    {
        const u32 rows = work.given.rows - work.first_row();
        return TILES == 1 || rows <= TILE ? TILE : rows <= MIDDLE ? MIDDLE : 2 * TILE;
    }

    // Asks for the steps of the weight for some work, as soon as there is room: one thread.
    __device__ void feed_columns(const Its &work, At &at) const
    {
        const u64 policy = work.given.rows <= TILES * TILE ? ONCE : AGAIN;
#pragma unroll 1
        for (u32 index = 0; index < work.parts; index++) {
            const Part part = work.part(index);
            u64 from = (u64)work.columns(part, rank);
#pragma unroll 1
            for (u32 count = part.hi - part.lo; count > 0; count--, from += PART, at.advance()) {
                // Before the first round every slot is empty.
                empty(at.at).wait(at.round + 1);
                full(at).expect_bytes(PART);
                copy(slots + at.at * BOTH, from, full(at), policy);
            }
        }
    }

    // The same of half of a step of the rows. Where it goes is known before: this thread has little time.
    __device__ void feed_lines(const Its &work, At &at) const
    {
        // Of two tiles a block of threads has one, in quarters that lie between those of the other; of one it has
        // half of the elements of k. Of the second tile half of the rows may be all that is wanted.
        const u32 rows = filled(work), bytes = rows * (PART / TILE);
        const bool two = rows > TILE;
        const u32 quarters = two ? 4 : 2, each = two && rank == 1 ? bytes / 4 - QUARTER : QUARTER;
        const u32 first = slots + PART + rank * (two ? QUARTER : TILES * 2 * QUARTER);
#pragma unroll 1
        for (u32 index = 0; index < work.parts; index++) {
            const Part part = work.part(index);
            u64 from = (u64)(two ? work.lines(part, rank) : work.lines(part, 0) + rank * 2 * QUARTER);
#pragma unroll 1
            for (u32 count = part.hi - part.lo; count > 0; count--, from += PART, at.advance()) {
                empty(at.at).wait(at.round + 1);
                full(at).expect_bytes(bytes);
                const u32 to = first + at.at * BOTH;
                if (TILES == 1)
                    copy_to_both(to, from, 2 * QUARTER, full(at));
                else
#pragma unroll
                    for (u32 i = 0; i < 4; i++)
                        if (i < quarters)
                            copy_to_both(to + i * 2 * QUARTER, from + i * QUARTER, each, full(at));
            }
        }
    }

    // Policies of the card's cache for what will be read once, and for what others read, too.
    static constexpr u64 ONCE = 0x12f0000000000000, AGAIN = 0x16f0000000000000;

    __device__ static void copy(u32 to, u64 from, Barrier barrier, u64 policy)
    {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                     "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                     "l"(from), "r"(PART), "r"(barrier.at), "l"(policy)
                     : "memory");
    }

    __device__ static void copy_to_both(u32 to, u64 from, u32 bytes, Barrier barrier)
    {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                     "l"(from), "r"(bytes), "r"(barrier.at), "h"((u16)3)
                     : "memory");
    }

    // This warp has multiplied the step. What has read it is the tensor cores, for which all lanes waited.
    __device__ void release(u32 slot) const
    {
        const u32 lane = threadIdx.x % 32;
        if (lane < 2)
            empty(slot).arrive_at(lane);
    }
};

#define TEN(i) "%" #i "0,%" #i "1,%" #i "2,%" #i "3,%" #i "4,%" #i "5,%" #i "6,%" #i "7,%" #i "8,%" #i "9,"
#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
#define SIXTY_FOUR(i) SIXTEEN(i), SIXTEEN(i + 16), SIXTEEN(i + 32), SIXTEEN(i + 48)

// d += w · x for the 64 columns of four warps, 16 elements of k and so many rows.
static __device__ void multiply_256(float (&d)[128], u64 w, u64 x)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," TEN(1) TEN(2)
                 TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11)
                 "%120,%121,%122,%123,%124,%125,%126,%127}, %128, %129, 1, 1, 1, 0, 0;"
                 : SIXTY_FOUR(0), SIXTY_FOUR(64)
                 : "l"(w), "l"(x));
}

static __device__ void multiply_192(float (&d)[128], u64 w, u64 x)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," TEN(1) TEN(2)
                 TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) "%90,%91,%92,%93,%94,%95}, %96, %97, 1, 1, 1, 0, 0;"
                 : SIXTY_FOUR(0), SIXTEEN(64), SIXTEEN(80)
                 : "l"(w), "l"(x));
}

template <int N> static __device__ void multiply_128(float (&d)[N], u64 w, u64 x)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," TEN(1) TEN(2)
                 TEN(3) TEN(4) TEN(5) "%60,%61,%62,%63}, %64, %65, 1, 1, 1, 0, 0;"
                 : SIXTY_FOUR(0)
                 : "l"(w), "l"(x));
}

template <u32 ROWS, int N> static __device__ void multiply(float (&d)[N], u64 w, u64 x)
{
    if constexpr (ROWS == 2 * TILE)
        multiply_256(d, w, x);
    else if constexpr (ROWS == MIDDLE)
        multiply_192(d, w, x);
    else
        multiply_128(d, w, x);
}

static __device__ void await_products(float (&d)[64])
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" : SIXTY_FOUR(0)::"memory");
}

static __device__ void await_products(float (&d)[128])
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" : SIXTY_FOUR(0), SIXTY_FOUR(64)::"memory");
}

// An operand in shared memory: 8 rows of 16 bytes lie behind each other; what follows in k, and the next 8
// rows, so many bytes away.
static __device__ u64 operand(u32 at, u32 pairs, u32 eights)
{
    return (at & 0x3ffff) / 16 | (u64)(pairs / 16) << 16 | (u64)(eights / 16) << 32;
}

// The operands of a step in the first slot, for four warps.
template <u32 TILES> struct Operands {
    u64 w, x;

    __device__ explicit Operands(u32 slots)
    {
        const u32 group = __shfl_sync(~0u, threadIdx.x / 128, 0);
        w = operand(slots + group * (PART / 2), 128, 512);
        x = operand(slots + PART, TILES * PART / 4, 128);
    }
};

// Adds up this warp's columns of some steps, of which one is multiplied while the one before ends.
template <u32 ROWS, u32 TILES, Left LEFT>
static __device__ void add_up(const Belt<TILES, LEFT> &belt, const Operands<TILES> &at, Sums<TILES> &sums, u32 count,
                              typename Belt<TILES, LEFT>::At &slot)
{
    u32 before = 0;
#pragma unroll 1
    for (u32 i = 0; i < count; i++) {
        belt.full(slot).wait(slot.round);
        const u32 here = slot.at * (belt.BOTH / 16);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        multiply<ROWS>(sums.at, at.w + here, at.x + here);
        multiply<ROWS>(sums.at, at.w + here + 256 / 16, at.x + here + TILES * PART / 2 / 16);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        if (i > 0) {
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            belt.release(before);
        }
        before = slot.at;
        slot.advance();
    }
    await_products(sums.at);
    belt.release(before);
}

// For both blocks of threads.
static __device__ void meet()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// out = x · weightᵀ, as Pieces says, or what it makes of that.
template <u32 TILES, Left LEFT, Made MADE> static __device__ void product(const Given &given)
{
    extern __shared__ __align__(128) char shared[];
    typedef Belt<TILES, LEFT> Its;
    typedef Work<TILES, LEFT> W;
    __shared__ u64 barriers[Its::STAGES * 2];
    const Its belt = {address(shared + Its::HELD), address(barriers), own_rank()};
    if (threadIdx.x == 0) {
        belt.prepare();
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    meet();
    const u32 first = blockIdx.x / 2, places = W::places(given), at_once = gridDim.x / 2;
    typename Its::At slot;
    if (threadIdx.x < WARPS * 32) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        // What is written may still be read.
        wait_for_earlier();
        const Operands<TILES> operands(belt.slots);
#pragma unroll 1
        for (u32 i = first; i < places; i += at_once) {
            const W work(given, i, at_once);
#pragma unroll 1
            for (u32 index = 0; index < work.parts; index++) {
                const Part part = work.part(index);
                Sums<TILES> sums;
                const u32 rows = belt.filled(work), count = part.hi - part.lo;
                // As one choice: behind several the compiler waits for each product by itself, and says so.
                if constexpr (TILES == 1)
                    add_up<TILE>(belt, operands, sums, count, slot);
                else if (rows > MIDDLE)
                    add_up<2 * TILE>(belt, operands, sums, count, slot);
                else if (rows == MIDDLE)
                    add_up<MIDDLE>(belt, operands, sums, count, slot);
                else
                    add_up<TILE>(belt, operands, sums, count, slot);
                if constexpr (MADE == GATED)
                    put_gated(work, part, belt.rank, (float4 *)shared, sums);
                else
                    put(work, part, belt.rank, (float4 *)shared, sums);
            }
        }
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == WARPS * 32)
            // No kernel writes weights.
#pragma unroll 1
            for (u32 i = first; i < places; i += at_once)
                belt.feed_columns(W(given, i, at_once), slot);
        if (threadIdx.x == (WARPS + 1) * 32) {
            wait_for_earlier();
            // What is copied was written by stores.
            asm volatile("fence.proxy.async;" ::: "memory");
#pragma unroll 1
            for (u32 i = first; i < places; i += at_once)
                belt.feed_lines(W(given, i, at_once), slot);
        }
    }
    // Nobody leaves while the other may still speak to it.
    meet();
}
#endif
