//! Lanes and the arguments of their jobs. A job gets only what views let it reach, a view exists
//! only while its guard does, and what a job sees cannot leave it.
//!
//! Guards of one kind of device do not go with lanes of another:
//! ```compile_fail,E0308
//! use device::{Lanes, Schedule, Shared, Sim, Threads};
//! let (sim, threads) = (Sim::new(1), Threads::new());
//! let lanes = Lanes::new(&threads);
//! let table: Shared<u32, Schedule, Sim> = Shared::new(&sim, "table", 4);
//! let _ = table.read(&lanes.forward);
//! ```
//! Two devices of one kind have the same types; mixing those up panics.

use crate::device::{
    Access, Copies, Device, DeviceId, Element, Forward, Memory, Plan, Role, Schedule, Space, Touch,
    same_device,
};
use std::marker::PhantomData;
use std::ops::Range;

/// A stream with a role. A device has one lane a role; handles to it are alike.
pub struct Lane<R: Role, D: Device> {
    device: D,
    role: PhantomData<R>,
}

/// The four lanes of a device.
pub struct Lanes<D: Device> {
    /// Writes the page table.
    pub schedule: Lane<Schedule, D>,
    /// Makes step metadata.
    pub plan: Lane<Plan, D>,
    /// Runs the model.
    pub forward: Lane<Forward, D>,
    /// Copies results back.
    pub copies: Lane<Copies, D>,
}

impl<D: Device> Lanes<D> {
    /// The lanes of `device`.
    pub fn new(device: &D) -> Lanes<D> {
        Lanes {
            schedule: Lane::new(device),
            plan: Lane::new(device),
            forward: Lane::new(device),
            copies: Lane::new(device),
        }
    }

    /// The device.
    pub fn device(&self) -> &D {
        self.forward.device()
    }
}

impl<R: Role, D: Device> Lane<R, D> {
    fn new(device: &D) -> Lane<R, D> {
        Lane { device: device.clone(), role: PhantomData }
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Queues `job`, named `what` in traces, with the memory that `arguments` view. The job sees
    /// a slice for each view, `&mut` for each [`crate::Local`] and the lane's queue for each
    /// [`Lane::queue`], in the arguments' shape.
    ///
    /// # Panics
    /// When an argument belongs to another device, or a view's range does not lie within its
    /// buffer.
    pub fn launch<A: Arguments<R, D>>(
        &self,
        what: &'static str,
        arguments: A,
        job: impl for<'j> FnOnce(<A::Held as Held<D::Queue>>::Seen<'j>) + Send + 'static,
    ) {
        let mut touches = Vec::new();
        arguments.touches(&self.device, &mut touches);
        let mut held = arguments.hold();
        self.device.launch(
            R::LANE,
            what,
            touches,
            Box::new(move |queue| {
                // SAFETY: this is a job of lane `R` of the device that `touches` found the
                // arguments to belong to, and it was handed its queue.
                job(unsafe { held.lend(queue) });
            }),
        );
    }

