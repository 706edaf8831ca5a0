//! Pages: fixed-size runs of token slots, leased to requests and returned.

/// All pages of the pool. `free + in use == total` at every moment.
#[derive(Debug)]
pub struct Pages {
    free: Vec<u32>,
    total: usize,
    page_size: usize,
}

/// Pages that belong to one request, in token order: token `t` lies in the lease's page
/// `t / page_size`. Give it back with [`Pages::release`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a lease that is dropped loses its pages"]
pub struct Lease {
    pages: Vec<u32>,
}

impl Pages {
    /// `total` pages of `page_size` tokens.
    ///
    /// # Panics
    /// When `page_size` is not a power of two.
    pub fn new(total: usize, page_size: usize) -> Pages {
        assert!(page_size.is_power_of_two(), "page size must be a power of two, got {page_size}");
        let last = u32::try_from(total).expect("page ids fit 32 bits");
        Pages { free: (0..last).rev().collect(), total, page_size }
    }

    /// Tokens a page holds.
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// Pages nobody holds.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// All pages.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Leases pages for `tokens` tokens; `None` (and nothing taken) when too few are free.
    pub fn lease(&mut self, tokens: usize) -> Option<Lease> {
        let count = tokens.div_ceil(self.page_size);
        let keep = self.free.len().checked_sub(count)?;
        let mut pages = self.free.split_off(keep);
        pages.reverse();
        Some(Lease { pages })
    }

    /// Takes a lease's pages back.
    ///
    /// # Panics
    /// When more pages come back than were ever leased.
    pub fn release(&mut self, lease: Lease) {
        self.free.extend(lease.pages.into_iter().rev());
        assert!(self.free.len() <= self.total, "pages released twice");
    }
}

impl Lease {
    /// The page ids, in token order.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn leases_never_overlap_and_all_come_back() {
        for page_size in [1, 16, 64] {
            let mut pages = Pages::new(40, page_size);
            let mut held: Vec<Lease> = Vec::new();
            // A fixed pseudo-random walk of leases and releases.
            let mut state = 12345u64;
            for _ in 0..2000 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let draw = (state >> 33) as usize;
                if draw.is_multiple_of(3) && !held.is_empty() {
                    pages.release(held.swap_remove(draw % held.len()));
                } else if let Some(lease) = pages.lease(1 + draw % (9 * page_size)) {
                    held.push(lease);
                }
                let used: Vec<u32> = held.iter().flat_map(|l| l.pages()).copied().collect();
                let distinct: HashSet<u32> = used.iter().copied().collect();
                assert_eq!(used.len(), distinct.len(), "a page is leased twice");
                assert_eq!(pages.free() + used.len(), pages.total());
            }
            held.drain(..).for_each(|lease| pages.release(lease));
            assert_eq!(pages.free(), pages.total());
        }
    }

    #[test]
    fn a_lease_that_does_not_fit_takes_nothing() {
        let mut pages = Pages::new(4, 16);
        assert!(pages.lease(65).is_none());
        assert_eq!(pages.free(), 4);
        let lease = pages.lease(49).expect("49 tokens fit 4 pages of 16");
        assert_eq!((lease.pages().len(), pages.free()), (4, 0));
        pages.release(lease);
    }
}
