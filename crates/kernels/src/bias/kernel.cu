// Biases, added to the pieces of a product where they lie: to the first piece of each band.
// The others follow in order, so a row's sum starts with the bias whatever the number of rows.

// pieces[row][column] += bias[column].
extern "C" __global__ void add_bias(float *pieces, u64 pieces_len, const float *bias, u64 bias_len,
                                    u32 steps, u32 workers, u32 rows)
{
    let_next_start();
    wait_for_earlier();
    const u32 columns = (u32)bias_len;
    const Pieces sums(pieces, pieces_len, steps, workers, rows, columns);
    const u64 all = (u64)rows * columns;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < all; i += gridDim.x * (u64)blockDim.x) {
        const float *first;
        sums.all((u32)(i / columns), (u32)(i % columns), first);
        pieces[first - pieces] += bias[i % columns];
    }
}
