//! Models that are fetched are the models they were.

use std::fs::File;

use compute::gguf::writer::Outline;
use compute::gguf::{Gguf, Metadata, Value};

use super::*;

/// `from`, written again as a model of three files. Those of `first` lie in the second.
fn split(from: &Path, folder: &Path, first: usize) -> PathBuf {
    let whole = Gguf::open(from).unwrap();
    let tensors: Vec<_> = whole.tensors().collect();
    let (second, third) = tensors.split_at(first);
    let path = |number: u64| folder.join(format!("big-{:05}-of-00003.gguf", number + 1));
    for (number, own) in (0..).zip([&[][..], second, third]) {
        let about = [("split.no", number), ("split.count", 3)];
        let about = about.map(|(key, value)| (key.to_owned(), Value::Unsigned(value)));
        let metadata = whole.metadata().iter().filter(|_| number == 0);
        let metadata = metadata.map(|(key, value)| (key.to_owned(), value.clone()));
        let mut outline = Outline::new(Metadata::from_pairs(metadata.chain(about))).unwrap();
        for tensor in own {
            outline.tensor(&tensor.name, &tensor.shape, tensor.kind).unwrap();
        }
        let mut writer = outline.begin(File::create(path(number)).unwrap()).unwrap();
        for tensor in own {
            writer.write(&tensor.name, whole.bytes(tensor)).unwrap();
        }
        writer.finish().unwrap();
    }
    path(0)
}

fn logits(model: &Arc<Model>) -> Vec<u32> {
    let mut session = model.session(8);
    session.logits(&[3, 1, 4, 1, 5]).unwrap().iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_model_that_was_fetched_whole_answers_as_the_original() {
    for name in [LLAMA, "gemma3-Q4_K_M", "qwen2-Q4_K_M"] {
        check_whole(&fixture(name));
    }
}

#[test]
fn a_model_of_several_files_is_fetched_wherever_its_factors_lie() {
    let room = tempfile::tempdir().unwrap();
    let tensors = Gguf::open(&fixture(LLAMA)).unwrap().tensors().count();
    for first in [1, tensors / 2, tensors - 1] {
        let path = split(&fixture(LLAMA), room.path(), first);
        check_whole(&path);
        check_parts(&path);
    }
    check_whole(&split(&fixture(QWEN), room.path(), 3));
}

fn check_whole(path: &Path) {
    run(async {
        let (giver, id) = Home::with(path);
        let net = Net::default();
        net.add(1, &giver.store);
        let home = Home::new(limits());
        let fetch = net.fetcher(&home.store).fetch(id, all_of(path), vec![hop(1)]);
        let ready = fetch.done().await.unwrap();
        assert_eq!(logits(&load(ready.path(), None)), logits(&load(path, None)));
        assert_eq!(net.asked(1).len() - probes(path), chunks_of(path, &all_of(path)));
        // What was fetched whole is found again and can be given on.
        drop((fetch, ready));
        let again = home.killed();
        assert_eq!(
            again.store.find(id).unwrap().whole_parts(),
            giver.store.find(id).unwrap().whole_parts()
        );
        net.add(2, &again.store);
        let third = Home::new(limits());
        let fetch = net.fetcher(&third.store).fetch(id, all_of(path), vec![hop(2)]);
        let ready = fetch.done().await.unwrap();
        assert_eq!(logits(&load(ready.path(), None)), logits(&load(path, None)));
    });
}

/// Chunks that are asked for twice, since it was not known where they lie: one at most.
fn probes(path: &Path) -> usize {
    let gguf = Gguf::open(path).unwrap();
    let files = gguf.files().count();
    // The factors after the last header are not asked for before.
    let factors = gguf.tensor("rope_freqs.weight").map(|tensor| tensor.part);
    usize::from(files > 1 && factors.is_some_and(|part| part < files - 1))
}

#[test]
fn a_part_that_was_fetched_alone_computes_the_same_rows() {
    for name in [LLAMA, QWEN] {
        check_parts(&fixture(name));
    }
}

fn check_parts(path: &Path) {
    run(async {
        let (giver, id) = Home::with(path);
        let net = Net::default();
        net.add(1, &giver.store);
        let whole = load(path, None);
        for (halves, ends) in [(1..3, Ends::Elsewhere), (0..2, Ends::Here)] {
            let part = Part { halves: halves.clone(), ends };
            let home = Home::new(limits());
            let needed: Vec<FilePart> = FileParts::needed(&part).collect();
            let fetch = net.fetcher(&home.store).fetch(id, needed.clone(), vec![hop(1)]);
            let ready = fetch.done().await.unwrap();
            let progress = *fetch.progress().borrow();
            let bytes = bytes_of(path, &needed);
            assert_eq!((progress.done, progress.whole), (bytes, bytes));
            let own = ready.load(&options(Some(part)), &mut |_, _| {}).unwrap();
            let mut wanted = whole.embed(&[3, 1, 4]).unwrap();
            let mut rows = wanted.clone();
            whole.stage(halves.clone(), 3).feed(&mut wanted).unwrap();
            own.stage(halves.clone(), 3).feed(&mut rows).unwrap();
            assert!(rows == wanted, "{path:?} {halves:?}");
            let stock = home.store.find(id).unwrap();
            let held = needed.iter().map(|part| stock.bytes_here(part_number(*part))).sum::<u64>();
            assert_eq!(held, bytes);
            assert_eq!(stock.bytes_here(part_number(FilePart::Half(3))), 0);
        }
    });
}

#[test]
fn a_part_can_be_loaded_again_and_again_while_others_arrive() {
    run(async {
        let path = fixture("llama-BF16");
        let (giver, id) = Home::with(&path);
        let net = Net::default();
        net.add(1, &giver.store);
        let home = Home::new(limits());
        let fetcher = net.fetcher(&home.store);
        let part = Part { halves: 0..1, ends: Ends::Elsewhere };
        let needed: Vec<FilePart> = FileParts::needed(&part).collect();
        let ready = Arc::new(fetcher.fetch(id, needed, vec![hop(1)]).done().await.unwrap());
        let wanted = rows(&ready.load(&options(Some(part.clone())), &mut |_, _| {}).unwrap());
        let rest = fetcher.fetch(id, all_of(&path), vec![hop(1)]);
        let arriving = std::sync::atomic::AtomicBool::new(true);
        let arriving = Arc::new(arriving);
        let (own, flag) = (Arc::clone(&ready), Arc::clone(&arriving));
        let loading = tokio::task::spawn_blocking(move || {
            let mut loads = 0;
            while loads < 3 || flag.load(std::sync::atomic::Ordering::Relaxed) {
                let model = own.load(&options(Some(part.clone())), &mut |_, _| {}).unwrap();
                assert!(rows(&model) == wanted);
                loads += 1;
            }
        });
        let whole = rest.done().await.unwrap();
        arriving.store(false, std::sync::atomic::Ordering::Relaxed);
        loading.await.unwrap();
        assert_eq!(std::fs::read(whole.path()).unwrap(), std::fs::read(&path).unwrap());
    });
}

/// What the first half-block makes of a row of zeros.
fn rows(model: &Arc<Model>) -> Vec<i16> {
    let mut rows = compute::numeric::block::BlockVec::zeros(model.summary().width);
    model.stage(0..1, 1).feed(&mut rows).unwrap();
    rows.m.to_vec()
}
