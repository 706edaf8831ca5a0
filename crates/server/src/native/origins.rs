//! Where the tokens of an answer came from, for clients that show drafting at work: which of them were
//! accepted drafts, the text in pieces of one origin, and the drafts that were refused.

use engine::Update;
use model::tokenizer::Tokenizer;
use serde::Serialize;

/// Of an answer, or of what is new of it.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct Origins {
    /// Of each output token: whether the drafter proposed it and the target agreed.
    output_token_drafted: Vec<bool>,
    /// The text, in order; together they are `text`.
    output_segments: Vec<Piece>,
    refused_drafts: Vec<Refused>,
}

/// Text from tokens of one origin.
#[derive(Debug, PartialEq, Serialize)]
struct Piece {
    text: String,
    drafted: bool,
}

/// A draft that the target did not agree with, or that came behind one.
#[derive(Debug, PartialEq, Serialize)]
struct Refused {
    /// The output token that it was proposed for, from 0.
    position: usize,
    id: u32,
    token: String,
}

impl Origins {
    /// Of an update that came behind `before` output tokens.
    pub(crate) fn of(update: &Update, before: usize, tokenizer: &Tokenizer) -> Origins {
        // The first refused draft stands where the target's own token does. That is the last one,
        // unless it was a stop, which is not given out.
        let own = update.tokens.last().is_some_and(|token| !token.drafted);
        let first = before + update.tokens.len() - usize::from(own);
        let refused = |(i, &id): (usize, &u32)| Refused {
            position: first + i,
            id,
            token: tokenizer.name(id),
        };
        let piece = |segment: &engine::Segment| Piece {
            text: segment.text.clone(),
            drafted: segment.drafted,
        };
        Origins {
            output_token_drafted: update.tokens.iter().map(|token| token.drafted).collect(),
            output_segments: update.text.iter().map(piece).collect(),
            refused_drafts: update.refused.iter().enumerate().map(refused).collect(),
        }
    }

    /// Puts what came next behind.
    pub(crate) fn extend(&mut self, more: Origins) {
        self.output_token_drafted.extend(more.output_token_drafted);
        self.output_segments.extend(more.output_segments);
        self.refused_drafts.extend(more.refused_drafts);
    }
}
