//! What a program that was built without GPUs says when it is asked for one.

use super::Opening;
use crate::args::Place;
use crate::failure::Failure;
use device::Cpu;
use engine::Pair;
use std::path::Path;

fn without(place: Place) -> Failure {
    Failure::input(format!("--device {place}: this program was built without the feature `cuda`"))
}

pub(super) fn load(
    (place, _, _): Opening,
    _: &Cpu,
    _: &Path,
    _: Option<&Path>,
) -> Result<Pair, Failure> {
    Err(without(place))
}

pub(super) fn random(_: Opening, _: &Cpu, _: (&Path, &[usize]), _: &Path) -> Result<Pair, Failure> {
    Err(without(Place::Cuda(0)))
}
