//! Finds stop strings in text that arrives in pieces, and lets no part of one through.
//!
//! **Invariant:** what has been let through, in one string, is the whole text up to the first stop
//! string, whatever the pieces were. First means: the one that is complete first, and of those the
//! one that began first.

/// Watches a text for stop strings.
#[derive(Debug, Clone, Default)]
pub struct Stops {
    strings: Vec<String>,
    /// Text that may be the beginning of a stop string, and so waits for what follows.
    held: String,
}

impl Stops {
    /// Stops at any of `strings`; empty ones are ignored, for they would stop everything.
    pub fn new(strings: impl IntoIterator<Item = String>) -> Self {
        let strings = strings.into_iter().filter(|s| !s.is_empty()).collect();
        Self { strings, held: String::new() }
    }

    /// Takes more text; returns what may be shown now, and whether a stop string was met. After
    /// one was met nothing is held any more.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        if let Some(start) = self.first_match() {
            self.held.truncate(start);
            return (std::mem::take(&mut self.held), true);
        }
        let rest = self.held.split_off(self.safe_len());
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// The text ended: what was held back is not a stop string after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the stop string begins that is complete first.
    fn first_match(&self) -> Option<usize> {
        let found = self.strings.iter().filter_map(|stop| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start))
        });
        found.min().map(|(_, start)| start)
    }

    /// How many bytes of `held` no stop string can begin in.
    fn safe_len(&self) -> usize {
        let longest = self.strings.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest.saturating_sub(1));
        let tails = (from..self.held.len()).filter(|&at| self.held.is_char_boundary(at));
        let mut begun = tails.filter(|&at| {
            let tail = &self.held[at..];
            self.strings.iter().any(|stop| stop.starts_with(tail))
        });
        begun.next().unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Feeds `pieces`; returns all that was let through and whether it stopped.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut matcher = Stops::new(stops.iter().map(|s| s.to_string()));
        let mut shown = String::new();
        for piece in pieces {
            let (text, stopped) = matcher.push(piece);
            shown.push_str(&text);
            if stopped {
                assert_eq!(matcher.finish(), "", "nothing is held after a stop");
                return (shown, true);
            }
        }
        shown.push_str(&matcher.finish());
        (shown, false)
    }

    /// The definition: grow the text letter by letter until it ends with a stop string.
    fn defined(stops: &[&str], text: &str) -> (String, bool) {
        for (at, letter) in text.char_indices() {
            let grown = &text[..at + letter.len_utf8()];
            let met = stops.iter().filter(|s| !s.is_empty() && grown.ends_with(**s));
            if let Some(longest) = met.map(|s| s.len()).max() {
                return (grown[..grown.len() - longest].to_string(), true);
            }
        }
        (text.to_string(), false)
    }

    #[test]
    fn a_stop_string_over_three_pieces_does_not_leak() {
        assert_eq!(run(&["<end>"], &["one <", "en", "d> two"]), ("one ".into(), true));
    }

    #[test]
    fn a_false_start_is_let_through() {
        assert_eq!(run(&["<end>"], &["a <e", "n passant"]), ("a <en passant".into(), false));
    }

    #[test]
    fn the_stop_that_is_complete_first_wins() {
        assert_eq!(run(&["abcd", "bc"], &["xab", "cd"]), ("xa".into(), true));
        assert_eq!(run(&["bc", "abc"], &["xabc"]), ("x".into(), true));
    }

    #[test]
    fn text_is_not_held_longer_than_it_must_be() {
        let mut stops = Stops::new(["END".to_string()]);
        assert_eq!(stops.push("the E"), ("the ".to_string(), false));
        assert_eq!(stops.push("a"), ("Ea".to_string(), false));
    }

    #[test]
    fn no_stop_strings_hold_nothing() {
        assert_eq!(Stops::new([String::new()]).push("text"), ("text".to_string(), false));
    }

    proptest! {
        #[test]
        fn pieces_never_change_the_text(
            pieces in prop::collection::vec("[abé]{0,4}", 0..12),
            stops in prop::collection::vec("[abé]{0,4}", 0..4),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let parts: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&stops, &parts), defined(&stops, &pieces.concat()));
        }
    }
}
