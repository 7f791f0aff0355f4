//! The numeric class on a GPU: the same bits, by integers of 32 bits in WGSL.
//!
//! Weights lie on the device as they lie in memory (`matrix`): words of eight rows side by side. A pass
//! takes residual rows through half-blocks in one go; keys and values stay on the device, in pages of
//! the form that `kv` has.

mod layers;
mod source;

use std::sync::Arc;

use thiserror::Error;

pub use layers::{Layers, Span};
pub use source::{End, product};

/// Why a device does not compute.
#[derive(Debug, Error)]
pub enum GpuError {
    /// There is none.
    #[error("no adapter can be used: {0}; install a Vulkan driver, or compute on the CPU")]
    NoAdapter(String),
    /// It gives no access.
    #[error("{adapter} gives no access: {why}")]
    NoDevice {
        /// Which.
        adapter: String,
        /// Why, in the driver's words.
        why: String,
    },
    /// It cannot do something that is needed.
    #[error("{what}; these layers stay on the CPU")]
    Unsuitable {
        /// What.
        what: String,
    },
}

/// An adapter that is open.
#[derive(Debug, Clone)]
pub struct Gpu {
    device: wgpu::Device,
    queue: wgpu::Queue,
    info: Arc<wgpu::AdapterInfo>,
}

impl Gpu {
    /// The adapter that the system prefers.
    ///
    /// # Errors
    /// There is none, or it gives no access.
    pub fn open() -> Result<Self, GpuError> {
        let descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        let instance = wgpu::Instance::new(descriptor);
        let wanted = wgpu::RequestAdapterOptions {
            power_preference: wgpu::PowerPreference::HighPerformance,
            ..wgpu::RequestAdapterOptions::default()
        };
        let adapter = pollster::block_on(instance.request_adapter(&wanted))
            .map_err(|error| GpuError::NoAdapter(error.to_string()))?;
        let info = adapter.get_info();
        let descriptor =
            wgpu::DeviceDescriptor { required_limits: adapter.limits(), ..Default::default() };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))
            .map_err(|e| GpuError::NoDevice { adapter: info.name.clone(), why: e.to_string() })?;
        Ok(Self { device, queue, info: Arc::new(info) })
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// Whether it is a program that plays a GPU on the CPU.
    pub fn is_software(&self) -> bool {
        self.info.device_type == wgpu::DeviceType::Cpu
    }
}
