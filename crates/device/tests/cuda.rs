//! The promises of every device, asked of a CUDA card, and what only a card can show. Without a
//! card each test fails and says what is missing.

#[path = "kit/cuda.rs"]
mod kit;
#[path = "kit/mutant.rs"]
mod mutant;
#[path = "kit/promises.rs"]
mod promises;
#[path = "kit/steps.rs"]
mod steps;

use device::cuda::{Cuda, CudaError, CudaOptions, JobTiming, Module, Reads, Source, Writes};
use device::{Device, LaneId, Lanes, ReadDone, Reason, Usage};
use kit::{CudaKit, Pass, SOURCE};
use mutant::Mutant;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use steps::Kit;

/// One test at a time: what a test delays must not depend on what else is on the card.
fn alone() -> MutexGuard<'static, ()> {
    static CARD: Mutex<()> = Mutex::new(());
    CARD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn options() -> CudaOptions {
    let cache = Some(std::env::temp_dir().join("slipstream-kernel-tests"));
    CudaOptions { cache, ..CudaOptions::default() }
}

/// The device, or what is missing.
fn device_with(options: CudaOptions) -> Cuda {
    /// Stays open, so that the driver does not start the card anew for each test.
    static FIRST: OnceLock<Cuda> = OnceLock::new();
    let cuda = |options| {
        Cuda::new(options).unwrap_or_else(|error| panic!("this test needs a CUDA card: {error}"))
    };
    FIRST.get_or_init(|| cuda(CudaOptions::default()));
    cuda(options)
}

fn open() -> (Cuda, CudaKit<Cuda>) {
    let cuda = device_with(options());
    let kit = CudaKit::new(&cuda, Pass::Thread).unwrap_or_else(|error| panic!("{error}"));
    (cuda, kit)
}

macro_rules! on_the_card {
    ($($name:ident)*) => {
        $(#[test] fn $name() {
            let _alone = alone();
            promises::$name(&open);
        })*
    };
}

on_the_card! {
    a_lane_runs_its_jobs_in_order
    a_wait_orders_two_lanes
    a_write_waits_for_every_reader
    rings_are_used_again
    a_replayed_graph_equals_eager_work
    what_jobs_use_outlives_its_owner
    new_buffers_hold_defaults
    a_panic_loses_the_device
    a_job_may_launch_and_must_not_land
    devices_do_not_mix
    two_hosts_share_a_device
}

#[test]
fn few_steps_under_random_delays() {
    let _alone = alone();
    promises::steps_under_random_delays(&open, 100);
}

#[test]
fn many_steps_under_random_delays() {
    let _alone = alone();
    promises::steps_under_random_delays(&open, 5_000);
}

/// The same beside forward passes that leave no room on the card.
#[test]
fn steps_beside_a_full_card() {
    let _alone = alone();
    let open = || {
        let cuda = device_with(options());
        let (blocks, each) = (2 * cuda.multiprocessors(), Duration::from_micros(50));
        let kit = CudaKit::new(&cuda, Pass::Card { blocks, each }).expect("the kernels compile");
        (cuda, kit)
    };
    promises::steps_under_random_delays(&open, 500);
}

/// Fences that forget a reader give wrong values on real streams: the readers of the promises see
/// it, and see nothing where none is forgotten.
#[test]
fn broken_fences_give_wrong_values() {
    let _alone = alone();
    // The forward lane reads last, and its event is the one that a single slot forgets.
    let late = [Duration::from_millis(2), Duration::ZERO, Duration::ZERO, Duration::ZERO];
    for read_done in [ReadDone::PerLane, ReadDone::OneSlot, ReadDone::Missing] {
        let mutant = Mutant { cuda: device_with(options()), read_done };
        let kit = CudaKit::new(&mutant.cuda, Pass::Thread).expect("the kernels compile");
        let wrong = promises::late_readers(&mutant, &kit, 20, late);
        println!("{read_done:?}: {wrong} of {} values wrong", 20 * 4 * steps::ROWS);
        assert_eq!(wrong > 0, read_done != ReadDone::PerLane, "{read_done:?}: {wrong} wrong");
    }
}

