//! `cadencia`: the node daemon and its tools.

fn main() -> std::process::ExitCode {
    cadencia::run()
}
