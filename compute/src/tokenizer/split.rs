//! Cuts a text into words, inside which alone byte-level BPE may merge.
//!
//! Published tokenisers describe this by regular expressions. Here each is a scanner that finds
//! the same matches in one walk: no backtracking, so no text makes it slow. A family of models
//! runs one or more [`Pass`]es, each over every piece that the pass before left.
//!
//! **Invariant:** a pass only cuts: the pieces, put together, are the text.

use std::sync::OnceLock;

use super::classes::{Class, class};

/// One regular expression of a family.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pass {
    /// `[...]{1,max}`: runs of a set, in pieces of at most `max` characters.
    Run { set: Set, max: usize },
    /// `\s?[...]+`.
    SpacedRun(Set),
    /// `[0-9][0-9][0-9]`.
    ThreeDigits,
    /// `\s+$`.
    TrailingSpace,
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`, of GPT-2.
    Gpt2,
    /// The expression that Llama 3 and Qwen 2 share but for details.
    Words(Words),
    /// The expression of GPT-4o and Tekken, which cuts before capitals.
    Cased(Cased),
    /// The last expression of DeepSeek-V3.
    DeepSeek3,
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
/// \s*[\r\n]+|\s+(?!\S)|\s+`, with what differs between models.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words {
    /// Whether `'s` and the like are words of their own.
    pub contractions: bool,
    /// Whether `\p{M}` counts among the letters.
    pub marks: bool,
    /// Most digits in a word.
    pub digits: usize,
    /// Whether line ends stay with the punctuation before them.
    pub tail: bool,
}

/// `[^\r\n\p{L}\p{N}]?` and letters, capitals first: `U*l+` or else `U+l*`, where `U` is any
/// letter but `a-z` and `l` any but `A-Z`; then digits, ` ?[^\s\p{L}\p{N}]+[\r\n/]*`, spaces.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cased {
    /// Whether `'s` and the like stay with the word before them.
    pub contractions: bool,
    /// Most digits in a word.
    pub digits: usize,
}

/// A set of characters.
#[derive(Debug, Clone, Copy)]
pub(super) enum Set {
    /// `\p{N}`.
    Number,
    /// `\p{L}`.
    Letter,
    /// `\p{P}`.
    Punctuation,
    /// `[\p{P}$+<=>^~|]`.
    PunctuationAndSigns,
    /// `[\p{P}$+<=>^~|`]`, of Falcon.
    PunctuationAndTicks,
    /// `[\r\n]`.
    LineEnd,
    /// `[一-龥ࠀ-一가-퟿]`, of the first DeepSeek models.
    EastAsian,
    /// `[一-龥぀-ゟ゠-ヿ]`, of DeepSeek-V3.
    HanKana,
    /// The cased letters of DeepSeek-LLM.
    CasedLetter,
    /// `[!-/:-~！-／：-～‘-‟　-。]`, of DeepSeek-LLM.
    WidePunctuation,
}

impl Set {
    fn has(self, c: char) -> bool {
        let kind = class(c);
        match self {
            Set::Number => kind == Class::Number,
            Set::Letter => kind == Class::Letter,
            Set::Punctuation => kind == Class::Punctuation,
            Set::PunctuationAndSigns => {
                kind == Class::Punctuation || matches!(c, '$' | '+' | '<'..='>' | '^' | '~' | '|')
            }
            Set::PunctuationAndTicks => c == '`' || Set::PunctuationAndSigns.has(c),
            Set::LineEnd => is_line_end(c),
            // Wide spaces lie inside some of these ranges and yet only ever count as spaces.
            _ if kind == Class::Space => false,
            Set::EastAsian => matches!(c, '\u{800}'..='龥' | '가'..='\u{d7ff}'),
            Set::HanKana => matches!(c, '一'..='龥' | '\u{3040}'..='ヿ'),
            Set::CasedLetter => is_cased(c),
            Set::WidePunctuation => matches!(c, '!'..='/' | ':'..='~' | '！'..='／'
                | '：'..='～' | '‘'..='‟' | '\u{3000}'..='。'),
        }
    }
}

