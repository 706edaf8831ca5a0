//! Compiling grammars for one vocabulary, within bounds, and keeping what was compiled.

use crate::grammar::Grammar;
use crate::matcher::{End, Matcher};
use crate::source;
use llguidance::ParserFactory;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// How many compiled grammars are kept.
const KEPT: usize = 32;

/// Stack of a compilation: llguidance descends from rule to rule, and a grammar may be one long
/// chain of them. Only what is used of it becomes memory.
const STACK: usize = 512 << 20;

/// Longest message of a refusal, in characters.
const LONGEST_MESSAGE: usize = 300;

/// What the tokens of a vocabulary say.
pub struct Vocabulary<'v> {
    /// The bytes that each id adds to a text; empty for ids that add none.
    pub pieces: Vec<&'v [u8]>,
    /// Ids that end a text. They are never part of one, whatever their bytes.
    pub ends: &'v [u32],
}

/// Compiles grammars for one vocabulary.
pub struct Grammars {
    factory: ParserFactory,
    ends: Arc<[u32]>,
    words: usize,
    kept: Mutex<Kept>,
}

/// A compiled grammar. Cheap to share.
pub struct Compiled {
    /// Before the first token.
    pub(crate) start: llguidance::Matcher,
    env: TokEnv,
    pub(crate) ends: Arc<[u32]>,
    /// Set when a bound was met while a text was followed: its lexer may be full. Texts that are
    /// followed already go on as they can, new ones get a grammar compiled afresh.
    pub(crate) spent: AtomicBool,
}

/// A grammar that cannot be used: what is wrong with it, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct GrammarError {
    problem: String,
}

/// Compiled grammars by what they were compiled from, and when each was last used.
#[derive(Default)]
struct Kept {
    by_source: HashMap<String, (Arc<Compiled>, u64)>,
    uses: u64,
}

impl GrammarError {
    pub(crate) fn new(problem: impl Into<String>) -> GrammarError {
        GrammarError { problem: problem.into() }
    }

    /// What llguidance said, without what only its authors can read.
    fn quoted(message: &str) -> GrammarError {
        // It panics where it has no error.
        if message.starts_with("panic: ") {
            return GrammarError::new("asks for what is not supported, such as special tokens");
        }
        if message.starts_with("NoExtensionBias") {
            return GrammarError::new("allows no text at all");
        }
        let message = message.replace("<non-verbose/>", "");
        let words: Vec<&str> = message.split_whitespace().collect();
        let short: String = words.join(" ").chars().take(LONGEST_MESSAGE).collect();
        GrammarError::new(format!("cannot be used: {short}"))
    }
}

