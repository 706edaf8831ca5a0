// Products of many rows where the tensor cores read both operands in shared memory and bulk copies bring them.

#if HOPPER
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

// An address is asked for once: the compiler would have it computed again and again, which takes a while.
static __device__ u32 address(const void *shared)
{
    u32 at = (u32)__cvta_generic_to_shared(shared);
    asm volatile("" : "+r"(at));
    return at;
}

static __device__ u32 own_rank()
{
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Steps on their way to a block of threads, or there.
template <Sharing SHARED> struct Belt {
    // Warps that ask for an operand, in turn: what goes to two at once takes longer to ask for.
    static constexpr u32 FEEDERS = SHARED == WEIGHT ? 2 : 1;

    u32 slots, barriers; // one for each slot that is full, then one for each that is empty
    u32 rank;

    // The turns of phases that this block of threads takes.
    __device__ u32 first_turn() const { return SHARED == TILE ? rank * 2 : 0; }
    __device__ u32 last_turn() const { return SHARED == TILE ? rank * 2 + 2 : PHASES; }

    __device__ Barrier full(u32 done) const { return {barriers + done % STAGES * 8}; }
    __device__ Barrier empty(u32 done) const { return {barriers + STAGES * 8 + done % STAGES * 8}; }

    __device__ void prepare() const
    {
        for (u32 i = 0; i < STAGES; i++) {
            full(i).init(2);
            empty(i).init(SHARED == WEIGHT ? 2 * WARPS : WARPS);
        }
    }

    // Asks for the steps of one operand that are a feeder's, as soon as there is room: one thread. `asked`: how
    // many it and the others have asked for.
    __device__ void feed(const Work &work, Operand operand, u32 feeder, u32 &asked) const
    {
        const Given &given = work.given;
#pragma unroll 1
        for (u32 index = 0; index < work.parts; index++) {
            const Part part = work.part(index);
            // Where the operand of item 0 would be.
            const u64 before = (u64)work.tile * given.steps - (u64)part.block * given.steps;
            const u64 from = operand == COLUMNS ? (u64)given.weight : (u64)given.x + before * PART;
#pragma unroll 1
            for (u32 turn = first_turn(); turn < last_turn(); turn++)
#pragma unroll 1
                for (u32 item = first_of(part, phase(turn)); item < part.hi; item += PHASES, asked++) {
                    if (asked % FEEDERS != feeder)
                        continue;
                    // Before the first round every slot is empty.
                    empty(asked).wait(asked / STAGES + 1);
                    full(asked).expect_bytes(PART);
                    const u32 to = slots + asked % STAGES * 2 * PART + operand * PART;
                    copy(operand, to, from + (u64)item * PART, full(asked));
                }
        }
    }

    // Of a weight that is shared, each block of threads copies a half to both.
    __device__ void copy(Operand operand, u32 to, u64 from, Barrier barrier) const
    {
        if (SHARED == WEIGHT && operand == COLUMNS)
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                         "[%0], [%1], %2, [%3], %4;" ::"r"(to + rank * (PART / 2)),
                         "l"(from + rank * (PART / 2)), "r"(PART / 2), "r"(barrier.at), "h"((u16)3)
                         : "memory");
        else
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                         "l"(from), "r"(PART), "r"(barrier.at)
                         : "memory");
    }

    // This warp has multiplied the step. What has read it is the tensor cores, for which all lanes waited.
    __device__ void release(u32 done) const
    {
        const u32 lane = threadIdx.x % 32;
        if (SHARED == WEIGHT && lane < 2)
            empty(done).arrive_at(lane);
        else if (SHARED != WEIGHT && lane == 0)
            empty(done).arrive();
    }
};

#define TEN(i) "%" #i "0,%" #i "1,%" #i "2,%" #i "3,%" #i "4,%" #i "5,%" #i "6,%" #i "7,%" #i "8,%" #i "9,"
#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)

// d += w · x, or d = w · x without `more`, for the 64 columns of four warps and 128 rows, 16 elements of k.
static __device__ void multiply(Sums &d, u64 w, u64 x, u32 more)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60,%61,%62,%63}, "
                 "%64, %65, p, 1, 1, 0, 0; }"
                 : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48)
                 : "l"(w), "l"(x), "r"(more));
}

static __device__ void await_products(Sums &d)
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48)::"memory");
}

// An operand in shared memory: 8 rows of 16 bytes lie behind each other; what follows in k, and the next 8
// rows, so many bytes away.
static __device__ u64 operand(u32 at, u32 pairs, u32 eights)
{
    return (at & 0x3ffff) / 16 | (u64)(pairs / 16) << 16 | (u64)(eights / 16) << 32;
}

// The operands of a step in the first slot, for four warps.
struct Operands {
    u64 w, x;

    __device__ explicit Operands(u32 slots)
    {
        const u32 group = __shfl_sync(~0u, threadIdx.x / 128, 0);
        w = operand(slots + group * (PART / 2), 128, 512);
        x = operand(slots + PART, PART / 4, 128);
    }
};

