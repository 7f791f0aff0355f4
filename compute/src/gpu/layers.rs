//! Half-blocks on a device: buffers, pipelines, and passes through them.

use std::collections::HashMap;
use std::ops::Range;

use bytemuck::cast_slice;
use wgpu::util::{BufferInitDescriptor, DeviceExt};
use wgpu::{BindGroup, Buffer, BufferUsages, ComputePipeline};

use super::source::{ATTEND, End, HEADS, ROWS, product, with_constants};
use super::{Gpu, GpuError};
use crate::engine::{Model, PAGE};
use crate::gguf::TensorType;
use crate::matrix::{Matrix, TILE};
use crate::numeric::attention::{Pairing, hadamard_len};
use crate::numeric::block::{BlockVec, Blocks, GROUP};
use crate::numeric::functions::Gate;
use crate::weights::{Attention, FeedForward, HalfWeights, Weights};

/// Words of a block: sixteen of mantissas and the exponent.
const BLOCK: usize = 17;
/// Words before the exponents of a matrix' rows, for each matrix.
const INFO: usize = 12;
/// Vectors that a workgroup multiplies at a time where there are many.
const COLS: u32 = 8;
/// Rows of results in a workgroup.
const ROWS_ABREAST: usize = 32;

/// A sequence's part in a pass.
#[derive(Debug, Clone, Copy)]
pub struct Span<'a> {
    /// Position of its first token.
    pub position: usize,
    /// Tokens.
    pub tokens: usize,
    /// Where its pages lie, in order, with room for these tokens.
    pub pages: &'a [u32],
}

/// A pipeline and what it works on.
#[derive(Debug)]
struct Bound {
    pipeline: ComputePipeline,
    group: BindGroup,
}

/// A product for one vector at a time, and one for several.
#[derive(Debug)]
struct Product {
    one: Bound,
    many: Bound,
    groups: u32,
}

/// One half-block: what is dispatched, in order.
#[derive(Debug)]
enum Half {
    Attention {
        norm: Bound,
        project: Product,
        heads: Bound,
        attend: Bound,
        collect: Bound,
        output: Product,
        post: Option<Bound>,
        cache: Buffer,
    },
    FeedForward {
        norm: Bound,
        gate_up: Product,
        quantise: Bound,
        down: Product,
        post: Option<Bound>,
    },
}

/// Half-blocks of a model on a device, with keys and values for a number of pages.
#[derive(Debug)]
pub struct Layers {
    gpu: Gpu,
    halves: Range<usize>,
    each: Vec<Half>,
    /// Query heads, and all heads of a token.
    heads: (u32, u32),
    tokens_max: usize,
    step: Buffer,
    places: Buffer,
    residual: Buffer,
    back: Buffer,
    page_words: usize,
}

/// Buffers that all half-blocks share.
struct Work<'a> {
    step: &'a Buffer,
    places: &'a Buffer,
    residual: &'a Buffer,
    normed: Buffer,
    narrow: Buffer,
    qkv: Buffer,
    queries: Buffer,
    averages: Buffer,
    collected: Buffer,
    heads: Buffer,
    hidden: Buffer,
    spare: Buffer,
    wide: Buffer,
    result: Buffer,
    nothing: Buffer,
    increments: Vec<Buffer>,
}

/// Pipelines, compiled once for each source.
struct Pipelines<'a> {
    gpu: &'a Gpu,
    known: HashMap<(String, &'static str), ComputePipeline>,
}

