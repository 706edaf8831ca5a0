//! The prefix cache against a naive model: a map from token prefixes to pages, searched from end
//! to end for every question. Thousands of random sequences of operations must give the same
//! matches, the same evictions and the same accounts; and every page must be found only under
//! the tokens that were written to it.

use cache::{Account, Lease, Match, Need, PrefixCache};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const TOTAL: usize = 12;

#[derive(Clone, Debug)]
enum Op {
    /// A request over a sequence: which, its length in tokens, how far to grow, its need.
    Start {
        family: u32,
        fork: usize,
        len: usize,
        need: Need,
    },
    Grow {
        which: usize,
        tokens: usize,
    },
    Publish {
        which: usize,
        tokens: usize,
        drafter: usize,
    },
    Release {
        which: usize,
        tokens: usize,
        drafter: usize,
    },
    Flush,
}

/// Sequences of one family share tokens up to the fork.
fn sequence(family: u32, fork: usize, len: usize) -> Vec<u32> {
    (0..len).map(|i| if i < fork { i as u32 % 3 } else { 7 + family * 10 + i as u32 % 2 }).collect()
}

#[derive(Clone, Debug)]
struct Cached {
    page: u32,
    drafter: bool,
    used: u64,
}

/// Every cached page by the whole prefix that ends with it.
#[derive(Default)]
struct Model {
    cached: BTreeMap<Vec<u32>, Cached>,
    /// Pages that were taken out while somebody read them: their prefix, and who did.
    retired: Vec<(Vec<u32>, BTreeSet<usize>)>,
    /// The pinned prefix of every lease.
    pins: BTreeMap<usize, Vec<u32>>,
    clock: u64,
}

impl Model {
    fn prefixes(tokens: &[u32], size: usize) -> impl Iterator<Item = &[u32]> {
        (1..=tokens.len() / size).map(move |pages| &tokens[..pages * size])
    }

    fn lookup(&self, tokens: &[u32], size: usize) -> Match {
        let found: Vec<_> =
            Model::prefixes(tokens, size).map_while(|prefix| self.cached.get(prefix)).collect();
        let with_drafter = found.iter().take_while(|page| page.drafter).count();
        Match { pages: found.len(), with_drafter }
    }

    fn touch(&mut self, prefix: &[u32], size: usize) {
        for prefix in Model::prefixes(prefix, size) {
            if let Some(page) = self.cached.get_mut(prefix) {
                page.used = self.clock;
            }
        }
    }

    fn pinned(&self, prefix: &[u32]) -> bool {
        self.pins.values().any(|pin| pin.starts_with(prefix))
    }

    fn evictable(&self) -> usize {
        self.cached.keys().filter(|prefix| !self.pinned(prefix)).count()
    }

    fn evict(&mut self) {
        let leaf = |prefix: &[u32]| {
            !self.cached.keys().any(|other| other.len() > prefix.len() && other.starts_with(prefix))
        };
        let oldest = self
            .cached
            .iter()
            .filter(|(prefix, _)| leaf(prefix) && !self.pinned(prefix))
            .min_by_key(|(_, page)| page.used)
            .map(|(prefix, _)| prefix.clone());
        self.cached.remove(&oldest.expect("something can be evicted"));
    }

    /// The pages of a lease that ends, or goes on, with `tokens`.
    fn insert(&mut self, tokens: &[u32], pages: &[u32], drafter: usize, size: usize) {
        for (i, prefix) in Model::prefixes(tokens, size).enumerate() {
            let new = Cached { page: pages[i], drafter: prefix.len() <= drafter, used: self.clock };
            let readers = self.readers(prefix);
            match self.cached.get_mut(prefix) {
                None => {
                    self.cached.insert(prefix.to_vec(), new);
                }
                Some(old) if old.page == new.page => old.used = self.clock,
                Some(old) if new.drafter && !old.drafter => {
                    *old = new;
                    self.retired.push((prefix.to_vec(), readers));
                }
                Some(old) => old.used = self.clock,
            }
        }
    }
}

impl Model {
    /// The leases whose prefix begins with this one.
    fn readers(&self, prefix: &[u32]) -> BTreeSet<usize> {
        let pins = self.pins.iter().filter(|(_, pin)| pin.starts_with(prefix));
        pins.map(|(&key, _)| key).collect()
    }

