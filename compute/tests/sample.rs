//! What a sampler picks, by its options.

use std::collections::BTreeMap;

use compute::sample::{SampleError, Sampler, SamplerOptions, log_probs};
use proptest::prelude::*;

/// Nothing but temperature.
fn plain(temperature: f32) -> SamplerOptions {
    SamplerOptions { temperature, top_k: 0, top_p: 1.0, min_p: 0.0, ..SamplerOptions::default() }
}

fn sampler(options: SamplerOptions) -> Sampler {
    Sampler::new(options).unwrap()
}

/// How often each token is picked in so many tries.
fn counts(options: SamplerOptions, logits: &[f32], tries: u64) -> Vec<u64> {
    let mut sampler = sampler(options);
    let mut counts = vec![0; logits.len()];
    for position in 0..tries {
        counts[sampler.pick(&mut logits.to_vec(), position) as usize] += 1;
    }
    counts
}

fn softmax(logits: &[f32], temperature: f32) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|x| f64::from(x / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

/// Tokens are as frequent as `expected` says, by a chi-square test that fails by chance once in
/// 10^5, were the seed not fixed.
#[track_caller]
fn check_distribution(options: SamplerOptions, logits: &[f32], expected: &[f64]) {
    const TRIES: u64 = 20_000;
    let counts = counts(options, logits, TRIES);
    let mut chi = 0.0;
    for (count, probability) in counts.iter().zip(expected) {
        let right = probability * TRIES as f64;
        match right {
            0.0 => assert_eq!(*count, 0, "{counts:?}"),
            _ => chi += (*count as f64 - right).powi(2) / right,
        }
    }
    // 7 degrees of freedom at most.
    assert!(chi < 34.0, "{chi}: {counts:?} for {expected:?}");
}

const LOGITS: [f32; 8] = [1.0, 3.0, 2.0, -1.0, 2.5, 0.0, 1.5, -9.0];

/// The probabilities at a temperature when only `kept` are left.
fn among(kept: &[usize], temperature: f32) -> Vec<f64> {
    let kept_logits: Vec<f32> = kept.iter().map(|token| LOGITS[*token]).collect();
    let mut all = vec![0.0; LOGITS.len()];
    for (token, probability) in kept.iter().zip(softmax(&kept_logits, temperature)) {
        all[*token] = probability;
    }
    all
}

#[test]
fn tokens_are_as_frequent_as_they_are_likely() {
    for temperature in [0.5, 1.0, 2.0] {
        check_distribution(plain(temperature), &LOGITS, &softmax(&LOGITS, temperature));
    }
}

#[test]
fn each_filter_leaves_what_it_says() {
    let one = plain(1.0);
    check_distribution(
        SamplerOptions { top_k: 3, ..one.clone() },
        &LOGITS,
        &among(&[1, 4, 2], 1.0),
    );
    // 0.41 + 0.25 = 0.66 is not yet 0.7.
    check_distribution(
        SamplerOptions { top_p: 0.7, ..one.clone() },
        &LOGITS,
        &among(&[1, 4, 2], 1.0),
    );
    // e^-1 = 0.37 of the best is above 0.3, e^-1.5 = 0.22 is not.
    check_distribution(
        SamplerOptions { min_p: 0.3, ..one.clone() },
        &LOGITS,
        &among(&[1, 4, 2], 1.0),
    );
    // Among the first three the probabilities are 0.51, 0.31, 0.19: two reach 0.8.
    check_distribution(
        SamplerOptions { top_k: 3, top_p: 0.8, temperature: 2.0, ..one.clone() },
        &LOGITS,
        &among(&[1, 4], 2.0),
    );
    // Filters see probabilities before temperature.
    check_distribution(
        SamplerOptions { min_p: 0.3, temperature: 9.0, ..one },
        &LOGITS,
        &among(&[1, 4, 2], 9.0),
    );
}

#[test]
fn a_large_vocabulary_is_filtered_alike() {
    // Flat at the top, so that top-p needs many tokens: 0.9 of 20,000 equal ones.
    let mut logits = vec![-30.0; 100_000];
    logits[50_000..70_000].fill(5.0);
    let mut sampler = sampler(SamplerOptions { top_p: 0.9, ..plain(1.0) });
    let picks: Vec<u32> = (0..200).map(|at| sampler.pick(&mut logits.clone(), at)).collect();
    assert!(picks.iter().all(|token| (50_000..68_001).contains(token)), "{picks:?}");
    assert!(picks.iter().any(|token| *token > 66_000), "{picks:?}");
}

#[test]
fn penalties_are_those_of_llama_cpp() {
    let options = SamplerOptions {
        repetition_penalty: 2.0,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        penalty_window: 3,
        ..SamplerOptions::greedy()
    };
    let mut sampler = sampler(options);
    // Out of the window again before it is asked.
    sampler.accept(0);
    for token in [1, 3, 1] {
        sampler.accept(token);
    }
    let mut logits = LOGITS;
    assert_eq!(sampler.pick(&mut logits, 0), 4);
    assert_eq!(logits, [1.0, 0.5, 2.0, -2.75, 2.5, 0.0, 1.5, -9.0]);
    sampler.reset();
    let mut logits = LOGITS;
    assert_eq!(sampler.pick(&mut logits, 0), 1);
    assert_eq!(logits, LOGITS);
}

#[test]
fn biases_force_and_forbid() {
    let forbid = BTreeMap::from([(1, f32::NEG_INFINITY), (4, -100.0), (99, 5.0)]);
    let options = SamplerOptions { logit_bias: forbid, ..SamplerOptions::greedy() };
    assert_eq!(sampler(options).pick(&mut LOGITS.clone(), 0), 2);
    let all = (0..8).map(|token| (token, f32::NEG_INFINITY)).collect();
    let options = SamplerOptions { logit_bias: all, ..plain(1.0) };
    assert_eq!(sampler(options).pick(&mut LOGITS.clone(), 0), 0);
}

#[test]
fn what_is_no_number_is_never_picked() {
    for options in [SamplerOptions::greedy(), plain(1.0), SamplerOptions::default()] {
        let mut sampler = sampler(options);
        for position in 0..50 {
            let mut logits = [f32::NAN, -f32::NAN, 1.0, f32::NEG_INFINITY, 1.5, f32::NAN];
            assert!(matches!(sampler.pick(&mut logits, position), 2 | 4));
            let mut logits = [0.0, f32::INFINITY, f32::NAN];
            assert_eq!(sampler.pick(&mut logits, position), 1);
        }
        assert_eq!(sampler.pick(&mut [f32::NAN; 4], 0), 0);
        assert_eq!(sampler.pick(&mut [f32::NEG_INFINITY; 4], 0), 0);
        assert_eq!(sampler.pick(&mut [], 0), 0);
    }
}

#[test]
fn options_are_refused_by_name() {
    let ok = SamplerOptions::default;
    for (field, options) in [
        ("temperature", SamplerOptions { temperature: -0.1, ..ok() }),
        ("temperature", SamplerOptions { temperature: f32::NAN, ..ok() }),
        ("top_p", SamplerOptions { top_p: 1.01, ..ok() }),
        ("min_p", SamplerOptions { min_p: -1.0, ..ok() }),
        ("repetition_penalty", SamplerOptions { repetition_penalty: 0.0, ..ok() }),
        ("presence_penalty", SamplerOptions { presence_penalty: f32::INFINITY, ..ok() }),
        ("frequency_penalty", SamplerOptions { frequency_penalty: -101.0, ..ok() }),
        ("penalty_window", SamplerOptions { penalty_window: usize::MAX, ..ok() }),
        (
            "logit_bias",
            SamplerOptions { logit_bias: (0..5_000).map(|t| (t, 1.0)).collect(), ..ok() },
        ),
        ("logit_bias", SamplerOptions { logit_bias: BTreeMap::from([(7, f32::NAN)]), ..ok() }),
    ] {
        let message = Sampler::new(options).unwrap_err().to_string();
        assert!(message.starts_with(field), "{message}");
    }
    let error = Sampler::new(SamplerOptions { top_p: 2.0, ..ok() }).unwrap_err();
    assert_eq!(error, SampleError::OutOfRange { field: "top_p", value: 2.0, min: 0.0, max: 1.0 });
    assert_eq!(error.to_string(), "top_p is 2; it must be from 0 to 1");
}

#[test]
fn picks_stay_what_they_are() {
    let logits: Vec<f32> = (0..1_000).map(|i| ((i * 7_919) % 1_000) as f32 / 125.0).collect();
    let mut sampler = sampler(SamplerOptions { seed: 42, ..SamplerOptions::default() });
    let picks: Vec<u32> = (0..8).map(|at| sampler.pick(&mut logits.clone(), at)).collect();
    assert_eq!(picks, PICKS);
}

/// What seed 42 has always picked: another answer breaks every conversation that is replayed.
const PICKS: [u32; 8] = [62, 198, 951, 667, 531, 531, 568, 173];

#[test]
fn log_probabilities_sum_to_one() {
    let found = log_probs(&LOGITS, 3, 8);
    let right = softmax(&LOGITS, 1.0);
    for (token, log_prob) in &found.top {
        assert!((f64::from(*log_prob).exp() - right[*token as usize]).abs() < 1e-6);
    }
    let tokens: Vec<u32> = found.top.iter().map(|(token, _)| *token).collect();
    assert_eq!(tokens, [1, 4, 2, 6, 0, 5, 3, 7]);
    assert!((f64::from(found.chosen) - right[3].ln()).abs() < 1e-5);
    let holes = log_probs(&[f32::NAN, 0.0], 0, 1);
    assert_eq!((holes.chosen, holes.top), (f32::NEG_INFINITY, vec![(1, 0.0)]));
    assert_eq!(log_probs(&[], 0, 5).top, []);
}

prop_compose! {
    fn any_options()(
        temperature in prop_oneof![Just(0.0f32), 0.1f32..3.0],
        top_k in 0usize..20,
        top_p in prop_oneof![Just(1.0f32), 0.0f32..1.0],
        min_p in prop_oneof![Just(0.0f32), 0.0f32..1.0],
        repetition_penalty in 0.5f32..2.0,
        presence_penalty in -2.0f32..2.0,
        frequency_penalty in -2.0f32..2.0,
        penalty_window in 0usize..10,
        seed in any::<u64>(),
    ) -> SamplerOptions {
        SamplerOptions {
            temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty,
            frequency_penalty, penalty_window, seed, logit_bias: BTreeMap::new(),
        }
    }
}

fn any_logits() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![8 => -20.0f32..20.0, 2 => Just(3.0f32), 1 => any::<f32>()];
    prop::collection::vec(logit, 1..300)
}

