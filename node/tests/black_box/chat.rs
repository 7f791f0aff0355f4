//! The terminal chat, through pipes.

use std::io::{Read, Write};
use std::process::Stdio;

use tempfile::TempDir;

use crate::process::{Lines, cadencia, run, send_signal, toy_path, wait};

#[test]
fn a_conversation_goes_on_and_can_begin_anew() {
    let toy = toy_path();
    let args = ["chat", "--model", toy.to_str().unwrap(), "--temp", "0", "-n", "8"];
    let ended = run(&args, "hello\nhello\n/reset\nhello\n/dance\n/stats\n/quit\nnever\n");
    assert_eq!(ended.code, 0, "{ended:?}");
    // Three answers: the second comes after the first, the third begins anew.
    let once = run(&args, "hello\n").out;
    assert!(ended.out.starts_with(&once) && ended.out.ends_with(&once), "{ended:?}");
    assert!(ended.out.len() > 2 * once.len() && ended.out.len() < 8 * once.len());
    assert!(ended.err.contains("there is no /dance"), "{ended:?}");
    assert!(ended.err.contains("context"), "{ended:?}");
}

#[test]
fn a_conversation_that_fills_the_context_forgets_its_beginning() {
    let toy = toy_path();
    let args = ["chat", "--model", toy.to_str().unwrap(), "--temp", "0", "-n", "8", "--ctx", "160"];
    let ended = run(&args, &"tell me more\n".repeat(8));
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.err.contains("turns are forgotten"), "{ended:?}");
    let ended = run(&args, &format!("{}\nhello\n", "x".repeat(400)));
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.err.contains("the context holds 160") && !ended.out.is_empty(), "{ended:?}");
}

#[test]
fn ctrl_c_stops_the_answer_and_not_the_chat() {
    let home = TempDir::new().unwrap();
    let toy = toy_path();
    let mut child = cadencia(&home)
        .args(["chat", "--model", toy.to_str().unwrap(), "--ctx", "32768", "--temp", "0"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut errors = Lines::new(child.stderr.take().unwrap());
    input.write_all(b"go on\n").unwrap();
    // Once the answer has begun, and for as long as it would take.
    out.read_exact(&mut [0; 8]).unwrap();
    send_signal(child.id(), "INT");
    let rest = std::thread::spawn(move || out.read_to_end(&mut Vec::new()));
    errors.wait_for("[stopped]");
    input.write_all(b"/stats\n").unwrap();
    errors.wait_for("context");
    drop(input);
    assert_eq!(wait(&mut child).code(), Some(0));
    rest.join().unwrap().unwrap();
}
