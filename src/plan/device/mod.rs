//! The CUDA backend in integers: where things lie in device memory, and how kernels are launched.

mod layout;
mod slotted_combine_tuning;
mod slotted_tuning;
mod tuning;

pub use layout::{slot_counts, HandleArrays, Region, WORD_BYTES};
pub use slotted_combine_tuning::{SlotWork, SlottedCombineTuning};
pub use slotted_tuning::{SlottedLimit, SlottedTuning, SlottedWork};
pub use tuning::{combine_slice_shift, dispatch_slice_shift, DispatchShared, Tuning, COMBINE_THREADS};

use super::config::{Config, Layout};
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
    if config.trace {
        return refuse("DEEP_EP_BUFFER_TRACE on the CUDA backend".into());
    }
    for (name, count) in
        [("dispatch_windows", config.dispatch_windows), ("combine_windows", config.combine_windows)]
    {
        if count > MAX_WINDOWS {
            return refuse(format!("{name} is {count}; the CUDA backend has at most {MAX_WINDOWS}"));
        }
    }
    let all = config.num_ranks as u64 * config.max_tokens;
    if config.layout == Layout::PackedByExpert && config.max_recv_rows < all {
        return refuse(format!(
            "max_recv_rows is {} with layout PACKED_BY_EXPERT on the CUDA backend, which needs room for num_ranks * \
             max_tokens = {all} rows; set 0",
            config.max_recv_rows
        ));
    }
    Ok(())
}
