// What every kernel file begins with: short names, bf16, the order of launches, and the pieces that
// a product leaves. A slice is a pointer and a length; a kernel that is given one too short stops.

typedef unsigned short u16; // bf16, as its bits
typedef unsigned int u32;
typedef unsigned long long u64;

// Where the card knows it, a kernel may start while the one before it still runs: until this
// returns it has read nothing that a kernel writes, and written nothing.
inline __device__ void wait_for_earlier()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may start, and has to wait itself.
inline __device__ void let_next_start()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

inline __device__ void expect(bool held)
{
    if (!held)
        __trap();
}

inline __device__ float widened(u32 half) { return __uint_as_float(half << 16); }

inline __device__ u16 narrowed(float x)
{
    u16 half;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
}

// Two at a time, the first in the low half.
inline __device__ u32 narrowed(float low, float high)
{
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// What several kernels make of four columns, with each rounding where it is: a compiler that fuses a product with a
// sum in one of them and not in the other would give a row other bits by the company it is in.
inline __device__ float squares_of(float4 v)
{
    return __fmaf_rn(v.w, v.w, __fmaf_rn(v.z, v.z, __fmaf_rn(v.y, v.y, __fmul_rn(v.x, v.x))));
}

// Of the squares of a row.
inline __device__ float inverse_of(float squares, u32 width, float eps)
{
    return 1.0f / sqrtf(__fadd_rn(squares / (float)width, eps));
}

inline __device__ uint2 normed(float4 v, float inverse, float4 w)
{
    return make_uint2(narrowed(v.x * inverse * w.x, v.y * inverse * w.y),
                      narrowed(v.z * inverse * w.z, v.w * inverse * w.w));
}

// silu(gate) · up. The exponential and the quotient are the card's own approximations, some 2⁻²¹ off, of what is
// rounded to 2⁻⁹: exact ones take longer than memory does.
inline __device__ float gated(float gate, float up)
{
    return __fmul_rn(__fdividef(gate, __fadd_rn(1.0f, __expf(-gate))), up);
}

// Where a product of gates and ups has them: 32 elements are 64 columns, four groups of 16. A group has two elements of
// each eight, each gate with its up behind it: what a thread of a product finds side by side are both, and what the lanes
// of a warp make of them are whole lines of rows that lie in tiles.
struct Woven {
    static constexpr u32 NEXT = 16; // columns from two elements to the two behind them

    // Of the gate of an element, which is a multiple of 2.
    __device__ static u32 column(u32 element)
    {
        return element / 32 * 64 + element % 8 / 2 * NEXT + element % 32 / 8 * 4;
    }

    // silu(gate) · up of two elements, whose columns are next to each other.
    __device__ static u32 two(float4 sums) { return narrowed(gated(sums.x, sums.y), gated(sums.z, sums.w)); }
};

// c += a · b for 16×16 by 16×8, bf16 with f32 sums.
inline __device__ void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// A packed weight has what 16 columns multiply in half a step as four times 8 columns of 16 bytes: the columns
// 8 further are 512 bytes away, what follows in k 128. Where a lane reads of it, and what it multiplies.
inline __device__ u32 place_of(u32 lane) { return lane % 8 * 16 + lane / 8 % 2 * 512 + lane / 16 * 128; }

inline __device__ uint4 fragment(u32 at)
{
    uint4 a;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a.x), "=r"(a.y), "=r"(a.z), "=r"(a.w)
                 : "r"(at)
                 : "memory");
    return a;
}

// What a lane multiplies of a row.
inline __device__ uint4 loaded(u32 at)
{
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
}

// Where something lies in shared memory. It is asked for once: the compiler would have it computed again and
// again, which takes a while.
inline __device__ u32 address(const void *shared)
{
    u32 at = (u32)__cvta_generic_to_shared(shared);
    asm volatile("" : "+r"(at));
    return at;
}

// Copies 16 bytes to shared memory, of which the first `bytes` come from `from` and the others are
// zero.
inline __device__ void copy_async(void *to, const void *from, u32 bytes)
{
    const u32 address = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes)
                 : "memory");
}

