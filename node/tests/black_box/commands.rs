//! The commands that scripts rely on.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::{run, run_at, toy_path};
use crate::toy;

/// Runs a command on the toy with one thread, unless `args` say another number.
fn toy_run(command: &str, args: &[&str], input: &str) -> Value {
    let toy = toy_path();
    let mut all = vec![command, "--model", toy.to_str().unwrap()];
    all.extend(args);
    let ended = run(&all, input);
    assert_eq!(ended.code, 0, "{all:?}: {ended:?}");
    if ended.out.is_empty() { Value::Null } else { ended.json() }
}

/// The logits after each of `tokens`, by `cadencia logits`.
fn logits(tokens: &[u32]) -> Vec<Vec<f32>> {
    let folder = TempDir::new().unwrap();
    let (ids, out) = (folder.path().join("ids"), folder.path().join("out.f32"));
    let text: Vec<_> = tokens.iter().map(u32::to_string).collect();
    std::fs::write(&ids, text.join(" ")).unwrap();
    let args = ["--tokens", ids.to_str().unwrap(), "--out", out.to_str().unwrap()];
    assert_eq!(toy_run("logits", &args, ""), Value::Null);
    let bytes = std::fs::read(&out).unwrap();
    let numbers = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
    let numbers: Vec<f32> = numbers.collect();
    let rows: Vec<_> = numbers.chunks(259).map(<[f32]>::to_vec).collect();
    assert_eq!((rows.len(), bytes.len()), (tokens.len(), tokens.len() * 259 * 4));
    rows
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn text_becomes_token_ids() {
    assert_eq!(toy_run("tokenize", &[], "hi\n"), json!([104, 105, 10]));
    assert_eq!(toy_run("tokenize", &["--text", "é"], ""), json!([0xc3, 0xa9]));
    assert_eq!(toy_run("tokenize", &["--special"], "a<|im_end|>"), json!([97, toy::END]));
    let plain = toy_run("tokenize", &[], "a<|im_end|>");
    assert_eq!(plain.as_array().unwrap().len(), 1 + "<|im_end|>".len());
    assert_eq!(toy_run("tokenize", &[], ""), json!([]));
}

#[test]
fn a_prompt_is_continued_by_the_likeliest_tokens() {
    let args = ["--prompt", "hello", "-n", "12", "--temp", "0", "--json"];
    let said = toy_run("generate", &args, "");
    assert_eq!(said["prompt_tokens"], json!([104, 101, 108, 108, 111]));
    assert_eq!(said["finish"], "length");
    let (mut tokens, answer) = (ids(&said["prompt_tokens"]), ids(&said["tokens"]));
    assert_eq!(answer.len(), 12);
    tokens.extend(&answer);
    let rows = logits(&tokens);
    for (n, token) in answer.iter().enumerate() {
        let row = &rows[4 + n];
        let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(row[*token as usize], best, "token {n} of the answer");
    }
}

#[test]
fn every_kernel_and_thread_count_gives_the_same_tokens() {
    let said = |more: &[&str]| {
        let mut args = vec!["--prompt", "hello", "-n", "8", "--temp", "0", "--json"];
        args.extend(more);
        toy_run("generate", &args, "")["tokens"].clone()
    };
    let right = said(&["--kernels", "reference", "-t", "1"]);
    assert_eq!(said(&["--kernels", "portable", "-t", "2"]), right);
    assert_eq!(said(&["--kernels", "auto", "-t", "1"]), right);
    assert_eq!(said(&["-t", "3"]), right);
}

#[test]
fn text_is_shown_as_it_is_reported() {
    let toy = toy_path();
    let model = toy.to_str().unwrap();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("prompt");
    std::fs::write(&file, "<|im_start|>hello").unwrap();
    let args =
        ["--prompt-file", file.to_str().unwrap(), "--special", "-n", "12", "--temp", "0", "--json"];
    let said = toy_run("generate", &args, "");
    assert_eq!(said["prompt_tokens"][0], 257);
    let mut shown = vec!["generate", "--model", model];
    shown.extend(&args[..args.len() - 1]);
    let ended = run(&shown, "");
    assert_eq!(
        ended.out.trim_end_matches('\n'),
        said["text"].as_str().unwrap().trim_end_matches('\n')
    );
    assert!(ended.err.contains("12 tokens"), "{ended:?}");
}

#[test]
fn perplexity_is_what_the_logits_say() {
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(4);
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("text");
    std::fs::write(&file, &text).unwrap();
    let args = ["--file", file.to_str().unwrap(), "--ctx", "64", "--json"];
    let measured = toy_run("perplexity", &args, "");
    let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
    let mut surprises = Vec::new();
    for window in tokens.chunks_exact(64) {
        let rows = logits(window);
        for n in 32..63 {
            let row: Vec<f64> = rows[n].iter().map(|x| f64::from(*x)).collect();
            let sum: f64 = row.iter().map(|x| x.exp()).sum();
            surprises.push(sum.ln() - row[window[n + 1] as usize]);
        }
    }
    let mean = surprises.iter().sum::<f64>() / surprises.len() as f64;
    assert_eq!(measured["windows"], 2);
    assert_eq!(measured["scored"], surprises.len());
    let ppl = measured["ppl"].as_f64().unwrap();
    assert!((ppl / mean.exp() - 1.0).abs() < 1e-5, "{ppl} and {}", mean.exp());
}

#[test]
fn speed_and_memory_are_measured() {
    let args = ["-p", "16", "-n", "4", "-t", "2", "-r", "2", "-d", "8", "--json"];
    let bench = toy_run("bench", &args, "");
    for key in [
        "prefill_tps",
        "prefill_tps_median",
        "decode_tps",
        "decode_tps_median",
        "load_ms",
        "read_bandwidth_bytes_s",
        "decode_at_depth_tps",
        "bytes_per_token",
    ] {
        assert!(bench[key].as_f64().unwrap() > 0.0, "{key} in {bench}");
    }
    assert_eq!((bench["threads"].as_u64(), bench["prompt"].as_u64()), (Some(2), Some(16)));
    if cfg!(target_os = "linux") {
        // The buffer that measures bandwidth has half a gigabyte and must not count.
        let peak = bench["peak_rss_bytes"].as_u64().unwrap();
        assert!((1 << 20..200 << 20).contains(&peak), "{peak}");
    }
}

#[test]
fn the_doctor_finds_this_machine_fit() {
    let toy = toy_path();
    let folder = toy.parent().unwrap().to_str().unwrap();
    let args =
        ["doctor", "--models-dir", folder, "--model", "toy", "--api", "127.0.0.1:0", "--json"];
    let ended = run(&args, "");
    assert_eq!(ended.code, 0, "{ended:?}");
    let report = ended.json();
    assert_eq!(report["ok"], true);
    let checks = report["checks"].as_array().unwrap();
    let names: Vec<_> = checks.iter().map(|check| check["name"].as_str().unwrap()).collect();
    let all = ["processor", "kernels", "memory", "bandwidth", "models", "address", "model"];
    assert_eq!(names, all);
    // A port that is taken is something broken.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let api = taken.local_addr().unwrap().to_string();
    let ended = run(&["doctor", "--api", &api], "");
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.out.contains("BROKEN  address"), "{ended:?}");
}

