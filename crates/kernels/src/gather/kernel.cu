// Rows by their numbers.

// out[i] = from[numbers[i]], rows of `width` elements, 16 bytes at a time. A block of threads is a row.
extern "C" __global__ void rows_of(const u16 *from, u64 from_len, const u32 *numbers, u64 numbers_len, u16 *out,
                                   u64 out_len, u32 width)
{
    wait_for_earlier();
    expect(width % 8 == 0 && blockIdx.x < numbers_len && out_len >= numbers_len * width);
    const u64 first = (u64)numbers[blockIdx.x] * width;
    expect(first + width <= from_len);
    for (u32 i = threadIdx.x * 8; i < width; i += blockDim.x * 8)
        *(uint4 *)(out + (u64)blockIdx.x * width + i) = *(const uint4 *)(from + first + i);
}
