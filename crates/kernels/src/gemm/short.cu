// Products of few rows with weights so small that all multiprocessors together hold one: what stands before and behind
// such a product takes longer than itself, so a kernel does that too. A block of threads has some tiles of columns and
// all of k, so its sums are whole. Its weight comes while the kernel before still runs.
//
// The weight is packed as kernel.cu says. k is cut into phases where workers cut it there, if they are as many for each
// band, and the sums of phases are added in order: the same bits.

const u32 STEP = 32;             // of k
const u32 TILE = 16;             // columns
const u32 PART = TILE * STEP * 2; // bytes of a step of a tile
const u32 LINE = STEP * 2;       // of a row
const u32 THREADS = 512;
const u32 PHASES = 4;            // of k, a warp each
const u32 GROUPS = THREADS / 32 / PHASES;

// What a block of threads has: up to `most` of `all` rows, those behind `above`, and `each` of `tiles` from `first` on, or
// as many pairs of tiles, whose second ones are `apart` further: pairs of the first `apart` tiles, of the next `apart`
// behind their second ones, and so on.
struct Cut {
    u32 steps, tiles, apart, rows, above, first, own;

    __device__ Cut(u32 steps, u32 most, u32 all, u32 tiles, u32 each, u32 apart = 0)
        : steps(steps), tiles(tiles), apart(apart)
    {
        const u32 parts = (tiles + each - 1) / each;
        first = blockIdx.x % parts * each, above = blockIdx.x / parts * most;
        expect(blockDim.x == THREADS && above <= all && steps >= PHASES);
        rows = all - above < most ? all - above : most;
        own = tiles - first < each ? tiles - first : each;
        // A thread has four columns of a row in the end.
        expect(rows * own * (TILE / 4) <= THREADS);
    }

    __device__ u32 slots() const { return apart > 0 ? own * 2 : own; }

    // The tile of the weight that lies in a slot.
    __device__ u32 tile(u32 slot) const
    {
        if (apart == 0)
            return first + slot;
        const u32 pair = first + slot / 2;
        return pair / apart * apart + pair + (slot % 2 != 0 ? apart : 0);
    }

    // Whether this thread has four columns, of which row, and where from its tiles' first column on.
    __device__ bool has() const { return threadIdx.x < rows * own * (TILE / 4); }
    __device__ u32 row() const { return threadIdx.x / (own * (TILE / 4)); }
    __device__ u32 column() const { return threadIdx.x % (own * (TILE / 4)) * 4; }
};

