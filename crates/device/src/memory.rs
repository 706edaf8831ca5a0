//! Host memory that jobs of several lanes reach through raw ranges. Shared by the devices whose
//! jobs are closures on the host.

use crate::device::{BufferId, Element};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// Elements that outlive every job that touches them: each holds a handle.
pub struct HostMemory<T> {
    pub(crate) id: BufferId,
    elements: Arc<Elements<T>>,
}

struct Elements<T>(Box<[UnsafeCell<T>]>);

// SAFETY: elements are reached only through `HostRef`, `HostMut` and `host`, whose makers promise
// that conflicting accesses are ordered by events.
unsafe impl<T: Send + Sync> Sync for Elements<T> {}

impl<T> Clone for HostMemory<T> {
    fn clone(&self) -> Self {
        HostMemory { id: self.id, elements: self.elements.clone() }
    }
}

impl<T: Element> HostMemory<T> {
    pub(crate) fn new(id: BufferId, len: usize) -> HostMemory<T> {
        let elements = (0..len).map(|_| UnsafeCell::new(T::default())).collect();
        HostMemory { id, elements: Arc::new(Elements(elements)) }
    }

    pub(crate) fn len(&self) -> usize {
        self.elements.0.len()
    }

    fn start(&self, range: &Range<usize>) -> *mut T {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "{range:?} lies outside a buffer of {} elements",
            self.len()
        );
        UnsafeCell::raw_get(self.elements.0.as_ptr().wrapping_add(range.start))
    }

    /// # Safety
    /// Nothing that conflicts may reach the range while the result lives.
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        let start = self.start(&range);
        // SAFETY: in bounds (checked by `start`), initialised, and the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(start, range.len()) }
    }
}

/// A range as a job reads it.
pub struct HostRef<T> {
    memory: HostMemory<T>,
    range: Range<usize>,
}

/// A range as a job writes it.
pub struct HostMut<T> {
    memory: HostMemory<T>,
    range: Range<usize>,
}

// SAFETY: the makers of these promise that they are used only inside jobs which events order
// against every conflicting job; sending them to the lane's thread is their purpose.
unsafe impl<T: Send + Sync> Send for HostRef<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for HostMut<T> {}

impl<T: Element> HostRef<T> {
    /// # Safety
    /// As [`crate::device::Device::reader`].
    pub(crate) unsafe fn new(memory: &HostMemory<T>, range: Range<usize>) -> HostRef<T> {
        HostRef { memory: memory.clone(), range }
    }
}

impl<T: Element> HostMut<T> {
    /// # Safety
    /// As [`crate::device::Device::writer`].
    pub(crate) unsafe fn new(memory: &HostMemory<T>, range: Range<usize>) -> HostMut<T> {
        HostMut { memory: memory.clone(), range }
    }
}

impl<T: Element> Deref for HostRef<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the maker's promise: no conflicting job runs at the same time.
        unsafe { self.memory.slice(self.range.clone()) }
    }
}

impl<T: Element> Deref for HostMut<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the maker's promise: no other job touches the range at the same time.
        unsafe { self.memory.slice(self.range.clone()) }
    }
}

impl<T: Element> DerefMut for HostMut<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: the maker's promise, and `self` is borrowed exclusively.
        unsafe { self.memory.slice(self.range.clone()) }
    }
}
