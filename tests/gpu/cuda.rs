//! Driver functions that the library itself has no use for.

use crate::memory::Arena;
use deepep::driver::Device;
use std::ffi::{c_void, CStr};
use std::sync::Arc;

/// A function of libcuda, which is loaded by now.
fn function(name: &CStr) -> *mut c_void {
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?} is not in libcuda.so.1");
    found
}

macro_rules! call {
    ($name:literal($($argument:expr),*): fn($($type:ty),*)) => {{
        let function: unsafe extern "C" fn($($type),*) -> u32 = unsafe { std::mem::transmute(function($name)) };
        assert_eq!(unsafe { function($($argument),*) }, 0, "{:?}", $name);
    }};
}

/// The stream goes on when the word, which the host may store, is at least `value`.
pub fn wait_for_word(device: &Device, stream: usize, word: u64, value: u32) {
    const AT_LEAST: u32 = 0;
    let _guard = device.enter().unwrap();
    call!(c"cuStreamWaitValue32_v2"(stream, word, value, AT_LEAST): fn(usize, u64, u32, u32));
}

/// Bytes that are free on the arena's device.
pub fn free_bytes(arena: &Arena) -> usize {
    let _guard = arena.device().unwrap().enter().unwrap();
    let (mut free, mut all) = (0usize, 0usize);
    call!(c"cuMemGetInfo_v2"(&mut free, &mut all): fn(*mut usize, *mut usize));
    free
}

/// The calling thread's current context; 0 if it has none.
pub fn current_context() -> usize {
    let mut context = 0usize;
    call!(c"cuCtxGetCurrent"(&mut context): fn(*mut usize));
    context
}

/// A context of one's own on the first device, current from here on.
pub fn new_context() -> usize {
    let mut context = 0usize;
    call!(c"cuCtxCreate_v2"(&mut context, 0, 0): fn(*mut usize, u32, i32));
    context
}

pub fn end_context(context: usize) {
    call!(c"cuCtxDestroy_v2"(context): fn(usize));
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
        call!(c"cuMemAlloc_v2"(&mut address, bytes): fn(*mut u64, usize));
        Block { device: device.clone(), address, bytes }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let _guard = self.device.enter().unwrap();
        call!(c"cuMemFree_v2"(self.address): fn(u64));
    }
}

/// A point in a stream that another can wait for.
pub struct Event(usize);

impl Event {
    pub fn new(arena: &Arena) -> Event {
        const NO_TIMING: u32 = 2;
        let _guard = arena.device().unwrap().enter().unwrap();
        let mut event = 0;
        call!(c"cuEventCreate"(&mut event, NO_TIMING): fn(*mut usize, u32));
        Event(event)
    }

    pub fn record(&self, arena: &Arena) {
        let _guard = arena.device().unwrap().enter().unwrap();
        call!(c"cuEventRecord"(self.0, arena.stream() as usize): fn(usize, usize));
    }

    /// What the arena's stream is given from here on waits for the event.
    pub fn hold_up(&self, arena: &Arena) {
        let _guard = arena.device().unwrap().enter().unwrap();
        call!(c"cuStreamWaitEvent"(arena.stream() as usize, self.0, 0): fn(usize, usize, u32));
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        call!(c"cuEventDestroy_v2"(self.0): fn(usize));
    }
}
