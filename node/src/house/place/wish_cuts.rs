//! Where people want a model to be cut.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use wire::HALVES_MAX;

use super::STAGES_MAX;

/// Where a model may be cut. As text: `layers`, `halves`, `alpha-beta`, or half-blocks such as `3,8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Cuts {
    /// Between layers.
    #[default]
    Layers,
    /// Between layers, and within one where only that fits.
    Halves,
    /// Attention on some nodes (alpha) and feed-forward on others (beta).
    AlphaBeta,
    /// Just before each of these half-blocks: as many stages besides this node.
    Before(Marks),
}

/// Half-blocks, each after the one before; the first is not within the first layer, which the node that
/// asks keeps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    all: [u16; STAGES_MAX as usize],
    count: u8,
}

/// What is no list of cuts.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "layers, halves, alpha-beta, or up to {STAGES_MAX} half-blocks such as 3,8 are wanted: ascending, from 2 to below {HALVES_MAX}; half-block 2n is the attention of layer n, 2n+1 its feed-forward"
)]
pub struct NoCuts;

impl Marks {
    /// Of half-blocks in their order.
    ///
    /// # Errors
    /// None, too many, not ascending, or within the first layer.
    pub fn new(marks: &[u32]) -> Result<Self, NoCuts> {
        let ascending = marks.windows(2).all(|pair| pair[0] < pair[1]);
        let right = |mark: &u32| (2..HALVES_MAX).contains(mark);
        if marks.is_empty()
            || marks.len() > STAGES_MAX as usize
            || !ascending
            || !marks.iter().all(right)
        {
            return Err(NoCuts);
        }
        let mut all = [0; STAGES_MAX as usize];
        for (to, mark) in all.iter_mut().zip(marks) {
            *to = *mark as u16;
        }
        Ok(Self { all, count: marks.len() as u8 })
    }

    /// How many; at least one.
    pub fn count(&self) -> usize {
        self.count.into()
    }

    /// They.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> {
        self.all[..self.count()].iter().map(|mark| u32::from(*mark))
    }
}

impl fmt::Debug for Marks {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Cuts {
    /// Stages that there must be besides the node that asks, by the cuts alone.
    pub fn stages_min(&self) -> u32 {
        match self {
            Cuts::Layers | Cuts::Halves => 0,
            Cuts::AlphaBeta => 2,
            Cuts::Before(marks) => marks.count.into(),
        }
    }
}

impl fmt::Display for Cuts {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Cuts::Layers => f.write_str("layers"),
            Cuts::Halves => f.write_str("halves"),
            Cuts::AlphaBeta => f.write_str("alpha-beta"),
            Cuts::Before(marks) => {
                let each: Vec<String> = marks.iter().map(|mark| mark.to_string()).collect();
                f.write_str(&each.join(","))
            }
        }
    }
}

impl FromStr for Cuts {
    type Err = NoCuts;

    fn from_str(text: &str) -> Result<Self, NoCuts> {
        Ok(match text {
            "layers" => Cuts::Layers,
            "halves" => Cuts::Halves,
            "alpha-beta" => Cuts::AlphaBeta,
            _ => {
                let each: Result<Vec<u32>, _> = text
                    .split(',')
                    .take(HALVES_MAX as usize)
                    .map(|one| one.trim().parse())
                    .collect();
                Cuts::Before(Marks::new(&each.map_err(|_| NoCuts)?)?)
            }
        })
    }
}

impl TryFrom<String> for Cuts {
    type Error = NoCuts;

    fn try_from(text: String) -> Result<Self, NoCuts> {
        text.parse()
    }
}

impl From<Cuts> for String {
    fn from(cuts: Cuts) -> Self {
        cuts.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_read_as_they_are_written() {
        for text in ["layers", "halves", "alpha-beta", "2", "3,8,4095"] {
            assert_eq!(text.parse::<Cuts>().unwrap().to_string(), text);
        }
        let many: Vec<String> = (2..35).map(|mark| mark.to_string()).collect();
        let many = many.join(",");
        for text in ["", "1", "0,4", "4,4", "8,3", "3,", "-3", "4096", "3;8", "quarters", &many] {
            assert_eq!(text.parse::<Cuts>(), Err(NoCuts), "{text:?}");
        }
    }
}
