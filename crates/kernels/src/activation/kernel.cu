// SwiGLU of the pieces of one product whose columns are the gates and then the ups.

// out[row][i] = silu(gate) · up; out has rows of `width`, in tiles or not, the product 2 width columns, whose pieces
// may be whole.
template <bool TILES, bool WHOLE>
static __device__ void gated(const float *pieces, u64 pieces_len, u16 *out, u64 out_len, u32 steps, u32 workers,
                             u32 rows, u32 width)
{
    let_next_start();
    const Lines<TILES> lines = {out, width};
    expect(!WHOLE || workers == 0);
    expect(width % (TILES ? 32 : 4) == 0 && out_len >= lines.elements(rows));
    wait_for_earlier();
    const Pieces sums(pieces, pieces_len, steps, workers, rows, 2 * width);
    const u32 quads = width / 4, all = rows * quads;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < all; i += gridDim.x * blockDim.x) {
        const u32 row = i / quads, column = i % quads * 4;
        float4 gate, up;
        if (WHOLE) {
            gate = sums.whole(row, column), up = sums.whole(row, column + width);
        } else {
            const Asked gates = sums.ask(row, column), ups = sums.ask(row, column + width);
            gate = sums.sum(gates), up = sums.sum(ups);
        }
        const float a = gate.x / (1.0f + expf(-gate.x)) * up.x;
        const float b = gate.y / (1.0f + expf(-gate.y)) * up.y;
        const float c = gate.z / (1.0f + expf(-gate.z)) * up.z;
        const float d = gate.w / (1.0f + expf(-gate.w)) * up.w;
        lines.put(row, column, narrowed(a, b), narrowed(c, d));
    }
}

#define SWIGLU(NAME, TILES, WHOLE)                                                                       \
    extern "C" __global__ void NAME(const float *pieces, u64 pieces_len, u16 *out, u64 out_len,          \
                                    u32 steps, u32 workers, u32 rows, u32 width)                         \
    {                                                                                                    \
        gated<TILES, WHOLE>(pieces, pieces_len, out, out_len, steps, workers, rows, width);              \
    }

SWIGLU(swiglu, false, false)
SWIGLU(swiglu_tiles, true, false)
SWIGLU(swiglu_whole, true, true)
