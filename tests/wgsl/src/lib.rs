//! A spike: the dearest parts of the numeric class as WGSL, run through Vulkan, to be compared with
//! `==` against the definition in `compute::numeric`. It shows that nothing in the class asks a GPU
//! for floats, for 64-bit integers or for more than tens of operations a number.
//!
//! The shaders are the `.wgsl` files beside this one; each module here lays out one shader's
//! buffers and reads its result back. Nothing is tuned, and nothing here is used by a node.

pub mod attention;
pub mod gemv;
pub mod norm;

use wgpu::util::{BufferInitDescriptor, DeviceExt};

/// A device, and the queue that feeds it.
#[derive(Debug)]
pub struct Gpu {
    device: wgpu::Device,
    queue: wgpu::Queue,
}

impl Gpu {
    /// The first Vulkan adapter, software or not. Without one: `None` and a printed line, or a
    /// panic if `CADENCIA_REQUIRE_WGPU` is `1`, so that a machine that is meant to check this
    /// cannot lose the check unseen.
    pub fn open() -> Option<Self> {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::VULKAN;
        let instance = wgpu::Instance::new(descriptor);
        let wanted = wgpu::RequestAdapterOptions::default();
        let adapter = match pollster::block_on(instance.request_adapter(&wanted)) {
            Ok(adapter) => adapter,
            Err(error) => {
                let required = std::env::var("CADENCIA_REQUIRE_WGPU").is_ok_and(|v| v == "1");
                assert!(!required, "no Vulkan adapter (Debian: mesa-vulkan-drivers): {error}");
                println!("skipped: no Vulkan adapter (Debian: mesa-vulkan-drivers): {error}");
                return None;
            }
        };
        println!("adapter: {}", adapter.get_info().name);
        let descriptor =
            wgpu::DeviceDescriptor { required_limits: adapter.limits(), ..Default::default() };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))
            .expect("an adapter grants its own limits");
        Some(Self { device, queue })
    }

    /// Compiles the entry points of a shader whose bindings `0..buffers` of group 0 are all
    /// storage buffers. The shared functions of `wide.wgsl` and `block.wgsl` come with it.
    pub fn kernel(&self, source: &str, entries: &[&str], buffers: u32) -> Kernel<'_> {
        let source = [include_str!("wide.wgsl"), include_str!("block.wgsl"), source].concat();
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(source.into()),
        });
        let entry = |binding| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Storage { read_only: false },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        };
        let bindings = self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: None,
            entries: &(0..buffers).map(entry).collect::<Vec<_>>(),
        });
        let layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&bindings)],
            immediate_size: 0,
        });
        let pipeline = |entry: &&str| {
            self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(entry),
                layout: Some(&layout),
                module: &module,
                entry_point: Some(entry),
                compilation_options: Default::default(),
                cache: None,
            })
        };
        Kernel { gpu: self, bindings, pipelines: entries.iter().map(pipeline).collect() }
    }
}

/// The compiled entry points of one shader.
#[derive(Debug)]
pub struct Kernel<'a> {
    gpu: &'a Gpu,
    bindings: wgpu::BindGroupLayout,
    pipelines: Vec<wgpu::ComputePipeline>,
}

impl Kernel<'_> {
    /// Runs the entry points one after another, each with its number of workgroups, over buffers
    /// with these contents and one more of `result` zeros, whose contents afterwards are returned.
    pub fn run(&self, workgroups: &[[u32; 2]], inputs: &[&[u32]], result: usize) -> Vec<i32> {
        assert_eq!(workgroups.len(), self.pipelines.len(), "each entry point needs a size");
        let device = &self.gpu.device;
        let zeros = vec![0; result];
        let buffer = |contents: &[u32]| {
            device.create_buffer_init(&BufferInitDescriptor {
                label: None,
                contents: bytemuck::cast_slice(contents),
                usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
            })
        };
        let all: Vec<_> = inputs.iter().copied().chain([&zeros[..]]).map(buffer).collect();
        let entries: Vec<_> = (0..)
            .zip(&all)
            .map(|(binding, buffer)| wgpu::BindGroupEntry {
                binding,
                resource: buffer.as_entire_binding(),
            })
            .collect();
        let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &self.bindings,
            entries: &entries,
        });
        let back = device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: 4 * result as u64,
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = device.create_command_encoder(&Default::default());
        for (pipeline, &[x, y]) in self.pipelines.iter().zip(workgroups) {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, &group, &[]);
            pass.dispatch_workgroups(x, y, 1);
        }
        encoder.copy_buffer_to_buffer(&all[inputs.len()], 0, &back, 0, 4 * result as u64);
        self.gpu.queue.submit([encoder.finish()]);
        self.read(&back)
    }

    fn read(&self, buffer: &wgpu::Buffer) -> Vec<i32> {
        buffer.map_async(wgpu::MapMode::Read, .., |done| done.expect("the buffer can be read"));
        self.gpu.device.poll(wgpu::PollType::wait_indefinitely()).expect("the device answers");
        let view = buffer.get_mapped_range(..).expect("the buffer is mapped");
        bytemuck::cast_slice(&view).to_vec()
    }
}

/// Four signed bytes to a word, the first lowest.
pub fn bytes(q: &[i8]) -> Vec<u32> {
    q.chunks_exact(4)
        .map(|q| u32::from_le_bytes([q[0], q[1], q[2], q[3]].map(|q| q as u8)))
        .collect()
}

/// Two halves to a word, the first lower.
pub fn halves(m: &[i16]) -> impl Iterator<Item = u32> {
    m.chunks_exact(2).map(|m| pair(m[0], m[1]))
}

/// Two halves as one word.
pub fn pair(low: i16, high: i16) -> u32 {
    u32::from(low as u16) | u32::from(high as u16) << 16
}
