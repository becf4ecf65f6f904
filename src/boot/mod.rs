//! How the ranks of a group find each other and agree: the rendezvous, then all-gathers, descriptor exchange
//! and abort over one small shared page per rank. No thread, socket or descriptor remains between calls.
//!
//! `id` says where to meet; `server` (rank 0) and `client` (the others) meet there, in the words of `wire` over
//! `sock`, with proofs by `mac`. `mailbox` then carries every rank's `control` page to every other, and from
//! there on `gather` and `share` need no rendezvous any more. `group` ties these together.

mod client;
mod control;
#[cfg(test)]
mod exchange_tests;
mod gather;
mod group;
mod host;
mod id;
mod mac;
mod mailbox;
mod server;
mod share;
mod sock;
#[cfg(test)]
mod tests;
mod wire;

pub use gather::MAX_GATHER_BYTES;
pub use group::{Group, MAX_RANKS};
pub use id::{UniqueId, UNIQUE_ID_BYTES};

use host::Host;

/// The longest start of `text` that has at most `bytes` bytes and ends between characters.
fn cut(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod text_tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(cut("abc", 9), "abc");
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(cut("é", 1), "");
    }
}
