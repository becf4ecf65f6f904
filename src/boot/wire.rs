//! What ranks say to each other while they meet: frames with a proof, and the messages in them.

use super::mac::{self, Key, Tag};
use super::sock::Conn;
use super::Host;
use crate::error::{Error, Result, Status};
use std::time::Instant;

/// Changes with every change of these messages or of the control region.
pub(super) const PROTOCOL: u32 = 1;
const FRAME_MAGIC: u32 = 0x3150_4564;
const FRAME_EXTRA: usize = 8 + size_of::<Tag>();
/// The longest hello a guest may send, and the longest answer a rank takes.
pub(super) const HELLO_LIMIT: usize = 512;
pub(super) const VERDICT_LIMIT: usize = 1 << 21;
const TEXT_LIMIT: usize = 1000;

/// What a rank says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hello {
    pub version: u32,
    pub rank: u32,
    pub num_ranks: u32,
    /// How long this rank will still wait.
    pub patience_ms: u32,
    pub host: Host,
    /// Names the socket at which this rank takes descriptors.
    pub mailbox: [u8; 16],
}

/// What all ranks know once rank 0 has heard everybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    /// Drawn by rank 0; with the secret it makes the key of the descriptor exchange.
    pub nonce: [u8; 16],
    pub mailboxes: Vec<[u8; 16]>,
}

/// Takes values off the front of a message; None where it is too short.
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn text(&mut self) -> Option<String> {
        let count = self.u32()? as usize;
        Some(String::from_utf8_lossy(self.bytes(count)?).into_owned())
    }
}

impl Hello {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for word in [self.version, self.rank, self.num_ranks, self.patience_ms] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.mailbox);
        out.extend_from_slice(&self.host.id);
        put_text(&mut out, &self.host.label);
        out
    }

    /// The first four words are the same in every version; of a hello of another version only they are read.
    pub fn decode(body: &[u8], version: u32) -> Option<Self> {
        let mut from = Reader(body);
        let mut hello = Hello {
            version: from.u32()?,
            rank: from.u32()?,
            num_ranks: from.u32()?,
            patience_ms: from.u32()?,
            host: Host { id: [0; 16], label: String::new() },
            mailbox: [0; 16],
        };
        if hello.version == version {
            hello.mailbox = from.array()?;
            hello.host = Host { id: from.array()?, label: from.text()? };
        }
        Some(hello)
    }

    /// What is wrong with a rank that says this to one that is `self`.
    pub fn compare(&self, other: &Hello) -> Result<()> {
        let about = |status, text: String| Err(Error::about(status, vec![other.rank], text));
        if other.version != self.version {
            return about(
                Status::DEEP_EP_ABI_MISMATCH,
                format!(
                    "rank {} speaks protocol {}, rank {} speaks {}: use one version of the library",
                    other.rank, other.version, self.rank, self.version
                ),
            );
        }
        if other.num_ranks != self.num_ranks {
            return about(
                Status::DEEP_EP_CONFIG_MISMATCH,
                format!(
                    "num_ranks: rank {} passed {}, rank {} passed {}",
                    other.rank, other.num_ranks, self.rank, self.num_ranks
                ),
            );
        }
        if other.host.id != self.host.id {
            return about(
                Status::DEEP_EP_PEER_UNREACHABLE,
                format!(
                    "rank {} is on host {}, rank {} on {}: memory is shared within one host and network namespace",
                    other.rank, other.host.label, self.rank, self.host.label
                ),
            );
        }
        Ok(())
    }
}

/// The end of a rendezvous: the table, or why there is none.
pub(super) fn encode_verdict(verdict: &Result<Table>) -> Vec<u8> {
    let mut out = encode_outcome(verdict);
    if let Ok(table) = verdict {
        out.extend_from_slice(&table.nonce);
        out.extend(table.mailboxes.iter().flatten());
    }
    out
}

/// None if it is no verdict for that many ranks.
pub(super) fn decode_verdict(body: &[u8], num_ranks: u32) -> Option<Result<Table>> {
    let mut from = Reader(body);
    if let Err(error) = decode_outcome(&mut from)? {
        return Some(Err(error));
    }
    let nonce = from.array()?;
    let mailboxes = (0..num_ranks).map(|_| from.array()).collect::<Option<_>>()?;
    from.0.is_empty().then_some(Ok(Table { nonce, mailboxes }))
}

/// Success, or an error with all that it carries.
pub(super) fn encode_outcome<T>(outcome: &Result<T>) -> Vec<u8> {
    let Err(error) = outcome else { return vec![0; 4] };
    let mut out = (error.status as u32).to_le_bytes().to_vec();
    out.extend_from_slice(&(error.ranks.len() as u32).to_le_bytes());
    out.extend(error.ranks.iter().flat_map(|rank| rank.to_le_bytes()));
    put_text(&mut out, super::cut(&error.text, TEXT_LIMIT));
    out
}

pub(super) fn decode_outcome(from: &mut Reader<'_>) -> Option<Result<()>> {
    let status = from.u32()?;
    if status == 0 {
        return Some(Ok(()));
    }
    let status = Status::ALL.into_iter().find(|known| *known as u32 == status)?;
    let count = from.u32()?;
    let ranks = (0..count).map(|_| from.u32()).collect::<Option<Vec<_>>>()?;
    Some(Err(Error::about(status, ranks, from.text()?)))
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// The two nonces of a connection and the secret: what its proofs are made of.
pub(super) struct Seal {
    pub secret: Key,
    pub server: [u8; 16],
    pub client: [u8; 16],
}

/// Which message a proof is for: one made for another, or by the other side, proves nothing.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    Hello = b'h' as isize,
    Welcome = b'w' as isize,
    Verdict = b'v' as isize,
}

