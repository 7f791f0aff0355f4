//! One answer as it grows: counts tokens, watches for stop strings, and says when it is over.

use super::Stops;

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it, or a stop string was met.
    Stop,
    /// As many tokens as were asked for, or as the context holds.
    Length,
    /// Whoever asked does not want it any more.
    Halted,
}

impl Finish {
    /// The word that clients of the API know.
    pub fn word(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::Halted => "cancelled",
        }
    }
}

/// What one more token is: the text it completed, or the model's wish to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Text that is complete with this token; often empty, for letters can span tokens.
    Text(&'a str),
    /// The model ended its turn.
    End,
}

/// An answer that grows token by token.
#[derive(Debug)]
pub struct Answer {
    stops: Stops,
    tokens_left: usize,
}

impl Answer {
    /// An answer of at most `tokens_max` tokens, 1 or more, that ends at any of `stops`.
    pub fn new(stops: Stops, tokens_max: usize) -> Self {
        Self { stops, tokens_left: tokens_max }
    }

    /// Takes one more token: what may be shown now, and how the answer ended if it did.
    pub fn take(&mut self, piece: Piece) -> (String, Option<Finish>) {
        self.tokens_left = self.tokens_left.saturating_sub(1);
        let Piece::Text(text) = piece else {
            return (String::new(), Some(Finish::Stop));
        };
        let (shown, stopped) = self.stops.push(text);
        match stopped {
            true => (shown, Some(Finish::Stop)),
            false => (shown, (self.tokens_left == 0).then_some(Finish::Length)),
        }
    }

    /// The text ended for good, with `rest` from a decoder that waited for more: what is left to
    /// show. A stop string may still be completed by `rest`.
    pub fn finish(mut self, rest: &str) -> String {
        let (mut shown, stopped) = self.stops.push(rest);
        if !stopped {
            shown.push_str(&self.stops.finish());
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(stop: &str, tokens_max: usize) -> Answer {
        Answer::new(Stops::new([stop.to_string()]), tokens_max)
    }

    #[test]
    fn the_last_token_allowed_ends_it() {
        let mut answer = answer("", 2);
        assert_eq!(answer.take(Piece::Text("a")), ("a".into(), None));
        assert_eq!(answer.take(Piece::Text("b")), ("b".into(), Some(Finish::Length)));
    }

    #[test]
    fn the_model_may_end_it_and_what_was_held_is_shown() {
        let mut answer = answer("STOP", 9);
        assert_eq!(answer.take(Piece::Text("a ST")), ("a ".into(), None));
        assert_eq!(answer.take(Piece::End), (String::new(), Some(Finish::Stop)));
        assert_eq!(answer.finish(""), "ST");
    }

    #[test]
    fn a_stop_string_on_the_last_token_is_a_stop() {
        let mut answer = answer("b", 2);
        assert_eq!(answer.take(Piece::Text("a")), ("a".into(), None));
        assert_eq!(answer.take(Piece::Text("b")), (String::new(), Some(Finish::Stop)));
        assert_eq!(answer.finish(""), "");
    }

    #[test]
    fn a_stop_string_that_the_decoders_rest_completes_does_not_leak() {
        let mut answer = answer("ab", 1);
        assert_eq!(answer.take(Piece::Text("a")), (String::new(), Some(Finish::Length)));
        assert_eq!(answer.finish("b"), "");
    }
}
