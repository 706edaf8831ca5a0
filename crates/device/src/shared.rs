//! A buffer that outlives a step and is seen by several lanes. Exactly one lane may write it.
//!
//! Several lanes may read at once; the write waits, on the device, for all of them:
//! ```
//! use device::{Lanes, Schedule, Shared, Sim};
//! let sim = Sim::new(1);
//! let lanes = Lanes::new(&sim);
//! let mut table: Shared<u32, Schedule, Sim> = Shared::new(&sim, "table", 4);
//! {
//!     let (a, b) = (table.read(&lanes.forward), table.read(&lanes.plan));
//!     lanes.forward.launch("sum", a.view(), |table| assert_eq!(table.iter().sum::<u32>(), 0));
//!     lanes.plan.launch("gather", b.range(0..2), |rows| assert_eq!(rows.len(), 2));
//! }
//! let mut writing = table.write(&lanes.schedule);
//! lanes.schedule.launch("fill", writing.view(), |table| table.fill(7));
//! ```
//! The forward lane cannot write what the schedule lane owns:
//! ```compile_fail,E0308
//! use device::{Lanes, Schedule, Shared, Sim};
//! let sim = Sim::new(1);
//! let lanes = Lanes::new(&sim);
//! let mut table: Shared<u32, Schedule, Sim> = Shared::new(&sim, "table", 4);
//! let _ = table.write(&lanes.forward);
//! ```
//! A view cannot outlive its guard:
//! ```compile_fail,E0597
//! use device::{Lanes, Schedule, Shared, Sim};
//! let sim = Sim::new(1);
//! let lanes = Lanes::new(&sim);
//! let table: Shared<u32, Schedule, Sim> = Shared::new(&sim, "table", 4);
//! let view = {
//!     let reading = table.read(&lanes.forward);
//!     reading.view()
//! };
//! lanes.forward.launch("late", view, |_| ());
//! ```
//! Nothing can be written under a live read:
//! ```compile_fail,E0502
//! use device::{Lanes, Schedule, Shared, Sim};
//! let sim = Sim::new(1);
//! let lanes = Lanes::new(&sim);
//! let mut table: Shared<u32, Schedule, Sim> = Shared::new(&sim, "table", 4);
//! let reading = table.read(&lanes.forward);
//! let writing = table.write(&lanes.schedule);
//! lanes.forward.launch("read", reading.view(), |_| ());
//! ```
//! A view of one lane cannot be launched on another:
//! ```compile_fail,E0277
//! use device::{Lanes, Schedule, Shared, Sim};
//! let sim = Sim::new(1);
//! let lanes = Lanes::new(&sim);
//! let table: Shared<u32, Schedule, Sim> = Shared::new(&sim, "table", 4);
//! let reading = table.read(&lanes.forward);
//! lanes.plan.launch("elsewhere", reading.view(), |_| ());
//! ```
//! A job cannot carry off what it sees:
//! ```compile_fail,E0521
//! use device::{Lanes, Schedule, Shared, Sim};
//! use std::sync::Mutex;
//! static KEPT: Mutex<Option<&'static [u32]>> = Mutex::new(None);
//! let sim = Sim::new(1);
//! let lanes = Lanes::new(&sim);
//! let table: Shared<u32, Schedule, Sim> = Shared::new(&sim, "table", 4);
//! let reading = table.read(&lanes.forward);
//! lanes.forward.launch("keep", reading.view(), |table| *KEPT.lock().unwrap() = Some(table));
//! ```

use crate::device::{Device, Element, LANES, Memory, Role, same_device};
use crate::lane::{Lane, View, ViewMut};
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::ops::Range;

/// How a shared buffer remembers that it was read. Slipstream runs on [`ReadDone::PerLane`]; a
/// simulated device may be given one of the others, to show that the checks notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ReadDone {
    /// One event a lane; the write waits for all of them.
    #[default]
    PerLane,
    /// Mutant: one event for all lanes together; the last reader overwrites it.
    OneSlot,
    /// Mutant: no event at all.
    Missing,
}

