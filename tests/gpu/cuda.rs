//! What a caller of the library does with the driver itself: captures, graphs, events, contexts, memory.

use crate::devices;
use deepep::driver::Device;
use std::ffi::{c_void, CStr, CString};
use std::sync::Arc;

type Pointer = *mut c_void;

pub struct Graph {
    exec: Pointer,
}

unsafe impl Send for Graph {}

fn driver() -> *mut c_void {
    unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) }
}

/// The driver's function of this name; every one used here takes and returns numbers and pointers.
fn function(name: &str) -> *mut c_void {
    let name = CString::new(name).unwrap();
    let found = unsafe { libc::dlsym(driver(), name.as_ptr()) };
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

/// How many devices the driver has; none without a driver.
pub fn device_count() -> usize {
    if driver().is_null() {
        return 0;
    }
    let init: unsafe extern "C" fn(u32) -> u32 = unsafe { std::mem::transmute(function("cuInit")) };
    if unsafe { init(0) } != 0 {
        return 0;
    }
    let mut count = 0;
    call!("cuDeviceGetCount", &mut count => *mut i32);
    count as usize
}

/// Whether the devices are those of tests/emulator, which can be told what not to have.
pub fn is_emulated() -> bool {
    if device_count() == 0 {
        return false;
    }
    let mut name = [0; 64];
    call!("cuDeviceGetName", name.as_mut_ptr() => *mut std::ffi::c_char, 64 => i32, 0 => i32);
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    name == c"emulated device"
}

/// The context of a stream is current as long as this lives.
struct Inside;

impl Inside {
    fn of(stream: Pointer) -> Inside {
        let mut context = std::ptr::null_mut();
        call!("cuStreamGetCtx", stream => Pointer, &mut context => *mut Pointer);
        call!("cuCtxPushCurrent_v2", context => Pointer);
        Inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut context: Pointer = std::ptr::null_mut();
        call!("cuCtxPopCurrent_v2", &mut context => *mut Pointer);
    }
}

/// How a capture treats calls that other work might depend on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum CaptureMode {
    Global = 0,
    Relaxed = 2,
}

/// Makes calls while a stream is captured, and throws away what came of it.
pub fn during_a_capture(stream: Pointer, work: impl FnOnce()) {
    {
        let _inside = Inside::of(stream);
        call!("cuStreamBeginCapture_v2", stream => Pointer, CaptureMode::Global as u32 => u32);
    }
    work();
    let _inside = Inside::of(stream);
    let end: unsafe extern "C" fn(Pointer, *mut Pointer) -> u32 =
        unsafe { std::mem::transmute(function("cuStreamEndCapture")) };
    let mut graph = std::ptr::null_mut();
    // A call that captures do not allow makes the capture invalid, and its end says so.
    if unsafe { end(stream, &mut graph) } == 0 {
        call!("cuGraphDestroy", graph => Pointer);
    }
}

/// Captures what `work` enqueues on a stream, and makes it a graph.
pub fn capture(stream: Pointer, mode: CaptureMode, work: impl FnOnce()) -> Graph {
    let [graph] = captured(stream, mode, work);
    graph
}

/// As many executable graphs of one capture.
pub fn captured<const N: usize>(stream: Pointer, mode: CaptureMode, work: impl FnOnce()) -> [Graph; N] {
    let mut graph = std::ptr::null_mut();
    {
        let _inside = Inside::of(stream);
        call!("cuStreamBeginCapture_v2", stream => Pointer, mode as u32 => u32);
    }
    work();
    let _inside = Inside::of(stream);
    call!("cuStreamEndCapture", stream => Pointer, &mut graph => *mut Pointer);
    let graphs = std::array::from_fn(|_| {
        let mut exec = std::ptr::null_mut();
        call!("cuGraphInstantiateWithFlags", &mut exec => *mut Pointer, graph => Pointer, 0 => u64);
        Graph { exec }
    });
    call!("cuGraphDestroy", graph => Pointer);
    graphs
}

impl Graph {
    pub fn launch(&self, stream: Pointer) {
        let _inside = Inside::of(stream);
        call!("cuGraphLaunch", self.exec => Pointer, stream => Pointer);
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        call!("cuGraphExecDestroy", self.exec => Pointer);
    }
}

/// What is enqueued on `second` from now on runs after what is on `first`.
pub fn join(first: Pointer, second: Pointer) {
    let _inside = Inside::of(first);
    let mut event = std::ptr::null_mut();
    call!("cuEventCreate", &mut event => *mut Pointer, 2 => u32);
    call!("cuEventRecord", event => Pointer, first => Pointer);
    call!("cuStreamWaitEvent", second => Pointer, event => Pointer, 0 => u32);
    call!("cuEventDestroy_v2", event => Pointer);
}

/// Enqueues a copy on the device.
pub fn copy(to: usize, from: usize, bytes: usize, stream: Pointer) {
    let _inside = Inside::of(stream);
    call!("cuMemcpyDtoDAsync_v2", to as u64 => u64, from as u64 => u64, bytes => usize, stream => Pointer);
}

/// The stream goes on when the word, which the host may store, is at least `value`.
pub fn wait_for_word(device: &Device, stream: Pointer, word: u64, value: u32) {
    const AT_LEAST: u32 = 0;
    let _guard = device.enter().unwrap();
    call!("cuStreamWaitValue32_v2", stream => Pointer, word => u64, value => u32, AT_LEAST => u32);
}

/// Bytes that are free on all devices that ranks are on.
pub fn free_bytes() -> usize {
    let free = |ordinal: usize| {
        let device = Device::open(ordinal as i32).unwrap();
        let _guard = device.enter().unwrap();
        let (mut free, mut all) = (0, 0);
        call!("cuMemGetInfo_v2", &mut free => *mut usize, &mut all => *mut usize);
        free
    };
    (0..devices::count()).map(free).sum()
}

/// The calling thread's current context; null if it has none.
pub fn current_context() -> Pointer {
    let mut context = std::ptr::null_mut();
    call!("cuCtxGetCurrent", &mut context => *mut Pointer);
    context
}

/// A context of one's own, current from here on.
pub fn new_context(device: i32) -> Pointer {
    let mut context = std::ptr::null_mut();
    call!("cuCtxCreate_v2", &mut context => *mut Pointer, 0 => u32, device => i32);
    context
}

pub fn end_context(context: Pointer) {
    call!("cuCtxDestroy_v2", context => Pointer);
}

/// Memory from cuMemAlloc. Freeing it waits for all kernels.
pub struct Block {
    device: Arc<Device>,
    pub address: u64,
    pub bytes: usize,
}

impl Block {
    pub fn allocate(device: &Arc<Device>, bytes: usize) -> Block {
        let _guard = device.enter().unwrap();
        let mut address = 0;
        call!("cuMemAlloc_v2", &mut address => *mut u64, bytes => usize);
        Block { device: device.clone(), address, bytes }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let _guard = self.device.enter().unwrap();
        call!("cuMemFree_v2", self.address => u64);
    }
}
