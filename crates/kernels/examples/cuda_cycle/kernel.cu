// Random weights, and the rate at which the card reads memory.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Random bf16 between -scale and scale, a function of seed and index.
extern "C" __global__ void fill(u16 *to, u64 len, u64 seed, float scale)
{
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < len; i += gridDim.x * (u64)blockDim.x) {
        u64 z = seed + (i + 1) * 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        const float x = (float)((z ^ (z >> 31)) >> 40) / 8388608.0f - 1.0f;
        to[i] = (u16)(__float_as_uint(x * scale) >> 16);
    }
}

// Reads everything, 16 bytes at a time; writes only what no sum can be.
extern "C" __global__ void read(const u16 *from, u64 from_len, u32 *found, u64 found_len)
{
    const uint4 *at = (const uint4 *)from;
    const u64 all = from_len / 8, stride = gridDim.x * (u64)blockDim.x;
    uint4 sums = make_uint4(0, 0, 0, 0);
    u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    for (; i + 7 * stride < all; i += 8 * stride) {
        uint4 v[8];
#pragma unroll
        for (u32 j = 0; j < 8; j++)
            v[j] = at[i + j * stride];
#pragma unroll
        for (u32 j = 0; j < 8; j++) {
            sums.x |= v[j].x;
            sums.y ^= v[j].y;
            sums.z += v[j].z;
            sums.w ^= v[j].w;
        }
    }
    for (; i < all; i += stride)
        sums.x |= at[i].x;
    if (sums.x == 0 && sums.y == 0x12345678 && sums.z == 0x9abcdef0 && sums.w == 1 && found_len > 0)
        found[0] = 1;
}