// Adds up a phase, of which a step is multiplied while the one before ends.
template <Sharing SHARED>
static __device__ void add_phase(const Belt<SHARED> &belt, const Operands &at, Sums &d, u32 item, u32 hi, u32 &done)
{
    if (item >= hi)
        clear(d);
    const u32 first = done;
#pragma unroll 1
    for (; item < hi; item += PHASES, done++) {
        belt.full(done).wait(done / STAGES);
        const u32 slot = done % STAGES * (2 * PART / 16);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        multiply(d, at.w + slot, at.x + slot, done - first);
        multiply(d, at.w + slot + 256 / 16, at.x + slot + PART / 2 / 16, 1);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        if (done > first) {
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            belt.release(done - 1);
        }
    }
    await_products(d);
    if (done > first)
        belt.release(done - 1);
}

// Where the sums of one of two blocks of threads go to the other: that of rank 0 keeps the columns of the
// first four warps, the other those of the others.
struct Exchange {
    Barrier come, taken;
    u32 room, rank, met;

    __device__ void prepare() const
    {
        come.init(1);
        taken.init(WARPS / 2);
    }

    __device__ bool keeps() const { return threadIdx.x / 128 == rank; }

    // To the same thread of the other, into what the threads that send leave free there.
    __device__ void give(const Sums &sums)
    {
        taken.wait(met++ + 1);
        const u32 barrier = there(come.at);
#pragma unroll
        for (u32 n = 0; n < EIGHTS; n++)
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                             there(slot(n))),
                         "f"(sums[n * 4]), "f"(sums[n * 4 + 1]), "f"(sums[n * 4 + 2]), "f"(sums[n * 4 + 3]), "r"(barrier)
                         : "memory");
    }

    __device__ void take(Sums &sums)
    {
        if (threadIdx.x % 128 == 0)
            come.expect_bytes(HELD / 2);
        come.wait(met++);
#pragma unroll
        for (u32 n = 0; n < EIGHTS; n++) {
            float4 more;
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(more.x), "=f"(more.y), "=f"(more.z), "=f"(more.w)
                         : "r"(slot(n))
                         : "memory");
            sums[n * 4] += more.x;
            sums[n * 4 + 1] += more.y;
            sums[n * 4 + 2] += more.z;
            sums[n * 4 + 3] += more.w;
        }
        // The lanes have what they read.
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            taken.arrive_at(rank ^ 1);
    }

  private:
    // An address of this block of threads in the other.
    __device__ u32 there(u32 at) const
    {
        u32 there;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank ^ 1));
        return there;
    }

    __device__ u32 slot(u32 n) const { return room + (n * WARPS * 32 + (threadIdx.x ^ 128)) * 16; }
};

// Adds up this warp's columns of some work.
template <Sharing SHARED>
static __device__ void add_up(const Belt<SHARED> &belt, const Operands &at, Exchange &exchange, const Work &work,
                              float4 *held, u32 &done)
{
    for (u32 index = 0; index < work.parts; index++) {
        Sums even, odd, sums;
        const Part part = work.part(index);
        const auto add_turn = [&](u32 turn, Sums &to) {
            add_phase(belt, at, to, first_of(part, phase(turn)), part.hi, done);
        };
        // (0 + 2) + (1 + 3).
        add_turn(belt.first_turn(), even);
        add_turn(belt.first_turn() + 1, sums);
        add(even, sums);
        if (SHARED == TILE) {
            if (!exchange.keeps()) {
                exchange.give(even);
                continue;
            }
            exchange.take(even);
        } else {
            add_turn(2, odd);
            add_turn(3, sums);
            add(odd, sums);
            add(even, odd);
        }
        put(work, part, held, even);
    }
}

template <Sharing SHARED> static __device__ void meet()
{
    if (SHARED == NOTHING) {
        __syncthreads();
        return;
    }
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// out = x · weightᵀ, as Pieces says, added up.
template <Sharing SHARED> static __device__ void product(const Given &given)
{
    extern __shared__ __align__(128) char shared[];
    __shared__ u64 barriers[STAGES * 2 + 2];
    const u32 rank = SHARED == NOTHING ? 0 : own_rank(), first = address(barriers);
    const Belt<SHARED> belt = {address(shared + HELD), first, rank};
    Exchange exchange = {{first + STAGES * 16}, {first + STAGES * 16 + 8}, address(shared), rank, 0};
    if (threadIdx.x == 0) {
        belt.prepare();
        exchange.prepare();
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    meet<SHARED>();
    const u32 each = SHARED == TILE ? 2 : 1, places = given.places();
    if (threadIdx.x < WARPS * 32) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(SHARED == TILE ? 232 : 240));
        // What is written may still be read.
        wait_for_earlier();
        const Operands at(belt.slots);
        u32 done = 0;
#pragma unroll 1
        for (u32 i = blockIdx.x / each; i < places; i += gridDim.x / each)
            add_up(belt, at, exchange, Work(given, i), (float4 *)shared, done);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(SHARED == TILE ? 40 : 24));
        const u32 warp = threadIdx.x / 32 - WARPS, feeder = warp / 2;
        const Operand operand = warp % 2 == 0 ? COLUMNS : LINES;
        // No kernel writes weights.
        if (operand == LINES)
            wait_for_earlier();
        if (threadIdx.x % 32 == 0 && feeder < belt.FEEDERS) {
            // What is copied was written by stores.
            asm volatile("fence.proxy.async;" ::: "memory");
            u32 asked = 0;
            for (u32 i = blockIdx.x / each; i < places; i += gridDim.x / each)
                belt.feed(Work(given, i), operand, feeder, asked);
        }
    }
    // Nobody leaves while the other may still speak to it.
    if (SHARED != NOTHING)
        meet<SHARED>();
}
#endif
