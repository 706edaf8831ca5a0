//! The radix tree of the prefix cache: edges are runs of token ids, a whole number of pages long,
//! and carry the pages that hold their KV. It names pages but does not own their accounts; the
//! cache does.
//!
//! A pin on a node is counted on its whole path to the root, so pins never grow towards the
//! leaves. Time is a counter of operations, so what is evicted depends on nothing but the order
//! of calls.

use slotmap::{SlotMap, new_key_type};
use std::collections::{BTreeSet, HashMap};

new_key_type! {
    /// A node of the tree.
    pub(crate) struct NodeId;
}

/// A page of a node, and whether its slots of the drafter's pool are filled too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) id: u32,
    pub(crate) drafter: bool,
}

#[derive(Debug)]
struct Node {
    parent: NodeId,
    /// `pages.len() · page_size` ids; none for the root only.
    tokens: Vec<u32>,
    pages: Vec<Page>,
    /// By the tokens of their first page.
    children: HashMap<Vec<u32>, NodeId>,
    /// Leases of this node and of the nodes below.
    pins: usize,
    /// The operation that used the node last.
    used: u64,
    /// Pages that left the tree while leases of the node read them.
    retired: Vec<Retired>,
}

/// A page that others took the place of while somebody read it.
#[derive(Debug)]
struct Retired {
    /// Where it was among the node's pages.
    place: usize,
    id: u32,
    /// Leases that still read it.
    readers: usize,
}

#[derive(Debug)]
pub(crate) struct Radix {
    nodes: SlotMap<NodeId, Node>,
    root: NodeId,
    page_size: usize,
    clock: u64,
    /// Leaves that nobody pins, least recently used first.
    evictable: BTreeSet<(u64, NodeId)>,
    /// Pages of nodes that nobody pins.
    unpinned: usize,
}

/// What became of the pages offered to [`Radix::insert`] or [`Radix::publish`].
#[derive(Debug, Default)]
pub(crate) struct Inserted {
    /// In the tree now.
    pub(crate) adopted: Vec<u32>,
    /// Not needed: the tree has the same tokens.
    pub(crate) duplicates: Vec<u32>,
    /// Left the tree, and nobody reads them: the same tokens came with drafter context.
    pub(crate) displaced: Vec<u32>,
}

impl Radix {
    pub(crate) fn new(page_size: usize) -> Radix {
        let mut nodes = SlotMap::with_key();
        let root = nodes.insert_with_key(|root| Node {
            parent: root,
            tokens: Vec::new(),
            pages: Vec::new(),
            children: HashMap::new(),
            pins: 0,
            used: 0,
            retired: Vec::new(),
        });
        Radix { nodes, root, page_size, clock: 0, evictable: BTreeSet::new(), unpinned: 0 }
    }

    pub(crate) fn root(&self) -> NodeId {
        self.root
    }

    /// Pages that eviction could free. A leaf's ancestors become leaves in turn, and nobody pins
    /// an ancestor without its path, so these are all pages of unpinned nodes.
    pub(crate) fn unpinned(&self) -> usize {
        self.unpinned
    }

    /// Begins an operation: whatever it uses is younger than what earlier ones used.
    pub(crate) fn tick(&mut self) {
        self.clock += 1;
    }

    /// The pages of the longest cached prefix of `tokens`, in order. Uses nothing.
    pub(crate) fn lookup(&self, tokens: &[u32]) -> Vec<Page> {
        let (mut at, mut found) = (self.root, Vec::new());
        while let Some(next) = self.child(at, &tokens[found.len() * self.page_size..]) {
            let rest = &tokens[found.len() * self.page_size..];
            let common = self.common(next, rest);
            found.extend(&self.nodes[next].pages[..common]);
            if common < self.nodes[next].pages.len() {
                break;
            }
            at = next;
        }
        found
    }

    /// Follows at most `pages` pages of `tokens` from `from`, using what it passes. Returns the
    /// node that ends there (one is split if need be) and appends the ids of the pages.
    pub(crate) fn follow(
        &mut self,
        from: NodeId,
        tokens: &[u32],
        pages: usize,
        out: &mut Vec<u32>,
    ) -> NodeId {
        let (mut at, mut rest) = (from, &tokens[..pages * self.page_size]);
        while let Some((next, common)) = self.step(at, rest) {
            out.extend(self.nodes[next].pages.iter().map(|page| page.id));
            (at, rest) = (next, &rest[common * self.page_size..]);
        }
        at
    }

