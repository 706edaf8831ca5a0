//! The arithmetic of attention: one split of a tile's keys, the merge of two splits, the end.
//!
//! A query vector's *state* is `padded_dim` sums of `p · v`, then one vector whose first lane is
//! the largest score `m` and whose second is the sum of `p = e^(score − m)`. Orders: a score sums
//! `q · k` over the dimensions one by one; the sum of `p` goes to 16 lanes (key `i` to lane
//! `i mod 16`), added pairwise; `p · v` is summed key by key.

// Most loops here walk several small arrays by one index.
#![allow(clippy::needless_range_loop)]

use super::SPLIT;
use super::cpu::{Keys, Tile};
use crate::kv_store::{Element, Pages, padded};
use crate::lanes::{Kernel, LANES, Lanes, prefetch};
use std::ops::Range;

/// Floats of a query vector's state.
pub(super) fn state_len(head_dim: usize) -> usize {
    padded(head_dim) + LANES
}

/// A split's keys and values as pages: `k` `[blocks, dim, page]`, `v` `[blocks, page, padded]`, the
/// scales, if their elements have any, `[blocks, page]`. The block of the split's page `p` is
/// `ids[p] · heads + head`.
pub(super) struct View<'a, E> {
    pages: &'a Pages<E>,
    ids: &'a [u32],
    /// Tokens a page holds, a multiple of [`LANES`].
    page: usize,
    heads: usize,
    head: usize,
    dim: usize,
    /// Where the split begins in the first of `ids`.
    offset: usize,
}

impl<'a, E: Element> View<'a, E> {
    /// The pool's own pages, from position `start` on.
    pub(super) fn of_pool(tile: &Tile<'a>, pages: &'a Pages<E>, start: usize) -> View<'a, E> {
        let (launch, page) = (tile.launch, tile.launch.pool.page_size);
        View {
            pages,
            ids: &launch.pages[tile.span.first_page + start / page..],
            page,
            heads: launch.pool.kv_heads,
            head: tile.head,
            dim: launch.pool.head_dim,
            offset: start % page,
        }
    }

    /// One page of [`SPLIT`] tokens.
    pub(super) fn of_gathered(pages: &'a Pages<E>, dim: usize) -> View<'a, E> {
        View { pages, ids: &[0], page: SPLIT, heads: 1, head: 0, dim, offset: 0 }
    }

    /// The block that holds the split's key `at`, and the key's place in it.
    #[inline(always)]
    fn place(&self, at: usize) -> (usize, usize) {
        let token = self.offset + at;
        let block = self.ids[token / self.page] as usize * self.heads + self.head;
        (block, token % self.page)
    }

    /// The first dimension of keys `at .. at + 16` of the split (`at` a multiple of 16); the
    /// next dimension is `page` elements on.
    #[inline(always)]
    fn keys(&self, at: usize) -> *const E {
        let (block, within) = self.place(at);
        let start = block * self.dim * self.page;
        self.pages.k[start..start + self.dim * self.page][within..].as_ptr()
    }

    /// The values of the split's keys from `at` on, up to `end` or the end of the page, and how
    /// many they are; the next key's are `padded(dim)` elements on.
    #[inline(always)]
    fn values(&self, at: usize, end: usize) -> (*const E, usize) {
        let (block, within) = self.place(at);
        let len = (end - at).min(self.page - within);
        let start = (block * self.page + within) * padded(self.dim);
        (self.pages.v[start..start + len * padded(self.dim)].as_ptr(), len)
    }

    /// The `scales` of keys `at .. at + 16` of the split (`at` a multiple of 16).
    #[inline(always)]
    fn scales<'s>(&self, scales: &'s [f32], at: usize) -> &'s [f32; LANES] {
        let (block, within) = self.place(at);
        let first = block * self.page + within;
        scales[first..first + LANES].try_into().expect("16 floats")
    }

    /// Multiplies the `p` of `seen` by the scales of the values that they weigh.
    #[inline(always)]
    fn scale_values<L: Lanes>(&self, lanes: L, p: &mut [f32; SPLIT], seen: &Range<usize>) {
        if !E::SCALED || seen.is_empty() {
            return;
        }
        let start = seen.start / LANES * LANES;
        let (vectors, _) = p[start..seen.end.next_multiple_of(LANES)].as_chunks_mut::<LANES>();
        for (i, p) in vectors.iter_mut().enumerate() {
            // What is not seen is not weighed either, whatever its scale makes of it.
            let scales = self.scales(&self.pages.v_scales, start + i * LANES);
            lanes.store(lanes.mul(lanes.load(p), lanes.load(scales)), p);
        }
    }
}

