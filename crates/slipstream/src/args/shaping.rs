//! The options that shape logits: penalties and biases.

use super::number;
use clap::Args;
use engine::Shaping;

/// What is done to the logits before a token is drawn.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct ShapingArgs {
    /// Make tokens that the output has less likely: N off their logits, from -2 to 2
    #[arg(long, value_name = "N", default_value = "0", value_parser = penalty, allow_negative_numbers = true)]
    presence_penalty: f32,
    /// The same, N for every time that the output has them
    #[arg(long, value_name = "N", default_value = "0", value_parser = penalty, allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// Divide positive logits of tokens in prompt and output by N, and multiply the others; 1 does
    /// nothing
    #[arg(long, value_name = "N", default_value = "1", value_parser = repetition, allow_negative_numbers = true)]
    repetition_penalty: f32,
    /// Add N, from -100 to 100, to the logit of token ID; may be given several times
    #[arg(long, value_name = "ID=N", value_parser = bias, allow_hyphen_values = true)]
    logit_bias: Vec<(u32, f32)>,
}

impl ShapingArgs {
    /// As the engine takes it.
    pub(crate) fn shaping(&self) -> Shaping {
        Shaping {
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            repetition_penalty: self.repetition_penalty,
            logit_bias: self.logit_bias.clone(),
        }
    }
}

fn penalty(text: &str) -> Result<f32, String> {
    number(text, |n| (-2.0..=2.0).contains(&n), "give a number from -2 to 2, 0 for none")
}

fn repetition(text: &str) -> Result<f32, String> {
    number(text, |n| n > 0.0, "give a number above 0, 1 for none")
}

fn bias(text: &str) -> Result<(u32, f32), String> {
    let remedy = "give a token id and a number from -100 to 100, such as 42=-5";
    let (id, amount) = text.split_once('=').ok_or(remedy)?;
    let id = id.parse().map_err(|_| remedy)?;
    Ok((id, number(amount, |n| (-100.0..=100.0).contains(&n), remedy)?))
}