#[test]
fn models_are_found_by_name_and_never_outside_their_folder() {
    let home = TempDir::new().unwrap();
    let models = home.path().join("cadencia/models");
    std::fs::create_dir_all(&models).unwrap();
    std::fs::copy(toy_path(), models.join("small.gguf")).unwrap();
    std::fs::write(models.join("broken.gguf"), b"no model").unwrap();
    let list = run_at(&home, &["models", "--json"], "").json();
    assert_eq!(list[0]["name"], "broken");
    assert!(list[0]["error"].as_str().is_some());
    assert_eq!(list[1]["name"], "small");
    assert_eq!(list[1]["architecture"], "llama");
    assert_eq!(list[1]["context"], toy::CONTEXT);
    let table = run_at(&home, &["models"], "").out;
    assert!(table.contains("small") && table.contains("cannot be read"), "{table}");

    let tokenize = |name: &str| run_at(&home, &["tokenize", "--model", name, "--text", "a"], "");
    assert_eq!(tokenize("small").out, "[97]\n");
    assert_eq!(tokenize("small.gguf").out, "[97]\n");
    std::fs::copy(toy_path(), home.path().join("cadencia/secret.gguf")).unwrap();
    for name in ["../secret", "..%2fsecret", "secret", "..", ".", ""] {
        assert_ne!(tokenize(name).code, 0, "{name:?}");
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("../secret.gguf", models.join("link.gguf")).unwrap();
        let ended = tokenize("link");
        assert!(ended.code == 1 && ended.err.contains("link"), "{ended:?}");
    }
}