    /// The argument through which a job gets the lane's queue, where jobs enqueue work rather than
    /// do it.
    ///
    /// ```
    /// use device::{Device, Element, Lanes, Memory, Plan, Shared, Space, Sim};
    /// /// A copy on any device.
    /// trait Copying: Device {
    ///     fn copy(
    ///         queue: &Self::Queue,
    ///         from: <Self::Space as Space>::Slice<'_, u32>,
    ///         to: <Self::Space as Space>::SliceMut<'_, u32>,
    ///     );
    /// }
    /// impl Copying for Sim {
    ///     fn copy(_: &(), from: &[u32], to: &mut [u32]) {
    ///         to.copy_from_slice(from);
    ///     }
    /// }
    /// fn copy<D: Copying>(lanes: &Lanes<D>, a: &Shared<u32, Plan, D>, b: &mut Shared<u32, Plan, D>) {
    ///     let lane = &lanes.plan;
    ///     let (a, mut b) = (a.read(lane), b.write(lane));
    ///     lane.launch("copy", (lane.queue(), a.view(), b.view()), |(queue, a, b)| {
    ///         D::copy(queue, a, b);
    ///     });
    /// }
    /// let sim = Sim::new(1);
    /// let lanes = Lanes::new(&sim);
    /// let a = Shared::new(&sim, "a", 4);
    /// let mut b = Shared::new(&sim, "b", 4);
    /// copy(&lanes, &a, &mut b);
    /// ```
    /// A job has no queue but its own lane's:
    /// ```compile_fail,E0277
    /// use device::{Lanes, Sim};
    /// let sim = Sim::new(1);
    /// let lanes = Lanes::new(&sim);
    /// lanes.forward.launch("elsewhere", lanes.plan.queue(), |_| ());
    /// ```
    /// And it cannot carry it off:
    /// ```compile_fail,E0521
    /// use device::{Lanes, Sim};
    /// use std::sync::Mutex;
    /// static KEPT: Mutex<Option<&'static ()>> = Mutex::new(None);
    /// let sim = Sim::new(1);
    /// let lanes = Lanes::new(&sim);
    /// lanes.plan.launch("keep", lanes.plan.queue(), |queue| *KEPT.lock().unwrap() = Some(queue));
    /// ```
    pub fn queue(&self) -> OnQueue<R, D> {
        OnQueue { device: self.device.id().clone(), kind: PhantomData }
    }

    /// An event after everything launched so far.
    pub fn record(&self) -> D::Event {
        self.device.record(R::LANE)
    }

    /// Runs nothing launched from now on before `event`.
    ///
    /// # Panics
    /// When the event belongs to another device.
    pub fn wait(&self, event: &D::Event) {
        self.device.wait(R::LANE, event);
    }
}

/// Only this crate says what a job can be given: an argument that could be kept past its guard
/// would undo what guards promise.
pub(crate) mod sealed {
    /// See the module.
    pub trait Sealed {}
}

/// What a job of lane `R` is given: a view, a [`crate::Local::on`], a [`Lane::queue`], a vector or
/// an option of them, or a tuple.
pub trait Arguments<R: Role, D: Device>: sealed::Sealed {
    /// What the job holds until it runs.
    type Held: Held<D::Queue>;

    /// Appends what the job touches.
    ///
    /// # Panics
    /// When something lies on another device, or outside its buffer.
    fn touches(&self, device: &D, touches: &mut Vec<Touch>);

    /// What the job holds.
    fn hold(self) -> Self::Held;
}

/// What a job that is handed a queue of type `Q` holds of its arguments. It reaches nothing by
/// itself.
pub trait Held<Q: 'static>: sealed::Sealed + Send + 'static {
    /// What the job sees while it runs.
    type Seen<'j>;

    /// What the job sees.
    ///
    /// # Safety
    /// Called inside a job of the lane and device of the arguments that this came from, launched
    /// while guards of the same elements lived, with the queue that the job was handed; at most
    /// one such job runs at a time.
    unsafe fn lend<'j>(&'j mut self, queue: &'j Q) -> Self::Seen<'j>;
}

/// The argument for the lane's queue; see [`Lane::queue`].
pub struct OnQueue<R: Role, D: Device> {
    device: DeviceId,
    kind: PhantomData<fn(R, D)>,
}

/// What a job holds of an [`OnQueue`].
pub struct HeldQueue(());

/// Elements that a job of lane `R` reads. Borrowed from a guard.
pub struct View<'g, T: Element, R: Role, D: Device> {
    memory: &'g Memory<T, D>,
    range: Range<usize>,
    role: PhantomData<R>,
}

/// Elements that a job of lane `R` writes. Borrowed from a guard.
pub struct ViewMut<'g, T: Element, R: Role, D: Device> {
    memory: &'g Memory<T, D>,
    range: Range<usize>,
    role: PhantomData<R>,
}

/// What a job holds of a [`View`].
pub struct HeldView<T: Element, D: Device> {
    memory: Memory<T, D>,
    range: Range<usize>,
}

