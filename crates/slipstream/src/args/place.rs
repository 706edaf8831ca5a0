//! Where models run: `cpu`, `cuda`, `cuda:1`.

use std::fmt;
use std::str::FromStr;

/// Where models run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Place {
    /// On the CPU's threads.
    #[default]
    Cpu,
    /// On a CUDA card, by its number from 0.
    Cuda(usize),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        let place = match text.split_once(':') {
            None if text == "cpu" => Some(Place::Cpu),
            None if text == "cuda" => Some(Place::Cuda(0)),
            Some(("cuda", number)) => number.parse().ok().map(Place::Cuda),
            _ => None,
        };
        place.ok_or_else(|| "give cpu, cuda, or cuda:N with a GPU's number from 0".into())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Cpu => f.write_str("cpu"),
            Place::Cuda(0) => f.write_str("cuda"),
            Place::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_written() {
        for (text, place) in
            [("cpu", Place::Cpu), ("cuda", Place::Cuda(0)), ("cuda:3", Place::Cuda(3))]
        {
            assert_eq!(text.parse(), Ok(place));
            assert_eq!(place.to_string(), text);
        }
        for wrong in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0"] {
            let problem = wrong.parse::<Place>().expect_err(wrong);
            assert!(problem.contains("cuda:N"), "{problem}");
        }
    }
}
