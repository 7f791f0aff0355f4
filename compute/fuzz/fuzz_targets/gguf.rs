//! Any bytes at all: the reader gives a model or an error, and a model can be read to its end.

#![no_main]

use compute::gguf::Gguf;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let model = match Gguf::from_bytes(bytes.to_vec()) {
        Ok(model) => model,
        Err(error) => {
            assert!(!error.to_string().chars().any(char::is_control));
            return;
        }
    };
    assert_eq!(model.file_bytes(), bytes.len() as u64);
    let mut places = Vec::new();
    for tensor in model.tensors() {
        let elements: usize = tensor.shape.iter().product();
        assert_eq!(tensor.len, elements / tensor.kind.block_len() * tensor.kind.block_bytes());
        assert_eq!(model.bytes(tensor).len(), tensor.len);
        model.release(tensor);
        places.push((tensor.offset, tensor.len));
    }
    places.sort_unstable();
    assert!(places.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
});