/// `sums[r][w] += a[r][i] · b[w][i · stride ..]` over `i` in `0 .. n`, one by one. Meanwhile the same
/// elements of `next` are asked for: a block ends where a page of memory does, beyond which no processor
/// looks ahead by itself.
///
/// # Safety
/// `a[r]` has `n` floats, and `b[w]` has 16 at each multiple of `stride` below `n · stride`.
#[inline(always)]
unsafe fn accumulate<L: Lanes, E: Element, const R: usize, const W: usize>(
    lanes: L,
    n: usize,
    a: [*const f32; R],
    b: [*const E; W],
    next: [*const E; W],
    stride: usize,
    sums: &mut [[L::F; W]; R],
) {
    for i in 0..n {
        let mut v = [lanes.splat(0.0); W];
        for w in 0..W {
            // SAFETY: 16 elements of `b[w]`, by the caller's promise.
            v[w] = E::load(lanes, unsafe { &*b[w].add(i * stride).cast() });
            prefetch(next[w].wrapping_add(i * stride));
        }
        for r in 0..R {
            // SAFETY: `i < n`, by the caller's promise.
            let x = lanes.splat(unsafe { *a[r].add(i) });
            for w in 0..W {
                sums[r][w] = lanes.fma(x, v[w], sums[r][w]);
            }
        }
    }
}

/// Computes one split of a tile's keys for all its query vectors.
pub(super) struct Split<'a, E> {
    pub(super) tile: &'a Tile<'a>,
    pub(super) keys: &'a Keys,
    pub(super) view: View<'a, E>,
    pub(super) q: &'a [f32],
    /// `[queries, state_len]`, overwritten.
    pub(super) partial: &'a mut [f32],
}

/// Scores of `R` query vectors, then their exponentials.
type Scores<const R: usize> = [[f32; SPLIT]; R];

impl<E: Element> Kernel for Split<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        let queries = self.tile.queries();
        let mut first = 0;
        while first < queries {
            first += match (queries - first, L::MANY_REGISTERS) {
                (4.., true) => self.block::<L, 4, 4>(lanes, first),
                (3, true) => self.block::<L, 3, 4>(lanes, first),
                (2, true) => self.block::<L, 2, 4>(lanes, first),
                (_, true) => self.block::<L, 1, 4>(lanes, first),
                (4.., false) => self.block::<L, 4, 1>(lanes, first),
                (3, false) => self.block::<L, 3, 1>(lanes, first),
                (2, false) => self.block::<L, 2, 1>(lanes, first),
                (_, false) => self.block::<L, 1, 1>(lanes, first),
            };
        }
    }
}

