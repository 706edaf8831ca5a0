// Embedding lookup: the start of the residual stream, and of a pass: no later kernel starts before
// everything that was enqueued before this one has ended. So kernels of the pass may read at once what
// none of them writes.

// x[row] = table[ids[row]], widened; the table is [tokens][width]. A block of threads is a row, a thread four elements
// at a time.
extern "C" __global__ void embed(const u16 *table, u64 table_len, const u32 *ids, u64 ids_len, float *x,
                                 u64 x_len, u32 width)
{
    wait_for_earlier();
    let_next_start();
    expect(x_len >= ids_len * width && width % 4 == 0);
    for (u64 row = blockIdx.x; row < ids_len; row += gridDim.x) {
        const u64 first = (u64)ids[row] * width;
        expect(first + width <= table_len);
        for (u32 i = threadIdx.x * 4; i < width; i += blockDim.x * 4) {
            const uint2 four = *(const uint2 *)(table + first + i);
            *(float4 *)(x + row * width + i) = make_float4(widened(four.x & 0xffff), widened(four.x >> 16),
                                                           widened(four.y & 0xffff), widened(four.y >> 16));
        }
    }
}
