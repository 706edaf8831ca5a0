//! The prefix cache: leases over pages, and what outlives them in the radix tree.

use crate::page::{Account, Pages};
use crate::radix::{Inserted, NodeId, Page, Radix};

/// What an asker will do with a cached prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Run the target on it.
    Target,
    /// Run the drafter on it too. Pages without drafter context are a miss.
    TargetAndDrafter,
}

/// How much of a prefix is cached, in whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Pages with the target's KV.
    pub pages: usize,
    /// How many of them, from the first and without a gap, have drafter context.
    pub with_drafter: usize,
}

impl Match {
    /// Pages that serve an asker.
    pub fn usable(&self, need: Need) -> usize {
        match need {
            Need::Target => self.pages,
            Need::TargetAndDrafter => self.with_drafter,
        }
    }
}

/// The pages of one request, in token order: token `t` lies in page `t / page_size`. First come
/// pages shared with the tree, which it pins and never writes, then its own. Give it back with
/// [`PrefixCache::release`].
#[derive(Debug)]
#[must_use = "a lease that is dropped loses its pages"]
pub struct Lease {
    pages: Vec<u32>,
    shared: usize,
    node: NodeId,
}

impl Lease {
    /// The page ids, in token order.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// How many of them, from the first, belong to the tree.
    pub fn shared(&self) -> usize {
        self.shared
    }

    fn shared_pages(&self) -> &[u32] {
        &self.pages[..self.shared]
    }
}

/// All pages of the pool: free, leased, or cached by the tokens they hold.
#[derive(Debug)]
pub struct PrefixCache {
    pages: Pages,
    tree: Radix,
    page_size: usize,
}

impl PrefixCache {
    /// `total` free pages of `page_size` tokens.
    ///
    /// # Panics
    /// When `page_size` is not a power of two.
    pub fn new(total: usize, page_size: usize) -> PrefixCache {
        assert!(page_size.is_power_of_two(), "page size must be a power of two, got {page_size}");
        PrefixCache { pages: Pages::new(total), tree: Radix::new(page_size), page_size }
    }

    /// Tokens a page holds.
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// Where all pages are.
    pub fn account(&self) -> Account {
        self.pages.account()
    }

    /// Pages that [`PrefixCache::grow`] can hand out: those free and those it may evict.
    pub fn available(&self) -> usize {
        self.pages.account().free + self.tree.unpinned()
    }

    /// How many pages would become available if `lease` were given back now.
    pub fn reclaimable(&self, lease: &Lease) -> usize {
        let (alone, _) = self.tree.held(lease.node, lease.shared_pages());
        lease.pages.len() - lease.shared + alone
    }

    /// How many pages `lease` reads besides those that took their places in the tree: given back
    /// and acquired again, it would need so many fewer.
    pub fn outside(&self, lease: &Lease) -> usize {
        self.tree.held(lease.node, lease.shared_pages()).1
    }

    /// How much of `tokens` is cached. Does not count as a use.
    pub fn lookup(&self, tokens: &[u32]) -> Match {
        let found = self.tree.lookup(tokens);
        let with_drafter = found.iter().take_while(|page| page.drafter).count();
        Match { pages: found.len(), with_drafter }
    }

    /// A lease of the longest cached prefix of `tokens` that serves `need`, pinned; and what of
    /// it has drafter context. Whole pages only: possibly none.
    pub fn acquire(&mut self, tokens: &[u32], need: Need) -> (Lease, Match) {
        self.tree.tick();
        let found = self.lookup(tokens);
        let pages = found.usable(need);
        let mut ids = Vec::with_capacity(pages);
        let node = self.tree.follow(self.tree.root(), tokens, pages, &mut ids);
        assert_eq!(ids.len(), pages, "what was found can be followed");
        self.tree.pin(node);
        let found = Match { pages, with_drafter: found.with_drafter.min(pages) };
        (Lease { pages: ids, shared: pages, node }, found)
    }

    /// Extends a lease to `tokens` tokens, evicting cached pages when too few are free.
    ///
    /// # Errors
    /// How many pages are missing; nothing has changed then.
    pub fn grow(&mut self, lease: &mut Lease, tokens: usize) -> Result<(), usize> {
        let count = tokens.div_ceil(self.page_size).saturating_sub(lease.pages.len());
        if count == 0 {
            return Ok(());
        }
        match count.checked_sub(self.available()) {
            None | Some(0) => {}
            Some(missing) => return Err(missing),
        }
        while self.pages.account().free < count {
            let page = self.tree.evict().expect("unpinned pages can be evicted");
            self.pages.evict(page);
        }
        lease.pages.extend((0..count).map(|_| self.pages.take()));
        self.pages.check();
        Ok(())
    }