impl<E: Element> Split<'_, E> {
    /// `R` query vectors from `first` on, `W` vectors of keys or dimensions at a time. Returns `R`.
    #[inline(always)]
    fn block<L: Lanes, const R: usize, const W: usize>(&mut self, lanes: L, first: usize) -> usize {
        let state = state_len(self.view.dim);
        let mut seen: [Range<usize>; R] = std::array::from_fn(|_| 0..0);
        for r in 0..R {
            seen[r] = self.tile.visible(first + r, self.keys);
        }
        let mut scores: Scores<R> = [[0.0; SPLIT]; R];
        self.scores::<L, R, W>(lanes, first, &seen, &mut scores);
        let (from, to) = (first * state, (first + R) * state);
        for (r, state) in self.partial[from..to].chunks_exact_mut(state).enumerate() {
            let (sums, last) = state.split_at_mut(state.len() - LANES);
            sums.fill(0.0);
            (last[0], last[1]) = softmax(lanes, &mut scores[r], &seen[r]);
            self.view.scale_values(lanes, &mut scores[r], &seen[r]);
        }
        // The keys that all R see share their loads of V; what one row sees beyond them comes
        // before and after, so that no row touches a value it does not see.
        let mut shared = 0..SPLIT;
        for r in 0..R {
            shared = shared.start.max(seen[r].start)..shared.end.min(seen[r].end);
        }
        if shared.is_empty() {
            shared = SPLIT..SPLIT;
        }
        for r in 0..R {
            let before = seen[r].start..seen[r].end.min(shared.start);
            self.weigh::<L, 1, W>(lanes, first + r, [&scores[r]], before);
        }
        self.weigh::<L, R, W>(lanes, first, scores.each_ref(), shared.clone());
        for r in 0..R {
            let after = seen[r].start.max(shared.end)..seen[r].end;
            self.weigh::<L, 1, W>(lanes, first + r, [&scores[r]], after);
        }
        R
    }

    /// Fills the scores of all keys that any of the `R` sees; others may be filled too.
    #[inline(always)]
    fn scores<L: Lanes, const R: usize, const W: usize>(
        &self,
        lanes: L,
        first: usize,
        seen: &[Range<usize>; R],
        scores: &mut Scores<R>,
    ) {
        let (mut start, mut end) = (SPLIT, 0);
        let mut q = [std::ptr::null(); R];
        for r in 0..R {
            q[r] = self.q[self.tile.query(first + r)].as_ptr();
            if !seen[r].is_empty() {
                (start, end) = (start.min(seen[r].start), end.max(seen[r].end));
            }
        }
        let scale = lanes.splat(self.tile.launch.scale);
        let step = W * LANES;
        // Past the last key's vector there may be no page: compute that one again.
        let last = end.saturating_sub(1) / LANES * LANES;
        let mut at = start / step * step;
        while at < end {
            let (mut k, mut next) = ([std::ptr::null(); W], [std::ptr::null(); W]);
            for w in 0..W {
                k[w] = self.view.keys((at + w * LANES).min(last));
                next[w] = self.view.keys((at + step + w * LANES).min(last));
            }
            let mut sums = [[lanes.splat(0.0); W]; R];
            // SAFETY: a query vector has `dim` floats; `keys` checked that its block has `dim`
            // times `page`, of which 16 are within a page.
            unsafe { accumulate(lanes, self.view.dim, q, k, next, self.view.page, &mut sums) };
            for r in 0..R {
                let (to, _) = scores[r][at..at + step].as_chunks_mut::<LANES>();
                for w in 0..W {
                    let mut score = sums[r][w];
                    if E::SCALED {
                        let at = (at + w * LANES).min(last);
                        let scales = self.view.scales(&self.view.pages.k_scales, at);
                        score = lanes.mul(score, lanes.load(scales));
                    }
                    lanes.store(lanes.mul(score, scale), &mut to[w]);
                }
            }
            at += step;
        }
    }

    /// Adds `p · v` of `keys` to the sums of `R` query vectors from `first` on.
    #[inline(always)]
    fn weigh<L: Lanes, const R: usize, const W: usize>(
        &mut self,
        lanes: L,
        first: usize,
        p: [&[f32; SPLIT]; R],
        keys: Range<usize>,
    ) {
        if keys.is_empty() {
            return;
        }
        let vectors = padded(self.view.dim) / LANES;
        let mut at = 0;
        while at + W <= vectors {
            self.weigh_some::<L, R, W>(lanes, first, p, keys.clone(), at);
            at += W;
        }
        while at < vectors {
            self.weigh_some::<L, R, 1>(lanes, first, p, keys.clone(), at);
            at += 1;
        }
    }

    /// [`Split::weigh`] for vectors `at .. at + W` of the dimensions.
    #[inline(always)]
    fn weigh_some<L: Lanes, const R: usize, const W: usize>(
        &mut self,
        lanes: L,
        first: usize,
        p: [&[f32; SPLIT]; R],
        keys: Range<usize>,
        at: usize,
    ) {
        let (state, padded) = (state_len(self.view.dim), padded(self.view.dim));
        let mut sums = [[lanes.splat(0.0); W]; R];
        for r in 0..R {
            let from = (first + r) * state + at * LANES;
            let (partial, _) = self.partial[from..from + W * LANES].as_chunks::<LANES>();
            for w in 0..W {
                sums[r][w] = lanes.load(&partial[w]);
            }
        }
        let mut key = keys.start;
        while key < keys.end {
            let (values, len) = self.view.values(key, keys.end);
            let (after, _) = self.view.values((key + len).min(keys.end - 1), keys.end);
            let (mut a, mut b, mut next) =
                ([std::ptr::null(); R], [std::ptr::null(); W], [std::ptr::null(); W]);
            for r in 0..R {
                a[r] = p[r][key..key + len].as_ptr();
            }
            for w in 0..W {
                b[w] = values.wrapping_add((at + w) * LANES);
                next[w] = after.wrapping_add((at + w) * LANES);
            }
            // SAFETY: `p` has `len` floats from `key` on; `values` checked that `len` keys of
            // `padded` floats are there, and `at + W` vectors are within `padded`.
            unsafe { accumulate(lanes, len, a, b, next, padded, &mut sums) };
            key += len;
        }
        for r in 0..R {
            let from = (first + r) * state + at * LANES;
            let (partial, _) = self.partial[from..from + W * LANES].as_chunks_mut::<LANES>();
            for w in 0..W {
                lanes.store(sums[r][w], &mut partial[w]);
            }
        }
    }
}

