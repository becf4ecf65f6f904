//! The little of the CUDA driver that measuring needs beside the library: memory, streams, events, graphs, the kernels of
//! kernels/bench/probes.cu. Errors are texts.

use crate::common::Outcome;
use cudarc::driver::sys::*;
use std::ffi::{c_void, CStr};
use std::ptr::{null_mut, NonNull};

/// The driver reads whole words of an image.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

/// Empty where the kernels were not built.
#[cfg(feature = "cuda")]
static PROBES: &Aligned<[u8]> = &Aligned(*include_bytes!(env!("DEEPEP_BENCH_PROBES")));
#[cfg(not(feature = "cuda"))]
static PROBES: &Aligned<[u8]> = &Aligned([]);

#[derive(Clone, Copy)]
struct Probes {
    stamp: CUfunction,
    pause: CUfunction,
    push: CUfunction,
    pull: CUfunction,
}

/// As many places as one launch of `push` or `pull` can turn to.
pub const MAX_PLACES: usize = 15;
const PIECE_BYTES: u64 = 16;
const LINK_THREADS: u32 = 1024;

#[repr(C)]
struct StampParams {
    slots: u64,
    index: u64,
}

#[repr(C)]
struct LinkParams {
    places: [u64; MAX_PLACES],
    pieces: u64,
    seen: u64,
    count: u32,
    rounds: u32,
}

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

/// Multiprocessors of the first device.
pub fn sms() -> Outcome<u32> {
    let mut device = 0;
    cuda!(cuDeviceGet(&mut device, 0))?;
    attribute(device, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
}

fn attribute(device: CUdevice, attribute: CUdevice_attribute) -> Outcome<u32> {
    let mut value = 0;
    cuda!(cuDeviceGetAttribute(&mut value, attribute, device)).map(|()| value as u32)
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
    probes: Probes,
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
        if PROBES.0.is_empty() {
            return Err("this program was built without its kernels: build it with --features cuda".into());
        }
        // Loaded now: later it would wait for kernels of ranks that wait.
        let mut module = null_mut();
        cuda!(cuModuleLoadData(&mut module, PROBES.0.as_ptr().cast()))?;
        let function = |name: &CStr| {
            let mut function = null_mut();
            cuda!(cuModuleGetFunction(&mut function, module, name.as_ptr())).map(|()| function)
        };
        Ok(Gpu {
            context,
            sms: attribute(device, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            l2_bytes: attribute(device, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
            probes: Probes {
                stamp: function(c"bench_stamp")?,
                pause: function(c"bench_pause")?,
                push: function(c"bench_push")?,
                pull: function(c"bench_pull")?,
            },
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
    probes: Probes,
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
        self.launch(self.probes.stamp, 1, 32, &StampParams { slots, index: index as u64 })
    }

    pub fn pause(&self, ns: u64) -> Outcome<()> {
        self.launch(self.probes.pause, 1, 32, &ns)
    }

    /// Stores `bytes` bytes from `blocks` SMs to each of the places, `rounds` times, all of them at once.
    pub fn push(&self, places: &[u64], bytes: u64, rounds: u32, blocks: u32) -> Outcome<()> {
        self.launch(self.probes.push, blocks, LINK_THREADS, &link_params(places, bytes, rounds, 0)?)
    }

    /// Loads them; `seen` has room for 4 bytes of each thread.
    pub fn pull(&self, places: &[u64], bytes: u64, rounds: u32, blocks: u32, seen: u64) -> Outcome<()> {
        self.launch(self.probes.pull, blocks, LINK_THREADS, &link_params(places, bytes, rounds, seen)?)
    }

    /// `parameters`: the one struct that the kernel takes.
    fn launch<T>(&self, function: CUfunction, blocks: u32, threads: u32, parameters: &T) -> Outcome<()> {
        let mut pointers: [*mut c_void; 1] = [std::ptr::from_ref(parameters).cast_mut().cast()];
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

fn link_params(places: &[u64], bytes: u64, rounds: u32, seen: u64) -> Outcome<LinkParams> {
    let mut params = LinkParams {
        places: [0; MAX_PLACES],
        pieces: bytes / PIECE_BYTES,
        seen,
        count: places.len() as u32,
        rounds,
    };
    let first = params.places.get_mut(..places.len()).filter(|first| !first.is_empty());
    first
        .ok_or(format!("a link is measured to 1 to {MAX_PLACES} places, not {}", places.len()))?
        .copy_from_slice(places);
    Ok(params)
}

/// Bytes that `pull` of so many blocks writes to `seen`.
pub fn seen_bytes(blocks: u32) -> u64 {
    u64::from(blocks * LINK_THREADS) * 4
}
