//! The families of byte-level BPE, by the name that a file has under `tokenizer.ggml.pre`.

use super::split::{Cased, Pass, Set, Words};

/// How the models of one family cut and merge.
#[derive(Debug)]
pub(super) struct Family {
    names: &'static [&'static str],
    /// How text is cut into words.
    pub passes: &'static [Pass],
    /// Whether a word that is a token is taken as it is, without merging.
    pub whole_words: bool,
    /// Whether a text begins with BOS where the file does not say.
    pub adds_bos: bool,
}

/// The family called `name`; a file without a name is of the family `default`.
pub(super) fn family(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.names.contains(&name))
}

/// All names, for an error message.
pub(super) fn known() -> String {
    let mut names: Vec<&str> = FAMILIES.iter().flat_map(|family| family.names).copied().collect();
    names.sort_unstable();
    names.join(", ")
}

const ANY: usize = usize::MAX;
const ONE_DIGIT: Pass = Pass::Run { set: Set::Number, max: 1 };
const THREE_DIGITS: Pass = Pass::Run { set: Set::Number, max: 3 };
const LINE_ENDS: Pass = Pass::Run { set: Set::LineEnd, max: 1 };
const LLAMA3: Words = Words { contractions: true, marks: false, digits: 3, tail: true };
const QWEN2: Words = Words { digits: 1, ..LLAMA3 };

const PLAIN: Family = Family { names: &[], passes: &[], whole_words: false, adds_bos: false };

const FAMILIES: &[Family] = &[
    Family {
        names: &["default"],
        passes: &[
            Pass::Run { set: Set::PunctuationAndSigns, max: ANY },
            Pass::Gpt2,
            Pass::Run { set: Set::Number, max: ANY },
            Pass::ThreeDigits,
        ],
        ..PLAIN
    },
    Family {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"],
        passes: &[Pass::Words(LLAMA3)],
        whole_words: true,
        adds_bos: true,
    },
    Family {
        names: &["dbrx", "smaug-bpe", "chatglm-bpe"],
        passes: &[Pass::Words(LLAMA3)],
        ..PLAIN
    },
    Family { names: &["glm4", "glm5"], passes: &[Pass::Words(LLAMA3)], whole_words: true, ..PLAIN },
    Family {
        names: &["qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "solar-open"],
        passes: &[Pass::Words(QWEN2)],
        ..PLAIN
    },
    Family { names: &["grok-2", "bailingmoe"], passes: &[Pass::Words(QWEN2)], ..PLAIN },
    Family { names: &["qwen35"], passes: &[Pass::Words(Words { marks: true, ..QWEN2 })], ..PLAIN },
    Family {
        names: &["seed-coder"],
        passes: &[Pass::Words(Words { tail: false, ..QWEN2 })],
        ..PLAIN
    },
    Family {
        names: &["minicpm5"],
        passes: &[THREE_DIGITS, Pass::Words(Words { digits: ANY, ..LLAMA3 })],
        whole_words: true,
        ..PLAIN
    },
    Family {
        names: &["gpt-2", "phi-2", "olmo", "mpt", "jais", "exaone4", "modern-bert", "gigachat"],
        passes: &[Pass::Gpt2],
        ..PLAIN
    },
    Family {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        passes: &[ONE_DIGIT, Pass::Gpt2],
        ..PLAIN
    },
    Family {
        names: &["falcon"],
        passes: &[
            Pass::Run { set: Set::PunctuationAndTicks, max: ANY },
            Pass::Gpt2,
            Pass::ThreeDigits,
        ],
        ..PLAIN
    },
    Family {
        names: &["deepseek-llm"],
        passes: &[
            LINE_ENDS,
            Pass::SpacedRun(Set::CasedLetter),
            Pass::SpacedRun(Set::WidePunctuation),
            Pass::TrailingSpace,
            Pass::Run { set: Set::EastAsian, max: ANY },
            Pass::Run { set: Set::Number, max: ANY },
        ],
        ..PLAIN
    },
    Family {
        names: &["deepseek-coder"],
        passes: &[
            LINE_ENDS,
            Pass::SpacedRun(Set::Letter),
            Pass::SpacedRun(Set::Punctuation),
            Pass::Run { set: Set::EastAsian, max: ANY },
            ONE_DIGIT,
        ],
        ..PLAIN
    },
    Family {
        names: &["deepseek-v3", "hunyuan-dense"],
        passes: &[THREE_DIGITS, Pass::Run { set: Set::HanKana, max: ANY }, Pass::DeepSeek3],
        ..PLAIN
    },
    Family {
        names: &["gpt-4o", "llama4"],
        passes: &[Pass::Cased(Cased { contractions: true, digits: 3 })],
        ..PLAIN
    },
    Family {
        names: &["tekken"],
        passes: &[Pass::Cased(Cased { contractions: false, digits: 1 })],
        whole_words: true,
        adds_bos: true,
    },
];
