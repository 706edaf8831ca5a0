//! Memory nodes: which CPUs are near which memory.
//!
//! A machine of several sockets, or one that is divided, has several nodes. Each has CPUs and memory, and memory of
//! another node is farther away: fewer bytes a second come from there, and all who read there share them. So a pool
//! [deals](Seats) its threads out to nodes and keeps them there, and what every step reads has a copy
//! on each ([`Replicas`](crate::Replicas)).

use crate::affinity::{self, MOST};
use std::fs;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::path::Path;

/// Where Linux says what it knows of memory nodes.
const TREE: &str = "/sys/devices/system/node";

/// The memory nodes on which a process computes, each known by its CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// Of one node alone nobody asks which CPUs it has, and none are listed.
    cpus: Vec<Vec<usize>>,
}

impl Nodes {
    /// One: threads run anywhere, and there is one copy of everything.
    pub fn one() -> Nodes {
        Nodes { cpus: vec![Vec::new()] }
    }

    /// Those of this machine with CPUs that this thread may use; one where nothing is known about them.
    pub fn host() -> Nodes {
        Nodes::read(Path::new(TREE), &affinity::allowed()).unwrap_or_else(Nodes::one)
    }

    /// Nodes of these CPUs, numbered as the system numbers them. CPUs past 8191 and nodes without any are left out.
    pub fn of(nodes: impl IntoIterator<Item = Vec<usize>>) -> Nodes {
        let below = |cpus: Vec<usize>| cpus.into_iter().filter(|&cpu| cpu < MOST).collect();
        let mut cpus: Vec<Vec<usize>> = nodes.into_iter().map(below).collect();
        cpus.retain(|cpus| !cpus.is_empty());
        if cpus.len() > 1 { Nodes { cpus } } else { Nodes::one() }
    }

    /// Those of a tree like the system's, of which only `allowed` CPUs may be used. `None` where it says nothing that
    /// can be understood.
    fn read(root: &Path, allowed: &[usize]) -> Option<Nodes> {
        let mut nodes = Vec::new();
        for entry in fs::read_dir(root).ok()? {
            let entry = entry.ok()?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok());
            let Some(number): Option<usize> = number else { continue };
            // A node that has gone has no list; one that is memory alone has an empty one.
            let Ok(list) = fs::read_to_string(entry.path().join("cpulist")) else { continue };
            let ranges = ranges(list.trim())?;
            let of_node = |cpu: &&usize| ranges.iter().any(|range| range.contains(*cpu));
            nodes.push((number, allowed.iter().filter(of_node).copied().collect()));
        }
        nodes.sort_unstable();
        Some(Nodes::of(nodes.into_iter().map(|(_, cpus)| cpus)))
    }

    /// How many there are, at least one.
    pub fn count(&self) -> usize {
        self.cpus.len()
    }

    /// The node of each of `threads`: neighbours on one, and on each as many as its share of the CPUs.
    fn deal(&self, threads: usize) -> Vec<usize> {
        let all: usize = self.cpus.iter().map(Vec::len).sum();
        let ends = self.cpus.iter().scan(0, |end, cpus| {
            *end += cpus.len();
            Some(*end)
        });
        let ends: Vec<usize> = ends.collect();
        let node = |thread: usize| ends.partition_point(|&end| end <= all * thread / threads);
        (0..threads).map(|thread| node(thread).min(self.count() - 1)).collect()
    }
}

/// The ranges of a list such as `0-3,8`, which may be empty.
fn ranges(list: &str) -> Option<Vec<RangeInclusive<usize>>> {
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.split(',').filter(|text| !text.is_empty()).map(range).collect()
}

/// The memory node that a part of a region is computed on. It is the thread's that runs the part, and does not
/// leave it:
///
/// ```compile_fail,E0277
/// let cpu = device::Cpu::new(2);
/// cpu.parallel_here(2, &|here, _| {
///     std::thread::scope(|scope| {
///         scope.spawn(move || drop(here));
///     });
/// });
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Here {
    node: usize,
    stays: PhantomData<*const ()>,
}

impl Here {
    fn on(node: usize) -> Here {
        Here { node, stays: PhantomData }
    }

    /// The node's place among those that the pool has threads on.
    pub(crate) fn node(self) -> usize {
        self.node
    }
}

/// The nodes that the threads of a pool are dealt out to.
pub(crate) struct Seats {
    /// Those with threads.
    nodes: Nodes,
    /// The node of each thread; they ascend.
    of_thread: Box<[usize]>,
    /// The node of each CPU, the first for CPUs of none.
    of_cpu: Box<[usize]>,
}

impl Seats {
    /// For `threads`, the caller of regions being the first.
    pub(crate) fn new(nodes: &Nodes, threads: usize) -> Seats {
        let dealt = nodes.deal(threads);
        let mut used = dealt.clone();
        used.dedup();
        let of_thread = dealt.iter().map(|of| used.partition_point(|node| node < of)).collect();
        let nodes = Nodes::of(used.iter().map(|&node| nodes.cpus[node].clone()));
        let last = nodes.cpus.iter().flatten().max();
        let mut of_cpu = vec![0; last.map_or(0, |last| last + 1)];
        for (node, cpus) in nodes.cpus.iter().enumerate().rev() {
            cpus.iter().for_each(|&cpu| of_cpu[cpu] = node);
        }
        Seats { nodes, of_thread, of_cpu: of_cpu.into() }
    }

