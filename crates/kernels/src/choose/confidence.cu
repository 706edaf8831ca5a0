// How likely each chosen token was by the pieces of the head's product. Two launches: the sum of weights of
// each chunk of tokens, a token's weight being e^(its logit − that of the row's choice), and the row's sum.
//
// A row has one order of addition, whatever is beside it: a thread adds its tokens from the lowest id on, in
// floats; a warp its threads in pairs; then warps and chunks one after the other, in doubles.

const u32 THREADS = 256;
const u32 CHUNK = 2048; // tokens that a block of threads looks at, as cuda.rs counts them

// weights[row − first][chunk] = the chunk's sum; ∞ where the choice's logit is no number. NaN adds nothing. The
// product's pieces may be whole.
template <bool WHOLE>
static __device__ void weigh_of(const float *pieces, u64 pieces_len, const u32 *chosen, u64 chosen_len, double *weights,
                                u64 weights_len, u32 steps, u32 workers, u32 rows, u32 columns, u32 allowed, u32 first)
{
    __shared__ float warps[THREADS / 32];
    let_next_start();
    wait_for_earlier();
    const Pieces sums(pieces, pieces_len, steps, workers, rows, columns);
    const u32 chunks = (allowed + CHUNK - 1) / CHUNK, at = blockIdx.x / chunks, row = first + at;
    const u32 begin = blockIdx.x % chunks * CHUNK, end = min(begin + CHUNK, allowed);
    expect(blockDim.x == THREADS && row < rows && allowed <= columns);
    expect(!WHOLE || workers == 0);
    expect(at < chosen_len && blockIdx.x < weights_len && chosen[at] < allowed);
    const float its = sums.one(row, chosen[at]);
    float sum = 0.0f;
    for (u32 id = begin + threadIdx.x * 4; id < end; id += THREADS * 4) {
        const float4 four = WHOLE ? sums.whole(row, id) : sums.four(row, id);
        const float logits[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            if (id + i < end && logits[i] == logits[i])
                sum += expf(logits[i] - its);
    }
#pragma unroll
    for (u32 apart = 16; apart > 0; apart /= 2)
        sum += __shfl_xor_sync(~0u, sum, apart);
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    double weight = isfinite(its) ? 0.0 : __int_as_float(0x7f800000);
    for (u32 i = 0; isfinite(its) && i < THREADS / 32; i++)
        weight += warps[i];
    weights[blockIdx.x] = weight;
}

#define WEIGH(NAME, WHOLE)                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                \
        NAME(const float *pieces, u64 pieces_len, const u32 *chosen, u64 chosen_len, double *weights,    \
             u64 weights_len, u32 steps, u32 workers, u32 rows, u32 columns, u32 allowed, u32 first)     \
    {                                                                                                    \
        weigh_of<WHOLE>(pieces, pieces_len, chosen, chosen_len, weights, weights_len, steps, workers,    \
                        rows, columns, allowed, first);                                                  \
    }

WEIGH(weigh, false)
WEIGH(weigh_whole, true)

// out[row − first] = how likely the row's choice was. A thread is a row.
extern "C" __global__ void confidence(const double *weights, u64 weights_len, float *out, u64 out_len,
                                      u32 chunks)
{
    let_next_start();
    wait_for_earlier();
    const u32 row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= out_len)
        return;
    expect((u64)(row + 1) * chunks <= weights_len);
    double weight = 0.0;
    for (u32 i = 0; i < chunks; i++)
        weight += weights[(u64)row * chunks + i];
    out[row] = (float)(1.0 / weight);
}
