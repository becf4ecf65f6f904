//! The ways in which device memory of one process becomes memory of another.

use crate::error::{Error, Result};

/// Names one of the ways, for tests and for machines where the choice is wrong.
const VARIABLE: &str = "DEEPEP_CUDA_SHARING";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Virtual memory, passed on as 64 bytes. Needs a fabric channel that the process may use, which no attribute tells.
    Fabric,
    /// Virtual memory, passed on as a descriptor.
    Descriptor,
    /// Memory of cuMemAlloc, passed on as 64 bytes (legacy IPC).
    Legacy,
}

impl Sharing {
    /// The best first.
    pub const ALL: [Sharing; 3] = [Sharing::Fabric, Sharing::Descriptor, Sharing::Legacy];

    pub fn name(self) -> &'static str {
        match self {
            Sharing::Fabric => "fabric",
            Sharing::Descriptor => "fd",
            Sharing::Legacy => "ipc",
        }
    }

    /// The one that the environment asks for.
    pub fn asked_for() -> Result<Option<Sharing>> {
        match std::env::var_os(VARIABLE) {
            None => Ok(None),
            Some(name) if name.is_empty() => Ok(None),
            Some(name) => Sharing::named(&name.to_string_lossy()).map(Some),
        }
    }

    fn named(name: &str) -> Result<Sharing> {
        Sharing::ALL.into_iter().find(|sharing| sharing.name() == name).ok_or_else(|| {
            Error::invalid_argument(format_args!("{VARIABLE} is {name}; it is one of fabric, fd, ipc"))
        })
    }

    /// For errors: that the environment asked for it.
    pub fn as_asked_for(self) -> String {
        format!("{VARIABLE} is {}", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_has_a_name_and_others_are_refused() {
        for sharing in Sharing::ALL {
            assert_eq!(Sharing::named(sharing.name()).unwrap(), sharing);
        }
        let error = Sharing::named("vmm").unwrap_err();
        assert_eq!(error.status, crate::error::Status::DEEP_EP_INVALID_ARGUMENT);
        assert!(error.text.contains("DEEPEP_CUDA_SHARING is vmm"), "{error}");
    }
}
