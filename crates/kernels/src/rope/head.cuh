// What becomes of a head of a row: its norm and its rotation (half-split pairs), and where it is kept. What is fused is
// said: a compiler may choose otherwise from one kernel to the next, and a head has the same bits whether the sums of its
// product come in pieces or whole.

// One of a pair by its angle; `other` is the other one, of which the first of the two takes the opposite.
static __device__ float turned(float x, float other, float cosine, float sine)
{
    return __fmaf_rn(x, cosine, __fmul_rn(other, sine));
}

// DIM / 4 lanes are a head, a warp at most, whose lanes then have the elements of both halves.
template <u32 DIM> struct Head {
    static const u32 LANES = DIM / 4 < 32 ? DIM / 4 : 32, FOURS = DIM / 4 / LANES;

    float x[FOURS][4];

    // The first of four elements of this lane.
    static __device__ u32 element(u32 four) { return four * LANES * 4 + threadIdx.x % LANES * 4; }

    // The first of the pairs that they are in, which both halves have angles in common of.
    static __device__ u32 pair() { return threadIdx.x % LANES * 4 % (DIM / 2); }

    __device__ void take(u32 four, float4 sum)
    {
        x[four][0] = sum.x, x[four][1] = sum.y, x[four][2] = sum.z, x[four][3] = sum.w;
    }

    // What a norm multiplies the elements with, beside their weights. All lanes of a warp ask.
    __device__ float inverse(float eps) const
    {
        float squares = 0.0f;
#pragma unroll
        for (u32 f = 0; f < FOURS; f++) {
            float four = __fmul_rn(x[f][0], x[f][0]);
#pragma unroll
            for (u32 i = 1; i < 4; i++)
                four = __fmaf_rn(x[f][i], x[f][i], four);
            squares = __fadd_rn(squares, four);
        }
#pragma unroll
        for (u32 apart = LANES / 2; apart > 0; apart /= 2)
            squares = __fadd_rn(squares, __shfl_xor_sync(~0u, squares, apart));
        return __frcp_rn(__fsqrt_rn(__fmaf_rn(squares, 1.0f / DIM, eps)));
    }

    __device__ void norm(float inverse, const float4 (&weights)[FOURS])
    {
#pragma unroll
        for (u32 f = 0; f < FOURS; f++) {
            const float w[4] = {weights[f].x, weights[f].y, weights[f].z, weights[f].w};
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                x[f][i] = __fmul_rn(__fmul_rn(x[f][i], inverse), w[i]);
        }
    }

    // The head by the angles of a row. All lanes of a warp ask.
    __device__ Head rotated(float4 cosine, float4 sine) const
    {
        const float cosines[4] = {cosine.x, cosine.y, cosine.z, cosine.w};
        const float sines[4] = {sine.x, sine.y, sine.z, sine.w};
        Head to;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            if (FOURS == 2) {
                const float low = x[0][i], high = x[FOURS - 1][i];
                to.x[0][i] = turned(low, -high, cosines[i], sines[i]);
                to.x[FOURS - 1][i] = turned(high, low, cosines[i], sines[i]);
                continue;
            }
            const float other = __shfl_xor_sync(~0u, x[0][i], LANES / 2);
            const bool first = threadIdx.x % LANES < LANES / 2;
            to.x[0][i] = turned(x[0][i], first ? -other : other, cosines[i], sines[i]);
        }
        return to;
    }

    // Four elements as they are kept.
    __device__ uint2 halves(u32 four) const
    {
        return make_uint2(narrowed(x[four][0], x[four][1]), narrowed(x[four][2], x[four][3]));
    }
};

// Where heads of `dim` elements are kept: those of q in [rows][heads][dim], k and v in
// [pages][kv_heads][page_size][dim] of their layer.
struct Heads {
    u16 *q;
    u64 q_len;
    u16 *keys;
    u64 keys_len;
    u16 *values;
    u64 values_len, pages_apart; // from one layer's first page to the next one's
    u32 heads, kv_heads, dim, page_size;

    // The heads of a layer are those of q, k and v.
    __device__ bool value(u32 head) const { return head >= heads + kv_heads; }
    __device__ bool key(u32 head) const { return head >= heads && !value(head); }

    // Four elements of a head, as they are kept.
    __device__ void put(uint2 halves, u32 row, u32 layer, u32 head, u32 element, u32 slot) const
    {
        if (head < heads) {
            *(uint2 *)(q + ((u64)row * heads + head) * dim + element) = halves;
            return;
        }
        const u32 page = slot / page_size, kv = (head - heads) % kv_heads;
        const u64 to = layer * pages_apart + (((u64)page * kv_heads + kv) * page_size + slot % page_size) * dim + element;
        expect(to + 4 <= (value(head) ? values_len : keys_len));
        *(uint2 *)((value(head) ? values : keys) + to) = halves;
    }
};
