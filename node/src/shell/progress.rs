//! How far a long piece of work has come, on stderr: one line that is redrawn on a terminal, a
//! plain line now and then elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// A terminal is redrawn no more often than an eye can follow.
const REDRAW: Duration = Duration::from_millis(100);
/// A log file gets a line no more often than this.
const LINE: Duration = Duration::from_secs(5);

/// Progress of one piece of work. Dropping it clears the line on a terminal.
#[derive(Debug)]
pub struct Progress {
    what: &'static str,
    unit: Unit,
    terminal: bool,
    start: Instant,
    /// What was done before the work began, and so says nothing about its speed.
    before: u64,
    shown: Option<Instant>,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes, shown as MB.
    Bytes,
    /// Tokens.
    Tokens,
}

impl Progress {
    /// Of the work that `what` names, such as `loading`.
    pub fn new(what: &'static str, unit: Unit) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { what, unit, terminal, start: Instant::now(), before: 0, shown: None }
    }

    /// Work goes on from where `done` was done already.
    pub fn begin_at(&mut self, done: u64) {
        (self.start, self.before) = (Instant::now(), done);
    }

    /// Says something between two lines of progress.
    pub fn tell(&mut self, text: &str) {
        let clear = if self.terminal && self.shown.is_some() { "\r\x1b[2K" } else { "" };
        // Nobody can be told that stderr is gone.
        let _ = writeln!(std::io::stderr(), "{clear}{text}");
    }

    /// `done` of `whole` is done.
    pub fn set(&mut self, done: u64, whole: u64) {
        let pause = if self.terminal { REDRAW } else { LINE };
        let last = self.shown.unwrap_or(self.start);
        // Short work shows nothing: the first line comes only after the first pause.
        if last.elapsed() < pause {
            return;
        }
        self.shown = Some(Instant::now());
        let here = done.saturating_sub(self.before);
        let line = line(self.what, self.unit, (here, done), whole, self.start.elapsed());
        let mut out = std::io::stderr().lock();
        // Nobody can be told that stderr is gone.
        let _ = match self.terminal {
            true => write!(out, "\r\x1b[2K{line}").and_then(|()| out.flush()),
            false => writeln!(out, "{line}"),
        };
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal && self.shown.is_some() {
            eprint!("\r\x1b[2K");
        }
    }
}

/// One line of progress: share, amounts, speed and the time it will still take. Of what is done,
/// `here` took the time `elapsed`. A `whole` of 0 bytes is one that nobody knows.
fn line(what: &str, unit: Unit, (here, done): (u64, u64), whole: u64, elapsed: Duration) -> String {
    let share = if whole == 0 { 0.0 } else { (done as f64 / whole as f64).min(1.0) };
    let speed = here as f64 / elapsed.as_secs_f64().max(1e-9);
    let left = if speed > 0.0 { whole.saturating_sub(done) as f64 / speed } else { 0.0 };
    let percent = share * 100.0;
    match unit {
        Unit::Bytes if whole == 0 => {
            format!("{what} ({:.0} MB, {:.0} MB/s)", done as f64 / 1e6, speed / 1e6)
        }
        Unit::Bytes => {
            let mb = |bytes: f64| bytes / 1e6;
            let (done, whole, speed) = (mb(done as f64), mb(whole as f64), mb(speed));
            format!(
                "{what} {percent:.0}% ({done:.0} of {whole:.0} MB, {speed:.0} MB/s, {left:.0} s left)"
            )
        }
        Unit::Tokens => {
            format!(
                "{what} {percent:.0}% ({done} of {whole} tokens, {speed:.1}/s, {left:.0} s left)"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_share_speed_and_time_left() {
        let second = Duration::from_secs(1);
        let text = line("loading", Unit::Bytes, (25_000_000, 25_000_000), 100_000_000, second);
        assert_eq!(text, "loading 25% (25 of 100 MB, 25 MB/s, 3 s left)");
        let text = line("fetching", Unit::Bytes, (10_000_000, 60_000_000), 100_000_000, second);
        assert_eq!(text, "fetching 60% (60 of 100 MB, 10 MB/s, 4 s left)");
        let text = line("fetching", Unit::Bytes, (10_000_000, 60_000_000), 0, second);
        assert_eq!(text, "fetching (60 MB, 10 MB/s)");
        let text = line("reading", Unit::Tokens, (0, 0), 0, Duration::ZERO);
        assert_eq!(text, "reading 0% (0 of 0 tokens, 0.0/s, 0 s left)");
    }
}
