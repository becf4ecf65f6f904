//! The embedded images, and the kernels in them.

use super::names;
use crate::driver::{Device, Function, Launch, Module, Stream};
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

/// What CUDA lets a kernel take.
const MOST_PARAMETER_BYTES: usize = 4096;

/// Every kernel of one device, fetched and run once: one that is fetched only at its first launch waits for the kernels that run.
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
        let kernels = Kernels { functions, _modules: modules };
        kernels.rehearse(device)?;
        Ok(kernels)
    }

    /// Runs every kernel once. What the driver does at a first launch, such as to make room for a kernel's local memory, waits
    /// for all kernels that run, or cannot be done while some thread captures: later, one of them may be a rank that waits for the
    /// one whose launch is held up.
    fn rehearse(&self, device: &Arc<Device>) -> Result<()> {
        let (_guard, stream) = (device.enter()?, Stream::new(device)?);
        let launch = Launch { blocks: 1, threads: 32, dynamic_bytes: 0, stream: stream.pointer() };
        for function in self.functions.values() {
            // SAFETY: without parameters kernels return at once (`is_rehearsal`), and none takes more than there are here.
            unsafe { function.launch(device, &launch, &[0u64; MOST_PARAMETER_BYTES / 8])? };
        }
        stream.wait()
    }

    pub fn get(&self, name: &str) -> Result<Function> {
        self.functions.get(name).copied().ok_or_else(|| missing(name))
    }
}

fn missing(name: &str) -> Error {
    Error::new(Status::DEEP_EP_NO_KERNEL_IMAGE, format_args!("the library holds no kernel {name}"))
}
