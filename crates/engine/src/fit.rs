//! How many drafts a verify pass takes in. A plan says what a draft has to promise, by what a row costs on average;
//! but on a card rows come in tiles, and what the next row costs is nothing or a tile. So a pass is filled up to
//! where its cost rises, or cut to where it rose last, whichever is worth more.

/// What a row costs within a plateau, of what one costs on average: norms and attention have it to do all the same. A
/// draft that promises less stays out.
const WITHIN: f32 = 0.125;

/// A block of which more or fewer drafts may be verified.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open<'c> {
    /// The chance of each draft, that those before it are accepted included: falling.
    pub(crate) chances: &'c [f32],
    /// How many of them are worth it where each row costs alike.
    pub(crate) worth: usize,
}

/// How many drafts of each of `blocks` to verify in a pass with `others` rows beside them, when a draft has to
/// promise `price` tokens for what a row costs on average. A pass costs what one does whose rows are the next of
/// `stairs`, which ascend; beyond them each row costs something.
pub(crate) fn fit(others: usize, blocks: &[Open<'_>], price: f32, stairs: &[usize]) -> Vec<usize> {
    let rows = others + blocks.iter().map(|block| block.worth).sum::<usize>();
    let next = stairs.partition_point(|&stair| stair < rows);
    let Some(&full) = stairs.get(next) else {
        return blocks.iter().map(|block| block.worth).collect();
    };
    let below = next.checked_sub(1).map_or(0, |before| stairs[before]);
    let mut ranked: Vec<(f32, usize)> = Vec::new();
    for (i, block) in blocks.iter().enumerate() {
        let some = block.chances.iter().take_while(|&&chance| chance >= price * WITHIN);
        ranked.extend(some.map(|&chance| (chance, i)));
    }
    // Of a block's drafts, the earlier ones come first: the sort is stable.
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    let most = (full - others).min(ranked.len());
    // Rows that nobody drafted cannot be left out.
    let least = below.checked_sub(others).filter(|&least| least <= most);
    let kept = least.filter(|&least| {
        let gain: f32 = ranked[least..most].iter().map(|&(chance, _)| chance).sum();
        gain < price * (full - below) as f32
    });
    let mut counts = vec![0; blocks.len()];
    ranked[..kept.unwrap_or(most)].iter().for_each(|&(_, i)| counts[i] += 1);
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    const TILES: [usize; 3] = [8, 16, 24];
    const SURE: [f32; 5] = [0.9, 0.8, 0.7, 0.6, 0.5];
    const UNSURE: [f32; 5] = [0.5, 0.3, 0.2, 0.1, 0.05];

    /// Blocks of which drafts of a chance of `price` are worth it.
    fn blocks<'c>(chances: &[&'c [f32]], price: f32) -> Vec<Open<'c>> {
        let worth = |chances: &[f32]| chances.iter().filter(|&&chance| chance >= price).count();
        chances.iter().map(|&chances| Open { chances, worth: worth(chances) }).collect()
    }

    #[test]
    fn what_costs_nothing_is_verified() {
        // Two anchors, and four drafts that are worth it: two more rows are there for nothing.
        let open = blocks(&[&SURE, &UNSURE], 0.6);
        assert_eq!(fit(2, &open, 0.6, &TILES), [5, 1], "the most likely of all");
        assert_eq!(fit(2, &open[..1], 0.6, &TILES), [5], "all that there are");
        // A row is never quite for nothing.
        let hopeless = [0.9, 0.8, 0.05, 0.04];
        assert_eq!(fit(1, &blocks(&[&hopeless], 0.6), 0.6, &TILES), [2]);
    }

    #[test]
    fn a_tile_for_few_drafts_is_left_out() {
        // Nine rows, the last of which would cost a tile.
        let open = blocks(&[&SURE, &UNSURE], 0.3);
        assert_eq!(fit(2, &open, 0.3, &TILES), [5, 1], "eight rows");
        // Where a row is cheap, the tile is worth it.
        let cheap = blocks(&[&SURE, &UNSURE], 0.05);
        assert_eq!(fit(2, &cheap, 0.05, &TILES), [5, 5]);
        // Eight rows that are no drafts, and more: there is no smaller pass.
        assert_eq!(fit(9, &open, 0.3, &TILES), [5, 2]);
    }

    #[test]
    fn nothing_changes_where_rows_cost_alike() {
        let open = blocks(&[&SURE, &UNSURE], 0.6);
        assert_eq!(fit(2, &open, 0.6, &[]), [4, 0]);
        assert_eq!(fit(0, &[], 0.6, &TILES), [0; 0]);
    }
}
