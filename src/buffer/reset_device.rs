//! The part of a reset that concerns a CUDA device.

use super::create::share_memory;
use super::device::nowhere;
use super::state::{Buffer, Entered};
use crate::error::Result;
use std::sync::Arc;

impl Buffer {
    /// The deadlines that were asked for last, after a drain has cut them short.
    fn restore_timeouts(&self) -> Result<()> {
        match self.device() {
            Some(device) => {
                let [timeout, first] = self.timeouts_ms();
                device.set_timeouts(timeout, first)
            }
            None => Ok(()),
        }
    }
}

impl Entered<'_> {
    /// No kernel of this rank runs afterwards.
    pub fn end_all_on_device(&mut self) -> Result<()> {
        let Some(device) = &self.state.device else { return Ok(()) };
        let drained = device.drain();
        self.buffer.restore_timeouts()?;
        drained
    }

    pub fn newest_on_device(&self) -> Result<u64> {
        self.state.device.as_ref().map_or(Ok(0), |device| device.newest_begun())
    }

    pub fn restart_on_device(&mut self, newest: u64, alive: &[bool]) -> Result<()> {
        let Some(device) = &self.state.device else { return Err(nowhere()) };
        device.restart(newest, alive, &self.state.records)
    }

    /// Memory that the ranks left out have never mapped.
    pub fn leave_behind_on_device(&mut self, alive: &[bool]) -> Result<()> {
        let (Some(device), Some(site)) = (&self.state.device, &self.buffer.comm.site) else {
            return Err(nowhere());
        };
        let (comm, timeout) = (&self.buffer.comm, self.buffer.agreement_timeout());
        let regions = share_memory(comm, site, &self.buffer.config, Some(alive), timeout)?;
        let next = comm.group.agree(device.with_regions(regions), Some(alive), timeout)?;
        let next = Arc::new(next);
        self.state.device = Some(next.clone());
        self.buffer.replace_device(next);
        self.state.own_new_region();
        self.buffer.restore_timeouts()
    }
}
