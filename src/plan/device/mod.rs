//! The CUDA backend in integers: where things lie in device memory, and how kernels are launched.

mod division;
mod layout;
mod slotted_combine_tuning;
mod slotted_tuning;
mod tuning;

pub use division::magic;
pub use layout::{slot_counts, HandleArrays, Region, WORD_BYTES};
pub use slotted_combine_tuning::{SlotWork, SlottedCombineTuning};
pub use slotted_tuning::{SlottedLimit, SlottedTuning, SlottedWork};
pub use tuning::{
    combine_slice_shift, dispatch_slice_shift, DispatchShared, SumStages, Tuning, COMBINE_THREADS,
};

use super::config::{Config, Layout};
use super::windows;
use crate::error::{Error, Result};

/// Windows of one kind that the kernels can keep book of.
pub const MAX_WINDOWS: usize = 8;

/// Refuses what this backend does not do.
pub fn check(config: &Config) -> Result<()> {
    let refuse = |text: String| Err(Error::unsupported(text));
    if config.refuse_bad_ids {
        return refuse(
            "DEEP_EP_BUFFER_REFUSE_BAD_IDS on the CUDA backend: the host does not see device memory".into(),
        );
    }
    for (name, count) in
        [("dispatch_windows", config.dispatch_windows), ("combine_windows", config.combine_windows)]
    {
        if count > MAX_WINDOWS {
            return refuse(format!("{name} is {count}; the CUDA backend has at most {MAX_WINDOWS}"));
        }
    }
    Ok(())
}

/// Whether more rows may be sent to a rank than its window takes, in the layout where that moves other rows too.
pub fn link_may_overflow(config: &Config) -> bool {
    config.layout == Layout::PackedByExpert
        && config.max_recv_rows < config.num_ranks as u64 * config.max_tokens
}

/// Regions for counts: an operation may exchange them twice, and reads the first while the second comes in.
pub fn count_regions(config: &Config) -> usize {
    match link_may_overflow(config) {
        true => 2,
        false => windows::count_regions(config.depth()),
    }
}
