//! The driver's graphs: what a program enqueues, recorded without running it, and launched whole.

use super::driver::{Handle, Priority, Stream, said};
use super::{Inner, Queue, lock};
use crate::device::{Job, Program};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};

/// A captured graph of a [`super::Cuda`] device.
pub struct CudaGraph(Arc<Mutex<Captured>>);

/// Fields are dropped from first to last: the graph before the memory it bakes in.
struct Captured {
    /// None until it is captured, and on a lost device.
    graph: Option<Executable>,
    /// Owns what the graph bakes in.
    program: Program<Queue>,
}

/// What the driver launches.
struct Executable {
    raw: Handle<sys::CUgraphExec>,
    of: Arc<Inner>,
}

impl Drop for Executable {
    fn drop(&mut self) {
        let _ = self.of.context.bind();
        // SAFETY: instantiated once, destroyed here only; the driver frees what is under way when
        // it has ended.
        let _ = unsafe { result::graph::exec_destroy(self.raw.0) };
    }
}

impl CudaGraph {
    /// A graph for `program`, and the job that captures it: a job, since the program reaches what
    /// only jobs of its lane may.
    pub(super) fn new(of: &Arc<Inner>, program: Program<Queue>) -> (CudaGraph, Job<Queue>) {
        let captured = Arc::new(Mutex::new(Captured { graph: None, program }));
        let (to, of) = (captured.clone(), of.clone());
        let job = move |queue: &Queue| {
            let mut to = lock(&to);
            match record(queue, &mut to.program) {
                Ok(raw) => to.graph = Some(Executable { raw, of }),
                Err(error) => queue.fail(format!("capture: {}", said(error))),
            }
        };
        (CudaGraph(captured), Box::new(job))
    }

    /// A job that launches it.
    pub(super) fn job(&self) -> Job<Queue> {
        let captured = self.0.clone();
        Box::new(move |queue| {
            if let Some(graph) = &lock(&captured).graph {
                // SAFETY: the arguments of a replay are those of the capture, under guards of this
                // lane; the graph keeps their memory, and the driver keeps the graph.
                queue.enqueue("graph", |stream| unsafe {
                    result::graph::launch(graph.raw.0, stream.0.0)
                });
            }
        })
    }
}

/// Runs `program` on a stream that records instead of running: the lanes' streams are left alone.
/// The priority of a graph is that of the lane it is launched on.
fn record(
    queue: &Queue,
    program: &mut Program<Queue>,
) -> Result<Handle<sys::CUgraphExec>, DriverError> {
    let recording = Queue::new(queue.device().clone(), Stream::new(Priority::Lowest)?);
    let stream = recording.stream().0.0;
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream lives as long as `recording`; so below.
    unsafe { result::stream::begin_capture(stream, mode) }?;
    let outcome = catch_unwind(AssertUnwindSafe(|| program(&recording)));
    // SAFETY: as above.
    let graph = unsafe { result::stream::end_capture(stream) };
    if let Err(payload) = outcome {
        resume_unwind(payload);
    }
    if let Some(failure) = recording.failure() {
        queue.fail(failure);
    }
    let graph = graph?;
    // SAFETY: the capture made the graph; it is destroyed here only.
    unsafe {
        let executable = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
        result::graph::destroy(graph)?;
        executable.map(Handle)
    }
}
