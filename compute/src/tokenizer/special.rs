//! The tokens that mark structure: which they are, which end an answer, and where they are in a
//! text.

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use super::TokenizerError;
use super::vocabulary::{Kind, Vocabulary};
use crate::gguf::Metadata;

/// Most text of special tokens together, bytes; the largest known vocabulary has 80,000.
const TEXT_BYTES_MAX: usize = 4 << 20;

/// Tokens that end an answer in one model or another, whatever the file calls them.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Tokens that part files and repositories in code models. Each line is one role, by its key and
/// the names that it goes by; an answer ends with the last three.
const FILL_ROLES: &[(&str, &[&str])] = &[
    (
        "tokenizer.ggml.fim_pre_token_id",
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
    ),
    (
        "tokenizer.ggml.fim_suf_token_id",
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
    ),
    (
        "tokenizer.ggml.fim_mid_token_id",
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
    ),
    (
        "tokenizer.ggml.fim_pad_token_id",
        &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    ),
    (
        "tokenizer.ggml.fim_rep_token_id",
        &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
    ),
    ("tokenizer.ggml.fim_sep_token_id", &["<|file_sep|>"]),
];

/// How many of the first [`FILL_ROLES`] do not end an answer.
const FILL_ROLES_INSIDE: usize = 3;

/// The special tokens of a model.
#[derive(Debug)]
pub(super) struct Special {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    /// Whether a text begins with BOS, which is then there.
    pub adds_bos: bool,
    /// Whether a text ends with EOS, which is then there.
    pub adds_eos: bool,
    /// Sorted.
    ends: Vec<u32>,
    /// Finds user-defined tokens, which count in any text.
    defined: Option<Finder>,
    /// Finds all special tokens, where that is more.
    all: Option<Finder>,
}

/// What a file of this kind means where it does not say.
#[derive(Debug, Clone, Copy)]
pub(super) struct Defaults {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub adds_bos: bool,
}

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fragment<'t> {
    Text(&'t str),
    Token(u32),
}

#[derive(Debug)]
struct Finder {
    search: AhoCorasick,
    ids: Vec<u32>,
}

impl Special {
    /// Reads the ids and flags, and corrects the kinds of tokens that files often have wrong.
    pub fn read(
        metadata: &Metadata,
        vocabulary: &mut Vocabulary,
        defaults: Defaults,
    ) -> Result<Self, TokenizerError> {
        let id = |key| named(metadata, vocabulary, key);
        let within = |id: &u32| (*id as usize) < vocabulary.len();
        let bos = id("tokenizer.ggml.bos_token_id").or(defaults.bos.filter(within));
        let eos = id("tokenizer.ggml.eos_token_id").or(defaults.eos.filter(within));
        let adds_bos = metadata.bool("tokenizer.ggml.add_bos_token").unwrap_or(defaults.adds_bos);
        let adds_eos = metadata.bool("tokenizer.ggml.add_eos_token").unwrap_or(false);
        if adds_bos && bos.is_none() {
            return Err(TokenizerError::Missing("tokenizer.ggml.bos_token_id"));
        }
        if adds_eos && eos.is_none() {
            return Err(TokenizerError::Missing("tokenizer.ggml.eos_token_id"));
        }
        let ends = ends(metadata, vocabulary, eos);
        let of = |wanted: &[Kind]| Finder::new(vocabulary, wanted);
        let defined = of(&[Kind::UserDefined])?;
        let all = of(&[Kind::UserDefined, Kind::Control, Kind::Unknown])?;
        Ok(Self { bos, eos, adds_bos, adds_eos, ends, defined, all })
    }

