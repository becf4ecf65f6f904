//! Device memory of cuMemAlloc, which any device has, and legacy IPC, by which another process opens it.
//!
//! The driver's functions that give such memory back wait for every kernel on the device, also for one that waits for a peer
//! whose turn would come after the call. So they are called when no kernel of ours runs: what is dropped meanwhile is given
//! back with what is dropped later.

use super::api::{check, IpcHandle};
use super::device::Device;
use super::work::Ledger;
use crate::error::{Error, Result, Status};
use std::sync::{Arc, Mutex, MutexGuard};

/// Of a device: the buffers whose kernels may wait there, and the addresses that are to be given back.
#[derive(Default)]
pub(super) struct Yard(Mutex<Content>);

#[derive(Default)]
struct Content {
    work: Vec<Arc<Ledger>>,
    dropped: Vec<(u64, Origin)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Own,
    Imported,
}

pub(super) struct Block {
    pub device: Arc<Device>,
    pub address: u64,
    pub bytes: usize,
    origin: Origin,
}

impl Block {
    /// At an address that kernels of all `users` may use: for other devices, peer access is switched on for good.
    pub fn allocate(device: &Arc<Device>, bytes: usize, users: &[&Device]) -> Result<Block> {
        let mut address = 0;
        {
            let _guard = device.enter()?;
            // SAFETY: writes one address.
            check("cuMemAlloc", unsafe { (device.api.mem_alloc)(&mut address, bytes) })?;
        }
        let block = Block { device: device.clone(), address, bytes, origin: Origin::Own };
        users.iter().try_for_each(|user| user.open_to(device))?;
        Ok(block)
    }

    /// What another process opens it by.
    pub fn export(&self) -> Result<IpcHandle> {
        let _guard = self.device.enter()?;
        let mut handle = IpcHandle([0; size_of::<IpcHandle>()]);
        // SAFETY: writes one handle.
        check("cuIpcGetMemHandle", unsafe { (self.device.api.ipc_handle)(&mut handle, self.address) })?;
        Ok(handle)
    }

    /// Never of this process's own, which the driver refuses.
    pub fn import(device: &Arc<Device>, handle: IpcHandle, bytes: usize) -> Result<Block> {
        const ENABLE_PEER_ACCESS: u32 = 1;
        let _guard = device.enter()?;
        let mut address = 0;
        // SAFETY: writes one address.
        check("cuIpcOpenMemHandle", unsafe {
            (device.api.ipc_open)(&mut address, handle, ENABLE_PEER_ACCESS)
        })?;
        Ok(Block { device: device.clone(), address, bytes, origin: Origin::Imported })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut yard = self.device.yard.content();
        yard.dropped.push((self.address, self.origin));
        yard.give_back(&self.device);
    }
}

impl Yard {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn begin(&self, ledger: Arc<Ledger>) {
        self.content().work.push(ledger);
    }

    pub fn end(&self, ledger: &Arc<Ledger>, device: &Device) {
        let mut content = self.content();
        content.work.retain(|other| !Arc::ptr_eq(other, ledger));
        content.give_back(device);
    }
}

impl Content {
    /// Everything that was dropped, unless a kernel runs, or may run in a replay. None begins meanwhile.
    fn give_back(&mut self, device: &Device) {
        if self.dropped.is_empty() {
            return;
        }
        let Ok(_guard) = device.enter() else { return }; // a context that is lost has no memory either
        let Some(_held) = self.work.iter().map(|ledger| ledger.hold()).collect::<Option<Vec<_>>>() else {
            return;
        };
        for (address, origin) in self.dropped.drain(..) {
            // SAFETY: allocated or opened by us, and nobody of this process uses it.
            unsafe {
                match origin {
                    Origin::Own => (device.api.mem_free)(address),
                    Origin::Imported => (device.api.ipc_close)(address),
                };
            }
        }
    }
}

impl Device {
    /// Lets kernels of this device use all memory of cuMemAlloc on another device of this process.
    pub(super) fn open_to(&self, other: &Device) -> Result<()> {
        const ALREADY_ENABLED: u32 = 704;
        if self.handle == other.handle {
            return Ok(());
        }
        let _guard = self.enter()?;
        // SAFETY: the other context is retained for good.
        match unsafe { (self.api.enable_peer)(other.context, 0) } {
            0 | ALREADY_ENABLED => Ok(()),
            code => check("cuCtxEnablePeerAccess", code).map_err(|error| Error {
                status: Status::DEEP_EP_PEER_UNREACHABLE,
                text: format!("device {} has no access to device {}: {error}", self.ordinal, other.ordinal),
                ..error
            }),
        }
    }
}
