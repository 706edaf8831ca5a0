//! The operations of the tests as kernels.

use crate::steps::Kit;
use device::Device;
use device::cuda::{
    Cuda, CudaError, CudaSlice, CudaSliceMut, Grid, Kernel, Module, OnCard, Queue, Reads, Source,
    Writes,
};
use std::marker::PhantomData;
use std::time::Duration;

/// The kernels' source.
pub(crate) const SOURCE: Source = Source { name: "contract.cu", text: include_str!("contract.cu") };

/// What a forward pass takes up of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// One thread: every other lane finds room beside it.
    Thread,
    /// All of it: blocks of 1,024 threads, so many at a time, each for so long.
    Card {
        /// Blocks that the card runs at a time.
        blocks: u32,
        /// The time of one.
        each: Duration,
    },
}

/// Kernels on a device `D` whose queues are the card's.
pub(crate) struct CudaKit<D> {
    delay: Kernel<(u64,)>,
    add: Kernel<(Reads<u32>, Writes<u32>)>,
    gather: Kernel<(Reads<u32>, Reads<u32>, Writes<u32>)>,
    pass: Pass,
    device: PhantomData<fn(D)>,
}

impl<D> Clone for CudaKit<D> {
    fn clone(&self) -> Self {
        let (delay, add, gather) = (self.delay.clone(), self.add.clone(), self.gather.clone());
        CudaKit { delay, add, gather, pass: self.pass, device: PhantomData }
    }
}

impl<D> CudaKit<D> {
    /// Compiles and loads them.
    pub(crate) fn new(cuda: &Cuda, pass: Pass) -> Result<CudaKit<D>, CudaError> {
        let module = Module::load(cuda, &SOURCE)?;
        // SAFETY: contract.cu declares these parameters and stays within the slices on any grid.
        unsafe {
            let (delay, add) = (module.kernel("delay")?, module.kernel("add")?);
            let gather = module.kernel("gather")?;
            Ok(CudaKit { delay, add, gather, pass, device: PhantomData })
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("a delay of less than 500 years")
}

impl<D: Device<Queue = Queue, Space = OnCard>> Kit for CudaKit<D> {
    type Device = D;

    fn copy(&self, queue: &Queue, from: CudaSlice<'_, u32>, to: CudaSliceMut<'_, u32>) {
        queue.copy(from, to);
    }

    fn add(&self, queue: &Queue, from: CudaSlice<'_, u32>, to: CudaSliceMut<'_, u32>) {
        queue.launch(&self.add, Grid::over(to.len()), (from, to));
    }

    fn gather(
        &self,
        queue: &Queue,
        table: CudaSlice<'_, u32>,
        ids: CudaSlice<'_, u32>,
        to: CudaSliceMut<'_, u32>,
    ) {
        queue.launch(&self.gather, Grid::over(to.len()), (table, ids, to));
    }

    fn delay(&self, queue: &Queue, time: Duration) {
        if !time.is_zero() {
            let grid = Grid { blocks: 1, threads: 1 };
            queue.launch(&self.delay, grid, (nanoseconds(time),));
        }
    }

    fn pass(&self, queue: &Queue, time: Duration) {
        match self.pass {
            Pass::Thread => self.delay(queue, time),
            Pass::Card { .. } if time.is_zero() => {}
            Pass::Card { blocks, each } => {
                let waves = time.as_nanos().div_ceil(each.as_nanos());
                let waves = u32::try_from(waves).expect("a pass of few waves");
                let grid = Grid { blocks: blocks * waves, threads: 1_024 };
                queue.launch(&self.delay, grid, (nanoseconds(each),));
            }
        }
    }
}
