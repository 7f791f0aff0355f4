//! What a store keeps over restarts, damage, full disks and its cap.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// A store that holds `parts` of a model, and whoever gives them.
struct Held {
    home: Home,
    giver: Home,
    net: Net,
    id: ManifestId,
    path: PathBuf,
}

fn held(name: &str, parts: &[FilePart], limits: Limits) -> Held {
    let path = fixture(name);
    let (giver, id) = Home::with(&path);
    let net = Net::default();
    net.add(1, &giver.store);
    let home = Home::new(limits);
    let fetcher = net.fetcher(&home.store);
    run(async { fetcher.fetch(id, parts.to_vec(), vec![hop(1)]).done().await.unwrap() });
    Held { home, giver, net, id, path }
}

fn flip(path: &Path, at: u64) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at as usize] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_chunk_that_is_damaged_between_runs_is_fetched_again_and_nothing_else_is() {
    for part in [FilePart::Head, FilePart::Ends, FilePart::Half(2)] {
        let parts = all_of(&fixture(LLAMA));
        let Held { home, net, id, path, .. } = held(LLAMA, &parts, limits());
        let at = FileParts::read(&path).unwrap().chunks(part).last().unwrap().range.start;
        flip(&home.folder(id).join("model.gguf"), at);
        let again = home.killed();
        let before = net.asked(1).len();
        run(async {
            let fetch = net.fetcher(&again.store).fetch(id, parts, vec![hop(1)]);
            let ready = fetch.done().await.unwrap();
            assert_eq!(std::fs::read(ready.path()).unwrap(), std::fs::read(&path).unwrap());
        });
        // A head with a chunk that is wrong may take the others with it, and has two.
        let asked = net.asked(1).len() - before;
        assert_eq!(asked, 1, "{part:?}");
    }
}

#[test]
fn a_record_that_is_gone_or_damaged_costs_fetching_and_never_truth() {
    let parts = [FilePart::Half(0), FilePart::Half(1)];
    let Held { home, net, id, path, .. } = held(QWEN, &parts, limits());
    let all = chunks_of(&path, &[&parts[..], &[FilePart::Head]].concat());
    for damage in ["gone", "cut", "flipped", "foreign"] {
        let record = std::fs::read(home.folder(id).join("record")).unwrap();
        let again = {
            let room = tempfile::tempdir().unwrap();
            copy(home.room.path(), room.path());
            let path = room.path().join(id.to_string()).join("record");
            match damage {
                "gone" => std::fs::remove_file(&path).unwrap(),
                "cut" => std::fs::write(&path, &record[..record.len() - 100]).unwrap(),
                "flipped" => flip(&path, record.len() as u64 - 20),
                _ => std::fs::write(&path, vec![7; record.len()]).unwrap(),
            }
            let store = Store::open(room.path(), limits()).unwrap();
            Home { room, store }
        };
        let before = net.asked(1).len();
        run(async {
            let fetch = net.fetcher(&again.store).fetch(id, parts, vec![hop(1)]);
            fetch.done().await.unwrap();
        });
        let asked = net.asked(1).len() - before;
        let right = match damage {
            "cut" => 3,
            "flipped" => 1,
            _ => all,
        };
        assert_eq!(asked, right, "{damage}");
    }
}

#[test]
fn a_folder_without_a_sound_manifest_is_removed() {
    let Held { home, id, .. } = held(QWEN, &[], limits());
    for damage in ["manifest", "model.gguf"] {
        let room = tempfile::tempdir().unwrap();
        copy(home.room.path(), room.path());
        let folder = room.path().join(id.to_string());
        std::fs::write(folder.join(damage), b"nothing").unwrap();
        std::fs::write(room.path().join("notes.txt"), b"the user's").unwrap();
        let store = Store::open(room.path(), limits()).unwrap();
        assert!(store.find(id).is_none() && !folder.exists());
        assert!(room.path().join("notes.txt").exists());
    }
}

#[test]
fn two_programs_do_not_share_a_store() {
    let home = Home::new(limits());
    let error = Store::open(home.room.path(), limits()).unwrap_err();
    assert!(matches!(error, StoreError::Busy { .. }), "{error}");
}

