//! Models are brought here: whole, checked, or not at all.

use std::path::PathBuf;
use std::sync::mpsc::channel;

use tempfile::TempDir;

use crate::origin::{Answer, End, Origin, sha256};
use crate::process::{Ended, cadencia, run_at, send_signal, toy_path, wait};

/// The toy model's bytes.
fn toy() -> Vec<u8> {
    std::fs::read(toy_path()).unwrap()
}

fn models(home: &TempDir) -> PathBuf {
    home.path().join("cadencia/models")
}

/// All names in the models folder.
fn names(home: &TempDir) -> Vec<String> {
    let entries = std::fs::read_dir(models(home)).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Pulls `source` with more flags, and with little patience.
fn pull(home: &TempDir, source: &str, flags: &[&str]) -> Ended {
    run_at(home, &[&["pull", source, "--tries", "3"][..], flags].concat(), "")
}

#[track_caller]
fn assert_pulled(home: &TempDir, ended: &Ended, name: &str, bytes: &[u8]) {
    assert_eq!((ended.code, ended.out.as_str()), (0, format!("{name}\n").as_str()), "{ended:?}");
    assert_eq!(names(home), [format!("{name}.gguf")]);
    assert!(std::fs::read(models(home).join(format!("{name}.gguf"))).unwrap() == bytes);
    assert!(ended.err.contains(&format!("cadencia up -m '{name}'")), "{ended:?}");
}

/// It failed with `code`, said `words`, and left no model.
#[track_caller]
fn assert_refused(home: &TempDir, ended: &Ended, code: i32, words: &[&str]) {
    assert_eq!(ended.code, code, "{ended:?}");
    for word in words {
        assert!(ended.err.contains(word), "{word:?} in {ended:?}");
    }
    let models: Vec<_> = names(home).into_iter().filter(|name| name.ends_with(".gguf")).collect();
    assert!(models.is_empty() && ended.out.is_empty(), "{models:?} {ended:?}");
}

#[test]
fn a_url_with_its_digest_becomes_a_model() {
    let (home, file) = (TempDir::new().unwrap(), toy());
    let origin = Origin::of(file.clone());
    let flags = ["--sha256", &sha256(&file)];
    let ended = pull(&home, &origin.url("/some/small.Q4_0.gguf?x=1"), &flags);
    assert_pulled(&home, &ended, "small.Q4_0", &file);
    assert_eq!((origin.bytes(), origin.asked().len()), (file.len(), 1));
    let said = run_at(&home, &["tokenize", "-m", "small.Q4_0", "--text", "a"], "");
    assert_eq!(said.out, "[97]\n", "{said:?}");
    // The same again is no work.
    let again = pull(&home, &origin.url("/small.Q4_0.gguf"), &flags);
    assert_pulled(&home, &again, "small.Q4_0", &file);
    assert!(again.err.contains("was here already"), "{again:?}");
    assert_eq!(origin.asked().len(), 1);
}

#[test]
fn a_url_without_a_digest_is_taken_only_on_demand() {
    let (home, file) = (TempDir::new().unwrap(), toy());
    let origin = Origin::of(file.clone());
    let ended = pull(&home, &origin.url("/a.gguf"), &[]);
    assert_refused(&home, &ended, 2, &["--sha256", "--insecure-no-checksum"]);
    assert!(origin.asked().is_empty());
    let ended = pull(&home, &origin.url("/a.gguf"), &["--insecure-no-checksum", "--name", "b c"]);
    assert_pulled(&home, &ended, "b c", &file);
}

#[test]
fn a_download_goes_on_where_the_server_hung_up() {
    let (home, file) = (TempDir::new().unwrap(), toy());
    let (third, served) = (file.len() / 3, file.clone());
    let origin = Origin::start(move |asked| match asked.number {
        0 | 1 => Answer::file(asked, &served, "\"v1\"").after(third, End::HangUp),
        _ => Answer::file(asked, &served, "\"v1\""),
    });
    let ended = pull(&home, &origin.url("/a.gguf"), &["--sha256", &sha256(&file)]);
    assert_pulled(&home, &ended, "a", &file);
    let froms: Vec<_> = origin.asked().iter().map(|asked| asked.from()).collect();
    assert_eq!(froms, [None, Some(third), Some(2 * third)]);
    assert_eq!(origin.asked()[1].headers["if-range"], "\"v1\"");
    assert_eq!(origin.bytes(), file.len(), "no byte is fetched twice");
}

#[test]
fn a_download_that_was_killed_goes_on_in_the_next_run() {
    for signal in ["KILL", "INT"] {
        let (home, file) = (TempDir::new().unwrap(), toy());
        let (half, served) = (file.len() / 2, file.clone());
        let (send, second) = channel();
        // When it asks for the rest, the first half is on its disk.
        let origin = Origin::start(move |asked| match asked.number {
            0 => Answer::file(asked, &served, "\"v1\"").after(half, End::HangUp),
            1 => {
                send.send(()).unwrap();
                Answer::new(200, b"").after(0, End::SilenceAtOnce)
            }
            _ => Answer::file(asked, &served, "\"v1\""),
        });
        let (url, digest) = (origin.url("/a.gguf"), sha256(&file));
        let mut child = cadencia(&home).args(["pull", &url, "--sha256", &digest]).spawn().unwrap();
        second.recv_timeout(crate::process::DEADLINE).unwrap();
        // Nobody else may work on it meanwhile.
        let ended = pull(&home, &url, &["--sha256", &digest]);
        assert_refused(&home, &ended, 1, &["another `cadencia pull`"]);
        send_signal(child.id(), signal);
        assert!(!wait(&mut child).success());
        assert_eq!(names(&home), ["a.part"]);
        let listed = run_at(&home, &["models", "--json"], "").json();
        assert_eq!(listed, serde_json::json!([]), "what is not whole is no model");

        let ended = pull(&home, &url, &["--sha256", &digest]);
        assert_pulled(&home, &ended, "a", &file);
        assert_eq!(origin.asked()[2].from(), Some(half));
        assert_eq!(origin.bytes(), file.len(), "no byte is fetched twice");
    }
}

#[test]
fn a_server_that_knows_no_ranges_is_asked_for_the_whole() {
    let (home, file) = (TempDir::new().unwrap(), toy());
    let (half, served) = (file.len() / 2, file.clone());
    let origin = Origin::start(move |asked| match asked.number {
        0 => Answer::new(200, &served).after(half, End::HangUp),
        _ => Answer::new(200, &served),
    });
    let ended = pull(&home, &origin.url("/a.gguf"), &["--sha256", &sha256(&file)]);
    assert_pulled(&home, &ended, "a", &file);
    assert_eq!(origin.bytes(), half + file.len());
}

#[test]
fn a_file_that_changes_while_it_comes_is_begun_anew() {
    let (home, file) = (TempDir::new().unwrap(), toy());
    let (half, served) = (file.len() / 2, file.clone());
    let origin = Origin::start(move |asked| match asked.number {
        // Another file of the same size, of which the second request knows nothing any more.
        0 => Answer::file(asked, &vec![b'G'; served.len()], "\"old\"").after(1, End::HangUp),
        1 => Answer::file(asked, &served, "\"new\"").after(half, End::HangUp),
        _ => Answer::file(asked, &served, "\"new\""),
    });
    let ended = pull(&home, &origin.url("/a.gguf"), &["--insecure-no-checksum"]);
    assert_pulled(&home, &ended, "a", &file);
    assert_eq!(origin.bytes(), 1 + file.len());
}

#[test]
fn what_is_not_what_was_meant_is_thrown_away() {
    let home = TempDir::new().unwrap();
    let file = toy();
    let origin = Origin::of(file.clone());
    let ended = pull(&home, &origin.url("/a.gguf"), &["--sha256", &sha256(b"another")]);
    assert_refused(&home, &ended, 1, &["sha256", &sha256(&file), &sha256(b"another")]);

    let page = b"<!DOCTYPE html><title>Log in first</title>".to_vec();
    let origin = Origin::of(page.clone());
    for flags in [&["--sha256", &sha256(&page)][..], &["--insecure-no-checksum"]] {
        let ended = pull(&home, &origin.url("/a.gguf"), flags);
        assert_refused(&home, &ended, 1, &["no GGUF file"]);
    }
    let torn = file[..file.len() / 2].to_vec();
    let origin = Origin::of(torn.clone());
    let ended = pull(&home, &origin.url("/a.gguf"), &["--sha256", &sha256(&torn)]);
    assert_refused(&home, &ended, 1, &["no sound model"]);
    assert_eq!(names(&home), Vec::<String>::new());
}

/// All files below `folder`.
fn walk(folder: &std::path::Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let nested = entries.map(|path| if path.is_dir() { walk(&path) } else { vec![path] });
    nested.flatten().collect()
}

#[test]
fn nothing_is_fetched_that_does_not_fit() {
    let (home, file) = (TempDir::new().unwrap(), toy());
    let full = ["--keep-free", "99999999999"];
    let origin = Origin::of(file.clone());
    let digest = sha256(&file);
    let ended = pull(&home, &origin.url("/a.gguf"), &[&["--sha256", &digest][..], &full].concat());
    assert_refused(&home, &ended, 1, &["--keep-free", "room for 0 MB"]);
    let toy = toy_path();
    let ended = pull(&home, toy.to_str().unwrap(), &full);
    assert_refused(&home, &ended, 1, &["--keep-free"]);
}

#[test]
fn names_from_outside_never_leave_the_folder() {
    let (home, file) = (TempDir::new().unwrap(), toy());
    let origin = Origin::of(file.clone());
    let digest = sha256(&file);
    for path in ["/..%2f..%2fx.gguf", "/%2e%2e", "/.hidden.gguf", "/a%0ab.gguf", "/a%1b%5b2J", "/"]
    {
        let ended = pull(&home, &origin.url(path), &["--sha256", &digest]);
        assert_refused(&home, &ended, 2, &["--name"]);
    }
    for name in ["../x", "/tmp/x", "..", "", "a\u{1b}b", "a/b", "x-00002-of-00003"] {
        let ended = pull(&home, &origin.url("/a.gguf"), &["--sha256", &digest, "--name", name]);
        assert_refused(&home, &ended, 2, &[]);
    }
    for source in ["../nothing", "nothing", "org/../x", "org/repo/../../x.gguf", "ftp://h/x", ""] {
        assert_refused(&home, &pull(&home, source, &[]), 2, &[]);
    }
    assert!(origin.asked().is_empty() && walk(home.path()).is_empty());
}

#[test]
fn a_silent_server_is_named() {
    let home = TempDir::new().unwrap();
    let file = toy();
    let (half, served) = (file.len() / 2, file.clone());
    let origin = Origin::start(move |asked| match asked.target.as_str() {
        "/mute.gguf" => Answer::new(200, b"").after(0, End::SilenceAtOnce),
        _ => Answer::file(asked, &served, "\"v1\"").after(half, End::Silence),
    });
    for path in ["/mute.gguf", "/tired.gguf"] {
        let (url, digest) = (origin.url(path), sha256(&file));
        let wait = ["--sha256", &digest, "--patience", "1", "--tries", "1"];
        let ended = run_at(&home, &[&["pull", &url][..], &wait].concat(), "");
        let host = origin.address.to_string();
        assert_refused(&home, &ended, 1, &[&host, "silent for 1 s", "kept"]);
    }
    assert_eq!(names(&home), ["tired.part"], "what has nothing in it is not left lying about");
    let part = models(&home).join("tired.part/tired.gguf.part");
    assert_eq!(part.metadata().unwrap().len(), half as u64);
}

#[test]
fn refusals_of_the_server_say_what_to_do() {
    let home = TempDir::new().unwrap();
    let origin = Origin::start(|asked| match asked.target.as_str() {
        "/401.gguf" => Answer::new(401, b""),
        "/404.gguf" => Answer::new(404, b""),
        "/503.gguf" => Answer::new(503, b"").with("retry-after", "7200"),
        "/away.gguf" => Answer::new(302, b"").with("location", "http://example.org/a.gguf"),
        "/round.gguf" => Answer::new(302, b"").with("location", "/round.gguf"),
        "/part.gguf" => Answer::new(206, b"GGUF"),
        _ => Answer::new(418, b""),
    });
    for (path, words) in [
        ("/401.gguf", "HF_TOKEN"),
        ("/404.gguf", "/404.gguf"),
        ("/503.gguf", "try again later"),
        ("/away.gguf", "only https"),
        ("/round.gguf", "redirects on and on"),
        ("/part.gguf", "answers 206"),
        ("/other.gguf", "answers 418"),
    ] {
        let ended = pull(&home, &origin.url(path), &["--insecure-no-checksum"]);
        assert_refused(&home, &ended, 1, &[words, &origin.address.to_string()]);
    }
    let ended = pull(&home, "http://example.org/a.gguf", &["--insecure-no-checksum"]);
    assert_refused(&home, &ended, 2, &["https"]);
}

#[test]
fn a_model_of_that_name_stays_unless_it_is_to_be_replaced() {
    let (home, file) = (TempDir::new().unwrap(), toy());
    std::fs::create_dir_all(models(&home)).unwrap();
    let path = models(&home).join("a.gguf");
    std::fs::write(&path, b"precious").unwrap();
    let origin = Origin::of(file.clone());
    let (url, digest) = (origin.url("/a.gguf"), sha256(&file));
    let ended = pull(&home, &url, &["--sha256", &digest]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.err.contains("--force") && origin.asked().is_empty(), "{ended:?}");
    let wrong = pull(&home, &url, &["--sha256", &sha256(b"x"), "--force"]);
    assert_eq!((wrong.code, std::fs::read(&path).unwrap().as_slice()), (1, &b"precious"[..]));
    let ended = pull(&home, &url, &["--sha256", &digest, "--force"]);
    assert_pulled(&home, &ended, "a", &file);
}

#[test]
fn a_file_is_copied_and_independent_of_the_original() {
    let (home, file) = (TempDir::new().unwrap(), toy());
    let elsewhere = TempDir::new().unwrap();
    let original = elsewhere.path().join("mine.gguf");
    std::fs::write(&original, &file).unwrap();
    let ended = pull(&home, original.to_str().unwrap(), &["--name", "small"]);
    assert_pulled(&home, &ended, "small", &file);
    std::fs::write(&original, b"changed").unwrap();
    assert!(std::fs::read(models(&home).join("small.gguf")).unwrap() == file);
    let ended = pull(&home, original.to_str().unwrap(), &["--name", "other"]);
    assert!(ended.code == 1 && ended.err.contains("no GGUF file"), "{ended:?}");
    let digest = sha256(b"another");
    std::fs::write(&original, &file).unwrap();
    let ended = pull(&home, original.to_str().unwrap(), &["--sha256", &digest]);
    assert!(ended.code == 1 && ended.err.contains(&digest), "{ended:?}");
}
