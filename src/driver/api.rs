//! The driver's functions by name. Results are plain numbers, since a driver newer than this library may return one that
//! no enum of ours knows; a function that is missing is an error, not a panic.

use crate::error::{Error, Result, Status};
use cudarc::driver::sys::{self, CUlaunchConfig, CUmemAccessDesc, CUmemAllocationProp};
use once_cell::sync::OnceCell;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};

/// Of the driver's own handles only the address is of interest.
pub(super) type Pointer = *mut c_void;

/// What legacy IPC passes memory on by. The driver takes it by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IpcHandle(pub [u8; 64]);

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        pub(super) struct Api {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> c_uint,)*
        }

        impl Api {
            fn resolve() -> Result<Api> {
                // SAFETY: loading the driver runs its initialisers, which is what the caller asked for.
                let library = unsafe { sys::culib() };
                Ok(Api {
                    $($name: {
                        // SAFETY: the driver's function of this name has this signature.
                        let found = unsafe {
                            library.get::<unsafe extern "C" fn($($argument),*) -> c_uint>(concat!($symbol, "\0").as_bytes())
                        };
                        *found.map_err(|_| missing($symbol))?
                    },)*
                })
            }
        }
    };
}

functions! {
    init = "cuInit" (c_uint);
    driver_version = "cuDriverGetVersion" (*mut c_int);
    error_name = "cuGetErrorName" (c_uint, *mut *const c_char);
    device_count = "cuDeviceGetCount" (*mut c_int);
    device_get = "cuDeviceGet" (*mut c_int, c_int);
    device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    device_uuid = "cuDeviceGetUuid_v2" (*mut [u8; 16], c_int);
    can_access_peer = "cuDeviceCanAccessPeer" (*mut c_int, c_int, c_int);
    peer_attribute = "cuDeviceGetP2PAttribute" (*mut c_int, c_uint, c_int, c_int);
    enable_peer = "cuCtxEnablePeerAccess" (Pointer, c_uint);
    primary_retain = "cuDevicePrimaryCtxRetain" (*mut Pointer, c_int);
    context_push = "cuCtxPushCurrent_v2" (Pointer);
    context_pop = "cuCtxPopCurrent_v2" (*mut Pointer);
    mem_granularity = "cuMemGetAllocationGranularity" (*mut usize, *const CUmemAllocationProp, c_uint);
    mem_create = "cuMemCreate" (*mut u64, usize, *const CUmemAllocationProp, u64);
    mem_release = "cuMemRelease" (u64);
    mem_reserve = "cuMemAddressReserve" (*mut u64, usize, usize, u64, u64);
    mem_address_free = "cuMemAddressFree" (u64, usize);
    mem_map = "cuMemMap" (u64, usize, usize, u64, u64);
    mem_unmap = "cuMemUnmap" (u64, usize);
    mem_set_access = "cuMemSetAccess" (u64, usize, *const CUmemAccessDesc, usize);
    mem_export = "cuMemExportToShareableHandle" (Pointer, u64, c_uint, u64);
    mem_import = "cuMemImportFromShareableHandle" (*mut u64, Pointer, c_uint);
    mem_alloc = "cuMemAlloc_v2" (*mut u64, usize);
    mem_free = "cuMemFree_v2" (u64);
    ipc_handle = "cuIpcGetMemHandle" (*mut IpcHandle, u64);
    ipc_open = "cuIpcOpenMemHandle_v2" (*mut u64, IpcHandle, c_uint);
    ipc_close = "cuIpcCloseMemHandle" (u64);
    host_alloc = "cuMemHostAlloc" (*mut Pointer, usize, c_uint);
    host_register = "cuMemHostRegister_v2" (Pointer, usize, c_uint);
    host_device_pointer = "cuMemHostGetDevicePointer_v2" (*mut u64, Pointer, c_uint);
    copy_to_device = "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Pointer);
    copy_to_host = "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Pointer);
    copy_on_device = "cuMemcpyDtoDAsync_v2" (u64, u64, usize, Pointer);
    set_bytes = "cuMemsetD8Async" (u64, u8, usize, Pointer);
    stream_create = "cuStreamCreate" (*mut Pointer, c_uint);
    stream_destroy = "cuStreamDestroy_v2" (Pointer);
    stream_wait = "cuStreamSynchronize" (Pointer);
    stream_capture = "cuStreamGetCaptureInfo_v2" (Pointer, *mut c_uint, *mut u64, Pointer, Pointer, Pointer);
    capture_mode = "cuThreadExchangeStreamCaptureMode" (*mut c_uint);
    event_create = "cuEventCreate" (*mut Pointer, c_uint);
    event_record = "cuEventRecord" (Pointer, Pointer);
    event_wait = "cuEventSynchronize" (Pointer);
    event_query = "cuEventQuery" (Pointer);
    event_destroy = "cuEventDestroy_v2" (Pointer);
    module_load = "cuModuleLoadData" (*mut Pointer, *const c_void);
    module_function = "cuModuleGetFunction" (*mut Pointer, Pointer, *const c_char);
    function_attribute = "cuFuncGetAttribute" (*mut c_int, c_int, Pointer);
    set_function_attribute = "cuFuncSetAttribute" (Pointer, c_int, c_int);
    launch = "cuLaunchKernelEx" (*const CUlaunchConfig, Pointer, *mut Pointer, *mut Pointer);
}

