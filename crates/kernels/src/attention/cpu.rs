//! Attention on the CPU: which thread computes what, and in what order splits are merged.
//!
//! The work is cut into tiles (rows of one span, one KV head) and a tile's keys into splits.
//! With tiles enough for the threads, a part is a tile and merges its splits as it goes; else a
//! part is one split of one tile, and the splits are merged when all are there. Only where there are too
//! few of those as well are tiles of fewer rows cut, each of which reads the keys again. All ways run the
//! same code per split and per merge in the same order.

use super::tile::{self, Finish, Merge, Split, View};
use super::{Launch, SPLIT, Sight, Span, Tail};
use crate::kv_store::{Element, Pages, padded, with_pages};
use crate::lanes::{LANES, Level};
use crate::spread::spread;
use device::{Cpu, Disjoint};
use std::ops::Range;

/// Most rows of a tile: they share each split's K and V while it is in the cache.
const ROWS: usize = 16;
/// Rows below which a tile is not cut for the sake of balance.
const FEW_ROWS: usize = 4;

/// Parts a thread needs before they balance well enough.
const PARTS_PER_THREAD: usize = 3;

/// Rows of one span, and one KV head.
pub(super) struct Tile<'a> {
    pub(super) launch: &'a Launch<'a>,
    pub(super) span: &'a Span,
    /// The KV head.
    pub(super) head: usize,
    /// Rows, counted from the span's first.
    pub(super) rows: Range<usize>,
}

/// Where a split's keys come from, and which they are.
#[derive(Clone)]
pub(super) enum Keys {
    /// Token positions of the request, in the pool.
    Pool(Range<usize>),
    /// Rows of the span, in the launch's own `k` and `v`.
    Block(Range<usize>),
}

impl Keys {
    fn len(&self) -> usize {
        let (Keys::Pool(keys) | Keys::Block(keys)) = self;
        keys.len()
    }
}

impl<'a> Tile<'a> {
    /// Query heads of the KV head.
    pub(super) fn group(&self) -> usize {
        self.launch.heads / self.launch.pool.kv_heads
    }

    /// Query vectors: those of one row are neighbours.
    pub(super) fn queries(&self) -> usize {
        self.rows.len() * self.group()
    }

    /// Where query vector `i` lies in `q` and `out`.
    pub(super) fn query(&self, i: usize) -> Range<usize> {
        let dim = self.launch.pool.head_dim;
        let row = self.span.start + self.rows.start + i / self.group();
        let start = (row * self.launch.heads + self.head * self.group() + i % self.group()) * dim;
        start..start + dim
    }

    /// The tile's splits, in the order in which they are merged.
    fn splits(&self) -> Vec<Keys> {
        let (pool, block) = match self.launch.tail {
            Tail::Causal => (self.span.context + self.rows.end, 0),
            Tail::Block { .. } => (self.span.context, self.span.len),
        };
        let cut = |from: usize, to: usize| {
            (from / SPLIT * SPLIT..to).step_by(SPLIT).map(move |at| at..(at + SPLIT).min(to))
        };
        let mut splits = Vec::new();
        let seen = self.first_seen(self.rows.start);
        splits.extend(cut(seen.min(pool), pool).map(Keys::Pool));
        splits.extend(cut(seen.saturating_sub(self.span.context), block).map(Keys::Block));
        splits
    }

    /// The first position that row `row` of the span sees.
    fn first_seen(&self, row: usize) -> usize {
        let end = self.span.context + row + 1;
        end - self.launch.window.map_or(end, |window| window.min(end))
    }

    /// The end of the rows of its own block that row `row` of the span sees.
    fn block_end(&self, row: usize) -> usize {
        let ahead = match self.launch.tail {
            Tail::Block { sight: Sight::BothWays, .. } => {
                self.launch.window.unwrap_or(self.span.len)
            }
            _ => 1,
        };
        self.span.len.min(row.saturating_add(ahead))
    }