impl Pipelines<'_> {
    fn get(&mut self, source: String, entry: &'static str) -> ComputePipeline {
        let device = &self.gpu.device;
        let make = |source: &str| {
            let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
                label: Some(entry),
                source: wgpu::ShaderSource::Wgsl(source.into()),
            });
            device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(entry),
                layout: None,
                module: &module,
                entry_point: Some(entry),
                compilation_options: Default::default(),
                cache: None,
            })
        };
        let key = (source, entry);
        if let Some(found) = self.known.get(&key) {
            return found.clone();
        }
        let made = make(&key.0);
        self.known.insert(key, made.clone());
        made
    }

    fn bound(&mut self, source: String, entry: &'static str, buffers: &[(u32, &Buffer)]) -> Bound {
        let pipeline = self.get(source, entry);
        let entries: Vec<_> = buffers
            .iter()
            .map(|(binding, buffer)| wgpu::BindGroupEntry {
                binding: *binding,
                resource: buffer.as_entire_binding(),
            })
            .collect();
        let group = self.gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(entry),
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        });
        Bound { pipeline, group }
    }

    fn product(
        &mut self,
        matrices: &[&Matrix],
        biases: Option<&[BlockVec; 3]>,
        end: End,
        buffers: (&Buffer, &Buffer, &Buffer),
    ) -> Product {
        let (step, from, to) = buffers;
        let kinds: Vec<TensorType> = matrices.iter().map(|matrix| matrix.kind).collect();
        let info = upload(self.gpu, &info(matrices, biases, end));
        let weights: Vec<Buffer> =
            matrices.iter().map(|matrix| upload_bytes(self.gpu, matrix)).collect();
        let mut all = vec![(0, step), (1, from), (2, to), (3, &info)];
        all.extend((4..).zip(&weights));
        let groups = |matrix: &&Matrix| matrix.rows.div_ceil(ROWS_ABREAST) as u32;
        let groups = match end {
            End::Encode => matrices.iter().map(groups).sum(),
            _ => groups(&matrices[0]),
        };
        Product {
            one: self.bound(product(&kinds, 1, end), end.entry(), &all),
            many: self.bound(product(&kinds, COLS, end), end.entry(), &all),
            groups,
        }
    }
}

fn upload(gpu: &Gpu, words: &[u32]) -> Buffer {
    gpu.device.create_buffer_init(&BufferInitDescriptor {
        label: None,
        contents: cast_slice(words),
        usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC,
    })
}

/// A matrix as it lies in memory.
fn upload_bytes(gpu: &Gpu, matrix: &Matrix) -> Buffer {
    let tile = |t| matrix.tile(t);
    let buffer = gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: matrix.bytes() as u64,
        usage: BufferUsages::STORAGE,
        mapped_at_creation: true,
    });
    {
        let mut view = buffer.get_mapped_range_mut(..).expect("it is mapped at creation");
        let size = tile(0).len();
        for t in 0..matrix.tiles() {
            view.slice(t * size..(t + 1) * size).copy_from_slice(tile(t));
        }
    }
    buffer.unmap();
    buffer
}

fn blocks(x: Blocks, to: &mut Vec<u32>) {
    for g in 0..x.e.len() {
        let (m, e) = x.block(g);
        to.extend(m.chunks_exact(2).map(|m| u32::from(m[0] as u16) | u32::from(m[1] as u16) << 16));
        to.push(i32::from(e) as u32);
    }
}

fn unblock(words: &[u32], x: &mut BlockVec) {
    for (g, block) in words.chunks_exact(BLOCK).enumerate() {
        for (i, word) in block[..16].iter().enumerate() {
            x.m[g * GROUP + 2 * i] = *word as u16 as i16;
            x.m[g * GROUP + 2 * i + 1] = (*word >> 16) as u16 as i16;
        }
        x.e[g] = block[16] as i32 as i8;
    }
}

