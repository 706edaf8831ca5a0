// Where a step's rows stand, and with it the begin of a pass: where its residual stream starts, too.

const u32 BEGINNERS = 1024; // threads of a row at most

// Of a row: its position (its request's length and its offset in the step), the slot of that position, and the
// cosines and sines of its angles, [rows][2][half]. A block of threads does it.
static __device__ void place(u64 row, const u32 *lengths, u64 lengths_len, const u32 *spans, u64 spans_len,
                             const u32 *offsets, u64 offsets_len, const u32 *firsts, u64 firsts_len,
                             const u32 *pages, u64 pages_len, const float *frequencies, u64 half,
                             u32 *positions, u64 positions_len, u32 *slots, u64 slots_len, float *angles,
                             u64 angles_len, u32 page_size, float scale)
{
    expect(row < spans_len && row < offsets_len && row < positions_len && row < slots_len);
    expect((row + 1) * 2 * half <= angles_len);
    const u32 span = spans[row];
    expect(span < lengths_len && span < firsts_len);
    const u32 position = lengths[span] + offsets[row];
    if (threadIdx.x == 0) {
        const u64 page = (u64)firsts[span] + position / page_size;
        expect(page < pages_len);
        positions[row] = position;
        slots[row] = pages[page] * page_size + position % page_size;
    }
    for (u64 i = threadIdx.x; i < half; i += blockDim.x) {
        // The angle is rounded to f32 first, its cosine and sine are not.
        const double angle = (double)__fmul_rn((float)position, frequencies[i]);
        double sine, cosine;
        sincos(angle, &sine, &cosine);
        angles[row * 2 * half + i] = (float)cosine * scale;
        angles[row * 2 * half + half + i] = (float)sine * scale;
    }
}

// x[row] = table[ids[row]], widened; the table is [tokens][width]. A block of threads does it, a thread four
// elements at a time.
static __device__ void embed(u64 row, const u16 *table, u64 table_len, const u32 *ids, u64 ids_len, float *x,
                             u64 x_len, u32 width)
{
    expect(row < ids_len && (row + 1) * width <= x_len && width % 4 == 0);
    const u64 first = (u64)ids[row] * width;
    expect(first + width <= table_len);
    for (u32 i = threadIdx.x * 4; i < width; i += blockDim.x * 4) {
        const uint2 four = *(const uint2 *)(table + first + i);
        *(float4 *)(x + row * width + i) = make_float4(widened(four.x & 0xffff), widened(four.x >> 16),
                                                       widened(four.y & 0xffff), widened(four.y >> 16));
    }
}

// Places every row. A block of threads is a row.
extern "C" __global__ void places(const u32 *lengths, u64 lengths_len, const u32 *spans, u64 spans_len,
                                  const u32 *offsets, u64 offsets_len, const u32 *firsts, u64 firsts_len,
                                  const u32 *pages, u64 pages_len, const float *frequencies, u64 half,
                                  u32 *positions, u64 positions_len, u32 *slots, u64 slots_len,
                                  float *angles, u64 angles_len, u32 page_size, float scale)
{
    wait_for_earlier();
    let_next_start();
    if (blockIdx.x < spans_len)
        place(blockIdx.x, lengths, lengths_len, spans, spans_len, offsets, offsets_len, firsts, firsts_len,
              pages, pages_len, frequencies, half, positions, positions_len, slots, slots_len, angles,
              angles_len, page_size, scale);
}

// Places every row and starts its residual stream: two blocks of threads are a row, one for each, which wait for
// nothing of one another. It is the begin of a pass: no later kernel starts before everything that was enqueued
// before this one has ended. So kernels of the pass may read at once what none of them writes, this one among them.
extern "C" __global__ void __launch_bounds__(BEGINNERS)
    begin(const u32 *lengths, u64 lengths_len, const u32 *spans, u64 spans_len, const u32 *offsets,
          u64 offsets_len, const u32 *firsts, u64 firsts_len, const u32 *pages, u64 pages_len,
          const float *frequencies, u64 half, u32 *positions, u64 positions_len, u32 *slots, u64 slots_len,
          float *angles, u64 angles_len, const u16 *table, u64 table_len, const u32 *ids, u64 ids_len,
          float *x, u64 x_len, u32 page_size, float scale, u32 width)
{
    wait_for_earlier();
    let_next_start();
    const u64 row = blockIdx.x / 2;
    if (row >= spans_len)
        return;
    if (blockIdx.x % 2 == 0)
        embed(row, table, table_len, ids, ids_len, x, x_len, width);
    else
        place(row, lengths, lengths_len, spans, spans_len, offsets, offsets_len, firsts, firsts_len, pages,
              pages_len, frequencies, half, positions, positions_len, slots, slots_len, angles, angles_len,
              page_size, scale);
}
