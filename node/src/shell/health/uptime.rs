//! When this node was up, over restarts: a file of spans, from which the share of lately is told.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use wire::Millis;

use crate::house::fitness::Uptime;
use crate::shell::durable;

/// Spans that are kept: of more than a week even if it is restarted each few hours. What was before
/// counts next to nothing.
const SPANS_MAX: usize = 64;
/// Bytes of the file: two numbers a span.
const FILE_BYTES_MAX: u64 = 64 * 64;

/// The file `uptime` in the state folder. It is not worth a refusal: what cannot be read is as if it
/// had never been.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    /// From when to when it was up; the last is this one.
    spans: Vec<(Millis, Millis)>,
}

impl Log {
    /// Goes on with what is in folder `state`; a new span begins `now`.
    pub fn begin(state: &Path, now: Millis) -> Self {
        let path = state.join("uptime");
        let fits = fs::metadata(&path).is_ok_and(|meta| meta.len() <= FILE_BYTES_MAX);
        let text = if fits { fs::read_to_string(&path).unwrap_or_default() } else { String::new() };
        let mut spans: Vec<_> = text.lines().filter_map(span).collect();
        // A clock that was set back, or a line that was written by hand.
        spans.retain(|(from, to)| from <= to && *to <= now);
        spans.sort_unstable();
        spans.push((now, now));
        let extra = spans.len().saturating_sub(SPANS_MAX);
        spans.drain(..extra);
        Self { path, spans }
    }

    /// The share of lately that this node was up, permille.
    pub fn permille(&self, now: Millis) -> u32 {
        let mut uptime = Uptime::begun(self.spans[0].0);
        for (from, to) in &self.spans {
            uptime.up(*from);
            uptime.down(*to);
        }
        // It is up: what has passed since the last span was written down belongs to it.
        uptime.up(self.spans.last().expect("the present one").1);
        uptime.permille(now)
    }

    /// Writes down that it is up until `now`.
    ///
    /// # Errors
    /// What the system says.
    pub fn keep(&mut self, now: Millis) -> io::Result<()> {
        let last = self.spans.last_mut().expect("the present one");
        last.1 = last.1.max(now);
        let lines = self.spans.iter().map(|(from, to)| format!("{} {}\n", from.0, to.0));
        let part = self.path.with_extension("part");
        fs::create_dir_all(self.path.parent().unwrap_or(Path::new(".")))?;
        fs::File::create(&part)?.write_all(lines.collect::<String>().as_bytes())?;
        durable::publish(&part, &self.path)
    }
}

fn span(line: &str) -> Option<(Millis, Millis)> {
    let (from, to) = line.split_once(' ')?;
    Some((Millis(from.parse().ok()?), Millis(to.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600 * 1000;
    const START: u64 = 1_700_000_000_000;

    #[test]
    fn a_restart_costs_the_time_that_it_took_and_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let at = |hours: u64| Millis(START + hours * HOUR);
        let mut log = Log::begin(folder.path(), at(0));
        assert_eq!(log.permille(at(0)), 500);
        log.keep(at(48)).unwrap();
        let before = log.permille(at(48));
        assert!(before > 950, "{before}");
        let log = Log::begin(folder.path(), at(48));
        assert!(log.permille(at(48)).abs_diff(before) <= 1);
        let late = Log::begin(folder.path(), at(60)).permille(at(60));
        assert!((600..900).contains(&late), "{late} after half a day off");
    }

    #[test]
    fn nonsense_in_the_file_is_as_if_it_had_never_been() {
        let folder = tempfile::tempdir().unwrap();
        let now = Millis(START);
        let usual = Log::begin(folder.path(), now).permille(now);
        let future = format!("{} {}\n", START + HOUR, START + 2 * HOUR);
        for text in ["", "one two\n", "9 3\n", "\u{0}\u{ff}", &future, &"1 2\n".repeat(9999)] {
            fs::write(folder.path().join("uptime"), text).unwrap();
            assert_eq!(Log::begin(folder.path(), now).permille(now), usual, "{text:.20}");
        }
    }

    #[test]
    fn many_restarts_keep_the_file_small() {
        let folder = tempfile::tempdir().unwrap();
        for n in 0..SPANS_MAX as u64 + 9 {
            Log::begin(folder.path(), Millis(START + n * HOUR))
                .keep(Millis(START + n * HOUR))
                .unwrap();
        }
        let text = fs::read_to_string(folder.path().join("uptime")).unwrap();
        assert_eq!(text.lines().count(), SPANS_MAX);
        assert!(text.len() as u64 <= FILE_BYTES_MAX);
    }
}