/// What a product must know of its matrices: see `product.wgsl`.
fn info(matrices: &[&Matrix], biases: Option<&[BlockVec; 3]>, end: End) -> Vec<u32> {
    let mut all = vec![0; INFO * matrices.len()];
    let groups: Vec<usize> = matrices.iter().map(|m| m.rows.div_ceil(ROWS_ABREAST)).collect();
    for (n, matrix) in matrices.iter().enumerate() {
        let exponents = all.len();
        for t in 0..matrix.tiles() {
            let (scales, mins) = matrix.tile_exponents(t);
            all.extend(scales.iter().zip(mins).flat_map(|(s, m)| [*s as u32, *m as u32]));
        }
        let bias = biases.map_or(0, |biases| {
            let at = all.len();
            blocks(biases[n].view(), &mut all);
            at
        });
        let (top, min_top) = matrix.tops();
        let head = [
            matrix.rows as u32,
            matrix.units() as u32,
            matrix.cols.div_ceil(GROUP) as u32,
            (matrix.cols.next_multiple_of(64) / GROUP) as u32,
            top as u32,
            min_top as u32,
            exponents as u32,
            bias as u32,
            groups[n] as u32,
            groups[..n].iter().sum::<usize>() as u32,
            match end {
                End::Encode => groups.iter().sum::<usize>() as u32,
                // Results of gate and up share a place.
                _ => groups[n] as u32,
            },
            0,
        ];
        all[n * INFO..][..INFO].copy_from_slice(&head);
    }
    all
}

impl Layers {
    /// Puts `halves` of a model on a device, with room for `pages` of keys and values, for passes of up
    /// to `tokens_max` tokens.
    ///
    /// # Errors
    /// The device cannot hold or do something.
    ///
    /// # Panics
    /// Where the half-blocks are not loaded.
    pub fn new(
        gpu: &Gpu,
        model: &Model,
        halves: Range<usize>,
        pages: usize,
        tokens_max: usize,
    ) -> Result<Self, GpuError> {
        let weights = model.weights();
        let arch = &weights.arch;
        let (head, width) = (arch.head_dim, arch.width);
        let unsuitable = |what: String| Err(GpuError::Unsuitable { what });
        if !head.is_multiple_of(4) || !width.is_multiple_of(GROUP) {
            return unsuitable(format!(
                "heads of {head} and rows of {width} numbers have no shader"
            ));
        }
        let limits = gpu.device.limits();
        let page_words = arch.kv_heads * (16 * head + 48);
        let largest = halves.clone().flat_map(|half| matrices(weights.half(half)));
        let largest = largest.map(Matrix::bytes).max().unwrap_or(0).max(4 * pages * page_words);
        if largest as u64 > limits.max_storage_buffer_binding_size {
            return unsuitable(format!("a buffer of {} MB is needed", largest / 1_000_000));
        }
        let room = |words: usize| {
            gpu.device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: 4 * words.max(4) as u64,
                usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        };
        let vectors = |width: usize| {
            let padded = width.next_multiple_of(64) / GROUP;
            room(tokens_max * (12 + 12 * padded))
        };
        let rows = |width: usize| room(tokens_max * BLOCK * width.div_ceil(GROUP));
        let step = gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: 16,
            usage: BufferUsages::UNIFORM | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let places = room(tokens_max * 2 + tokens_max * (pages + 1));
        let residual = rows(width);
        let back = gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: residual.size(),
            usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let kv = arch.kv_width().next_multiple_of(GROUP);
        let work = Work {
            step: &step,
            places: &places,
            residual: &residual,
            normed: rows(width),
            narrow: vectors(width),
            qkv: rows(arch.query_width().next_multiple_of(GROUP) + 2 * kv),
            queries: room(tokens_max * arch.heads * (head / 4 + 2)),
            averages: room(tokens_max * arch.heads * (head + 1)),
            collected: rows(arch.query_width()),
            heads: vectors(arch.query_width()),
            hidden: rows(arch.ff),
            spare: rows(arch.ff),
            wide: vectors(arch.ff),
            result: rows(width),
            nothing: room(4),
            increments: weights.increments.iter().map(|turns| upload(gpu, turns)).collect(),
        };
        let mut pipelines = Pipelines { gpu, known: HashMap::new() };
        let each = halves
            .clone()
            .map(|half| match weights.half(half) {
                HalfWeights::Attention(own) => {
                    let cache = room(pages * page_words);
                    attention(&mut pipelines, weights, own, &work, cache)
                }
                HalfWeights::FeedForward(own) => feed_forward(&mut pipelines, weights, own, &work),
            })
            .collect();
        let heads = (arch.heads as u32, (arch.heads + 2 * arch.kv_heads) as u32);
        let gpu = gpu.clone();
        Ok(Self { gpu, halves, each, heads, tokens_max, step, places, residual, back, page_words })
    }

