//! What a request took: the counts of an answer's `usage`, and how drafting went.

use crate::metrics::by_position;
use crate::openai::asked::Report;
use engine::Stats;
use serde::Serialize;

/// Counts over all choices of a request, as they end.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    /// Choices of each prompt, which is counted once.
    choices: usize,
    prompt: usize,
    cached: usize,
    completion: usize,
    reasoning: usize,
    accepted: usize,
    rejected: usize,
    steps: usize,
    committed: usize,
    by_position: Vec<usize>,
}

/// `usage`
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct PromptDetails {
    /// Found in the prefix cache.
    cached_tokens: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct CompletionDetails {
    reasoning_tokens: usize,
    /// Drafts that the target agreed with.
    accepted_prediction_tokens: usize,
    /// Drafts that were looked at in vain.
    rejected_prediction_tokens: usize,
}

/// `usage` of a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Spent {
    input_tokens: usize,
    input_tokens_details: PromptDetails,
    output_tokens: usize,
    output_tokens_details: OutputDetails,
    total_tokens: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct OutputDetails {
    reasoning_tokens: usize,
}

/// `speculation`
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Speculated {
    /// Tokens committed by a verify pass on average, the bonus token included.
    tau: f64,
    /// Verify passes.
    steps: usize,
    /// Passes that accepted the draft at each place of the block.
    accepted_by_position: Vec<usize>,
}

impl Account {
    /// For prompts with `choices` choices each.
    pub(crate) fn new(choices: usize) -> Account {
        Account {
            choices,
            prompt: 0,
            cached: 0,
            completion: 0,
            reasoning: 0,
            accepted: 0,
            rejected: 0,
            steps: 0,
            committed: 0,
            by_position: Vec::new(),
        }
    }

    /// Request `number` has ended with `tokens` tokens of output, `reasoning` of them before its
    /// answer.
    pub(crate) fn add(&mut self, number: usize, stats: &Stats, tokens: usize, reasoning: usize) {
        if number.is_multiple_of(self.choices) {
            self.prompt += stats.prompt_tokens;
            self.cached += stats.cached_tokens;
        }
        self.completion += tokens;
        self.reasoning += reasoning;
        self.accepted += stats.accepted_drafts();
        self.rejected += stats.rejected_drafts();
        self.steps += stats.steps;
        self.committed += stats.committed;
        let places = by_position(&stats.accepted);
        if self.by_position.len() < places.len() {
            self.by_position.resize(places.len(), 0);
        }
        for (sum, passes) in self.by_position.iter_mut().zip(places) {
            *sum += passes;
        }
    }

    /// The counts.
    pub(crate) fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt,
            completion_tokens: self.completion,
            total_tokens: self.prompt + self.completion,
            prompt_tokens_details: PromptDetails { cached_tokens: self.cached },
            completion_tokens_details: CompletionDetails {
                reasoning_tokens: self.reasoning,
                accepted_prediction_tokens: self.accepted,
                rejected_prediction_tokens: self.rejected,
            },
        }
    }

    /// The counts as responses tell them.
    pub(crate) fn spent(&self) -> Spent {
        Spent {
            input_tokens: self.prompt,
            input_tokens_details: PromptDetails { cached_tokens: self.cached },
            output_tokens: self.completion,
            output_tokens_details: OutputDetails { reasoning_tokens: self.reasoning },
            total_tokens: self.prompt + self.completion,
        }
    }

    /// How drafting went, if somebody wants to know.
    pub(crate) fn speculated(&self, report: Report) -> Option<Speculated> {
        (report == Report::Include).then(|| Speculated {
            tau: self.committed as f64 / self.steps.max(1) as f64,
            steps: self.steps,
            accepted_by_position: self.by_position.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_count_once_and_choices_add_up() {
        let stats = |prompt_tokens, accepted: &[usize]| Stats {
            prompt_tokens,
            cached_tokens: 4,
            drafted: 9,
            steps: accepted.iter().sum(),
            committed: 6,
            accepted: accepted.to_vec(),
            ..Stats::default()
        };
        let mut account = Account::new(2);
        // Two prompts with two choices each, ending in any order.
        for (number, prompt) in [(3, 7), (0, 5), (1, 5), (2, 7)] {
            account.add(number, &stats(prompt, &[1, 2, 1]), 10, 1);
        }
        let usage = account.usage();
        assert_eq!(
            (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens),
            (12, 40, 52)
        );
        assert_eq!(usage.prompt_tokens_details.cached_tokens, 8);
        let details = &usage.completion_tokens_details;
        assert_eq!(
            (details.accepted_prediction_tokens, details.rejected_prediction_tokens),
            (16, 20)
        );
        assert_eq!(details.reasoning_tokens, 4);
        let told = account.speculated(Report::Include).expect("asked for");
        assert_eq!(told.accepted_by_position, [12, 4]);
        assert_eq!((told.steps, told.tau), (16, 1.5));
        assert_eq!(account.speculated(Report::Omit), None);
    }
}
