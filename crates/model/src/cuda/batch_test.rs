//! Every row is where its pass has it, in one tile, whatever the shape of the batch.

use super::*;
use crate::cuda::plan::Plan;
use crate::cuda::room::Capacity;
use crate::cuda::shape::tests::config;
use std::path::Path;

const HEADS: Heads = Heads { q: 8, kv: 2, dim: 64 };
const PAGE: usize = 16;

fn room(rows: usize, parts: usize) -> Room {
    let capacity = Capacity {
        pages: 64,
        page_size: PAGE,
        rows,
        requests: 8,
        context: 4096,
        block: 16,
        allowed: 300,
        proposed: 150,
    };
    let paths = [Path::new("target"), Path::new("drafter")];
    let (plan, _) = Plan::new(&config(64), None, paths, 132).expect("a config that fits");
    let mut room = Room::new(&plan, &capacity);
    room.parts = parts;
    room
}

/// A pass of requests with so many rows on top of so many tokens.
fn pass(requests: &[(usize, usize)]) -> Pass {
    let mut pass = Pass::default();
    for (i, &(context, rows)) in requests.iter().enumerate() {
        let pages: Vec<u32> =
            (0..(context + rows).div_ceil(PAGE)).map(|page| (page * 7 + i) as u32 % 64).collect();
        let tokens: Vec<u32> = (0..rows).map(|row| (100 * i + row) as u32).collect();
        pass.push(&tokens, context, &pages, PAGE);
    }
    pass
}

/// What the card makes of a row: its position and its slot.
fn placed(batch: &Batch, row: usize) -> (u32, u32) {
    let (words, regions) = (&batch.said.words, batch.cut.regions);
    let span = words[regions.spans()][row] as usize;
    let position = words[regions.lengths()][span] + words[regions.offsets()][row];
    let page = words[regions.firsts()][span] as usize + position as usize / PAGE;
    (position, words[regions.pages() + page] * PAGE as u32 + position % PAGE as u32)
}

fn check(pass: &Pass, batch: &Batch) {
    let (words, regions) = (&batch.said.words, batch.cut.regions);
    assert_eq!(words[regions.tokens()][..pass.rows()], pass.tokens);
    for row in 0..pass.rows() {
        assert_eq!(placed(batch, row), (pass.positions[row], pass.slots[row]), "row {row}");
    }
    // What fills the batch is nowhere.
    for row in pass.rows()..regions.rows {
        assert_eq!(placed(batch, row), (0, 64 * PAGE as u32), "row {row} stands for nothing");
    }
    let mut seen = vec![0; regions.rows];
    for slice in &batch.cut.slices {
        for tile in words[regions.tiles()]
            .chunks_exact(TILE)
            .skip(slice.tiles.start)
            .take(slice.tiles.len())
        {
            let [first, rows, span, offset, width] = [0, 1, 2, 3, 4].map(|i| tile[i] as usize);
            assert!(offset <= first && offset + rows <= width, "{tile:?}");
            assert!(slice.rows.start + first + rows <= slice.rows.end);
            for row in slice.rows.start + first..slice.rows.start + first + rows {
                seen[row] += 1;
                assert_eq!(words[regions.spans()][row] as usize, span);
                let expected = offset + row - slice.rows.start - first;
                assert_eq!(words[regions.offsets()][row] as usize, expected);
            }
            let context = words[regions.lengths()][span] as usize + offset + rows;
            assert!(context.div_ceil(SPLIT) <= batch.cut.splits, "{tile:?}");
        }
    }
    assert!(seen[..pass.rows()].iter().all(|&times| times == 1), "{seen:?}");
    assert!(seen[pass.rows()..].iter().all(|&times| times == 0), "{seen:?}");
}

#[test]
fn few_rows_are_filled_up_to_a_shape_that_comes_again() {
    let room = room(64, 1 << 22);
    for requests in [
        vec![(0, 1)],
        vec![(5, 1), (700, 1), (3, 1)],
        vec![(200, 16)],
        vec![(200, 16), (17, 3), (0, 40)],
        vec![(31, 8); 8],
    ] {
        let pass = pass(&requests);
        let batch = Batch::new(&pass, Kind::Causal, &room, HEADS);
        check(&pass, &batch);
        let Cut { regions, splits, slices } = &batch.cut;
        assert_eq!(batch.often, Often::Yes);
        assert_eq!(regions.rows, pass.rows().next_power_of_two());
        assert!(regions.tiles.is_power_of_two() && splits.is_power_of_two());
        let tiling = slices[0].tiling;
        let all = Slice { rows: 0..regions.rows, tiles: 0..regions.tiles, tiling };
        assert_eq!(slices[..], [all]);
    }
    // A token more does not make another shape.
    let of = |context| Batch::new(&pass(&[(context, 5)]), Kind::Causal, &room, HEADS).cut;
    assert_eq!(of(130), of(250));
    assert_ne!(of(130), of(300));
}

#[test]
fn many_rows_are_cut_where_attention_has_no_room() {
    let row = Attention::parts(HEADS, 1);
    for most in [1, 7, 64, 100, 222] {
        let pass = pass(&[(500, 90), (3, 1), (0, 130), (9, 2)]);
        let batch = Batch::new(&pass, Kind::Causal, &room(256, most * row + row / 2), HEADS);
        check(&pass, &batch);
        assert_eq!(batch.often, Often::No);
        assert_eq!(batch.cut.regions.rows, pass.rows());
        assert_eq!(batch.cut.slices.len(), pass.rows().div_ceil(most));
        assert!(batch.cut.slices.iter().all(|slice| slice.rows.len() <= most));
    }
}

#[test]
fn a_crowd_is_filled_up_to_tiles() {
    let room = room(512, 1 << 24);
    for (requests, filled) in [
        (vec![(31, 8); 12], 128),
        (vec![(31, 8); 17], 192),
        (vec![(31, 8); 25], 256),
        (vec![(200, 1), (0, 128), (90, 130)], 384),
        (vec![(40, 16); 32], 512),
    ] {
        let pass = pass(&requests);
        let batch = Batch::new(&pass, Kind::Causal, &room, HEADS);
        check(&pass, &batch);
        assert_eq!((batch.often, batch.cut.regions.rows), (Often::Yes, filled));
    }
    let many = pass(&[(0, 513)]);
    assert_eq!(Batch::new(&many, Kind::Causal, &room, HEADS).often, Often::No);
}

#[test]
fn blocks_are_not_cut() {
    let mut pass = Pass::default();
    for context in [100, 300, 20, 77, 5] {
        pass.push_block(&[9; 16], context, &[1; 24]);
    }
    let row = Attention::parts(HEADS, 1);
    let batch = Batch::new(&pass, Kind::Block, &room(128, 40 * row), HEADS);
    let rows: Vec<_> = batch.cut.slices.iter().map(|slice| slice.rows.clone()).collect();
    assert_eq!(rows, [0..32, 32..64, 64..80]);
    let widths = batch.said.words[batch.cut.regions.tiles()].chunks_exact(TILE).map(|tile| tile[4]);
    assert!(widths.into_iter().all(|width| width == 16));
}
