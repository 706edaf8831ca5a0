//! Memory that the host shares with the device: rings of slots on the way in and on the way out.
//! Slots are pinned ([`Device::alloc_pinned`]), so that a lane can copy them, or read and write
//! them in place, while the host goes on.
//!
//! A slot is used again only after the event behind its last job. A ring that would have to wait
//! for that is too small, which is a mistake of its maker, so it panics instead of blocking the
//! host. A loop that launches step N before it lands step N − 1 needs
//! - two slots of [`Readback`]: when step N takes one, step N − 2 has landed;
//! - **three slots of [`Staging`]**: when step N takes one, step N − 2 has landed, but the event
//!   behind its copy may still lie in the lane's queue. The event of step N − 3 does not: jobs of
//!   that lane that ran for step N − 2 came after it.

use crate::device::{Device, DeviceLost, Element, Memory, Reason, Role, same_device};
use crate::lane::{Lane, View, ViewMut};
use std::marker::PhantomData;
use std::sync::Arc;

/// Where a slot is between two uses.
enum Use<E> {
    /// Nothing was launched with it, or everything that was has ended.
    Free,
    /// Its guard lives, or was leaked.
    Guarded,
    /// Its jobs end before this event.
    Until(E),
}

impl<E> Use<E> {
    /// Whether the slot may be used again now.
    ///
    /// # Panics
    /// When its guard was leaked: nobody knows when its jobs end.
    fn over<D: Device<Event = E>>(&self, device: &D) -> bool {
        match self {
            Use::Free => true,
            Use::Guarded => {
                panic!("a guard of a ring's slot was leaked; its lane may still use it")
            }
            Use::Until(event) => device.reached(event),
        }
    }
}

/// Slots through which the host hands arrays to lane `R`.
pub struct Staging<T: Element, R: Role, D: Device> {
    device: D,
    label: &'static str,
    len: usize,
    slots: Vec<SlotIn<T, D>>,
    next: usize,
    reader: PhantomData<R>,
}

struct SlotIn<T: Element, D: Device> {
    memory: Memory<T, D>,
    used: Use<D::Event>,
}

/// An array on its way in. Dropping it records when the slot may be used again.
#[must_use = "an array that no job reads was staged in vain"]
pub struct Staged<'s, T: Element, R: Role, D: Device> {
    slot: &'s mut SlotIn<T, D>,
    lane: &'s Lane<R, D>,
    len: usize,
}

impl<T: Element, R: Role, D: Device> Staging<T, R, D> {
    /// `slots` slots of `len` elements; see the module for how many.
    ///
    /// # Panics
    /// When there is no slot.
    pub fn new(device: &D, label: &'static str, slots: usize, len: usize) -> Staging<T, R, D> {
        assert!(slots > 0, "the ring `{label}` has at least one slot");
        let slot = |_| SlotIn { memory: device.alloc_pinned(label, len), used: Use::Free };
        let slots = (0..slots).map(slot).collect();
        Staging { device: device.clone(), label, len, slots, next: 0, reader: PhantomData }
    }

    /// Copies `data` into the next slot. On a lost device nothing will read it.
    ///
    /// # Panics
    /// When the lane is another device's, `data` is longer than a slot, the slot's guard was
    /// leaked, or its last job has not ended: the ring has too few slots.
    pub fn stage<'s>(&'s mut self, lane: &'s Lane<R, D>, data: &[T]) -> Staged<'s, T, R, D> {
        let (label, len, slots) = (self.label, self.len, self.slots.len());
        same_device(self.device.id(), lane.device().id());
        assert!(data.len() <= len, "`{label}`: {} elements for a slot of {len}", data.len());
        let slot = &mut self.slots[self.next];
        self.next = (self.next + 1) % slots;
        if !slot.used.over(&self.device) {
            // The event of a lost device is never reached, and what ran last may still run.
            let lost = self.device.lost().is_some();
            assert!(
                lost,
                "the ring `{label}` of {slots} slots is too short for the steps in flight"
            );
            slot.memory = self.device.alloc_pinned(label, len);
        }
        // SAFETY: the slot's last job has ended, or the memory is new; no other job was launched
        // with it.
        unsafe { self.device.store(&slot.memory, data) };
        slot.used = Use::Guarded;
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
        self.slot.used = Use::Until(self.lane.record());
    }
}

