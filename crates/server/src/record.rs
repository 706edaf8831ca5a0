//! What became of a request, for whoever keeps an account: the log, and who else an operator names.

use engine::{Finished, Stats};
use std::fmt::Debug;
use std::time::{Duration, SystemTime};

/// Is told of each request that was generated for or refused, when it is over. Requests that only ask
/// how the server is leave no record.
pub trait Recorder: Debug + Send + Sync {
    /// Takes a record. It is called on the server's threads, between the last byte of an answer and the
    /// next request: it does not wait for anything.
    fn record(&self, record: &Record<'_>);
}

/// A request that is over.
#[derive(Debug)]
pub struct Record<'r> {
    /// What was known when it came.
    pub head: &'r Head,
    /// What became known since.
    pub account: &'r Account,
    /// From its head to the last byte of its answer.
    pub lasted: Duration,
}

/// What is known of a request when it comes.
#[derive(Clone, Debug)]
pub struct Head {
    /// The client's `x-request-id`, or one that the answer tells.
    pub id: String,
    /// `POST`, …
    pub method: String,
    /// As it was asked for.
    pub path: String,
    /// The path's pattern; `None` for one that leads nowhere.
    pub route: Option<String>,
    /// The caller's place in its trace, as W3C's Trace Context writes it, unread.
    pub traceparent: Option<String>,
    /// What goes with it.
    pub tracestate: Option<String>,
    /// When it came.
    pub begun: SystemTime,
}

/// What becomes known of a request.
#[derive(Debug, Default)]
pub struct Account {
    /// The answer's status; `None` when the client went before there was one.
    pub status: Option<u16>,
    /// The id of the answer, where it has one of its own.
    pub answer: Option<String>,
    /// The model, as the answer calls it.
    pub model: Option<String>,
    /// What was asked of a generation.
    pub asked: Option<Asked>,
    /// Why there was none, or not all of it.
    pub failure: Option<Failure>,
    /// The generations that ended, in the order of their ends, by number: prompt after prompt, choice
    /// after choice. Their times count from [`Asked::after`].
    pub ends: Vec<(usize, Finished)>,
}

/// What was asked of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// How long after its head came the request was ready for the engine.
    pub after: Duration,
    /// Prompts.
    pub prompts: usize,
    /// Choices of each.
    pub choices: usize,
    /// Output tokens of each choice at most, where there is a bound besides the context.
    pub max_tokens: Option<usize>,
    /// 0 for greedy.
    pub temperature: f32,
    /// 1 keeps all tokens.
    pub top_p: f32,
    /// 0 keeps all tokens.
    pub top_k: u32,
    /// Of the first choice.
    pub seed: u64,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The error's name in the API.
    pub name: &'static str,
    /// What the client was told.
    pub message: String,
}

impl Record<'_> {
    /// nginx's number for a client that did not wait.
    const GONE: u16 = 499;

    /// The answer's status, or a number for a client that went before there was one.
    pub fn status(&self) -> u16 {
        self.account.status.unwrap_or(Record::GONE)
    }

    /// Nobody generated and nobody was refused.
    pub(crate) fn is_routine(&self) -> bool {
        let Account { asked, failure, .. } = self.account;
        asked.is_none() && failure.is_none() && self.status() < 400
    }

    /// A count, over all generations.
    pub fn sum(&self, of: impl Fn(&Stats) -> usize) -> usize {
        self.account.ends.iter().map(|(_, end)| of(&end.stats)).sum()
    }

    /// A count of prompts, each of which has its choices in common.
    pub fn sum_of_prompts(&self, of: impl Fn(&Stats) -> usize) -> usize {
        let choices = self.account.asked.as_ref().map_or(1, |asked| asked.choices.max(1));
        let firsts = self.account.ends.iter().filter(|(number, _)| number.is_multiple_of(choices));
        firsts.map(|(_, end)| of(&end.stats)).sum()
    }

    /// Tokens committed per verify pass, over all generations; 0 without a pass.
    pub fn tau(&self) -> f64 {
        self.sum(|stats| stats.committed) as f64 / self.sum(|stats| stats.steps).max(1) as f64
    }
}
