// The choice of a token from the pieces of the head's product: the logits are never written whole.
// Three launches: the largest logit of each chunk of tokens, the best score with noise of each chunk,
// and the best chunk of each row. Equal logits and scores go to the smallest id, so no order of
// comparison matters.
//
// Where it is asked how likely the choices are, the first and the last are those of confidence.cu.
//
// With rules there are two more: `shape` writes the logits that penalties, additions and masks make of
// them, and `cut` finds the last token that top-k and top-p keep. Weights are whole numbers there, so that
// no order of addition matters either.

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

    // The best of the warp, in all of its lanes.
    __device__ void meet_lanes()
    {
#pragma unroll
        for (u32 apart = 16; apart > 0; apart /= 2) {
            const T other = __shfl_xor_sync(~0u, score, apart);
            meet(other, __shfl_xor_sync(~0u, id, apart));
        }
    }
};

// The best of the block, in its first thread.
template <typename T> static __device__ Best<T> best_of_block(Best<T> best)
{
    __shared__ T scores[THREADS / 32];
    __shared__ u32 ids[THREADS / 32];
    best.meet_lanes();
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

// Logits of a product that left its sums whole.
struct Whole {
    const Pieces &pieces;

    __device__ float4 four(u32 row, u32 column) const { return pieces.whole(row, column); }
};

// Logits that `shape` wrote: those of the rows from `first` on.
struct Shaped {
    const float *at;
    u32 first, stride;

    __device__ float4 four(u32 row, u32 column) const
    {
        return *(const float4 *)(at + (u64)(row - first) * stride + column);
    }
};

// largest[row][chunk] and ids[row][chunk] of the rows from `first` on; NaN counts as −∞.
template <typename Logits>
static __device__ void largest_of(const Logits &sums, float *largest, u64 largest_len, u32 *ids, u64 ids_len,
                                  u32 allowed, u32 first, u32 chunks)
{
    const Part part(first, allowed, chunks);
    expect(blockDim.x == THREADS && blockIdx.x < largest_len && blockIdx.x < ids_len);
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

extern "C" __global__ void __launch_bounds__(THREADS)
    largest(const float *pieces, u64 pieces_len, float *largest, u64 largest_len, u32 *ids, u64 ids_len,
            u32 steps, u32 workers, u32 rows, u32 columns, u32 allowed, u32 first, u32 chunks)
{
    let_next_start();
    wait_for_earlier();
    const Pieces sums(pieces, pieces_len, steps, workers, rows, columns);
    expect(first + gridDim.x / chunks <= rows && allowed <= columns);
    largest_of(sums, largest, largest_len, ids, ids_len, allowed, first, chunks);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    largest_whole(const float *pieces, u64 pieces_len, float *largest, u64 largest_len, u32 *ids, u64 ids_len,
                  u32 steps, u32 workers, u32 rows, u32 columns, u32 allowed, u32 first, u32 chunks)
{
    let_next_start();
    wait_for_earlier();
    const Pieces sums(pieces, pieces_len, steps, workers, rows, columns);
    expect(workers == 0 && first + gridDim.x / chunks <= rows && allowed <= columns);
    largest_of(Whole{sums}, largest, largest_len, ids, ids_len, allowed, first, chunks);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    largest_shaped(const float *shaped, u64 shaped_len, float *largest, u64 largest_len, u32 *ids,
                   u64 ids_len, u32 stride, u32 allowed, u32 first, u32 chunks)
{
    let_next_start();
    wait_for_earlier();
    expect((u64)gridDim.x / chunks * stride <= shaped_len && allowed <= stride && stride % 4 == 0);
    const Shaped logits = {shaped, first, stride};
    largest_of(logits, largest, largest_len, ids, ids_len, allowed, first, chunks);
}

// The best of a row's chunks: a warp looks at them, and all of its lanes learn it.
template <typename T>
static __device__ Best<T> best_chunk(const T *scores, const u32 *ids, u32 row, u32 chunks)
{
    Best<T> best = {LOWEST, ~0u};
    for (u32 i = threadIdx.x % 32; i < chunks; i += 32)
        best.meet(scores[(u64)row * chunks + i], ids[(u64)row * chunks + i]);
    best.meet_lanes();
    return best;
}

// What the filters leave of a row: the tokens before one in the order of likelihood, and that one, of
// those that score enough.
struct Cut {
    float logit;
    u32 id;
    float score;

    __device__ bool keeps(float its, u32 its_id, float its_score) const
    {
        return its_score >= score && (its > logit || (its == logit && its_id <= id));
    }
};

static __device__ float inverse_of(float temperature)
{
    return fmaxf(fminf(1.0f / temperature, 3.402823466e38f), 1e-30f);
}

// Rows that are sampled: their best score and its token, chunk by chunk. The token is chosen for the
// position `positions[row] + shift`. Without `cuts` all tokens are left.
template <typename Logits>
static __device__ void draw_from(const Logits &sums, const Cut *cuts, const float *largest, u64 largest_len,
                                 const u32 *ids, u64 ids_len, const float *temperatures,
                                 u64 temperatures_len, const u64 *seeds, u64 seeds_len,
                                 const u32 *positions, u64 positions_len, double *scores, u64 scores_len,
                                 u32 *drawn, u64 drawn_len, u32 allowed, u32 first, u32 chunks, u32 shift)
{
    const Part part(first, allowed, chunks);
    expect(blockDim.x == THREADS);
    expect(part.row < temperatures_len && part.row < seeds_len && part.row < positions_len);
    expect(gridDim.x <= largest_len && gridDim.x <= ids_len);
    expect(gridDim.x <= scores_len && gridDim.x <= drawn_len);
    const float temperature = temperatures[part.row];
    if (!(temperature > 0.0f))
        return;
    const float most = best_chunk(largest, ids, part.row - first, chunks).score;
    if (!isfinite(most))
        return;
    const Cut all = {LOWEST, ~0u, LOWEST}, cut = cuts ? cuts[part.row - first] : all;
    const float inverse = inverse_of(temperature);
    Best<double> best = {LOWEST, ~0u};
    for (u32 id = part.begin + threadIdx.x * 4; id < part.end; id += THREADS * 4) {
        const float4 four = sums.four(part.row, id);
        const float logits[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const float apart = (logits[i] - most) * inverse;
            if (id + i >= part.end || !(logits[i] > LOWEST) || !cut.keeps(logits[i], id + i, apart))
                continue;
            const u32 word = noise(seeds[part.row], positions[part.row] + shift, id + i);
            best.meet((double)apart + gumbel(word), id + i);
        }
    }
    best = best_of_block(best);
    if (threadIdx.x == 0) {
        scores[blockIdx.x] = best.score;
        drawn[blockIdx.x] = best.id;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    draw(const float *pieces, u64 pieces_len, const float *largest, u64 largest_len, const u32 *ids,
         u64 ids_len, const float *temperatures, u64 temperatures_len, const u64 *seeds, u64 seeds_len,
         const u32 *positions, u64 positions_len, double *scores, u64 scores_len, u32 *drawn,
         u64 drawn_len, u32 steps, u32 workers, u32 rows, u32 columns, u32 allowed, u32 first,
         u32 chunks, u32 shift)
{
    let_next_start();
    wait_for_earlier();
    const Pieces sums(pieces, pieces_len, steps, workers, rows, columns);
    expect(first + gridDim.x / chunks <= rows && allowed <= columns);
    draw_from(sums, nullptr, largest, largest_len, ids, ids_len, temperatures, temperatures_len, seeds,
              seeds_len, positions, positions_len, scores, scores_len, drawn, drawn_len, allowed, first,
              chunks, shift);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    draw_shaped(const float *shaped, u64 shaped_len, const float *cuts, u64 cuts_len, const float *largest,
                u64 largest_len, const u32 *ids, u64 ids_len, const float *temperatures,
                u64 temperatures_len, const u64 *seeds, u64 seeds_len, const u32 *positions,
                u64 positions_len, double *scores, u64 scores_len, u32 *drawn, u64 drawn_len, u32 stride,
                u32 allowed, u32 first, u32 chunks, u32 shift)
{
    let_next_start();
    wait_for_earlier();
    expect((u64)gridDim.x / chunks * stride <= shaped_len && gridDim.x / chunks * 3 <= cuts_len);
    expect(allowed <= stride && stride % 4 == 0);
    const Shaped logits = {shaped, first, stride};
    draw_from(logits, (const Cut *)cuts, largest, largest_len, ids, ids_len, temperatures, temperatures_len,
              seeds, seeds_len, positions, positions_len, scores, scores_len, drawn, drawn_len, allowed,
              first, chunks, shift);
}

const u32 NONE = ~0u;

// What is done to a row's logits and with its tokens, as the host's `Rule` writes it.
struct Rule {
    u32 top_k;
    float top_p, min_p;
    float repetition, frequency, presence;
    u32 before, befores;   // tokens that came before, with their counts in the output
    u32 after, afters;     // those that the row takes to have come after them, with theirs
    u32 addition, additions;
    u32 mask;              // NONE allows all

    // The logit of a token that came before, `count` times in the output. Each operation rounds.
    __device__ float penalized(float x, u32 count) const
    {
        x = x > 0.0f ? __fdiv_rn(x, repetition) : __fmul_rn(x, repetition);
        x = __fsub_rn(x, __fmul_rn(frequency, (float)count));
        return __fsub_rn(x, count > 0 ? presence : 0.0f);
    }
};

static __device__ bool allows(const u32 *mask, u32 id) { return !mask || (mask[id / 32] >> id % 32 & 1); }

// shaped[row − first][token] = the logits after penalties, additions and the mask. seen and additions are
// pairs, of a token and its count or what is added; masks is [masks][words].
extern "C" __global__ void __launch_bounds__(THREADS)
    shape(const float *pieces, u64 pieces_len, const u32 *rules, u64 rules_len, const u32 *seen, u64 seen_len,
          const u32 *additions, u64 additions_len, const u32 *masks, u64 masks_len, float *shaped,
          u64 shaped_len, u32 steps, u32 workers, u32 rows, u32 columns, u32 allowed, u32 first, u32 chunks,
          u32 stride)
{
    let_next_start();
    wait_for_earlier();
    const Pieces sums(pieces, pieces_len, steps, workers, rows, columns);
    const Part part(first, allowed, chunks);
    expect(blockDim.x == THREADS && part.row < rows && allowed <= columns && allowed <= stride);
    expect((u64)(part.row + 1) * (sizeof(Rule) / 4) <= rules_len && stride % 4 == 0);
    expect((u64)(part.row - first + 1) * stride <= shaped_len);
    const Rule rule = ((const Rule *)rules)[part.row];
    const u32 words = (allowed + 31) / 32;
    expect(((u64)rule.before + rule.befores) * 2 <= seen_len && ((u64)rule.after + rule.afters) * 2 <= seen_len);
    expect(((u64)rule.addition + rule.additions) * 2 <= additions_len);
    expect(rule.mask == NONE || (u64)(rule.mask + 1) * words <= masks_len);
    const u32 *mask = rule.mask == NONE ? nullptr : masks + (u64)rule.mask * words;
    float *row = shaped + (u64)(part.row - first) * stride;
    const auto own = [=](u32 id) { return id >= part.begin && id < part.end && allows(mask, id); };
    for (u32 id = part.begin + threadIdx.x * 4; id < part.end; id += THREADS * 4) {
        const float4 four = sums.four(part.row, id);
        float logits[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            if (id + i < part.end && !allows(mask, id + i))
                logits[i] = LOWEST;
        *(float4 *)(row + id) = make_float4(logits[0], logits[1], logits[2], logits[3]);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < rule.befores; i += THREADS) {
        const u32 *pair = seen + (u64)(rule.before + i) * 2;
        if (own(pair[0]))
            row[pair[0]] = rule.penalized(sums.one(part.row, pair[0]), pair[1]);
    }
    __syncthreads();
    // Once more for the few that come after, whose counts hold both.
    for (u32 i = threadIdx.x; i < rule.afters; i += THREADS) {
        const u32 *pair = seen + (u64)(rule.after + i) * 2;
        if (own(pair[0]))
            row[pair[0]] = rule.penalized(sums.one(part.row, pair[0]), pair[1]);
    }
    __syncthreads();
    // The first addition of a token does them all, in order.
    for (u32 i = threadIdx.x; i < rule.additions; i += THREADS) {
        const u32 *its = additions + (u64)rule.addition * 2, id = its[2 * i];
        if (!own(id))
            continue;
        bool first_one = true;
        for (u32 j = 0; j < i; j++)
            first_one = first_one && its[2 * j] != id;
        float x = row[id];
        for (u32 j = i; first_one && j < rule.additions; j++)
            if (its[2 * j] == id)
                x = __fadd_rn(x, __uint_as_float(its[2 * j + 1]));
        if (first_one)
            row[id] = x;
    }
}

const u32 CUTTERS = 1024; // threads that look for a row's cut
const u32 LIST = 4096;    // tokens that fit in shared memory

// Some tokens of a row: how many, and their weights in parts of 2⁴⁰ of the likeliest's.
struct Amount {
    u64 count, weight;

    __device__ Amount operator+(Amount other) const { return {count + other.count, weight + other.weight}; }
};

// A row's tokens in the order of likelihood. What is left of them lies before (key, id) in it, or is that.
struct Ranked {
    const float *logits;
    u32 allowed;
    float most, inverse;
    u32 key, id;
    // Tokens between two keys, once they are few.
    u32 *keys, *ids;
    u32 listed;
    Amount beyond; // the tokens that are likelier than those listed

    // Larger for a larger logit; 0 where there is none.
    __device__ static u32 key_of(float logit)
    {
        if (!(logit > LOWEST))
            return 0;
        const u32 bits = __float_as_uint(logit + 0.0f);
        return bits >> 31 ? ~bits : bits | 0x80000000u;
    }

    __device__ u64 weight_of(u32 key) const
    {
        const float logit = __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
        return __float2ull_rn(expf((logit - most) * inverse) * 1099511627776.0f);
    }

    __device__ bool left(u32 its, u32 its_id) const { return its > key || (its == key && its_id <= id); }

    // Of the tokens that are left and that `counts` counts; the same in every thread.
    template <typename Counts> __device__ Amount amount(Counts counts) const
    {
        __shared__ Amount warps[CUTTERS / 32];
        Amount sum = {0, 0};
        if (listed != NONE) {
            for (u32 i = threadIdx.x; i < listed; i += CUTTERS)
                if (counts(keys[i], ids[i]))
                    sum = sum + Amount{1, weight_of(keys[i])};
        } else {
            for (u32 at = threadIdx.x * 4; at < allowed; at += CUTTERS * 4) {
                const float4 four = *(const float4 *)(logits + at);
                const float its[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const u32 key = at + i < allowed ? key_of(its[i]) : 0;
                    if (key > 0 && left(key, at + i) && counts(key, at + i))
                        sum = sum + Amount{1, weight_of(key)};
                }
            }
        }
#pragma unroll
        for (u32 apart = 16; apart > 0; apart /= 2)
            sum = sum + Amount{__shfl_xor_sync(~0u, sum.count, apart), __shfl_xor_sync(~0u, sum.weight, apart)};
        __syncthreads();
        if (threadIdx.x % 32 == 0)
            warps[threadIdx.x / 32] = sum;
        __syncthreads();
        sum = {0, 0};
        for (u32 i = 0; i < CUTTERS / 32; i++)
            sum = sum + warps[i];
        return sum;
    }

    // Lists the tokens of the keys `from ..= to`.
    __device__ void list(u32 from, u32 to)
    {
        __shared__ u32 found;
        if (threadIdx.x == 0)
            found = 0;
        __syncthreads();
        for (u32 at = threadIdx.x; at < allowed; at += CUTTERS) {
            const u32 its = key_of(logits[at]);
            if (its >= from && its <= to && its > 0 && left(its, at)) {
                const u32 place = atomicAdd(&found, 1);
                keys[place] = its;
                ids[place] = at;
            }
        }
        __syncthreads();
        listed = found;
    }

    // Leaves the fewest leading tokens that reach `wanted`, which all of them do.
    template <typename Of> __device__ void keep(u64 wanted, Of of)
    {
        listed = NONE;
        beyond = {0, 0};
        u32 from = 0, to = ~0u;
        Amount all = amount([](u32, u32) { return true; });
        // The largest key from which on it is reached, bit by bit.
        for (u32 bit = 1u << 31; bit > 0; bit /= 2) {
            const u32 middle = from | bit;
            const Amount upper = beyond + amount([=](u32 key, u32) { return key >= middle && key <= to; });
            if (of(upper) >= wanted) {
                from = middle;
                all = upper;
            } else {
                to = middle - 1;
                beyond = upper;
            }
            if (listed == NONE && all.count - beyond.count <= LIST)
                list(from, to);
        }
        // Of tokens that are alike, the first.
        const u32 level = from;
        const u64 each = of(Amount{1, weight_of(level)}), missing = wanted - of(beyond);
        const u64 alike = all.count - beyond.count, some = (missing + each - 1) / each;
        u32 last = 0;
        if (some < alike) {
            for (u32 bit = 1u << 31; bit > 0; bit /= 2) {
                const u32 before = last | bit;
                if (amount([=](u32 key, u32 id) { return key == level && id < before; }).count < some)
                    last = before;
            }
        } else {
            last = key == level ? id : ~0u;
        }
        key = level;
        id = last;
    }
};

// cuts[row − first] = what top-k, top-p and min-p leave of the row. A block is a row.
extern "C" __global__ void __launch_bounds__(CUTTERS, 1)
    cut(const float *shaped, u64 shaped_len, const u32 *rules, u64 rules_len, const float *largest,
        u64 largest_len, const u32 *ids, u64 ids_len, const float *temperatures, u64 temperatures_len,
        float *cuts, u64 cuts_len, u32 stride, u32 allowed, u32 first, u32 chunks)
{
    __shared__ u32 listed_keys[LIST], listed_ids[LIST];
    let_next_start();
    wait_for_earlier();
    const u32 row = first + blockIdx.x;
    expect(blockDim.x == CUTTERS && allowed <= stride && stride % 4 == 0);
    expect((u64)(blockIdx.x + 1) * stride <= shaped_len && (blockIdx.x + 1) * 3 <= cuts_len);
    expect((u64)(row + 1) * (sizeof(Rule) / 4) <= rules_len && row < temperatures_len);
    expect((u64)(blockIdx.x + 1) * chunks <= (largest_len < ids_len ? largest_len : ids_len));
    const Rule rule = ((const Rule *)rules)[row];
    const float most = best_chunk(largest, ids, blockIdx.x, chunks).score, temperature = temperatures[row];
    Ranked ranked = {shaped + (u64)blockIdx.x * stride, allowed, most, inverse_of(temperature), 0, ~0u,
                     listed_keys, listed_ids, NONE, {0, 0}};
    if (temperature > 0.0f && isfinite(most)) {
        const auto everything = [](u32, u32) { return true; };
        if (rule.top_k > 0 && rule.top_k < ranked.amount(everything).count)
            ranked.keep(rule.top_k, [](Amount some) { return some.count; });
        if (rule.top_p < 1.0f) {
            ranked.listed = NONE;
            const u64 total = ranked.amount(everything).weight;
            const double part = ceil((double)fmaxf(rule.top_p, 0.0f) * (double)total);
            const u64 wanted = part < 1.0 ? 1 : (u64)part;
            ranked.keep(wanted < total ? wanted : total, [](Amount some) { return some.weight; });
        }
    }
    if (threadIdx.x == 0) {
        Cut cut = {LOWEST, ~0u, LOWEST};
        if (ranked.key > 0) {
            cut.logit = __uint_as_float(ranked.key >> 31 ? ranked.key & 0x7fffffffu : ~ranked.key);
            cut.id = ranked.id;
        }
        if (rule.min_p > 0.0f)
            cut.score = (float)log((double)fminf(rule.min_p, 1.0f));
        ((Cut *)cuts)[blockIdx.x] = cut;
    }
}

// The token of the best chunk of row `first + row`, which a warp looks for and all of its lanes learn. Where no
// logit is left, it is the first token that the row's mask allows.
static __device__ u32 chosen_of(const float *largest, u64 largest_len, const u32 *ids, u64 ids_len,
                                const float *temperatures, u64 temperatures_len, const double *scores,
                                u64 scores_len, const u32 *drawn, u64 drawn_len, const u32 *rules,
                                u64 rules_len, const u32 *masks, u64 masks_len, u32 row, u32 first,
                                u32 chunks, u32 allowed)
{
    const u64 end = (u64)(row + 1) * chunks;
    expect(end <= largest_len && end <= ids_len && end <= scores_len && end <= drawn_len);
    expect(first + row < temperatures_len);
    expect(rules_len == 0 || (u64)(first + row + 1) * (sizeof(Rule) / 4) <= rules_len);
    const Best<float> greedy = best_chunk(largest, ids, row, chunks);
    if (temperatures[first + row] > 0.0f && isfinite(greedy.score))
        return best_chunk(scores, drawn, row, chunks).id;
    if (rules_len == 0 || greedy.score != LOWEST)
        return greedy.id;
    const u32 mask = ((const Rule *)rules)[first + row].mask, words = (allowed + 31) / 32;
    u32 id = 0;
    for (u32 word = 0; mask != NONE && word < words; word++) {
        expect((u64)(mask + 1) * words <= masks_len);
        const u32 bits = masks[(u64)mask * words + word];
        if (bits) {
            id = word * 32 + __ffs(bits) - 1;
            break;
        }
    }
    return id < allowed ? id : 0;
}

// out[row − first] = the row's token. A warp is a row.
extern "C" __global__ void chosen(const float *largest, u64 largest_len, const u32 *ids, u64 ids_len,
                                  const float *temperatures, u64 temperatures_len, const double *scores,
                                  u64 scores_len, const u32 *drawn, u64 drawn_len, const u32 *rules,
                                  u64 rules_len, const u32 *masks, u64 masks_len, u32 *out, u64 out_len,
                                  u32 first, u32 chunks, u32 allowed)
{
    let_next_start();
    wait_for_earlier();
    const u32 row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (row >= out_len)
        return;
    const u32 id = chosen_of(largest, largest_len, ids, ids_len, temperatures, temperatures_len, scores,
                             scores_len, drawn, drawn_len, rules, rules_len, masks, masks_len, row, first,
                             chunks, allowed);
    if (threadIdx.x % 32 == 0)
        out[row] = id;
}
