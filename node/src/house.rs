//! Where rooms meet: pure decisions about answers and who gets them when, without clock, file, thread
//! or socket.

mod answer;
pub mod draft;
mod fair;
pub mod fitness;
pub mod hive;
pub mod lane;
pub mod place;
mod prefix;
mod schema;
mod share;
mod stop;
pub mod tools;
pub mod turns;

pub use answer::{Answer, Finish, Piece, Record, Shown};
pub use fair::{Owner, Queues};
pub use prefix::Prefixes;
pub use schema::{Schema, SchemaError};
pub use share::share;
pub use stop::Stops;
