// What a lane's vectors saw: of a warp's keys, of a rank, and of all ranks.

// Two things that a vector saw, which become one: the largest score and the weight at once, then each sum.
struct Meeting {
    float old, more;

    __device__ Meeting(float &largest, float &weight, float2 its)
    {
        const float most = fmaxf(largest, its.x);
        old = power(largest - most), more = power(its.x - most);
        largest = most;
        weight = of(weight, its.y);
    }

    __device__ float of(float sum, float its) const { return __fadd_rn(__fmul_rn(sum, old), __fmul_rn(its, more)); }
};

// Two vectors of a lane: what they have seen so far, in quarters of a quad.
template <u32 DIM> struct Seen {
    static const u32 K_ROW = Keys<DIM, SETS>::K_ROW, V_ROW = Keys<DIM, SETS>::V_ROW;
    float largest[2], weight[2], sums[DIM / 8][4];

    __device__ void clear()
    {
        largest[0] = largest[1] = LOWEST;
        weight[0] = weight[1] = 0.0f;
#pragma unroll
        for (u32 d = 0; d < DIM / 8; d++)
            sums[d][0] = sums[d][1] = sums[d][2] = sums[d][3] = 0.0f;
    }

    // Sees a warp's keys of a stage; `sees` says which of its scores count.
    template <typename Sees>
    __device__ void see(const char *q, const char *k, u32 v, float factor, Sees sees)
    {
        float scores[KEYS / 8][4] = {}, most[2] = {largest[0], largest[1]};
#pragma unroll
        for (u32 step = 0; step < DIM / 32; step++) {
            const uint4 a = *(const uint4 *)(q + step * 64);
            const uint4 b = *(const uint4 *)(q + 8 * K_ROW + step * 64);
#pragma unroll
            for (u32 t = 0; t < KEYS / 8; t++) {
                const uint4 key = *(const uint4 *)(k + t * 8 * K_ROW + step * 64);
                mma(scores[t], a.x, b.x, a.y, b.y, key.x, key.y);
                mma(scores[t], a.z, b.z, a.w, b.w, key.z, key.w);
            }
        }
#pragma unroll
        for (u32 t = 0; t < KEYS / 8; t++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                // No product is fused with what follows, or rows that all see would round otherwise.
                scores[t][i] = sees(t, i) ? __fmul_rn(scores[t][i], factor) : LOWEST;
                most[i / 2] = fmaxf(most[i / 2], scores[t][i]);
            }
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 1));
            most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 2));
            const float old = power(largest[i] - most[i]);
            largest[i] = most[i];
            weight[i] = __fmul_rn(weight[i], old);
#pragma unroll
            for (u32 d = 0; d < DIM / 8; d++) {
                sums[d][i * 2] *= old;
                sums[d][i * 2 + 1] *= old;
            }
        }
#pragma unroll
        for (u32 t = 0; t < KEYS / 8; t++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                scores[t][i] = scores[t][i] > LOWEST ? power(__fsub_rn(scores[t][i], largest[i / 2])) : 0.0f;
                weight[i / 2] = __fadd_rn(weight[i / 2], scores[t][i]);
            }
#pragma unroll
        for (u32 t = 0; t < KEYS / 8; t += 2) {
            const u32 a0 = narrowed(scores[t][0], scores[t][1]), a1 = narrowed(scores[t][2], scores[t][3]);
            const u32 a2 = narrowed(scores[t + 1][0], scores[t + 1][1]);
            const u32 a3 = narrowed(scores[t + 1][2], scores[t + 1][3]);
#pragma unroll
            for (u32 d = 0; d < DIM / 16; d++) {
                u32 b[4];
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                             : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                             : "r"(v + t * 8 * V_ROW + d * 32));
                mma(sums[d * 2], a0, a1, a2, a3, b[0], b[1]);
                mma(sums[d * 2 + 1], a0, a1, a2, a3, b[2], b[3]);
            }
        }
    }

    // Adds up the weight over the quad.
    __device__ void close()
    {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            weight[i] += __shfl_xor_sync(~0u, weight[i], 1);
            weight[i] += __shfl_xor_sync(~0u, weight[i], 2);
        }
    }

    // To or from an array of vectors, of which `mine` is this lane's first.
    __device__ void put(float *vectors, u32 mine, u32 lane) const
    {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            float *to = vectors + (mine + i * 8) * held<DIM>();
#pragma unroll
            for (u32 d = 0; d < DIM / 8; d++)
                *(float2 *)(to + d * 8 + lane % 4 * 2) = make_float2(sums[d][i * 2], sums[d][i * 2 + 1]);
            if (lane % 4 == 0)
                *(float2 *)(to + DIM) = make_float2(largest[i], weight[i]);
        }
    }

    // Merges with what another warp put.
    __device__ void meet(const float *vectors, u32 mine, u32 lane)
    {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const float *from = vectors + (mine + i * 8) * held<DIM>();
            const Meeting meeting(largest[i], weight[i], *(const float2 *)(from + DIM));
#pragma unroll
            for (u32 d = 0; d < DIM / 8; d++) {
                const float2 sum = *(const float2 *)(from + d * 8 + lane % 4 * 2);
                sums[d][i * 2] = meeting.of(sums[d][i * 2], sum.x);
                sums[d][i * 2 + 1] = meeting.of(sums[d][i * 2 + 1], sum.y);
            }
        }
    }
};

