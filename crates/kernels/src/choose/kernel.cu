// The choice of a token from the pieces of the head's product: the logits are never written whole.
// Three launches: the largest logit of each chunk of tokens, the best score with noise of each chunk,
// and the best chunk of each row. Equal logits and scores go to the smallest id, so no order of
// comparison matters.

const u32 THREADS = 256;
#define LOWEST (-__int_as_float(0x7f800000))

// Philox 4×32 with 10 rounds (Salmon et al. 2011); the word of one token, see the contract.
static __device__ u32 noise(u64 seed, u32 position, u32 token)
{
    u32 c[4] = {token / 64 * 16 + token % 16, position, 0, 0};
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
    for (u32 round = 0; round < 10; round++) {
        const u32 high0 = __umulhi(0xd2511f53u, c[0]), low0 = 0xd2511f53u * c[0];
        const u32 high2 = __umulhi(0xcd9e8d57u, c[2]), low2 = 0xcd9e8d57u * c[2];
        const u32 next[4] = {high2 ^ c[1] ^ k0, low2, high0 ^ c[3] ^ k1, low0};
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            c[i] = next[i];
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    const u32 word = token / 16 % 4;
    return word == 0 ? c[0] : word == 1 ? c[1] : word == 2 ? c[2] : c[3];
}

static __device__ double gumbel(u32 word)
{
    const double most = 1.0 - 1.0 / 16777216.0, u = ((double)word + 0.5) / 4294967296.0;
    return -log(-log1p(-(double)(float)(u < most ? u : most)));
}

// A token and its score.
template <typename T> struct Best {
    T score;
    u32 id;

    __device__ void meet(T other, u32 its)
    {
        if (other > score || (other == score && its < id)) {
            score = other;
            id = its;
        }
    }
};

// The best of the block, in its first thread.
template <typename T> static __device__ Best<T> best_of_block(Best<T> best)
{
    __shared__ T scores[THREADS / 32];
    __shared__ u32 ids[THREADS / 32];
#pragma unroll
    for (u32 apart = 16; apart > 0; apart /= 2) {
        const T other = __shfl_xor_sync(~0u, best.score, apart);
        best.meet(other, __shfl_xor_sync(~0u, best.id, apart));
    }
    if (threadIdx.x % 32 == 0) {
        scores[threadIdx.x / 32] = best.score;
        ids[threadIdx.x / 32] = best.id;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        for (u32 i = 1; i < THREADS / 32; i++)
            best.meet(scores[i], ids[i]);
    return best;
}

// What a block of threads looks at: row `first + blockIdx.x / chunks`, and of it one chunk of tokens.
struct Part {
    u32 row, begin, end;

    __device__ Part(u32 first, u32 allowed, u32 chunks)
    {
        const u32 quads = (allowed + 3) / 4, each = (quads + chunks - 1) / chunks * 4;
        const u32 chunk = blockIdx.x % chunks;
        row = first + blockIdx.x / chunks;
        begin = chunk * each < allowed ? chunk * each : allowed;
        end = begin + each < allowed ? begin + each : allowed;
    }
};

// largest[row][chunk] and ids[row][chunk] of the rows from `first` on; NaN counts as −∞.
extern "C" __global__ void __launch_bounds__(THREADS)
    largest(const float *pieces, u64 pieces_len, float *largest, u64 largest_len, u32 *ids, u64 ids_len,
            u32 steps, u32 workers, u32 rows, u32 columns, u32 allowed, u32 first, u32 chunks)
{
    let_next_start();
    wait_for_earlier();
    const Pieces sums(pieces, pieces_len, steps, workers, rows, columns);
    const Part part(first, allowed, chunks);
    expect(blockDim.x == THREADS && part.row < rows && allowed <= columns);
    expect(blockIdx.x < largest_len && blockIdx.x < ids_len);
    Best<float> best = {LOWEST, ~0u};
    for (u32 id = part.begin + threadIdx.x * 4; id < part.end; id += THREADS * 4) {
        const float4 four = sums.four(part.row, id);
        const float logits[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            if (id + i < part.end)
                best.meet(logits[i] == logits[i] ? logits[i] : LOWEST, id + i);
    }
    best = best_of_block(best);
    if (threadIdx.x == 0) {
        largest[blockIdx.x] = best.score;
        ids[blockIdx.x] = best.id;
    }
}

static __device__ Best<float> best_chunk(const float *largest, const u32 *ids, u32 row, u32 chunks)
{
    Best<float> best = {LOWEST, ~0u};
    for (u32 i = 0; i < chunks; i++)
        best.meet(largest[(u64)row * chunks + i], ids[(u64)row * chunks + i]);
    return best;
}

// Rows that are sampled: their best score and its token, chunk by chunk. The token is chosen for the
// position `positions[row] + shift`.
extern "C" __global__ void __launch_bounds__(THREADS)
    draw(const float *pieces, u64 pieces_len, const float *largest, u64 largest_len, const u32 *ids,
         u64 ids_len, const float *temperatures, u64 temperatures_len, const u64 *seeds, u64 seeds_len,
         const u32 *positions, u64 positions_len, double *scores, u64 scores_len, u32 *drawn,
         u64 drawn_len, u32 steps, u32 workers, u32 rows, u32 columns, u32 allowed, u32 first,
         u32 chunks, u32 shift)
{
    let_next_start();
    wait_for_earlier();
    const Part part(first, allowed, chunks);
    expect(blockDim.x == THREADS && part.row < rows && allowed <= columns);
    expect(part.row < temperatures_len && part.row < seeds_len && part.row < positions_len);
    expect(gridDim.x <= largest_len && gridDim.x <= ids_len);
    expect(gridDim.x <= scores_len && gridDim.x <= drawn_len);
    const float temperature = temperatures[part.row];
    const float most = best_chunk(largest, ids, part.row - first, chunks).score;
    if (!(temperature > 0.0f) || !isfinite(most))
        return;
    const Pieces sums(pieces, pieces_len, steps, workers, rows, columns);
    const float inverse = fminf(1.0f / temperature, 3.402823466e38f);
    Best<double> best = {LOWEST, ~0u};
    for (u32 id = part.begin + threadIdx.x * 4; id < part.end; id += THREADS * 4) {
        const float4 four = sums.four(part.row, id);
        const float logits[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            if (id + i >= part.end || !(logits[i] > LOWEST))
                continue;
            const u32 word = noise(seeds[part.row], positions[part.row] + shift, id + i);
            const double score = (double)((logits[i] - most) * inverse) + gumbel(word);
            best.meet(score, id + i);
        }
    }
    best = best_of_block(best);
    if (threadIdx.x == 0) {
        scores[blockIdx.x] = best.score;
        drawn[blockIdx.x] = best.id;
    }
}

// out[row − first] = the best chunk's token. A thread is a row.
extern "C" __global__ void chosen(const float *largest, u64 largest_len, const u32 *ids, u64 ids_len,
                                  const float *temperatures, u64 temperatures_len, const double *scores,
                                  u64 scores_len, const u32 *drawn, u64 drawn_len, u32 *out, u64 out_len,
                                  u32 first, u32 chunks)
{
    let_next_start();
    wait_for_earlier();
    const u32 row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= out_len)
        return;
    const u64 end = (u64)(row + 1) * chunks;
    expect(end <= largest_len && end <= ids_len && end <= scores_len && end <= drawn_len);
    expect(first + row < temperatures_len);
    const Best<float> greedy = best_chunk(largest, ids, row, chunks);
    u32 id = greedy.id;
    if (temperatures[first + row] > 0.0f && isfinite(greedy.score)) {
        Best<double> best = {LOWEST, ~0u};
        for (u32 i = 0; i < chunks; i++)
            best.meet(scores[(u64)row * chunks + i], drawn[(u64)row * chunks + i]);
        id = best.id;
    }
    out[row] = id;
}
