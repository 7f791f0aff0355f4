//! A model's weights in memory, or a part's: every matrix packed once, the file's pages given back
//! behind.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::arch::{Arch, LayerTensor, ModelTensor};
use crate::engine::{Ends, LoadError, Part};
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

/// An attention half's weights.
#[derive(Debug)]
pub struct Attention {
    pub norm: BlockVec,
    pub query: Matrix,
    pub key: Matrix,
    pub value: Matrix,
    /// Biases of query, key and value.
    pub biases: Option<[BlockVec; 3]>,
    /// Norms of query and key heads.
    pub head_norms: Option<[BlockVec; 2]>,
    pub output: Matrix,
    pub post_norm: Option<BlockVec>,
    /// Which of [`Weights::increments`] turns its heads.
    pub rotation: usize,
    /// Positions that a token sees.
    pub window: Option<usize>,
}

/// A feed-forward half's weights.
#[derive(Debug)]
pub struct FeedForward {
    pub norm: BlockVec,
    pub gate: Matrix,
    pub up: Matrix,
    pub down: Matrix,
    pub post_norm: Option<BlockVec>,
}

/// One half-block's weights. Boxed, since the two differ much in size.
#[derive(Debug)]
pub enum HalfWeights {
    Attention(Box<Attention>),
    FeedForward(Box<FeedForward>),
}

/// What stands before the first half-block and after the last.
#[derive(Debug)]
pub struct EndWeights {
    pub norm: BlockVec,
    pub output: Matrix,
    /// The file, where the embedding has a matrix of its own: rows are read from it as asked.
    embedding: Option<(Gguf, TensorInfo)>,
    scale: Option<(i16, i32)>,
}

/// The weights of a model, or of a part of one.
#[derive(Debug)]
pub struct Weights {
    pub arch: Arch,
    /// Which part.
    pub part: Part,
    /// Those of `part.halves`, in order.
    halves: Vec<HalfWeights>,
    /// `None` where they are elsewhere.
    pub ends: Option<EndWeights>,
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
    /// Packs `part` of the model in `file`, or all of it; `progress` hears (bytes done, bytes in
    /// all). Bytes of other tensors are not looked at.
    pub fn load(
        file: Gguf,
        part: Option<&Part>,
        threads: NonZeroUsize,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        let arch = Arch::from_gguf(&file)?;
        let halves = 2 * arch.layers.len();
        let part = part.cloned().unwrap_or_else(|| Part::whole(halves));
        let Range { start, end } = part.halves;
        if start > end || end > halves {
            return Err(LoadError::Part { start, end, halves });
        }
        let (plans, size) = plan(&arch, &file, &part);
        let mut arena = Arena::new(size).map_err(|source| LoadError::Memory { size, source })?;
        let found = pack_all(&file, &plans, &mut arena, threads, progress)?;
        file.check_unchanged()?;
        let arena = Arc::new(arena);
        let mut matrices = plans.into_iter().zip(found).map(|(plan, found)| {
            let shape = (plan.info.shape[1], plan.info.shape[0]);
            Matrix::new(plan.info.kind, shape, arena.clone(), plan.place, found)
        });
        let mut next = || matrices.next().expect("one matrix was planned for each use");
        let output = (part.ends == Ends::Here).then(&mut next);
        let mut increments: Vec<Vec<u32>> = Vec::new();
        let mut own = Vec::new();
        for half in part.halves.clone() {
            own.push(if half % 2 == 0 {
                let turns = arch.phase_increments(half / 2);
                let rotation = increments.iter().position(|i| *i == turns).unwrap_or_else(|| {
                    increments.push(turns);
                    increments.len() - 1
                });
                let weights = attention(&arch, &file, half / 2, rotation, &mut next)?;
                HalfWeights::Attention(Box::new(weights))
            } else {
                let weights = feed_forward(&arch, &file, half / 2, &mut next)?;
                HalfWeights::FeedForward(Box::new(weights))
            });
        }
        let epsilon = |n| Epsilon {
            per_count: reciprocal(n),
            epsilon: Positive::from_f64(arch.norm_eps.into()),
        };
        Ok(Self {
            part,
            halves: own,
            increments,
            width_epsilon: epsilon(arch.width),
            head_epsilon: epsilon(arch.head_dim),
            score: score_constant(arch.attention_scale.into(), arch.head_dim),
            bytes: size as u64,
            ends: output.map(|output| EndWeights::load(&arch, file, output)).transpose()?,
            arch,
        })
    }