#[test]
fn what_is_asked_wrongly_ends_with_two_and_what_fails_with_one() {
    let toy = toy_path();
    let toy = toy.to_str().unwrap();
    for args in [
        &["dance"][..],
        &[],
        &["generate", "--model", toy],
        &["generate", "--model", toy, "--prompt", "x", "-n", "0"],
        &["generate", "--model", toy, "--prompt", "x", "--temp", "-1"],
        &["bench", "--model", toy, "-t", "0"],
        &["up", "--model", toy, "--api", "nowhere"],
        &["models", "--log", "a=b=c"],
        &["models", "--config", "/nonexistent/config.toml"],
        &["tokenize"],
    ] {
        let ended = run(args, "");
        assert_eq!(ended.code, 2, "{args:?}: {ended:?}");
        assert!(!ended.err.is_empty());
    }
    for args in [
        &["tokenize", "--model", "/nonexistent.gguf"][..],
        &["tokenize", "--model", "unknown"],
        &["logits", "--model", toy, "--tokens", "/nonexistent", "--out", "/nonexistent/out"],
        &["bench", "--model", toy, "-p", "99999"],
    ] {
        let ended = run(args, "");
        assert_eq!(ended.code, 1, "{args:?}: {ended:?}");
    }
}

#[test]
fn logits_that_fail_leave_no_file() {
    let folder = TempDir::new().unwrap();
    let (ids, out) = (folder.path().join("ids"), folder.path().join("out.f32"));
    std::fs::write(&ids, "1 2 259").unwrap();
    let toy = toy_path();
    let args = [
        "logits",
        "--model",
        toy.to_str().unwrap(),
        "--tokens",
        ids.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
    ];
    let ended = run(&args, "");
    assert_eq!(ended.code, 1);
    assert!(ended.err.contains("259"), "{ended:?}");
    assert!(!Path::new(&out).exists());
}

#[test]
fn settings_are_layered_and_can_be_shown() {
    let home = TempDir::new().unwrap();
    std::fs::create_dir(home.path().join("cadencia")).unwrap();
    let config = home.path().join("cadencia/config.toml");
    std::fs::write(&config, "threads = 3\nqueue = 5\napi_key = \"sesame\"\n").unwrap();
    let ended = run_at(&home, &["up", "--print-config", "--queue", "7"], "");
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.out.contains(&format!("threads = 3  # {}\n", config.display())), "{ended:?}");
    assert!(ended.out.contains("queue = 7  # the command line\n"), "{ended:?}");
    assert!(ended.out.contains("(hidden)") && !ended.out.contains("sesame"), "{ended:?}");
}

#[test]
fn help_is_worth_reading() {
    for command in [
        "up",
        "hive",
        "status",
        "peers",
        "plan",
        "chat",
        "pull",
        "keys",
        "models",
        "tokenize",
        "generate",
        "logits",
        "perplexity",
        "bench",
        "doctor",
    ] {
        let ended = run(&[command, "--help"], "");
        assert_eq!(ended.code, 0);
        assert!(ended.out.contains("Example"), "{command}: {}", ended.out);
    }
    let version = run(&["--version"], "").out;
    assert_eq!(version.trim(), format!("cadencia {}", env!("CARGO_PKG_VERSION")));
}
