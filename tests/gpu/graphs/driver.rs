//! What a caller of the library does with the driver itself: captures, graphs, events.

use deepep::driver::Device;
use std::ffi::{c_void, CString};
use std::sync::Arc;

type Pointer = *mut c_void;

pub struct Graph {
    device: Arc<Device>,
    exec: Pointer,
}

unsafe impl Send for Graph {}

/// The driver's function of this name; every one used here takes and returns numbers and pointers.
fn function(name: &str) -> *mut c_void {
    let name = CString::new(name).unwrap();
    let found = unsafe { libc::dlsym(libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    found
}

macro_rules! call {
    ($name:literal, $($argument:expr => $type:ty),*) => {{
        let f: unsafe extern "C" fn($($type),*) -> u32 = unsafe { std::mem::transmute(function($name)) };
        let code = unsafe { f($($argument),*) };
        assert_eq!(code, 0, $name);
    }};
}

/// How a capture treats calls that other work might depend on.
#[derive(Clone, Copy)]
pub enum CaptureMode {
    Global = 0,
    Relaxed = 2,
}

/// Captures what `work` enqueues on a stream, and makes it a graph.
pub fn capture(stream: Pointer, mode: CaptureMode, work: impl FnOnce()) -> Graph {
    let device = Device::open(0).unwrap();
    let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
    {
        let _guard = device.enter().unwrap();
        call!("cuStreamBeginCapture_v2", stream => Pointer, mode as u32 => u32);
    }
    work();
    {
        let _guard = device.enter().unwrap();
        call!("cuStreamEndCapture", stream => Pointer, &mut graph => *mut Pointer);
        call!("cuGraphInstantiateWithFlags", &mut exec => *mut Pointer, graph => Pointer, 0 => u64);
        call!("cuGraphDestroy", graph => Pointer);
    }
    Graph { device, exec }
}

impl Graph {
    pub fn launch(&self, stream: Pointer) {
        let _guard = self.device.enter().unwrap();
        call!("cuGraphLaunch", self.exec => Pointer, stream => Pointer);
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _guard = self.device.enter().unwrap();
        call!("cuGraphExecDestroy", self.exec => Pointer);
    }
}

/// What is enqueued on `second` from now on runs after what is on `first`.
pub fn join(first: Pointer, second: Pointer) {
    let device = Device::open(0).unwrap();
    let _guard = device.enter().unwrap();
    let mut event = std::ptr::null_mut();
    call!("cuEventCreate", &mut event => *mut Pointer, 2 => u32);
    call!("cuEventRecord", event => Pointer, first => Pointer);
    call!("cuStreamWaitEvent", second => Pointer, event => Pointer, 0 => u32);
    call!("cuEventDestroy_v2", event => Pointer);
}

/// Enqueues a copy on the device.
pub fn copy(to: usize, from: usize, bytes: usize, stream: Pointer) {
    let device = Device::open(0).unwrap();
    let _guard = device.enter().unwrap();
    call!("cuMemcpyDtoDAsync_v2", to as u64 => u64, from as u64 => u64, bytes => usize, stream => Pointer);
}
