//! Whether a manifest's numbers can be those of a model, before anything is reserved on its word.

use compute::parts::{CHUNK_BYTES_MAX, FilePart};
use wire::{Manifest, ManifestId};

use super::error::StoreError;
use super::lead::Lead;
use super::survey::{part_number, told};

/// The largest model, bytes: far beyond what homes can run together, and what file systems can hold
/// as one file.
const MODEL_MAX: u64 = 4 << 40;
/// The largest head, bytes. The largest vocabularies take some 20 MiB.
const HEAD_MAX: u64 = 256 << 20;
/// Tensors of a half-block, or headers of files and RoPE's factors, at most. Each may have a last
/// chunk that is not full.
const RANGES_MAX: u64 = 80;

/// Refuses a manifest that no model can have.
pub fn check(id: ManifestId, manifest: &Manifest) -> Result<(), StoreError> {
    let implausible = |field, found: u64, bound: u64| match found <= bound {
        true => Ok(()),
        false => Err(StoreError::Implausible { id, field, found, bound }),
    };
    let own = compute::numeric::CLASS;
    if manifest.class != own {
        return Err(StoreError::OtherClass { id, told: manifest.class.clone(), own });
    }
    let whole = manifest.files.iter().fold(0u64, |sum, file| sum.saturating_add(file.bytes));
    implausible("size", whole, MODEL_MAX)?;
    let mut sum = 0u64;
    for part in parts(manifest) {
        let Some(told) = told(manifest, part) else { continue };
        let full = told.bytes / CHUNK_BYTES_MAX;
        implausible("count of chunks", u64::from(told.chunks), full + RANGES_MAX)?;
        sum = sum.saturating_add(told.bytes);
    }
    // Each byte belongs to one part.
    implausible("sum of parts", sum, whole)?;
    implausible("size beside its parts", whole - sum, 0)?;
    let head = manifest.header.as_ref().map_or(0, |head| head.bytes);
    implausible("head", head, HEAD_MAX)?;
    let headers =
        manifest.files.iter().fold(0u64, |sum, file| sum.saturating_add(file.header_bytes));
    implausible("sum of headers", headers, head)?;
    match Lead::new(manifest) {
        Some(_) => Ok(()),
        None => Err(StoreError::Untrue { id }),
    }
}

/// All parts of a model, in the order of their numbers.
pub fn parts(manifest: &Manifest) -> impl Iterator<Item = FilePart> + use<> {
    let halves = (0..manifest.halves.len()).map(FilePart::Half);
    [FilePart::Head, FilePart::Ends].into_iter().chain(halves)
}

/// How many parts a model has.
pub fn parts_count(manifest: &Manifest) -> usize {
    part_number(FilePart::Half(manifest.halves.len())) as usize
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::shell::weights::manifest;

    #[test]
    fn every_honest_manifest_is_plausible_and_no_swollen_one_is() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/gguf");
        for name in ["gemma3-Q4_K_M", "llama3-ropefreqs-Q8_0", "qwen2-Q8_0"] {
            let own = manifest(&folder.join(format!("{name}.gguf"))).unwrap();
            check(own.id(), &own).unwrap();
            let lies: [fn(&mut Manifest); 8] = [
                |m| m.halves[1].chunks = u32::MAX,
                |m| m.halves[1].bytes += 1,
                |m| m.halves[1].bytes -= 1,
                |m| m.files[0].bytes = 1 << 44,
                |m| m.files[0].header_bytes = 0,
                |m| m.files[0].header_bytes *= 2,
                |m| m.class = "int8x-v0".into(),
                |m| {
                    m.header.as_mut().unwrap().bytes += 1 << 30;
                    m.files[0].bytes += 1 << 30;
                },
            ];
            for (number, lie) in lies.into_iter().enumerate() {
                let mut lied = own.clone();
                lie(&mut lied);
                assert!(check(lied.id(), &lied).is_err(), "{name}, {number}");
            }
        }
    }
}
