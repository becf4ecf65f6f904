//! The embedded images, and the kernels in them.

use super::names;
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
        for name in names::all() {
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
