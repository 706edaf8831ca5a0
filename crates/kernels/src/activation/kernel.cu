// SwiGLU of the pieces of one product whose columns are gates and ups, woven as Woven says.

// silu(gate) · up of four elements of a row, as two words.
template <bool WHOLE> static __device__ uint2 four(const Pieces &sums, u32 row, u32 element)
{
    const u32 column = Woven::column(element);
    float4 low, high;
    if (WHOLE) {
        low = sums.whole(row, column), high = sums.whole(row, column + Woven::NEXT);
    } else {
        const Asked lows = sums.ask(row, column), highs = sums.ask(row, column + Woven::NEXT);
        low = sums.sum(lows), high = sums.sum(highs);
    }
    return make_uint2(Woven::two(low), Woven::two(high));
}

// out[row][i] = silu(gate) · up; out has rows of `width`, the product 2 width columns.
extern "C" __global__ void swiglu(const float *pieces, u64 pieces_len, u16 *out, u64 out_len, u32 steps,
                                  u32 workers, u32 rows, u32 width)
{
    let_next_start();
    const Lines<false> lines = {out, width};
    expect(width % 32 == 0 && out_len >= lines.elements(rows));
    wait_for_earlier();
    const Pieces sums(pieces, pieces_len, steps, workers, rows, 2 * width);
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x, row = i / (width / 4), element = i % (width / 4) * 4;
    if (row >= rows)
        return;
    const uint2 both = four<false>(sums, row, element);
    lines.put(row, element, both.x, both.y);
}

// The same with `out` in tiles, of pieces that may be whole. A warp has 32 elements of 8 rows, a lane 8 of one: what it
// writes of each two lies side by side in a tile.
template <bool WHOLE>
static __device__ void in_tiles(const float *pieces, u64 pieces_len, u16 *out, u64 out_len, u32 steps, u32 workers,
                                u32 rows, u32 width)
{
    let_next_start();
    const Lines<true> lines = {out, width};
    expect(!WHOLE || workers == 0);
    expect(width % 32 == 0 && out_len >= lines.elements(rows));
    wait_for_earlier();
    const Pieces sums(pieces, pieces_len, steps, workers, rows, 2 * width);
    const u32 warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    const u32 row = warp / (width / 32) * 8 + lane / 4, element = warp % (width / 32) * 32 + lane % 4 * 8;
    if (row >= rows)
        return;
    const uint2 low = four<WHOLE>(sums, row, element), high = four<WHOLE>(sums, row, element + 4);
    lines.put(row, element, low.x, low.y);
    lines.put(row, element + 4, high.x, high.y);
}

#define SWIGLU(NAME, WHOLE)                                                                              \
    extern "C" __global__ void NAME(const float *pieces, u64 pieces_len, u16 *out, u64 out_len,          \
                                    u32 steps, u32 workers, u32 rows, u32 width)                         \
    {                                                                                                    \
        in_tiles<WHOLE>(pieces, pieces_len, out, out_len, steps, workers, rows, width);                  \
    }

SWIGLU(swiglu_tiles, false)
SWIGLU(swiglu_whole, true)
