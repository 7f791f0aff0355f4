//! A first look at a template's tags, before the engine's.
//!
//! `{% generation %}` marks what an assistant wrote, for training; for rendering it means nothing,
//! and the engine does not know it.
//!
//! The engine's fuel counts what is copied, not what is shared: a list that holds another twice,
//! which holds another twice, costs next to nothing to make and for ever to print or compare. So
//! every value that gets a name (by `set`, `for` or a macro's parameters) is weighed, by a filter
//! that is put in here; between names, an expression's length bounds what it makes of them.

/// Most bytes of a tag outside its texts; known ones have under 600. Also, the engine takes time by
/// the square of an expression's length.
const TAG_BYTES_MAX: usize = 2048;

/// The filter that weighs.
pub(super) const WEIGHED: &str = "weighed";

/// What of a template is not rendered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unfit {
    /// Where.
    pub line: usize,
    /// What it is.
    pub what: &'static str,
}

/// `source`, fit to be rendered.
pub(super) fn fit(source: &str) -> Result<String, Unfit> {
    let mut out = String::with_capacity(source.len() + source.len() / 8);
    let mut at = 0;
    let mut raw = false;
    while let Some((start, kind)) = opening(source, at, raw) {
        let tag = &source[start..start + tag_len(&source[start..], kind)];
        let unfit = |what| Unfit { line: source[..start].matches('\n').count() + 1, what };
        if kind != Kind::Comment && outside_texts(tag) > TAG_BYTES_MAX {
            return Err(unfit("a tag is longer than any real one"));
        }
        if kind != Kind::Comment && repeats_at_will(tag) {
            return Err(unfit("* is rendered once in a tag, with a text or a number below 1000"));
        }
        out.push_str(&source[at..start]);
        match Block::of(tag).filter(|_| kind == Kind::Block && !raw) {
            Some(block) => out.push_str(&block.fit().map_err(unfit)?),
            None => out.push_str(tag),
        }
        raw = if raw { word(tag) != Some("endraw") } else { word(tag) == Some("raw") };
        at = start + tag.len();
    }
    out.push_str(&source[at..]);
    Ok(out)
}

/// A block tag, taken apart.
struct Block<'s> {
    /// `{%` and a sign, if it has one.
    open: &'s str,
    inner: &'s str,
    close: &'s str,
}

impl<'s> Block<'s> {
    fn of(tag: &'s str) -> Option<Self> {
        let signs = ['-', '+'];
        let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
        let inner = inner.strip_prefix(signs).unwrap_or(inner);
        let inner = inner.strip_suffix(signs).unwrap_or(inner);
        let start = inner.as_ptr() as usize - tag.as_ptr() as usize;
        Some(Self { open: &tag[..start], inner, close: &tag[start + inner.len()..] })
    }

    fn fit(&self) -> Result<String, &'static str> {
        let Self { open, inner, close } = self;
        let trimmed = inner.trim();
        let name_len = trimmed.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(trimmed.len());
        let (name, rest) = trimmed.split_at(name_len);
        Ok(match name {
            "generation" if rest.is_empty() => format!("{open} if true {close}"),
            "endgeneration" if rest.is_empty() => format!("{open} endif {close}"),
            "set" => match assigned(rest) {
                Some(at) => {
                    let (target, value) = (&rest[..at], &rest[at + 1..]);
                    format!("{open} set{target}= ({value})|{WEIGHED} {close}")
                }
                None => format!("{open}{inner}{close}"),
            },
            "for" => {
                let Some(start) = word_at(rest, "in") else {
                    return Ok(format!("{open}{inner}{close}"));
                };
                if word_at(rest, "recursive").is_some() {
                    return Err("recursive loops are not rendered");
                }
                let (target, values) = rest.split_at(start + 2);
                let end = word_at(values, "if").unwrap_or(values.len());
                let (values, condition) = values.split_at(end);
                format!("{open} for{target} ({values})|{WEIGHED} {condition} {close}")
            }
            "macro" => {
                let mut out = format!("{open}{inner}{close}");
                for name in parameters(rest) {
                    out.push_str(&format!("{{% set {name} = {name}|{WEIGHED} {close}"));
                }
                out
            }
            "call" if rest.trim_start().starts_with('(') => {
                return Err("calls with parameters are not rendered");
            }
            "with" => return Err("with blocks are not rendered"),
            _ => format!("{open}{inner}{close}"),
        })
    }
}

