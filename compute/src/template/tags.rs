//! A first look at a template's tags, before the engine's.
//!
//! `{% generation %}` marks what an assistant wrote, for training; for rendering it means nothing,
//! and the engine does not know it. And a tag may not be endless: the engine takes time by the
//! square of an expression's length.

/// Most bytes of a tag outside its texts; known ones have under 600.
const TAG_BYTES_MAX: usize = 2048;

/// `source` with each generation tag made one that has no effect and trims the same white space;
/// or the line of a tag that is too long.
pub(super) fn neutral(source: &str) -> Result<String, usize> {
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    let mut raw = false;
    while let Some((start, kind)) = opening(source, at, raw) {
        let tag = &source[start..start + tag_len(&source[start..], kind)];
        let word = word(tag);
        let line = || source[..start].matches('\n').count() + 1;
        if kind != Kind::Comment && outside_texts(tag) > TAG_BYTES_MAX {
            return Err(line());
        }
        out.push_str(&source[at..start]);
        match word {
            Some(word @ "generation") if !raw => out.push_str(&tag.replace(word, "if true")),
            Some(word @ "endgeneration") if !raw => out.push_str(&tag.replace(word, "endif")),
            _ => out.push_str(tag),
        }
        raw = if raw { word != Some("endraw") } else { word == Some("raw") };
        at = start + tag.len();
    }
    out.push_str(&source[at..]);
    Ok(out)
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
    use super::neutral;

    #[test]
    fn only_generation_tags_change() {
        let source = "{%- generation -%}a{%endgeneration%}{# {% generation %} #}{{ generation }}\
            {{ '{% generation %}' }}{% raw %}{% generation %}{{ '{%- endraw %}{% generation %}";
        let expected = "{%- if true -%}a{%endif%}{# {% generation %} #}{{ generation }}\
            {{ '{% generation %}' }}{% raw %}{% generation %}{{ '{%- endraw %}{% if true %}";
        assert_eq!(neutral(source).unwrap(), expected);
        for unchanged in [
            "",
            "{",
            "{%",
            "{{",
            "{#",
            "{% if generation %}",
            "{% generation",
            "{{ '",
            "{{ '\\",
            "é{{ é }}",
        ] {
            assert_eq!(neutral(unchanged).unwrap(), unchanged);
        }
    }

    #[test]
    fn endless_tags_are_found_wherever_they_are() {
        let long = "+1".repeat(2_000);
        for before in ["", "{% raw %}{{ ' {% endraw %}", "{{ '\\'' }}", "{# ' #}", "{{ {'a': {}}"] {
            let open = if before.ends_with("{}}") { "" } else { "{{ 1" };
            let source = format!("\n{before}{open}{long} }}}}");
            assert_eq!(neutral(&source), Err(2), "{before}");
        }
        let text = format!("{{{{ '{long}' }}}}{long}{{# {long} #}}");
        assert_eq!(neutral(&text).unwrap(), text);
    }
}
