//! Every part runs once, whatever the threads do; and what they read soon is near them.

use super::*;
use std::time::Duration;

/// Runs a region of `parts` and checks that each part ran exactly once.
fn check_each_part_once(cpu: &Cpu, parts: usize) {
    let runs: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
    cpu.parallel(parts, &|part| {
        runs[part].fetch_add(1, Ordering::Relaxed);
    });
    assert!(runs.iter().all(|r| r.load(Ordering::Relaxed) == 1), "{parts} parts: {runs:?}");
}

#[test]
fn every_part_runs_once() {
    for threads in [1, 2, 3, 8] {
        let cpu = Cpu::new(threads);
        assert_eq!(cpu.threads(), threads);
        for parts in [0, 1, 2, 3, 7, 64, 1000] {
            check_each_part_once(&cpu, parts);
        }
    }
    assert_eq!(Cpu::new(0).threads(), 1);
    assert!(Cpu::host().threads() >= 1);
}

#[test]
fn many_tiny_regions_back_to_back_and_after_sleeps() {
    let cpu = Cpu::new(3);
    let total = AtomicUsize::new(0);
    for _ in 0..5_000 {
        cpu.parallel(3, &|part| {
            total.fetch_add(part + 1, Ordering::Relaxed);
        });
    }
    assert_eq!(total.load(Ordering::Relaxed), 5_000 * 6);
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(2));
        check_each_part_once(&cpu, 5);
    }
}

/// A count keeps the low bits of its epoch; when those begin again no part is lost.
#[test]
fn parts_run_when_the_bits_of_epochs_begin_again() {
    let cpu = Cpu::new(2);
    check_each_part_once(&cpu, 7);
    let again = 1 << (u64::BITS - PART_BITS);
    cpu.pool.shared.gate.0.word.store((again - 3) * EPOCH, Ordering::SeqCst);
    for _ in 0..6 {
        check_each_part_once(&cpu, 7);
    }
}

#[test]
fn all_threads_take_part() {
    let cpu = Cpu::new(2);
    let both = std::sync::Barrier::new(2);
    // Ends only when two threads are in a body at once.
    cpu.parallel(2, &|_| {
        both.wait();
    });
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
    let cpu = Cpu::new(2);
    for bad in [0, 1, 99] {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            cpu.parallel(100, &|part| assert!(part != bad, "part {bad} broke"));
        }));
        let payload = outcome.expect_err("the panic reaches the caller");
        assert_eq!(*payload.downcast_ref::<String>().unwrap(), format!("part {bad} broke"));
        check_each_part_once(&cpu, 10);
    }
}

#[test]
fn a_panic_on_a_worker_reaches_the_caller() {
    let cpu = Cpu::new(2);
    let caller = std::thread::current().id();
    let both = std::sync::Barrier::new(2);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        cpu.parallel(2, &|_| {
            both.wait();
            assert_eq!(std::thread::current().id(), caller, "on a worker");
        });
    }));
    assert!(outcome.is_err());
    check_each_part_once(&cpu, 10);
}

#[test]
fn nested_and_concurrent_regions_end() {
    let cpu = Cpu::new(2);
    let total = AtomicUsize::new(0);
    cpu.parallel(4, &|_| {
        cpu.parallel(4, &|_| {
            total.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(total.load(Ordering::Relaxed), 16);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let cpu = cpu.clone();
            scope.spawn(move || (0..200).for_each(|_| check_each_part_once(&cpu, 4)));
        }
    });
}

#[test]
fn what_is_read_soon_is_the_copy_of_each_node() {
    let cpu = Cpu::on(&Nodes::of([vec![0], vec![0]]), 2);
    let replicas = cpu.replicated(100, 100, &|_, chunk| chunk.fill(1));
    cpu.soon(&[&[&replicas]], |replicas| replicas);
    cpu.parallel(2, &|_| ());
    let read = |node: usize| cpu.pool.shared.soon[node].0.read();
    let copy = |node| Soon::of(&[&[replicas.copy(node)]], |bytes| bytes);
    assert_eq!((read(0), read(1)), (copy(0), copy(1)));
    assert_ne!(read(0), read(1), "the copies are not one");
}

#[test]
fn chunks_cover_the_slice() {
    let cpu = Cpu::new(3);
    let mut data = vec![0usize; 103];
    cpu.chunks(&mut data, 10, &|i, chunk| {
        assert_eq!(chunk.len(), if i == 10 { 3 } else { 10 });
        chunk.iter_mut().enumerate().for_each(|(j, v)| *v = i * 10 + j);
    });
    assert!(data.iter().enumerate().all(|(i, &v)| i == v));
}
