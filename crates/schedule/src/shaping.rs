//! What a request asks to be done to logits before each of its choices, and what the device must
//! know to do it.

use crate::request::RequestError;

/// Largest penalty for presence and frequency, and the least is its negative.
const MOST_PENALTY: f32 = 2.0;

/// Largest addition to a logit, and the least is its negative.
const MOST_BIAS: f32 = 100.0;

/// Most tokens with an addition.
const MOST_BIASES: usize = 1024;

/// What is done to the logits before temperature and filters. The default does nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Shaping {
    /// Taken off the logit of every token that the output has, from −2 to 2; 0 for nothing.
    pub presence_penalty: f32,
    /// Taken off the logit of a token for every time that the output has it, from −2 to 2; 0 for
    /// nothing.
    pub frequency_penalty: f32,
    /// The logit of a token that prompt or output have is divided by it when it is positive, and
    /// multiplied when it is not; above 0, 1 for nothing.
    pub repetition_penalty: f32,
    /// Added to the logits of tokens, from −100 to 100; at most 1,024 of them.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for Shaping {
    fn default() -> Shaping {
        Shaping {
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
        }
    }
}

impl Shaping {
    /// Whether a choice depends on which tokens came before.
    pub fn penalizes(&self) -> bool {
        (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)
    }

    /// Whether every field is in its range. Token ids are below `vocab`.
    ///
    /// # Errors
    /// The first field that is not.
    pub fn check(&self, vocab: usize) -> Result<(), RequestError> {
        let err = |field, problem| Err(RequestError { field, problem });
        for (field, penalty) in [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            if !(-MOST_PENALTY..=MOST_PENALTY).contains(&penalty) {
                return err(field, format!("is {penalty}; use a number from -2 to 2, 0 for none"));
            }
        }
        let repetition = self.repetition_penalty;
        if !(repetition.is_finite() && repetition > 0.0) {
            let problem = format!("is {repetition}; use a number above 0, 1 for none");
            return err("repetition_penalty", problem);
        }
        let count = self.logit_bias.len();
        if count > MOST_BIASES {
            let problem = format!("has {count} tokens; give at most {MOST_BIASES}");
            return err("logit_bias", problem);
        }
        for &(token, bias) in &self.logit_bias {
            if token as usize >= vocab {
                return err("logit_bias", format!("{token} is not a token; ids are below {vocab}"));
            }
            if !(-MOST_BIAS..=MOST_BIAS).contains(&bias) {
                let problem = format!("is {bias} for token {token}; use a number from -100 to 100");
                return err("logit_bias", problem);
            }
        }
        Ok(())
    }
}

/// What the device is told of a request whose logits are shaped, once: with the chunk that ends its
/// known tokens. What follows, the device chooses itself, so it can count on from there.
#[derive(Clone, Debug, PartialEq)]
pub struct ShapedRequest {
    /// What is done to its logits.
    pub shaping: Shaping,
    /// Tokens that cannot be chosen as long as the output has fewer than `min_tokens`.
    pub banned: Vec<u32>,
    /// See `banned`.
    pub min_tokens: usize,
    /// All known tokens: the prompt, and what a request that starts again had made before.
    pub tokens: Vec<u32>,
    /// How many of them are the prompt.
    pub prompt: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_out_of_its_range_is_named() {
        let of = |logit_bias| Shaping { logit_bias, ..Shaping::default() };
        let presence = |presence_penalty| Shaping { presence_penalty, ..Shaping::default() };
        let frequency = |frequency_penalty| Shaping { frequency_penalty, ..Shaping::default() };
        let repetition = |repetition_penalty| Shaping { repetition_penalty, ..Shaping::default() };
        for good in [presence(-2.0), frequency(2.0), repetition(1e-3), of(vec![(99, -100.0)])] {
            assert_eq!(good.check(100), Ok(()), "{good:?}");
        }
        for (field, bad) in [
            ("presence_penalty", presence(2.01)),
            ("presence_penalty", presence(f32::NAN)),
            ("frequency_penalty", frequency(-2.5)),
            ("repetition_penalty", repetition(0.0)),
            ("repetition_penalty", repetition(f32::INFINITY)),
            ("logit_bias", of(vec![(3, 1.0), (100, 1.0)])),
            ("logit_bias", of(vec![(3, 100.5)])),
            ("logit_bias", of(vec![(3, f32::NEG_INFINITY)])),
            ("logit_bias", of(vec![(3, 1.0); 1025])),
        ] {
            assert_eq!(bad.check(100).map_err(|e| e.field), Err(field), "{bad:?}");
        }
    }

    #[test]
    fn what_penalizes_depends_on_what_came_before() {
        assert!(!Shaping::default().penalizes());
        assert!(!Shaping { logit_bias: vec![(1, 5.0)], ..Shaping::default() }.penalizes());
        for one in [
            Shaping { presence_penalty: 0.1, ..Shaping::default() },
            Shaping { frequency_penalty: -0.1, ..Shaping::default() },
            Shaping { repetition_penalty: 1.1, ..Shaping::default() },
        ] {
            assert!(one.penalizes(), "{one:?}");
        }
    }
}
