//! Handing descriptors to every peer: one datagram socket per rank, no connections.

use super::mac::{self, Key, Tag};
use super::sock::{self, SockAddr};
use super::wire::{self, Reader};
use crate::error::{rank_list, Error, Result, Status};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Descriptors a rank may hand over at once.
pub(super) const MOST_FDS: usize = 64;
/// Between two tries to send to a full queue, and between two looks at the abort word.
const RETRY: Duration = Duration::from_millis(1);
const LOOK: Duration = Duration::from_millis(10);
/// Datagrams taken in before the next attempt to send.
const BATCH: usize = 64;

/// A socket under a random name at which one exchange arrives.
pub(super) struct Mailbox {
    fd: OwnedFd,
    pub name: [u8; 16],
}

/// One exchange as one rank sees it.
pub(super) struct Exchange<'a> {
    pub key: &'a Key,
    pub rank: u32,
    /// The peers' mailboxes; None for this rank itself and for ranks that take no part.
    pub peers: &'a [Option<[u8; 16]>],
    pub deadline: Instant,
    /// Ends the exchange when it has an error to return.
    pub stop: &'a dyn Fn() -> Option<Error>,
}

impl Mailbox {
    pub fn open() -> Result<Self> {
        let name = mac::random()?;
        let open = || {
            let fd = sock::socket(libc::AF_UNIX, libc::SOCK_DGRAM)?;
            sock::bind(&fd, &SockAddr::hidden(&name))?;
            Ok(fd)
        };
        let fd = open().map_err(|reason: std::io::Error| system("a Unix socket", &reason))?;
        Ok(Mailbox { fd, name })
    }

