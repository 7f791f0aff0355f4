//! A model's weights in memory: every matrix packed once, the file's pages given back behind.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::arch::{Arch, LayerTensor, ModelTensor};
use crate::engine::LoadError;
use crate::gguf::{Gguf, TensorInfo};
use crate::matrix::{Arena, Exponents, Layout, Matrix, TILE, pack_tile};
use crate::numeric::attention::score_constant;
use crate::numeric::block::{BlockVec, BlocksMut};
use crate::numeric::embedding::embed;
use crate::numeric::norm::Epsilon;
use crate::numeric::scalar::{Positive, reciprocal};
use crate::numeric::weights::{floats, row};

/// Rows that one thread packs at a time.
const ROWS_PER_TASK: usize = 32 * TILE;

/// One layer's weights.
#[derive(Debug)]
pub struct Layer {
    pub attention_norm: BlockVec,
    pub query: Matrix,
    pub key: Matrix,
    pub value: Matrix,
    /// Biases of query, key and value.
    pub biases: Option<[BlockVec; 3]>,
    /// Norms of query and key heads.
    pub head_norms: Option<[BlockVec; 2]>,
    pub attention_output: Matrix,
    /// Norms after attention and after the feed-forward half.
    pub post_norms: Option<[BlockVec; 2]>,
    pub feed_forward_norm: BlockVec,
    pub gate: Matrix,
    pub up: Matrix,
    pub down: Matrix,
    /// Which of [`Weights::increments`] turns its heads.
    pub rotation: usize,
    /// Positions that a token sees.
    pub window: Option<usize>,
}

/// A whole model's weights.
#[derive(Debug)]
pub struct Weights {
    pub arch: Arch,
    pub layers: Vec<Layer>,
    pub output_norm: BlockVec,
    pub output: Matrix,
    /// The file, where the embedding has a matrix of its own: rows are read from it as asked.
    embedding: Option<(Gguf, TensorInfo)>,
    embedding_scale: Option<(i16, i32)>,
    /// Phase increments; layers with the same share an entry.
    pub increments: Vec<Vec<u32>>,
    /// Constants of norms over the residual and over a head.
    pub width_epsilon: Epsilon,
    pub head_epsilon: Epsilon,
    /// See [`score_constant`].
    pub score: (i16, i32),
    /// Bytes of packed matrices.
    pub bytes: u64,
}

/// One matrix to be packed and where.
struct Plan {
    info: TensorInfo,
    place: Range<usize>,
}

impl Weights {
    /// Packs the model in `file`; `progress` hears (bytes done, bytes in all).
    pub fn load(
        file: Gguf,
        threads: NonZeroUsize,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        let arch = Arch::from_gguf(&file)?;
        let (plans, size) = plan(&arch, &file);
        let mut arena = Arena::new(size).map_err(|source| LoadError::Memory { size, source })?;
        let found = pack_all(&file, &plans, &mut arena, threads, progress)?;
        file.check_unchanged()?;
        let arena = Arc::new(arena);
        let mut matrices = plans.into_iter().zip(found).map(|(plan, found)| {
            let shape = (plan.info.shape[1], plan.info.shape[0]);
            Matrix::new(plan.info.kind, shape, arena.clone(), plan.place, found)
        });
        let mut next = || matrices.next().expect("one matrix was planned for each use");
        let output = next();
        let mut increments: Vec<Vec<u32>> = Vec::new();
        let mut layers = Vec::new();
        for l in 0..arch.layers.len() {
            let own = arch.phase_increments(l);
            let rotation = increments.iter().position(|i| *i == own).unwrap_or_else(|| {
                increments.push(own);
                increments.len() - 1
            });
            layers.push(layer(&arch, &file, l, rotation, &mut next)?);
        }
        let epsilon = |n| Epsilon {
            per_count: reciprocal(n),
            epsilon: Positive::from_f64(arch.norm_eps.into()),
        };
        Ok(Self {
            layers,
            output,
            increments,
            output_norm: vector(&file, ModelTensor::OutputNorm.name())?,
            embedding_scale: arch.embedding_scale.map(|s| Positive::from_f64(s.into()).short()),
            width_epsilon: epsilon(arch.width),
            head_epsilon: epsilon(arch.head_dim),
            score: score_constant(arch.attention_scale.into(), arch.head_dim),
            bytes: size as u64,
            embedding: if arch.tied_embeddings {
                None
            } else {
                let info = file.tensor(ModelTensor::Embedding.name()).cloned();
                info.map(|info| (file, info))
            },
            arch,
        })
    }