    /// Takes `residual`, the rows of all spans, through `halves`.
    ///
    /// # Panics
    /// Where these are not on the device, or there are more tokens than was said.
    pub fn pass(&self, halves: Range<usize>, residual: &mut BlockVec, spans: &[Span]) {
        let tokens: usize = spans.iter().map(|span| span.tokens).sum();
        assert!(tokens <= self.tokens_max, "{tokens} tokens, and {} fit", self.tokens_max);
        assert!(self.halves.start <= halves.start && halves.end <= self.halves.end);
        let queue = &self.gpu.queue;
        let mut words = Vec::with_capacity(BLOCK * residual.e.len());
        blocks(residual.view(), &mut words);
        queue.write_buffer(&self.residual, 0, cast_slice(&words));
        queue.write_buffer(&self.step, 0, cast_slice(&[tokens as u32, 0, 0, 0]));
        queue.write_buffer(&self.places, 0, cast_slice(&places(spans, tokens)));
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            let mut run = |bound: &Bound, x: u32, y: u32| {
                pass.set_pipeline(&bound.pipeline);
                pass.set_bind_group(0, &bound.group, &[]);
                pass.dispatch_workgroups(x, y, 1);
            };
            let count = tokens as u32;
            for half in halves {
                self.half(&self.each[half - self.halves.start], count, &mut run);
            }
        }
        let size = 4 * words.len() as u64;
        encoder.copy_buffer_to_buffer(&self.residual, 0, &self.back, 0, size);
        queue.submit([encoder.finish()]);
        self.read(&self.back, size, |words| unblock(words, residual));
    }

    fn half(&self, half: &Half, tokens: u32, run: &mut dyn FnMut(&Bound, u32, u32)) {
        let product = |product: &Product, run: &mut dyn FnMut(&Bound, u32, u32)| match tokens {
            1 => run(&product.one, product.groups, 1),
            _ => run(&product.many, product.groups, tokens.div_ceil(COLS)),
        };
        match half {
            Half::Attention { norm, project, heads, attend, collect, output, post, .. } => {
                run(norm, tokens, 1);
                product(project, run);
                run(heads, self.heads.1, tokens);
                run(attend, self.heads.0, tokens);
                run(collect, tokens, 1);
                product(output, run);
                if let Some(post) = post {
                    run(post, tokens, 1);
                }
            }
            Half::FeedForward { norm, gate_up, quantise, down, post } => {
                run(norm, tokens, 1);
                product(gate_up, run);
                run(quantise, tokens, 1);
                product(down, run);
                if let Some(post) = post {
                    run(post, tokens, 1);
                }
            }
        }
    }

    fn read(&self, buffer: &Buffer, size: u64, take: impl FnOnce(&[u32])) {
        buffer.map_async(wgpu::MapMode::Read, ..size, |done| done.expect("it can be read"));
        self.gpu.device.poll(wgpu::PollType::wait_indefinitely()).expect("the device answers");
        {
            let view = buffer.get_mapped_range(..size).expect("it is mapped");
            take(cast_slice(&view));
        }
        buffer.unmap();
    }

    /// What page `page` of the attention half `half` holds, in the form that `kv` has: for each
    /// key-value head its keys, values and scales.
    ///
    /// # Panics
    /// Where that half is not on the device.
    pub fn page(&self, half: usize, page: usize) -> Vec<u8> {
        let Half::Attention { cache, .. } = &self.each[half - self.halves.start] else {
            panic!("half {half} has no keys")
        };
        let size = 4 * self.page_words as u64;
        let back = self.gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size,
            usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(cache, size * page as u64, &back, 0, size);
        self.gpu.queue.submit([encoder.finish()]);
        let mut bytes = Vec::new();
        self.read(&back, size, |words| bytes.extend_from_slice(cast_slice(words)));
        bytes
    }
}