/// Slots through which lane `W` hands arrays to the host.
pub struct Readback<T: Element, W: Role, D: Device> {
    device: D,
    label: &'static str,
    len: usize,
    slots: Vec<SlotOut<T, D>>,
    next: usize,
    writer: PhantomData<W>,
}

struct SlotOut<T: Element, D: Device> {
    /// Shared with the array on its way out, if there is one.
    memory: Arc<Memory<T, D>>,
    used: Use<D::Event>,
}

/// A slot about to be filled by the job given [`Filling::view`].
#[must_use = "a slot that is dropped brings nothing"]
pub struct Filling<'s, T: Element, W: Role, D: Device> {
    slot: &'s mut SlotOut<T, D>,
    lane: &'s Lane<W, D>,
    len: usize,
}

/// An array on its way out. Its slot is taken until it is landed or dropped.
#[must_use = "results that are never landed are lost"]
pub struct Pending<T: Element, D: Device> {
    device: D,
    event: D::Event,
    memory: Arc<Memory<T, D>>,
    len: usize,
}

impl<T: Element, W: Role, D: Device> Readback<T, W, D> {
    /// `slots` slots of `len` elements; see the module for how many.
    ///
    /// # Panics
    /// When there is no slot.
    pub fn new(device: &D, label: &'static str, slots: usize, len: usize) -> Readback<T, W, D> {
        assert!(slots > 0, "the ring `{label}` has at least one slot");
        let slot =
            |_| SlotOut { memory: Arc::new(device.alloc_pinned(label, len)), used: Use::Free };
        let slots = (0..slots).map(slot).collect();
        Readback { device: device.clone(), label, len, slots, next: 0, writer: PhantomData }
    }

    /// Takes the next slot, for `len` elements.
    ///
    /// # Panics
    /// When the lane is another device's, `len` exceeds a slot, the slot's guard was leaked, or
    /// its last array has not been landed: the ring has too few slots.
    pub fn fill<'s>(&'s mut self, lane: &'s Lane<W, D>, len: usize) -> Filling<'s, T, W, D> {
        let (label, most, slots) = (self.label, self.len, self.slots.len());
        same_device(self.device.id(), lane.device().id());
        assert!(len <= most, "`{label}`: {len} elements for a slot of {most}");
        let slot = &mut self.slots[self.next];
        self.next = (self.next + 1) % slots;
        // `get_mut` rather than a count: it also orders a landing on another thread before this.
        let landed = Arc::get_mut(&mut slot.memory).is_some();
        if !(slot.used.over(&self.device) && landed) {
            let lost = self.device.lost().is_some();
            assert!(
                lost,
                "the ring `{label}` of {slots} slots is too short for the steps in flight"
            );
            slot.memory = Arc::new(self.device.alloc_pinned(label, most));
        }
        slot.used = Use::Guarded;
        Filling { slot, lane, len }
    }
}

impl<T: Element, W: Role, D: Device> Filling<'_, T, W, D> {
    /// The slot, for the job that fills it.
    pub fn view(&mut self) -> ViewMut<'_, T, W, D> {
        ViewMut::new(&*self.slot.memory, 0..self.len)
    }

    /// After the job that fills it was launched.
    pub fn pending(self) -> Pending<T, D> {
        let event = self.lane.record();
        self.slot.used = Use::Until(event.clone());
        Pending {
            device: self.lane.device().clone(),
            event,
            memory: self.slot.memory.clone(),
            len: self.len,
        }
    }
}

impl<T: Element, W: Role, D: Device> Drop for Filling<'_, T, W, D> {
    fn drop(&mut self) {
        if matches!(self.slot.used, Use::Guarded) {
            self.slot.used = Use::Until(self.lane.record());
        }
    }
}

impl<T: Element, D: Device> Pending<T, D> {
    /// Whether the array has come. Never blocks.
    pub fn arrived(&self) -> bool {
        self.device.reached(&self.event)
    }

    /// The event after the job that fills the array.
    pub fn event(&self) -> &D::Event {
        &self.event
    }

    /// Waits until the array has come, and copies it: the one place where the host blocks.
    ///
    /// # Errors
    /// [`DeviceLost`] when it never will.
    #[track_caller]
    pub fn land(self) -> Result<Vec<T>, DeviceLost> {
        self.device.land(&self.event, Reason::Results)?;
        // SAFETY: the event after the slot's only job has been reached, and while this value
        // lives its ring does not use the slot.
        Ok(unsafe { self.device.load(&self.memory, self.len) })
    }
}
