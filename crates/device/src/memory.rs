//! Host memory that jobs of several lanes reach through ranges, for the devices whose jobs are
//! closures on the host.

use crate::device::{Access, Buffer, Device, DeviceId, Element, Space, Touch, same_device};
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::Arc;

/// The host's own memory: jobs see plain slices.
pub enum Host {}

/// A device whose jobs see host memory and do their work themselves: what code generic over such
/// devices asks for.
pub trait HostDevice: Device<Space = Host, Queue = ()> {}
impl<D: Device<Space = Host, Queue = ()>> HostDevice for D {}

/// Elements that outlive every job that touches them: each job holds a handle.
pub struct HostMemory<T> {
    buffer: Buffer,
    elements: Arc<Elements<T>>,
}

struct Elements<T>(Box<[UnsafeCell<T>]>);

// SAFETY: elements are reached only through `slice`, `slice_mut`, `store` and `load`, whose
// callers promise that conflicting accesses do not overlap in time.
unsafe impl<T: Send + Sync> Sync for Elements<T> {}

impl<T> Clone for HostMemory<T> {
    fn clone(&self) -> Self {
        HostMemory { buffer: self.buffer.clone(), elements: self.elements.clone() }
    }
}

impl<T: Element> HostMemory<T> {
    pub(crate) fn new(buffer: Buffer) -> HostMemory<T> {
        let elements = (0..buffer.len).map(|_| UnsafeCell::new(T::default())).collect();
        HostMemory { buffer, elements: Arc::new(Elements(elements)) }
    }

    /// The host's access to the first `len` elements.
    ///
    /// # Panics
    /// When the memory is not of `device`.
    pub(crate) fn touch(&self, device: &DeviceId, access: Access, len: usize) -> Touch {
        same_device(device, &self.buffer.device);
        Touch { buffer: self.buffer.id, access, range: 0..len }
    }

    /// The first element of `range`, which lies within the buffer.
    fn start(&self, range: &Range<usize>) -> *mut T {
        let cells = &self.elements.0;
        assert!(
            range.start <= range.end && range.end <= cells.len(),
            "{range:?} lies outside a buffer of {} elements",
            cells.len()
        );
        UnsafeCell::raw_get(cells[range.clone()].as_ptr())
    }

    /// # Safety
    /// As [`crate::device::Device::store`].
    pub(crate) unsafe fn store(&self, data: &[T]) {
        let start = self.start(&(0..data.len()));
        // SAFETY: in bounds (checked by `start`), elements are plain data, and by the caller's
        // promise nothing else touches them now. `data` is borrowed from elsewhere: no safe code
        // holds a slice of this memory outside a job.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), start, data.len()) }
    }

    /// # Safety
    /// As [`crate::device::Device::load`].
    pub(crate) unsafe fn load(&self, len: usize) -> Vec<T> {
        // SAFETY: the caller's promise: nothing writes these elements now.
        unsafe { Host::slice(self, 0..len) }.to_vec()
    }
}

// SAFETY: the elements lie in one allocation that the handles share and never replace; the buffer
// is a field that nothing changes.
unsafe impl Space for Host {
    type Memory<T: Element> = HostMemory<T>;
    type Slice<'j, T: Element> = &'j [T];
    type SliceMut<'j, T: Element> = &'j mut [T];

    fn buffer<T: Element>(memory: &HostMemory<T>) -> &Buffer {
        &memory.buffer
    }

    unsafe fn slice<T: Element>(memory: &HostMemory<T>, range: Range<usize>) -> &[T] {
        let start = memory.start(&range);
        // SAFETY: in bounds (checked by `start`) and initialised; nothing writes the elements
        // while the result lives, by the caller's promise.
        unsafe { std::slice::from_raw_parts(start, range.len()) }
    }

    unsafe fn slice_mut<T: Element>(memory: &HostMemory<T>, range: Range<usize>) -> &mut [T] {
        let start = memory.start(&range);
        // SAFETY: in bounds (checked by `start`) and initialised; nothing else reaches the
        // elements while the result lives, by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(start, range.len()) }
    }
}