    /// The residual row that token `token` begins with.
    pub fn embed(&self, token: u32, out: &mut BlocksMut) {
        let token = token as usize;
        let unpacked = match &self.embedding {
            None => self.output.row(token),
            Some((file, info)) => {
                let size = info.len / info.shape[1];
                let bytes = &file.bytes(info)[token * size..][..size];
                // These rows are read only when asked for. One whose scale is not finite counts as
                // zeros, on every machine alike.
                row(info.kind, bytes).unwrap_or_default()
            }
        };
        out.m.fill(0);
        out.e.fill(crate::numeric::block::ZERO);
        embed(&unpacked, out);
        if let Some(scale) = self.embedding_scale {
            let copy = BlockVec { m: out.m.to_vec(), e: out.e.to_vec() };
            crate::numeric::block::scale(copy.view(), scale, out);
        }
    }
}

/// Where each matrix goes, in the order in which `load` takes them.
fn plan(arch: &Arch, file: &Gguf) -> (Vec<Plan>, usize) {
    let mut names = vec![arch.output_tensor().name().to_owned()];
    for l in 0..arch.layers.len() {
        names.extend(MATRICES.map(|m| m.name(l)));
    }
    let mut at = 0;
    let plans = names.iter().map(|name| {
        let info = file.tensor(name).expect("the description checked that it is there").clone();
        let size = Matrix::bytes_needed(info.kind, info.shape[1], info.shape[0]);
        let place = at..at + size;
        at = place.end.next_multiple_of(64);
        Plan { info, place }
    });
    let plans = plans.collect();
    (plans, at)
}

/// A layer's matrices in the order in which they lie in memory.
const MATRICES: [LayerTensor; 7] = [
    LayerTensor::Query,
    LayerTensor::Key,
    LayerTensor::Value,
    LayerTensor::AttentionOutput,
    LayerTensor::Gate,
    LayerTensor::Up,
    LayerTensor::Down,
];

fn layer(
    arch: &Arch,
    file: &Gguf,
    l: usize,
    rotation: usize,
    next: &mut dyn FnMut() -> Matrix,
) -> Result<Layer, LoadError> {
    let vector = |t: LayerTensor| vector(file, &t.name(l));
    use LayerTensor::*;
    Ok(Layer {
        attention_norm: vector(AttentionNorm)?,
        query: next(),
        key: next(),
        value: next(),
        biases: if arch.qkv_bias {
            Some([vector(QueryBias)?, vector(KeyBias)?, vector(ValueBias)?])
        } else {
            None
        },
        head_norms: if arch.qk_norm { Some([vector(QueryNorm)?, vector(KeyNorm)?]) } else { None },
        attention_output: next(),
        post_norms: if arch.post_norms {
            Some([vector(PostAttentionNorm)?, vector(PostFeedForwardNorm)?])
        } else {
            None
        },
        feed_forward_norm: vector(FeedForwardNorm)?,
        gate: next(),
        up: next(),
        down: next(),
        rotation,
        window: arch.layers[l].window,
    })
}

/// A vector of floats as block floats.
fn vector(file: &Gguf, name: &str) -> Result<BlockVec, LoadError> {
    let info = file.tensor(name).expect("the description checked that it is there");
    let floats = floats(info.kind, file.bytes(info));
    BlockVec::from_floats(&floats).map_err(|at| LoadError::NotFinite {
        tensor: name.to_owned(),
        row: 0,
        block: at,
    })
}

/// A piece of a matrix that one thread packs.
struct Task<'a> {
    plan: usize,
    first_row: usize,
    to: &'a mut [u8],
}