/// Turns the scores of `seen` into `p = e^(score − m)`; returns `m`, the largest of them, and
/// the sum of `p`. Nothing seen: −∞ and 0.
#[inline(always)]
fn softmax<L: Lanes>(lanes: L, scores: &mut [f32; SPLIT], seen: &Range<usize>) -> (f32, f32) {
    if seen.is_empty() {
        return (f32::NEG_INFINITY, 0.0);
    }
    let (start, end) = (seen.start / LANES * LANES, seen.end.next_multiple_of(LANES));
    scores[start..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end..end].fill(f32::NEG_INFINITY);
    let (vectors, _) = scores[start..end].as_chunks_mut::<LANES>();
    let mut largest = lanes.splat(f32::NEG_INFINITY);
    for v in vectors.iter() {
        largest = lanes.max(lanes.load(v), largest);
    }
    let m = lanes.largest(largest);
    let mut sum = lanes.splat(0.0);
    for v in vectors {
        let p = lanes.exp(lanes.sub(lanes.load(v), lanes.splat(m)));
        sum = lanes.add(sum, p);
        lanes.store(p, v);
    }
    (m, lanes.sum(sum))
}

/// Merges the split `partial` into the splits before it, for all query vectors of a tile.
pub(super) struct Merge<'a> {
    /// `[queries, state_len]`.
    pub(super) state: &'a mut [f32],
    /// `[queries, state_len]`.
    pub(super) partial: &'a [f32],
    pub(super) dim: usize,
}

impl Kernel for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let (len, dim) = (state_len(self.dim), padded(self.dim));
        for (state, partial) in self.state.chunks_exact_mut(len).zip(self.partial.chunks_exact(len))
        {
            let (m, other) = (state[dim], partial[dim]);
            if other == f32::NEG_INFINITY {
                continue; // the row sees nothing of this split
            }
            if m == f32::NEG_INFINITY {
                state.copy_from_slice(partial);
                continue;
            }
            let largest = if other > m { other } else { m };
            let keep = lanes.exp(lanes.splat(m - largest));
            let take = lanes.exp(lanes.splat(other - largest));
            let (state, _) = state.as_chunks_mut::<LANES>();
            let (partial, _) = partial.as_chunks::<LANES>();
            // The last vector's sum of `p` is merged like the rest of it; its `m` is then set.
            for (state, partial) in state.iter_mut().zip(partial) {
                let kept = lanes.mul(lanes.load(state), keep);
                lanes.store(lanes.fma(lanes.load(partial), take, kept), state);
            }
            state[dim / LANES][0] = largest;
        }
    }
}

/// Divides a state's sums by the sum of `p`.
pub(super) struct Finish<'a> {
    pub(super) state: &'a [f32],
    /// `[head_dim]`.
    pub(super) out: &'a mut [f32],
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let inverse = 1.0 / self.state[self.state.len() - LANES + 1];
        for (out, sum) in self.out.iter_mut().zip(self.state) {
            *out = sum * inverse;
        }
    }
}