    /// The weights of half-block `half`, one of the part's.
    pub fn half(&self, half: usize) -> &HalfWeights {
        &self.halves[half - self.part.halves.start]
    }
}

impl EndWeights {
    fn load(arch: &Arch, file: Gguf, output: Matrix) -> Result<Self, LoadError> {
        Ok(Self {
            norm: vector(&file, ModelTensor::OutputNorm.name())?,
            output,
            scale: arch.embedding_scale.map(|s| Positive::from_f64(s.into()).short()),
            embedding: if arch.tied_embeddings {
                None
            } else {
                let info = file.tensor(ModelTensor::Embedding.name()).cloned();
                info.map(|info| (file, info))
            },
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
        if let Some(scale) = self.scale {
            let copy = BlockVec { m: out.m.to_vec(), e: out.e.to_vec() };
            crate::numeric::block::scale(copy.view(), scale, out);
        }
    }
}

/// A half-block's matrices in the order in which they lie in memory.
pub fn matrices(half: usize) -> &'static [LayerTensor] {
    use LayerTensor::*;
    if half.is_multiple_of(2) { &[Query, Key, Value, AttentionOutput] } else { &[Gate, Up, Down] }
}

/// Bytes that the matrix in tensor `info` takes in memory.
pub fn packed_bytes(info: &TensorInfo) -> usize {
    place_bytes(info).next_multiple_of(ALIGNMENT)
}

fn place_bytes(info: &TensorInfo) -> usize {
    Matrix::bytes_needed(info.kind, info.shape[1], info.shape[0])
}

/// Matrices begin on cache lines.
const ALIGNMENT: usize = 64;

/// Where each matrix of `part` goes, in the order in which `load` takes them.
fn plan(arch: &Arch, file: &Gguf, part: &Part) -> (Vec<Plan>, usize) {
    let mut names = Vec::new();
    if part.ends == Ends::Here {
        names.push(arch.output_tensor().name().to_owned());
    }
    for half in part.halves.clone() {
        names.extend(matrices(half).iter().map(|tensor| tensor.name(half / 2)));
    }
    let mut at = 0;
    let plans = names.iter().map(|name| {
        let info = file.tensor(name).expect("the description checked that it is there").clone();
        let place = at..at + place_bytes(&info);
        at += packed_bytes(&info);
        Plan { info, place }
    });
    let plans = plans.collect();
    (plans, at)
}

fn attention(
    arch: &Arch,
    file: &Gguf,
    l: usize,
    rotation: usize,
    next: &mut dyn FnMut() -> Matrix,
) -> Result<Attention, LoadError> {
    let vector = |t: LayerTensor| vector(file, &t.name(l));
    use LayerTensor::*;
    Ok(Attention {
        norm: vector(AttentionNorm)?,
        query: next(),
        key: next(),
        value: next(),
        biases: if arch.qkv_bias {
            Some([vector(QueryBias)?, vector(KeyBias)?, vector(ValueBias)?])
        } else {
            None
        },
        head_norms: if arch.qk_norm { Some([vector(QueryNorm)?, vector(KeyNorm)?]) } else { None },
        output: next(),
        post_norm: arch.post_norms.then(|| vector(PostAttentionNorm)).transpose()?,
        rotation,
        window: arch.layers[l].window,
    })
}

fn feed_forward(
    arch: &Arch,
    file: &Gguf,
    l: usize,
    next: &mut dyn FnMut() -> Matrix,
) -> Result<FeedForward, LoadError> {
    let vector = |t: LayerTensor| vector(file, &t.name(l));
    use LayerTensor::*;
    Ok(FeedForward {
        norm: vector(FeedForwardNorm)?,
        gate: next(),
        up: next(),
        down: next(),
        post_norm: arch.post_norms.then(|| vector(PostFeedForwardNorm)).transpose()?,
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
