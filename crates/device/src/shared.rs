//! A buffer that outlives a step and is seen by several lanes. Exactly one lane may write it.
//!
//! The forward lane cannot write what the schedule lane owns:
//! ```compile_fail
//! use device::{Forward, Lanes, Schedule, Shared, Sim};
//! let sim = Sim::new(1);
//! let lanes = Lanes::new(&sim);
//! let mut table: Shared<u32, Schedule, Sim> = Shared::new(&sim, "table", 4);
//! let _ = table.write(&lanes.forward);
//! ```
//! A view cannot outlive its guard:
//! ```compile_fail
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
//! ```compile_fail
//! use device::{Lanes, Schedule, Shared, Sim};
//! let sim = Sim::new(1);
//! let lanes = Lanes::new(&sim);
//! let mut table: Shared<u32, Schedule, Sim> = Shared::new(&sim, "table", 4);
//! let reading = table.read(&lanes.forward);
//! let writing = table.write(&lanes.schedule);
//! lanes.forward.launch("read", reading.view(), |_| ());
//! ```
//! A view of one lane cannot be launched on another:
//! ```compile_fail
//! use device::{Lanes, Schedule, Shared, Sim};
//! let sim = Sim::new(1);
//! let lanes = Lanes::new(&sim);
//! let table: Shared<u32, Schedule, Sim> = Shared::new(&sim, "table", 4);
//! let reading = table.read(&lanes.forward);
//! lanes.plan.launch("elsewhere", reading.view(), |_| ());
//! ```
//! What does compile: several lanes read at once, and the write waits for all of them.
//! ```
//! use device::{Lanes, Schedule, Shared, Sim};
//! let sim = Sim::new(1);
//! let lanes = Lanes::new(&sim);
//! let mut table: Shared<u32, Schedule, Sim> = Shared::new(&sim, "table", 4);
//! {
//!     let (a, b) = (table.read(&lanes.forward), table.read(&lanes.plan));
//!     lanes.forward.launch("sum", a.view(), |t| { t.iter().sum::<u32>(); });
//!     lanes.plan.launch("gather", b.range(0..2), |t| assert_eq!(t.len(), 2));
//! }
//! let mut writing = table.write(&lanes.schedule);
//! lanes.schedule.launch("fill", writing.view(), |t| t.fill(7));
//! ```

use crate::device::{Device, Element, LANES, Role};
use crate::lane::{Lane, View, ViewMut};
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::ops::Range;

/// How a write is ordered after the reads before it. [`Fence::Fine`] is what Slipstream runs on;
/// the others exist to be compared with it, or to show that the checks notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Fence {
    /// The writing lane waits, on the device, for every lane's read-done.
    #[default]
    Fine,
    /// Mutant: one read-done event for all lanes together; the last reader overwrites it.
    OneSlot,
    /// Mutant: no read-done at all.
    Missing,
}

/// Elements of type `T` that lane `W` writes and any lane reads.
pub struct Shared<T: Element, W: Role, D: Device> {
    device: D,
    memory: D::Memory<T>,
    len: usize,
    fence: Fence,
    written: Option<D::Event>,
    reads: RefCell<[Option<D::Event>; LANES]>,
    /// Guards that were made and not dropped.
    reading: Cell<usize>,
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
        Shared::with_fence(device, label, len, Fence::Fine)
    }

    /// As [`Shared::new`], with another fence than the right one.
    pub fn with_fence(
        device: &D,
        label: &'static str,
        len: usize,
        fence: Fence,
    ) -> Shared<T, W, D> {
        Shared {
            device: device.clone(),
            memory: device.alloc(label, len),
            len,
            fence,
            written: None,
            reads: RefCell::default(),
            reading: Cell::new(0),
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
    pub fn read<'g, R: Role>(&'g self, lane: &'g Lane<R, D>) -> Reading<'g, T, W, R, D> {
        if let Some(written) = &self.written {
            lane.wait(written);
        }
        self.reading.set(self.reading.get() + 1);
        Reading { of: self, lane }
    }

    /// Makes `lane` wait, on the device, for every lane's read-done.
    ///
    /// # Panics
    /// When a read guard was leaked: its read-done was never recorded.
    pub fn write<'g>(&'g mut self, lane: &'g Lane<W, D>) -> Writing<'g, T, W, D> {
        assert_eq!(self.reading.get(), 0, "a read guard was leaked; its lane may still read");
        for done in self.reads.get_mut().iter_mut().filter_map(Option::take) {
            if self.fence != Fence::Missing {
                lane.wait(&done);
            }
        }
        Writing { of: self, lane }
    }

    fn read_done<R: Role>(&self, lane: &Lane<R, D>) {
        let slot = match self.fence {
            Fence::OneSlot => 0,
            Fence::Fine | Fence::Missing => R::LANE.index(),
        };
        self.reads.borrow_mut()[slot] = Some(lane.record());
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
    }
}

impl<T: Element, W: Role, D: Device> Shared<T, W, D> {
    /// The device the buffer lies on.
    pub fn device(&self) -> &D {
        &self.device
    }
}
