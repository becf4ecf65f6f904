//! The embedded images, and the kernels in them.

use crate::driver::{Device, Function, Module};
use crate::error::{Error, Result, Status};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The name of the source, with which the names of its kernels begin, and a fatbin as nvcc made it.
struct Image(&'static str, &'static [u8]);

/// The driver reads images in words.
#[cfg(feature = "cuda")]
#[repr(align(64))]
struct Aligned<const N: usize>([u8; N]);

#[cfg(feature = "cuda")]
include!(concat!(env!("OUT_DIR"), "/images.rs"));

#[cfg(not(feature = "cuda"))]
static IMAGES: [Image; 0] = [];

/// Whether this library has kernels at all.
pub const fn are_embedded() -> bool {
    cfg!(feature = "cuda")
}

const NAMES: [&str; 72] = [
    "deepep_barrier",
    "deepep_claim",
    "deepep_clock",
    "deepep_release",
    "deepep_dispatch_by_rank",
    "deepep_dispatch_by_rank_send",
    "deepep_dispatch_by_rank_recv",
    "deepep_dispatch_by_rank_cast",
    "deepep_dispatch_by_rank_cast_send",
    "deepep_dispatch_by_expert",
    "deepep_dispatch_by_expert_send",
    "deepep_dispatch_by_expert_recv",
    "deepep_dispatch_by_expert_cast",
    "deepep_dispatch_by_expert_cast_send",
    "deepep_slotted_dispatch_by_rank",
    "deepep_slotted_dispatch_by_rank_send",
    "deepep_slotted_dispatch_by_rank_recv",
    "deepep_slotted_dispatch_by_rank_cast",
    "deepep_slotted_dispatch_by_rank_cast_send",
    "deepep_slotted_dispatch_by_expert",
    "deepep_slotted_dispatch_by_expert_send",
    "deepep_slotted_dispatch_by_expert_recv",
    "deepep_slotted_dispatch_by_expert_cast",
    "deepep_slotted_dispatch_by_expert_cast_send",
    "deepep_combine_by_rank_bf16",
    "deepep_combine_by_rank_fp16",
    "deepep_combine_by_rank_fp32",
    "deepep_combine_by_rank_bf16_send",
    "deepep_combine_by_rank_fp16_send",
    "deepep_combine_by_rank_fp32_send",
    "deepep_combine_by_rank_bf16_recv",
    "deepep_combine_by_rank_fp16_recv",
    "deepep_combine_by_rank_fp32_recv",
    "deepep_combine_exact_bf16",
    "deepep_combine_exact_fp16",
    "deepep_combine_exact_fp32",
    "deepep_combine_exact_bf16_send",
    "deepep_combine_exact_fp16_send",
    "deepep_combine_exact_fp32_send",
    "deepep_combine_exact_bf16_recv",
    "deepep_combine_exact_fp16_recv",
    "deepep_combine_exact_fp32_recv",
    "deepep_combine_reduced_bf16",
    "deepep_combine_reduced_fp16",
    "deepep_combine_reduced_fp32",
    "deepep_combine_reduced_bf16_send",
    "deepep_combine_reduced_fp16_send",
    "deepep_combine_reduced_fp32_send",
    "deepep_slotted_combine_by_rank_bf16",
    "deepep_slotted_combine_by_rank_fp16",
    "deepep_slotted_combine_by_rank_fp32",
    "deepep_slotted_combine_by_rank_bf16_send",
    "deepep_slotted_combine_by_rank_fp16_send",
    "deepep_slotted_combine_by_rank_fp32_send",
    "deepep_slotted_combine_by_rank_bf16_recv",
    "deepep_slotted_combine_by_rank_fp16_recv",
    "deepep_slotted_combine_by_rank_fp32_recv",
    "deepep_slotted_combine_exact_bf16",
    "deepep_slotted_combine_exact_fp16",
    "deepep_slotted_combine_exact_fp32",
    "deepep_slotted_combine_exact_bf16_send",
    "deepep_slotted_combine_exact_fp16_send",
    "deepep_slotted_combine_exact_fp32_send",
    "deepep_slotted_combine_exact_bf16_recv",
    "deepep_slotted_combine_exact_fp16_recv",
    "deepep_slotted_combine_exact_fp32_recv",
    "deepep_slotted_combine_reduced_bf16",
    "deepep_slotted_combine_reduced_fp16",
    "deepep_slotted_combine_reduced_fp32",
    "deepep_slotted_combine_reduced_bf16_send",
    "deepep_slotted_combine_reduced_fp16_send",
    "deepep_slotted_combine_reduced_fp32_send",
];

/// Every kernel of one device, fetched: one that is fetched only at its first launch waits for the kernels that run.
pub struct Kernels {
    functions: BTreeMap<&'static str, Function>,
    _modules: Vec<(&'static str, Module)>,
}

impl Kernels {
    /// Loaded once for each device, and kept.
    pub fn of(device: &Arc<Device>) -> Result<Arc<Kernels>> {
        static LOADED: Mutex<BTreeMap<i32, Arc<Kernels>>> = Mutex::new(BTreeMap::new());
        let mut loaded = LOADED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(kernels) = loaded.get(&device.ordinal) {
            return Ok(kernels.clone());
        }
        let kernels = Arc::new(Kernels::load(device)?);
        loaded.insert(device.ordinal, kernels.clone());
        Ok(kernels)
    }

    fn load(device: &Arc<Device>) -> Result<Kernels> {
        let load = |image: &Image| Ok((image.0, Module::load(device, image.1)?));
        let modules = IMAGES.iter().map(load).collect::<Result<Vec<_>>>()?;
        let mut functions = BTreeMap::new();
        for name in NAMES {
            let short = name.trim_start_matches("deepep_");
            let (_, module) =
                modules.iter().find(|(source, _)| short.starts_with(source)).ok_or_else(|| missing(name))?;
            functions.insert(name, module.function(name)?);
        }
        Ok(Kernels { functions, _modules: modules })
    }

    pub fn get(&self, name: &str) -> Result<Function> {
        self.functions.get(name).copied().ok_or_else(|| missing(name))
    }
}

fn missing(name: &str) -> Error {
    Error::new(Status::DEEP_EP_NO_KERNEL_IMAGE, format_args!("the library holds no kernel {name}"))
}
