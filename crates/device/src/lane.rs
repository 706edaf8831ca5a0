//! Lanes and the arguments of their jobs. A job gets only what views let it reach, and a view
//! exists only while its guard does.

use crate::device::{Access, Device, Element, Role, Touch};
use std::marker::PhantomData;
use std::ops::Range;

/// A stream with a role. A device has one lane a role.
pub struct Lane<R: Role, D: Device> {
    device: D,
    role: PhantomData<R>,
}

/// The four lanes of a device.
pub struct Lanes<D: Device> {
    /// Writes the page table.
    pub schedule: Lane<crate::Schedule, D>,
    /// Makes step metadata.
    pub plan: Lane<crate::Plan, D>,
    /// Runs the model.
    pub forward: Lane<crate::Forward, D>,
    /// Copies results back.
    pub copy: Lane<crate::Copy, D>,
}

impl<D: Device> Lanes<D> {
    /// The lanes of `device`.
    pub fn new(device: &D) -> Lanes<D> {
        Lanes {
            schedule: Lane::new(device),
            plan: Lane::new(device),
            forward: Lane::new(device),
            copy: Lane::new(device),
        }
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

    /// Queues `job`, named `what` in traces, with the memory that `arguments` view.
    pub fn launch<A: Arguments<R, D>>(
        &self,
        what: &'static str,
        arguments: A,
        job: impl FnOnce(&mut A::Resolved) + Send + 'static,
    ) {
        let mut touches = Vec::new();
        arguments.touches(&self.device, &mut touches);
        let mut resolved = arguments.resolve(&self.device);
        // The job borrows what it is given, so that it cannot carry it off.
        self.device.launch(R::LANE, what, touches, Box::new(move || job(&mut resolved)));
    }

    /// An event after everything launched so far.
    pub fn record(&self) -> D::Event {
        self.device.record(R::LANE)
    }

    /// Runs nothing launched from now on before `event`.
    pub fn wait(&self, event: &D::Event) {
        self.device.wait(R::LANE, event);
    }
}

/// What a job of lane `R` is given: a view, or a tuple of them.
pub trait Arguments<R: Role, D: Device> {
    /// What the job sees.
    type Resolved: Send + 'static;

    /// Appends what the job touches.
    fn touches(&self, device: &D, touches: &mut Vec<Touch>);

    /// What the job sees, as it may be sent to the lane.
    fn resolve(self, device: &D) -> Self::Resolved;
}

/// Elements that a job of lane `R` reads. Borrowed from a guard.
pub struct View<'g, T: Element, R: Role, D: Device> {
    memory: &'g D::Memory<T>,
    range: Range<usize>,
    role: PhantomData<R>,
}

/// Elements that a job of lane `R` writes. Borrowed from a guard.
pub struct ViewMut<'g, T: Element, R: Role, D: Device> {
    memory: &'g D::Memory<T>,
    range: Range<usize>,
    role: PhantomData<R>,
}

impl<'g, T: Element, R: Role, D: Device> View<'g, T, R, D> {
    pub(crate) fn new(memory: &'g D::Memory<T>, range: Range<usize>) -> Self {
        View { memory, range, role: PhantomData }
    }
}

impl<'g, T: Element, R: Role, D: Device> ViewMut<'g, T, R, D> {
    pub(crate) fn new(memory: &'g D::Memory<T>, range: Range<usize>) -> Self {
        ViewMut { memory, range, role: PhantomData }
    }
}

fn touch<T: Element, D: Device>(
    device: &D,
    memory: &D::Memory<T>,
    access: Access,
    range: &Range<usize>,
) -> Touch {
    let (buffer, len) = device.describe(memory);
    assert!(range.end <= len, "a view of {range:?} of a buffer of {len} elements");
    Touch { buffer, access, range: range.clone() }
}

impl<T: Element, R: Role, D: Device> Arguments<R, D> for View<'_, T, R, D> {
    type Resolved = D::Ref<T>;

    fn touches(&self, device: &D, touches: &mut Vec<Touch>) {
        touches.push(touch(device, self.memory, Access::Read, &self.range));
    }

    fn resolve(self, device: &D) -> D::Ref<T> {
        // SAFETY: the view is consumed by `Lane::launch`, which runs it in a job of lane `R`. Its
        // guard made the lane wait for the last write and will record read-done after the job;
        // the next write waits for that.
        unsafe { device.reader(self.memory, self.range) }
    }
}

impl<T: Element, R: Role, D: Device> Arguments<R, D> for ViewMut<'_, T, R, D> {
    type Resolved = D::Mut<T>;

    fn touches(&self, device: &D, touches: &mut Vec<Touch>) {
        touches.push(touch(device, self.memory, Access::Write, &self.range));
    }

    fn resolve(self, device: &D) -> D::Mut<T> {
        // SAFETY: the view is consumed by `Lane::launch`, which runs it in a job of lane `R`. Its
        // guard made the lane wait for every lane's read-done, and records the write that every
        // later reader waits for; jobs of one lane run one at a time.
        unsafe { device.writer(self.memory, self.range) }
    }
}

impl<R: Role, D: Device> Arguments<R, D> for () {
    type Resolved = ();

    fn touches(&self, _: &D, _: &mut Vec<Touch>) {}

    fn resolve(self, _: &D) {}
}

impl<R: Role, D: Device, A: Arguments<R, D>> Arguments<R, D> for Vec<A> {
    type Resolved = Vec<A::Resolved>;

    fn touches(&self, device: &D, touches: &mut Vec<Touch>) {
        self.iter().for_each(|argument| argument.touches(device, touches));
    }

    fn resolve(self, device: &D) -> Self::Resolved {
        self.into_iter().map(|argument| argument.resolve(device)).collect()
    }
}

macro_rules! tuples {
    ($($($name:ident)*;)*) => {$(
        impl<Rl: Role, Dv: Device, $($name: Arguments<Rl, Dv>),*> Arguments<Rl, Dv> for ($($name,)*) {
            type Resolved = ($($name::Resolved,)*);

            #[allow(non_snake_case)] // the type parameters name the entries
            fn touches(&self, device: &Dv, touches: &mut Vec<Touch>) {
                let ($($name,)*) = self;
                $($name.touches(device, touches);)*
            }

            #[allow(non_snake_case)] // the type parameters name the entries
            fn resolve(self, device: &Dv) -> Self::Resolved {
                let ($($name,)*) = self;
                ($($name.resolve(device),)*)
            }
        }
    )*};
}

tuples! {
    A;
    A B;
    A B C;
    A B C E;
    A B C E F;
    A B C E F G;
}