    /// The keys of a split that query vector `i` sees, counted from the split's first.
    pub(super) fn visible(&self, i: usize, keys: &Keys) -> Range<usize> {
        let row = self.rows.start + i / self.group();
        let first = self.first_seen(row);
        let (keys, seen) = match keys {
            Keys::Pool(keys) => {
                let end = match self.launch.tail {
                    Tail::Causal => self.span.context + row + 1,
                    Tail::Block { .. } => self.span.context,
                };
                (keys, first..end)
            }
            Keys::Block(keys) => {
                let first = first.saturating_sub(self.span.context);
                (keys, first..self.block_end(row))
            }
        };
        let start = seen.start.clamp(keys.start, keys.end) - keys.start;
        let end = seen.end.clamp(keys.start, keys.end) - keys.start;
        start..end.max(start)
    }

    /// Floats of the tile's partial results of one split.
    fn partial_len(&self) -> usize {
        self.queries() * tile::state_len(self.launch.pool.head_dim)
    }

    /// Computes one split into `partial` (`[queries, state_len]`).
    fn split(&self, level: Level, keys: &Keys, q: &[f32], partial: &mut [f32]) {
        match (keys, &self.launch.tail) {
            (Keys::Pool(positions), _) => with_pages!(&self.launch.layer.0, pages => {
                self.split_of_pool(level, pages, keys, positions, q, partial)
            }),
            (Keys::Block(rows), Tail::Block { k, v, .. }) => {
                let gathered = self.gather_block(rows, k, v);
                let view = View::of_gathered(&gathered, self.launch.pool.head_dim);
                level.dispatch(Split { tile: self, keys, view, q, partial });
            }
            (Keys::Block(_), Tail::Causal) => unreachable!("a causal launch has no block"),
        }
    }

    /// [`Tile::split`] of `positions` of the pool.
    fn split_of_pool<E: Element>(
        &self,
        level: Level,
        pages: &Pages<E>,
        keys: &Keys,
        positions: &Range<usize>,
        q: &[f32],
        partial: &mut [f32],
    ) {
        let gathered;
        let view = if self.launch.pool.page_size.is_multiple_of(LANES) {
            View::of_pool(self, pages, positions.start)
        } else {
            gathered = self.gather(pages, positions);
            View::of_gathered(&gathered, self.launch.pool.head_dim)
        };
        level.dispatch(Split { tile: self, keys, view, q, partial });
    }

    /// Copies a split's rows of the block as one page of [`SPLIT`] tokens.
    fn gather_block(&self, rows: &Range<usize>, from_k: &[f32], from_v: &[f32]) -> Pages<f32> {
        let (heads, dim) = (self.launch.pool.kv_heads, self.launch.pool.head_dim);
        let mut to = Pages::new(SPLIT, dim);
        for (at, row) in rows.clone().enumerate() {
            let from = ((self.span.start + row) * heads + self.head) * dim;
            to.v[at * padded(dim)..][..dim].copy_from_slice(&from_v[from..from + dim]);
            for (d, x) in from_k[from..from + dim].iter().enumerate() {
                to.k[d * SPLIT + at] = *x;
            }
        }
        to
    }

    /// Copies a split's keys and values, as they are stored, as one page of [`SPLIT`] tokens.
    fn gather<E: Element>(&self, from: &Pages<E>, positions: &Range<usize>) -> Pages<E> {
        let pool = self.launch.pool;
        let (page, dim, padded) = (pool.page_size, pool.head_dim, padded(pool.head_dim));
        let mut to = Pages::new(SPLIT, dim);
        for (at, token) in positions.clone().enumerate() {
            let id = self.launch.pages[self.span.first_page + token / page] as usize;
            let (block, offset) = (id * pool.kv_heads + self.head, token % page);
            let token = block * page + offset;
            to.v[at * padded..][..dim].copy_from_slice(&from.v[token * padded..][..dim]);
            for d in 0..dim {
                to.k[d * SPLIT + at] = from.k[(block * dim + d) * page + offset];
            }
            if E::SCALED {
                to.k_scales[at] = from.k_scales[token];
                to.v_scales[at] = from.v_scales[token];
            }
        }
        to
    }

    /// Writes the merged `state` of every query vector to its place in `out`.
    fn finish(&self, level: Level, state: &[f32], out: &Disjoint<'_, f32>) {
        for (i, state) in state.chunks_exact(tile::state_len(self.launch.pool.head_dim)).enumerate()
        {
            // SAFETY: a query vector belongs to one tile, and a tile is finished once.
            let out = unsafe { out.slice(self.query(i)) };
            level.dispatch(Finish { state, out });
        }
    }
}

