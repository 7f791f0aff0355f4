//! What the integer class loses on the two real models, against a floating-point forward pass.
//!
//! Two windows of the text by default, all 14 with `CADENCIA_SOAK=1`. Skips, with a printed
//! line, where the models have not been fetched.

use cadencia_tests::{Real, fixture};
use oracle::quality::{GATES, WINDOWS_FULL, measure};

/// Windows where nobody asked for more.
const WINDOWS_FEW: usize = 2;
/// Threads of the engine; they change nothing but the time.
const THREADS: usize = 2;

#[test]
fn smollm2_stays_within_the_quality_gates_soak() {
    check(Real::SmolLm2);
}

#[test]
fn gemma3_stays_within_the_quality_gates_soak() {
    check(Real::Gemma3);
}

fn check(real: Real) {
    let Some(path) = real.find() else { return };
    let soak = std::env::var_os("CADENCIA_SOAK").is_some_and(|value| value == "1");
    let windows = if soak { WINDOWS_FULL } else { WINDOWS_FEW };
    let text = std::fs::read_to_string(fixture("text/gpl-3.txt")).unwrap();
    let found = measure(&path, &text, windows, THREADS).unwrap();
    println!("{}, {windows} windows: {found:?}", real.file());
    assert_eq!(found.positions, windows * 255);
    let violations = GATES.violations(&found);
    assert!(violations.is_empty(), "{}: {violations:#?}", real.file());
}
