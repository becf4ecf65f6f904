//! Memory that ranks share, and how a thread waits for words in it to change.

mod fork;
mod local;
mod random;
mod region;
mod time;
mod wait;
pub mod word;

pub use fork::ForkGuard;
pub use local::LocalMemory;
pub use random::random;
pub use region::Region;
pub use time::monotonic_ns;
pub use wait::{deadline_after, Backoff};
pub use word::Word;