    /// Lets go what nobody reads, now that `gone` does not.
    fn forget(&mut self, gone: Option<usize>) {
        for (_, readers) in &mut self.retired {
            gone.iter().for_each(|key| _ = readers.remove(key));
        }
        self.retired.retain(|(_, readers)| !readers.is_empty());
    }
}

struct Held {
    key: usize,
    lease: Lease,
    tokens: Vec<u32>,
}

struct Harness {
    cache: PrefixCache,
    model: Model,
    held: Vec<Held>,
    size: usize,
    next: usize,
}

impl Harness {
    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Start { family, fork, len, need } => {
                self.start(sequence(family, fork, len * self.size / 2), need);
            }
            Op::Grow { which, tokens } if !self.held.is_empty() => self.grow(which, tokens),
            Op::Publish { which, tokens, drafter } if !self.held.is_empty() => {
                self.publish(which, tokens, drafter);
            }
            Op::Release { which, tokens, drafter } if !self.held.is_empty() => {
                let at = which % self.held.len();
                self.release(at, tokens, drafter);
            }
            Op::Flush => {
                self.cache.flush();
                while self.model.evictable() > 0 {
                    self.model.evict();
                }
            }
            _ => {}
        }
        self.compare();
    }

    fn start(&mut self, tokens: Vec<u32>, need: Need) {
        let found = self.model.lookup(&tokens, self.size);
        assert_eq!(self.cache.lookup(&tokens), found);
        let (lease, got) = self.cache.acquire(&tokens, need);
        assert_eq!(got.pages, found.usable(need));
        assert_eq!(got.with_drafter, found.with_drafter.min(got.pages));
        let prefix = tokens[..got.pages * self.size].to_vec();
        for (i, prefix) in Model::prefixes(&prefix, self.size).enumerate() {
            assert_eq!(self.model.cached[prefix].page, lease.pages()[i], "another prefix's page");
        }
        self.model.clock += 1;
        self.model.touch(&prefix, self.size);
        self.model.pins.insert(self.next, prefix);
        self.held.push(Held { key: self.next, lease, tokens });
        self.next += 1;
    }

    fn grow(&mut self, which: usize, tokens: usize) {
        let at = which % self.held.len();
        let free = self.cache.account().free;
        let held = &mut self.held[at];
        let tokens = tokens.min(held.tokens.len());
        let count = tokens.div_ceil(self.size).saturating_sub(held.lease.pages().len());
        let room = free + self.model.evictable();
        let grown = self.cache.grow(&mut held.lease, tokens);
        assert_eq!(grown.err(), count.checked_sub(room).filter(|&missing| missing > 0));
        if grown.is_ok() {
            (free..count).for_each(|_| self.model.evict());
        }
    }

    /// Tokens of a lease that are committed, when `wish` are asked for.
    fn committed(held: &Held, wish: usize, size: usize) -> usize {
        let least = held.lease.shared() * size;
        (held.lease.pages().len() * size).min(held.tokens.len()).min(wish).max(least)
    }

    fn publish(&mut self, which: usize, tokens: usize, drafter: usize) {
        let at = which % self.held.len();
        let held = &mut self.held[at];
        let tokens = &held.tokens[..Harness::committed(held, tokens, self.size)];
        let shared = held.lease.shared();
        let whole = tokens.len() / self.size;
        self.cache.publish(&mut held.lease, tokens, drafter);
        self.model.clock += 1;
        // Its own pages are adopted up to the first whose place is taken by one as good.
        let mut adopted = shared;
        for i in shared..whole {
            let prefix = &tokens[..(i + 1) * self.size];
            let (page, drafter) = (held.lease.pages()[i], prefix.len() <= drafter);
            let readers = self.model.readers(prefix);
            match self.model.cached.get(prefix) {
                Some(old) if old.drafter || !drafter => break,
                Some(_) => self.model.retired.push((prefix.to_vec(), readers)),
                None => {}
            }
            let page = Cached { page, drafter, used: self.model.clock };
            self.model.cached.insert(prefix.to_vec(), page);
            adopted = i + 1;
        }
        assert_eq!(held.lease.shared(), adopted);
        self.model.forget(None);
        self.model.pins.insert(held.key, tokens[..adopted * self.size].to_vec());
    }

    fn release(&mut self, at: usize, tokens: usize, drafter: usize) {
        let held = self.held.swap_remove(at);
        let tokens = &held.tokens[..Harness::committed(&held, tokens, self.size)];
        let (pages, shared) = (held.lease.pages().to_vec(), held.lease.shared());
        self.cache.release(held.lease, tokens, drafter);
        self.model.clock += 1;
        let own = shared * self.size;
        let stamps: Vec<u64> = Model::prefixes(&tokens[..own], self.size)
            .map(|prefix| self.model.cached[prefix].used)
            .collect();
        self.model.insert(tokens, &pages, drafter, self.size);
        // The shared part is not walked again: it keeps the time of its last use.
        for (prefix, used) in Model::prefixes(&tokens[..own], self.size).zip(stamps) {
            self.model.cached.get_mut(prefix).expect("shared pages are cached").used = used;
        }
        self.model.pins.remove(&held.key);
        self.model.forget(Some(held.key));
    }

    fn compare(&self) {
        let own: usize = self.held.iter().map(|h| h.lease.pages().len() - h.lease.shared()).sum();
        let cached = self.model.cached.len() + self.model.retired.len();
        let expected = Account { free: TOTAL - own - cached, cached, in_use: own, total: TOTAL };
        assert_eq!(self.cache.account(), expected);
        assert_eq!(self.cache.available(), expected.free + self.model.evictable());
        for held in &self.held {
            let pin = &self.model.pins[&held.key];
            let once = |prefix: &&[u32]| {
                self.model.pins.values().filter(|other| other.starts_with(prefix)).count() == 1
            };
            let alone = Model::prefixes(pin, self.size).filter(once).count();
            let retired = self.model.retired.iter().map(|(_, readers)| readers);
            let outside: Vec<_> = retired.filter(|r| r.contains(&held.key)).collect();
            assert_eq!(self.cache.outside(&held.lease), outside.len());
            let alone = alone + outside.iter().filter(|readers| readers.len() == 1).count();
            let own = held.lease.pages().len() - held.lease.shared();
            assert_eq!(self.cache.reclaimable(&held.lease), own + alone);
        }
        for (prefix, page) in &self.model.cached {
            let found = self.cache.lookup(prefix);
            assert_eq!(found.pages * self.size, prefix.len(), "{prefix:?} is lost");
            assert!(!page.drafter || found == self.model.lookup(prefix, self.size));
        }
    }
}

