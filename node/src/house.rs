//! Where rooms meet: pure decisions about answers, without clock, file, thread or socket.

mod answer;
mod stop;

pub use answer::{Answer, Finish, Piece, Record, Shown};
pub use stop::Stops;
