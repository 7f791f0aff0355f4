//! Every weight type decodes to the numbers that the `gguf` Python package gives for the same
//! blocks: `tests/fixtures/dequant/TYPE.blocks` holds random blocks with an ordinary, a negative,
//! a subnormal and a large scale, `TYPE.f32` their values.

use std::path::Path;

use compute::gguf::TensorType;
use oracle::decode::decode;

#[test]
fn every_type_decodes_to_the_last_bit() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/dequant");
    for kind in TensorType::ALL {
        let read = |ending| {
            let path = folder.join(format!("{kind:?}.{ending}"));
            std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let (blocks, values) = (read("blocks"), read("f32"));
        let (values, _) = values.as_chunks::<4>();
        let mut decoded = vec![0.0; blocks.len() / kind.block_bytes() * kind.block_len()];
        decode(kind, &blocks, &mut decoded);
        assert_eq!(decoded.len(), values.len());
        for (i, (found, value)) in decoded.iter().zip(values).enumerate() {
            let wanted = f32::from_le_bytes(*value);
            assert_eq!(found.to_bits(), wanted.to_bits(), "{kind:?}[{i}]: {found}, not {wanted}");
        }
    }
}