/// Where in `set` the value begins to be told: at the first `=` outside brackets and texts.
fn assigned(rest: &str) -> Option<usize> {
    top_level(rest).find(|at| rest.as_bytes()[*at] == b'=')
}

/// Where `word` first stands by itself outside brackets and texts.
fn word_at(rest: &str, word: &str) -> Option<usize> {
    let bytes = rest.as_bytes();
    let part =
        |at: Option<&u8>| at.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    top_level(rest).find(|at| {
        bytes[*at..].starts_with(word.as_bytes())
            && !part(at.checked_sub(1).and_then(|before| bytes.get(before)))
            && !part(bytes.get(at + word.len()))
    })
}

/// The names of a macro's parameters.
fn parameters(rest: &str) -> Vec<&str> {
    let Some(open) = rest.find('(') else { return Vec::new() };
    let list = rest[open + 1..].trim_end();
    let list = list.strip_suffix(')').unwrap_or(list);
    let mut names = Vec::new();
    let mut start = 0;
    for comma in top_level(list).filter(|at| list.as_bytes()[*at] == b',').chain([list.len()]) {
        let parameter = &list[start..comma];
        names.push(parameter.split('=').next().unwrap_or_default().trim());
        start = comma + 1;
    }
    names.retain(|name| !name.is_empty());
    names
}

/// The places in an expression that no bracket and no text holds.
fn top_level(text: &str) -> impl Iterator<Item = usize> {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (0, 0);
    std::iter::from_fn(move || {
        while at < bytes.len() {
            let here = at;
            at += 1;
            match bytes[here] {
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' => depth -= 1,
                quote @ (b'\'' | b'"') => at = here + text_len(&bytes[here..], quote),
                _ if depth == 0 => return Some(here),
                _ => {}
            }
        }
        None
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Block,
    Variable,
    Comment,
}

/// The next tag from `at` on. What is raw has only blocks, one of which ends it.
fn opening(source: &str, at: usize, raw: bool) -> Option<(usize, Kind)> {
    source[at..].match_indices('{').find_map(|(offset, _)| {
        let kind = match source.as_bytes().get(at + offset + 1)? {
            b'%' => Kind::Block,
            b'{' if !raw => Kind::Variable,
            b'#' if !raw => Kind::Comment,
            _ => return None,
        };
        let end_of_raw = || word(&source[at + offset..]) == Some("endraw");
        (!raw || end_of_raw()).then_some((at + offset, kind))
    })
}

/// How long the tag at the start of `rest` is; all of it where it does not end, which the parser
/// will refuse. As the engine has it, brackets and texts hide an end.
fn tag_len(rest: &str, kind: Kind) -> usize {
    let bytes = rest.as_bytes();
    let end = match kind {
        Kind::Comment => return rest.find("#}").map_or(rest.len(), |end| end + 2),
        Kind::Block => b"%}",
        Kind::Variable => b"}}",
    };
    let mut depth = 0;
    let mut at = 2;
    while at < bytes.len() {
        if depth == 0 && bytes[at..].starts_with(end) {
            return at + 2;
        }
        match bytes[at] {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            quote @ (b'\'' | b'"') => at += text_len(&bytes[at..], quote) - 1,
            _ => {}
        }
        at += 1;
    }
    rest.len()
}

/// Bytes from a quote to the one that closes it, both included, or to the end.
fn text_len(bytes: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// A list can be repeated for nothing, and what then becomes of it takes for ever. So a tag may have
/// one `*`, after a text, which is paid for, or before a text or a small number; and then no `~`.
fn repeats_at_will(tag: &str) -> bool {
    let bytes = tag.as_bytes();
    let quoted = |byte: u8| byte == b'\'' || byte == b'"';
    let (mut at, mut repeats, mut joins, mut small) = (0, 0, false, true);
    while at < bytes.len() {
        match bytes[at] {
            quote if quoted(quote) => at += text_len(&bytes[at..], quote) - 1,
            b'*' => {
                let after = tag[at + 1..].trim_start();
                let digits = after.bytes().take_while(u8::is_ascii_digit).count();
                let by_text = tag[..at].trim_end().bytes().next_back().is_some_and(quoted)
                    || after.bytes().next().is_some_and(quoted);
                small &= by_text || (1..=3).contains(&digits);
                repeats += 1;
            }
            b'~' => joins = true,
            _ => {}
        }
        at += 1;
    }
    repeats > 0 && (repeats > 1 || joins || !small)
}

fn outside_texts(tag: &str) -> usize {
    let bytes = tag.as_bytes();
    let (mut at, mut count) = (0, 0);
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'\'' | b'"') => at += text_len(&bytes[at..], quote),
            _ => at += 1,
        }
        count += 1;
    }
    count
}

