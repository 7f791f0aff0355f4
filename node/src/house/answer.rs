//! One answer as it grows: counts tokens, watches for stop strings, and says when it is over.
//!
//! **Invariant:** a token's record is let out with the text that completes the token, never before;
//! a token of which a stop string takes a part is not let out at all.

use std::collections::VecDeque;

use super::Stops;

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it, or a stop string or token was met.
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

/// What one more token is: the text it completed, or the wish to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Text that is complete with this token; often empty, for letters can span tokens.
    Text(&'a str),
    /// The model ended its turn, or a token that was to end it came.
    End,
}

/// How likely a token of the answer was.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability.
    pub log_prob: f32,
    /// The likeliest tokens in its place, likeliest first, with theirs.
    pub top: Vec<(u32, f32)>,
}

/// What may be shown of an answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Shown {
    /// Text; often empty.
    pub text: String,
    /// The tokens that end in `text` or in what was shown before, where records were asked for.
    pub records: Vec<Record>,
}

/// An answer that grows token by token.
#[derive(Debug)]
pub struct Answer {
    stops: Stops,
    tokens_left: usize,
    /// Bytes of text taken, and of these, shown.
    taken: usize,
    shown: usize,
    /// Records of tokens whose text is held back, each with where its text ends.
    held: VecDeque<(usize, Record)>,
}

impl Answer {
    /// An answer of at most `tokens_max` tokens, 1 or more, that ends at any of `stops`.
    pub fn new(stops: Stops, tokens_max: usize) -> Self {
        Self { stops, tokens_left: tokens_max, taken: 0, shown: 0, held: VecDeque::new() }
    }

    /// Tokens that it may still take.
    pub fn tokens_left(&self) -> usize {
        self.tokens_left
    }

    /// Takes one more token, with its record where they are wanted: what may be shown now, and how
    /// the answer ended if it did.
    pub fn take(&mut self, piece: Piece, record: Option<Record>) -> (Shown, Option<Finish>) {
        self.tokens_left = self.tokens_left.saturating_sub(1);
        let Piece::Text(text) = piece else {
            return (Shown::default(), Some(Finish::Stop));
        };
        self.taken += text.len();
        self.held.extend(record.map(|record| (self.taken, record)));
        let (text, stopped) = self.stops.push(text);
        let shown = self.let_out(text);
        match stopped {
            true => {
                self.held.clear();
                (shown, Some(Finish::Stop))
            }
            false => (shown, (self.tokens_left == 0).then_some(Finish::Length)),
        }
    }

    /// The text ended for good, with `rest` from a decoder that waited for more: what is left to
    /// show. A stop string may still be completed by `rest`.
    pub fn finish(mut self, rest: &str) -> Shown {
        let (mut text, stopped) = self.stops.push(rest);
        if !stopped {
            text.push_str(&self.stops.finish());
        }
        self.let_out(text)
    }

    fn let_out(&mut self, text: String) -> Shown {
        self.shown += text.len();
        let mut records = Vec::new();
        while self.held.front().is_some_and(|(end, _)| *end <= self.shown) {
            records.extend(self.held.pop_front().map(|(_, record)| record));
        }
        Shown { text, records }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(stop: &str, tokens_max: usize) -> Answer {
        Answer::new(Stops::new([stop.to_string()]), tokens_max)
    }

    fn text(text: &str) -> Shown {
        Shown { text: text.into(), records: Vec::new() }
    }

    fn record(token: u32) -> Option<Record> {
        Some(Record { token, log_prob: -1.0, top: Vec::new() })
    }

    fn tokens(shown: &Shown) -> Vec<u32> {
        shown.records.iter().map(|record| record.token).collect()
    }

    #[test]
    fn the_last_token_allowed_ends_it() {
        let mut answer = answer("", 2);
        assert_eq!(answer.take(Piece::Text("a"), None), (text("a"), None));
        assert_eq!(answer.take(Piece::Text("b"), None), (text("b"), Some(Finish::Length)));
    }

    #[test]
    fn the_model_may_end_it_and_what_was_held_is_shown() {
        let mut answer = answer("STOP", 9);
        assert_eq!(answer.take(Piece::Text("a ST"), None), (text("a "), None));
        assert_eq!(answer.take(Piece::End, None), (text(""), Some(Finish::Stop)));
        assert_eq!(answer.finish(""), text("ST"));
    }

    #[test]
    fn a_stop_string_on_the_last_token_is_a_stop() {
        let mut answer = answer("b", 2);
        assert_eq!(answer.take(Piece::Text("a"), None), (text("a"), None));
        assert_eq!(answer.take(Piece::Text("b"), None), (text(""), Some(Finish::Stop)));
        assert_eq!(answer.finish(""), text(""));
    }

    #[test]
    fn a_stop_string_that_the_decoders_rest_completes_does_not_leak() {
        let mut answer = answer("ab", 1);
        assert_eq!(answer.take(Piece::Text("a"), None), (text(""), Some(Finish::Length)));
        assert_eq!(answer.finish("b"), text(""));
    }

    #[test]
    fn records_wait_for_their_text_and_fall_with_it() {
        let mut answer = answer("STOP", 9);
        let (shown, _) = answer.take(Piece::Text("a S"), record(1));
        assert_eq!((shown.text.as_str(), tokens(&shown)), ("a ", vec![]));
        let (shown, _) = answer.take(Piece::Text("Tx"), record(2));
        assert_eq!((shown.text.as_str(), tokens(&shown)), ("STx", vec![1, 2]));
        // Half a letter has no text of its own, and is let out with what came before it.
        let (shown, _) = answer.take(Piece::Text(""), record(3));
        assert_eq!(tokens(&shown), [3]);
        let (shown, finish) = answer.take(Piece::Text(" STOP"), record(4));
        assert_eq!((shown.text.as_str(), tokens(&shown)), (" ", vec![]));
        assert_eq!(finish, Some(Finish::Stop));
        assert_eq!(answer.finish(""), text(""));
    }
}
