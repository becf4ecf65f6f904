//! A device, its primary context, and the guard that makes that context current for one call.

use super::api::{api, check, Api, Pointer};
use crate::error::{Error, Result, Status};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const ATTRIBUTE_SMS: i32 = 16;
const ATTRIBUTE_SHARED_BYTES: i32 = 97;
const ATTRIBUTE_VIRTUAL_MEMORY: i32 = 102;
const ATTRIBUTE_MAJOR: i32 = 75;

/// One device of this process. Its primary context, which the CUDA runtime uses too, stays retained.
pub struct Device {
    pub(super) api: &'static Api,
    pub(super) handle: i32,
    pub ordinal: i32,
    /// The same in every process that sees the device.
    pub uuid: [u8; 16],
    pub sms: u32,
    /// Shared memory that one block may have.
    pub shared_bytes: u32,
    context: Pointer,
}

// SAFETY: a context may be used from every thread that makes it current.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    pub fn open(ordinal: i32) -> Result<Arc<Device>> {
        static OPEN: Mutex<BTreeMap<i32, Arc<Device>>> = Mutex::new(BTreeMap::new());
        let mut open = OPEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(device) = open.get(&ordinal) {
            return Ok(device.clone());
        }
        let device = Arc::new(Device::find(ordinal)?);
        open.insert(ordinal, device.clone());
        Ok(device)
    }

    fn find(ordinal: i32) -> Result<Device> {
        let api = api()?;
        let mut count = 0;
        // SAFETY: every call below writes one value through a pointer to a local variable.
        unsafe {
            check("cuDeviceGetCount", (api.device_count)(&mut count))?;
            if !(0..count).contains(&ordinal) {
                return Err(Error::new(
                    Status::DEEP_EP_NO_DEVICE,
                    format_args!("device is {ordinal}; this process sees {count} CUDA devices"),
                ));
            }
            let (mut handle, mut uuid, mut context) = (0, [0; 16], std::ptr::null_mut());
            check("cuDeviceGet", (api.device_get)(&mut handle, ordinal))?;
            check("cuDeviceGetUuid", (api.device_uuid)(&mut uuid, handle))?;
            let attribute = |number| {
                let mut value = 0;
                check("cuDeviceGetAttribute", (api.device_attribute)(&mut value, number, handle))?;
                Ok(value as u32)
            };
            if attribute(ATTRIBUTE_MAJOR)? < 9 {
                return Err(Error::new(
                    Status::DEEP_EP_NO_KERNEL_IMAGE,
                    format_args!("device {ordinal} has compute capability below 9.0, which the kernels need"),
                ));
            }
            if attribute(ATTRIBUTE_VIRTUAL_MEMORY)? == 0 {
                return Err(Error::unsupported(format_args!(
                    "device {ordinal} has no virtual memory management (cuMemCreate)"
                )));
            }
            let (sms, shared_bytes) = (attribute(ATTRIBUTE_SMS)?, attribute(ATTRIBUTE_SHARED_BYTES)?);
            check("cuDevicePrimaryCtxRetain", (api.primary_retain)(&mut context, handle))?;
            Ok(Device { api, handle, ordinal, uuid, sms, shared_bytes, context })
        }
    }

    /// Makes the device's context current until the guard is dropped. Our own streams and memory have no part in a capture,
    /// so calls on them are let through meanwhile, whatever the mode of captures elsewhere.
    pub fn enter(&self) -> Result<Guard> {
        const RELAXED: u32 = 2;
        // SAFETY: the context is retained as long as the device lives.
        check("cuCtxPushCurrent", unsafe { (self.api.context_push)(self.context) })?;
        let mut guard = Guard { api: self.api, capture_mode: RELAXED };
        // SAFETY: swaps one number of this thread.
        check("cuThreadExchangeStreamCaptureMode", unsafe {
            (self.api.capture_mode)(&mut guard.capture_mode)
        })?;
        Ok(guard)
    }

    /// Whether kernels of this device can reach the memory of `other`.
    pub fn reaches(&self, other: &Device) -> Result<bool> {
        if self.handle == other.handle {
            return Ok(true);
        }
        let mut can = 0;
        // SAFETY: writes one number.
        check("cuDeviceCanAccessPeer", unsafe {
            (self.api.can_access_peer)(&mut can, self.handle, other.handle)
        })?;
        Ok(can != 0)
    }
}

/// Gives the caller's context and mode of capture back when dropped.
pub struct Guard {
    api: &'static Api,
    capture_mode: u32,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut ours = std::ptr::null_mut();
        // SAFETY: gives back the number that `enter` swapped, and takes off what it put on the stack of this thread.
        unsafe {
            (self.api.capture_mode)(&mut self.capture_mode);
            (self.api.context_pop)(&mut ours);
        }
    }
}