impl Grammars {
    /// For a vocabulary. Takes about as long as sorting it.
    ///
    /// # Panics
    /// When an end is no id of the vocabulary.
    pub fn new(vocabulary: &Vocabulary<'_>) -> Grammars {
        let size = vocabulary.pieces.len();
        let mut pieces: Vec<Vec<u8>> =
            vocabulary.pieces.iter().map(|piece| piece.to_vec()).collect();
        for &end in vocabulary.ends {
            pieces[end as usize].clear();
        }
        // No text in UTF-8 has this byte; to llguidance it is the sign of a special token.
        let special = |piece: &&mut Vec<u8>| piece.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER);
        pieces.iter_mut().filter(special).for_each(Vec::clear);
        let info =
            TokRxInfo::new(size as u32, vocabulary.ends.first().copied().unwrap_or(u32::MAX));
        let mut trie = TokTrie::from(&info, &pieces);
        if !vocabulary.ends.is_empty() {
            trie = trie.with_eos_tokens(vocabulary.ends);
        }
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let capabilities = InferenceCapabilities::default();
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, capabilities, &slices)
            .expect("the slices are llguidance's own");
        factory.quiet();
        *factory.limits_mut() = limits();
        let (ends, words) = (vocabulary.ends.into(), size.div_ceil(32));
        Grammars { factory, ends, words, kept: Mutex::default() }
    }

    /// Words of 32 bits of a mask over the vocabulary.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Compiles `grammar`, or finds it compiled. May take as long as a second; everything is
    /// bounded, whatever the grammar.
    ///
    /// # Errors
    /// A grammar that is wrong, not supported, too large, or without any text.
    pub fn compile(&self, grammar: &Grammar) -> Result<Arc<Compiled>, GrammarError> {
        let source = source::write(grammar)?;
        let key = serde_json::to_string(&source).expect("a grammar is text");
        if let Some(found) = self.kept().find(&key) {
            return Ok(found);
        }
        let compiled = thread::scope(|scope| {
            let compile = || self.compile_source(source);
            let thread = thread::Builder::new().name("grammar".into()).stack_size(STACK);
            let thread = thread.spawn_scoped(scope, compile).map_err(|error| {
                GrammarError::new(format!("could not be compiled, there is no thread: {error}"))
            })?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        self.kept().keep(key, compiled.clone());
        Ok(compiled)
    }

    fn compile_source(&self, source: TopLevelGrammar) -> Result<Arc<Compiled>, GrammarError> {
        let start = llguidance::Matcher::new(self.factory.create_parser(source));
        if let Some(message) = start.get_error() {
            return Err(GrammarError::quoted(&message));
        }
        let (env, ends) = (self.factory.tok_env().clone(), self.ends.clone());
        let compiled = Arc::new(Compiled { start, env, ends, spent: AtomicBool::new(false) });
        self.check_first(&compiled)?;
        Ok(compiled)
    }

    /// A grammar must have a first token, or allow the empty text. That its first mask is within
    /// bounds is known then too.
    fn check_first(&self, compiled: &Arc<Compiled>) -> Result<(), GrammarError> {
        let mut matcher = compiled.matcher();
        let mut allowed = vec![0; self.words];
        match matcher.allow(&mut allowed) {
            End::MayNot if allowed.iter().all(|&word| word == 0) => match matcher.failure() {
                Some(message) => Err(GrammarError::quoted(&message)),
                None => Err(GrammarError::new("allows no text at all")),
            },
            End::May | End::MayNot => Ok(()),
        }
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        // The map is whole whatever panicked while it was locked.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn find(&mut self, source: &str) -> Option<Arc<Compiled>> {
        self.uses += 1;
        let (found, used) = self.by_source.get_mut(source)?;
        if found.spent.load(Ordering::Relaxed) {
            return None;
        }
        *used = self.uses;
        Some(found.clone())
    }

    fn keep(&mut self, source: String, compiled: Arc<Compiled>) {
        self.by_source.insert(source, (compiled, self.uses));
        if self.by_source.len() > KEPT {
            let oldest = self.by_source.iter().min_by_key(|(_, (_, used))| *used);
            let oldest = oldest.expect("there is one").0.clone();
            self.by_source.remove(&oldest);
        }
    }
}

impl Compiled {
    /// Whether an id adds bytes to a text.
    pub(crate) fn says(&self, token: u32) -> bool {
        !self.env.tok_trie().token(token).is_empty()
    }

    /// Follows a text from its start.
    pub fn matcher(self: &Arc<Self>) -> Matcher {
        Matcher::new(self.clone())
    }
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled").field("spent", &self.spent).finish_non_exhaustive()
    }
}

/// What one grammar may cost. Schemas of tools and answers need a few per cent of it.
fn limits() -> ParserLimits {
    ParserLimits {
        initial_lexer_fuel: 500_000,
        max_grammar_size: 50_000,
        // Per mask.
        step_lexer_fuel: 100_000,
        step_max_items: 50_000,
        max_items_in_row: 2_000,
        // A kilobyte or two each.
        max_lexer_states: 50_000,
        precompute_large_lexemes: true,
        // An error must not quote what the text so far was.
        verbose_errors: false,
    }
}