// The same of all 16.
inline __device__ void copy_async(u32 to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

inline __device__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All but the newest N groups have come.
template <int N> inline __device__ void await_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Columns of a product whose sums are cut at the same places.
const u32 BLOCK = 128;

// Rows that a product will multiply, one behind the other or in tiles of 128 as the product of many rows reads
// them: [step][half][pair][row][8], each quarter of 8 elements having two in each half and pair.
template <bool TILES> struct Lines {
    u16 *at;
    u32 width;

    // Elements that so many take.
    __device__ u64 elements(u32 rows) const { return (u64)(TILES ? (rows + 127) / 128 * 128 : rows) * width; }

    // The two elements of a row from `column` on, which is a multiple of 2.
    __device__ u32 *two(u32 row, u32 column) const
    {
        if (!TILES)
            return (u32 *)(at + (u64)row * width + column);
        const u32 words = column % 8 / 2 * 512 + row % 128 * 4 + column % 32 / 8;
        return (u32 *)at + ((u64)(row / 128) * (width / 32) + column / 32) * 2048 + words;
    }

    // Four from `column` on, a multiple of 4.
    __device__ void put(u32 row, u32 column, u32 low, u32 high) const
    {
        if (TILES) {
            *two(row, column) = low;
            *two(row, column + 2) = high;
        } else
            *(uint2 *)two(row, column) = make_uint2(low, high);
    }
};

const u32 AT_ONCE = 6; // pieces whose loads do not wait for each other

// Four columns of the pieces of a row, on their way.
struct Asked {
    float4 first[AT_ONCE];
    const float *from;
    u32 pieces;
};

// What a product leaves. Two blocks of columns are a band. Each worker takes an equal run of (band, step of k),
// bands outermost, and leaves a piece of each band that it has a part in. The pieces of a band lie one
// after the other in the order of k, each [half][rows][BLOCK]. A product of many rows may add them up itself, in
// the same order; then there are no workers, and each band is one piece.
struct Pieces {
    const float *at;
    u64 len;
    u32 steps;
    u32 workers;
    u32 rows;
    u32 items;

    // Of a product with so many columns.
    __device__ Pieces(const float *at, u64 len, u32 steps, u32 workers, u32 rows, u32 columns)
        : at(at), len(len), steps(steps), workers(workers), rows(rows),
          items((columns + 2 * BLOCK - 1) / (2 * BLOCK) * steps)
    {
        expect(len >= ((u64)(columns + 2 * BLOCK - 1) / (2 * BLOCK) + workers) * stride());
    }

    // Elements of a piece.
    __device__ u64 stride() const { return (u64)rows * 2 * BLOCK; }

    // The worker that has an item.
    __device__ u32 worker(u32 item) const { return ((item + 1) * workers - 1) / items; }

    // The pieces of a band, and where they begin for `row` and `column`.
    __device__ u32 all(u32 row, u32 column, const float *&from) const
    {
        const u32 block = column / BLOCK, band = block / 2;
        u32 first = 0, all = 1;
        if (workers > 0) {
            first = worker(band * steps);
            all = worker((band + 1) * steps - 1) - first + 1;
        }
        from = at + ((u64)(first * 2 + block) * rows + row) * BLOCK + column % BLOCK;
        return all;
    }

    // Asks for the pieces of `row` and the columns `column .. + 4`; `column` is a multiple of 4. Loads
    // that do not wait for each other, nor for those of the next that is asked for.
    __device__ Asked ask(u32 row, u32 column) const
    {
        Asked asked;
        asked.pieces = all(row, column, asked.from);
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++)
            if (i < asked.pieces)
                asked.first[i] = *(const float4 *)(asked.from + i * stride());
        return asked;
    }

    // Adds them up, in order.
    __device__ float4 sum(const Asked &asked) const
    {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++)
            if (i < asked.pieces)
                add(sum, asked.first[i]);
        for (u32 i = AT_ONCE; i < asked.pieces; i++)
            add(sum, *(const float4 *)(asked.from + i * stride()));
        return sum;
    }

    __device__ float4 four(u32 row, u32 column) const { return sum(ask(row, column)); }

    // The same where the product left its sums whole. Readers that know it take half of the registers, and twice as
    // many of them are under way.
    __device__ float4 whole(u32 row, u32 column) const
    {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        add(sum, *(const float4 *)(at + ((u64)(column / BLOCK) * rows + row) * BLOCK + column % BLOCK));
        return sum;
    }

    __device__ static void add(float4 &sum, float4 more)
    {
        sum.x += more.x;
        sum.y += more.y;
        sum.z += more.z;
        sum.w += more.w;
    }

    // The same of one column.
    __device__ float one(u32 row, u32 column) const
    {
        const float *from;
        const u32 pieces = all(row, column, from);
        float sum = 0.0f;
        for (u32 piece = 0; piece < pieces; piece++)
            sum += from[piece * stride()];
        return sum;
    }
};
