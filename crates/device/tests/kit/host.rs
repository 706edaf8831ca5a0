//! The operations of the tests where jobs are closures on the host.

use crate::steps::Kit;
use device::{Clock, HostDevice};
use std::marker::PhantomData;
use std::time::Duration;

/// Plain loops, and delays by the device's clock.
pub(crate) struct HostKit<D> {
    clock: Clock,
    device: PhantomData<fn(D)>,
}

impl<D: HostDevice> HostKit<D> {
    pub(crate) fn new(device: &D) -> HostKit<D> {
        HostKit { clock: device.clock().clone(), device: PhantomData }
    }
}

impl<D> Clone for HostKit<D> {
    fn clone(&self) -> Self {
        HostKit { clock: self.clock.clone(), device: PhantomData }
    }
}

impl<D: HostDevice> Kit for HostKit<D> {
    type Device = D;

    fn copy(&self, (): &(), from: &[u32], to: &mut [u32]) {
        to.copy_from_slice(from);
    }

    fn add(&self, (): &(), from: &[u32], to: &mut [u32]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = to.wrapping_add(*from));
    }

    fn gather(&self, (): &(), table: &[u32], ids: &[u32], to: &mut [u32]) {
        to.iter_mut().zip(ids).for_each(|(to, id)| *to = table[*id as usize]);
    }

    fn delay(&self, (): &(), time: Duration) {
        self.clock.spend(time);
    }
}