pub(super) fn attention(cpu: &Cpu, level: Level, launch: &Launch<'_>, q: &[f32], out: &mut [f32]) {
    let enough = if cpu.threads() == 1 { 1 } else { PARTS_PER_THREAD * cpu.threads() };
    // A tile has one at least, so where there are tiles enough nothing need be counted.
    let few = |tiles: &[Tile<'_>]| {
        tiles.len() < enough && tiles.iter().map(|tile| tile.splits().len()).sum::<usize>() < enough
    };
    let mut rows = ROWS;
    let mut tiles = tiles(launch, rows);
    // What a row becomes does not depend on the rows beside it in a tile.
    while rows > FEW_ROWS && few(&tiles) {
        rows /= 2;
        tiles = self::tiles(launch, rows);
    }
    let out = Disjoint::new(out);
    if tiles.len() >= enough {
        whole_tiles(cpu, level, &tiles, q, &out);
    } else {
        single_splits(cpu, level, &tiles, q, &out);
    }
}

/// All tiles of a launch, of up to `rows` rows. Those with the most keys come first, so that the last ones to be handed
/// out are short.
fn tiles<'a>(launch: &'a Launch<'a>, rows: usize) -> Vec<Tile<'a>> {
    let mut tiles = Vec::new();
    for span in launch.spans {
        for start in (0..span.len).step_by(rows).rev() {
            let rows = start..(start + rows).min(span.len);
            tiles.extend((0..launch.pool.kv_heads).map(|head| Tile {
                launch,
                span,
                head,
                rows: rows.clone(),
            }));
        }
    }
    tiles
}

/// A part is a tile.
fn whole_tiles(cpu: &Cpu, level: Level, tiles: &[Tile<'_>], q: &[f32], out: &Disjoint<'_, f32>) {
    cpu.parallel(tiles.len(), &|part| {
        let tile = &tiles[part];
        let mut state = vec![0.0; tile.partial_len()];
        let mut partial = vec![0.0; tile.partial_len()];
        for (i, keys) in tile.splits().iter().enumerate() {
            if i == 0 {
                tile.split(level, keys, q, &mut state);
            } else {
                tile.split(level, keys, q, &mut partial);
                level.dispatch(Merge {
                    state: &mut state,
                    partial: &partial,
                    dim: tile.launch.pool.head_dim,
                });
            }
        }
        tile.finish(level, &state, out);
    });
}

/// A part is one split of one tile.
fn single_splits(cpu: &Cpu, level: Level, tiles: &[Tile<'_>], q: &[f32], out: &Disjoint<'_, f32>) {
    let mut parts = Vec::new();
    let mut len = 0;
    for (index, tile) in tiles.iter().enumerate() {
        for keys in tile.splits() {
            parts.push((index, keys, len..len + tile.partial_len()));
            len += tile.partial_len();
        }
    }
    let mut partials = vec![0.0; len];
    let shared = Disjoint::new(&mut partials);
    // A vector of keys times a dimension takes about as long as an element of elementwise work.
    let work = |(index, keys, _): &(usize, Keys, _)| {
        tiles[*index].queries() * keys.len() * tiles[*index].launch.pool.head_dim / LANES
    };
    let work = parts.iter().map(work).sum();
    spread(cpu, parts.len(), work, &|part| {
        let (index, keys, range) = &parts[part];
        // SAFETY: the parts' ranges do not overlap.
        let partial = unsafe { shared.slice(range.clone()) };
        tiles[*index].split(level, keys, q, partial);
    });
    for splits in parts.chunk_by(|a, b| a.0 == b.0) {
        let tile = &tiles[splits[0].0];
        let (first, rest) = partials[splits[0].2.start..splits[splits.len() - 1].2.end]
            .split_at_mut(tile.partial_len());
        for partial in rest.chunks_exact(tile.partial_len()) {
            level.dispatch(Merge { state: first, partial, dim: tile.launch.pool.head_dim });
        }
        tile.finish(level, first, out);
    }
}