    /// Lets others use the whole pages of `tokens`, which are committed and will never be written
    /// again, while the lease goes on. The first `drafter` tokens have drafter context. Pages whose
    /// tokens the tree has already stay private, and the release sorts it out; but pages that bring
    /// drafter context where the tree's have none take their place.
    pub fn publish(&mut self, lease: &mut Lease, tokens: &[u32], drafter: usize) {
        self.tree.tick();
        let (_, rest, pages) = self.private(lease, tokens, drafter);
        let (node, inserted) = self.tree.publish(lease.node, rest, &pages);
        lease.shared += inserted.adopted.len();
        self.settle(inserted);
        self.tree.lengthen(lease.node, node);
        lease.node = node;
        self.pages.check();
    }

    /// Takes a lease back. Whole pages of `tokens`, the committed tokens that have KV, stay in
    /// the tree unless it has them already; the first `drafter` tokens have drafter context. All
    /// other private pages are free again.
    pub fn release(&mut self, mut lease: Lease, tokens: &[u32], drafter: usize) {
        self.tree.tick();
        let (whole, rest, pages) = self.private(&lease, tokens, drafter);
        let inserted = self.tree.insert(lease.node, rest, &pages);
        let duplicates = self.settle(inserted);
        let surplus = lease.pages.drain(whole..).chain(duplicates);
        // In reverse, so that the next lease gets them in the order this one had them.
        surplus.rev().for_each(|page| self.pages.give_back(page));
        let unread = self.tree.unpin(lease.node, lease.shared_pages());
        unread.into_iter().for_each(|page| self.pages.evict(page));
        self.pages.check();
    }

    /// Enters in the accounts what the tree took and what it lets go. The lease's own that it has no
    /// use for.
    fn settle(&mut self, inserted: Inserted) -> Vec<u32> {
        inserted.adopted.into_iter().for_each(|page| self.pages.adopt(page));
        inserted.displaced.into_iter().for_each(|page| self.pages.evict(page));
        inserted.duplicates
    }

    /// Forgets every cached prefix that no lease uses.
    pub fn flush(&mut self) {
        while let Some(page) = self.tree.evict() {
            self.pages.evict(page);
        }
        self.pages.check();
    }

