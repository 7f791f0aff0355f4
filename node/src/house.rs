//! Where rooms meet: pure decisions about answers, without clock, file, thread or socket.

mod answer;
#[allow(dead_code)]
mod schema;
mod stop;
#[allow(dead_code, unused_imports)]
pub mod tools;

pub use answer::{Answer, Finish, Piece, Record, Shown};
#[allow(unused_imports)]
pub use schema::{Schema, SchemaError};
pub use stop::Stops;
