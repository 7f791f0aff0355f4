//! What a blueprint says of a part is what loading it takes.

use std::path::Path;

use compute::blueprint::Blueprint;
use compute::engine::{Ends, Part};

use crate::given::{files, try_load};

fn check(path: &Path, blueprint: &Blueprint, part: Part) {
    let model = try_load(path, 1 + part.halves.start % 2, Some(part.clone())).unwrap();
    let summary = model.summary();
    assert_eq!(summary.part, part);
    let found = (summary.weight_bytes, summary.kv_bytes_per_token);
    let said = (blueprint.weight_bytes(&part), blueprint.kv_bytes_per_token(&part.halves));
    assert_eq!(found, said, "{path:?} {part:?}");
    assert_eq!(summary.bytes_per_token, summary.weight_bytes);
    assert_eq!(summary.layers, blueprint.layers);
    let page = model.pages_of(&part.halves, 1).shape().page_bytes();
    assert_eq!(page as u64, blueprint.page_bytes(&part.halves), "{path:?} {part:?}");
}

#[test]
fn a_blueprint_agrees_with_what_every_part_takes() {
    for path in files() {
        let blueprint = Blueprint::read(&path).unwrap();
        assert_eq!(blueprint.halves, blueprint.half_bytes.len());
        for start in 0..=blueprint.halves {
            for end in start..=blueprint.halves {
                let ends = [Ends::Here, Ends::Elsewhere][(start + end) % 2];
                check(&path, &blueprint, Part { halves: start..end, ends });
            }
        }
        let whole = try_load(&path, 1, None).unwrap();
        assert_eq!(whole.summary().part, blueprint.whole());
        assert_eq!(whole.summary().weight_bytes, blueprint.weight_bytes(&blueprint.whole()));
        let all = blueprint.half_bytes.iter().sum::<u64>() + blueprint.ends_bytes;
        assert_eq!(all, whole.summary().weight_bytes, "{path:?}");
        let attention = blueprint.halves as u64 / 2 * blueprint.kv_bytes_per_position;
        assert_eq!(attention, whole.summary().kv_bytes_per_token);
    }
}

#[test]
fn multiply_adds_are_the_numbers_in_the_matrices() {
    for path in files() {
        let blueprint = Blueprint::read(&path).unwrap();
        let file = compute::gguf::Gguf::open(&path).unwrap();
        let of = |wanted: &dyn Fn(&str) -> bool| -> u64 {
            let matrices = file.tensors().filter(|t| t.shape.len() == 2 && wanted(&t.name));
            matrices.map(|t| t.shape.iter().product::<usize>() as u64).sum()
        };
        for half in 0..blueprint.halves {
            let prefix = format!("blk.{}.{}", half / 2, ["attn_", "ffn_"][half % 2]);
            assert_eq!(blueprint.half_macs[half], of(&|name| name.starts_with(&prefix)));
        }
        let ends = (blueprint.width * blueprint.vocabulary) as u64;
        assert_eq!(blueprint.ends_macs, ends);
        let layers = of(&|name| name.starts_with("blk."));
        assert_eq!(blueprint.macs(&blueprint.whole()), layers + ends);
    }
}
