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

/// "rank 3", "ranks 1, 2 and 5"; a long list is cut.
pub fn rank_list(ranks: &[u32]) -> String {
    const SHOWN: usize = 16;
    match ranks {
        [] => "no rank".to_owned(),
        [one] => format!("rank {one}"),
        [first @ .., last] if ranks.len() <= SHOWN => {
            let first: Vec<String> = first.iter().map(u32::to_string).collect();
            format!("ranks {} and {last}", first.join(", "))
        }
        _ => {
            let first: Vec<String> = ranks[..SHOWN].iter().map(u32::to_string).collect();
            format!("ranks {} and {} more", first.join(", "), ranks.len() - SHOWN)
        }
    }
}

/// The longest start of `text` that has at most `bytes` bytes and ends between characters.
fn cut(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod text_tests {
    use super::*;

    #[test]
    fn lists_read_as_sentences() {
        assert_eq!(rank_list(&[3]), "rank 3");
        assert_eq!(rank_list(&[1, 2, 5]), "ranks 1, 2 and 5");
        let many: Vec<u32> = (0..20).collect();
        assert_eq!(rank_list(&many), "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 4 more");
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(cut("abc", 9), "abc");
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(cut("é", 1), "");
    }
}
