//! `cadencia`: the node daemon and its tools.
//!
//! `house` decides and touches nothing; `shell` does everything that has an effect.

mod house;
mod shell;

fn main() -> std::process::ExitCode {
    shell::run()
}
