//! One rank's membership of a group, and how it comes about.

use super::client;
use super::control::Control;
use super::host::Host;
use super::id::UniqueId;
use super::mac::{self, Key};
use super::mailbox::{Exchange, Mailbox};
use super::server::{Listener, Server};
use super::share::{map_peer, Table};
use super::wire::{self, Hello, PROTOCOL};
use crate::error::{Error, Result, Status};
use crate::mem::{deadline_after, ForkGuard};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

pub const MAX_RANKS: u32 = 1 << 16;
/// What the exchange of control pages may take when the ranks met just before their deadline.
const EXCHANGE_TIME: Duration = Duration::from_secs(2);

/// One rank's membership. All methods take `&self` and may run on several threads; those that wait for peers
/// run one after the other, and peers must make them in the same order.
pub struct Group {
    rank: u32,
    host: Host,
    /// Control pages by rank.
    controls: Arc<[Control]>,
    key: Key,
    /// Only for groups whose ranks all live in this process.
    table: Option<Arc<Table>>,
    sequence: Mutex<Sequence>,
    fork: Arc<ForkGuard>,
}

/// Where this rank stands in its row of all-gathers.
#[derive(Default)]
pub(super) struct Sequence {
    /// All-gathers begun; the number of the current one.
    pub call: u64,
    /// Publications made; chooses the slot.
    pub turn: u64,
}

/// The ranks that take part in a call.
pub(super) struct Alive {
    ranks: Vec<bool>,
    pub fingerprint: u64,
}

impl Alive {
    pub fn peers(&self, own: u32) -> impl Iterator<Item = usize> + '_ {
        (0..self.ranks.len()).filter(move |rank| self.ranks[*rank] && *rank != own as usize)
    }
}

impl Group {
    /// Meets the other ranks at the id's address. Fails on every rank that came, with the same reason where
    /// there is one: a missing rank, one that came twice, another num_ranks, another host or version.
    pub fn join(rank: u32, num_ranks: u32, id: &UniqueId, timeout: Duration) -> Result<Self> {
        Self::join_from(rank, num_ranks, id, timeout, Host::current(), PROTOCOL)
    }

    /// As `join`, with the host and the protocol version of the caller's choice.
    pub(super) fn join_from(
        rank: u32,
        num_ranks: u32,
        id: &UniqueId,
        timeout: Duration,
        host: Host,
        version: u32,
    ) -> Result<Self> {
        check_rank(rank, num_ranks)?;
        if num_ranks == 1 {
            return Self::alone(host);
        }
        let deadline = deadline_after(timeout);
        let candidate = Candidate::new(rank, num_ranks, host, version)?;
        let me = &candidate.hello;
        let table = if rank == 0 {
            let listener = Listener::obtain(id, deadline, || client::ask_once(id, me, deadline))?;
            Server::new(id, me, listener, deadline).run()?
        } else {
            client::meet(id, me, deadline)?
        };
        let key = mac::tag(&id.secret(), b'k', &[&table.nonce]);
        candidate.connect(key, &table.mailboxes, deadline)
    }

    /// Meets the other ranks through the caller's all-gather: given this rank's blob, it returns the blobs of
    /// all ranks, of the same size, in order of rank. It is called once, on every rank.
    pub fn join_with(
        rank: u32,
        num_ranks: u32,
        allgather: &mut dyn FnMut(&[u8]) -> Result<Vec<u8>>,
        timeout: Duration,
    ) -> Result<Self> {
        check_rank(rank, num_ranks)?;
        let host = Host::current();
        if num_ranks == 1 {
            return Self::alone(host);
        }
        // Also a rank that cannot take part must make the call, or the others hang in it.
        let ready = Candidate::new(rank, num_ranks, host, PROTOCOL).and_then(|it| Ok((it, mac::random()?)));
        let short = |error: &Error| Error::new(error.status, super::cut(&error.text, BLOB_TEXT));
        let mut mine = wire::encode_outcome(&ready.as_ref().map_err(short));
        if let Ok((candidate, secret)) = &ready {
            mine.extend_from_slice(secret);
            mine.extend_from_slice(&candidate.hello.encode());
        }
        mine.resize(BLOB_BYTES - 4, 0);
        let mut blob = BLOB_MAGIC.to_le_bytes().to_vec();
        blob.append(&mut mine);
        let all = allgather(&blob);
        let ((candidate, _), all) = (ready?, all?);
        let deadline = deadline_after(timeout); // what the callback took is the caller's
        let expected = num_ranks as usize * BLOB_BYTES;
        if all.len() != expected {
            let text = format!("allgather returned {} bytes instead of {expected}", all.len());
            return Err(Error::invalid_argument(text));
        }
        let mut mailboxes = Vec::new();
        let mut secret = [0; 16];
        for (peer, blob) in (0..).zip(all.chunks_exact(BLOB_BYTES)) {
            let (drawn, hello) = read_blob(peer, blob)?;
            candidate.hello.compare(&hello)?;
            if peer == rank && hello.mailbox != candidate.hello.mailbox {
                let text = format!("allgather returned the blob of another rank at index {rank}");
                return Err(Error::invalid_argument(text));
            }
            if peer == 0 {
                secret = drawn;
            }
            mailboxes.push(hello.mailbox);
        }
        candidate.connect(mac::tag(&secret, b'k', &[]), &mailboxes, deadline)
    }