/// The cased letters of DeepSeek-LLM's published expression, first and last of each range in turn.
const CASED: &str = "AZazµµÀÖØöøƺƼƿǄʓʕʯͰͳͶͶͷͷͻͽͿͿΆΆΈΊΌΌΎΡΣϵϷҁҊԯԱՖႠჅᎠᏵᏸᏽᲐᲺᲽᲿᴀᴫᵫᵷᵹᶚḀἕἘἝἠὅὈὍὐὗὙὙὛὛὝὝὟώᾀᾴᾶᾼιιῂῄῆῌ\
    ῐΐῖΊῠῬῲῴῶῼℂℂℇℇℊℓℕℕℙℝℤℤΩΩℨℨKℭℯℴℹℹℼℿⅅⅉⅎⅎↃↃↄↄⰀⱻⱾⳤⳫⳮⳲⳲⳳⳳꙀꙭꚀꚛꜢꝯꝱꞇꞋꞎꭰꮿﬀﬆﬓﬗＡＺａｚ𐐀𐑏𐒰𐓓𐓘𐓻𐲀𐲲𐳀𐳲𑢠𑣟𞤀𞥃";

fn is_cased(c: char) -> bool {
    static RANGES: OnceLock<Vec<(char, char)>> = OnceLock::new();
    let ranges = RANGES.get_or_init(|| {
        let mut bounds = CASED.chars();
        std::iter::from_fn(|| Some((bounds.next()?, bounds.next()?))).collect()
    });
    let after = ranges.partition_point(|(first, _)| *first <= c);
    after > 0 && c <= ranges[after - 1].1
}

/// What a scanner found at a place, in bytes from it.
enum Step {
    /// A match of this length.
    Match(usize),
    /// No match begins in the next so many bytes.
    Skip(usize),
}

/// Cuts `text` by every pass in turn; `ends` receives where each word ends, in bytes. `spare` is
/// only room to work in.
pub(super) fn split(text: &str, passes: &[Pass], ends: &mut Vec<usize>, spare: &mut Vec<usize>) {
    ends.clear();
    if !text.is_empty() {
        ends.push(text.len());
    }
    for pass in passes {
        std::mem::swap(ends, spare);
        ends.clear();
        let mut start = 0;
        for &end in spare.iter() {
            cut(&text[start..end], *pass, start, ends);
            start = end;
        }
    }
}

/// Cuts one piece, which begins at `base` in the text: matches and what lies between them.
fn cut(piece: &str, pass: Pass, base: usize, ends: &mut Vec<usize>) {
    let (mut at, mut cut_at) = (0, 0);
    while at < piece.len() {
        match pass.step(&piece[at..]) {
            Step::Skip(len) => at += len,
            Step::Match(len) => {
                if cut_at < at {
                    ends.push(base + at);
                }
                at += len;
                cut_at = at;
                ends.push(base + at);
            }
        }
    }
    if cut_at < at {
        ends.push(base + at);
    }
}

impl Pass {
    /// What matches at the start of `rest`, which is not empty.
    fn step(self, rest: &str) -> Step {
        match self {
            Pass::Run { set, max } => found(run(rest, 0, max, |c| set.has(c)), rest),
            Pass::SpacedRun(set) => {
                let lead = run(rest, 0, 1, |c| class(c) == Class::Space);
                let end = run(rest, lead, usize::MAX, |c| set.has(c));
                found(if end > lead { end } else { 0 }, rest)
            }
            Pass::ThreeDigits => {
                let end = run(rest, 0, 3, |c| c.is_ascii_digit());
                found(if end == 3 { 3 } else { 0 }, rest)
            }
            Pass::TrailingSpace => {
                let end = run(rest, 0, usize::MAX, |c| class(c) == Class::Space);
                if end == rest.len() { Step::Match(end) } else { found_none_before(end, rest) }
            }
            Pass::Gpt2 => Step::Match(gpt2(rest)),
            Pass::Words(rule) => Step::Match(rule.word(rest)),
            Pass::Cased(rule) => Step::Match(rule.word(rest)),
            Pass::DeepSeek3 => found(deepseek3(rest), rest),
        }
    }
}