    /// Adds `pages`, which hold `tokens`, below `from`. Where the tree has the same tokens its own
    /// pages stay, but for those that lack drafter context while the newcomer brings it.
    pub(crate) fn insert(&mut self, from: NodeId, tokens: &[u32], pages: &[Page]) -> Inserted {
        let mut out = Inserted::default();
        let (mut at, mut rest, mut new) = (from, tokens, pages);
        while let Some((next, common)) = self.step(at, rest) {
            self.renew(next, &new[..common], &mut out);
            (at, rest, new) = (next, &rest[common * self.page_size..], &new[common..]);
        }
        if !new.is_empty() {
            out.adopted.extend(new.iter().map(|page| page.id));
            self.attach(at, rest, new);
        }
        out
    }

    /// Adds as many of `pages`, which hold `tokens`, below `from` as can be in the tree themselves:
    /// up to the first whose place is taken by a page as good. The node where they end.
    pub(crate) fn publish(
        &mut self,
        from: NodeId,
        tokens: &[u32],
        pages: &[Page],
    ) -> (NodeId, Inserted) {
        let mut out = Inserted::default();
        let (mut at, mut rest, mut new) = (from, tokens, pages);
        while let Some(child) = self.child(at, rest) {
            let common = self.common(child, rest);
            let better = |(old, new): &(&Page, &Page)| new.drafter && !old.drafter;
            let pairs = self.nodes[child].pages.iter().zip(&new[..common]);
            let renewed = pairs.take_while(better).count();
            if renewed == 0 {
                return (at, out);
            }
            let (next, _) = self.step(at, &rest[..renewed * self.page_size]).expect("a child");
            self.renew(next, &new[..renewed], &mut out);
            (at, rest, new) = (next, &rest[renewed * self.page_size..], &new[renewed..]);
        }
        if !new.is_empty() {
            out.adopted.extend(new.iter().map(|page| page.id));
            at = self.attach(at, rest, new);
        }
        (at, out)
    }

    /// Offers a node other pages with its tokens. Those that bring drafter context where it has none
    /// take the place of its own, which whoever reads them keeps.
    fn renew(&mut self, id: NodeId, pages: &[Page], out: &mut Inserted) {
        let node = &mut self.nodes[id];
        for (place, (old, &page)) in node.pages.iter_mut().zip(pages).enumerate() {
            if old.drafter || !page.drafter {
                out.duplicates.push(page.id);
                continue;
            }
            out.adopted.push(page.id);
            match node.pins {
                0 => out.displaced.push(old.id),
                readers => node.retired.push(Retired { place, id: old.id, readers }),
            }
            *old = page;
        }
    }

    /// A new, unpinned leaf below `parent`, which has no child that begins like it.
    pub(crate) fn attach(&mut self, parent: NodeId, tokens: &[u32], pages: &[Page]) -> NodeId {
        debug_assert_eq!(tokens.len(), pages.len() * self.page_size);
        self.unlist(parent);
        let id = self.nodes.insert(Node {
            parent,
            tokens: tokens.to_vec(),
            pages: pages.to_vec(),
            children: HashMap::new(),
            pins: 0,
            used: self.clock,
            retired: Vec::new(),
        });
        let key = tokens[..self.page_size].to_vec();
        let other = self.nodes[parent].children.insert(key, id);
        assert!(other.is_none(), "two children of a node begin with the same page");
        self.unpinned += pages.len();
        self.list(id);
        id
    }

    /// Keeps a node's path from being evicted.
    pub(crate) fn pin(&mut self, id: NodeId) {
        self.lengthen(self.root, id);
    }

    /// Moves a pin from a node to one below it.
    pub(crate) fn lengthen(&mut self, from: NodeId, to: NodeId) {
        let mut at = to;
        while at != from {
            if self.nodes[at].pins == 0 {
                self.unlist(at);
                self.unpinned -= self.nodes[at].pages.len();
            }
            self.nodes[at].pins += 1;
            at = self.nodes[at].parent;
        }
    }

    /// Takes back a pin of who read `pages` on the path of `id`, all of it. Those of them that are
    /// not in the tree and that nobody else reads.
    pub(crate) fn unpin(&mut self, id: NodeId, pages: &[u32]) -> Vec<u32> {
        let (mut at, mut end, mut unread) = (id, pages.len(), Vec::new());
        while at != self.root {
            let node = &mut self.nodes[at];
            end -= node.pages.len();
            node.retired.iter_mut().filter(|r| r.id == pages[end + r.place]).for_each(|r| {
                r.readers -= 1;
                unread.extend((r.readers == 0).then_some(r.id));
            });
            node.retired.retain(|retired| retired.readers > 0);
            node.pins = node.pins.checked_sub(1).expect("a pin that was set");
            let (pins, parent) = (node.pins, node.parent);
            if pins == 0 {
                self.unpinned += self.nodes[at].pages.len();
                self.list(at);
            }
            at = parent;
        }
        unread
    }