    /// All ranks of a group within this process, in order of rank, from one thread.
    pub fn local(num_ranks: u32) -> Result<Vec<Self>> {
        check_rank(0, num_ranks)?;
        let controls = (0..num_ranks).map(|_| own_control()).collect::<Result<Arc<[Control]>>>()?;
        let table = Arc::new(Table::new(num_ranks));
        let fork = Arc::new(ForkGuard::new()?);
        let host = Host::current();
        let group = |rank| Group {
            rank,
            host: host.clone(),
            controls: controls.clone(),
            key: [0; 16], // nothing of a local group travels
            table: Some(table.clone()),
            sequence: Mutex::default(),
            fork: fork.clone(),
        };
        Ok((0..num_ranks).map(group).collect())
    }

    fn alone(host: Host) -> Result<Self> {
        let controls = Arc::new([own_control()?]);
        let fork = Arc::new(ForkGuard::new()?);
        Ok(Group { rank: 0, host, controls, key: [0; 16], table: None, sequence: Mutex::default(), fork })
    }

    pub fn rank(&self) -> u32 {
        self.rank
    }

    pub fn num_ranks(&self) -> u32 {
        self.controls.len() as u32
    }

    /// The host's name and the start of its boot id, for messages.
    pub fn host_label(&self) -> &str {
        &self.host.label
    }

    /// Whether both come from the same call of `local`.
    pub fn same_process(&self, other: &Group) -> bool {
        matches!((&self.table, &other.table), (Some(mine), Some(theirs)) if Arc::ptr_eq(mine, theirs))
    }

    /// Whether all ranks live in this process, made by one call of `local`.
    pub fn is_within_process(&self) -> bool {
        self.table.is_some()
    }

    /// Whether this process was forked after the group was made: then it is no rank of it.
    pub fn in_forked_child(&self) -> bool {
        self.fork.in_child()
    }

    /// Tells every rank to give up: waits end with ABORTED naming this rank. Only stores, so it may run beside
    /// any other call. Of several aborts each rank keeps the one that reached it first.
    pub fn abort(&self, reason: &str) {
        for control in self.controls.iter() {
            control.abort(self.rank, reason);
        }
    }

    /// Who aborted, and why: one load when nobody has.
    #[inline]
    pub fn aborted(&self) -> Option<(u32, String)> {
        self.controls[self.rank as usize].aborted()
    }

    /// A page for kernels to look at: its first word is 0, or has 1 + the rank that aborted in its low half. It stays
    /// mapped for good, since it cannot be taken from the driver while any kernel runs.
    pub fn abort_page(&self) -> (*const u8, usize) {
        let control = self.controls[self.rank as usize].clone();
        let page = control.abort_page();
        std::mem::forget(control);
        page
    }

    /// The abort as an error.
    #[inline]
    pub fn check_abort(&self) -> Result<()> {
        match self.aborted() {
            None => Ok(()),
            Some((rank, reason)) => {
                let text = format!("rank {rank} aborted: {reason}");
                Err(Error::about(Status::DEEP_EP_ABORTED, vec![rank], text))
            }
        }
    }

    pub(super) fn control(&self, rank: u32) -> &Control {
        &self.controls[rank as usize]
    }

