//! Pairs on a GPU.

use super::{CardTiming, Opening};
use crate::args::Place;
use crate::failure::Failure;
use device::Cpu;
use engine::cuda::{Card, JobTiming};
use engine::{Pair, PairOptions};
use std::path::Path;

/// The card that is to be opened.
fn card((place, cache, timing): Opening) -> Result<Card, Failure> {
    let number = match place {
        Place::Cpu => {
            return Err(Failure::input("--random-weights: needs a GPU: --device cuda"));
        }
        Place::Cuda(number) => number,
    };
    let failed = |error| Failure::input(format!("--device {place}: {error}"));
    let timing = match timing {
        CardTiming::Off => JobTiming::Off,
        CardTiming::On => JobTiming::On,
    };
    Card::open(number, Some(cache), timing).map_err(failed)
}

/// A pair from its files.
pub(super) fn load(
    opening: Opening,
    cpu: &Cpu,
    target: &Path,
    draft: Option<&Path>,
) -> Result<Pair, Failure> {
    let options = PairOptions::default();
    Ok(Pair::load_on(card(opening)?, cpu, target, draft, &options)?)
}

/// A pair of random weights.
pub(super) fn random(
    opening: Opening,
    cpu: &Cpu,
    (config, blocks): (&Path, &[usize]),
    tokenizer: &Path,
) -> Result<Pair, Failure> {
    Ok(Pair::random_on(card(opening)?, cpu, (config, blocks), tokenizer)?)
}
