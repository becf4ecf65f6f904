//! Rank 0's side of the rendezvous: one thread, one poll loop, nobody can hold it up.

use super::id::{Address, UniqueId};
use super::mac;
use super::sock::{self, Conn, SockAddr};
use super::wire::{self, Hello, Purpose, Seal, Table};
use crate::error::{rank_list, Error, Result, Status};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::{Duration, Instant};

/// How long a connection may take to prove itself. A rank that is slower than that comes again.
const PROOF_TIME: Duration = Duration::from_secs(3);
/// Connections without proof beyond the number of ranks; the oldest goes when another comes.
const STRANGERS: usize = 128;
/// How long ranks that come after a failure can still be told of it.
const LINGER: Duration = Duration::from_secs(1);
/// How long an address in use is tried again: an earlier group may be about to leave it.
const BIND_TIME: Duration = Duration::from_secs(2);
/// How long after the deadline those may be heard that are there already.
const HEARING_TIME: Duration = Duration::from_millis(200);
const SEND_TIME: Duration = Duration::from_secs(2);

/// The listening socket of rank 0. A path is removed again when it goes.
pub(super) struct Listener {
    fd: OwnedFd,
    path: Option<(String, u64)>,
}

impl Listener {
    /// Listens at the id's address. An address in use is `Ok(None)`, except for a path behind which nobody
    /// answers: that was left by a run that was killed.
    fn open(id: &UniqueId) -> std::io::Result<Option<Self>> {
        let address = id.sock_addr();
        let mut bound = sock::listen(&address);
        let Address::Path(path) = id.address() else {
            return in_use_is_none(bound.map(|fd| Listener { fd, path: None }));
        };
        if is_in_use(&bound) && is_stale(&path, &address) {
            std::fs::remove_file(&path)?;
            bound = sock::listen(&address);
        }
        let listener = bound.and_then(|fd| {
            let inode = std::fs::symlink_metadata(&path)?.ino();
            Ok(Listener { fd, path: Some((path, inode)) })
        });
        in_use_is_none(listener)
    }

    /// Listens, or finds out who does: `ask` is tried as long as the address is taken, and what it returns
    /// ends the attempt.
    pub fn obtain(id: &UniqueId, deadline: Instant, mut ask: impl FnMut() -> Option<Error>) -> Result<Self> {
        let give_up = sock::soon(BIND_TIME, deadline);
        loop {
            match Self::open(id) {
                Ok(Some(listener)) => return Ok(listener),
                Ok(None) => {}
                Err(reason) => {
                    let text = format!("rank 0 cannot listen at {}: {reason}", id.address());
                    return Err(Error::new(Status::DEEP_EP_SYSTEM, text));
                }
            }
            if let Some(error) = ask() {
                return Err(error);
            }
            if Instant::now() >= give_up {
                let text = format!("rank 0 cannot listen at {}: the address is in use", id.address());
                return Err(Error::new(Status::DEEP_EP_SYSTEM, text));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some((path, inode)) = &self.path else { return };
        if std::fs::symlink_metadata(path).is_ok_and(|found| found.ino() == *inode) {
            let _ = std::fs::remove_file(path); // at worst a stale file, which the next start removes
        }
    }
}

fn is_in_use<T>(result: &std::io::Result<T>) -> bool {
    matches!(result, Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE))
}

fn in_use_is_none<T>(result: std::io::Result<T>) -> std::io::Result<Option<T>> {
    if is_in_use(&result) {
        Ok(None)
    } else {
        result.map(Some)
    }
}

fn is_stale(path: &str, address: &SockAddr) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let refused = |error: std::io::Error| error.raw_os_error() == Some(libc::ECONNREFUSED);
    is_socket && sock::connect(address, Instant::now()).err().is_some_and(refused)
}

/// A connection that has proved nothing yet.
struct Guest {
    conn: Conn,
    nonce: [u8; 16],
    since: Instant,
}

/// A rank: it has proved that it knows the secret.
struct Member {
    conn: Conn,
    seal: Seal,
    hello: Hello,
}

pub(super) struct Server<'a> {
    id: &'a UniqueId,
    me: &'a Hello,
    listener: Listener,
    guests: Vec<Guest>,
    members: Vec<Member>,
    /// The earliest of the members' deadlines: without that member there is no group.
    deadline: Instant,
    failure: Option<Error>,
}

impl<'a> Server<'a> {
    pub fn new(id: &'a UniqueId, me: &'a Hello, listener: Listener, deadline: Instant) -> Self {
        Server { id, me, listener, guests: Vec::new(), members: Vec::new(), deadline, failure: None }
    }

