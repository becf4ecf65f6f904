//! Beginning anew after a failure.

use super::memory::Cuda;
use super::params::*;
use crate::error::Result;
use std::mem::offset_of;
use std::sync::atomic::Ordering;

impl Cuda {
    /// The newest epoch that this rank may have begun: one that failed was not taken.
    pub fn newest_begun(&self) -> Result<u64> {
        Ok(self.state_word(offset_of!(BufferWords, epoch) as u64)? + 1)
    }

    /// Forgets all operations up to epoch `newest`. No kernel of any rank that is alive runs. `records`: of all handles.
    pub fn restart(&self, newest: u64, alive: &[bool], records: &[u64]) -> Result<()> {
        let layout = &self.layout;
        self.reports.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        *self.soft_taken.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = 0;
        let alive: Vec<u8> = alive.iter().map(|&alive| alive.into()).collect();
        // Ranks may have told different numbers of reads; each epoch has at most one, so this is beyond all of them.
        let reads_ended = newest + 1;
        let word = |field: usize| layout.state + field as u64;
        // SAFETY: parts of the region, each with room for what is written; the records are device memory that lives as
        // long as the handles, which the caller's use of the buffer keeps.
        unsafe {
            self.fill(self.own(layout.verdicts), 0, layout.counts - layout.verdicts)?;
            self.fill(self.own(layout.totals), 0, layout.counters - layout.totals)?;
            self.fill(self.own(layout.state), 0, STATE_BYTES)?;
            for (offset, number) in [
                (word(offset_of!(BufferWords, epoch)), newest),
                (word(offset_of!(BufferWords, received)), newest),
                (word(offset_of!(BufferWords, reads_ended)), reads_ended),
                (layout.control + offset_of!(BufferControl, first_until) as u64, newest),
                (layout.control + offset_of!(BufferControl, soft_cleared) as u64, 0),
            ] {
                self.write(self.own(offset), &number.to_le_bytes())?;
            }
            self.write(self.own(layout.alive), &alive)?;
            for record in records {
                self.fill(*record, 0, RECORD_BYTES)?;
                // A graph may still try to combine it.
                let refused = offset_of!(HandleRecord, dispatch_refused) as u64;
                self.write(record + refused, &1u64.to_le_bytes())?;
            }
        }
        Ok(())
    }
}