/// Elements of type `T` that lane `W` writes and any lane reads.
pub struct Shared<T: Element, W: Role, D: Device> {
    device: D,
    memory: Memory<T, D>,
    len: usize,
    /// After the last write.
    written: Option<D::Event>,
    /// After the last read of each lane since the last write began.
    reads: RefCell<[Option<D::Event>; LANES]>,
    /// Read guards that were made and not dropped.
    reading: Cell<usize>,
    /// A write guard was made and not dropped.
    writing: bool,
    writer: PhantomData<W>,
}

/// Read access of lane `R`. Dropping it records that the lane has read.
#[must_use = "a guard that is dropped at once guards nothing"]
pub struct Reading<'g, T: Element, W: Role, R: Role, D: Device> {
    of: &'g Shared<T, W, D>,
    lane: &'g Lane<R, D>,
}

/// Write access of lane `W`. Dropping it publishes the write.
#[must_use = "a guard that is dropped at once guards nothing"]
pub struct Writing<'g, T: Element, W: Role, D: Device> {
    of: &'g mut Shared<T, W, D>,
    lane: &'g Lane<W, D>,
}

impl<T: Element, W: Role, D: Device> Shared<T, W, D> {
    /// `len` default elements on `device`, named `label` in checks and traces.
    pub fn new(device: &D, label: &'static str, len: usize) -> Shared<T, W, D> {
        Shared {
            device: device.clone(),
            memory: device.alloc(label, len),
            len,
            written: None,
            reads: RefCell::default(),
            reading: Cell::new(0),
            writing: false,
            writer: PhantomData,
        }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes `lane` wait, on the device, for the last write.
    ///
    /// # Panics
    /// When the lane is another device's, or a write guard was leaked: its write was never
    /// published.
    pub fn read<'g, R: Role>(&'g self, lane: &'g Lane<R, D>) -> Reading<'g, T, W, R, D> {
        same_device(self.device.id(), lane.device().id());
        self.check_published();
        if let Some(written) = &self.written {
            lane.wait(written);
        }
        self.reading.set(self.reading.get() + 1);
        Reading { of: self, lane }
    }

    /// Makes `lane` wait, on the device, for every lane's read-done.
    ///
    /// # Panics
    /// When the lane is another device's, or a guard was leaked: its lane may still read.
    pub fn write<'g>(&'g mut self, lane: &'g Lane<W, D>) -> Writing<'g, T, W, D> {
        same_device(self.device.id(), lane.device().id());
        self.check_published();
        assert_eq!(self.reading.get(), 0, "a read guard was leaked; its lane may still read");
        for done in self.reads.get_mut().iter_mut().filter_map(Option::take) {
            lane.wait(&done);
        }
        self.writing = true;
        Writing { of: self, lane }
    }

    fn check_published(&self) {
        assert!(!self.writing, "a write guard was leaked; its lane may still write");
    }

    fn read_done<R: Role>(&self, lane: &Lane<R, D>) {
        let slot = match self.device.read_done() {
            ReadDone::PerLane => Some(R::LANE.index()),
            ReadDone::OneSlot => Some(0),
            ReadDone::Missing => None,
        };
        if let Some(slot) = slot {
            self.reads.borrow_mut()[slot] = Some(lane.record());
        }
        self.reading.set(self.reading.get() - 1);
    }
}

impl<T: Element, W: Role, R: Role, D: Device> Reading<'_, T, W, R, D> {
    /// All elements.
    pub fn view(&self) -> View<'_, T, R, D> {
        self.range(0..self.of.len)
    }

    /// Some elements.
    pub fn range(&self, range: Range<usize>) -> View<'_, T, R, D> {
        View::new(&self.of.memory, range)
    }
}

impl<T: Element, W: Role, R: Role, D: Device> Drop for Reading<'_, T, W, R, D> {
    fn drop(&mut self) {
        self.of.read_done(self.lane);
    }
}

impl<T: Element, W: Role, D: Device> Writing<'_, T, W, D> {
    /// All elements.
    pub fn view(&mut self) -> ViewMut<'_, T, W, D> {
        self.range(0..self.of.len)
    }

    /// Some elements.
    pub fn range(&mut self, range: Range<usize>) -> ViewMut<'_, T, W, D> {
        ViewMut::new(&self.of.memory, range)
    }
}

impl<T: Element, W: Role, D: Device> Drop for Writing<'_, T, W, D> {
    fn drop(&mut self) {
        self.of.written = Some(self.lane.record());
        self.of.writing = false;
    }
}
