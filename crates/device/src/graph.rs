//! Graphs: work recorded once and replayed whole. A graph bakes in the buffers that it was
//! captured with, so a replay asks for the same arguments again, and with them for live guards.
//!
//! ```
//! use device::{Lanes, Plan, Shared, Sim};
//! let sim = Sim::new(1);
//! let lanes = Lanes::new(&sim);
//! let ids: Shared<u32, Plan, Sim> = Shared::new(&sim, "ids", 4);
//! let graph = {
//!     let ids = ids.read(&lanes.forward);
//!     lanes.forward.capture("sum", ids.view(), |ids| assert_eq!(ids.iter().sum::<u32>(), 0))
//! };
//! let ids = ids.read(&lanes.forward);
//! lanes.forward.replay(&graph, ids.view());
//! ```
//!
//! Where jobs are closures on the host, capturing keeps the closure and replaying launches it. A
//! device with graphs of its own runs the closure once, while capturing, and replays what it
//! enqueued.
//!
//! What one step writes while the graph of the step before still reads it is a ring of buffers, and
//! so a ring of graphs: one capture a slot.

use crate::device::{Device, DeviceId, Job, Program, Role, Touch, same_device};
use crate::lane::{Arguments, Held, Lane};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

/// Captured work of lane `R` of a device `D`, for arguments that a job holds as `H`.
pub struct Graph<R: Role, H, D: Device> {
    device: DeviceId,
    what: &'static str,
    touches: Vec<Touch>,
    captured: D::Captured,
    kind: PhantomData<fn(R, H)>,
}

/// Captured work where jobs are closures on the host: the closure, with what it bakes in.
pub struct Kept(Arc<Mutex<Program<()>>>);

impl Kept {
    pub(crate) fn new(program: Program<()>) -> Kept {
        Kept(Arc::new(Mutex::new(program)))
    }

    /// A job that runs it.
    pub(crate) fn job(&self) -> Job<()> {
        let program = self.0.clone();
        Box::new(move |queue| (program.lock().unwrap_or_else(PoisonError::into_inner))(queue))
    }
}

impl<R: Role, H, D: Device> Graph<R, H, D> {
    /// What it bakes in, in the order of its arguments.
    pub fn touches(&self) -> &[Touch] {
        &self.touches
    }
}

impl<R: Role, D: Device> Lane<R, D> {
    /// Captures `body`, named `what` in traces, with the memory that `arguments` view. Nothing of
    /// it runs on the device, and the memory lives as long as the graph does. `body` does or
    /// enqueues the same however often it is called.
    ///
    /// # Panics
    /// When an argument belongs to another device, or a view's range does not lie within its
    /// buffer.
    pub fn capture<A: Arguments<R, D>>(
        &self,
        what: &'static str,
        arguments: A,
        body: impl for<'j> Fn(<A::Held as Held<D::Queue>>::Seen<'j>) + Send + 'static,
    ) -> Graph<R, A::Held, D> {
        let mut touches = Vec::new();
        arguments.touches(self.device(), &mut touches);
        let mut held = arguments.hold();
        let program: Program<D::Queue> = Box::new(move |queue| {
            // SAFETY: it runs in jobs of lane `R` of the device that `touches` found the arguments
            // to belong to, each launched by `replay` under guards of the same elements.
            body(unsafe { held.lend(queue) });
        });
        let captured = self.device().capture(R::LANE, what, program);
        Graph { device: self.device().id().clone(), what, touches, captured, kind: PhantomData }
    }

    /// Queues `graph`.
    ///
    /// # Panics
    /// When the graph belongs to another device, or `arguments` view other elements than it was
    /// captured with.
    pub fn replay<A: Arguments<R, D>>(&self, graph: &Graph<R, A::Held, D>, arguments: A) {
        same_device(self.device().id(), &graph.device);
        let mut touches = Vec::new();
        arguments.touches(self.device(), &mut touches);
        assert_eq!(
            graph.touches, touches,
            "the graph `{}` bakes in what it was captured with and cannot take anything else",
            graph.what
        );
        self.device().replay(R::LANE, graph.what, touches, &graph.captured);
    }
}