/// What a job holds of a [`ViewMut`].
pub struct HeldViewMut<T: Element, D: Device> {
    memory: Memory<T, D>,
    range: Range<usize>,
}

impl<'g, T: Element, R: Role, D: Device> View<'g, T, R, D> {
    /// The caller's guard made lane `R` wait for the last write, and records read-done later.
    pub(crate) fn new(memory: &'g Memory<T, D>, range: Range<usize>) -> Self {
        View { memory, range, role: PhantomData }
    }
}

impl<'g, T: Element, R: Role, D: Device> ViewMut<'g, T, R, D> {
    /// The caller's guard made lane `R` wait for every read-done, and publishes the write later.
    pub(crate) fn new(memory: &'g Memory<T, D>, range: Range<usize>) -> Self {
        ViewMut { memory, range, role: PhantomData }
    }
}

fn touch<T: Element, D: Device>(
    device: &D,
    memory: &Memory<T, D>,
    access: Access,
    range: &Range<usize>,
) -> Touch {
    let buffer = D::Space::buffer(memory);
    same_device(device.id(), &buffer.device);
    assert!(
        range.start <= range.end && range.end <= buffer.len,
        "a view of {range:?} of a buffer of {} elements",
        buffer.len
    );
    Touch { buffer: buffer.id, access, range: range.clone() }
}

impl<T: Element, R: Role, D: Device> sealed::Sealed for View<'_, T, R, D> {}
impl<T: Element, R: Role, D: Device> Arguments<R, D> for View<'_, T, R, D> {
    type Held = HeldView<T, D>;

    fn touches(&self, device: &D, touches: &mut Vec<Touch>) {
        touches.push(touch(device, self.memory, Access::Read, &self.range));
    }

    fn hold(self) -> HeldView<T, D> {
        HeldView { memory: self.memory.clone(), range: self.range }
    }
}

impl<T: Element, D: Device> sealed::Sealed for HeldView<T, D> {}
impl<T: Element, D: Device> Held<D::Queue> for HeldView<T, D> {
    type Seen<'j> = <D::Space as Space>::Slice<'j, T>;

    unsafe fn lend<'j>(&'j mut self, _: &'j D::Queue) -> Self::Seen<'j> {
        // SAFETY: the guard made the lane wait for the last write before this job, and recorded
        // read-done after it, which the next write waits for. Within the job, an overlapping
        // `ViewMut` cannot exist: its guard excludes this one's.
        unsafe { D::Space::slice(&self.memory, self.range.clone()) }
    }
}

impl<T: Element, R: Role, D: Device> sealed::Sealed for ViewMut<'_, T, R, D> {}
impl<T: Element, R: Role, D: Device> Arguments<R, D> for ViewMut<'_, T, R, D> {
    type Held = HeldViewMut<T, D>;

    fn touches(&self, device: &D, touches: &mut Vec<Touch>) {
        touches.push(touch(device, self.memory, Access::Write, &self.range));
    }

    fn hold(self) -> HeldViewMut<T, D> {
        HeldViewMut { memory: self.memory.clone(), range: self.range }
    }
}

impl<T: Element, D: Device> sealed::Sealed for HeldViewMut<T, D> {}
impl<T: Element, D: Device> Held<D::Queue> for HeldViewMut<T, D> {
    type Seen<'j> = <D::Space as Space>::SliceMut<'j, T>;

    unsafe fn lend<'j>(&'j mut self, _: &'j D::Queue) -> Self::Seen<'j> {
        // SAFETY: the guard made the lane wait for every read-done before this job, and publishes
        // the write after it, which every later reader waits for; other writes are on this lane.
        // Within the job there is no second view: this one borrowed the guard exclusively.
        unsafe { D::Space::slice_mut(&self.memory, self.range.clone()) }
    }
}

impl<R: Role, D: Device> sealed::Sealed for OnQueue<R, D> {}
impl<R: Role, D: Device> Arguments<R, D> for OnQueue<R, D> {
    type Held = HeldQueue;

