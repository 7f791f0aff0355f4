//! How often the web is asked again, and how long we wait between.

use std::time::Duration;

use super::PullError;
use super::web::WebError;

/// The first wait before another try, and the longest; each is twice as long as the one before.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(20);
/// The longest that a server may ask to be left alone before we say so and stop.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// Tries of one file in all, those that brought something included.
const TRIES_MAX: u32 = 1000;

/// Counts tries, and waits between them.
#[derive(Debug)]
pub struct Tries {
    most: u32,
    /// In a row that brought nothing new.
    idle: u32,
    all: u32,
    furthest: u64,
}

impl Tries {
    /// Gives up after `most` tries in a row without news; `here` bytes are here already.
    pub fn new(most: u32, here: u64) -> Self {
        Self { most: most.max(1), idle: 0, all: 0, furthest: here }
    }

    /// Waits for as long as it makes sense after `error`, and tells so; or gives it back. `here`
    /// bytes have come in all tries.
    pub fn again(
        &mut self,
        error: WebError,
        here: u64,
        tell: &mut dyn FnMut(String),
    ) -> Result<(), PullError> {
        let Some(pause) = self.pause(&error, here) else {
            let tries = self.idle;
            return Err(match error.may_pass() {
                true => PullError::GaveUp { tries, last: error },
                false => PullError::Web(error),
            });
        };
        tell(format!("{error}; trying again in {:.1} s", pause.as_secs_f32()));
        std::thread::sleep(pause);
        Ok(())
    }

    /// How long to wait; `None` to give up.
    fn pause(&mut self, error: &WebError, here: u64) -> Option<Duration> {
        if here > self.furthest {
            (self.furthest, self.idle) = (here, 0);
        }
        self.idle += 1;
        self.all += 1;
        if !error.may_pass() || self.idle >= self.most || self.all >= TRIES_MAX {
            return None;
        }
        let usual = PAUSE_FIRST.saturating_mul(1 << (self.idle - 1).min(10)).min(PAUSE_MAX);
        match error {
            WebError::Busy { after: Some(after), .. } if *after > RETRY_AFTER_MAX => None,
            WebError::Busy { after: Some(after), .. } => Some(usual.max(*after)),
            _ => Some(usual),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_that_bring_something_are_not_counted_against_the_server() {
        let gone = WebError::HungUp { host: "h".into(), message: String::new() };
        let mut tries = Tries::new(3, 0);
        for here in 1..TRIES_MAX {
            assert_eq!(tries.pause(&gone, u64::from(here)), Some(PAUSE_FIRST));
        }
        assert_eq!(tries.pause(&gone, u64::from(TRIES_MAX)), None);
        let mut tries = Tries::new(3, 7);
        let pauses: Vec<_> = (0..3).map(|_| tries.pause(&gone, 7)).collect();
        assert_eq!(pauses, [Some(PAUSE_FIRST), Some(PAUSE_FIRST * 2), None]);
    }

    #[test]
    fn a_server_that_wants_to_be_left_alone_is_left_alone_for_a_while_or_for_good() {
        let busy = |after: u64| WebError::Busy {
            host: "h".into(),
            status: 429,
            after: Some(Duration::from_secs(after)),
        };
        assert_eq!(Tries::new(3, 0).pause(&busy(5), 0), Some(Duration::from_secs(5)));
        assert_eq!(Tries::new(3, 0).pause(&busy(3600), 0), None);
        let wrong = WebError::Status { host: "h".into(), status: 418 };
        assert_eq!(Tries::new(3, 0).pause(&wrong, 0), None);
    }
}
