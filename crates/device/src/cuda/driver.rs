//! The driver's handles as owned values: a context, streams and events. Nothing here knows lanes.
//!
//! Calls that take a context use the calling thread's current one: whoever calls in here has made
//! it current with [`Context::bind`].

use super::error::CudaError;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use std::mem::MaybeUninit;

/// What the driver must speak: this program's bindings are made from CUDA 13.0.
const NEEDED: i32 = 13_000;

/// A handle of the driver.
pub(super) struct Handle<T>(pub(super) T);

// SAFETY: handles are addresses that only the driver follows, in calls that any thread may make.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above; the driver locks what it changes.
unsafe impl<T> Sync for Handle<T> {}

/// The driver's text for an error.
pub(super) fn said(error: DriverError) -> String {
    let text = |name: Result<&std::ffi::CStr, DriverError>| {
        name.map_or_else(|_| "unknown".to_owned(), |name| name.to_string_lossy().into_owned())
    };
    format!("{} ({})", text(error.error_string()), text(error.error_name()))
}

/// A failure of `doing`, for people.
pub(super) fn failed(doing: &'static str) -> impl Fn(DriverError) -> CudaError {
    move |error| CudaError::Driver { doing, said: said(error) }
}

/// A card's primary context.
pub(super) struct Context {
    card: sys::CUdevice,
    raw: Handle<sys::CUcontext>,
    pub(super) name: String,
    /// Compute capability, major and minor.
    pub(super) capability: (i32, i32),
    pub(super) multiprocessors: u32,
    pub(super) shared: u32,
}

impl Context {
    /// The context of a card, made current on this thread.
    ///
    /// # Errors
    /// No driver, one that is too old, no such card, or a failure of the driver.
    pub(super) fn new(card: usize) -> Result<Context, CudaError> {
        // SAFETY: only opens the library, whose initialisers are the driver's own.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        let mut found = 0;
        // SAFETY: the library is there, and `found` lives through the call.
        unsafe { sys::cuDriverGetVersion(&raw mut found) }
            .result()
            .map_err(failed("asking the driver for its version"))?;
        if found < NEEDED {
            return Err(CudaError::OldDriver { found, needed: NEEDED });
        }
        match result::init() {
            Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => {
                return Err(CudaError::NoCard { card, found: 0 });
            }
            other => other.map_err(failed("starting the driver"))?,
        }
        let cards = result::device::get_count().map_err(failed("counting the GPUs"))?;
        let ordinal = i32::try_from(card).ok().filter(|card| *card < cards);
        let Some(ordinal) = ordinal else {
            return Err(CudaError::NoCard { card, found: usize::try_from(cards).unwrap_or(0) });
        };
        Context::retain(ordinal).map_err(failed("opening the GPU"))
    }

    fn retain(ordinal: i32) -> Result<Context, DriverError> {
        use sys::CUdevice_attribute_enum as Attribute;
        let card = result::device::get(ordinal)?;
        let name = result::device::get_name(card)?;
        // SAFETY: `card` came from the driver.
        let attribute = |which| unsafe { result::device::get_attribute(card, which) };
        let capability = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let multiprocessors = u32::try_from(multiprocessors).expect("a card has some");
        let shared = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let shared = u32::try_from(shared).expect("a block of threads has some");
        // SAFETY: `card` came from the driver; `drop` gives back what is retained here.
        let raw = Handle(unsafe { result::primary_ctx::retain(card) }?);
        let context = Context { card, raw, name, capability, multiprocessors, shared };
        context.bind()?;
        Ok(context)
    }

    /// Makes the context current on the calling thread.
    pub(super) fn bind(&self) -> Result<(), DriverError> {
        // SAFETY: the context is retained until `drop`.
        unsafe { result::ctx::set_current(self.raw.0) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `retain`. A failure leaves the context to the process's end.
        let _ = unsafe { result::primary_ctx::release(self.card) };
    }
}

/// Whether a stream's kernels go before those of others that are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    Highest,
    Lowest,
}

/// A stream that takes part in no implicit order with others.
pub(super) struct Stream(pub(super) Handle<sys::CUstream>);

impl Stream {
    pub(super) fn new(priority: Priority) -> Result<Stream, DriverError> {
        use result::stream::{StreamKind, create_with_priority, get_priority_range};
        let (lowest, highest) = get_priority_range()?;
        let priority = match priority {
            Priority::Highest => highest,
            Priority::Lowest => lowest,
        };
        create_with_priority(StreamKind::NonBlocking, priority).map(|raw| Stream(Handle(raw)))
    }

    /// Blocks the host until everything enqueued has ended.
    pub(super) fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: the stream lives until `drop`.
        unsafe { result::stream::synchronize(self.0.0) }
    }

    /// Nothing enqueued from now on runs before `event`'s last record.
    pub(super) fn wait(&self, event: &Event) -> Result<(), DriverError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both live until their `drop`.
        unsafe { result::stream::wait_event(self.0.0, event.0.0, flags) }
    }

    /// Copies bytes between addresses of this card or of pinned memory.
    ///
    /// # Safety
    /// Both ranges are valid until the copy has run, and nothing in conflict runs meanwhile.
    pub(super) unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        unsafe { sys::cuMemcpyAsync(to, from, bytes, self.0.0) }.result()
    }

    /// Clears bytes.
    ///
    /// # Safety
    /// As [`Stream::copy`].
    pub(super) unsafe fn clear(&self, to: u64, bytes: usize) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        unsafe { result::memset_d8_async(to, 0, bytes, self.0.0) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed here only; work under way still completes.
        let _ = unsafe { result::stream::destroy(self.0.0) };
    }
}

/// A point in a stream.
pub(super) struct Event(Handle<sys::CUevent>);

impl Event {
    /// For order only. Waiting for it puts the host to sleep instead of spinning: the host lands a
    /// step while the next one runs, so waking up is not on the way of the device.
    pub(super) fn new() -> Result<Event, DriverError> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32
            | sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        let mut raw = MaybeUninit::uninit();
        // SAFETY: the driver writes the handle when it succeeds.
        unsafe {
            sys::cuEventCreate(raw.as_mut_ptr(), flags).result()?;
            Ok(Event(Handle(raw.assume_init())))
        }
    }

    /// For order and time.
    pub(super) fn timed() -> Result<Event, DriverError> {
        result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map(|raw| Event(Handle(raw)))
    }

    pub(super) fn record(&self, stream: &Stream) -> Result<(), DriverError> {
        // SAFETY: both live until their `drop`.
        unsafe { result::event::record(self.0.0, stream.0.0) }
    }

    /// Whether the last record has been reached.
    pub(super) fn reached(&self) -> Result<bool, DriverError> {
        // SAFETY: the event lives until `drop`.
        match unsafe { result::event::query(self.0.0) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Blocks the host until the last record has been reached.
    pub(super) fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: the event lives until `drop`.
        unsafe { result::event::synchronize(self.0.0) }
    }

    /// Milliseconds from `start` to this one; both are timed and reached.
    pub(super) fn since(&self, start: &Event) -> Result<f32, DriverError> {
        // SAFETY: both live until their `drop`.
        unsafe { result::event::elapsed(start.0.0, self.0.0) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created here, destroyed here only; the driver keeps what is still on its way.
        let _ = unsafe { result::event::destroy(self.0.0) };
    }
}
