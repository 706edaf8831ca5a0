//! Memory that the host shares with the device: rings of slots on the way in and on the way out.
//! A slot is used again only after its event; a ring that would have to wait is too small, which
//! is a bug of its maker, so it panics instead of blocking the host.

use crate::device::{Access, Device, DeviceLost, Element, Role};
use crate::lane::{Lane, View, ViewMut};
use std::marker::PhantomData;

/// Slots through which the host hands arrays to lane `R`.
pub struct Staging<T: Element, R: Role, D: Device> {
    device: D,
    slots: Vec<Slot<T, D>>,
    next: usize,
    reader: PhantomData<R>,
}

struct Slot<T: Element, D: Device> {
    memory: D::Memory<T>,
    /// The last job that used the slot.
    used: Option<D::Event>,
}

/// An array on its way in. Dropping it records when the slot may be used again.
pub struct Staged<'s, T: Element, R: Role, D: Device> {
    slot: &'s mut Slot<T, D>,
    lane: &'s Lane<R, D>,
    len: usize,
}

impl<T: Element, R: Role, D: Device> Staging<T, R, D> {
    /// `slots` slots of `len` elements.
    pub fn new(device: &D, label: &'static str, slots: usize, len: usize) -> Staging<T, R, D> {
        let slot = |_| Slot { memory: device.alloc(label, len), used: None };
        let slots = (0..slots).map(slot).collect();
        Staging { device: device.clone(), slots, next: 0, reader: PhantomData }
    }

    /// Copies `data` into the next slot.
    ///
    /// # Panics
    /// When `data` is longer than a slot, or the slot's last job has not run: the ring has fewer
    /// slots than there are steps in flight.
    pub fn stage<'s>(&'s mut self, lane: &'s Lane<R, D>, data: &[T]) -> Staged<'s, T, R, D> {
        let at = self.next;
        self.next = (at + 1) % self.slots.len();
        let slot = &mut self.slots[at];
        if let Some(used) = slot.used.take() {
            assert!(self.device.reached(&used), "a staging ring is shorter than the steps in flight");
        }
        // SAFETY: the slot's last job is done (just checked), and no other is queued.
        let host = unsafe { self.device.host(&slot.memory, Access::Write, 0..data.len()) };
        host.copy_from_slice(data);
        Staged { slot, lane, len: data.len() }
    }
}

impl<T: Element, R: Role, D: Device> Staged<'_, T, R, D> {
    /// The array.
    pub fn view(&self) -> View<'_, T, R, D> {
        View::new(&self.slot.memory, 0..self.len)
    }
}

impl<T: Element, R: Role, D: Device> Drop for Staged<'_, T, R, D> {
    fn drop(&mut self) {
        self.slot.used = Some(self.lane.record());
    }
}

/// Slots through which lane `W` hands arrays to the host.
pub struct Readback<T: Element, W: Role, D: Device> {
    device: D,
    slots: Vec<D::Memory<T>>,
    /// Slots that are filled or being filled, not yet landed.
    busy: Vec<bool>,
    next: usize,
    writer: PhantomData<W>,
}

/// A slot about to be filled.
pub struct Filling<'s, T: Element, W: Role, D: Device> {
    memory: &'s D::Memory<T>,
    lane: &'s Lane<W, D>,
    slot: usize,
    len: usize,
}

/// An array on its way out. It must be landed by the ring it came from.
#[must_use = "results that are never landed are lost"]
pub struct Pending<T: Element, D: Device> {
    event: D::Event,
    slot: usize,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element, W: Role, D: Device> Readback<T, W, D> {
    /// `slots` slots of `len` elements.
    pub fn new(device: &D, label: &'static str, slots: usize, len: usize) -> Readback<T, W, D> {
        let memory = (0..slots).map(|_| device.alloc(label, len)).collect();
        let busy = vec![false; slots];
        Readback { device: device.clone(), slots: memory, busy, next: 0, writer: PhantomData }
    }

    /// Takes the next slot, for `len` elements.
    ///
    /// # Panics
    /// When the slot was not landed: the ring has fewer slots than there are steps in flight.
    pub fn fill<'s>(&'s mut self, lane: &'s Lane<W, D>, len: usize) -> Filling<'s, T, W, D> {
        let slot = self.next;
        self.next = (slot + 1) % self.slots.len();
        assert!(!self.busy[slot], "a readback ring is shorter than the steps in flight");
        self.busy[slot] = true;
        Filling { memory: &self.slots[slot], lane, slot, len }
    }

    /// Waits until the array has come: the one place where the host blocks.
    ///
    /// # Errors
    /// [`DeviceLost`] when it never will.
    pub fn land(&mut self, pending: Pending<T, D>) -> Result<Vec<T>, DeviceLost> {
        self.device.land(&pending.event)?;
        let memory = &self.slots[pending.slot];
        // SAFETY: the event after the slot's only job has just been reached.
        let host = unsafe { self.device.host(memory, Access::Read, 0..pending.len) };
        self.busy[pending.slot] = false;
        Ok(host.to_vec())
    }
}

impl<T: Element, W: Role, D: Device> Filling<'_, T, W, D> {
    /// The slot, for the job that fills it.
    pub fn view(&mut self) -> ViewMut<'_, T, W, D> {
        ViewMut::new(self.memory, 0..self.len)
    }

    /// After the job that fills it was launched.
    pub fn pending(self) -> Pending<T, D> {
        Pending { event: self.lane.record(), slot: self.slot, len: self.len, element: PhantomData }
    }
}
