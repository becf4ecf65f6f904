//! Kernels: images, functions, launches.

use super::api::{check, Pointer};
use super::device::Device;
use super::stream::StreamPointer;
use crate::error::{Error, Result};
use cudarc::driver::sys::{
    CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig, CUstream,
};
use std::ffi::CString;
use std::sync::Arc;

const ATTRIBUTE_STATIC_SHARED_BYTES: i32 = 1;
const ATTRIBUTE_MAX_DYNAMIC_SHARED_BYTES: i32 = 8;

/// A loaded image. It stays loaded: unloading waits for every kernel that runs.
pub struct Module {
    device: Arc<Device>,
    handle: Pointer,
}

// SAFETY: a module may be used from every thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// A kernel, ready to be launched at once also beside kernels that wait.
#[derive(Clone, Copy)]
pub struct Function {
    handle: Pointer,
    /// Dynamic shared memory that a block may ask for.
    pub dynamic_bytes: u32,
}

// SAFETY: a function may be used from every thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// How a kernel is launched.
#[derive(Clone, Copy)]
pub struct Launch {
    pub blocks: u32,
    pub threads: u32,
    pub dynamic_bytes: u32,
    pub stream: StreamPointer,
}

impl Module {
    /// `image`: a fatbin, aligned to 8 bytes.
    pub fn load(device: &Arc<Device>, image: &'static [u8]) -> Result<Module> {
        let _guard = device.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the image is whole and says itself how long it is.
        check("cuModuleLoadData", unsafe { (device.api.module_load)(&mut handle, image.as_ptr().cast()) })?;
        Ok(Module { device: device.clone(), handle })
    }

    /// The kernel of this name.
    pub fn function(&self, name: &str) -> Result<Function> {
        let api = self.device.api;
        let _guard = self.device.enter()?;
        let text =
            CString::new(name).map_err(|_| Error::invalid_argument("a kernel's name with a zero byte"))?;
        let (mut handle, mut fixed) = (std::ptr::null_mut(), 0);
        // SAFETY: the name is terminated; the calls write one value each.
        unsafe {
            check("cuModuleGetFunction", (api.module_function)(&mut handle, self.handle, text.as_ptr()))?;
            check(
                "cuFuncGetAttribute",
                (api.function_attribute)(&mut fixed, ATTRIBUTE_STATIC_SHARED_BYTES, handle),
            )?;
            let dynamic = self.device.shared_bytes as i32 - fixed;
            check(
                "cuFuncSetAttribute",
                (api.set_function_attribute)(handle, ATTRIBUTE_MAX_DYNAMIC_SHARED_BYTES, dynamic),
            )?;
            Ok(Function { handle, dynamic_bytes: dynamic as u32 })
        }
    }
}

impl Function {
    /// Enqueues the kernel with one struct as its only parameter. It may take its place on the device ahead of the end of the kernel
    /// before it on the stream (a programmatic launch), for which it waits by itself. The device's context is current.
    ///
    /// # Safety
    /// `params` is what this kernel takes, every address in it holds until the kernel has run, and it waits for the kernel before.
    pub unsafe fn launch<T: Copy>(&self, device: &Device, launch: &Launch, params: &T) -> Result<()> {
        let mut arguments = [params as *const T as Pointer];
        let mut early = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = CUlaunchConfig {
            gridDimX: launch.blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.dynamic_bytes,
            hStream: launch.stream as CUstream,
            attrs: &mut early,
            numAttrs: 1,
        };
        // SAFETY: as the caller promises; the driver copies configuration and parameters before it returns.
        check("cuLaunchKernelEx", unsafe {
            (device.api.launch)(&config, self.handle, arguments.as_mut_ptr(), std::ptr::null_mut())
        })
    }
}