    /// Sends `mine` to every peer and gives what each of them sent to `take`. An error of `take` is returned at
    /// the end, so that this rank still serves the others; with any other it tells them before it leaves, or
    /// they would take it for the culprit.
    pub fn exchange(
        &self,
        terms: &Exchange<'_>,
        mine: &[BorrowedFd<'_>],
        mut take: impl FnMut(usize, Vec<OwnedFd>) -> Result<()>,
    ) -> Result<()> {
        let mut taken = Ok(());
        self.pass(terms, mine, &mut |from, fds| {
            let result = take(from, fds);
            taken = std::mem::replace(&mut taken, Ok(())).and(result);
        })
        .inspect_err(|error| self.tell(terms, error))?;
        taken
    }

    fn pass(
        &self,
        terms: &Exchange<'_>,
        mine: &[BorrowedFd<'_>],
        take: &mut dyn FnMut(usize, Vec<OwnedFd>),
    ) -> Result<()> {
        let mut unsent: Vec<usize> = (0..terms.peers.len()).filter(|p| terms.peers[*p].is_some()).collect();
        let mut awaited: Vec<bool> = terms.peers.iter().map(Option::is_some).collect();
        let mut left = unsent.len();
        // Start behind the own rank, so that not everybody fills rank 0's queue first.
        unsent.sort_by_key(|peer| (*peer as u32) < terms.rank);
        while left > 0 || !unsent.is_empty() {
            let sent = self.send_to(terms, &mut unsent, mine);
            for _ in 0..BATCH {
                let Some((from, fds)) = self.receive(terms, &awaited)? else { break };
                awaited[from] = false;
                left -= 1;
                take(from, fds);
            }
            sent?; // after the letters, since one of them may tell why that peer left
            if let Some(error) = (terms.stop)() {
                return Err(error);
            }
            if left == 0 && unsent.is_empty() {
                break;
            }
            if Instant::now() >= terms.deadline {
                return Err(late(&awaited, &unsent));
            }
            let pause = if unsent.is_empty() { LOOK } else { RETRY };
            let mut fds = [sock::watch(&self.fd, libc::POLLIN)];
            sock::poll(&mut fds, sock::soon(pause, terms.deadline))
                .map_err(|reason| system("poll", &reason))?;
        }
        Ok(())
    }

    /// Sends to as many of `unsent` as have room, and leaves the others.
    fn send_to(&self, terms: &Exchange<'_>, unsent: &mut Vec<usize>, mine: &[BorrowedFd<'_>]) -> Result<()> {
        let mut outcome = Ok(());
        unsent.retain(|peer| {
            let Some(name) = &terms.peers[*peer] else { return false };
            let body = letter(terms.key, terms.rank, name, mine.len() as u32, &[]);
            match sock::send_with_fds(self.fd.as_fd(), &SockAddr::hidden(name), &body, mine) {
                Ok(()) => false,
                Err(reason) if reason.kind() == ErrorKind::WouldBlock => true,
                Err(reason) => {
                    let text =
                        format!("rank {peer} left before rank {} could reach it: {reason}", terms.rank);
                    outcome = Err(Error::about(Status::DEEP_EP_PEER_FAILED, vec![*peer as u32], text));
                    false
                }
            }
        });
        outcome
    }

    /// Sends every peer the error with which this rank leaves, as far as their queues have room.
    fn tell(&self, terms: &Exchange<'_>, error: &Error) {
        let ranks = error.ranks.iter().copied().take(MOST_RANKS_TOLD).collect();
        let failure = wire::encode_outcome::<()>(&Err(Error { ranks, ..error.clone() }));
        for name in terms.peers.iter().flatten() {
            let body = letter(terms.key, terms.rank, name, FAILURE, &failure);
            for _ in 0..20 {
                let sent = sock::send_with_fds(self.fd.as_fd(), &SockAddr::hidden(name), &body, &[]);
                if !sent.is_err_and(|reason| reason.kind() == ErrorKind::WouldBlock) {
                    break;
                }
                std::thread::sleep(RETRY);
            }
        }
    }

    /// The descriptors of the next peer, or the error with which one left. What strangers send is dropped, with
    /// its descriptors.
    fn receive(&self, terms: &Exchange<'_>, awaited: &[bool]) -> Result<Option<(usize, Vec<OwnedFd>)>> {
        let mut bytes = [0u8; 8192];
        for _ in 0..BATCH {
            let got = sock::receive_with_fds(self.fd.as_fd(), &mut bytes, MOST_FDS);
            let Some((len, fds)) = got.map_err(|reason| system("recvmsg", &reason))? else { return Ok(None) };
            let mut rest = Reader(&bytes[..len]);
            let (Some(from), Some(count)) = (rest.u32(), rest.u32()) else { continue };
            let Some(body) = len.checked_sub(HEADER + size_of::<Tag>()).and_then(|size| rest.bytes(size))
            else {
                continue;
            };
            let peer = from as usize;
            let is_peer = terms.peers.get(peer).is_some_and(Option::is_some);
            if !is_peer || !mac::same(&letter(terms.key, from, &self.name, count, body), &bytes[..len]) {
                continue;
            }
            if count == FAILURE {
                if let Some(Err(error)) = wire::decode_outcome(&mut Reader(body)) {
                    return Err(error);
                }
            } else if awaited[peer] && fds.len() == count as usize {
                return Ok(Some((peer, fds)));
            }
        }
        Ok(None)
    }
}

/// Bytes of a letter before its body.
const HEADER: usize = 8;
/// Stands where the number of descriptors would, in a letter that carries an error.
const FAILURE: u32 = u32::MAX;
const MOST_RANKS_TOLD: usize = 1024;

/// Sender, number of descriptors, a body if any, and the proof that a rank of this group sent this to that
/// mailbox.
fn letter(key: &Key, from: u32, to: &[u8; 16], count: u32, body: &[u8]) -> Vec<u8> {
    let mut out = from.to_le_bytes().to_vec();
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(body);
    let proof: Tag = mac::tag(key, b'f', &[&out, to]);
    out.extend_from_slice(&proof);
    out
}

fn late(awaited: &[bool], unsent: &[usize]) -> Error {
    let missing: Vec<u32> =
        (0..awaited.len()).filter(|p| awaited[*p] || unsent.contains(p)).map(|p| p as u32).collect();
    let text = format!("{} did not exchange descriptors before the deadline", rank_list(&missing));
    Error::about(Status::DEEP_EP_TIMEOUT, missing, text)
}

fn system(what: &str, reason: &std::io::Error) -> Error {
    Error::new(Status::DEEP_EP_SYSTEM, format_args!("{what}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: &dyn Fn() -> Option<Error> = &|| None;

    fn exchange(
        key: &Key,
        peers: &[Option<[u8; 16]>],
        rank: u32,
        mailbox: &Mailbox,
        millis: u64,
    ) -> Result<usize> {
        let deadline = Instant::now() + Duration::from_millis(millis);
        let file = std::fs::File::open("/dev/null").unwrap();
        let mut got = 0;
        let terms = Exchange { key, rank, peers, deadline, stop: NEVER };
        mailbox.exchange(&terms, &[file.as_fd(), file.as_fd()], |_, fds| {
            got += fds.len();
            Ok(())
        })?;
        Ok(got)
    }

    #[test]
    fn strangers_and_full_queues_do_not_disturb() {
        let boxes: Vec<Mailbox> = (0..24).map(|_| Mailbox::open().unwrap()).collect();
        let stranger = sock::socket(libc::AF_UNIX, libc::SOCK_DGRAM).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let forged = letter(&[9; 16], 1, &boxes[0].name, 2, &[]);
        for body in [&b""[..], b"x", &[0; 24], &[7; 500], &forged] {
            let _ = sock::send_with_fds(
                stranger.as_fd(),
                &SockAddr::hidden(&boxes[0].name),
                body,
                &[file.as_fd(); 2],
            );
        }
        std::thread::scope(|scope| {
            for (rank, mailbox) in boxes.iter().enumerate() {
                let mut peers: Vec<_> = boxes.iter().map(|other| Some(other.name)).collect();
                peers[rank] = None;
                scope.spawn(move || {
                    assert_eq!(exchange(&[1; 16], &peers, rank as u32, mailbox, 10_000).unwrap(), 46);
                });
            }
        });
    }

    #[test]
    fn a_peer_that_is_silent_or_gone_is_named() {
        let (a, b) = (Mailbox::open().unwrap(), Mailbox::open().unwrap());
        let peers = [None, Some(b.name), None];
        let error = exchange(&[1; 16], &peers, 0, &a, 30).unwrap_err();
        assert_eq!((error.status, error.ranks), (Status::DEEP_EP_TIMEOUT, vec![1]));
        drop(b);
        let error = exchange(&[1; 16], &peers, 0, &a, 30).unwrap_err();
        assert_eq!((error.status, error.ranks), (Status::DEEP_EP_PEER_FAILED, vec![1]));
    }

    #[test]
    fn who_leaves_tells_the_others_who_is_to_blame() {
        let (a, b, c) = (Mailbox::open().unwrap(), Mailbox::open().unwrap(), Mailbox::open().unwrap());
        let names = [Some(a.name), Some(b.name), Some(c.name)];
        drop(c);
        let error = exchange(&[1; 16], &[None, names[1], names[2]], 0, &a, 1000).unwrap_err();
        assert_eq!((error.status, &error.ranks[..]), (Status::DEEP_EP_PEER_FAILED, &[2][..]));
        drop(a);
        let relayed = exchange(&[1; 16], &[names[0], None, None], 1, &b, 1000).unwrap_err();
        assert_eq!(relayed, error);
    }
}
