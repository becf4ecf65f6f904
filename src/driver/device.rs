//! A device, its primary context, and the guard that makes that context current for one call.

use super::api::{api, check, Api, Pointer};
use super::block::Yard;
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
    /// Without it, memory comes from cuMemAlloc.
    pub(super) has_virtual_memory: bool,
    pub(super) context: Pointer,
    pub(super) yard: Yard,
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
            let has_virtual_memory = attribute(ATTRIBUTE_VIRTUAL_MEMORY)? != 0;
            let (sms, shared_bytes) = (attribute(ATTRIBUTE_SMS)?, attribute(ATTRIBUTE_SHARED_BYTES)?);
            check("cuDevicePrimaryCtxRetain", (api.primary_retain)(&mut context, handle))?;
            let yard = Yard::default();
            Ok(Device { api, handle, ordinal, uuid, sms, shared_bytes, has_virtual_memory, context, yard })
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

    /// What keeps kernels of this device from the memory of another that this process sees; nothing of one it does not see
    /// can be asked. Signals between ranks are atomic operations on a peer's memory, so access alone is not enough.
    pub fn obstacle_to(&self, uuid: &[u8; 16]) -> Result<Option<&'static str>> {
        const NATIVE_ATOMICS: u32 = 3;
        let Some(other) = self.find_other(uuid)? else { return Ok(None) };
        let (mut access, mut atomics) = (0, 0);
        // SAFETY: the calls write one number each.
        unsafe {
            check("cuDeviceCanAccessPeer", (self.api.can_access_peer)(&mut access, self.handle, other))?;
            check(
                "cuDeviceGetP2PAttribute",
                (self.api.peer_attribute)(&mut atomics, NATIVE_ATOMICS, self.handle, other),
            )?;
        }
        Ok(match (access, atomics) {
            (0, _) => Some("no peer access"),
            (_, 0) => {
                Some("peer access without native atomics, as over PCIe: there is no NVLink between them")
            }
            _ => None,
        })
    }

    /// The handle of another device that this process sees.
    fn find_other(&self, uuid: &[u8; 16]) -> Result<Option<i32>> {
        let mut count = 0;
        // SAFETY: every call below writes one value through a pointer to a local variable.
        check("cuDeviceGetCount", unsafe { (self.api.device_count)(&mut count) })?;
        for ordinal in (0..count).filter(|ordinal| *ordinal != self.ordinal) {
            let (mut handle, mut theirs) = (0, [0; 16]);
            // SAFETY: as above.
            unsafe {
                check("cuDeviceGet", (self.api.device_get)(&mut handle, ordinal))?;
                check("cuDeviceGetUuid", (self.api.device_uuid)(&mut theirs, handle))?;
            }
            if theirs == *uuid {
                return Ok(Some(handle));
            }
        }
        Ok(None)
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
