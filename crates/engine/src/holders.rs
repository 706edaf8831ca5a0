//! What the forward lane keeps of the requests that hold rows. The host tells it once, with the chunk
//! that ends a request's known tokens; from there on the lane follows what it chooses itself, so no
//! step waits for the one before.

use cache::Row;
use schedule::{PlannedRow, Then, Work};

/// Something of each row's holder, by place in the row table; nothing where the holder needs none.
pub(crate) struct Holders<T> {
    by_place: Vec<Option<(Row, T)>>,
}

impl<T> Holders<T> {
    pub(crate) fn new() -> Holders<T> {
        Holders { by_place: Vec::new() }
    }

    /// Takes in what is `told` of requests whose known tokens end with this step. A place that has
    /// another holder by then is that one's alone.
    pub(crate) fn begin(
        &mut self,
        planned: &[PlannedRow],
        told: impl Fn(&PlannedRow) -> Option<T>,
    ) {
        for row in planned {
            let Work::Chunk { then: Then::Choose, .. } = row.work else { continue };
            let (place, own) = (row.row.index, told(row).map(|own| (row.row, own)));
            if self.by_place.len() <= place {
                if own.is_none() {
                    continue;
                }
                self.by_place.resize_with(place + 1, || None);
            }
            self.by_place[place] = own;
        }
    }

    /// What there is of a row's holder.
    pub(crate) fn of(&self, row: Row) -> Option<&T> {
        let (holder, own) = self.by_place.get(row.index)?.as_ref()?;
        (*holder == row).then_some(own)
    }

    /// The same, to change it.
    pub(crate) fn of_mut(&mut self, row: Row) -> Option<&mut T> {
        let (holder, own) = self.by_place.get_mut(row.index)?.as_mut()?;
        (*holder == row).then_some(own)
    }
}
