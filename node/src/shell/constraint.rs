//! What an answer may still say, token by token.
//!
//! A [`ConstraintFactory`] belongs to a model and is made once; from it comes a [`Constraint`] for
//! each answer. Before each token [`mask`](Constraint::mask) the logits, choose one that is left,
//! and tell it by [`accept`](Constraint::accept); when [`is_complete`](Constraint::is_complete),
//! end the answer without computing another token. A seed gives the same answer as before, for a
//! mask depends on what was accepted and on nothing else.
//!
//! **Invariant:** what strangers ask for takes bounded time and memory. A schema that cannot be
//! kept to is refused when the constraint is made; one that grows too complex on the way makes
//! `mask` fail, and the answer ends there.

use std::fmt;
use std::io;
use std::sync::Arc;

use compute::tokenizer::Tokenizer;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{
    ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie,
};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;
use thiserror::Error;

use crate::house::{Schema, SchemaError};

/// Longest token that can be part of a constrained answer, bytes; the library's tree goes no
/// deeper. Longer ones are runs of spaces, which shorter ones can write, too.
const TOKEN_BYTES_MAX: usize = 1000;

/// Most bytes of all tokens together; the library's tree holds so many nodes.
const VOCABULARY_BYTES_MAX: usize = (1 << 22) - 1;

/// Longest regular expression, bytes.
const REGEX_BYTES_MAX: usize = 8 << 10;

/// Most choices, and most bytes of them together.
const CHOICES_MAX: usize = 1000;
const CHOICES_BYTES_MAX: usize = 64 << 10;

/// Grammars are made on a stack of their own, since references may lead from one to the next as
/// often as a schema has parts. Only what is used of it takes memory.
const STACK_BYTES: usize = 64 << 20;

/// Work for making a grammar's automaton; 50,000 take about a millisecond.
const MAKING_FUEL: u64 = 1_000_000;

/// Work for one mask; 14,000 take about a millisecond.
const MASK_FUEL: u64 = 200_000;

/// Most states of one answer's automaton, 1 to 2 kB each.
const STATES_MAX: usize = 10_000;

/// Most symbols of a grammar.
const GRAMMAR_SIZE_MAX: usize = 100_000;

/// Most items of the parser at one place of the answer; each optional property that may come next
/// takes about four.
const ROW_ITEMS_MAX: usize = 10_000;

/// Why an answer cannot be constrained, or not any further.
#[derive(Debug, Error)]
pub enum ConstraintError {
    /// The schema asks for what cannot be kept to.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The text is longer than is taken.
    #[error("{what} has {bytes} bytes; {max} is the most that is taken")]
    TooLong {
        /// What is.
        what: &'static str,
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        max: usize,
    },
    /// No choices, or more than are taken.
    #[error("there are {count} choices; give 1 to {CHOICES_MAX}")]
    Choices {
        /// How many there are.
        count: usize,
    },
    /// The library cannot make a grammar of it, or not within bounds.
    #[error("{what} cannot be enforced: {why}")]
    Grammar {
        /// What was to be made one.
        what: &'static str,
        /// Why not, in the library's words.
        why: String,
    },
    /// The model's vocabulary is larger than the library takes.
    #[error("the model's vocabulary has {bytes} bytes, so its answers cannot be constrained")]
    Vocabulary {
        /// How many bytes.
        bytes: usize,
    },
    /// The token is not one that the mask left.
    #[error("token {token} may not come next")]
    Refused {
        /// The token.
        token: u32,
    },
    /// No token of the vocabulary can go on: it lacks the bytes.
    #[error("no token of this model can go on as the grammar wants; ask for something simpler")]
    Stuck,
    /// The answer is complete, and the model has no token that ends one.
    #[error("the answer is complete, and nothing may follow it")]
    Complete,
    /// Going on takes more work than is allowed.
    #[error("keeping to the grammar takes too much work ({why}); ask for something simpler")]
    TooComplex {
        /// What is too much, in the library's words.
        why: String,
    },
    /// The machine has no thread to spare.
    #[error("no thread could be started")]
    Thread(#[from] io::Error),
}

/// Makes constraints for the answers of one model.
pub struct ConstraintFactory {
    parsers: Arc<ParserFactory>,
    /// Sorted.
    ends: Arc<[u32]>,
}

impl ConstraintFactory {
    /// For models with this tokeniser. Keeps a copy of the vocabulary in tree form: 4 MB and a
    /// tenth of a second for 49,152 tokens, 43 MB and a second for 262,144.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, ConstraintError> {
        let count = tokenizer.vocabulary() as u32;
        let words: Vec<Vec<u8>> = (0..count).map(|id| word(tokenizer, id)).collect();
        let bytes = words.iter().map(Vec::len).sum();
        if bytes > VOCABULARY_BYTES_MAX {
            return Err(ConstraintError::Vocabulary { bytes });
        }
        let ends: Arc<[u32]> = (0..count).filter(|id| tokenizer.is_end(*id)).collect();
        let info = TokRxInfo::new(count, ends.first().copied().unwrap_or(INVALID_TOKEN));
        let mut trie = TokTrie::from(&info, &words);
        if !ends.is_empty() {
            trie = trie.with_eos_tokens(&ends);
        }
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        // Slices of the vocabulary would make masks two to three times as fast, which take a tenth
        // of a millisecond or half of one, and the copy three times as large.
        let made = ParserFactory::new(&environment, InferenceCapabilities::default(), &[]);
        let mut parsers = made.map_err(|error| grammar("the vocabulary", &error))?;
        parsers.quiet();
        let limits = parsers.limits_mut();
        limits.initial_lexer_fuel = MAKING_FUEL;
        limits.step_lexer_fuel = MASK_FUEL;
        limits.max_lexer_states = STATES_MAX;
        limits.max_grammar_size = GRAMMAR_SIZE_MAX;
        limits.max_items_in_row = ROW_ITEMS_MAX;
        limits.precompute_large_lexemes = false;
        limits.verbose_errors = false;
        Ok(Self { parsers: Arc::new(parsers), ends })
    }

