//! The little of the CUDA driver that measuring needs beside the library: memory, streams, events, graphs, the kernels of
//! probes.ptx. Errors are texts.

use crate::common::Outcome;
use cudarc::driver::sys::*;
use std::ffi::{c_void, CStr, CString};
use std::ptr::{null_mut, NonNull};

const PROBES: &str = include_str!("probes.ptx");

/// The result of a driver call as an outcome.
pub fn check(call: &str, result: CUresult) -> Outcome<()> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(format!("{call}: {code:?}")),
    }
}

macro_rules! cuda {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the pointers are to local variables or to what the driver gave out before.
        check(stringify!($name), unsafe { $name($($argument),*) })
    };
}

/// How many devices this process sees; none where there is no driver.
pub fn count() -> usize {
    let mut count = 0;
    // SAFETY: only tries to load the library.
    let present = unsafe { is_culib_present() };
    let found = present && cuda!(cuInit(0)).is_ok() && cuda!(cuDeviceGetCount(&mut count)).is_ok();
    if found {
        count as usize
    } else {
        0
    }
}

/// Of the first device.
pub fn name() -> String {
    let mut name = [0; 256];
    if cuda!(cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, 0)).is_err() {
        return "unknown GPU".into();
    }
    // SAFETY: the driver has written a terminated string.
    unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned()
}

pub fn driver() -> String {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let number = text
        .split_whitespace()
        .find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()));
    let mut cuda = 0;
    match (number, cuda!(cuDriverGetVersion(&mut cuda))) {
        (Some(number), _) => format!("driver {number}"),
        (None, Ok(())) => format!("driver of CUDA {}.{}", cuda / 1000, cuda % 1000 / 10),
        (None, Err(_)) => "unknown driver".into(),
    }
}

/// A device with its primary context, current on the thread that opened it or entered it.
#[derive(Clone, Copy)]
pub struct Gpu {
    context: CUcontext,
    pub sms: u32,
    pub l2_bytes: u64,
    probes: [CUfunction; 3],
}

// SAFETY: contexts and functions may be used from every thread.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl Gpu {
    pub fn open(ordinal: usize) -> Outcome<Gpu> {
        let (mut device, mut context) = (0, null_mut());
        cuda!(cuInit(0))?;
        cuda!(cuDeviceGet(&mut device, ordinal as i32))?;
        cuda!(cuDevicePrimaryCtxRetain(&mut context, device))?;
        cuda!(cuCtxSetCurrent(context))?;
        let attribute = |attribute| {
            let mut value = 0;
            cuda!(cuDeviceGetAttribute(&mut value, attribute, device)).map(|()| value as u32)
        };
        // Loaded now: later it would wait for kernels of ranks that wait.
        let source = CString::new(PROBES).map_err(|error| error.to_string())?;
        let mut module = null_mut();
        cuda!(cuModuleLoadData(&mut module, source.as_ptr().cast()))?;
        let function = |name: &CStr| {
            let mut function = null_mut();
            cuda!(cuModuleGetFunction(&mut function, module, name.as_ptr())).map(|()| function)
        };
        Ok(Gpu {
            context,
            sms: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            l2_bytes: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
            probes: [function(c"bench_stamp")?, function(c"bench_pause")?, function(c"bench_push")?],
        })
    }

    /// Makes the device current on this thread.
    pub fn enter(&self) -> Outcome<()> {
        cuda!(cuCtxSetCurrent(self.context))
    }

    /// Device memory that is kept until the process ends: freeing would wait for kernels of ranks that wait.
    pub fn allocate(&self, bytes: u64) -> Outcome<u64> {
        let mut address = 0;
        cuda!(cuMemAlloc_v2(&mut address, bytes as usize)).map(|()| address)
    }

    pub fn stream(&self) -> Outcome<Stream> {
        let mut stream = null_mut();
        cuda!(cuStreamCreate(&mut stream, CUstream_flags::CU_STREAM_NON_BLOCKING as u32))?;
        Ok(Stream { stream, probes: self.probes })
    }
}

pub struct Event(CUevent);