fn found(len: usize, rest: &str) -> Step {
    if len > 0 { Step::Match(len) } else { found_none_before(0, rest) }
}

/// Nothing begins before `end`, nor with the character there.
fn found_none_before(end: usize, rest: &str) -> Step {
    Step::Skip(end + first(&rest[end..]).map_or(0, char::len_utf8))
}

fn first(rest: &str) -> Option<char> {
    rest.chars().next()
}

/// Where a run of at most `max` fitting characters from `start` ends.
fn run(rest: &str, start: usize, max: usize, fits: impl Fn(char) -> bool) -> usize {
    let mut end = start;
    for c in rest[start..].chars().take(max) {
        if !fits(c) {
            break;
        }
        end += c.len_utf8();
    }
    end
}

fn is_line_end(c: char) -> bool {
    c == '\r' || c == '\n'
}

/// `[^\s\p{L}\p{N}]`.
fn is_sign(c: char) -> bool {
    !matches!(class(c), Class::Space | Class::Letter | Class::Number)
}

/// The length of an English contraction at the start, or 0. `any_case` by ASCII alone: no other
/// character has one of these letters as its lower case.
fn contraction(rest: &str, any_case: bool) -> usize {
    let bytes = rest.as_bytes();
    if bytes.first() != Some(&b'\'') {
        return 0;
    }
    let letter = |at: usize| match bytes.get(at) {
        Some(byte) if any_case => byte.to_ascii_lowercase(),
        Some(byte) => *byte,
        None => 0,
    };
    match (letter(1), letter(2)) {
        (b's' | b't' | b'm' | b'd', _) => 2,
        (b'r', b'e') | (b'v', b'e') | (b'l', b'l') => 3,
        _ => 0,
    }
}

