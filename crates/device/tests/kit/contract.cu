// The kernels of the tests and of the ablation. A slice is a pointer and a length, every kernel
// works on any grid, and an id outside its table stops the program.

typedef unsigned int u32;
typedef unsigned long long u64;

static __device__ u64 first() { return blockIdx.x * (u64)blockDim.x + threadIdx.x; }
static __device__ u64 stride() { return gridDim.x * (u64)blockDim.x; }

static __device__ u64 now()
{
    u64 nanoseconds;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
    return nanoseconds;
}

// Keeps every block busy for so many nanoseconds from its start.
extern "C" __global__ void delay(u64 nanoseconds)
{
    const u64 start = now();
    while (now() - start < nanoseconds)
        __nanosleep(100);
}

// to[i] += from[i]
extern "C" __global__ void add(const u32 *from, u64 from_len, u32 *to, u64 to_len)
{
    const u64 len = from_len < to_len ? from_len : to_len;
    for (u64 i = first(); i < len; i += stride())
        to[i] += from[i];
}

// to[i] = table[ids[i]]
extern "C" __global__ void gather(const u32 *table, u64 table_len, const u32 *ids, u64 ids_len,
                                  u32 *to, u64 to_len)
{
    const u64 len = ids_len < to_len ? ids_len : to_len;
    for (u64 i = first(); i < len; i += stride()) {
        const u32 id = ids[i];
        if (id >= table_len)
            __trap();
        to[i] = table[id];
    }
}