/// What the kernels were compiled for: an older driver cannot take their code.
const OLDEST_DRIVER: c_int = 13000;

fn missing(symbol: &str) -> Error {
    Error::new(
        Status::DEEP_EP_DRIVER_TOO_OLD,
        format_args!("the CUDA driver has no {symbol}; driver 580 (CUDA 13.0) or newer is needed"),
    )
}

fn no_driver(hint: &str) -> Error {
    let text =
        format!("there is no CUDA driver (libcuda.so.1){hint}; use DEEP_EP_BACKEND_HOST on this machine");
    Error::new(Status::DEEP_EP_NO_DRIVER, text)
}

/// The driver, loaded and initialised by the first call.
pub(super) fn api() -> Result<&'static Api> {
    static API: OnceCell<Api> = OnceCell::new();
    API.get_or_try_init(|| {
        // SAFETY: only tries to load the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(no_driver(""));
        }
        let api = Api::resolve()?;
        // SAFETY: the first call of a program that uses the driver.
        match unsafe { (api.init)(0) } {
            0 => {}
            34 => return Err(no_driver(", only the toolkit's stub of it: take the stubs directory out of LD_LIBRARY_PATH")),
            100 => return Err(Error::new(Status::DEEP_EP_NO_DEVICE, "the CUDA driver finds no device")),
            code => return Err(failure(Some(&api), "cuInit", code)),
        }
        let mut version = 0;
        // SAFETY: writes one number.
        check_with(&api, "cuDriverGetVersion", unsafe { (api.driver_version)(&mut version) })?;
        if version < OLDEST_DRIVER {
            return Err(Error::new(
                Status::DEEP_EP_DRIVER_TOO_OLD,
                format_args!("the CUDA driver is of version {version}; {OLDEST_DRIVER} (driver 580) or newer is needed"),
            ));
        }
        Ok(api)
    })
}

/// The result of a driver call as a value.
pub(super) fn check(call: &str, code: c_uint) -> Result<()> {
    match code {
        0 => Ok(()),
        _ => Err(failure(api().ok(), call, code)),
    }
}

fn check_with(api: &Api, call: &str, code: c_uint) -> Result<()> {
    match code {
        0 => Ok(()),
        _ => Err(failure(Some(api), call, code)),
    }
}

fn failure(api: Option<&Api>, call: &str, code: c_uint) -> Error {
    let mut name: *const c_char = std::ptr::null();
    if let Some(api) = api {
        // SAFETY: writes one pointer, null for a number it does not know.
        unsafe { (api.error_name)(code, &mut name) };
    }
    let name = if name.is_null() {
        "unknown".into()
    } else {
        // SAFETY: the driver's names are terminated and static.
        unsafe { CStr::from_ptr(name) }.to_string_lossy()
    };
    let status = match code {
        2 => Status::DEEP_EP_OUT_OF_MEMORY,
        100 | 101 => Status::DEEP_EP_NO_DEVICE,
        200 | 209 | 222 => Status::DEEP_EP_NO_KERNEL_IMAGE,
        217 => Status::DEEP_EP_PEER_UNREACHABLE,
        _ => Status::DEEP_EP_CUDA,
    };
    Error::new(status, format_args!("{call} returned {code} ({name})"))
}
