// Rows by their numbers, words from one place to one or two others, and words in the place of what stands for them.
// Each waits for all before it, and nothing starts before it has ended: what comes later may read at once what was
// brought here.

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

// A marked word depends on what became of a block, whose number stands in the bits 24 to 30: with the highest bit it
// stands for the block's anchor, without for the lower bits less the block's refused rows.
static __device__ u32 settled(u32 word, const u32 *refused, u64 refused_len, const u32 *anchors, u64 anchors_len)
{
    const u32 block = word >> 24 & 127, most = word & 0xffffff;
    expect(block < refused_len && block < anchors_len);
    if (word >> 31)
        return anchors[block];
    expect(most >= refused[block]);
    return most - refused[block];
}

// The first words go to `first`, as many as it holds, the others to `rest`; those that have a bit in `marks` as what
// became of blocks says. Either place may be the host's.
extern "C" __global__ void words_to(const u32 *from, u64 from_len, const u32 *marks, u64 marks_len,
                                    const u32 *refused, u64 refused_len, const u32 *anchors, u64 anchors_len,
                                    u32 *first, u64 first_len, u32 *rest, u64 rest_len)
{
    wait_for_earlier();
    expect(first_len + rest_len == from_len && (marks_len == 0 || marks_len * 32 >= from_len));
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < from_len; i += gridDim.x * (u64)blockDim.x) {
        u32 word = from[i];
        if (marks_len > 0 && (marks[i / 32] >> i % 32 & 1))
            word = settled(word, refused, refused_len, anchors, anchors_len);
        if (i < first_len)
            first[i] = word;
        else
            rest[i - first_len] = word;
    }
}

// A word whose highest bit is set is the number, below that bit, of one of `from`, whose place it takes.
extern "C" __global__ void resolve(const u32 *from, u64 from_len, u32 *words, u64 words_len)
{
    wait_for_earlier();
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words_len; i += gridDim.x * (u64)blockDim.x) {
        const u32 word = words[i];
        if (word >> 31 == 0)
            continue;
        const u32 number = word & 0x7fffffff;
        expect(number < from_len);
        words[i] = from[number];
    }
}