fn need() -> impl Strategy<Value = Need> {
    prop::sample::select(vec![Need::Target, Need::TargetAndDrafter])
}

fn op(size: usize) -> impl Strategy<Value = Op> {
    let tokens = 0..8 * size;
    let drafter = prop::sample::select(vec![0, size, 3 * size, usize::MAX]);
    prop_oneof![
        8 => (0u32..3, prop::sample::select(vec![0, size, 2 * size, 3 * size]), 0usize..14, need())
            .prop_map(|(family, fork, len, need)| Op::Start { family, fork, len, need }),
        8 => (any::<usize>(), tokens.clone()).prop_map(|(which, tokens)| Op::Grow { which, tokens }),
        3 => (any::<usize>(), tokens.clone(), drafter.clone())
            .prop_map(|(which, tokens, drafter)| Op::Publish { which, tokens, drafter }),
        6 => (any::<usize>(), tokens, drafter)
            .prop_map(|(which, tokens, drafter)| Op::Release { which, tokens, drafter }),
        1 => Just(Op::Flush),
    ]
}

fn sail(ops: &[Op], size: usize) {
    let cache = PrefixCache::new(TOTAL, size);
    let mut harness = Harness { cache, model: Model::default(), held: Vec::new(), size, next: 0 };
    ops.iter().for_each(|op| harness.apply(op));
    while !harness.held.is_empty() {
        harness.release(0, 0, 0);
        harness.compare();
    }
    harness.apply(&Op::Flush);
    assert_eq!(harness.cache.account().free, TOTAL, "pages are lost");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn one_token_pages_match_the_model(ops in prop::collection::vec(op(1), 1..60)) {
        sail(&ops, 1);
    }

    #[test]
    fn default_pages_match_the_model(ops in prop::collection::vec(op(16), 1..60)) {
        sail(&ops, 16);
    }

    #[test]
    fn large_pages_match_the_model(ops in prop::collection::vec(op(64), 1..60)) {
        sail(&ops, 64);
    }
}
