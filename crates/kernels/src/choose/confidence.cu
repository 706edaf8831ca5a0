// Choices with how likely each is by the pieces of the head's product. What looks for the largest logit of each
// chunk of tokens also weighs the chunk, a token's weight being e^(its logit − the largest); what looks for the
// best chunk also adds up the weights of all, beside that of the token it chose. Rules have no part in it.
//
// A row has one order of addition, whatever is beside it: a thread adds its tokens from the lowest id on, a warp
// its threads in pairs, a block its warps one after the other, in floats; then chunks in doubles.

const u32 QUADS = 2; // that a thread looks at, as cuda.rs cuts chunks

// Of a chunk: its largest logit, and the sum of its tokens' weights.
struct Weight {
    float most, sum;
};

// The sum of the block, in its first thread.
static __device__ float sum_of_block(float sum)
{
    __shared__ float warps[THREADS / 32];
#pragma unroll
    for (u32 apart = 16; apart > 0; apart /= 2)
        sum += __shfl_xor_sync(~0u, sum, apart);
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
        for (u32 i = 1; i < THREADS / 32; i++)
            sum += warps[i];
    return sum;
}

// As `largest_of`, and weights[row − first][chunk]; NaN adds nothing. The product's pieces may be whole.
template <bool WHOLE>
static __device__ void weigh_of(const Pieces &sums, float *largest, u64 largest_len, u32 *ids, u64 ids_len,
                                float *weights, u64 weights_len, u32 allowed, u32 first, u32 chunks)
{
    __shared__ float most;
    const Part part(first, allowed, chunks);
    expect(blockDim.x == THREADS && part.end - part.begin <= QUADS * THREADS * 4);
    expect(blockIdx.x < largest_len && blockIdx.x < ids_len && (blockIdx.x + 1) * 2 <= weights_len);
    float logits[QUADS][4];
    Best<float> best = {LOWEST, ~0u};
#pragma unroll
    for (u32 quad = 0; quad < QUADS; quad++) {
        const u32 id = part.begin + (quad * THREADS + threadIdx.x) * 4;
        float4 four = make_float4(LOWEST, LOWEST, LOWEST, LOWEST);
        if (id < part.end)
            four = WHOLE ? sums.whole(part.row, id) : sums.four(part.row, id);
        const float its[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const bool there = id + i < part.end;
            logits[quad][i] = there && its[i] == its[i] ? its[i] : LOWEST;
            if (there)
                best.meet(logits[quad][i], id + i);
        }
    }
    best = best_of_block(best);
    if (threadIdx.x == 0) {
        largest[blockIdx.x] = best.score;
        ids[blockIdx.x] = best.id;
        most = best.score;
    }
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < QUADS * 4; i++)
        sum = __fadd_rn(sum, expf(logits[i / 4][i % 4] - most));
    sum = sum_of_block(sum);
    // Without a finite logit, the largest weighs nothing or more than everything.
    if (threadIdx.x == 0)
        ((Weight *)weights)[blockIdx.x] = {most, isfinite(most) ? sum : 1.0f};
}

#define WEIGH(NAME, WHOLE)                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                \
        NAME(const float *pieces, u64 pieces_len, float *largest, u64 largest_len, u32 *ids,             \
             u64 ids_len, float *weights, u64 weights_len, u32 steps, u32 workers, u32 rows,             \
             u32 columns, u32 allowed, u32 first, u32 chunks)                                            \
    {                                                                                                    \
        let_next_start();                                                                                \
        wait_for_earlier();                                                                              \
        const Pieces sums(pieces, pieces_len, steps, workers, rows, columns);                            \
        expect(first + gridDim.x / chunks <= rows && allowed <= columns && (!WHOLE || workers == 0));    \
        weigh_of<WHOLE>(sums, largest, largest_len, ids, ids_len, weights, weights_len, allowed, first,  \
                        chunks);                                                                         \
    }

WEIGH(weigh, false)
WEIGH(weigh_whole, true)

// As `chosen`, and sure[row − first] = how likely the row's token is; 0 where its logit is no number.
extern "C" __global__ void chosen_weighed(const float *largest, u64 largest_len, const u32 *ids, u64 ids_len,
                                          const float *temperatures, u64 temperatures_len,
                                          const double *scores, u64 scores_len, const u32 *drawn,
                                          u64 drawn_len, const u32 *rules, u64 rules_len, const u32 *masks,
                                          u64 masks_len, u32 *out, u64 out_len, const float *pieces,
                                          u64 pieces_len, const float *weights, u64 weights_len, float *sure,
                                          u64 sure_len, u32 first, u32 chunks, u32 allowed, u32 steps,
                                          u32 workers, u32 rows, u32 columns)
{
    let_next_start();
    wait_for_earlier();
    const u32 row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (row >= out_len)
        return;
    const u32 id = chosen_of(largest, largest_len, ids, ids_len, temperatures, temperatures_len, scores,
                             scores_len, drawn, drawn_len, rules, rules_len, masks, masks_len, row, first,
                             chunks, allowed);
    const Pieces sums(pieces, pieces_len, steps, workers, rows, columns);
    expect(first + row < rows && id < allowed && allowed <= columns);
    expect((u64)(row + 1) * chunks * 2 <= weights_len && row < sure_len);
    const float its = sums.one(first + row, id);
    const Weight *own = (const Weight *)weights + (u64)row * chunks;
    double weight = 0.0;
    for (u32 i = threadIdx.x % 32; i < chunks; i += 32)
        weight += own[i].sum * exp((double)own[i].most - (double)its);
#pragma unroll
    for (u32 apart = 16; apart > 0; apart /= 2)
        weight += __shfl_xor_sync(~0u, weight, apart);
    if (threadIdx.x % 32 == 0) {
        out[row] = id;
        sure[row] = isfinite(its) ? (float)(1.0 / weight) : 0.0f;
    }
}