proptest! {
    #[test]
    fn a_pick_is_a_token(options in any_options(), logits in any_logits(), position: u64) {
        let token = sampler(options).pick(&mut logits.clone(), position);
        prop_assert!((token as usize) < logits.len());
    }

    #[test]
    fn greedy_and_one_candidate_are_the_likeliest(
        options in any_options(),
        logits in any_logits(),
        position: u64,
    ) {
        let cold = SamplerOptions { temperature: 0.0, ..options.clone() };
        let single = SamplerOptions { top_k: 1, ..options };
        let value = |x: f32| if x.is_nan() { f32::NEG_INFINITY } else { x.min(f32::MAX) };
        let mut best = 0;
        for (token, logit) in logits.iter().enumerate() {
            if value(*logit) > value(logits[best]) {
                best = token;
            }
        }
        prop_assert_eq!(sampler(cold).pick(&mut logits.clone(), position), best as u32);
        prop_assert_eq!(sampler(single).pick(&mut logits.clone(), position), best as u32);
    }

    #[test]
    fn the_same_history_gives_the_same_picks(
        options in any_options(),
        steps in prop::collection::vec(any_logits(), 1..12),
    ) {
        let run = |skip: usize, known: &[u32]| {
            let mut sampler = sampler(options.clone());
            known[..skip].iter().for_each(|token| sampler.accept(*token));
            let mut picks = known[..skip].to_vec();
            for (position, logits) in steps.iter().enumerate().skip(skip) {
                let token = sampler.pick(&mut logits.clone(), position as u64);
                sampler.accept(token);
                picks.push(token);
            }
            picks
        };
        let whole = run(0, &[]);
        // Resumed anywhere from the tokens alone, it goes on as it went.
        for skip in 0..=steps.len() {
            prop_assert_eq!(&run(skip, &whole), &whole);
        }
    }
}