/// Launching, recording and waiting return while the lanes still stand, whatever they wait for, with
/// more events pending than two steps in flight leave.
#[test]
fn only_landing_waits_for_the_card() {
    let _alone = alone();
    let (cuda, kit) = open();
    let lanes = Lanes::new(&cuda);
    let time = Duration::from_millis(200);
    let delay = kit.clone();
    lanes.forward.launch("hold", lanes.forward.queue(), move |queue| delay.delay(queue, time));
    let held = lanes.forward.record();
    for _ in 0..32 {
        lanes.plan.wait(&lanes.forward.record());
        lanes.schedule.wait(&lanes.plan.record());
    }
    let last = lanes.schedule.record();
    assert!(!cuda.reached(&held) && !cuda.reached(&last), "the forward lane still stands");
    assert_eq!(cuda.usage(), Usage::default());
    cuda.land(&last, Reason::Results).expect("nothing failed");
    let usage = cuda.usage();
    assert_eq!((usage.results.calls, usage.results.blocked), (1, 1));
    assert!(usage.results.time > Duration::ZERO && cuda.reached(&held));
}

#[test]
fn time_inside_jobs_is_counted_by_lane() {
    let _alone = alone();
    let cuda = device_with(CudaOptions { timing: JobTiming::On, ..options() });
    let kit: CudaKit<Cuda> = CudaKit::new(&cuda, Pass::Thread).expect("the kernels compile");
    let lanes = Lanes::new(&cuda);
    let time = Duration::from_millis(5);
    for _ in 0..3 {
        let delay = kit.clone();
        lanes.plan.launch("delay", lanes.plan.queue(), move |queue| delay.delay(queue, time));
    }
    lanes.copies.wait(&lanes.plan.record());
    cuda.land(&lanes.copies.record(), Reason::Results).expect("nothing failed");
    let busy = cuda.usage().busy;
    // A hundredth for the two clocks, which are not the same.
    assert!(busy[LaneId::Plan.index()] >= time * 3 * 99 / 100, "{busy:?}");
    assert_eq!(busy[LaneId::Copies.index()], Duration::ZERO);
}

/// What is compiled is kept, and what is damaged is compiled anew.
#[test]
fn kernels_are_kept_between_starts() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cache = Some(folder.path().join("kernels"));
    let options = CudaOptions { cache: cache.clone(), ..CudaOptions::default() };
    let cuda = device_with(options);
    let load = || Module::load(&cuda, &SOURCE).map(drop);
    let kept = || {
        let files = std::fs::read_dir(folder.path().join("kernels")).expect("the folder was made");
        files.map(|file| file.expect("a readable folder").path()).collect::<Vec<_>>()
    };
    assert_eq!(load(), Ok(()));
    let files = kept();
    assert_eq!(files.len(), 1);
    let whole = std::fs::read(&files[0]).expect("a readable file");
    std::fs::write(&files[0], &whole[..whole.len() / 2]).expect("a writable file");
    assert_eq!(load(), Ok(()));
    assert_eq!(std::fs::read(&files[0]).expect("a readable file"), whole);
    assert_eq!(kept(), files);
}

#[test]
fn kernels_are_checked_when_they_are_found() {
    let _alone = alone();
    let cuda = device_with(options());
    let module = Module::load(&cuda, &SOURCE).expect("it compiles");
    // SAFETY: none of these is launched.
    let (wrong, missing) = unsafe {
        (
            module.kernel::<(Reads<u32>, u32)>("add").map(drop),
            module.kernel::<(Writes<u32>,)>("subtract").map(drop),
        )
    };
    let said = wrong.expect_err("`add` has two slices").to_string();
    assert_eq!(
        said,
        "the kernel `add`: its source has parameters of [8, 8, 8, 8] bytes, its caller gives \
         [8, 8, 4]"
    );
    let said = missing.expect_err("there is no such function").to_string();
    assert!(said.starts_with("the kernel `subtract`: not found: "), "{said}");
}

#[test]
fn a_refused_source_says_where() {
    let _alone = alone();
    let cuda = device_with(CudaOptions::default());
    let source = Source { name: "broken.cu", text: "__global__ void f() { return 1; }" };
    let Err(CudaError::Source { name, target, log }) = Module::load(&cuda, &source).map(drop)
    else {
        panic!("the compiler refuses it");
    };
    assert_eq!((name, target), ("broken.cu", cuda.target()));
    assert!(log.contains("broken.cu(1): error"), "{log}");
}

#[test]
fn a_card_that_is_not_there_is_named() {
    let _alone = alone();
    let found = device_with(options()).name().len();
    assert!(found > 0);
    let missing = Cuda::new(CudaOptions { card: 99, ..options() }).map(drop);
    let said = missing.expect_err("there are fewer cards").to_string();
    assert!(said.starts_with("there is no GPU 99: the NVIDIA driver shows"), "{said}");
}
