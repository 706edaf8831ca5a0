//! The kernels of a CUDA card, on a card: against f64 on fresh random inputs at odd sizes, the
//! independence of a row's bits from everything beside it, and the CPU's choices. Without a card each
//! test fails and says what is missing.

#[path = "cuda/attention.rs"]
mod attention;
#[path = "cuda/bias.rs"]
mod bias;
mod card;
#[path = "cuda/choose.rs"]
mod choose;
#[path = "cuda/confidence.rs"]
mod confidence;
#[path = "cuda/gated.rs"]
mod gated;
#[path = "cuda/gemm.rs"]
mod gemm;
#[path = "../src/random.rs"]
mod random;
#[path = "cuda/rope.rs"]
mod rope;
#[path = "cuda/rules.rs"]
mod rules;
#[path = "cuda/short.rs"]
mod short;
#[path = "cuda/small.rs"]
mod small;

use card::Card;
use device::cuda::CudaOptions;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The card, for one test at a time. Opened once: the driver takes a while.
fn card() -> MutexGuard<'static, Card> {
    static CARD: OnceLock<Mutex<Card>> = OnceLock::new();
    let open = || {
        let cache = Some(std::env::temp_dir().join("slipstream-kernel-tests"));
        Mutex::new(Card::open(CudaOptions { cache, ..CudaOptions::default() }))
    };
    CARD.get_or_init(open).lock().unwrap_or_else(PoisonError::into_inner)
}