fn matrices(half: &HalfWeights) -> Vec<&Matrix> {
    match half {
        HalfWeights::Attention(own) => vec![&own.query, &own.key, &own.value, &own.output],
        HalfWeights::FeedForward(own) => vec![&own.gate, &own.up, &own.down],
    }
}

/// Each token's position and where its pages begin; then the pages of each span.
fn places(spans: &[Span], tokens: usize) -> Vec<u32> {
    let mut all = Vec::with_capacity(2 * tokens);
    let mut table = 2 * tokens;
    for span in spans {
        assert!((span.position + span.tokens).div_ceil(PAGE) <= span.pages.len());
        for position in span.position..span.position + span.tokens {
            all.extend([position as u32, table as u32]);
        }
        table += span.pages.len();
    }
    spans.iter().for_each(|span| all.extend_from_slice(span.pages));
    all
}

fn unsigned(x: usize) -> String {
    format!("{x}u")
}

/// Constants of norms and quantisation of rows of `width` numbers.
fn row_constants(weights: &Weights, width: usize) -> Vec<(&'static str, String)> {
    let epsilon = weights.width_epsilon;
    vec![
        ("GROUPS: u32", unsigned(width.div_ceil(GROUP))),
        ("PADDED: u32", unsigned(width.next_multiple_of(64) / GROUP)),
        ("HEAD: u32", unsigned(weights.arch.head_dim)),
        ("EPSILON_M: u32", format!("{}u", epsilon.epsilon.m)),
        ("EPSILON_E: i32", epsilon.epsilon.e.to_string()),
        ("PER_COUNT_M: u32", format!("{}u", epsilon.per_count.m)),
        ("PER_COUNT_E: i32", epsilon.per_count.e.to_string()),
    ]
}

fn row_shader(weights: &Weights, width: usize) -> String {
    with_constants(ROWS, &row_constants(weights, width))
}

fn norm(pipelines: &mut Pipelines, weights: &Weights, own: &BlockVec, work: &Work) -> Bound {
    let norm = uploaded(pipelines.gpu, own);
    let source = row_shader(weights, weights.arch.width);
    let buffers = [(0, work.residual), (1, &norm), (2, &work.normed), (3, &work.narrow)];
    pipelines.bound(source, "norm_quantise", &buffers)
}

fn uploaded(gpu: &Gpu, own: &BlockVec) -> Buffer {
    let mut words = Vec::new();
    blocks(own.view(), &mut words);
    upload(gpu, &words)
}

/// A product whose result joins the residual, through a norm if there is one.
fn join(
    pipelines: &mut Pipelines,
    weights: &Weights,
    (matrix, from): (&Matrix, &Buffer),
    post: Option<&BlockVec>,
    work: &Work,
) -> (Product, Option<Bound>) {
    let Some(post) = post else {
        let buffers = (work.step, from, work.residual);
        return (pipelines.product(&[matrix], None, End::Join, buffers), None);
    };
    let product = pipelines.product(&[matrix], None, End::Encode, (work.step, from, &work.result));
    let norm = uploaded(pipelines.gpu, post);
    let source = row_shader(weights, weights.arch.width);
    let buffers = [(0, &work.result), (1, &norm), (2, &work.normed), (3, work.residual)];
    (product, Some(pipelines.bound(source, "norm_add", &buffers)))
}