static __device__ u32 shared_bytes()
{
    u32 bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

// What lies in shared memory: the weight [slot][step][PART], the rows [step][row][LINE], the sums of each phase
// [phase][row][stride], the weights of a norm, and what threads turn their columns by. Rows are 8 N.
template <u32 N> struct Room {
    u32 weight, lines, stride;
    float *sums;
    float4 *norms;

    // With so many floats from the weights of a norm on.
    __device__ Room(const Cut &cut, u32 floats)
    {
        extern __shared__ __align__(128) char shared[];
        const u32 lines_at = cut.slots() * cut.steps * PART, sums_at = lines_at + cut.steps * N * 8 * LINE;
        stride = cut.slots() * TILE + 4;
        const u32 norms_at = sums_at + PHASES * N * 8 * stride * 4;
        expect(norms_at + floats * 4 <= shared_bytes());
        weight = address(shared);
        lines = weight + lines_at;
        sums = (float *)(shared + sums_at);
        norms = (float4 *)(shared + norms_at);
    }

    // Asks for the weight, which no kernel writes.
    __device__ void ask(const Cut &cut, const u16 *from, u64 len) const
    {
        expect(len >= (u64)((cut.tiles * (cut.apart > 0 ? 2 : 1) + 7) / 8) * cut.steps * 8 * (PART / 2));
        const u32 piece = threadIdx.x % (PART / 16) * 16;
        // Nothing is divided for a copy: that takes longer than to copy.
        for (u32 slot = 0; slot < cut.slots(); slot++) {
            const u32 tile = cut.tile(slot), to = weight + slot * cut.steps * PART + piece;
            const char *columns = (const char *)from + ((u64)(tile / 8) * cut.steps * 8 + tile % 8) * PART + piece;
            for (u32 step = threadIdx.x / (PART / 16); step < cut.steps; step += THREADS / (PART / 16))
                copy_async(to + step * PART, columns + step * 8 * PART);
        }
        commit_copies();
    }

    // The weights of a norm, before anything else.
    __device__ void ask_norm(const float *from, u32 width) const
    {
        for (u32 i = threadIdx.x; i < width / 4; i += THREADS)
            copy_async(address(norms + i), from + i * 4);
        commit_copies();
    }

    // Asks for rows of x. A thread's are all parts of one row.
    __device__ void ask_lines(const Cut &cut, const u16 *x) const
    {
        const u32 row = threadIdx.x / 4 % (N * 8), piece = threadIdx.x % 4 * 16;
        const char *from = (const char *)x + (u64)(cut.above + row) * cut.steps * LINE + piece;
        if (row < cut.rows)
            for (u32 step = threadIdx.x / (N * 32); step < cut.steps; step += THREADS / (N * 32))
                copy_async(lines + (step * N * 8 + row) * LINE + piece, from + step * LINE);
        commit_copies();
    }

    // Puts the norms of rows of the stream where rows of x are, in the order of sums that norm/kernel.cu has. A lane
    // has QUADS of a row at most.
    template <u32 QUADS> __device__ void norm(const Cut &cut, const float *stream, float eps) const
    {
        const u32 width = cut.steps * STEP, quads = width / 4, lane = threadIdx.x % 32;
        for (u32 row = threadIdx.x / 32; row < cut.rows; row += THREADS / 32) {
            float4 held[QUADS];
#pragma unroll
            for (u32 i = 0; i < QUADS; i++) {
                const u32 quad = i * 32 + lane;
                held[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (quad < quads)
                    held[i] = ((const float4 *)(stream + (u64)(cut.above + row) * width))[quad];
            }
            float squares[QUADS], total = 0.0f;
#pragma unroll
            for (u32 i = 0; i < QUADS; i++)
                squares[i] = squares_of(held[i]);
#pragma unroll
            for (u32 apart = 16; apart > 0; apart /= 2)
#pragma unroll
                for (u32 i = 0; i < QUADS; i++)
                    if (i * 32 < quads)
                        squares[i] += __shfl_xor_sync(~0u, squares[i], apart);
#pragma unroll
            for (u32 i = 0; i < QUADS; i++)
                if (i * 32 < quads)
                    total += squares[i];
            const float inverse = inverse_of(total, width, eps);
#pragma unroll
            for (u32 i = 0; i < QUADS; i++) {
                const u32 quad = i * 32 + lane;
                if (quad >= quads)
                    continue;
                const uint2 both = normed(held[i], inverse, norms[quad]);
                const u32 to = lines + (quad / 8 * N * 8 + row) * LINE + quad % 8 * 8;
                asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(both.x), "r"(both.y) : "memory");
            }
        }
    }

    // Sums of all phases, a warp a phase of some tiles and of 8 rows at a time.
    __device__ void multiply(const Cut &cut) const
    {
        const u32 warp = threadIdx.x / 32, phase = warp % PHASES, lane = threadIdx.x % 32;
        const u32 begin = cut.steps * phase / PHASES, end = cut.steps * (phase + 1) / PHASES;
        for (u32 unit = warp / PHASES; unit < cut.slots() * N; unit += GROUPS) {
            const u32 slot = unit / N, n = unit % N;
            const u32 columns = weight + slot * cut.steps * PART + place_of(lane), x_at = lines + n * 8 * LINE + lane * 16;
            float s[4] = {};
#pragma unroll 4
            for (u32 step = begin; step < end; step++) {
                const uint4 low = fragment(columns + step * PART), high = fragment(columns + step * PART + 256);
                const uint4 x = loaded(x_at + step * N * 8 * LINE);
                mma(s, low.x, low.y, low.z, low.w, x.x, x.y);
                mma(s, high.x, high.y, high.z, high.w, x.z, x.w);
            }
            float *to = sums + (phase * N * 8 + n * 8 + lane % 4 * 2) * stride + slot * TILE + lane / 4 * 2;
            *(float2 *)to = make_float2(s[0], s[2]);
            *(float2 *)(to + stride) = make_float2(s[1], s[3]);
        }
    }

    // Four columns of a row, the bias with the first phase.
    __device__ float4 sum(u32 row, u32 column, float4 bias) const
    {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (u32 phase = 0; phase < PHASES; phase++) {
            float4 part = *(const float4 *)(sums + (phase * N * 8 + row) * stride + column);
            if (phase == 0)
                Pieces::add(part, bias);
            Pieces::add(sum, part);
        }
        return sum;
    }

    // All that was asked for is there, and what this block of threads has written.
    __device__ static void settle()
    {
        await_copies<0>();
        __syncthreads();
    }

    // Waits for the weights of a norm, and then for the kernel before.
    __device__ static void settle_norm()
    {
        await_copies<1>();
        __syncthreads();
        wait_for_earlier();
    }
};

// Four of `bias`, which no kernel writes; nothing where there is none.
static __device__ float4 four_of(const float *bias, u64 len, u32 column)
{
    if (len == 0)
        return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    expect(column + 4 <= len);
    return *(const float4 *)(bias + column);
}

// out = rms_norm(stream) · weightᵀ + bias, left whole.
template <u32 N, u32 QUADS>
static __device__ void of_normed(const u16 *weight, u64 weight_len, const float *stream, u64 stream_len,
                                 const float *norms, u64 norms_len, const float *bias, u64 bias_len, float *out,
                                 u64 out_len, u32 rows, u32 tiles, u32 each, float eps)
{
    // One row is soon done. Of more, the kernels behind would wait on multiprocessors that those in front of them
    // need.
    if (rows <= 8)
        let_next_start();
    const u32 width = (u32)norms_len;
    const Cut cut(width / STEP, N * 8, rows, tiles, each);
    expect(width % STEP == 0 && width <= QUADS * 128 && stream_len >= (u64)rows * width);
    expect(out_len >= (u64)(tiles * TILE + BLOCK - 1) / BLOCK * rows * BLOCK);
    const Room<N> room(cut, width);
    room.ask_norm(norms, width);
    room.ask(cut, weight, weight_len);
    const u32 row = cut.row(), from = cut.column(), column = cut.first * TILE + from;
    const float4 own = cut.has() ? four_of(bias, bias_len, column) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    room.settle_norm();
    if (rows > 8)
        let_next_start();
    room.template norm<QUADS>(cut, stream, eps);
    room.settle();
    room.multiply(cut);
    __syncthreads();
    if (cut.has())
        *(float4 *)(out + ((u64)(column / BLOCK) * rows + cut.above + row) * BLOCK + column % BLOCK) = room.sum(row, from, own);
}

// Heads of q, k and v, of some layers where none is of q: the columns of rms_norm(stream) · weightᵀ + bias, turned and
// kept as rope/kernel.cu does it. The columns of a pair of tiles are turned with each other; two blocks of threads may
// have parts of one head, which has no norm of its own.
template <u32 N, u32 QUADS>
static __device__ void of_heads(const u16 *weight, u64 weight_len, const float *stream, u64 stream_len,
                                const float *norms, u64 norms_len, const float *bias, u64 bias_len,
                                const float *angles, u64 angles_len, const u32 *slots, u64 slots_len, const Heads &to,
                                u32 rows, u32 tiles, u32 each, float eps)
{
    // Attention is to be there in time, with the keys of earlier tokens.
    let_next_start();
    const u32 width = (u32)norms_len, half = to.dim / 2, of_layer = to.heads + 2 * to.kv_heads;
    expect(half > 0 && half % TILE == 0 && of_layer > 0 && tiles % (of_layer * (half / TILE)) == 0);
    const Cut cut(width / STEP, N * 8, rows, tiles, each, half / TILE);
    expect(width % STEP == 0 && width <= QUADS * 128 && stream_len >= (u64)rows * width);
    expect(to.q_len >= (u64)rows * to.heads * to.dim && angles_len >= (u64)rows * to.dim && slots_len >= rows);
    expect(to.heads == 0 || tiles == of_layer * (half / TILE));
    const Room<N> room(cut, width + cut.rows * cut.own * (TILE / 4) * 8);
    room.ask_norm(norms, width);
    room.ask(cut, weight, weight_len);
    // The first of the columns of both tiles: of which head, and where in it.
    const u32 row = cut.row(), from = cut.column(), column = cut.tile(from / TILE * 2) * TILE + from % TILE;
    const u32 head = column / to.dim % of_layer, layer = column / to.dim / of_layer, element = column % to.dim;
    room.settle_norm();
    float4 *turns = room.norms + width / 4 + threadIdx.x * 2;
    u32 place = 0;
    if (cut.has()) {
        const float *angle = angles + (u64)(cut.above + row) * to.dim + element;
        copy_async(address(turns), angle);
        copy_async(address(turns + 1), angle + half);
        place = slots[cut.above + row];
    }
    commit_copies();
    room.template norm<QUADS>(cut, stream, eps);
    float4 own = make_float4(0.0f, 0.0f, 0.0f, 0.0f), others = own;
    if (cut.has()) {
        own = four_of(bias, bias_len, column);
        others = four_of(bias, bias_len, column + half);
    }
    room.settle();
    room.multiply(cut);
    __syncthreads();
    if (!cut.has())
        return;
    const u32 pair = from / TILE * 2 * TILE + from % TILE;
    const float4 x = room.sum(row, pair, own), y = room.sum(row, pair + TILE, others);
    float4 low = x, high = y;
    if (!to.value(head)) {
        const float4 cosine = turns[0], sine = turns[1];
        low = make_float4(turned(x.x, -y.x, cosine.x, sine.x), turned(x.y, -y.y, cosine.y, sine.y),
                          turned(x.z, -y.z, cosine.z, sine.z), turned(x.w, -y.w, cosine.w, sine.w));
        high = make_float4(turned(y.x, x.x, cosine.x, sine.x), turned(y.y, x.y, cosine.y, sine.y),
                           turned(y.z, x.z, cosine.z, sine.z), turned(y.w, x.w, cosine.w, sine.w));
    }
    const uint2 first = make_uint2(narrowed(low.x, low.y), narrowed(low.z, low.w));
    const uint2 second = make_uint2(narrowed(high.x, high.y), narrowed(high.z, high.w));
    to.put(first, cut.above + row, layer, head, element, place);
    to.put(second, cut.above + row, layer, head, element + half, place);
}

// out = silu(gate) · up of gates and ups that are the columns of rms_norm(stream) · weightᵀ + bias, woven; rows of half as
// many. A pair of tiles has four elements of each eight.
template <u32 N, u32 QUADS>
static __device__ void of_gated(const u16 *weight, u64 weight_len, const float *stream, u64 stream_len,
                                const float *norms, u64 norms_len, const float *bias, u64 bias_len, u16 *out,
                                u64 out_len, u32 rows, u32 tiles, u32 each, float eps)
{
    const u32 width = (u32)norms_len;
    const Cut cut(width / STEP, N * 8, rows, tiles, each, 1);
    expect(width % STEP == 0 && width <= QUADS * 128 && stream_len >= (u64)rows * width);
    expect(tiles % 2 == 0 && out_len >= (u64)rows * tiles * TILE);
    const Room<N> room(cut, width);
    room.ask_norm(norms, width);
    room.ask(cut, weight, weight_len);
    const u32 row = cut.row(), from = cut.column(), pair = from / TILE * 2 * TILE + from % TILE;
    float4 first = make_float4(0.0f, 0.0f, 0.0f, 0.0f), second = first;
    if (cut.has()) {
        const u32 column = cut.first * 2 * TILE + pair;
        first = four_of(bias, bias_len, column);
        second = four_of(bias, bias_len, column + Woven::NEXT);
    }
    room.settle_norm();
    // As above, of one row too: no kernel of a layer has more blocks of threads.
    let_next_start();
    room.template norm<QUADS>(cut, stream, eps);
    room.settle();
    room.multiply(cut);
    __syncthreads();
    if (!cut.has())
        return;
    const float4 low = room.sum(row, pair, first), high = room.sum(row, pair + Woven::NEXT, second);
    const u32 tile = cut.first + from / TILE, element = tile / 2 * 32 + from % TILE * 2 + tile % 2 * 4;
    *(uint2 *)(out + (u64)(cut.above + row) * tiles * TILE + element) = make_uint2(Woven::two(low), Woven::two(high));
}

// stream = x · weightᵀ + bias, added to the stream where it `adds`. Where there is `kept`, [rows][stride], its columns
// from `first` on become the stream, narrowed.
template <u32 N>
static __device__ void added(const u16 *weight, u64 weight_len, const u16 *x, u64 x_len, const float *bias,
                             u64 bias_len, float *stream, u64 stream_len, u16 *kept, u64 kept_len, u32 steps, u32 rows,
                             u32 tiles, u32 each, u32 first, u32 stride, u32 adds)
{
    let_next_start();
    const Cut cut(steps, N * 8, rows, tiles, each);
    const u32 width = tiles * TILE;
    const bool keeps = kept_len > 0;
    expect(x_len >= (u64)rows * steps * STEP && stream_len >= (u64)rows * width);
    expect(!keeps || kept_len >= (u64)rows * stride && first + width <= stride && first % 4 == 0 && stride % 4 == 0);
    const Room<N> room(cut, 0);
    room.ask(cut, weight, weight_len);
    const u32 row = cut.row(), from = cut.column(), column = cut.first * TILE + from;
    const float4 own = cut.has() ? four_of(bias, bias_len, column) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    wait_for_earlier();
    room.ask_lines(cut, x);
    float4 *mine = (float4 *)(stream + (u64)(cut.above + row) * width + column);
    float4 sum = cut.has() && adds != 0 ? *mine : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    room.settle();
    room.multiply(cut);
    __syncthreads();
    if (!cut.has())
        return;
    Pieces::add(sum, room.sum(row, from, own));
    *mine = sum;
    if (keeps)
        *(uint2 *)(kept + (u64)(cut.above + row) * stride + first + column) =
            make_uint2(narrowed(sum.x, sum.y), narrowed(sum.z, sum.w));
}

#define NORMED(NAME, WHAT, OUT, N, QUADS, REGISTERS)                                                     \
    extern "C" __global__ void __maxnreg__(REGISTERS)                                                    \
        NAME(const u16 *weight, u64 weight_len, const float *stream, u64 stream_len, const float *norms, \
             u64 norms_len, const float *bias, u64 bias_len, OUT *out, u64 out_len, u32 rows, u32 tiles, \
             u32 each, float eps)                                                                        \
    {                                                                                                    \
        WHAT<N, QUADS>(weight, weight_len, stream, stream_len, norms, norms_len, bias, bias_len, out,    \
                       out_len, rows, tiles, each, eps);                                                 \
    }

#define HEADS(NAME, N, QUADS, REGISTERS)                                                                 \
    extern "C" __global__ void __maxnreg__(REGISTERS)                                                    \
        NAME(const u16 *weight, u64 weight_len, const float *stream, u64 stream_len, const float *norms, \
             u64 norms_len, const float *bias, u64 bias_len, const float *angles, u64 angles_len,        \
             const u32 *slots, u64 slots_len, u16 *q, u64 q_len, u16 *keys, u64 keys_len, u16 *values,   \
             u64 values_len, u64 pages_apart, u32 heads, u32 kv_heads, u32 dim, u32 page_size, u32 rows, \
             u32 tiles, u32 each, float eps)                                                             \
    {                                                                                                    \
        const Heads to = {q, q_len, keys, keys_len, values, values_len, pages_apart,                     \
                          heads, kv_heads, dim, page_size};                                              \
        of_heads<N, QUADS>(weight, weight_len, stream, stream_len, norms, norms_len, bias, bias_len,     \
                           angles, angles_len, slots, slots_len, to, rows, tiles, each, eps);            \
    }

// Registers of a thread: two blocks of threads, or one and a rank of attention, have theirs on one multiprocessor, so
// that the next kernel's weight or keys come while one works. Of wider rows they have more.
const u32 BESIDE = 56, ALONE = 128;

#define SHORT(ROWS, N)                                                                                   \
    HEADS(of_heads_##ROWS, N, 5, BESIDE)                                                                 \
    HEADS(of_heads_##ROWS##_wide, N, 8, ALONE)                                                           \
    NORMED(of_normed_##ROWS, of_normed, float, N, 5, BESIDE)                                             \
    NORMED(of_normed_##ROWS##_wide, of_normed, float, N, 8, ALONE)                                       \
    NORMED(of_gated_##ROWS, of_gated, u16, N, 5, BESIDE)                                                 \
    NORMED(of_gated_##ROWS##_wide, of_gated, u16, N, 8, ALONE)                                           \
    extern "C" __global__ void __maxnreg__(BESIDE)                                                       \
        added_##ROWS(const u16 *weight, u64 weight_len, const u16 *x, u64 x_len, const float *bias,      \
                     u64 bias_len, float *stream, u64 stream_len, u16 *kept, u64 kept_len, u32 steps,    \
                     u32 rows, u32 tiles, u32 each, u32 first, u32 stride, u32 adds)                     \
    {                                                                                                    \
        added<N>(weight, weight_len, x, x_len, bias, bias_len, stream, stream_len, kept, kept_len,       \
                 steps, rows, tiles, each, first, stride, adds);                                         \
    }

SHORT(8, 1)
SHORT(16, 2)
SHORT(32, 4)
