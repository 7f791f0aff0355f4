//! What a GPU computes equals what the CPU does, bit for bit: rows and keys and values.
//!
//! Any device will do, a software one such as Mesa's lavapipe too. Without one these tests say so and
//! end, unless `CADENCIA_REQUIRE_WGPU` is 1.

use std::path::Path;
use std::sync::Arc;

use cadencia_tests::tiny_models;
use compute::engine::{KernelChoice, LoadOptions, Model, PAGE};
use compute::gpu::{Gpu, Layers, Span};
use compute::numeric::block::{BlockVec, GROUP, check};

/// The device; `None` where there is none and none is asked for.
fn device() -> Option<Gpu> {
    match Gpu::open() {
        Ok(gpu) => {
            eprintln!("on {}", gpu.name());
            Some(gpu)
        }
        Err(error) => {
            let required = std::env::var("CADENCIA_REQUIRE_WGPU").is_ok_and(|v| v == "1");
            assert!(!required, "{error}");
            eprintln!("skipped: {error}");
            None
        }
    }
}

fn load(path: &Path) -> Arc<Model> {
    let options = LoadOptions { threads: 2, kernels: KernelChoice::Auto, part: None };
    Model::load(path, &options, &mut |_, _| {}).unwrap()
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// What rows are made of.
#[derive(Debug, Clone, Copy)]
enum Taste {
    /// Numbers of one size, as in a real residual.
    Plain,
    /// Blocks of all sizes, zeros among them, and the largest mantissas.
    Hostile,
}

/// Valid rows of `width` numbers.
fn rows(dice: &mut Dice, count: usize, width: usize, taste: Taste) -> BlockVec {
    let mut all = BlockVec::zeros(count * width);
    for g in 0..count * width / GROUP {
        let unit = match taste {
            Taste::Plain => (dice.next() % 4) as i32 - 16,
            Taste::Hostile => (dice.next() % 190) as i32 - 95,
        };
        let kind = dice.next() % 8;
        let z = std::array::from_fn(|_| match (taste, kind) {
            (Taste::Hostile, 0) => 0,
            (Taste::Hostile, 1) => [32767, -32767][(dice.next() % 2) as usize],
            (Taste::Hostile, 2) => (dice.next() % 3) as i32 - 1,
            _ => (dice.next() % 65_535) as i32 - 32_767,
        });
        all.view_mut().encode(g, &z, unit);
    }
    check(all.view()).unwrap();
    all
}

/// Feeds the same rows in pieces to the CPU and to the device, and compares after each.
fn check_model(gpu: &Gpu, path: &Path, pieces: &[usize], taste: Taste) {
    let model = load(path);
    let (width, halves) = (model.summary().width, model.halves());
    let all: usize = pieces.iter().sum();
    let pages = all.div_ceil(PAGE);
    let layers = Layers::new(gpu, &model, 0..halves, pages + 3, 64).unwrap();
    let mut stage = model.stage(0..halves, all);
    // In no order.
    let places: Vec<u32> =
        (0..pages as u32).map(|page| (page * 2 + 1) % (pages as u32 + 3)).collect();
    let mut dice = Dice(width as u64);
    let mut position = 0;
    for &tokens in pieces {
        let mut expected = rows(&mut dice, tokens, width, taste);
        let mut found = expected.clone();
        stage.feed(&mut expected).unwrap();
        layers.pass(0..halves, &mut found, &[Span { position, tokens, pages: &places }]);
        position += tokens;
        let differs = expected.m.iter().zip(&found.m).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{path:?} {taste:?}, {tokens} tokens to {position}: mantissas");
        assert_eq!(expected.e, found.e, "{path:?} {taste:?}: exponents");
    }
    let heads = stage.pages()[0].heads();
    for half in (0..halves).step_by(2) {
        for (page, place) in stage.pages().iter().zip(&places) {
            let found = layers.page(half, *place as usize);
            for (h, part) in found.chunks_exact(found.len() / heads).enumerate() {
                assert!(page.part(half / 2, h) == part, "{path:?}: keys or values of half {half}");
            }
        }
    }
}

#[test]
fn all_weight_types_and_architectures_give_the_bits_of_the_cpu() {
    let Some(gpu) = device() else { return };
    for path in tiny_models() {
        check_model(&gpu, &path, &[1, 1, 5, 33, 1, 16], Taste::Plain);
    }
}

#[test]
fn hostile_rows_give_the_bits_of_the_cpu() {
    let Some(gpu) = device() else { return };
    // Compiling the shaders takes longer than running them; each architecture is among these.
    for path in tiny_models().into_iter().step_by(3) {
        check_model(&gpu, &path, &[1, 3, 40, 1], Taste::Hostile);
    }
}
