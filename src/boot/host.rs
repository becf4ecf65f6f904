//! Which host this is: ranks of one group must share memory, so they must share a running kernel.

use super::mac::{self, Tag};

const LABEL_BYTES: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Host {
    /// Equal exactly where ranks can map each other's memory.
    pub id: Tag,
    /// The host's name and the start of its boot id, for people.
    pub label: String,
}

impl Host {
    pub fn current() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        // Abstract sockets, over which the memory travels, end at the network namespace.
        let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
        let parts = [boot.trim().as_bytes(), name.trim().as_bytes(), network.as_os_str().as_encoded_bytes()];
        let label = format!("{} (boot {:.8})", name.trim(), boot.trim());
        Host { id: mac::tag(&[0; 16], b'H', &parts), label: super::cut(&label, LABEL_BYTES).to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_itself() {
        assert_eq!(Host::current(), Host::current());
        assert!(Host::current().label.len() <= LABEL_BYTES);
    }
}
