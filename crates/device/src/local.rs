//! State that belongs to one lane alone: model weights, KV pools, workspaces.

use crate::device::{Device, Role, Touch};
use crate::lane::{Arguments, Lane};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A value that only jobs of lane `R` can reach, one at a time.
///
/// ```compile_fail
/// use device::{Forward, Lanes, Local, Sim};
/// let sim = Sim::new(1);
/// let lanes = Lanes::new(&sim);
/// let mut state: Local<u32, Forward> = Local::new(0);
/// lanes.plan.launch("elsewhere", state.on(), |s| **s += 1);
/// ```
pub struct Local<S, R: Role> {
    state: Arc<Confined<S>>,
    role: PhantomData<R>,
}

struct Confined<S>(UnsafeCell<S>);

// SAFETY: the cell is reached only through `LocalMut`, which exists only inside jobs of one lane,
// and a lane runs one job at a time. The last handle, perhaps on another thread, drops the state.
unsafe impl<S: Send> Sync for Confined<S> {}

/// The argument that lets one job at the state.
pub struct LocalView<'l, S, R: Role> {
    of: &'l mut Local<S, R>,
}

/// The state, inside a job.
pub struct LocalMut<S> {
    state: Arc<Confined<S>>,
}

impl<S: Send + 'static, R: Role> Local<S, R> {
    /// A state for lane `R`.
    pub fn new(state: S) -> Local<S, R> {
        Local { state: Arc::new(Confined(UnsafeCell::new(state))), role: PhantomData }
    }

    /// The argument for one job. Borrowed exclusively: a job cannot be given the state twice.
    pub fn on(&mut self) -> LocalView<'_, S, R> {
        LocalView { of: self }
    }
}

impl<S: Send + 'static, R: Role, D: Device> Arguments<R, D> for LocalView<'_, S, R> {
    type Resolved = LocalMut<S>;

    fn touches(&self, _: &D, _: &mut Vec<Touch>) {}

    fn resolve(self, _: &D) -> LocalMut<S> {
        LocalMut { state: self.of.state.clone() }
    }
}

impl<S> Deref for LocalMut<S> {
    type Target = S;

    fn deref(&self) -> &S {
        // SAFETY: only jobs of one lane hold a `LocalMut`, one each, and they do not overlap.
        unsafe { &*self.state.0.get() }
    }
}

impl<S> DerefMut for LocalMut<S> {
    fn deref_mut(&mut self) -> &mut S {
        // SAFETY: as above.
        unsafe { &mut *self.state.0.get() }
    }
}

impl<R: Role, D: Device> Lane<R, D> {
    /// Runs `job` on the lane's own `state`.
    pub fn launch_on<S: Send + 'static>(
        &self,
        what: &'static str,
        state: &mut Local<S, R>,
        job: impl FnOnce(&mut S) + Send + 'static,
    ) {
        self.launch(what, state.on(), move |state| job(state));
    }
}
