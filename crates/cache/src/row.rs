//! Rows: the places in the device's row table where a running request's length and anchor live.

/// A taken row. The generation tells this holder from the row's earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// Place in the row table.
    pub index: usize,
    /// How many holders the place had before.
    pub generation: u64,
}

/// All rows.
#[derive(Debug)]
pub struct Rows {
    free: Vec<usize>,
    generations: Vec<u64>,
}

impl Rows {
    /// `total` free rows.
    pub fn new(total: usize) -> Rows {
        Rows { free: (0..total).rev().collect(), generations: vec![0; total] }
    }

    /// Takes a row, if one is free.
    pub fn take(&mut self) -> Option<Row> {
        let index = self.free.pop()?;
        Some(Row { index, generation: self.generations[index] })
    }

    /// Gives a row back; whoever still names it holds an older generation from now on.
    ///
    /// # Panics
    /// When the row was given back before.
    pub fn release(&mut self, row: Row) {
        let generation = &mut self.generations[row.index];
        assert_eq!(*generation, row.generation, "row {} released twice", row.index);
        *generation += 1;
        self.free.push(row.index);
    }

    /// Whether `row` was not given back yet.
    pub fn holds(&self, row: Row) -> bool {
        self.generations[row.index] == row.generation
    }

    /// Rows nobody holds.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// All rows.
    pub fn total(&self) -> usize {
        self.generations.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_one_holder_and_a_new_generation_each_time() {
        let mut rows = Rows::new(2);
        let (a, b) = (rows.take().unwrap(), rows.take().unwrap());
        assert_ne!(a.index, b.index);
        assert!(rows.take().is_none());
        assert!(rows.holds(a) && rows.holds(b));
        rows.release(a);
        assert!(!rows.holds(a) && rows.holds(b));
        let again = rows.take().unwrap();
        assert_eq!((again.index, again.generation), (a.index, a.generation + 1));
    }

    #[test]
    #[should_panic(expected = "released twice")]
    fn giving_back_twice_is_noticed() {
        let mut rows = Rows::new(1);
        let row = rows.take().unwrap();
        rows.release(row);
        rows.release(row);
    }
}