    /// Hears every rank and tells all of them the outcome.
    pub fn run(mut self) -> Result<Table> {
        while self.members.len() + 1 < self.me.num_ranks as usize && self.failure.is_none() {
            // Whoever has come by the deadline is heard, also when this thread was held up until then.
            let (late, end) = (Instant::now() >= self.deadline, self.deadline + HEARING_TIME);
            let hears = late && !self.guests.is_empty();
            let heard = self.step(if hears { end } else { self.deadline }, true)?;
            if late
                && (!heard || Instant::now() >= end)
                && self.members.len() + 1 < self.me.num_ranks as usize
            {
                self.failure.get_or_insert_with(|| missing(&self.members, self.me.num_ranks));
            }
        }
        match self.failure.take() {
            Some(error) => Err(self.refuse(error)),
            None => self.conclude(),
        }
    }

    fn conclude(mut self) -> Result<Table> {
        self.members.sort_by_key(|member| member.hello.rank);
        let others = self.members.iter().map(|member| member.hello.mailbox);
        let mailboxes = std::iter::once(self.me.mailbox).chain(others).collect();
        let verdict = Ok(Table { nonce: mac::random()?, mailboxes });
        let body = wire::encode_verdict(&verdict);
        let mut lost = Vec::new();
        for member in &self.members {
            if !member.tell(&body) {
                lost.push(member.hello.rank);
            }
        }
        if lost.is_empty() {
            return verdict;
        }
        let text = format!("{} left while the group formed", rank_list(&lost));
        Err(Error::about(Status::DEEP_EP_PEER_FAILED, lost, text))
    }

    /// Tells every rank that came, and those that come soon, why there will be no group.
    fn refuse(mut self, error: Error) -> Error {
        let body = wire::encode_verdict(&Err(error.clone()));
        let late = error.status == Status::DEEP_EP_TIMEOUT;
        let end = if late { Instant::now() } else { sock::soon(LINGER, self.deadline) };
        let mut told = 0;
        loop {
            for member in &self.members[told..] {
                member.tell(&body);
            }
            told = self.members.len();
            let mut ranks: Vec<u32> = self.members.iter().map(|member| member.hello.rank).collect();
            ranks.sort_unstable();
            ranks.dedup();
            ranks.retain(|rank| *rank != 0);
            let expected =
                self.members.iter().map(|member| member.hello.num_ranks).fold(self.me.num_ranks, u32::max);
            let all_told = ranks.len() + 1 >= expected as usize;
            if all_told || Instant::now() >= end || self.step(end, false).is_err() {
                return error;
            }
        }
    }

    /// Waits for something to happen, at most until `until`, and deals with it. Whether anything has.
    fn step(&mut self, until: Instant, watch_members: bool) -> Result<bool> {
        let mut fds = vec![sock::watch(&self.listener.fd, libc::POLLIN)];
        fds.extend(self.guests.iter().map(|guest| sock::watch(&guest.conn, libc::POLLIN)));
        if watch_members {
            fds.extend(self.members.iter().map(|member| sock::watch(&member.conn, libc::POLLIN)));
        }
        let first_expiry = self.guests.iter().map(|guest| guest.since + PROOF_TIME).min();
        sock::poll(&mut fds, first_expiry.map_or(until, |expiry| expiry.min(until)))
            .map_err(|reason| Error::new(Status::DEEP_EP_SYSTEM, format_args!("poll: {reason}")))?;
        let ready: Vec<bool> = fds.iter().map(|fd| fd.revents != 0).collect();
        let (guests, members) = ready[1..].split_at(self.guests.len());
        self.watch_members(members);
        // From the back, since a guest that leaves is replaced by the last.
        for at in (0..guests.len()).rev() {
            self.hear_guest(at, guests[at]);
        }
        if ready[0] {
            self.accept();
        }
        Ok(ready.contains(&true))
    }

    /// A member has nothing to say: whatever comes from it means that it is gone.
    fn watch_members(&mut self, ready: &[bool]) {
        for (member, _) in self.members.iter_mut().zip(ready).filter(|(_, ready)| **ready) {
            let reason = match member.conn.fill(1) {
                Ok(false) => continue,
                Ok(true) => "it spoke out of turn".to_owned(),
                Err(reason) => reason.to_string(),
            };
            let rank = member.hello.rank;
            let text = format!("rank {rank} left while the group formed: {reason}");
            self.failure.get_or_insert(Error::about(Status::DEEP_EP_PEER_FAILED, vec![rank], text));
        }
    }

