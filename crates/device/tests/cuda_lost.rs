//! What happens when a kernel fails on the card. A program of its own: the driver runs nothing
//! further in a process after that.

use device::cuda::{Cuda, CudaOptions, Grid, Kernel, Module, Reads, Source, Writes};
use device::{Device, Forward, LaneId, Lanes, Plan, Readback, Reason, Shared, Staging};

const SOURCE: Source = Source { name: "contract.cu", text: include_str!("kit/contract.cu") };

/// Lanes, host and later buffers all come back, with an error that names lane, job and cause.
#[test]
fn a_failure_on_the_card_loses_the_device() {
    let cuda = Cuda::new(CudaOptions::default())
        .unwrap_or_else(|error| panic!("this test needs a CUDA card: {error}"));
    let module = Module::load(&cuda, &SOURCE).expect("the kernels compile");
    // SAFETY: contract.cu declares these parameters and stays within the slices on any grid.
    let gather: Kernel<(Reads<u32>, Reads<u32>, Writes<u32>)> =
        unsafe { module.kernel("gather") }.expect("it is there");
    let lanes = Lanes::new(&cuda);
    let lane = &lanes.plan;
    let table: Shared<u32, Plan, Cuda> = Shared::new(&cuda, "table", 4);
    let mut own: Shared<u32, Plan, Cuda> = Shared::new(&cuda, "own", 2);
    let mut ids: Staging<u32, Plan, Cuda> = Staging::new(&cuda, "ids", 3, 2);
    {
        // The kernel stops at the second id.
        let staged = ids.stage(lane, &[3, 4]);
        let (table, mut own) = (table.read(lane), own.write(lane));
        let arguments = (lane.queue(), table.view(), staged.view(), own.view());
        lane.launch("gather", arguments, move |(queue, table, ids, own)| {
            queue.launch(&gather, Grid::over(2), (table, ids, own));
        });
    }
    let mut out: Readback<u32, Forward, Cuda> = Readback::new(&cuda, "out", 2, 2);
    let results = {
        let (own, mut filling) = (own.read(&lanes.forward), out.fill(&lanes.forward, 2));
        let arguments = (lanes.forward.queue(), own.view(), filling.view());
        lanes.forward.launch("copy", arguments, |(queue, own, out)| queue.copy(own, out));
        filling.pending()
    };
    let lost = results.land().expect_err("nothing comes of it");
    println!("{lost}");
    assert_eq!(cuda.lost(), Some(lost.clone()));
    let named = [(LaneId::Plan, "gather"), (LaneId::Forward, "copy")];
    assert!(named.contains(&(lost.lane, lost.job)), "{lost}");
    assert!(lost.message.contains("CUDA_ERROR_"), "{lost}");
    // Rings, buffers and lanes go on without doing anything.
    for _ in 0..5 {
        drop(ids.stage(lane, &[0, 1]));
        let filling = out.fill(&lanes.forward, 2);
        assert_eq!(filling.pending().land(), Err(lost.clone()));
        drop(Shared::<u32, Plan, Cuda>::new(&cuda, "late", 8));
    }
    assert_eq!(cuda.land(&lanes.copies.record(), Reason::Results), Err(lost));
}
