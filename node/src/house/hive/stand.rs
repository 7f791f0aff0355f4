//! How far the route of a model is, for people.

use crate::house::place::Plan;

/// How far the route of a model is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stand {
    /// There is none, because of this.
    None(String),
    /// Stages get ready.
    Preparing {
        /// Bytes that are there.
        done: u64,
        /// Bytes in all.
        whole: u64,
        /// How long it will take if it goes on like that, seconds; `None` while that is a guess.
        eta_s: Option<u64>,
    },
    /// It is used.
    Used(Box<Plan>),
}

impl Stand {
    /// Of stages that have got ready so far within `ms` milliseconds.
    pub(super) fn preparing(done: u64, whole: u64, ms: u64) -> Self {
        let left = u128::from(whole.saturating_sub(done)) * u128::from(ms);
        let eta_s = left.checked_div(u128::from(done)).map(|ms| ms.div_ceil(1000));
        Self::Preparing { done, whole, eta_s: eta_s.and_then(|s| u64::try_from(s).ok()) }
    }

    /// How much is there, of a hundred.
    pub fn percent(done: u64, whole: u64) -> u64 {
        let percent = (u128::from(done) * 100).checked_div(u128::from(whole)).unwrap_or(0);
        percent.min(100) as u64
    }

    /// Why sequences cannot go over it yet; `None` where they can.
    pub fn why_not(&self) -> Option<String> {
        match self {
            Self::None(why) => Some(why.clone()),
            Self::Preparing { done, whole, eta_s } => {
                let (percent, mb) = (Self::percent(*done, *whole), whole.div_ceil(1_000_000));
                let eta = eta_s.map_or(String::new(), |s| format!(", about {s} s are left"));
                Some(format!("stages get ready, {percent} % of {mb} MB are in memory{eta}"))
            }
            Self::Used(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(done: u64, whole: u64, ms: u64) -> String {
        Stand::preparing(done, whole, ms).why_not().unwrap()
    }

    #[test]
    fn who_waits_is_told_how_far_it_is_and_how_long_it_takes() {
        assert_eq!(
            words(20_000_000, 80_000_000, 4_000),
            "stages get ready, 25 % of 80 MB are in memory, about 12 s are left"
        );
        assert_eq!(words(0, 80_000_000, 4_000), "stages get ready, 0 % of 80 MB are in memory");
        assert_eq!(words(0, 0, 0), "stages get ready, 0 % of 0 MB are in memory");
        assert!(words(u64::MAX, u64::MAX, u64::MAX).contains("100 %"));
        assert_eq!(Stand::None("no".into()).why_not(), Some("no".into()));
    }
}
