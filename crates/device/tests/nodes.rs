//! Memory nodes that this machine need not have: where threads stay, and whose copy they read.

#![cfg(target_os = "linux")]

use device::{Cpu, Nodes};
use std::sync::{Barrier, Mutex};
use std::thread;

/// The CPUs that this thread may use, as the system lists them.
fn allowed() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("threads have one");
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.expect("it lists CPUs").trim().to_owned()
}

/// The first and the last CPU that this thread may use, which are one where there is no other.
fn two_cpus() -> [usize; 2] {
    let list = allowed();
    let mut cpus = list.split([',', '-']).map(|cpu| cpu.parse().expect("a number"));
    let first = cpus.next().expect("it runs somewhere");
    [first, cpus.next_back().unwrap_or(first)]
}

/// Two nodes: this machine, and one that it has not.
fn near_and_far() -> Nodes {
    Nodes::of([(0..4096).collect(), (4096..8192).collect()])
}

/// The node that a thread of a pool of two counts for there.
fn node_by_name() -> u8 {
    u8::from(thread::current().name() == Some("cpu-1"))
}

#[test]
fn workers_stay_on_their_node_and_callers_where_they_are() {
    let (before, cpus) = (allowed(), two_cpus());
    let pool = Cpu::on(&Nodes::of(cpus.map(|cpu| vec![cpu])), 2);
    assert_eq!(pool.nodes(), 2);
    let (both, lists) = (Barrier::new(2), Mutex::new(Vec::new()));
    pool.parallel(2, &|_| {
        both.wait();
        lists.lock().unwrap().push((node_by_name(), allowed()));
    });
    let mut lists = lists.into_inner().unwrap();
    lists.sort();
    assert_eq!(lists, [(0, before), (1, cpus[1].to_string())]);
}

#[test]
fn threads_on_one_node_run_anywhere() {
    for (nodes, threads) in [(Nodes::one(), 2), (near_and_far(), 1), (Nodes::of([vec![0]]), 2)] {
        let pool = Cpu::on(&nodes, threads);
        assert_eq!(pool.nodes(), 1);
        let (before, all) = (allowed(), Barrier::new(threads));
        pool.parallel(threads, &|_| {
            all.wait();
            assert_eq!(allowed(), before);
        });
    }
}

#[test]
fn each_thread_reads_the_copy_of_its_node() {
    let pool = Cpu::on(&near_and_far(), 2);
    // What a copy holds says who wrote it.
    let replicas = pool.replicated(100_000, 1000, &|index, chunk| {
        let name = thread::current().name().map(str::to_owned);
        let node = u8::from(name.expect("they have names") == "node-1");
        chunk.fill(100 * node + index as u8);
    });
    let both = Barrier::new(2);
    pool.parallel_here(2, &|here, _| {
        both.wait();
        let expected = (0..100_000).map(|at| 100 * node_by_name() + (at / 1000) as u8);
        assert!(replicas.on(here).iter().copied().eq(expected));
    });
    // Alone a caller counts for its node, too.
    pool.parallel_here(1, &|here, _| assert_eq!(replicas.on(here)[0], 0));
    // A pool of one node reads the first copy, and one of two the only one.
    Cpu::new(2).parallel_here(9, &|here, _| assert_eq!(replicas.on(here)[0], 0));
    let only = Cpu::new(2).replicated(10, 4, &|_, chunk| chunk.fill(7));
    pool.parallel_here(9, &|here, _| assert_eq!(only.on(here), [7; 10]));
}

#[test]
fn copies_are_written_by_threads_that_stay_on_their_node() {
    let cpus = two_cpus();
    let pool = Cpu::on(&Nodes::of(cpus.map(|cpu| vec![cpu])), 4);
    let (before, lists) = (allowed(), [(); 2].map(|()| Mutex::new(Vec::new())));
    let replicas = pool.replicated(64, 1, &|index, chunk| {
        chunk[0] = index as u8;
        let node = usize::from(thread::current().name() == Some("node-1"));
        lists[node].lock().unwrap().push(allowed());
    });
    for (list, cpu) in lists.into_iter().zip(cpus) {
        assert_eq!(list.into_inner().unwrap(), vec![cpu.to_string(); 64]);
    }
    assert_eq!(allowed(), before, "who asked for them is not kept anywhere");
    pool.parallel_here(9, &|here, _| assert!(replicas.on(here).iter().copied().eq(0..64)));
    let nothing = pool.replicated(0, 1, &|_, _| panic!("of nothing there are no chunks"));
    pool.parallel_here(1, &|here, _| assert!(nothing.on(here).is_empty()));
}

#[test]
#[should_panic(expected = "chunk 3 broke")]
fn a_panic_while_a_copy_is_written_reaches_the_caller() {
    let fill = |index: usize, _: &mut [u8]| assert!(index != 3, "chunk {index} broke");
    Cpu::on(&near_and_far(), 2).replicated(10, 1, &fill);
}
