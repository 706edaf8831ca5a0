//! A target and its drafter on a CUDA card: weights, keys and values as `bf16`, the residual stream and
//! every sum as `f32`. The decoder is written once over the configuration, as on the CPU.
//!
//! [`CardModels`] are weights on a card, a [`CardPair`] has memory for passes as well. A pass is told
//! to the card as a few words (`batch`), and enqueued by what it does (`pass`, `head`): captured as a
//! graph once for each shape that comes again, launch by launch where a pass is large. What a row
//! becomes depends on that row alone, so the shapes that passes are filled up to change no bit.
//!
//! Matrices are held twice where one is multiplied and looked up: the embedding that is the head.

mod absorb;
mod batch;
mod card;
mod head;
mod job;
mod left;
mod load;
mod pack;
mod pass;
mod plan;
mod queue;
mod room;
mod run;
mod shape;
mod short;

pub use card::Card;
pub use device::cuda::{CudaError, JobTiming};
pub use job::{MOST_LEFT, TOGETHER};
pub use left::{Drafting, Left, Promised};
pub use load::{CardModels, Origin};
pub use pass::{Ids, Taps};
pub use room::{Capacity, MOST_ADDITIONS, SLAB};
pub use run::{CardPair, Found};