impl Event {
    pub fn new() -> Outcome<Event> {
        let mut event = null_mut();
        cuda!(cuEventCreate(&mut event, 0)).map(|()| Event(event))
    }

    /// Microseconds from this event to a later one; both have passed.
    pub fn until(&self, later: &Event) -> Outcome<f64> {
        let mut ms = 0.0;
        cuda!(cuEventElapsedTime_v2(&mut ms, self.0, later.0)).map(|()| f64::from(ms) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = cuda!(cuEventDestroy_v2(self.0));
    }
}

/// A captured sequence, ready to be launched.
pub struct Graph(CUgraphExec);

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = cuda!(cuGraphExecDestroy(self.0));
    }
}

pub struct Stream {
    stream: CUstream,
    probes: [CUfunction; 3],
}

impl Stream {
    pub fn pointer(&self) -> *mut c_void {
        self.stream.cast()
    }

    pub fn wait(&self) -> Outcome<()> {
        cuda!(cuStreamSynchronize(self.stream))
    }

    pub fn record(&self, event: &Event) -> Outcome<()> {
        cuda!(cuEventRecord(event.0, self.stream))
    }

    pub fn wait_for(&self, event: &Event) -> Outcome<()> {
        cuda!(cuStreamWaitEvent(self.stream, event.0, 0))
    }

    pub fn set(&self, to: u64, value: u8, bytes: u64) -> Outcome<()> {
        cuda!(cuMemsetD8Async(to, value, bytes as usize, self.stream))
    }

    pub fn copy(&self, to: u64, from: u64, bytes: u64) -> Outcome<()> {
        cuda!(cuMemcpyDtoDAsync_v2(to, from, bytes as usize, self.stream))
    }

    /// Waits until the bytes are there.
    pub fn write(&self, to: u64, bytes: &[u8]) -> Outcome<()> {
        cuda!(cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), self.stream))?;
        self.wait()
    }

    pub fn read(&self, from: u64, bytes: &mut [u8]) -> Outcome<()> {
        cuda!(cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), from, bytes.len(), self.stream))?;
        self.wait()
    }

    /// Writes the clock to word `index` at `slots`.
    pub fn stamp(&self, slots: u64, index: usize) -> Outcome<()> {
        self.launch(self.probes[0], 1, 1, &[slots, index as u64])
    }

    pub fn pause(&self, ns: u64) -> Outcome<()> {
        self.launch(self.probes[1], 1, 1, &[ns])
    }

    /// Stores from `blocks` SMs.
    pub fn push(&self, to: u64, bytes: u64, rounds: u64, blocks: u32) -> Outcome<()> {
        self.launch(self.probes[2], blocks, 1024, &[to, bytes, rounds])
    }

    fn launch(&self, function: CUfunction, blocks: u32, threads: u32, arguments: &[u64]) -> Outcome<()> {
        let mut pointers: Vec<_> =
            arguments.iter().map(|argument| std::ptr::from_ref(argument).cast_mut().cast()).collect();
        cuda!(cuLaunchKernel(
            function,
            blocks,
            1,
            1,
            threads,
            1,
            1,
            0,
            self.stream,
            pointers.as_mut_ptr(),
            null_mut()
        ))
    }

    /// What `enqueue` puts on this stream, as a graph.
    pub fn capture(&self, enqueue: &mut dyn FnMut() -> Outcome<()>) -> Outcome<Graph> {
        cuda!(cuStreamBeginCapture_v2(self.stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED))?;
        let enqueued = enqueue();
        let (mut graph, mut ready) = (null_mut(), null_mut());
        let ended = cuda!(cuStreamEndCapture(self.stream, &mut graph));
        enqueued.and(ended)?;
        let made = cuda!(cuGraphInstantiateWithFlags(&mut ready, graph, 0));
        cuda!(cuGraphDestroy(graph))?;
        made.map(|()| Graph(ready))
    }

    pub fn start(&self, graph: &Graph) -> Outcome<()> {
        cuda!(cuGraphLaunch(graph.0, self.stream))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(stream) = NonNull::new(self.stream) {
            let _ = cuda!(cuStreamDestroy_v2(stream.as_ptr()));
        }
    }
}
