//! Golden vectors: what `int8x-v1` is, number by number.
//!
//! The files beside this one hold what the definition answers. Whoever writes a second
//! implementation runs them; whoever changes the first finds out here that it has become another
//! class. `README.md` describes the files, `NUMERICS.md` the rules behind the numbers.

mod activations;
mod attention;
mod blocks;
mod digest;
mod functions;
mod matrices;
mod models;
mod record;
mod rows;