/// What a block has between its marks, if that is one word.
fn word(tag: &str) -> Option<&str> {
    let inner = &tag.strip_prefix("{%")?;
    let inner = &inner[..inner.find("%}")?];
    let word = inner.trim_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '+'));
    word.bytes().all(|byte| byte.is_ascii_lowercase()).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::{Unfit, fit};

    #[test]
    fn generation_means_nothing() {
        let source = "{%- generation -%}a{%endgeneration%}{# {% generation %} #}{{ generation }}\
            {{ '{% generation %}' }}{% raw %}{% generation %}{{ '{%- endraw %}{% generation %}";
        let expected = "{%- if true -%}a{% endif %}{# {% generation %} #}{{ generation }}\
            {{ '{% generation %}' }}{% raw %}{% generation %}{{ '{%- endraw %}{% if true %}";
        assert_eq!(fit(source).unwrap(), expected);
    }

    #[test]
    fn what_gets_a_name_is_weighed() {
        for (source, expected) in [
            ("{%- set a = b == c -%}", "{%- set a = ( b == c)|weighed -%}"),
            ("{% set ns.a='=' %}", "{% set ns.a= ('=')|weighed %}"),
            ("{% set a, b = 1, 2 %}", "{% set a, b = ( 1, 2)|weighed %}"),
            ("{%+ for a in b %}", "{%+ for a in ( b)|weighed  %}"),
            (
                "{% for k, v in d.items() if 'in' not in k -%}",
                "{% for k, v in ( d.items() )|weighed if 'in' not in k -%}",
            ),
            ("{% for x in (1 if a else b) %}", "{% for x in ( (1 if a else b))|weighed  %}"),
            (
                "{% macro m(a, b=[1, 2], c='x,(') -%}",
                "{% macro m(a, b=[1, 2], c='x,(') -%}{% set a = a|weighed -%}\
                 {% set b = b|weighed -%}{% set c = c|weighed -%}",
            ),
        ] {
            assert_eq!(fit(source).unwrap(), expected);
        }
        for unchanged in [
            "",
            "{",
            "{%",
            "{{",
            "{#",
            "{% if a = b %}",
            "{% generation",
            "{{ '",
            "{{ '\\",
            "é{{ é }}",
            "{% set a %}",
            "{% macro m() %}",
            "{% call m() %}",
            "{%set%}",
            "{% for a %}",
            "{%-%}",
            "{%%}",
        ] {
            assert_eq!(fit(unchanged).unwrap(), unchanged);
        }
        for refused in ["{% with a = 1 %}", "{% call(x) m() %}", "\n{% for a in b recursive %}"] {
            assert!(fit(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn little_is_repeated() {
        for source in
            ["{{ '#' * n }}", "{{ n*\"-\" }}", "{{ x * 20 }}", "{{ '*' ~ '**' }}", "a * b ~ c"]
        {
            assert_eq!(fit(source).unwrap(), source);
        }
        for source in [
            "{{ x * n }}",
            "{{ x * 1000 }}",
            "{{ x * 2 * 2 }}",
            "{{ 2 ** 9 }}",
            "{{ '-' * 9 ~ x }}",
        ] {
            assert!(fit(source).is_err(), "{source}");
        }
    }

    #[test]
    fn endless_tags_are_found_wherever_they_are() {
        let long = "+1".repeat(2_000);
        for before in ["", "{% raw %}{{ ' {% endraw %}", "{{ '\\'' }}", "{# ' #}", "{{ {'a': {}}"] {
            let open = if before.ends_with("{}}") { "" } else { "{{ 1" };
            let source = format!("\n{before}{open}{long} }}}}");
            let what = "a tag is longer than any real one";
            assert_eq!(fit(&source), Err(Unfit { line: 2, what }), "{before}");
        }
        let text = format!("{{{{ '{long}' }}}}{long}{{# {long} #}}");
        assert_eq!(fit(&text).unwrap(), text);
    }
}
