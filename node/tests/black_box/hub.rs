//! Models are brought from a hub by their names.

use serde_json::{Value, json};
use tempfile::TempDir;

use compute::gguf::writer::Outline;
use compute::gguf::{Metadata, TensorType, Value as Meta};

use crate::origin::{Answer, Asked, Origin, sha256};
use crate::process::{Ended, cadencia, run_at, toy_path};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub with one repository, `org/repo-GGUF`, that holds `files`.
fn hub(files: Vec<(&'static str, Vec<u8>)>) -> Origin {
    let listing = listing(&files);
    Origin::start(move |asked| answer(asked, &listing, &files))
}

fn listing(files: &[(&'static str, Vec<u8>)]) -> Value {
    let siblings = files.iter().map(|(path, bytes)| {
        let stored = json!({"sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 134});
        json!({"rfilename": path, "size": bytes.len(), "lfs": stored})
    });
    json!({"id": "org/repo-GGUF", "sha": COMMIT, "siblings": siblings.collect::<Vec<_>>()})
}

fn answer(asked: &Asked, listing: &Value, files: &[(&'static str, Vec<u8>)]) -> Answer {
    if asked.target == "/api/models/org/repo-GGUF/revision/main?blobs=true" {
        return Answer::new(200, listing.to_string().as_bytes());
    }
    let folder = format!("/org/repo-GGUF/resolve/{COMMIT}/");
    let found = files.iter().find(|(path, _)| asked.target == format!("{folder}{path}"));
    match found {
        Some((_, bytes)) => Answer::file(asked, bytes, "\"v1\""),
        None => Answer::new(404, b""),
    }
}

fn pull(home: &TempDir, endpoint: &str, name: &str) -> Ended {
    let mut command = cadencia(home);
    command.env("HF_ENDPOINT", endpoint).env("HF_TOKEN", "hf_sesame");
    let output = command.args(["pull", name, "--tries", "2"]).output().unwrap();
    Ended {
        code: output.status.code().expect("it was not killed"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn read(home: &TempDir, file: &str) -> Option<Vec<u8>> {
    std::fs::read(home.path().join("cadencia/models").join(file)).ok()
}

fn toy() -> Vec<u8> {
    std::fs::read(toy_path()).unwrap()
}

#[test]
fn a_name_leads_to_the_mixture_that_suits_most() {
    let home = TempDir::new().unwrap();
    let origin = hub(vec![
        ("README.md", b"# A model".to_vec()),
        ("m-Q8_0.gguf", b"GGUF of another mixture".to_vec()),
        ("m-Q4_K_M.gguf", toy()),
        ("mmproj-m.gguf", b"GGUF of a projector".to_vec()),
    ]);
    let ended = pull(&home, &origin.url("/"), "org/repo-GGUF");
    assert_eq!((ended.code, ended.out.as_str()), (0, "m-Q4_K_M\n"), "{ended:?}");
    assert_eq!(read(&home, "m-Q4_K_M.gguf"), Some(toy()));
    let asked = origin.asked();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked.iter().all(|asked| asked.headers["authorization"] == "Bearer hf_sesame"));
    // What the repository says is checked like a digest from the user.
    let ended = pull(&home, &origin.url(""), "org/repo-GGUF:q8_0");
    assert!(ended.code == 1 && ended.err.contains("no sound model"), "{ended:?}");
}

#[test]
fn a_choice_that_is_not_clear_is_left_to_the_user() {
    let home = TempDir::new().unwrap();
    let origin = hub(vec![("a.gguf", toy()), ("b.gguf", toy())]);
    let endpoint = origin.url("");
    let ended = pull(&home, &endpoint, "org/repo-GGUF");
    assert!(ended.code == 1 && ended.err.contains("a.gguf, b.gguf"), "{ended:?}");
    let ended = pull(&home, &endpoint, "org/repo-GGUF:Q4_0");
    assert!(ended.code == 1 && ended.err.contains("Q4_0"), "{ended:?}");
    let ended = pull(&home, &endpoint, "org/other-GGUF");
    assert!(ended.code == 1 && ended.err.contains("org/other-GGUF"), "{ended:?}");
    let ended = pull(&home, "http://example.org", "org/repo-GGUF");
    assert!(ended.code == 1 && ended.err.contains("HF_ENDPOINT"), "{ended:?}");
    let ended = pull(&home, &endpoint, "org/repo-GGUF/b.gguf@main");
    assert_eq!((ended.code, ended.out.as_str()), (0, "b\n"), "{ended:?}");
}

#[test]
fn a_token_is_shown_to_the_hub_and_to_nobody_else() {
    let home = TempDir::new().unwrap();
    let storage = Origin::of(toy());
    let (list, place) = (listing(&[("m.gguf", toy())]), storage.url("/signed?key=1"));
    let origin = Origin::start(move |asked| match asked.target.starts_with("/api/") {
        true => Answer::new(200, list.to_string().as_bytes()),
        false => Answer::new(302, b"").with("location", &place),
    });
    let ended = pull(&home, &origin.url(""), "org/repo-GGUF");
    assert_eq!((ended.code, read(&home, "m.gguf")), (0, Some(toy())), "{ended:?}");
    let asked = storage.asked();
    assert_eq!(asked.len(), 1);
    assert!(!asked[0].headers.contains_key("authorization"), "{asked:?}");
    assert!(!ended.err.contains("sesame") && !ended.err.contains("key=1"), "{ended:?}");
}

#[test]
fn a_hub_that_lies_does_no_harm() {
    let toy_size = toy().len();
    let lfs = |size: usize, digest: &str| json!({"sha256": digest, "size": size});
    let file =
        |path: &str, size, digest: &str| json!({"rfilename": path, "lfs": lfs(size, digest)});
    let right = sha256(&toy());
    for (siblings, words) in [
        (json!([file("../../x.gguf", toy_size, &right)]), "no .gguf files"),
        (json!([file("a/.x.gguf", toy_size, &right)]), "no name for a model"),
        (json!([file("m.gguf", toy_size + 1, &right)]), "promised"),
        (json!([file("m.gguf", toy_size, &sha256(b""))]), "not what was meant"),
        (json!([file("m.gguf", usize::MAX, &right)]), "room for"),
        (json!([{"rfilename": "m.gguf"}]), "--sha256"),
        (json!([file("m-00001-of-00002.gguf", toy_size, &right)]), "missing"),
        (json!({"not": "a list"}), "sound answer"),
        (json!("x".repeat(17 << 20)), "sound answer"),
    ] {
        let home = TempDir::new().unwrap();
        let listing = json!({"sha": "../../evil", "siblings": siblings}).to_string();
        let origin = Origin::start(move |asked| match asked.target.starts_with("/api/") {
            true => Answer::new(200, listing.as_bytes()),
            false => Answer::file(asked, &toy(), "\"v1\""),
        });
        let ended = pull(&home, &origin.url(""), "org/repo-GGUF");
        assert!(ended.code > 0 && ended.err.contains(words), "{words}: {ended:?}");
        let targets: Vec<_> = origin.asked().into_iter().map(|asked| asked.target).collect();
        assert!(targets.iter().all(|target| !target.contains("evil")), "{targets:?}");
        let models = run_at(&home, &["models", "--json"], "").json();
        assert_eq!(models, json!([]), "{words}");
    }
}

/// Part `number` of 2 of a model that is split.
fn split(number: u64) -> Vec<u8> {
    let mut pairs = vec![
        ("split.no".to_string(), Meta::Unsigned(number - 1)),
        ("split.count".to_string(), Meta::Unsigned(2)),
        ("split.tensors.count".to_string(), Meta::Unsigned(2)),
    ];
    if number == 1 {
        pairs.push(("general.architecture".into(), Meta::String("none such".into())));
    }
    let mut outline = Outline::new(Metadata::from_pairs(pairs)).unwrap();
    let name = format!("tensor.{number}");
    outline.tensor(&name, &[64], TensorType::F32).unwrap();
    let mut writer = outline.begin(Vec::new()).unwrap();
    writer.write(&name, &[0; 256]).unwrap();
    writer.finish().unwrap()
}

#[test]
fn a_split_model_comes_whole_and_goes_whole() {
    let home = TempDir::new().unwrap();
    let (first, second) = (split(1), split(2));
    let origin = hub(vec![
        ("big/m-Q8_0-00001-of-00002.gguf", first.clone()),
        ("big/m-Q8_0-00002-of-00002.gguf", second.clone()),
    ]);
    let ended = pull(&home, &origin.url(""), "org/repo-GGUF:Q8_0");
    assert_eq!((ended.code, ended.out.as_str()), (0, "m-Q8_0-00001-of-00002\n"), "{ended:?}");
    assert!(ended.err.contains("cannot run it"), "{ended:?}");
    assert_eq!(read(&home, "m-Q8_0-00001-of-00002.gguf"), Some(first));
    assert_eq!(read(&home, "m-Q8_0-00002-of-00002.gguf"), Some(second));
    // From a file, under another name, as well.
    let path = home.path().join("cadencia/models/m-Q8_0-00001-of-00002.gguf");
    let ended = run_at(&home, &["pull", path.to_str().unwrap(), "--name", "other"], "");
    assert_eq!(ended.out, "other-00001-of-00002\n", "{ended:?}");
    assert!(read(&home, "other-00002-of-00002.gguf").is_some());

    let name = "m-Q8_0-00001-of-00002";
    let ended = run_at(&home, &["models", "rm", name], "y\n");
    assert!(ended.code == 2 && ended.err.contains("--yes"), "{ended:?}");
    assert_eq!(run_at(&home, &["models", "rm", name, "--yes"], "").code, 0);
    assert_eq!(read(&home, "m-Q8_0-00001-of-00002.gguf"), None);
    assert_eq!(read(&home, "m-Q8_0-00002-of-00002.gguf"), None);
    assert!(read(&home, "other-00001-of-00002.gguf").is_some());
    for name in ["../x", "", ".", "m-Q8_0", "other-00002-of-00002"] {
        assert_eq!(run_at(&home, &["models", "rm", name, "--yes"], "").code, 1, "{name}");
    }
}
