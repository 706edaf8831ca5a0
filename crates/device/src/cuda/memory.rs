//! Memory of the card and pinned memory of the host: buffers, and the ranges that jobs see.
//!
//! A dropped buffer may still be in use by what its jobs enqueued, and the driver's own release
//! waits for the whole card. So a block is *retired* behind an event of each lane, and later used
//! again for a buffer of its size, or given back when the card is full or the device ends.

use super::Inner;
use super::driver::Event;
use super::module::Number;
use crate::device::{Buffer, Element, LANES, Space};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

/// Memory that the card reaches, as [`crate::Memory`] of [`super::Cuda`].
pub enum OnCard {}

/// Elements that lie on the card, or in the host's pinned memory.
pub struct CudaMemory<T> {
    buffer: Buffer,
    block: Arc<Lease>,
    kind: PhantomData<T>,
}

impl<T> Clone for CudaMemory<T> {
    fn clone(&self) -> Self {
        CudaMemory { buffer: self.buffer.clone(), block: self.block.clone(), kind: PhantomData }
    }
}

impl<T: Element> CudaMemory<T> {
    pub(super) fn new(buffer: Buffer, block: Arc<Lease>) -> CudaMemory<T> {
        // The driver aligns what it allocates to 256 bytes.
        assert!(align_of::<T>() <= 256, "elements are aligned to 256 bytes at most");
        CudaMemory { buffer, block, kind: PhantomData }
    }

    pub(super) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Where the host finds the elements; nowhere when the device was lost before they were made.
    ///
    /// # Panics
    /// When the memory is the card's, or shorter than `len`.
    pub(super) fn pinned(&self, len: usize) -> Option<*mut T> {
        let most = self.buffer.len;
        assert!(len <= most, "{len} elements of a buffer of {most}");
        match self.block.block.place {
            Place::Pinned(host) => Some(host.cast()),
            Place::Nowhere => None,
            Place::Card => panic!("the host reaches pinned memory only"),
        }
    }

    /// The address of the first element of `range`.
    fn address(&self, range: &Range<usize>) -> u64 {
        let len = self.buffer.len;
        assert!(
            range.start <= range.end && range.end <= len,
            "{range:?} lies outside a buffer of {len} elements"
        );
        self.block.block.address + (range.start * size_of::<T>()) as u64
    }
}

// SAFETY: a block stays where it is until its last lease is gone, and every handle holds one; the
// buffer is a field that nothing changes.
unsafe impl Space for OnCard {
    type Memory<T: Element> = CudaMemory<T>;
    type Slice<'j, T: Element> = CudaSlice<'j, T>;
    type SliceMut<'j, T: Element> = CudaSliceMut<'j, T>;

    fn buffer<T: Element>(memory: &CudaMemory<T>) -> &Buffer {
        &memory.buffer
    }

    unsafe fn slice<T: Element>(memory: &CudaMemory<T>, range: Range<usize>) -> CudaSlice<'_, T> {
        CudaSlice { address: memory.address(&range), len: range.len(), of: PhantomData }
    }

    unsafe fn slice_mut<T: Element>(
        memory: &CudaMemory<T>,
        range: Range<usize>,
    ) -> CudaSliceMut<'_, T> {
        CudaSliceMut { address: memory.address(&range), len: range.len(), of: PhantomData }
    }
}

/// Elements that what a job enqueues may read. The host cannot look at them.
#[derive(Clone, Copy)]
pub struct CudaSlice<'j, T> {
    address: u64,
    len: usize,
    of: PhantomData<&'j [T]>,
}

/// Elements that what a job enqueues may read and write. The host cannot look at them.
pub struct CudaSliceMut<'j, T> {
    address: u64,
    len: usize,
    of: PhantomData<&'j mut [T]>,
}

fn part<T>(address: u64, len: usize, range: &Range<usize>) -> u64 {
    assert!(
        range.start <= range.end && range.end <= len,
        "{range:?} lies outside a slice of {len} elements"
    );
    address + (range.start * size_of::<T>()) as u64
}

impl<'j, T: Element> CudaSlice<'j, T> {
    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Some of them.
    ///
    /// # Panics
    /// When `range` does not lie within the slice.
    pub fn range(&self, range: Range<usize>) -> CudaSlice<'j, T> {
        let address = part::<T>(self.address, self.len, &range);
        CudaSlice { address, len: range.len(), of: PhantomData }
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }
}

