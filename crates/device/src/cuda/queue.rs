//! What a job enqueues on its lane's stream: copies, clears and kernels.

use super::driver::{Stream, said};
use super::memory::{CudaSlice, CudaSliceMut};
use super::module::{Kernel, Number, Parameters, Start, Words};
use crate::device::{DeviceId, Element, same_device};
use cudarc::driver::result::DriverError;
use cudarc::driver::sys;
use std::sync::{Mutex, PoisonError};

/// A lane's stream, for as long as a job of the lane runs. What a job enqueues runs later, in
/// order, after everything the lane waits for.
///
/// Nothing here returns an error: after the first one the rest of the job is not enqueued, and the
/// device is lost when the job ends.
pub struct Queue {
    device: DeviceId,
    stream: Stream,
    failed: Mutex<Option<String>>,
}

/// How many threads run a kernel: `blocks` blocks of `threads` threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks.
    pub blocks: u32,
    /// Threads of each.
    pub threads: u32,
}

impl Grid {
    /// One thread an element, for kernels that loop when there are fewer threads.
    pub fn over(elements: usize) -> Grid {
        const THREADS: usize = 256;
        let blocks = elements.div_ceil(THREADS).clamp(1, 65_535);
        Grid { blocks: blocks as u32, threads: THREADS as u32 }
    }
}

impl Queue {
    pub(super) fn new(device: DeviceId, stream: Stream) -> Queue {
        Queue { device, stream, failed: Mutex::default() }
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// What the job that ends now failed at.
    pub(super) fn failure(&self) -> Option<String> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn device(&self) -> &DeviceId {
        &self.device
    }

    /// The job that runs now fails, for the first reason it is given.
    pub(super) fn fail(&self, reason: String) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
    }

    /// Enqueues, unless something before it failed.
    pub(super) fn enqueue(
        &self,
        doing: &str,
        call: impl FnOnce(&Stream) -> Result<(), DriverError>,
    ) {
        if self.failed.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            return;
        }
        if let Err(error) = call(&self.stream) {
            self.fail(format!("{doing}: {}", said(error)));
        }
    }

    /// Copies `from` to `to`, each on the card or pinned.
    ///
    /// # Panics
    /// When their lengths differ.
    pub fn copy<T: Element>(&self, from: CudaSlice<'_, T>, to: CudaSliceMut<'_, T>) {
        assert_eq!(from.len(), to.len(), "a copy is between slices of one length");
        let bytes = from.len() * size_of::<T>();
        if bytes > 0 {
            // SAFETY: the slices are of this job, so they stay valid, and without conflict on
            // other lanes, until what the job enqueues has run.
            self.enqueue("copy", |s| unsafe { s.copy(from.address(), to.address(), bytes) });
        }
    }

    /// Writes zeros.
    pub fn clear<T: Number>(&self, to: CudaSliceMut<'_, T>) {
        let bytes = to.len() * size_of::<T>();
        if bytes > 0 {
            // SAFETY: as in `copy`; zero bytes are a valid number.
            self.enqueue("clear", |s| unsafe { s.clear(to.address(), bytes) });
        }
    }

    /// Launches `kernel` on `grid`.
    ///
    /// # Panics
    /// When the kernel is of another device.
    pub fn launch<P: Parameters>(&self, kernel: &Kernel<P>, grid: Grid, given: P::Given<'_>) {
        same_device(&self.device, kernel.device());
        let mut words = Words::default();
        P::words(given, &mut words);
        let mut pointers = words.pointers();
        // Given with kernels that start early alone.
        let mut early = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { pad: [0; 64] },
        };
        early.value.programmaticStreamSerializationAllowed = 1;
        self.enqueue(kernel.name(), |stream| {
            let config = sys::CUlaunchConfig {
                gridDimX: grid.blocks,
                gridDimY: 1,
                gridDimZ: 1,
                blockDimX: grid.threads,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: kernel.shared(),
                hStream: stream.0.0,
                attrs: &raw mut early,
                numAttrs: u32::from(kernel.start() == Start::Early),
            };
            let (function, words) = (kernel.function(), pointers.as_mut_ptr());
            // SAFETY: whoever made the kernel promised that its parameters are `P` and that it
            // stays within the slices it is given, which are of this job (see `copy`), and, where
            // it starts early, that it waits for what was enqueued before. The words and the
            // attribute live through the call, and the kernel's module as long as its device.
            unsafe {
                sys::cuLaunchKernelEx(&raw const config, function, words, std::ptr::null_mut())
            }
            .result()
        });
    }
}