    /// How many nodes have threads.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.count()
    }

    /// How many threads a node has.
    pub(crate) fn threads(&self, node: usize) -> usize {
        self.of_thread.iter().filter(|&&of| of == node).count()
    }

    /// Makes the thread that calls this the pool's `thread`, which stays on its node.
    pub(crate) fn take(&self, thread: usize) -> Here {
        self.stay(self.of_thread[thread])
    }

    /// Keeps the thread that calls this on a node. Where the system refuses, it counts for the node all the same.
    pub(crate) fn stay(&self, node: usize) -> Here {
        if self.nodes() > 1 {
            affinity::stay_on(&self.nodes.cpus[node]);
        }
        Here::on(node)
    }

    /// Where the caller of a region is. Callers are not the pool's threads, and what a thread is kept on is handed down to
    /// all that it starts, so they are left alone and asked each time.
    pub(crate) fn caller(&self) -> Here {
        let cpu = if self.nodes() > 1 { affinity::current() } else { None };
        Here::on(cpu.and_then(|cpu| self.of_cpu.get(cpu)).copied().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The nodes of a tree with these lists, `None` for a node without one.
    fn read(lists: &[(&str, Option<&str>)], allowed: &[usize]) -> Option<Nodes> {
        let tree = tempfile::tempdir().unwrap();
        fs::write(tree.path().join("possible"), "0-7\n").unwrap();
        fs::create_dir(tree.path().join("power")).unwrap();
        for (node, list) in lists {
            fs::create_dir(tree.path().join(node)).unwrap();
            let write = |list: &&str| fs::write(tree.path().join(node).join("cpulist"), list);
            list.as_ref().map(write).transpose().unwrap();
        }
        Nodes::read(tree.path(), allowed)
    }

    fn all(cpus: RangeInclusive<usize>) -> Vec<usize> {
        cpus.collect()
    }

    #[test]
    fn nodes_have_the_cpus_of_their_lists() {
        let lists =
            [("node10", Some("12\n")), ("node0", Some("0-3,8-11\n")), ("node2", Some("4-7"))];
        let cpus = [vec![0, 1, 2, 3, 8, 9, 10, 11], vec![4, 5, 6, 7], vec![12]];
        assert_eq!(read(&lists, &all(0..=15)), Some(Nodes::of(cpus)));
        assert_eq!(read(&lists, &all(0..=15)).unwrap().count(), 3);
        let few = Nodes::of([vec![3, 9], vec![7]]);
        assert_eq!(read(&lists, &[3, 7, 9, 13]), Some(few), "what may be used alone counts");
    }

    #[test]
    fn nodes_without_cpus_do_not_count() {
        let lists = [
            ("node0", Some("0-1\n")),
            ("node1", Some("\n")),
            ("node2", None),
            ("node3", Some("2-3\n")),
        ];
        let two = Nodes::of([vec![0, 1], vec![2, 3]]);
        assert_eq!(read(&lists, &all(0..=3)), Some(two));
        assert_eq!(read(&lists, &[2]), Some(Nodes::one()), "one that may be used is the only one");
        assert_eq!(read(&lists, &[]), Some(Nodes::one()));
    }

    #[test]
    fn what_is_not_understood_is_not_guessed() {
        for wrong in ["0-", "a", "0-1 2", "-3", "0x1"] {
            assert_eq!(
                read(&[("node0", Some("4")), ("node1", Some(wrong))], &[0, 4]),
                None,
                "{wrong}"
            );
        }
        assert_eq!(Nodes::read(Path::new("/no/such/tree"), &[0]), None);
        assert!(Nodes::host().count() >= 1);
    }

    #[test]
    fn threads_are_dealt_by_the_share_of_cpus() {
        let two = Nodes::of([all(0..=3), all(4..=7)]);
        let uneven = Nodes::of([vec![0], all(1..=15)]);
        let three = Nodes::of([vec![0], vec![1], all(2..=15)]);
        for (nodes, dealt) in [
            (&two, &[0][..]),
            (&two, &[0, 1]),
            (&two, &[0, 0, 1]),
            (&two, &[0, 0, 0, 0, 1, 1, 1, 1]),
            (&two, &[0, 0, 0, 0, 0, 1, 1, 1, 1]),
            (&uneven, &[0, 1, 1, 1]),
            (&three, &[0, 2]),
            (&Nodes::one(), &[0, 0, 0]),
        ] {
            assert_eq!(nodes.deal(dealt.len()), dealt, "{nodes:?}");
        }
    }

    #[test]
    fn nodes_without_threads_get_no_seat() {
        let three = Nodes::of([vec![0], vec![1], all(2..=15)]);
        let seats = Seats::new(&three, 2);
        assert_eq!((seats.nodes(), seats.threads(0), seats.threads(1)), (2, 1, 1));
        assert_eq!(seats.nodes, Nodes::of([vec![0], all(2..=15)]));
        assert_eq!(*seats.of_thread, [0, 1]);
        assert_eq!((seats.of_cpu[0], seats.of_cpu[1], seats.of_cpu[2]), (0, 0, 1));
        assert_eq!(Seats::new(&three, 1).nodes(), 1);
        assert_eq!(Seats::new(&Nodes::one(), 5).threads(0), 5);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_caller_counts_for_the_node_it_runs_on() {
        let far = all(4096..=8191);
        assert_eq!(Seats::new(&Nodes::of([all(0..=4095), far.clone()]), 2).caller().node(), 0);
        assert_eq!(Seats::new(&Nodes::of([far, all(0..=4095)]), 2).caller().node(), 1);
    }
}