    /// Of the `pages` that a pin on `id` reads, and of those that took their places: how many it
    /// alone keeps from being evicted or freed, and how many it reads that are not in the tree.
    pub(crate) fn held(&self, id: NodeId, pages: &[u32]) -> (usize, usize) {
        let (mut at, mut end, mut alone, mut outside) = (id, pages.len(), 0, 0);
        while at != self.root {
            let node = &self.nodes[at];
            end -= node.pages.len();
            if node.pins == 1 {
                alone += node.pages.len();
            }
            for retired in node.retired.iter().filter(|r| r.id == pages[end + r.place]) {
                alone += usize::from(retired.readers == 1);
                outside += 1;
            }
            at = node.parent;
        }
        (alone, outside)
    }

    /// Removes the last page of the least recently used leaf; `None` when all are pinned.
    pub(crate) fn evict(&mut self) -> Option<u32> {
        let &(_, id) = self.evictable.first()?;
        self.unpinned -= 1;
        let node = &mut self.nodes[id];
        let page = node.pages.pop().expect("every node but the root has pages");
        let last = node.tokens.split_off(node.pages.len() * self.page_size);
        if node.pages.is_empty() {
            self.unlist(id);
            let parent = self.nodes.remove(id).expect("it was just looked at").parent;
            let child = self.nodes[parent].children.remove(&last);
            assert_eq!(child, Some(id), "a node is its parent's child");
            self.list(parent);
        }
        Some(page.id)
    }

    /// The child of `at` that begins like `tokens`.
    fn child(&self, at: NodeId, tokens: &[u32]) -> Option<NodeId> {
        self.nodes[at].children.get(tokens.get(..self.page_size)?).copied()
    }

    /// Pages that a node and `tokens` have in common, from the first.
    fn common(&self, id: NodeId, tokens: &[u32]) -> usize {
        let node = self.nodes[id].tokens.chunks_exact(self.page_size);
        node.zip(tokens.chunks_exact(self.page_size)).take_while(|(a, b)| a == b).count()
    }

    /// One edge along `tokens`: the node and its pages, all of which match.
    fn step(&mut self, at: NodeId, tokens: &[u32]) -> Option<(NodeId, usize)> {
        let child = self.child(at, tokens)?;
        let common = self.common(child, tokens);
        let whole = common == self.nodes[child].pages.len();
        let id = if whole { child } else { self.split(child, common) };
        self.unlist(id);
        self.nodes[id].used = self.clock;
        self.list(id);
        Some((id, common))
    }

    /// Cuts a node after `pages` pages and returns the upper part, a new node. The lower part
    /// keeps the id, so that leases of the whole path stay right.
    fn split(&mut self, id: NodeId, pages: usize) -> NodeId {
        let cut = pages * self.page_size;
        let lower = &mut self.nodes[id];
        let tail = lower.tokens.split_off(cut);
        let tokens = std::mem::replace(&mut lower.tokens, tail);
        let tail = lower.pages.split_off(pages);
        let pages = std::mem::replace(&mut lower.pages, tail);
        let key = lower.tokens[..self.page_size].to_vec();
        let (parent, pins, used) = (lower.parent, lower.pins, lower.used);
        let old = std::mem::take(&mut lower.retired).into_iter();
        let (retired, below) = old.partition(|retired| retired.place < pages.len());
        lower.retired = below;
        lower.retired.iter_mut().for_each(|retired| retired.place -= pages.len());
        let first = tokens[..self.page_size].to_vec();
        let children = HashMap::from([(key, id)]);
        let upper =
            self.nodes.insert(Node { parent, tokens, pages, children, pins, used, retired });
        self.nodes[id].parent = upper;
        self.nodes[parent].children.insert(first, upper);
        upper
    }

    fn unlist(&mut self, id: NodeId) {
        self.evictable.remove(&(self.nodes[id].used, id));
    }

    fn list(&mut self, id: NodeId) {
        let node = &self.nodes[id];
        if id != self.root && node.pins == 0 && node.children.is_empty() {
            self.evictable.insert((node.used, id));
        }
    }
}