    fn accept(&mut self) {
        for _ in 0..64 {
            match sock::accept(&self.listener.fd) {
                Ok(None) => return,
                Ok(Some(conn)) => {
                    let Ok(nonce) = mac::random() else { return };
                    if self.guests.len() >= STRANGERS + self.me.num_ranks as usize {
                        self.drop_oldest_guest();
                    }
                    if conn.send_all(&nonce, Instant::now()).is_ok() {
                        self.guests.push(Guest { conn, nonce, since: Instant::now() });
                    }
                }
                Err(_) if !self.guests.is_empty() => self.drop_oldest_guest(),
                Err(reason) => {
                    let text = format!(
                        "rank 0 cannot take a connection of {} ranks: {reason}; raise the limit of open files",
                        self.me.num_ranks
                    );
                    self.failure.get_or_insert(Error::new(Status::DEEP_EP_SYSTEM, text));
                    return;
                }
            }
        }
    }

    fn drop_oldest_guest(&mut self) {
        let oldest = (0..self.guests.len()).min_by_key(|at| self.guests[*at].since);
        oldest.map(|at| self.guests.swap_remove(at));
    }

    fn hear_guest(&mut self, at: usize, ready: bool) {
        let guest = &mut self.guests[at];
        let heard = if ready { guest.hello(self.id, self.me.version) } else { Ok(None) };
        match heard {
            Ok(None) if guest.since.elapsed() < PROOF_TIME => {}
            Ok(None) | Err(_) => drop(self.guests.swap_remove(at)),
            Ok(Some((seal, hello))) => {
                let conn = self.guests.swap_remove(at).conn;
                self.admit(Member { conn, seal, hello });
            }
        }
    }

    fn admit(&mut self, member: Member) {
        let welcome = member.seal.frame(Purpose::Welcome, &[]);
        if member.conn.send_all(&welcome, sock::soon(SEND_TIME, self.deadline)).is_err() {
            return; // it went away before it knew that it was heard, and may come again
        }
        let hello = &member.hello;
        let twice = hello.rank == 0 || self.members.iter().any(|other| other.hello.rank == hello.rank);
        let fault = if let Err(error) = self.me.compare(hello) {
            Some(error)
        } else if twice {
            let text = format!("rank {} came twice: two processes or threads passed this rank", hello.rank);
            Some(Error::about(Status::DEEP_EP_PEER_FAILED, vec![hello.rank], text))
        } else if hello.rank >= self.me.num_ranks {
            let text = format!("a peer calls itself rank {} of {}", hello.rank, self.me.num_ranks);
            Some(Error::about(Status::DEEP_EP_PEER_FAILED, vec![hello.rank], text))
        } else {
            None
        };
        if self.failure.is_none() {
            self.failure = fault;
        }
        self.deadline = sock::soon(Duration::from_millis(hello.patience_ms.into()), self.deadline);
        self.members.push(member);
    }
}

fn missing(members: &[Member], num_ranks: u32) -> Error {
    let came = |rank: &u32| members.iter().any(|member| member.hello.rank == *rank);
    let missing: Vec<u32> = (1..num_ranks).filter(|rank| !came(rank)).collect();
    let text = format!("{} of {num_ranks} did not come before the deadline", rank_list(&missing));
    Error::about(Status::DEEP_EP_TIMEOUT, missing, text)
}

impl Guest {
    /// What the guest says, once it has said all of it and proved that it knows the secret.
    fn hello(&mut self, id: &UniqueId, version: u32) -> std::io::Result<Option<(Seal, Hello)>> {
        if !self.conn.fill(wire::HELLO_LIMIT)? {
            return Ok(None);
        }
        let Some(client) = self.conn.input.first_chunk::<16>() else { return Ok(None) };
        let seal = Seal { secret: id.secret(), server: self.nonce, client: *client };
        let mut rest = self.conn.input[16..].to_vec();
        let Some(body) = seal.open(Purpose::Hello, &mut rest, wire::HELLO_LIMIT)? else { return Ok(None) };
        self.conn.input.clear();
        let hello = Hello::decode(&body, version).ok_or(std::io::ErrorKind::InvalidData)?;
        Ok(Some((seal, hello)))
    }
}

impl Member {
    fn tell(&self, verdict: &[u8]) -> bool {
        let frame = self.seal.frame(Purpose::Verdict, verdict);
        self.conn.send_all(&frame, Instant::now() + SEND_TIME).is_ok()
    }
}