#[test]
fn parts_of_the_model_that_was_used_longest_ago_make_room_for_others() {
    let (llama, qwen, gemma) = (fixture(LLAMA), fixture(QWEN), fixture("gemma3-Q4_K_M"));
    let size = |path: &Path| path.metadata().unwrap().len();
    let cap = size(&llama) + size(&qwen) + bytes_of(&gemma, &[FilePart::Head]);
    run(async {
        let (net, giver) = (Net::default(), Home::new(limits()));
        net.add(1, &giver.store);
        let home = Home::new(Limits { bytes_max: cap, ..limits() });
        let fetcher = net.fetcher(&home.store);
        let [llama_id, qwen_id, gemma_id] =
            [&llama, &qwen, &gemma].map(|path| giver.store.add_library(path).unwrap().id());
        let all = |id, path| fetcher.fetch(id, all_of(path), vec![hop(1)]);
        all(llama_id, &llama).done().await.unwrap();
        let used = all(qwen_id, &qwen).done().await.unwrap();
        // Only the head of the third fits.
        fetcher.fetch(gemma_id, [], vec![hop(1)]).done().await.unwrap();
        let whole = |id| home.store.find(id).map(|stock| stock.whole_parts());
        assert_eq!(whole(llama_id), giver.store.find(llama_id).map(|stock| stock.whole_parts()));
        // A part more, and something of the first goes.
        let one = [FilePart::Half(0)];
        let ready = fetcher.fetch(gemma_id, one, vec![hop(1)]).done().await.unwrap();
        assert_ne!(whole(llama_id), giver.store.find(llama_id).map(|stock| stock.whole_parts()));
        assert_eq!(whole(qwen_id), giver.store.find(qwen_id).map(|stock| stock.whole_parts()));
        // All of it, and what is in use stays: that does not fit.
        let error = all(gemma_id, &gemma).done().await.unwrap_err();
        let FetchError::Store(error) = error else { panic!("{error}") };
        assert!(matches!(*error, StoreError::Cap { .. }), "{error}");
        assert_eq!(whole(qwen_id), giver.store.find(qwen_id).map(|stock| stock.whole_parts()));
        load(used.path(), None);
        // Nobody uses it any more.
        drop((used, ready));
        let ready = all(gemma_id, &gemma).done().await.unwrap();
        load(ready.path(), None);
        let held: u64 = home.store.all().iter().map(|stock| stock.reserved()).sum();
        assert!(held <= cap, "{held} of {cap}");
    });
}

#[cfg(target_os = "linux")]
#[test]
fn a_part_that_is_given_up_gives_its_space_back_and_is_not_believed_to_be_here() {
    use std::os::unix::fs::MetadataExt;

    let parts = all_of(&fixture("llama-BF16"));
    let Held { home, id, net, path, .. } = held("llama-BF16", &parts, limits());
    let stock = home.store.find(id).unwrap();
    let file = home.folder(id).join("model.gguf");
    let before = file.metadata().unwrap().blocks() * 512;
    let part = FilePart::Half(1);
    stock.give_up(part_number(part)).unwrap();
    let freed = before - file.metadata().unwrap().blocks() * 512;
    let bytes = bytes_of(&path, &[part]);
    assert!(freed > bytes / 2 && freed <= bytes, "{freed} of {bytes}");
    assert!(stock.serve(part_number(part), 0).is_none());
    let again = home.killed();
    assert_eq!(again.store.find(id).unwrap().bytes_here(part_number(part)), 0);
    let before = net.asked(1).len();
    run(async {
        let ready = net.fetcher(&again.store).fetch(id, parts, vec![hop(1)]).done().await.unwrap();
        assert_eq!(std::fs::read(ready.path()).unwrap(), std::fs::read(&path).unwrap());
    });
    assert_eq!(net.asked(1).len() - before, chunks_of(&path, &[part]));
}