/// Packs every matrix, threads taking pieces in turn; returns what each matrix's rows have for
/// exponents.
fn pack_all(
    file: &Gguf,
    plans: &[Plan],
    arena: &mut Arena,
    threads: NonZeroUsize,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<Exponents>, LoadError> {
    let total: u64 = plans.iter().map(|p| p.info.len as u64).sum();
    let tasks = Mutex::new(tasks(plans, arena.bytes_mut()).into_iter());
    let done = AtomicU64::new(0);
    let pieces = Mutex::new(Vec::new());
    let failure = Mutex::new(None);
    let work = |report: &mut dyn FnMut(u64)| {
        loop {
            let task = tasks.lock().expect("no thread panics here").next();
            let Some(task) = task else { return };
            let (plan, first_row) = (task.plan, task.first_row);
            match pack(file, &plans[plan].info, task) {
                Ok((found, bytes)) => {
                    pieces.lock().expect("no thread panics here").push((plan, first_row, found));
                    report(done.fetch_add(bytes, Ordering::Relaxed) + bytes);
                }
                Err(error) => {
                    failure.lock().expect("no thread panics here").get_or_insert(error);
                    return;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.get() {
            scope.spawn(|| work(&mut |_| {}));
        }
        work(&mut |bytes| progress(bytes, total));
    });
    if let Some(error) = failure.into_inner().expect("no thread panics here") {
        return Err(error);
    }
    progress(total, total);
    let mut pieces = pieces.into_inner().expect("no thread panics here");
    pieces.sort_by_key(|&(plan, row, _)| (plan, row));
    let mut found: Vec<Exponents> = plans.iter().map(|_| Exponents::default()).collect();
    for (plan, _, piece) in pieces {
        found[plan].scales.extend(piece.scales);
        found[plan].mins.extend(piece.mins);
    }
    Ok(found)
}

fn tasks<'a>(plans: &[Plan], mut arena: &'a mut [u8]) -> Vec<Task<'a>> {
    let mut tasks = Vec::new();
    let mut at = 0;
    for (index, plan) in plans.iter().enumerate() {
        let (_, rest) = std::mem::take(&mut arena).split_at_mut(plan.place.start - at);
        let (mut own, rest) = rest.split_at_mut(plan.place.len());
        (arena, at) = (rest, plan.place.end);
        let layout = Layout::of(plan.info.kind);
        let tile = plan.info.shape[0].div_ceil(layout.columns) * layout.bytes;
        let mut first_row = 0;
        while !own.is_empty() {
            let size = own.len().min(ROWS_PER_TASK / TILE * tile);
            let (to, rest) = own.split_at_mut(size);
            tasks.push(Task { plan: index, first_row, to });
            (own, first_row) = (rest, first_row + ROWS_PER_TASK);
        }
    }
    tasks
}

/// Packs one piece and gives the file's pages back.
fn pack(file: &Gguf, info: &TensorInfo, task: Task) -> Result<(Exponents, u64), LoadError> {
    let layout = Layout::of(info.kind);
    let (cols, rows) = (info.shape[0], info.shape[1]);
    let size = info.len / rows;
    let tile = cols.div_ceil(layout.columns) * layout.bytes;
    let bytes = file.bytes(info);
    let last = rows.min(task.first_row + ROWS_PER_TASK);
    let mut found = Exponents::default();
    for (i, to) in task.to.chunks_exact_mut(tile).enumerate() {
        let first = task.first_row + i * TILE;
        let rows: Vec<&[u8]> =
            (first..last.min(first + TILE)).map(|r| &bytes[r * size..][..size]).collect();
        pack_tile(&layout, &rows, to, &mut found).map_err(|fault| LoadError::NotFinite {
            tensor: info.name.clone(),
            row: first,
            block: fault.block,
        })?;
    }
    let read = task.first_row * size..last * size;
    let piece = TensorInfo { offset: info.offset + read.start, len: read.len(), ..info.clone() };
    file.release(&piece);
    Ok((found, read.len() as u64))
}
