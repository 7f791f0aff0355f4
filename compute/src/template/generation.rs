//! `{% generation %}` marks what an assistant wrote, for training. For rendering it means nothing.

/// `source` with each such tag made one that has no effect and trims the same white space.
pub(super) fn neutral(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%").into_iter().chain(rest.find("{#")).min() {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let close = if tag.starts_with("{#") { "#}" } else { "%}" };
        // A tag that does not end is left for the parser to refuse.
        let end = tag.find(close).map_or(tag.len(), |end| end + close.len());
        let (tag, after) = tag.split_at(end);
        out.push_str(&replaced(tag).unwrap_or_else(|| tag.to_owned()));
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The tag to write for `tag`, if it is one of the two.
fn replaced(tag: &str) -> Option<String> {
    let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    let word = inner.trim_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '+'));
    let instead = match word {
        "generation" => "if true",
        "endgeneration" => "endif",
        _ => return None,
    };
    Some(tag.replace(word, instead))
}

#[cfg(test)]
mod tests {
    use super::neutral;

    #[test]
    fn only_these_tags_change() {
        let source = "{%- generation -%}a{%endgeneration%}{# {% generation %} #}{{ generation }}";
        let expected = "{%- if true -%}a{%endif%}{# {% generation %} #}{{ generation }}";
        assert_eq!(neutral(source), expected);
        for unchanged in ["", "{% if generation %}", "{% generation", "{#", "generation"] {
            assert_eq!(neutral(unchanged), unchanged);
        }
    }
}