impl<'j, T: Number> CudaSlice<'j, T> {
    /// The same bytes as numbers of another type; what fills no whole one is left out.
    ///
    /// # Panics
    /// When the first byte is not aligned for them.
    pub fn numbers<U: Number>(self) -> CudaSlice<'j, U> {
        let len = numbers::<T, U>(self.address, self.len);
        CudaSlice { address: self.address, len, of: PhantomData }
    }
}

impl<'j, T: Number> CudaSliceMut<'j, T> {
    /// As [`CudaSlice::numbers`]. Buffers of several types can lie in one, which is guarded once.
    pub fn numbers<U: Number>(self) -> CudaSliceMut<'j, U> {
        let len = numbers::<T, U>(self.address, self.len);
        CudaSliceMut { address: self.address, len, of: PhantomData }
    }
}

/// How many numbers `U` lie in `len` numbers `T` at `address`.
fn numbers<T, U>(address: u64, len: usize) -> usize {
    let aligned = address.is_multiple_of(align_of::<U>() as u64);
    assert!(aligned, "numbers of {} bytes lie at a multiple of that", size_of::<U>());
    len * size_of::<T>() / size_of::<U>()
}

impl<'j, T: Element> CudaSliceMut<'j, T> {
    /// The first `at` elements, and the others.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn split(self, at: usize) -> (CudaSliceMut<'j, T>, CudaSliceMut<'j, T>) {
        let rest = part::<T>(self.address, self.len, &(at..self.len));
        let first = CudaSliceMut { address: self.address, len: at, of: PhantomData };
        (first, CudaSliceMut { address: rest, len: self.len - at, of: PhantomData })
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Some of them, while the result lives.
    ///
    /// # Panics
    /// When `range` does not lie within the slice.
    pub fn range(&mut self, range: Range<usize>) -> CudaSliceMut<'_, T> {
        let address = part::<T>(self.address, self.len, &range);
        CudaSliceMut { address, len: range.len(), of: PhantomData }
    }

    /// All of them, while the result lives: to enqueue more than once.
    pub fn all(&mut self) -> CudaSliceMut<'_, T> {
        self.range(0..self.len)
    }

    /// All of them, to be read while the result lives.
    pub fn read(&self) -> CudaSlice<'_, T> {
        CudaSlice { address: self.address, len: self.len, of: PhantomData }
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }
}

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the card's memory.
    Card,
    /// In the host's, page-locked: at this address there.
    Pinned(*mut c_void),
    /// The device was lost before: nothing will use it.
    Nowhere,
}

/// Which memory a buffer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Card,
    Pinned,
}

/// An allocation of the driver.
struct Block {
    place: Place,
    address: u64,
    bytes: usize,
}

// SAFETY: the address is followed by the driver, and by `store` and `load`, whose callers promise
// that conflicting accesses do not overlap in time.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// Memory of the driver. May wait for the driver: buffers are made when a program starts.
    fn new(kind: Kind, bytes: usize) -> Result<Block, DriverError> {
        match kind {
            // SAFETY: freed in `drop` only.
            Kind::Card => unsafe { result::malloc_sync(bytes) }.map(|address| Block {
                place: Place::Card,
                address,
                bytes,
            }),
            Kind::Pinned => {
                // Not write-combined: the host reads results from it.
                let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
                // SAFETY: freed in `drop` only.
                let host = unsafe { result::malloc_host(bytes, flags) }?;
                let mut block = Block { place: Place::Pinned(host), address: 0, bytes };
                let mut address = MaybeUninit::uninit();
                // SAFETY: `host` was allocated as mapped; the driver writes the address when it
                // succeeds.
                block.address = unsafe {
                    sys::cuMemHostGetDevicePointer_v2(address.as_mut_ptr(), host, 0).result()?;
                    address.assume_init()
                };
                Ok(block)
            }
        }
    }

    fn kind(&self) -> Option<Kind> {
        match self.place {
            Place::Card => Some(Kind::Card),
            Place::Pinned(_) => Some(Kind::Pinned),
            Place::Nowhere => None,
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // A block is dropped when every lane has passed its events or has ended. A failure leaves the
        // memory to the process's end.
        let _ = match self.place {
            // SAFETY: allocated in `new`, and nothing uses it any more.
            Place::Card => unsafe { result::free_sync(self.address) },
            // SAFETY: as above.
            Place::Pinned(host) => unsafe { result::free_host(host) },
            Place::Nowhere => Ok(()),
        };
    }
}

