//! Going on after a failure.

use super::state::{Buffer, Entered};
use crate::backend::host::Host;
use crate::error::{Error, Result, Status};
use crate::plan::report::Report;

#[derive(Clone, Copy)]
struct Agreed {
    /// The newest epoch that any survivor may have begun.
    newest: u64,
    /// Whether any survivor still has regions that a rank left out has mapped.
    leave_behind: bool,
}

impl Agreed {
    fn encode(self) -> Vec<u8> {
        [self.newest, self.leave_behind.into()].iter().flat_map(|n| n.to_le_bytes()).collect()
    }

    fn decode(bytes: &[u8]) -> Option<Agreed> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Agreed { newest: number(0)?, leave_behind: number(8)? != 0 })
    }

    fn with(self, other: Agreed) -> Agreed {
        Agreed {
            newest: self.newest.max(other.newest),
            leave_behind: self.leave_behind || other.leave_behind,
        }
    }
}

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
        entered.end_all_on_device()?;
        self.comm.group.begin();
        let agreed = entered.agree_on_epoch(&alive)?;
        entered.restart(&alive, agreed).map_err(|error| {
            // Some ranks may have begun anew and others not: only another reset brings them together.
            self.failures.poison(Report {
                status: error.status,
                missing: error.ranks,
                detail: format!("the reset was not completed: {}", error.text),
                epoch: agreed.newest,
                ..Report::nothing(self.comm.rank() as u32)
            })
        })?;
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

    /// What the survivors have to do, the same on all of them.
    fn agree_on_epoch(&self, alive: &[bool]) -> Result<Agreed> {
        // An operation that failed has announced the next epoch without taking it.
        let begun = self.newest_on_device()?.max(self.state.books.epochs.next());
        let mine = Agreed { newest: begun, leave_behind: alive != self.state.alive };
        let group = &self.buffer.comm.group;
        let all = group
            .all_gather(&mine.encode(), Some(alive), self.buffer.agreement_timeout())
            .map_err(explain)?;
        Ok(all.iter().filter_map(|bytes| Agreed::decode(bytes)).fold(mine, Agreed::with))
    }

    /// Forgets all operations, together with the other survivors.
    fn restart(&mut self, alive: &[bool], agreed: Agreed) -> Result<()> {
        if agreed.leave_behind {
            self.leave_behind(alive)?;
        }
        match self.state.device.is_some() {
            true => self.restart_on_device(agreed.newest, alive)?,
            false => self.state.host.clear_verdicts(),
        }
        self.state.restart(agreed.newest + 1);
        self.state.alive.copy_from_slice(alive);
        // Nobody begins an operation before all have forgotten the old ones.
        self.buffer.comm.group.all_gather(&[], Some(alive), self.buffer.agreement_timeout())?;
        Ok(())
    }

    /// Fresh regions for the survivors.
    fn leave_behind(&mut self, alive: &[bool]) -> Result<()> {
        if self.state.device.is_some() {
            return self.leave_behind_on_device(alive);
        }
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
