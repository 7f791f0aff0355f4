//! The node daemon and its tools.
fn main() {}