/// A block in use. Dropping the last handle retires it.
pub(super) struct Lease {
    of: Arc<Inner>,
    block: Block,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let nowhere = Block { place: Place::Nowhere, address: 0, bytes: 0 };
        self.of.retire(std::mem::replace(&mut self.block, nowhere));
    }
}

/// A block that nobody holds, and the events behind everything that may use it; none of a lane
/// where the device was lost.
pub(super) struct Retired {
    block: Block,
    behind: [Option<Event>; LANES],
}

impl Retired {
    /// Whether nothing uses it any more.
    fn over(&self) -> bool {
        self.behind
            .iter()
            .all(|event| event.as_ref().is_some_and(|e| matches!(e.reached(), Ok(true))))
    }
}

impl Inner {
    /// A block of `bytes` bytes for the buffer `label`; its contents are anybody's.
    ///
    /// # Panics
    /// When the card, or the host, has no room for it.
    pub(super) fn lease(self: &Arc<Inner>, label: &str, kind: Kind, bytes: usize) -> Arc<Lease> {
        // The driver has no allocations of nothing.
        let bytes = bytes.max(1);
        let block = if self.lost.get().is_some() { None } else { self.find(label, kind, bytes) };
        let block = block.unwrap_or(Block { place: Place::Nowhere, address: 0, bytes });
        Arc::new(Lease { of: self.clone(), block })
    }

    /// A block, unless the device is lost.
    fn find(&self, label: &str, kind: Kind, bytes: usize) -> Option<Block> {
        let mut retired = self.retired();
        let fits = |r: &Retired| r.block.kind() == Some(kind) && r.block.bytes == bytes && r.over();
        if let Some(at) = retired.iter().position(fits) {
            let Retired { block, behind } = retired.swap_remove(at);
            drop(retired);
            self.pool().extend(behind.into_iter().flatten());
            return Some(block);
        }
        let full = DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let made = Block::new(kind, bytes).or_else(|error| {
            if error != full {
                return Err(error);
            }
            retired.retain(|retired| !retired.over());
            Block::new(kind, bytes)
        });
        match made {
            Ok(block) => Some(block),
            Err(error) if error == full => {
                panic!("no room for the buffer `{label}` of {bytes} bytes ({kind:?})")
            }
            Err(error) => {
                self.lose_somewhere(error);
                None
            }
        }
    }

    /// Takes back a block that jobs may still use.
    fn retire(&self, block: Block) {
        if block.kind().is_none() {
            return;
        }
        let behind = if self.lost.get().is_some() || self.context.bind().is_err() {
            Default::default()
        } else {
            self.queues.each_ref().map(|queue| self.event_on(queue.stream()).ok())
        };
        self.retired().push(Retired { block, behind });
    }

    /// Fills a new buffer with `T::default()`.
    pub(super) fn fill<T: Element>(&self, memory: &CudaMemory<T>) -> Result<(), DriverError> {
        let len = memory.buffer.len;
        let value = T::default();
        match memory.block.block.place {
            Place::Nowhere => Ok(()),
            Place::Pinned(host) => {
                let start = host.cast::<T>();
                // SAFETY: the block has room for `len` elements, is aligned for them, and nobody
                // else knows it yet.
                (0..len).for_each(|i| unsafe { start.add(i).write(value) });
                Ok(())
            }
            Place::Card if len == 0 || size_of::<T>() == 0 => Ok(()),
            Place::Card => self.spread(memory.block.block.address, len, value),
        }
    }

    /// Writes `value` to `len` elements of the card: the first from the host, the others by copies
    /// of what is there already, each twice as long as the one before.
    fn spread<T: Element>(&self, address: u64, len: usize, value: T) -> Result<(), DriverError> {
        let stream = &self.setup;
        // SAFETY: `value` lives until the stream is synchronized below; the address is of a block
        // with room for `len` elements that nobody else knows yet.
        unsafe { result::memcpy_htod_async(address, &[value], stream.0.0) }?;
        let mut done = 1;
        while done < len {
            let next = done.min(len - done);
            let to = address + (done * size_of::<T>()) as u64;
            // SAFETY: as above; the ranges do not overlap.
            unsafe { stream.copy(address, to, next * size_of::<T>()) }?;
            done += next;
        }
        stream.synchronize()
    }
}
