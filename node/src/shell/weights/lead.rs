//! Where the headers' chunks lie, before there is a header that would say it.
//!
//! The head of a model is the headers of its files and, in some models, RoPE's factors, which lie
//! among the tensors of one of the files. Their chunks are numbered in the files' order. With one
//! file the header's come first. With several it is not known after which file's header the factors'
//! chunks come, and so the next header is looked for where it would be without them.
//!
//! **Invariant:** a wrong guess does no harm: once all headers are here, what they say is compared
//! with the manifest.

use compute::parts::{CHUNK_BYTES_MAX, Chunk};
use wire::Manifest;

/// What every file of a model begins with.
const MAGIC: &[u8] = b"GGUF";

/// What is known of where chunks of the head lie.
#[derive(Debug, Clone)]
pub struct Lead {
    /// Bytes before each file's tensors.
    headers: Vec<u64>,
    /// Chunks of the head that belong to no header.
    others: usize,
    /// Files, from the first, whose headers' chunks are known by number.
    settled: usize,
    /// The file after whose header the others come, once known.
    after: Option<usize>,
}

/// Where one chunk lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spot {
    /// Here.
    At(Chunk),
    /// It is the beginning of the next file's header, or shows that it is not.
    Probe,
    /// Nobody can say yet.
    Later,
}

impl Lead {
    /// Of a model; `None` where its manifest contradicts itself.
    pub fn new(manifest: &Manifest) -> Option<Self> {
        let headers: Vec<u64> = manifest.files.iter().map(|file| file.header_bytes).collect();
        let own: u64 = headers.iter().map(|bytes| bytes.div_ceil(CHUNK_BYTES_MAX)).sum();
        let told = manifest.header.as_ref()?;
        let others = u64::from(told.chunks).checked_sub(own)?;
        let rest = told.bytes.checked_sub(headers.iter().sum())?;
        if headers.contains(&0) || (others == 0) != (rest == 0) {
            return None;
        }
        let settled = if others == 0 { headers.len() } else { 1 };
        Some(Self { headers, others: others as usize, settled, after: None })
    }

    /// Where chunk `number` lies.
    pub fn spot(&self, number: u32) -> Spot {
        let number = number as usize;
        let known = self.known().find(|(own, _)| *own == number);
        if let Some((_, chunk)) = known {
            return Spot::At(chunk);
        }
        let probe = self.probe().is_some_and(|(probe, _)| probe as usize == number);
        if probe { Spot::Probe } else { Spot::Later }
    }

    /// The chunks whose places are known, by number.
    pub fn known(&self) -> impl Iterator<Item = (usize, Chunk)> + '_ {
        (0..self.settled).flat_map(|file| {
            let (first, bytes) = (self.first(file), self.headers[file]);
            (0..bytes.div_ceil(CHUNK_BYTES_MAX)).map(move |i| {
                let start = i * CHUNK_BYTES_MAX;
                let range = start..bytes.min(start + CHUNK_BYTES_MAX);
                (first + i as usize, Chunk { file, range })
            })
        })
    }

    /// The chunks that may be asked for: those known, and the one that would tell more.
    pub fn askable(&self) -> impl Iterator<Item = u32> + '_ {
        let probe = self.probe().map(|(number, _)| number);
        self.known().map(|(number, _)| number as u32).chain(probe)
    }

    /// The chunk that would tell more, and where it lies if it is the beginning of a header.
    pub fn probe(&self) -> Option<(u32, Chunk)> {
        let header = *self.headers.get(self.settled)?;
        let range = 0..header.min(CHUNK_BYTES_MAX);
        Some((self.first(self.settled) as u32, Chunk { file: self.settled, range }))
    }

    /// Whether all headers' chunks are known.
    pub fn is_settled(&self) -> bool {
        self.settled == self.headers.len()
    }

    /// The chunk that was the [`Spot::Probe`] is `bytes`.
    pub fn probed(&mut self, bytes: &[u8]) {
        let Some(&header) = self.headers.get(self.settled) else { return };
        let long = header.min(CHUNK_BYTES_MAX) == bytes.len() as u64;
        if long && bytes.starts_with(MAGIC) {
            self.settled += 1;
        } else {
            self.after = Some(self.settled - 1);
            self.settled = self.headers.len();
        }
    }

    /// The number of the first chunk of `file`'s header.
    fn first(&self, file: usize) -> usize {
        let before = self.headers[..file].iter().map(|bytes| bytes.div_ceil(CHUNK_BYTES_MAX));
        let others = if self.after.is_some_and(|after| after < file) { self.others } else { 0 };
        before.sum::<u64>() as usize + others
    }
}

#[cfg(test)]
mod tests {
    use wire::{File, Part};

    use super::*;

    fn lead(headers: &[u64], chunks: u32, bytes: u64) -> Option<Lead> {
        let file = |&header_bytes| File { bytes: 1 << 30, header_bytes };
        let header = Part { root: vec![0; 32], chunks, bytes, work: None };
        let files = headers.iter().map(file).collect();
        Lead::new(&Manifest { files, header: Some(header), ..Default::default() })
    }

    #[test]
    fn one_files_header_comes_first() {
        let lead = lead(&[(1 << 20) + 5], 3, (1 << 20) + 5 + 77).unwrap();
        assert!(lead.is_settled());
        assert_eq!(lead.askable().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(lead.spot(1), Spot::At(Chunk { file: 0, range: 1 << 20..(1 << 20) + 5 }));
        assert_eq!(lead.spot(2), Spot::Later);
    }

    #[test]
    fn headers_of_several_files_are_found_wherever_the_factors_lie() {
        for after in 0..3 {
            let mut lead = lead(&[100, 200, 300], 5, 600 + 50).unwrap();
            // The chunks in the order in which the files have them.
            let mut chunks: Vec<Vec<u8>> = [100, 200, 300].map(header).into();
            for _ in 0..2 {
                chunks.insert(after + 1, vec![9; 25]);
            }
            while !lead.is_settled() {
                let probe = lead.askable().last().unwrap();
                assert_eq!(lead.spot(probe), Spot::Probe);
                lead.probed(&chunks[probe as usize]);
            }
            let known: Vec<_> = lead.known().collect();
            assert_eq!(known.len(), 3);
            for (file, (number, chunk)) in known.into_iter().enumerate() {
                assert_eq!(chunk.file, file);
                assert_eq!(chunk.range, 0..chunks[number].len() as u64);
                assert!(chunks[number].starts_with(MAGIC));
            }
        }
    }

    fn header(bytes: usize) -> Vec<u8> {
        let mut header = MAGIC.to_vec();
        header.resize(bytes, 0);
        header
    }

    #[test]
    fn heads_that_contradict_themselves_are_none() {
        assert!(lead(&[100], 0, 100).is_none(), "fewer chunks than the header has");
        assert!(lead(&[100], 1, 99).is_none(), "fewer bytes than the header has");
        assert!(lead(&[100], 1, 101).is_none(), "bytes in no chunk");
        assert!(lead(&[100], 2, 100).is_none(), "chunks without bytes");
        assert!(lead(&[0], 1, 5).is_none(), "a file without a header");
    }
}
