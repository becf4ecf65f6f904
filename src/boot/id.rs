//! The unique id: where the ranks of a group meet, and the secret that keeps others out.

use super::mac::{self, Key};
use super::sock::SockAddr;
use crate::error::{Error, Result};
use std::net::{SocketAddr, ToSocketAddrs};

pub const UNIQUE_ID_BYTES: usize = 128;
const MAGIC: [u8; 4] = *b"dEP\x01"; // the last byte is the version of this layout
const ADDRESS_BYTES: usize = UNIQUE_ID_BYTES - 24;

/// 128 bytes that the caller carries to every rank: magic 4, kind 1, address length 1, zero 2, secret 16, address.
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId {
    bytes: [u8; UNIQUE_ID_BYTES],
}

/// Where rank 0 listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    /// An abstract Unix socket named by the secret: nothing to choose, nothing left behind.
    Secret,
    Tcp(SocketAddr),
    Path(String),
    Abstract(String),
}

impl std::fmt::Debug for UniqueId {
    /// Without the secret, since debug output ends up in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UniqueId({:?})", self.address())
    }
}

impl UniqueId {
    /// Draws a secret and notes the address; binds nothing. `address` is "host:port", "unix:/path",
    /// "unix:@name" or nothing: then, and with port 0, the ranks meet at a socket named by the secret.
    pub fn create(address: Option<&str>) -> Result<Self> {
        let address = address.map_or(Ok(Address::Secret), Address::parse)?;
        let (kind, text) = match &address {
            Address::Secret => (0, String::new()),
            Address::Tcp(address) => (1, address.to_string()),
            Address::Path(path) => (2, path.clone()),
            Address::Abstract(name) => (3, name.clone()),
        };
        let mut bytes = [0u8; UNIQUE_ID_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = kind;
        bytes[5] = text.len() as u8; // parse saw that it fits
        bytes[8..24].copy_from_slice(&mac::random()?);
        bytes[24..24 + text.len()].copy_from_slice(text.as_bytes());
        Ok(UniqueId { bytes })
    }

    /// Takes an id that came from another rank.
    pub fn from_bytes(bytes: &[u8; UNIQUE_ID_BYTES]) -> Result<Self> {
        let id = UniqueId { bytes: *bytes };
        if bytes[..4] != MAGIC || id.decode().is_none() {
            return Err(Error::invalid_argument(
                "unique_id: not made by deep_ep_unique_id_create of this version, or damaged on its way",
            ));
        }
        Ok(id)
    }

    pub fn as_bytes(&self) -> &[u8; UNIQUE_ID_BYTES] {
        &self.bytes
    }

    pub(super) fn secret(&self) -> Key {
        std::array::from_fn(|i| self.bytes[8 + i])
    }

    pub(super) fn address(&self) -> Address {
        self.decode().unwrap_or(Address::Secret) // both constructors saw it decode
    }

    fn decode(&self) -> Option<Address> {
        let used = usize::from(self.bytes[5]);
        let text = std::str::from_utf8(self.bytes[24..].get(..used)?).ok()?.to_owned();
        if self.bytes[6..8] != [0; 2] || self.bytes[24 + used..].iter().any(|byte| *byte != 0) {
            return None;
        }
        match (self.bytes[4], used) {
            (0, 0) => Some(Address::Secret),
            (1, _) => text.parse().ok().map(Address::Tcp),
            (2, 1..) => Some(Address::Path(text)),
            (3, 1..) => Some(Address::Abstract(text)),
            _ => None,
        }
    }

    pub(super) fn sock_addr(&self) -> SockAddr {
        match self.address() {
            // The name is public to everyone on the host, so it is derived from the secret, not the secret.
            Address::Secret => SockAddr::hidden(&mac::tag(&self.secret(), b'A', &[])),
            Address::Tcp(address) => SockAddr::tcp(address),
            Address::Path(path) => SockAddr::unix(path.as_bytes(), false),
            Address::Abstract(name) => SockAddr::unix(name.as_bytes(), true),
        }
    }
}

impl Address {
    fn parse(text: &str) -> Result<Self> {
        let refuse = |why: &str| Err(Error::invalid_argument(format_args!("address \"{text}\": {why}")));
        if text.contains('\0') {
            return refuse("it contains a zero byte");
        }
        if let Some(name) = text.strip_prefix("unix:") {
            if name.len() > ADDRESS_BYTES {
                return refuse(&format!("a socket path has at most {ADDRESS_BYTES} bytes"));
            }
            return match name.strip_prefix('@') {
                Some("") => refuse("the name after unix:@ is empty"),
                Some(name) => Ok(Address::Abstract(name.to_owned())),
                None if name.starts_with('/') => Ok(Address::Path(name.to_owned())),
                None => refuse("a socket path starts with /, or with @ for an abstract name"),
            };
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            return refuse("expected host:port, unix:/path or unix:@name");
        };
        if host.is_empty() {
            return refuse("the host before the port is missing");
        }
        let Ok(port) = port.parse::<u16>() else {
            return refuse("the port is not a number from 0 to 65535");
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let Some(found) = (bare, port).to_socket_addrs().ok().and_then(|mut found| found.next()) else {
            return refuse("the host has no address");
        };
        Ok(if port == 0 { Address::Secret } else { Address::Tcp(found) })
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Secret => write!(f, "the unique id's own socket"),
            Address::Tcp(address) => write!(f, "{address}"),
            Address::Path(path) => write!(f, "unix:{path}"),
            Address::Abstract(name) => write!(f, "unix:@{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Status;

    #[test]
    fn every_form_survives_the_journey() {
        for (text, shown) in [
            ("127.0.0.1:4711", "127.0.0.1:4711"),
            ("[::1]:4711", "[::1]:4711"),
            ("127.0.0.1:0", "the unique id's own socket"),
            ("unix:/tmp/a b", "unix:/tmp/a b"),
            ("unix:@name", "unix:@name"),
        ] {
            let id = UniqueId::create(Some(text)).unwrap();
            let back = UniqueId::from_bytes(id.as_bytes()).unwrap();
            assert_eq!(back.address().to_string(), shown);
            assert_eq!(back.secret(), id.secret());
        }
        let (a, b) = (UniqueId::create(None).unwrap(), UniqueId::create(None).unwrap());
        assert_ne!(a, b);
        let secret: String = a.secret().iter().map(|byte| format!("{byte}, ")).collect();
        assert!(!format!("{a:?}").contains(&secret));
    }

    #[test]
    fn bad_text_is_named() {
        let long = format!("unix:/{}", "x".repeat(ADDRESS_BYTES));
        for text in
            ["", "nonsense", "host:", ":80", "h:65536", "h:-1", "unix:", "unix:@", "unix:rel", "a\0:1", &long]
        {
            let error = UniqueId::create(Some(text)).unwrap_err();
            assert_eq!(error.status, Status::DEEP_EP_INVALID_ARGUMENT);
            assert!(error.text.contains(text), "{error}");
        }
    }

    #[test]
    fn damaged_ids_are_refused() {
        let good = *UniqueId::create(Some("127.0.0.1:4711")).unwrap().as_bytes();
        for (at, value) in
            [(0, 0), (3, 9), (4, 7), (4, 0), (5, 200), (6, 1), (24, b'x'), (24, 0xff), (127, 1)]
        {
            let mut bytes = good;
            bytes[at] = value;
            assert!(UniqueId::from_bytes(&bytes).is_err(), "byte {at} = {value} passed");
        }
        assert!(UniqueId::from_bytes(&[0; 128]).is_err());
    }
}