impl Seal {
    fn proof(&self, purpose: Purpose, body: &[u8]) -> Tag {
        mac::tag(&self.secret, purpose as u8, &[&self.server, &self.client, body])
    }

    pub fn frame(&self, purpose: Purpose, body: &[u8]) -> Vec<u8> {
        let mut out = FRAME_MAGIC.to_le_bytes().to_vec();
        out.extend_from_slice(&(body.len() as u32).to_le_bytes());
        out.extend_from_slice(body);
        out.extend_from_slice(&self.proof(purpose, body));
        out
    }

    /// The body of the frame at the front of `input`, taken off it: None while it is incomplete, an error when
    /// it is no frame or its proof is wrong.
    pub fn open(
        &self,
        purpose: Purpose,
        input: &mut Vec<u8>,
        limit: usize,
    ) -> std::io::Result<Option<Vec<u8>>> {
        let Some(whole) = frame_length(input, limit)? else { return Ok(None) };
        let frame: Vec<u8> = input.drain(..whole).collect();
        let (body, proof) = frame[8..].split_at(whole - FRAME_EXTRA);
        if !mac::same(proof, &self.proof(purpose, body)) {
            return Err(invalid("its proof is wrong: it has another unique id"));
        }
        Ok(Some(body.to_vec()))
    }

    /// Waits for a frame.
    pub fn receive(
        &self,
        purpose: Purpose,
        conn: &mut Conn,
        limit: usize,
        until: Instant,
    ) -> std::io::Result<Vec<u8>> {
        loop {
            if let Some(body) = self.open(purpose, &mut conn.input, limit)? {
                return Ok(body);
            }
            conn.wait_fill(limit, until)?;
        }
    }
}

/// The length of the frame at the front of `input`, once all of it is there.
fn frame_length(input: &[u8], limit: usize) -> std::io::Result<Option<usize>> {
    let mut from = Reader(input);
    let Some(magic) = from.u32() else { return Ok(None) };
    if magic != FRAME_MAGIC {
        return Err(invalid("it does not speak this protocol"));
    }
    let Some(body) = from.u32() else { return Ok(None) };
    let whole = body as usize + FRAME_EXTRA;
    if whole > limit {
        return Err(invalid("its message is too long"));
    }
    Ok((input.len() >= whole).then_some(whole))
}

fn invalid(text: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello { version: 1, rank: 2, num_ranks: 3, patience_ms: 9, host: Host::current(), mailbox: [5; 16] }
    }

    #[test]
    fn messages_survive_the_journey() {
        let hello = hello();
        assert_eq!(Hello::decode(&hello.encode(), 1), Some(hello.clone()));
        let newer = Hello::decode(&hello.encode()[..16], 2).unwrap();
        assert_eq!((newer.version, newer.rank), (1, 2));
        let table = Table { nonce: [1; 16], mailboxes: vec![[2; 16], [3; 16], [4; 16]] };
        let error = Error::about(Status::DEEP_EP_TIMEOUT, vec![1, 7], "ranks 1 and 7");
        for verdict in [Ok(table), Err(error)] {
            assert_eq!(decode_verdict(&encode_verdict(&verdict), 3), Some(verdict));
        }
    }

    #[test]
    fn cut_messages_are_no_messages() {
        let hello = hello().encode();
        let error = encode_verdict(&Err(Error::about(Status::DEEP_EP_TIMEOUT, vec![1], "late")));
        for len in 0..hello.len() {
            assert_eq!(Hello::decode(&hello[..len], 1), None);
        }
        for len in 0..error.len() {
            assert_eq!(decode_verdict(&error[..len], 3), None);
        }
        assert_eq!(decode_verdict(&u32::MAX.to_le_bytes(), 3), None);
    }

    #[test]
    fn a_frame_proves_who_sent_it_and_for_what() {
        let seal = |secret: u8| Seal { secret: [secret; 16], server: [2; 16], client: [3; 16] };
        let frame = seal(1).frame(Purpose::Hello, b"body");
        for len in 0..frame.len() {
            assert!(seal(1).open(Purpose::Hello, &mut frame[..len].to_vec(), 99).unwrap().is_none());
        }
        let mut twice = [frame.clone(), frame.clone()].concat();
        for _ in 0..2 {
            assert_eq!(seal(1).open(Purpose::Hello, &mut twice, 99).unwrap().unwrap(), b"body");
        }
        assert!(seal(9).open(Purpose::Hello, &mut frame.clone(), 99).is_err());
        assert!(seal(1).open(Purpose::Welcome, &mut frame.clone(), 99).is_err());
        assert!(seal(1).open(Purpose::Hello, &mut frame.clone(), 20).is_err());
        assert!(seal(1).open(Purpose::Hello, &mut b"GET / HTTP/1.1".to_vec(), 99).is_err());
    }

    #[test]
    fn a_difference_names_both_sides() {
        let mine = hello();
        let mut other = Hello { rank: 1, ..hello() };
        assert_eq!(mine.compare(&other), Ok(()));
        other.host = Host { id: [0; 16], label: "elsewhere".into() };
        let error = mine.compare(&other).unwrap_err();
        assert_eq!((error.status, error.ranks), (Status::DEEP_EP_PEER_UNREACHABLE, vec![1]));
        assert!(error.text.contains("elsewhere") && error.text.contains(&mine.host.label));
        other.num_ranks = 77;
        let error = mine.compare(&other).unwrap_err();
        assert_eq!(error.text, "num_ranks: rank 1 passed 77, rank 2 passed 3");
        other.version = 88;
        assert!(mine.compare(&other).unwrap_err().text.contains("protocol 88, rank 2 speaks 1"));
    }
}
