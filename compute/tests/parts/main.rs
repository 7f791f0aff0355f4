//! Parts of models: what they take, what they compute together, and what they refuse.

mod chains;
mod given;
mod holes;
mod layout;
mod refusals;
mod sizes;
