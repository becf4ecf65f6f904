//! Going on after a failure.

use super::state::{Buffer, Entered};
use crate::backend::host::Host;
use crate::error::{Error, Result, Status};

impl Buffer {
    /// Collective over the ranks that are alive: they agree on the mask and on one next epoch, beyond every epoch that
    /// any of them began, so that no signal of a void operation can be taken for a new one. The masked ranks may be only
    /// slow and still store rows, so survivors go on in regions those ranks have never mapped.
    pub fn reset(&self, alive: Option<Vec<bool>>) -> Result<()> {
        let mut entered = self.enter()?;
        if let Some(error) = self.failures.was_aborted() {
            return Err(Error {
                text: format!("{error}; destroy the buffer and the comm and create anew"),
                ..error
            });
        }
        let alive = entered.checked_mask(alive)?;
        let newest = entered.agree_on_epoch(&alive)?;
        if alive != entered.state.alive {
            entered.leave_behind(&alive)?;
        }
        entered.state.host.clear_verdicts();
        entered.state.restart(newest + 1);
        entered.state.alive.clone_from(&alive);
        // Nobody begins an operation before all have forgotten the old ones.
        self.comm.group.all_gather(&[], Some(&alive), self.agreement_timeout())?;
        *self.alive.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = alive;
        self.failures.clear();
        Ok(())
    }
}

impl Entered<'_> {
    fn checked_mask(&self, alive: Option<Vec<bool>>) -> Result<Vec<bool>> {
        let alive = alive.unwrap_or_else(|| self.state.alive.clone());
        let me = self.state.host.me;
        if !alive[me] {
            return Err(Error::invalid_argument(format_args!(
                "alive[{me}] is 0, but rank {me} makes the call"
            )));
        }
        if let Some(rank) = (0..alive.len()).find(|&rank| alive[rank] && !self.state.alive[rank]) {
            return Err(Error::invalid_argument(format_args!(
                "alive[{rank}] is 1, but an earlier reset left that rank out; create a new buffer to take it in"
            )));
        }
        Ok(alive)
    }

    /// The newest epoch that any survivor may have begun.
    fn agree_on_epoch(&self, alive: &[bool]) -> Result<u64> {
        // An operation that failed has announced the next epoch without taking it.
        let begun = self.state.epochs.next();
        let group = &self.buffer.comm.group;
        let all = group
            .all_gather(&begun.to_le_bytes(), Some(alive), self.buffer.agreement_timeout())
            .map_err(explain)?;
        let epochs = all.iter().filter_map(|bytes| bytes[..].try_into().ok().map(u64::from_le_bytes));
        Ok(epochs.max().unwrap_or(begun))
    }

    /// Fresh regions for the survivors.
    fn leave_behind(&mut self, alive: &[bool]) -> Result<()> {
        let group = &self.buffer.comm.group;
        let timeout = self.buffer.agreement_timeout();
        let region = group.agree(Host::allocate(&self.buffer.config), Some(alive), timeout)?;
        let regions = group.share_region(region, Some(alive), timeout)?;
        self.state.host.replace_regions(regions);
        self.state.own_new_region();
        Ok(())
    }
}

fn explain(error: Error) -> Error {
    match error.status {
        Status::DEEP_EP_TIMEOUT => Error {
            text: format!("{error}; every rank that is alive calls deep_ep_buffer_reset with the same mask"),
            ..error
        },
        _ => error,
    }
}
