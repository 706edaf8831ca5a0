//! The running requests: by row, which is how landed steps name them, and in order of service,
//! which is how plans and retractions go through them.

use crate::sequence::{Place, Running};
use cache::Row;

#[derive(Debug)]
pub(crate) struct Crew {
    by_row: Vec<Option<Running>>,
    /// Places and rows, ascending. Every plan goes through all of it and few change it, so it lies
    /// in one piece.
    order: Vec<(Place, usize)>,
}

impl Crew {
    pub(crate) fn new(rows: usize) -> Crew {
        Crew { by_row: (0..rows).map(|_| None).collect(), order: Vec::with_capacity(rows) }
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn push(&mut self, running: Running) {
        let (place, row) = (running.sequence.place, running.row.index);
        assert!(self.by_row[row].is_none(), "a row has one holder");
        self.by_row[row] = Some(running);
        let at = self.order.partition_point(|&(other, _)| other < place);
        self.order.insert(at, (place, row));
    }

    /// The request at a place in the order of service, to change it.
    pub(crate) fn at(&mut self, place: Place) -> Option<&mut Running> {
        let (_, row) = self.order[self.find(place)?];
        self.by_row[row].as_mut()
    }

    /// The holder of a row, if it still is the one that `row` names.
    #[inline]
    pub(crate) fn holder(&self, row: Row) -> Option<&Running> {
        self.by_row[row.index].as_ref().filter(|running| running.row == row)
    }

    /// The same, to change it.
    #[inline]
    pub(crate) fn holder_mut(&mut self, row: Row) -> Option<&mut Running> {
        self.by_row[row.index].as_mut().filter(|running| running.row == row)
    }

    pub(crate) fn remove(&mut self, place: Place) -> Option<Running> {
        let (_, row) = self.order.remove(self.find(place)?);
        self.by_row[row].take()
    }

    /// In order of service.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Running> {
        let holder = |&(_, row): &(Place, usize)| {
            self.by_row[row].as_ref().expect("a listed row has a holder")
        };
        self.order.iter().map(holder)
    }

    fn find(&self, place: Place) -> Option<usize> {
        self.order.binary_search_by_key(&place, |&(place, _)| place).ok()
    }
}
