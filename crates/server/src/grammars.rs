//! Constraints as the engine takes them, made of grammars: where `constrain`, which knows bytes, and
//! `engine`, which knows requests, meet.

use constrain::{Compiled, Grammar, GrammarError, Vocabulary};
use engine::{Constrained, Constraint, End, Matcher};
use model::tokenizer::Tokenizer;
use std::sync::{Arc, OnceLock};

/// Compiles grammars for one tokenizer.
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    /// Built when the first grammar comes: many servers never see one.
    compiler: OnceLock<constrain::Grammars>,
}

impl Grammars {
    /// For texts of `tokenizer`.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Grammars {
        Grammars { tokenizer, compiler: OnceLock::new() }
    }

    /// What a request with `grammar` carries. May take as long as a second.
    ///
    /// # Errors
    /// A grammar that cannot be used, and why.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constrained, GrammarError> {
        let compiler = self.compiler.get_or_init(|| {
            let pieces = (0..self.tokenizer.len() as u32).map(|id| self.tokenizer.piece(id));
            constrain::Grammars::new(&Vocabulary {
                pieces: pieces.collect(),
                ends: self.tokenizer.end_ids(),
            })
        });
        let compiled = compiler.compile(grammar)?;
        Ok(Constrained(Arc::new(Shared(compiled))))
    }
}

/// A compiled grammar as a constraint.
struct Shared(Arc<Compiled>);

/// A text that is followed.
struct Followed(constrain::Matcher);

impl Constraint for Shared {
    fn matcher(&self) -> Box<dyn Matcher> {
        Box::new(Followed(self.0.matcher()))
    }
}

impl Matcher for Followed {
    fn allow(&mut self, allowed: &mut [u32]) -> End {
        match self.0.allow(allowed) {
            constrain::End::May => End::May,
            constrain::End::MayNot => End::MayNot,
        }
    }

    fn advance(&mut self, token: u32) -> bool {
        self.0.advance(token)
    }

    fn rewind(&mut self, count: usize) {
        self.0.rewind(count);
    }
}