    /// All tokens that end an answer, in order.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Whether `id` ends an answer.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// Cuts `text` at special tokens: at all of them if `parse`, or else at user-defined ones.
    /// Where two overlap, the one that begins first counts, and of those the longest.
    pub fn fragments<'a>(
        &'a self,
        text: &'a str,
        parse: bool,
    ) -> impl Iterator<Item = Fragment<'a>> {
        let finder = if parse { &self.all } else { &self.defined };
        let mut matches = finder.iter().flat_map(move |finder| {
            finder.search.find_iter(text).map(|found| (found.range(), &finder.ids[found.pattern()]))
        });
        let mut at = 0;
        let mut next = None;
        std::iter::from_fn(move || {
            if let Some(token) = next.take() {
                return Some(Fragment::Token(token));
            }
            let Some((range, id)) = matches.next() else {
                let rest = &text[at..];
                at = text.len();
                return (!rest.is_empty()).then_some(Fragment::Text(rest));
            };
            let before = &text[at..range.start];
            at = range.end;
            if before.is_empty() {
                return Some(Fragment::Token(*id));
            }
            next = Some(*id);
            Some(Fragment::Text(before))
        })
    }
}

impl Finder {
    /// For all tokens of the `wanted` kinds; `None` where there are none.
    fn new(vocabulary: &Vocabulary, wanted: &[Kind]) -> Result<Option<Self>, TokenizerError> {
        let tokens =
            (0..vocabulary.len() as u32).filter(|id| wanted.contains(&vocabulary.kind(*id)));
        let mut ids = Vec::new();
        let mut texts = Vec::new();
        let mut bytes = 0;
        for id in tokens {
            let text = vocabulary.text(id);
            bytes += text.len();
            if bytes > TEXT_BYTES_MAX {
                return Err(TokenizerError::SpecialText { max: TEXT_BYTES_MAX });
            }
            if !text.is_empty() {
                ids.push(id);
                texts.push(text);
            }
        }
        if ids.is_empty() {
            return Ok(None);
        }
        let search = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(&texts)
            .map_err(|_| TokenizerError::SpecialText { max: TEXT_BYTES_MAX })?;
        Ok(Some(Self { search, ids }))
    }
}

/// The token that the file names under `key`, if it is in the vocabulary.
fn named(metadata: &Metadata, vocabulary: &Vocabulary, key: &str) -> Option<u32> {
    let id = u32::try_from(metadata.u64(key)?).ok()?;
    ((id as usize) < vocabulary.len()).then_some(id)
}

/// All tokens that end an answer. What is special by its text is made so by its kind.
fn ends(metadata: &Metadata, vocabulary: &mut Vocabulary, eos: Option<u32>) -> Vec<u32> {
    let mut ends = Vec::new();
    for (role, (key, texts)) in FILL_ROLES.iter().enumerate() {
        let found = named(metadata, vocabulary, key).or_else(|| {
            let id = texts.iter().find_map(|text| vocabulary.id_of(text))?;
            vocabulary.set_kind(id, Kind::Control);
            Some(id)
        });
        ends.extend(found.filter(|_| role >= FILL_ROLES_INSIDE));
    }
    for text in ENDS {
        if let Some(id) = vocabulary.id_of(text) {
            vocabulary.set_kind(id, Kind::Control);
            ends.push(id);
        }
    }
    ends.extend(eos);
    ends.extend(named(metadata, vocabulary, "tokenizer.ggml.eot_token_id"));
    ends.extend(named(metadata, vocabulary, "tokenizer.ggml.eom_token_id"));
    except(vocabulary, &mut ends);
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// Two kinds of models use a token inside an answer that ends one elsewhere.
fn except(vocabulary: &mut Vocabulary, ends: &mut Vec<u32>) {
    // These part the channels of an answer, and are shown.
    for text in ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"] {
        if let Some(id) = vocabulary.id_of(text) {
            vocabulary.set_kind(id, Kind::UserDefined);
        }
    }
    let mut inside = |text: &str, kind: Kind, where_all: &[&[&str]]| {
        let has = |text: &&str| vocabulary.id_of(text).is_some_and(|id| ends.contains(&id));
        if !where_all.iter().all(|any| any.iter().any(has)) {
            return;
        }
        if let Some(id) = vocabulary.id_of(text) {
            ends.retain(|end| *end != id);
            vocabulary.set_kind(id, kind);
        }
    };
    let calls: &[&str] = &["<|call|>", "<|calls|>"];
    inside("<|end|>", Kind::UserDefined, &[calls, &["<|return|>", "<|flush|>"]]);
    inside("</s>", Kind::Normal, &[&["<|tool_response>"]]);
}