fn attention(
    pipelines: &mut Pipelines,
    weights: &Weights,
    own: &Attention,
    work: &Work,
    cache: Buffer,
) -> Half {
    let arch = &weights.arch;
    let head = arch.head_dim;
    let key_start = arch.query_width().next_multiple_of(GROUP);
    let value_start = key_start + arch.kv_width().next_multiple_of(GROUP);
    let groups = (value_start + arch.kv_width().next_multiple_of(GROUP)) / GROUP;
    let turns = &weights.increments[own.rotation];
    let epsilon = weights.head_epsilon;
    let norms = own.head_norms.as_ref().map(|norms| {
        let mut words = Vec::new();
        norms.iter().for_each(|norm| blocks(norm.view(), &mut words));
        upload(pipelines.gpu, &words)
    });
    let constants = [
        ("HEAD: u32", unsigned(head)),
        ("HEADS: u32", unsigned(arch.heads)),
        ("KV_HEADS: u32", unsigned(arch.kv_heads)),
        ("QKV_GROUPS: u32", unsigned(groups)),
        ("KEY_START: u32", unsigned(key_start)),
        ("VALUE_START: u32", unsigned(value_start)),
        ("PAIRS: u32", unsigned(turns.len())),
        ("PAIRED_BY_HALVES: bool", (arch.rope.pairing == Pairing::Halves).to_string()),
        ("HADAMARD: u32", unsigned(hadamard_len(head))),
        ("HAS_NORMS: bool", norms.is_some().to_string()),
        ("SCORE_M: u32", format!("{}u", weights.score.0)),
        ("SCORE_E: i32", weights.score.1.to_string()),
        ("EPSILON_M: u32", format!("{}u", epsilon.epsilon.m)),
        ("EPSILON_E: i32", epsilon.epsilon.e.to_string()),
        ("PER_COUNT_M: u32", format!("{}u", epsilon.per_count.m)),
        ("PER_COUNT_E: i32", epsilon.per_count.e.to_string()),
    ];
    let heads = pipelines.bound(
        with_constants(HEADS, &constants),
        "heads",
        &[
            (0, &work.qkv),
            (1, work.places),
            (2, &work.increments[own.rotation]),
            (3, norms.as_ref().unwrap_or(&work.nothing)),
            (4, &work.queries),
            (5, &cache),
        ],
    );
    let constants = [
        ("HEAD: u32", unsigned(head)),
        ("HEAD_WORDS: u32", unsigned(head / 4)),
        ("HEADS: u32", unsigned(arch.heads)),
        ("KV_HEADS: u32", unsigned(arch.kv_heads)),
        ("WINDOW: u32", unsigned(own.window.unwrap_or(0))),
    ];
    let attend = pipelines.bound(
        with_constants(ATTEND, &constants),
        "attend",
        &[(0, &work.queries), (1, work.places), (2, &cache), (3, &work.averages)],
    );
    let collect = pipelines.bound(
        row_shader(weights, arch.query_width()),
        "heads_quantise",
        &[(1, &work.averages), (2, &work.collected), (3, &work.heads)],
    );
    let three = [&own.query, &own.key, &own.value];
    let project = pipelines.product(
        &three,
        own.biases.as_ref(),
        End::Encode,
        (work.step, &work.narrow, &work.qkv),
    );
    let (output, post) =
        join(pipelines, weights, (&own.output, &work.heads), own.post_norm.as_ref(), work);
    let norm = norm(pipelines, weights, &own.norm, work);
    Half::Attention { norm, project, heads, attend, collect, output, post, cache }
}

fn feed_forward(
    pipelines: &mut Pipelines,
    weights: &Weights,
    own: &FeedForward,
    work: &Work,
) -> Half {
    let gelu = weights.arch.activation == Gate::GeluTanh;
    let gate_up = pipelines.product(
        &[&own.gate, &own.up],
        None,
        End::Gate { gelu },
        (work.step, &work.narrow, &work.hidden),
    );
    let quantise = pipelines.bound(
        row_shader(weights, weights.arch.ff),
        "plain_quantise",
        &[(0, &work.hidden), (2, &work.spare), (3, &work.wide)],
    );
    let (down, post) =
        join(pipelines, weights, (&own.down, &work.wide), own.post_norm.as_ref(), work);
    let norm = norm(pipelines, weights, &own.norm, work);
    Half::FeedForward { norm, gate_up, quantise, down, post }
}

const _: () = assert!(TILE == 8, "the shaders read eight rows side by side");