    pub(super) fn table(&self) -> Option<&Table> {
        self.table.as_deref()
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// Held during a call that waits for peers.
    pub(super) fn sequence(&self) -> MutexGuard<'_, Sequence> {
        self.sequence.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn alive(&self, alive: Option<&[bool]>) -> Result<Alive> {
        let ranks = alive.map_or_else(|| vec![true; self.controls.len()], <[bool]>::to_vec);
        if ranks.len() != self.controls.len() {
            let text = format!("alive has {} entries for {} ranks", ranks.len(), self.controls.len());
            return Err(Error::invalid_argument(text));
        }
        if !ranks[self.rank as usize] {
            let text = format!("alive leaves out rank {}, which makes this call", self.rank);
            return Err(Error::invalid_argument(text));
        }
        let bytes: Vec<u8> = ranks.iter().map(|alive| u8::from(*alive)).collect();
        let fingerprint = mac::tag(&[0; 16], b'm', &[&bytes]);
        Ok(Alive { ranks, fingerprint: wire::Reader(&fingerprint).u64().unwrap_or(0) })
    }
}

/// Blobs have one size on every rank: magic, outcome, then secret and hello, then zeroes.
const BLOB_BYTES: usize = 256;
const BLOB_TEXT: usize = 200;
const BLOB_MAGIC: u32 = 0x3162_4564;

fn read_blob(peer: u32, blob: &[u8]) -> Result<([u8; 16], Hello)> {
    let foreign = || {
        let text = format!("rank {peer} sent a blob that is none of this library's");
        Error::about(Status::DEEP_EP_PEER_FAILED, vec![peer], text)
    };
    let mut from = wire::Reader(blob);
    if from.u32() != Some(BLOB_MAGIC) {
        return Err(foreign());
    }
    wire::decode_outcome(&mut from).unwrap_or_else(|| Err(foreign())).map_err(|error| {
        Error::about(error.status, vec![peer], format_args!("rank {peer} could not join: {}", error.text))
    })?;
    let secret = from.array().ok_or_else(foreign)?;
    let hello = Hello::decode(from.0, PROTOCOL).ok_or_else(foreign)?;
    if hello.rank != peer {
        let text = format!("the blob of rank {peer} says it is from rank {}", hello.rank);
        return Err(Error::about(Status::DEEP_EP_PEER_FAILED, vec![peer], text));
    }
    Ok((secret, hello))
}

fn check_rank(rank: u32, num_ranks: u32) -> Result<()> {
    if num_ranks == 0 || num_ranks > MAX_RANKS {
        return Err(Error::invalid_argument(format_args!("num_ranks {num_ranks} is not in 1..={MAX_RANKS}")));
    }
    if rank >= num_ranks {
        return Err(Error::invalid_argument(format_args!("rank {rank} is not below num_ranks {num_ranks}")));
    }
    Ok(())
}

/// A control page that no other process will map.
fn own_control() -> Result<Control> {
    let control = Control::create()?;
    control.region().close_fd();
    Ok(control)
}

/// A rank with all that it needs before it meets the others.
struct Candidate {
    hello: Hello,
    control: Control,
    mailbox: Mailbox,
    fork: ForkGuard,
}

impl Candidate {
    fn new(rank: u32, num_ranks: u32, host: Host, version: u32) -> Result<Self> {
        let mailbox = Mailbox::open()?;
        let hello = Hello { version, rank, num_ranks, patience_ms: 0, host, mailbox: mailbox.name };
        Ok(Candidate { hello, control: Control::create()?, mailbox, fork: ForkGuard::new()? })
    }

    /// Exchanges control pages with the ranks behind `mailboxes`, and makes sure that all have all.
    fn connect(self, key: Key, mailboxes: &[[u8; 16]], deadline: Instant) -> Result<Group> {
        let deadline = deadline.max(Instant::now() + EXCHANGE_TIME);
        let rank = self.hello.rank;
        let mut peers: Vec<_> = mailboxes.iter().copied().map(Some).collect();
        peers[rank as usize] = None;
        let mut controls: Vec<Option<Control>> = vec![None; mailboxes.len()];
        controls[rank as usize] = Some(self.control.clone());
        let fd = self.control.region().fd()?;
        let terms = Exchange { key: &key, rank, peers: &peers, deadline, stop: &|| None };
        let mapped = self.mailbox.exchange(&terms, &[fd.as_fd()], |peer, fds| {
            let [fd] = &fds[..] else { return Err(super::gather::out_of_step(peer as u32)) };
            controls[peer] = Some(Control::over(map_peer(fd, Control::BYTES as u64, peer)?));
            Ok(())
        });
        self.control.region().close_fd();
        mapped?; // the others see this rank's page stay silent, and name it
        let controls: Arc<[Control]> = controls.into_iter().flatten().collect();
        let fork = Arc::new(self.fork);
        let host = self.hello.host;
        let group = Group { rank, host, controls, key, table: None, sequence: Mutex::default(), fork };
        let alive = group.alive(None)?;
        group.agree_by(&mut group.sequence(), Ok(()), &alive, deadline)?;
        Ok(group)
    }
}
