//! State that belongs to one lane alone: model weights, KV pools, workspaces.

use crate::device::{Access, Buffer, Device, Role, Touch, same_device};
use crate::lane::{Arguments, Held, Lane, sealed};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::sync::Arc;

/// A value that only jobs of one lane can reach, one at a time. The host cannot.
///
/// ```
/// use device::{Lanes, Local, Sim};
/// let sim = Sim::new(1);
/// let lanes = Lanes::new(&sim);
/// let mut steps = Local::new(&lanes.forward, "steps", 0u32);
/// lanes.forward.launch("step", steps.on(), |steps| *steps += 1);
/// ```
/// Another lane cannot have it:
/// ```compile_fail,E0277
/// use device::{Lanes, Local, Sim};
/// let sim = Sim::new(1);
/// let lanes = Lanes::new(&sim);
/// let mut steps = Local::new(&lanes.forward, "steps", 0u32);
/// lanes.plan.launch("step", steps.on(), |steps| *steps += 1);
/// ```
/// Nor can a job have it twice:
/// ```compile_fail,E0499
/// use device::{Lanes, Local, Sim};
/// let sim = Sim::new(1);
/// let lanes = Lanes::new(&sim);
/// let mut steps = Local::new(&lanes.forward, "steps", 0u32);
/// lanes.forward.launch("step", (steps.on(), steps.on()), |(a, b)| *a += *b);
/// ```
pub struct Local<S, R: Role> {
    buffer: Buffer,
    state: Arc<Confined<S>>,
    role: PhantomData<R>,
}

struct Confined<S>(UnsafeCell<S>);

// SAFETY: the cell is reached only through `Held::lend`, inside jobs of one lane of one device,
// which run one at a time, each seeing what the one before did. The last handle, perhaps on
// another thread, drops the state, for which `Send` suffices.
unsafe impl<S: Send> Sync for Confined<S> {}

/// The argument that lets one job at the state.
pub struct LocalView<'l, S, R: Role> {
    of: &'l mut Local<S, R>,
}

/// What a job holds of a [`Local`].
pub struct HeldLocal<S>(Arc<Confined<S>>);

impl<S: Send + 'static, R: Role> Local<S, R> {
    /// A state for `lane`, named `label` in checks and traces.
    pub fn new<D: Device>(lane: &Lane<R, D>, label: &'static str, state: S) -> Local<S, R> {
        let buffer = lane.device().register(label, 1);
        Local { buffer, state: Arc::new(Confined(UnsafeCell::new(state))), role: PhantomData }
    }

    /// The argument for one job. Borrowed exclusively: a job cannot be given the state twice.
    pub fn on(&mut self) -> LocalView<'_, S, R> {
        LocalView { of: self }
    }
}

impl<S, R: Role> sealed::Sealed for LocalView<'_, S, R> {}
impl<S: Send + 'static, R: Role, D: Device> Arguments<R, D> for LocalView<'_, S, R> {
    type Held = HeldLocal<S>;

    fn touches(&self, device: &D, touches: &mut Vec<Touch>) {
        let buffer = &self.of.buffer;
        same_device(device.id(), &buffer.device);
        touches.push(Touch { buffer: buffer.id, access: Access::Write, range: 0..buffer.len });
    }

    fn hold(self) -> HeldLocal<S> {
        HeldLocal(self.of.state.clone())
    }
}

impl<S> sealed::Sealed for HeldLocal<S> {}
impl<Q: 'static, S: Send + 'static> Held<Q> for HeldLocal<S> {
    type Seen<'j> = &'j mut S;

    unsafe fn lend<'j>(&'j mut self, _: &'j Q) -> &'j mut S {
        // SAFETY: by the caller's promise this is a job of the state's own lane and device; they
        // run one at a time, and within the job there is no second handle.
        unsafe { &mut *self.0.0.get() }
    }
}