    /// JSON that satisfies `schema`.
    pub fn for_json_schema(&self, schema: &Value) -> Result<Constraint, ConstraintError> {
        self.for_schema(&Schema::parse(schema)?)
    }

    /// JSON that satisfies `schema`, which has been checked.
    pub fn for_schema(&self, schema: &Schema) -> Result<Constraint, ConstraintError> {
        self.make("the schema", TopLevelGrammar::from_json_schema(schema.guided()))
    }

    /// Any JSON object.
    pub fn any_json_object(&self) -> Result<Constraint, ConstraintError> {
        self.for_schema(&Schema::any_object())
    }

    /// Text that `regex` matches from beginning to end. It has the syntax of the crate `regex`,
    /// without assertions such as `^` and `\b`.
    pub fn for_regex(&self, regex: &str) -> Result<Constraint, ConstraintError> {
        let what = "the regular expression";
        bounded(what, regex.len(), REGEX_BYTES_MAX)?;
        if regex.is_empty() {
            return Err(ConstraintError::Grammar { what, why: "it is empty".to_owned() });
        }
        self.make(what, TopLevelGrammar::from_regex(regex))
    }

    /// One of `choices`.
    pub fn for_choice(&self, choices: &[String]) -> Result<Constraint, ConstraintError> {
        if !(1..=CHOICES_MAX).contains(&choices.len()) {
            return Err(ConstraintError::Choices { count: choices.len() });
        }
        bounded("the choice", choices.iter().map(String::len).sum(), CHOICES_BYTES_MAX)?;
        // Lark's literals are JSON's, but for this letter.
        let literal =
            |text: &String| Value::from(text.as_str()).to_string().replace('\x7f', "\\u007f");
        let literals: Vec<String> = choices.iter().map(literal).collect();
        let lark = format!("start: {}", literals.join(" | "));
        self.make("the choice", TopLevelGrammar::from_lark(lark))
    }

    /// What a grammar in llguidance's Lark describes. Only for grammars of our own, such as
    /// [`ToolFormat::grammar`](crate::house::tools::ToolFormat::grammar) gives: how deep they nest
    /// is not bounded here.
    pub fn for_lark(&self, lark: &str) -> Result<Constraint, ConstraintError> {
        self.make("the grammar", TopLevelGrammar::from_lark(lark.to_owned()))
    }

