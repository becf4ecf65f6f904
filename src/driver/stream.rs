//! Streams of our own, copies on them, and what the caller's streams are doing.

use super::api::{check, Pointer};
use super::device::Device;
use crate::error::Result;
use std::sync::Arc;

/// The value of a CUstream; 0 is the legacy default stream.
pub type StreamPointer = usize;

const NON_BLOCKING: u32 = 1;

/// A stream that waits for no other.
pub struct Stream {
    device: Arc<Device>,
    handle: Pointer,
}

// SAFETY: a stream may be used from every thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub fn new(device: &Arc<Device>) -> Result<Stream> {
        let _guard = device.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes one handle.
        check("cuStreamCreate", unsafe { (device.api.stream_create)(&mut handle, NON_BLOCKING) })?;
        Ok(Stream { device: device.clone(), handle })
    }

    pub fn pointer(&self) -> StreamPointer {
        self.handle as StreamPointer
    }

    /// Until everything enqueued has run.
    pub fn wait(&self) -> Result<()> {
        let _guard = self.device.enter()?;
        // SAFETY: the stream is ours.
        check("cuStreamSynchronize", unsafe { (self.device.api.stream_wait)(self.handle) })
    }

    /// Writes bytes to device memory, and waits until they are there.
    ///
    /// # Safety
    /// `to` is device memory of at least as many bytes.
    pub unsafe fn write(&self, to: u64, bytes: &[u8]) -> Result<()> {
        let guard = self.device.enter()?;
        // SAFETY: as the caller promises; the bytes live until the wait is over.
        check("cuMemcpyHtoDAsync", unsafe {
            (self.device.api.copy_to_device)(to, bytes.as_ptr().cast(), bytes.len(), self.handle)
        })?;
        drop(guard);
        self.wait()
    }

    /// Reads device memory.
    ///
    /// # Safety
    /// `from` is device memory of at least as many bytes.
    pub unsafe fn read(&self, bytes: &mut [u8], from: u64) -> Result<()> {
        let guard = self.device.enter()?;
        // SAFETY: as the caller promises; the bytes live until the wait is over.
        check("cuMemcpyDtoHAsync", unsafe {
            (self.device.api.copy_to_host)(bytes.as_mut_ptr().cast(), from, bytes.len(), self.handle)
        })?;
        drop(guard);
        self.wait()
    }

    /// Sets device memory to one byte, and waits until it is done.
    ///
    /// # Safety
    /// `to` is device memory of at least `bytes` bytes.
    pub unsafe fn fill(&self, to: u64, value: u8, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let guard = self.device.enter()?;
        // SAFETY: as the caller promises.
        check("cuMemsetD8Async", unsafe {
            (self.device.api.set_bytes)(to, value, bytes as usize, self.handle)
        })?;
        drop(guard);
        self.wait()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream is ours; the driver lets what was enqueued run to its end.
        unsafe { (self.device.api.stream_destroy)(self.handle) };
    }
}

/// The number of the capture that the caller's stream is in, or 0. The device's context is current.
pub fn capture_of(device: &Device, stream: StreamPointer) -> Result<u64> {
    const ACTIVE: u32 = 1;
    let (mut status, mut number) = (0, 0);
    let none = std::ptr::null_mut();
    // SAFETY: writes two numbers; null pointers ask for nothing else.
    check("cuStreamGetCaptureInfo", unsafe {
        (device.api.stream_capture)(stream as Pointer, &mut status, &mut number, none, none, none)
    })?;
    Ok(if status == ACTIVE { number } else { 0 })
}

/// Enqueues a copy between device addresses. The device's context is current.
///
/// # Safety
/// Both addresses hold for `bytes` bytes until the stream has passed the copy.
pub unsafe fn copy_on_device(
    device: &Device,
    to: u64,
    from: u64,
    bytes: u64,
    stream: StreamPointer,
) -> Result<()> {
    // SAFETY: as the caller promises.
    check("cuMemcpyDtoDAsync", unsafe {
        (device.api.copy_on_device)(to, from, bytes as usize, stream as Pointer)
    })
}

/// A place in a stream, to wait for.
pub struct Mark {
    device: Arc<Device>,
    event: Pointer,
}

// SAFETY: an event may be used from every thread.
unsafe impl Send for Mark {}
// SAFETY: as above.
unsafe impl Sync for Mark {}

impl Mark {
    pub fn new(device: &Arc<Device>) -> Result<Mark> {
        const NO_TIMING: u32 = 2;
        let _guard = device.enter()?;
        let mut event = std::ptr::null_mut();
        // SAFETY: writes one handle.
        check("cuEventCreate", unsafe { (device.api.event_create)(&mut event, NO_TIMING) })?;
        Ok(Mark { device: device.clone(), event })
    }

    /// Moves the mark behind everything that is enqueued. The device's context is current.
    pub fn set(&self, stream: StreamPointer) -> Result<()> {
        // SAFETY: the event is ours, the stream the caller's.
        check("cuEventRecord", unsafe { (self.device.api.event_record)(self.event, stream as Pointer) })
    }

    /// Whether the stream has passed the mark. The device's context is current.
    pub fn has_passed(&self) -> bool {
        // SAFETY: the event is ours.
        unsafe { (self.device.api.event_query)(self.event) == 0 }
    }

    /// Until the stream has passed the mark.
    pub fn wait(&self) -> Result<()> {
        let _guard = self.device.enter()?;
        // SAFETY: the event is ours.
        check("cuEventSynchronize", unsafe { (self.device.api.event_wait)(self.event) })
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: the event is ours.
        unsafe { (self.device.api.event_destroy)(self.event) };
    }
}
