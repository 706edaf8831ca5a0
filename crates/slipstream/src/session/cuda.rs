//! Pairs on a GPU.

use crate::args::Place;
use crate::failure::Failure;
use device::Cpu;
use engine::cuda::Card;
use engine::{Pair, PairOptions};
use std::path::{Path, PathBuf};

/// The card that `place` names. Compiled kernels are kept in `cache`.
fn card(place: Place, cache: PathBuf) -> Result<Card, Failure> {
    let number = match place {
        Place::Cpu => {
            return Err(Failure::input("--random-weights: needs a GPU: --device cuda"));
        }
        Place::Cuda(number) => number,
    };
    let failed = |error| Failure::input(format!("--device {place}: {error}"));
    Card::open(number, Some(cache)).map_err(failed)
}

/// A pair from its files.
pub(super) fn load(
    (place, cache): (Place, PathBuf),
    cpu: &Cpu,
    target: &Path,
    draft: Option<&Path>,
) -> Result<Pair, Failure> {
    let options = PairOptions::default();
    Ok(Pair::load_on(card(place, cache)?, cpu, target, draft, &options)?)
}

/// A pair of random weights.
pub(super) fn random(
    (place, cache): (Place, PathBuf),
    cpu: &Cpu,
    config: &Path,
    tokenizer: &Path,
) -> Result<Pair, Failure> {
    Ok(Pair::random_on(card(place, cache)?, cpu, config, tokenizer)?)
}
