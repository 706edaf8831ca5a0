//! Pages: fixed-size runs of token slots, and who has them. Not which tokens they hold: that is
//! the business of leases and of the tree.

/// Where all pages are. `free + cached + in_use == total` at every moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Nobody's.
    pub free: usize,
    /// In the prefix tree, whether or not a lease pins them.
    pub cached: usize,
    /// Private pages of leases.
    pub in_use: usize,
    /// All.
    pub total: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Nobody,
    Lease,
    Tree,
}

/// All pages of the pool.
#[derive(Debug)]
pub(crate) struct Pages {
    free: Vec<u32>,
    owner: Vec<Owner>,
    cached: usize,
    in_use: usize,
}

impl Pages {
    /// `total` free pages.
    pub(crate) fn new(total: usize) -> Pages {
        let end = u32::try_from(total).expect("page ids fit 32 bits");
        let owner = vec![Owner::Nobody; total];
        Pages { free: (0..end).rev().collect(), owner, cached: 0, in_use: 0 }
    }

    pub(crate) fn account(&self) -> Account {
        Account {
            free: self.free.len(),
            cached: self.cached,
            in_use: self.in_use,
            total: self.owner.len(),
        }
    }

    /// A free page, now a lease's.
    ///
    /// # Panics
    /// When none is free: the caller counts first.
    pub(crate) fn take(&mut self) -> u32 {
        let page = self.free.pop().expect("a free page: the caller has counted them");
        self.change(page, Owner::Nobody, Owner::Lease);
        page
    }

    /// A lease's page becomes free.
    pub(crate) fn give_back(&mut self, page: u32) {
        self.change(page, Owner::Lease, Owner::Nobody);
        self.free.push(page);
    }

    /// A lease's page becomes the tree's.
    pub(crate) fn adopt(&mut self, page: u32) {
        self.change(page, Owner::Lease, Owner::Tree);
    }

    /// A page of the tree becomes free.
    pub(crate) fn evict(&mut self, page: u32) {
        self.change(page, Owner::Tree, Owner::Nobody);
        self.free.push(page);
    }

    fn change(&mut self, page: u32, from: Owner, to: Owner) {
        let owner = &mut self.owner[page as usize];
        assert_eq!(*owner, from, "page {page} is about to change from {from:?} to {to:?}");
        *owner = to;
        let count = |owner| (usize::from(owner == Owner::Tree), usize::from(owner == Owner::Lease));
        let ((tree_from, lease_from), (tree_to, lease_to)) = (count(from), count(to));
        self.cached = self.cached + tree_to - tree_from;
        self.in_use = self.in_use + lease_to - lease_from;
    }

    /// # Panics
    /// When a page is lost or counted twice.
    pub(crate) fn check(&self) {
        let Account { free, cached, in_use, total } = self.account();
        assert_eq!(free + cached + in_use, total, "{free} free, {cached} cached, {in_use} in use");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_goes_round_and_is_counted_at_every_place() {
        let mut pages = Pages::new(3);
        let page = pages.take();
        let count = |pages: &Pages| {
            pages.check();
            let account = pages.account();
            (account.free, account.cached, account.in_use)
        };
        assert_eq!(count(&pages), (2, 0, 1));
        pages.adopt(page);
        assert_eq!(count(&pages), (2, 1, 0));
        pages.evict(page);
        assert_eq!(count(&pages), (3, 0, 0));
    }

    #[test]
    #[should_panic(expected = "page 0 is about to change from Lease to Nobody")]
    fn giving_back_twice_is_noticed() {
        let mut pages = Pages::new(1);
        let page = pages.take();
        pages.give_back(page);
        pages.give_back(page);
    }
}
