//! Tests of the whole house; see `tests/`.
