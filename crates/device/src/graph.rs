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
//! device with graphs of its own records the closure's launches instead.

use crate::device::{Device, DeviceId, Role, Touch, same_device};
use crate::lane::{Arguments, Held, Lane};
use std::marker::PhantomData;
use std::sync::Arc;

type Body<H> = dyn for<'j> Fn(<H as Held>::Seen<'j>) + Send + Sync;

/// Captured work of lane `R`, for arguments that a job holds as `H`.
pub struct Graph<R: Role, H: Held> {
    device: DeviceId,
    what: &'static str,
    touches: Vec<Touch>,
    body: Arc<Body<H>>,
    role: PhantomData<R>,
}

impl<R: Role, H: Held> Graph<R, H> {
    /// What it bakes in, in the order of its arguments.
    pub fn touches(&self) -> &[Touch] {
        &self.touches
    }
}

impl<R: Role, D: Device> Lane<R, D> {
    /// Captures `body`, named `what` in traces, with the memory that `arguments` view. Nothing
    /// runs.
    ///
    /// # Panics
    /// When an argument belongs to another device, or a view's range does not lie within its
    /// buffer.
    pub fn capture<A: Arguments<R, D>>(
        &self,
        what: &'static str,
        arguments: A,
        body: impl for<'j> Fn(<A::Held as Held>::Seen<'j>) + Send + Sync + 'static,
    ) -> Graph<R, A::Held> {
        let mut touches = Vec::new();
        arguments.touches(self.device(), &mut touches);
        let (device, body) = (self.device().id().clone(), Arc::new(body));
        Graph { device, what, touches, body, role: PhantomData }
    }

    /// Queues `graph`.
    ///
    /// # Panics
    /// When the graph belongs to another device, or `arguments` view other elements than it was
    /// captured with.
    pub fn replay<A: Arguments<R, D>>(&self, graph: &Graph<R, A::Held>, arguments: A) {
        same_device(self.device().id(), &graph.device);
        let mut touches = Vec::new();
        arguments.touches(self.device(), &mut touches);
        assert_eq!(
            graph.touches, touches,
            "the graph `{}` bakes in what it was captured with and cannot take anything else",
            graph.what
        );
        let body = graph.body.clone();
        self.launch(graph.what, arguments, move |seen| body(seen));
    }
}
