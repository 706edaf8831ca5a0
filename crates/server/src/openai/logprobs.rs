//! Log-probabilities as the two kinds of completions report them. They are those of the target,
//! before temperature and filters, whether a token was drafted or not.

use engine::{LogProbs, TokenOut, Update};
use model::tokenizer::{Detokenizer, Tokenizer};
use serde::Serialize;
use serde_json::{Map, Value};

/// A token of a chat.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Entry {
    #[serde(flatten)]
    chosen: Candidate,
    /// The likeliest, best first.
    top_logprobs: Vec<Candidate>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Candidate {
    /// As people write it.
    token: String,
    logprob: f32,
    /// What it adds to the text; need not be whole characters.
    bytes: Vec<u8>,
}

impl Candidate {
    fn new(tokenizer: &Tokenizer, id: u32, logprob: f32) -> Candidate {
        let (token, bytes) = (tokenizer.name(id), tokenizer.piece(id).to_vec());
        Candidate { token, logprob: finite(logprob), bytes }
    }
}

/// JSON has no infinity; OpenAI writes this for what is all but impossible.
pub(crate) fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}

/// The entries of tokens that were asked for with log-probabilities.
pub(crate) fn entries(tokenizer: &Tokenizer, tokens: &[TokenOut]) -> Vec<Entry> {
    let entry = |token: &TokenOut| {
        let found = token.logprobs.as_ref()?;
        let top = found.top.iter().map(|&(id, logprob)| Candidate::new(tokenizer, id, logprob));
        let chosen = Candidate::new(tokenizer, token.id, found.chosen);
        Some(Entry { chosen, top_logprobs: top.collect() })
    };
    tokens.iter().filter_map(entry).collect()
}

/// `logprobs` of a completion: one entry a token in each list.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Lists {
    tokens: Vec<String>,
    /// `None` for the first token of a prompt, which nothing precedes.
    token_logprobs: Vec<Option<f32>>,
    /// By token, the likeliest; of tokens that are written alike, the likeliest.
    top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Where each token begins in the text, in characters.
    text_offset: Vec<usize>,
    /// What each token adds to the text.
    bytes: Vec<Vec<u8>>,
}

/// Makes [`Lists`] of the tokens of one choice, as they come.
#[derive(Clone, Default)]
pub(crate) struct Offsets {
    /// Where the tokens of the prompt that are still to come begin.
    prompt: std::vec::IntoIter<usize>,
    text: Detokenizer,
    /// Where the next output token begins.
    characters: usize,
}

impl Offsets {
    /// Behind a prompt whose tokens begin at `prompt` in `text`.
    pub(crate) fn behind(prompt: Vec<usize>, text: &str) -> Offsets {
        let characters = text.chars().count();
        Offsets { prompt: prompt.into_iter(), text: Detokenizer::new(), characters }
    }

    /// What an update adds.
    pub(crate) fn lists(&mut self, tokenizer: &Tokenizer, update: &Update) -> Lists {
        let mut lists = Lists::default();
        for token in &update.prompt {
            let offset = self.prompt.next().expect("the prompt has a place for each of its tokens");
            lists.push(tokenizer, token.id, token.logprobs.as_ref(), offset);
        }
        for token in update.tokens.iter().filter(|token| token.logprobs.is_some()) {
            lists.push(tokenizer, token.id, token.logprobs.as_ref(), self.characters);
            let mut text = String::new();
            self.text.push(tokenizer.piece(token.id), &mut text);
            self.characters += text.chars().count();
        }
        lists
    }
}

impl Lists {
    fn push(&mut self, tokenizer: &Tokenizer, id: u32, found: Option<&LogProbs>, offset: usize) {
        let top = |found: &LogProbs| {
            let mut top = Map::new();
            for &(id, logprob) in &found.top {
                top.entry(tokenizer.name(id)).or_insert_with(|| finite(logprob).into());
            }
            top
        };
        self.tokens.push(tokenizer.name(id));
        self.token_logprobs.push(found.map(|found| finite(found.chosen)));
        self.top_logprobs.push(found.map(top));
        self.text_offset.push(offset);
        self.bytes.push(tokenizer.piece(id).to_vec());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// These, and then `more`.
    pub(crate) fn extend(&mut self, more: Lists) {
        self.tokens.extend(more.tokens);
        self.token_logprobs.extend(more.token_logprobs);
        self.top_logprobs.extend(more.top_logprobs);
        self.text_offset.extend(more.text_offset);
        self.bytes.extend(more.bytes);
    }
}