    fn make(
        &self,
        what: &'static str,
        grammar_text: TopLevelGrammar,
    ) -> Result<Constraint, ConstraintError> {
        let made = std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
            let thread =
                builder.spawn_scoped(scope, || self.parsers.create_parser(grammar_text))?;
            // What panics inside is an error already.
            Ok::<_, io::Error>(thread.join().expect("the library catches its panics"))
        })?;
        let parser = made.map_err(|error| grammar(what, &error))?;
        let matcher = Matcher::new(Ok(parser));
        Ok(Constraint { matcher, ends: Arc::clone(&self.ends), ended: false })
    }
}

impl fmt::Debug for ConstraintFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConstraintFactory").field("ends", &self.ends).finish_non_exhaustive()
    }
}

/// What one answer may still say. See the module.
pub struct Constraint {
    matcher: Matcher,
    ends: Arc<[u32]>,
    /// An end was accepted.
    ended: bool,
}

impl Constraint {
    /// Sets the logits of tokens that may not come next to negative infinity. A token that ends
    /// the answer is left exactly where it may end.
    ///
    /// An error means that the answer cannot go on; all further calls fail, too.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        if self.is_complete() {
            return self.mask_all_but_ends(logits);
        }
        let allowed = self.matcher.compute_mask().map_err(|error| trouble(&error))?;
        let words = allowed.as_slice();
        for (n, logits) in logits.chunks_mut(32).enumerate() {
            match words.get(n).copied().unwrap_or(0) {
                u32::MAX => {}
                word => {
                    for (bit, logit) in logits.iter_mut().enumerate() {
                        if word & (1 << bit) == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn mask_all_but_ends(&self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        if self.ends.is_empty() {
            return Err(ConstraintError::Complete);
        }
        for (id, logit) in (0..).zip(logits) {
            if self.ends.binary_search(&id).is_err() {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// `token` was chosen, one that [`mask`](Self::mask) left.
    pub fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        let is_end = self.ends.binary_search(&token).is_ok();
        if self.is_complete() {
            self.ended |= is_end;
            return is_end.then_some(()).ok_or(ConstraintError::Refused { token });
        }
        let taken = self.matcher.try_consume_tokens(&[token]).map_err(|error| trouble(&error))?;
        self.ended |= is_end && taken == 1;
        (taken == 1).then_some(()).ok_or(ConstraintError::Refused { token })
    }

    /// Whether nothing but an end may follow, or has followed.
    pub fn is_complete(&self) -> bool {
        self.ended || (self.matcher.is_stopped() && !self.matcher.is_error())
    }
}

impl Clone for Constraint {
    /// An independent one in the same state: for several answers to one prompt.
    fn clone(&self) -> Self {
        let ends = Arc::clone(&self.ends);
        Self { matcher: self.matcher.deep_clone(), ends, ended: self.ended }
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").field("complete", &self.is_complete()).finish_non_exhaustive()
    }
}

/// Token `id` as the library has it: its bytes, or a mark and its name if it is special. Nothing,
/// if it cannot be part of an answer.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let word = match tokenizer.is_control(id) || tokenizer.is_end(id) {
        true => {
            let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
            word.extend_from_slice(tokenizer.token_text(id).as_bytes());
            word
        }
        false => tokenizer.piece(id).to_vec(),
    };
    match word.len() <= TOKEN_BYTES_MAX {
        true => word,
        false => Vec::new(),
    }
}

fn bounded(what: &'static str, bytes: usize, max: usize) -> Result<(), ConstraintError> {
    match bytes <= max {
        true => Ok(()),
        false => Err(ConstraintError::TooLong { what, bytes, max }),
    }
}

fn grammar(what: &'static str, error: &anyhow::Error) -> ConstraintError {
    ConstraintError::Grammar { what, why: words(error) }
}

/// What went wrong on the way.
fn trouble(error: &anyhow::Error) -> ConstraintError {
    match words(error) {
        why if why == "NoExtensionBias" => ConstraintError::Stuck,
        why => ConstraintError::TooComplex { why },
    }
}

/// What the library says in a line: of a regular expression it quotes before it says what is wrong
/// with it, and sometimes its insides follow.
fn words(error: &anyhow::Error) -> String {
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.starts_with('<'));
    let first = lines.next().unwrap_or_default();
    let last = lines.next_back().filter(|_| first.ends_with(':')).unwrap_or_default();
    match first.starts_with("panic: ") {
        true => "it is more than the grammar library can do".to_owned(),
        false => format!("{first} {last}").trim_end().chars().take(300).collect(),
    }
}

#[cfg(test)]
mod tests;
