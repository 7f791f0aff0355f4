//! API keys are made, listed, tried and revoked, and only their hashes are kept.

use tempfile::TempDir;

use crate::process::{Ended, run_at};

fn keys(home: &TempDir, args: &[&str], input: &str) -> Ended {
    run_at(home, &[&["keys"][..], args].concat(), input)
}

#[test]
fn a_key_is_shown_once_and_kept_as_a_hash() {
    let home = TempDir::new().unwrap();
    let made = keys(&home, &["add", "ann"], "");
    assert_eq!(made.code, 0, "{made:?}");
    let key = made.out.trim();
    let digits = key.strip_prefix("cad-").unwrap();
    assert!(digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit()), "{key}");
    assert!(!made.err.contains(digits), "{made:?}");
    let other = keys(&home, &["add", "bob"], "").out;
    assert_ne!(other, made.out);

    let folder = home.path().join("cadencia");
    for entry in std::fs::read_dir(&folder).unwrap().flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap();
        assert!(!text.contains(digits), "{:?} holds the key", entry.path());
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = folder.join("api-keys.toml").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let list = keys(&home, &["list", "--json"], "").json();
    assert_eq!((&list[0]["name"], &list[1]["name"]), (&"ann".into(), &"bob".into()));
    let table = keys(&home, &["list"], "").out;
    assert!(table.contains("ann") && !table.contains(&digits[..8]), "{table}");

    assert_eq!(keys(&home, &["check"], &made.out).out, "ann\n");
    assert_eq!(keys(&home, &["check"], "cad-0000").code, 1);
    assert_eq!(keys(&home, &["revoke", "ann"], "").code, 0);
    assert_eq!(keys(&home, &["check"], &made.out).code, 1);
    assert_eq!(keys(&home, &["check"], &other).out, "bob\n");
}

#[test]
fn what_cannot_be_done_says_why_and_changes_nothing() {
    let home = TempDir::new().unwrap();
    let file = home.path().join("keys.toml");
    let path = file.to_str().unwrap();
    let at = |args: &[&str]| keys(&home, &[args, &["--api-keys-file", path]].concat(), "");
    assert_eq!(at(&["list"]).out, "");
    assert_eq!(at(&["revoke", "ann"]).code, 1);
    assert!(!file.exists());
    assert_eq!(at(&["add", "ann"]).code, 0);
    let before = std::fs::read(&file).unwrap();
    for (args, word) in [
        (["add", "ann"], "already"),
        (["add", "../x"], "no name for a key"),
        (["add", ""], "no name for a key"),
        (["revoke", "bob"], "keys list"),
    ] {
        let ended = at(&args);
        assert!(ended.code == 1 && ended.err.contains(word), "{ended:?}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), before);

    std::fs::write(&file, b"[[key]]\nname = 3\n").unwrap();
    for args in [&["list"][..], &["add", "bob"], &["revoke", "ann"], &["check"]] {
        let ended = at(args);
        assert!(ended.code == 1 && ended.err.contains("damaged"), "{ended:?}");
        assert!(ended.err.contains(path), "{ended:?}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"[[key]]\nname = 3\n");
}

#[cfg(unix)]
#[test]
fn a_file_that_others_may_write_opens_no_door() {
    use std::os::unix::fs::PermissionsExt;
    let home = TempDir::new().unwrap();
    assert_eq!(keys(&home, &["add", "ann"], "").code, 0);
    let file = home.path().join("cadencia/api-keys.toml");
    let mode = |mode| std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
    mode(0o644);
    let ended = keys(&home, &["list"], "");
    assert!(ended.code == 0 && ended.err.contains("chmod 600"), "{ended:?}");
    mode(0o660);
    let ended = keys(&home, &["list"], "");
    assert!(ended.code == 1 && ended.err.contains("660"), "{ended:?}");
}