// Where the two shares of a set meet behind a rank, if it had a chunk.
struct Place {
    float *meeting;
    u32 share, mine, lane; // `mine` is the first of the lane's two vectors
    bool some, works;
};

// The first share takes in what the second saw of a rank. Whether this lane has it then.
template <u32 DIM> static __device__ bool join(Seen<DIM> &seen, const Place &at)
{
    if (at.some) {
        __syncthreads();
        if (at.works && at.share == 1)
            seen.put(at.meeting, at.mine, at.lane);
        __syncthreads();
        if (at.works && at.share == 0)
            seen.meet(at.meeting, at.mine, at.lane);
    }
    return at.works && at.share == 0;
}

// What two vectors of a lane saw in all ranks so far: half of their elements, the other half being the other
// share's.
template <u32 DIM> struct Merged {
    static const u32 EACH = DIM / 16;
    float largest[2], weight[2], sums[EACH][4];

    __device__ Merged()
    {
        largest[0] = largest[1] = LOWEST;
        weight[0] = weight[1] = 0.0f;
#pragma unroll
        for (u32 d = 0; d < EACH; d++)
            sums[d][0] = sums[d][1] = sums[d][2] = sums[d][3] = 0.0f;
    }

    // Leaves the other share's half of what this one saw.
    template <u32 SHARE> __device__ void put(const Seen<DIM> &seen, const Place &at) const
    {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            float *to = at.meeting + (at.mine + i * 8) * held<DIM>();
#pragma unroll
            for (u32 d = (1 - SHARE) * EACH; d < (2 - SHARE) * EACH; d++)
                *(float2 *)(to + d * 8 + at.lane % 4 * 2) = make_float2(seen.sums[d][i * 2], seen.sums[d][i * 2 + 1]);
            if (at.lane % 4 == 0)
                *(float2 *)(to + DIM + SHARE * 2) = make_float2(seen.largest[i], seen.weight[i]);
        }
    }

    // Merges this share's half with the other's, and both with the ranks before. A rank without weight saw no key.
    template <u32 SHARE> __device__ void take(const Seen<DIM> &seen, const Place &at)
    {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const float *from = at.meeting + (at.mine + i * 8) * held<DIM>();
            const float2 its = *(const float2 *)(from + DIM + (1 - SHARE) * 2);
            const float2 own = make_float2(seen.largest[i], seen.weight[i]), first = SHARE == 0 ? own : its;
            float most = first.x, all = first.y;
            const Meeting shares(most, all, SHARE == 0 ? its : own);
            if (!(all > 0.0f))
                continue;
            const Meeting ranks(largest[i], weight[i], make_float2(most, all));
#pragma unroll
            for (u32 d = 0; d < EACH; d++) {
                const float2 theirs = *(const float2 *)(from + (SHARE * EACH + d) * 8 + at.lane % 4 * 2);
                const float *mine = seen.sums[SHARE * EACH + d] + i * 2;
                const float x = SHARE == 0 ? shares.of(mine[0], theirs.x) : shares.of(theirs.x, mine[0]);
                const float y = SHARE == 0 ? shares.of(mine[1], theirs.y) : shares.of(theirs.y, mine[1]);
                sums[d][i * 2] = ranks.of(sums[d][i * 2], x);
                sums[d][i * 2 + 1] = ranks.of(sums[d][i * 2 + 1], y);
            }
        }
    }

    __device__ void add(const Seen<DIM> &seen, const Place &at)
    {
        if (!at.some)
            return;
        __syncthreads();
        if (at.works && at.share == 0)
            put<0>(seen, at);
        if (at.works && at.share == 1)
            put<1>(seen, at);
        __syncthreads();
        if (at.works && at.share == 0)
            take<0>(seen, at);
        if (at.works && at.share == 1)
            take<1>(seen, at);
    }

    // The outputs as words of two, vectors `row` bytes apart.
    __device__ void leave(char *vectors, u32 row, const Place &at) const
    {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const float inverse = weight[i] > 0.0f ? 1.0f / weight[i] : 0.0f;
            u32 *to = (u32 *)(vectors + (at.mine + i * 8) * row) + at.share * EACH * 4 + at.lane % 4;
#pragma unroll
            for (u32 d = 0; d < EACH; d++)
                to[d * 4] = narrowed(sums[d][i * 2] * inverse, sums[d][i * 2 + 1] * inverse);
        }
    }
};