    /// The lease's own pages that `tokens` fill: their end in the lease, their tokens, themselves.
    fn private<'t>(
        &self,
        lease: &Lease,
        tokens: &'t [u32],
        drafter: usize,
    ) -> (usize, &'t [u32], Vec<Page>) {
        let whole = tokens.len() / self.page_size;
        assert!(lease.shared <= whole, "a lease holds at least the tokens it was acquired with");
        assert!(whole <= lease.pages.len(), "{} tokens exceed the lease", tokens.len());
        let filled = |i: usize| (i + 1) * self.page_size <= drafter;
        let page = |i: usize| Page { id: lease.pages[i], drafter: filled(i) };
        let rest = &tokens[lease.shared * self.page_size..whole * self.page_size];
        (whole, rest, (lease.shared..whole).map(page).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a request of `tokens` through the cache; how many pages it found.
    fn run(cache: &mut PrefixCache, tokens: &[u32], need: Need, drafter: usize) -> usize {
        let (mut lease, found) = cache.acquire(tokens, need);
        cache.grow(&mut lease, tokens.len()).expect("the pool is large enough");
        cache.release(lease, tokens, drafter);
        found.pages
    }

    #[test]
    fn whole_pages_are_found_again_and_the_rest_is_free() {
        let mut cache = PrefixCache::new(8, 4);
        let tokens: Vec<u32> = (0..11).collect();
        assert_eq!(run(&mut cache, &tokens, Need::Target, 0), 0);
        assert_eq!(cache.account(), Account { free: 6, cached: 2, in_use: 0, total: 8 });
        assert_eq!(run(&mut cache, &tokens[..9], Need::Target, 0), 2);
        assert_eq!(run(&mut cache, &tokens[..7], Need::Target, 0), 1);
        assert_eq!(run(&mut cache, &[0, 1, 2, 9], Need::Target, 0), 0);
        cache.flush();
        assert_eq!(cache.account(), Account { free: 8, cached: 0, in_use: 0, total: 8 });
    }

    #[test]
    fn pages_without_drafter_context_are_a_miss_until_somebody_brings_it() {
        let mut cache = PrefixCache::new(8, 4);
        let tokens: Vec<u32> = (0..12).collect();
        run(&mut cache, &tokens, Need::Target, 4);
        assert_eq!(cache.lookup(&tokens), Match { pages: 3, with_drafter: 1 });
        assert_eq!(run(&mut cache, &tokens, Need::TargetAndDrafter, 12), 1);
        assert_eq!(cache.lookup(&tokens), Match { pages: 3, with_drafter: 3 });
        assert_eq!(cache.account(), Account { free: 5, cached: 3, in_use: 0, total: 8 });
    }

    #[test]
    fn what_a_lease_reads_is_not_evicted() {
        let mut cache = PrefixCache::new(4, 4);
        let tokens: Vec<u32> = (0..8).collect();
        run(&mut cache, &tokens, Need::Target, 0);
        let (reader, _) = cache.acquire(&tokens, Need::Target);
        // Two pages are free; a third would have to come from the reader.
        let (mut other, _) = cache.acquire(&tokens, Need::TargetAndDrafter);
        assert_eq!(cache.grow(&mut other, 12), Err(1));
        cache.grow(&mut other, 8).expect("two pages are free");
        cache.release(other, &tokens, 0);
        let (again, _) = cache.acquire(&tokens, Need::Target);
        assert_eq!(again.pages(), reader.pages());
        cache.release(again, &tokens, 0);
        cache.release(reader, &tokens, 0);
    }

    /// Under load some request always reads a common prefix. One that computes it again, because it
    /// drafts, must be the last that has to.
    #[test]
    fn drafter_context_comes_in_while_others_read() {
        for ends in ["published", "released"] {
            let mut cache = PrefixCache::new(6, 4);
            let tokens: Vec<u32> = (0..8).collect();
            run(&mut cache, &tokens, Need::Target, 0);
            let (reader, _) = cache.acquire(&tokens, Need::Target);
            let (mut drafts, found) = cache.acquire(&tokens, Need::TargetAndDrafter);
            assert_eq!(found.pages, 0);
            cache.grow(&mut drafts, 8).expect("four pages are free");
            let (old, new) = (reader.pages().to_vec(), drafts.pages().to_vec());
            if ends == "published" {
                cache.publish(&mut drafts, &tokens, 8);
                assert_eq!(drafts.shared(), 2);
            } else {
                let (lease, _) = cache.acquire(&[], Need::Target);
                cache.release(std::mem::replace(&mut drafts, lease), &tokens, 8);
            }
            let (next, found) = cache.acquire(&tokens, Need::TargetAndDrafter);
            assert_eq!((found.with_drafter, next.pages()), (2, &new[..]), "{ends}");
            assert_eq!(reader.pages(), old, "what it reads stays its own");
            // Nobody may have the pages that it reads, though they are not in the tree.
            assert_eq!(cache.account(), Account { free: 2, cached: 4, in_use: 0, total: 6 });
            assert_eq!(cache.available(), 2);
            cache.release(next, &tokens, 8);
            cache.release(drafts, if ends == "published" { &tokens } else { &[] }, 8);
            cache.release(reader, &tokens, 0);
            assert_eq!(cache.account(), Account { free: 4, cached: 2, in_use: 0, total: 6 });
        }
    }

    #[test]
    fn published_pages_serve_others_while_the_first_goes_on() {
        let mut cache = PrefixCache::new(8, 4);
        let tokens: Vec<u32> = (0..9).collect();
        let (mut first, _) = cache.acquire(&tokens, Need::Target);
        cache.grow(&mut first, 12).expect("the pool is large enough");
        cache.publish(&mut first, &tokens, 0);
        assert_eq!((first.shared(), cache.reclaimable(&first)), (2, 3));
        let (second, found) = cache.acquire(&tokens, Need::Target);
        assert_eq!((found.pages, second.pages()), (2, &first.pages()[..2]));
        assert_eq!(cache.reclaimable(&first), 1);
        cache.release(first, &tokens, 0);
        assert_eq!(cache.available(), 6);
        cache.release(second, &tokens[..8], 0);
        assert_eq!(cache.available(), 8);
    }
}
