//! Where rooms meet: pure decisions about answers, without clock, file, thread or socket.

mod answer;
mod schema;
mod stop;
pub mod tools;

pub use answer::{Answer, Finish, Piece, Record, Shown};
pub use schema::{Schema, SchemaError};
pub use stop::Stops;
