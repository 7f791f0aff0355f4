//! Lanes: rows of one sequence on their way through the stages of a route, and what is done when one
//! of these is gone.
//!
//! [`Passage`] is the requester's end, [`Seat`] one stage's. Both are steps over handles of bytes:
//! they say what to send and what to compute, and touch neither sockets nor weights.
//!
//! **Invariant:** what a passage delivers is what the undisturbed route would have delivered. A stage
//! that takes the place of another is given the very rows that the other was given.

mod kept;
mod pace;
mod passage;
mod seat;

pub use passage::{
    Effect as PassageEffect, Input as PassageInput, Leg, Passage, PassageError,
    Plan as PassagePlan, Replication,
};
pub use seat::{Effect as SeatEffect, Input as SeatInput, Seat, SeatPlan};