#[test]
fn a_full_disk_is_said_to_be_full_and_what_is_there_stays() {
    let path = fixture(QWEN);
    let total = chunks_of(&path, &all_of(&path));
    for fits in [0, 1, total / 2, total - 1] {
        let (giver, id) = Home::with(&path);
        let net = Net::default();
        net.add(1, &giver.store);
        let written = Arc::new(AtomicUsize::new(0));
        let mut small = limits();
        small.writing.sync_bytes = 1;
        small.writing.write_at = Arc::new(move |file, at, bytes| {
            if written.fetch_add(1, Ordering::SeqCst) < fits {
                return stock::write_at(file, at, bytes);
            }
            // Half of it still fits.
            stock::write_at(file, at, &bytes[..bytes.len() / 2])?;
            Err(ErrorKind::StorageFull.into())
        });
        let home = Home::new(small);
        run(async {
            let fetch = net.fetcher(&home.store).fetch(id, all_of(&path), vec![hop(1)]);
            let error = fetch.done().await.unwrap_err();
            let FetchError::Store(error) = error else { panic!("{error}") };
            assert!(matches!(*error, StoreError::DiskFull { .. }), "{error}");
            assert!(error.to_string().contains("full"), "{error}");
        });
        let again = home.killed();
        let before = net.asked(1).len();
        run(async {
            let fetch = net.fetcher(&again.store).fetch(id, all_of(&path), vec![hop(1)]);
            let ready = fetch.done().await.unwrap();
            assert_eq!(std::fs::read(ready.path()).unwrap(), std::fs::read(&path).unwrap());
        });
        assert_eq!(net.asked(1).len() - before, total - fits, "{fits} fitted");
    }
}

#[test]
fn a_model_that_cannot_fit_is_refused_before_it_is_fetched() {
    run(async {
        let path = fixture(QWEN);
        let (giver, id) = Home::with(&path);
        let net = Net::default();
        net.add(1, &giver.store);
        let home = Home::new(Limits { keep_free: u64::MAX, ..limits() });
        let fetch = net.fetcher(&home.store).fetch(id, [], vec![hop(1)]);
        let FetchError::Store(error) = fetch.done().await.unwrap_err() else { panic!() };
        assert!(matches!(*error, StoreError::NoRoom { free: 0, .. }), "{error}");
        assert_eq!(net.asked(1), []);
    });
}

#[test]
fn a_part_that_the_model_has_not_is_refused() {
    let Held { home, id, net, .. } = held(QWEN, &[], limits());
    run(async {
        let fetch = net.fetcher(&home.store).fetch(id, [FilePart::Half(4000)], vec![hop(1)]);
        let FetchError::Store(error) = fetch.done().await.unwrap_err() else { panic!() };
        assert!(matches!(*error, StoreError::NoSuchPart { part: 4002, .. }), "{error}");
    });
}

#[test]
fn a_file_of_the_users_that_changes_is_not_offered_and_can_be_fetched_from_others() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join(format!("{QWEN}.gguf"));
    std::fs::copy(fixture(QWEN), &path).unwrap();
    let (home, id) = Home::with(&path);
    let stock = home.store.find(id).unwrap();
    let part = part_number(FilePart::Half(1));
    assert!(stock.serve(part, 0).is_some());
    let at = FileParts::read(&path).unwrap().chunks(FilePart::Half(1)).next().unwrap();
    flip(&path, at.range.start);
    assert!(stock.serve(part, 0).is_none(), "it is hashed each time");
    let (giver, _) = Home::with(&fixture(QWEN));
    let net = Net::default();
    net.add(1, &giver.store);
    run(async {
        let fetcher = net.fetcher(&home.store);
        let parts = [FilePart::Half(1)];
        let error = fetcher.fetch(id, parts, vec![hop(1)]).done().await.unwrap_err();
        let FetchError::Store(error) = error else { panic!("{error}") };
        assert!(matches!(&*error, StoreError::Changed { path: at } if *at == path), "{error}");
        let ready = fetcher.fetch(id, parts, vec![hop(1)]).done().await.unwrap();
        assert_ne!(ready.path(), &path);
    });
}

#[test]
fn what_the_user_has_takes_the_place_of_what_was_fetched() {
    let Held { home, id, giver, .. } = held(QWEN, &[FilePart::Half(0)], limits());
    assert!(home.folder(id).exists());
    let own = home.store.add_library(&fixture(QWEN)).unwrap();
    assert_eq!(own.whole_parts(), giver.store.find(id).unwrap().whole_parts());
    assert!(!home.folder(id).exists());
}