/// `\s+(?!\S)|\s+`: a run of spaces but the last, which goes to what follows; all at the end.
fn spaces(rest: &str) -> usize {
    let end = run(rest, 0, usize::MAX, |c| class(c) == Class::Space);
    let Some(last) = rest[..end].chars().next_back() else { return 0 };
    if end == rest.len() || end == last.len_utf8() { end } else { end - last.len_utf8() }
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`: up to the last line end of a run of spaces, if it has one.
fn lines_or_spaces(rest: &str) -> usize {
    let end = run(rest, 0, usize::MAX, |c| class(c) == Class::Space);
    match rest[..end].rfind(is_line_end) {
        Some(last) => last + 1,
        None => spaces(rest),
    }
}

fn gpt2(rest: &str) -> usize {
    let short = contraction(rest, false);
    if short > 0 {
        return short;
    }
    let lead = usize::from(rest.starts_with(' '));
    let end = match first(&rest[lead..]).map(class) {
        Some(Class::Letter) => run(rest, lead, usize::MAX, |c| class(c) == Class::Letter),
        Some(Class::Number) => run(rest, lead, usize::MAX, |c| class(c) == Class::Number),
        Some(Class::Space) | None => 0,
        Some(_) => run(rest, lead, usize::MAX, is_sign),
    };
    if end > 0 { end } else { spaces(rest) }
}

impl Words {
    fn word(self, rest: &str) -> usize {
        if self.contractions {
            let short = contraction(rest, true);
            if short > 0 {
                return short;
            }
        }
        let letters = led_run(rest, |c| self.is_letter(c));
        if letters > 0 {
            return letters;
        }
        let digits = run(rest, 0, self.digits, |c| class(c) == Class::Number);
        if digits > 0 {
            return digits;
        }
        let lead = usize::from(rest.starts_with(' '));
        // Without a tail (Seed-Coder) the class leaves out line ends too, but those are spaces.
        let signs = run(rest, lead, usize::MAX, |c| is_sign(c) && !self.is_letter(c));
        if signs > lead {
            return if self.tail { run(rest, signs, usize::MAX, is_line_end) } else { signs };
        }
        lines_or_spaces(rest)
    }

    fn is_letter(self, c: char) -> bool {
        let kind = class(c);
        kind == Class::Letter || (self.marks && kind == Class::Mark)
    }
}

/// `[^\r\n\p{L}\p{N}]?` and a run of letters, by whatever counts as one; 0 where there is none.
fn led_run(rest: &str, is_letter: impl Fn(char) -> bool) -> usize {
    let lead = match first(rest) {
        Some(c) if is_letter(c) || is_line_end(c) || class(c) == Class::Number => 0,
        Some(c) => c.len_utf8(),
        None => 0,
    };
    let end = run(rest, lead, usize::MAX, is_letter);
    if end > lead { end } else { 0 }
}

impl Cased {
    fn word(self, rest: &str) -> usize {
        let letters = self.letters(rest);
        if letters > 0 {
            return letters;
        }
        let digits = run(rest, 0, self.digits, |c| class(c) == Class::Number);
        if digits > 0 {
            return digits;
        }
        let lead = usize::from(rest.starts_with(' '));
        let signs = run(rest, lead, usize::MAX, is_sign);
        if signs > lead {
            return run(rest, signs, usize::MAX, |c| is_line_end(c) || c == '/');
        }
        lines_or_spaces(rest)
    }

    fn letters(self, rest: &str) -> usize {
        let is_letter = |c| class(c) == Class::Letter;
        let lead = match first(rest) {
            Some(c) if is_sign(c) || (class(c) == Class::Space && !is_line_end(c)) => c.len_utf8(),
            _ => 0,
        };
        let upper = run(rest, lead, usize::MAX, |c| is_letter(c) && !c.is_ascii_lowercase());
        let mut end = run(rest, upper, usize::MAX, |c| is_letter(c) && !c.is_ascii_uppercase());
        if end == upper {
            // `U*l+` with no `l` after all of `U*`: it gives back as far as its last letter that
            // is neither, so that letter ends the word. Without one, `U+l*` takes all of `U`.
            let both = rest[lead..upper].char_indices().rev().find(|(_, c)| !c.is_ascii());
            end = both.map_or(upper, |(at, c)| lead + at + c.len_utf8());
        }
        if end == lead {
            return 0;
        }
        let short = if self.contractions { contraction(&rest[end..], true) } else { 0 };
        end + short
    }
}

/// `[ASCII punctuation][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|
/// \s*[\r\n]+|\s+(?!\S)|\s+`; 0 where none of these matches.
fn deepseek3(rest: &str) -> usize {
    let Some(head) = first(rest) else { return 0 };
    if head.is_ascii_punctuation() {
        let end = run(rest, 1, usize::MAX, |c| c.is_ascii_alphabetic());
        if end > 1 {
            return end;
        }
    }
    let is_letter = |c| matches!(class(c), Class::Letter | Class::Mark);
    let is_sign = |c| matches!(class(c), Class::Punctuation | Class::Symbol);
    let lead = match is_letter(head) || is_sign(head) || is_line_end(head) {
        true => 0,
        false => head.len_utf8(),
    };
    let letters = run(rest, lead, usize::MAX, is_letter);
    if letters > lead {
        return letters;
    }
    let lead = usize::from(head == ' ');
    let signs = run(rest, lead, usize::MAX, is_sign);
    if signs > lead {
        return run(rest, signs, usize::MAX, is_line_end);
    }
    lines_or_spaces(rest)
}