    fn touches(&self, device: &D, _: &mut Vec<Touch>) {
        same_device(device.id(), &self.device);
    }

    fn hold(self) -> HeldQueue {
        HeldQueue(())
    }
}

impl sealed::Sealed for HeldQueue {}
impl<Q: 'static> Held<Q> for HeldQueue {
    type Seen<'j> = &'j Q;

    unsafe fn lend<'j>(&'j mut self, queue: &'j Q) -> &'j Q {
        queue
    }
}

impl sealed::Sealed for () {}
impl<R: Role, D: Device> Arguments<R, D> for () {
    type Held = ();

    fn touches(&self, _: &D, _: &mut Vec<Touch>) {}

    fn hold(self) {}
}
impl<Q: 'static> Held<Q> for () {
    type Seen<'j> = ();

    unsafe fn lend<'j>(&'j mut self, _: &'j Q) {}
}

impl<A: sealed::Sealed> sealed::Sealed for Vec<A> {}
impl<R: Role, D: Device, A: Arguments<R, D>> Arguments<R, D> for Vec<A> {
    type Held = Vec<A::Held>;

    fn touches(&self, device: &D, touches: &mut Vec<Touch>) {
        self.iter().for_each(|argument| argument.touches(device, touches));
    }

    fn hold(self) -> Self::Held {
        self.into_iter().map(Arguments::hold).collect()
    }
}
impl<Q: 'static, H: Held<Q>> Held<Q> for Vec<H> {
    type Seen<'j> = Vec<H::Seen<'j>>;

    unsafe fn lend<'j>(&'j mut self, queue: &'j Q) -> Self::Seen<'j> {
        // SAFETY: the caller's promise, passed on to each.
        self.iter_mut().map(|held| unsafe { held.lend(queue) }).collect()
    }
}

impl<A: sealed::Sealed> sealed::Sealed for Option<A> {}
impl<R: Role, D: Device, A: Arguments<R, D>> Arguments<R, D> for Option<A> {
    type Held = Option<A::Held>;

    fn touches(&self, device: &D, touches: &mut Vec<Touch>) {
        self.iter().for_each(|argument| argument.touches(device, touches));
    }

    fn hold(self) -> Self::Held {
        self.map(Arguments::hold)
    }
}
impl<Q: 'static, H: Held<Q>> Held<Q> for Option<H> {
    type Seen<'j> = Option<H::Seen<'j>>;

    unsafe fn lend<'j>(&'j mut self, queue: &'j Q) -> Self::Seen<'j> {
        // SAFETY: the caller's promise, passed on.
        self.as_mut().map(|held| unsafe { held.lend(queue) })
    }
}

macro_rules! tuples {
    ($($($name:ident)*;)*) => {$(
        impl<$($name: sealed::Sealed),*> sealed::Sealed for ($($name,)*) {}

        impl<Rl: Role, Dv: Device, $($name: Arguments<Rl, Dv>),*> Arguments<Rl, Dv>
            for ($($name,)*)
        {
            type Held = ($($name::Held,)*);

            #[allow(non_snake_case)] // the type parameters name the entries
            fn touches(&self, device: &Dv, touches: &mut Vec<Touch>) {
                let ($($name,)*) = self;
                $($name.touches(device, touches);)*
            }

            #[allow(non_snake_case)] // the type parameters name the entries
            fn hold(self) -> Self::Held {
                let ($($name,)*) = self;
                ($($name.hold(),)*)
            }
        }

        impl<Qu: 'static, $($name: Held<Qu>),*> Held<Qu> for ($($name,)*) {
            type Seen<'j> = ($($name::Seen<'j>,)*);

            #[allow(non_snake_case)] // the type parameters name the entries
            unsafe fn lend<'j>(&'j mut self, queue: &'j Qu) -> Self::Seen<'j> {
                let ($($name,)*) = self;
                // SAFETY: the caller's promise, passed on to each.
                unsafe { ($($name.lend(queue),)*) }
            }
        }
    )*};
}

tuples! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
    A B C D E F G;
    A B C D E F G H;
}
