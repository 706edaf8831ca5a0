// The residual sum and the norm behind it, with a copy of the sum for a drafter.
// A block of threads is a row; how many threads it has follows from the width. Squares are summed by
// thread, then by lane, then by warp, so the order follows from the width alone.

const u32 THREADS = 1024; // at most
const u32 MOST = 2;       // quads of elements of a thread, where there are more than threads

// Whole warps, each thread with one quad of a row that has no more than threads.
static __device__ u32 threads_of(u32 quads) { return quads < THREADS ? (quads + 31) / 32 * 32 : THREADS; }

// The sum over the block, the same in every thread.
static __device__ float total(float x)
{
    __shared__ float sums[THREADS / 32];
#pragma unroll
    for (u32 apart = 16; apart > 0; apart /= 2)
        x += __shfl_xor_sync(~0u, x, apart);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0.0f;
#pragma unroll
    for (u32 i = 0; i < THREADS / 32; i++)
        if (i < blockDim.x / 32)
            x += sums[i];
    return x;
}

// x += the pieces of a product (none when `steps` is 0); out = x / sqrt(mean(x²) + eps) · weight. Where there
// is `kept`, [rows][stride], its columns from `first` on become x, narrowed. The rows of `out` lie in tiles or not,
// and the pieces may be whole.
template <bool TILES, bool WHOLE>
static __device__ void norm(float *x, u64 x_len, const float *pieces, u64 pieces_len, const float *weight,
                            u64 weight_len, u16 *out, u64 out_len, u16 *kept, u64 kept_len, u32 steps,
                            u32 workers, u32 rows, u32 first, u32 stride, float eps)
{
    let_next_start();
    const u32 width = (u32)weight_len, row = blockIdx.x, quads = width / 4;
    expect(blockDim.x == threads_of(quads) && row < rows && width % 4 == 0 && quads <= MOST * THREADS);
    const Lines<TILES> lines = {out, width};
    expect(x_len >= (u64)rows * width && out_len >= lines.elements(rows) && (!TILES || width % 32 == 0));
    const bool keeps = kept_len > 0;
    expect(!WHOLE || (workers == 0 && steps > 0));
    expect(!keeps || kept_len >= (u64)rows * stride && first + width <= stride && first % 4 == 0 && stride % 4 == 0);
    // No kernel writes weights.
    float4 weights[MOST] = {};
#pragma unroll
    for (u32 i = 0; i < MOST; i++)
        if (i * blockDim.x + threadIdx.x < quads)
            weights[i] = ((const float4 *)weight)[i * blockDim.x + threadIdx.x];
    wait_for_earlier();
    float4 *mine = (float4 *)(x + (u64)row * width);
    float4 held[MOST];
    float squares = 0.0f;
#pragma unroll
    for (u32 i = 0; i < MOST; i++) {
        const u32 quad = i * blockDim.x + threadIdx.x;
        if (quad >= quads)
            continue;
        float4 v = mine[quad];
        if (steps > 0) {
            const Pieces sums(pieces, pieces_len, steps, workers, rows, width);
            const float4 more = WHOLE ? sums.whole(row, quad * 4) : sums.four(row, quad * 4);
            v = make_float4(v.x + more.x, v.y + more.y, v.z + more.z, v.w + more.w);
            mine[quad] = v;
        }
        if (keeps)
            ((uint2 *)(kept + (u64)row * stride + first))[quad] = make_uint2(narrowed(v.x, v.y), narrowed(v.z, v.w));
        held[i] = v;
        squares += squares_of(v);
    }
    const float inverse = inverse_of(total(squares), width, eps);
#pragma unroll
    for (u32 i = 0; i < MOST; i++) {
        const u32 quad = i * blockDim.x + threadIdx.x;
        if (quad >= quads)
            continue;
        const uint2 both = normed(held[i], inverse, weights[i]);
        lines.put(row, quad * 4, both.x, both.y);
    }
}

#define NORM(NAME, TILES, WHOLE, REGISTERS)                                                              \
    extern "C" __global__ void REGISTERS                                                                 \
        NAME(float *x, u64 x_len, const float *pieces, u64 pieces_len, const float *weight,              \
             u64 weight_len, u16 *out, u64 out_len, u16 *kept, u64 kept_len, u32 steps, u32 workers,     \
             u32 rows, u32 first, u32 stride, float eps)                                                 \
    {                                                                                                    \
        norm<TILES, WHOLE>(x, x_len, pieces, pieces_len, weight, weight_len, out, out_len, kept,         \
                           kept_len, steps, workers, rows, first, stride, eps);                          \
    }

NORM(add_norm, false, false, __launch_bounds__(THREADS, 1))
NORM(add_norm_tiles, true, false, __launch_bounds__(THREADS, 1))
// Two rows are under way on a multiprocessor of 2048 threads.
NORM(add_norm_whole, true, true, __maxnreg__(32))
