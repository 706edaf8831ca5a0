//! Rows that are computed where they are used: what one operation makes of a row and what the next one
//! takes of it are the work of one thread, in one go.

/// The rows that an operation makes, `[count, width]`.
pub trait Rows: Sync {
    /// Rows.
    fn count(&self) -> usize;

    /// Elements of a row.
    fn width(&self) -> usize;

    /// Computes a row. Different rows may be computed at the same time.
    ///
    /// # Safety
    /// No row is computed twice.
    unsafe fn compute(&self, row: usize) -> &[f32];
}

/// Rows that are there.
pub struct Given<'a> {
    x: &'a [f32],
    count: usize,
}

impl<'a> Given<'a> {
    /// `x` as `count` rows.
    ///
    /// # Panics
    /// When it is not so many rows of one width.
    pub fn new(x: &'a [f32], count: usize) -> Given<'a> {
        let whole = if count == 0 { x.is_empty() } else { x.len().is_multiple_of(count) };
        assert!(whole, "{} elements are not {count} rows", x.len());
        Given { x, count }
    }
}

impl Rows for Given<'_> {
    fn count(&self) -> usize {
        self.count
    }

    fn width(&self) -> usize {
        self.x.len().checked_div(self.count).unwrap_or(0)
    }

    unsafe fn compute(&self, row: usize) -> &[f32] {
        &self.x[row * self.width()..][..self.width()]
    }
}
