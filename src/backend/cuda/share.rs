//! How ranks come by each other's memory. Which way works, only a trial tells: every rank allocates a little, gives it to all
//! others and takes theirs, in the best way first, and all go on to the next where any of them fails.

use crate::boot::Group;
use crate::driver::{Device, Memory, Sharing};
use crate::error::{Error, Result, Status};
use crate::mem::random;
use once_cell::sync::OnceCell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// Of every rank, the memory as this rank has it; none of ranks that are not alive.
pub type Regions = Vec<Option<Arc<Memory>>>;

/// Gives memory to all ranks that are alive, and takes theirs.
pub struct Terms<'a> {
    pub group: &'a Group,
    pub device: &'a Arc<Device>,
    /// None where nobody is in another process.
    pub sharing: Option<Sharing>,
    pub alive: Option<&'a [bool]>,
    pub timeout: Duration,
}

impl Terms<'_> {
    /// Fails on all ranks if it fails on one. All of them pass as many bytes.
    pub fn share(&self, mine: Result<Memory>) -> Result<Regions> {
        let mine = mine.map(Arc::new);
        if self.group.is_within_process() {
            return self.group.share_within(mine, self.alive, self.timeout);
        }
        match self.sharing {
            None => Ok(vec![Some(mine?)]), // a group of one
            Some(Sharing::Descriptor) => self.share_descriptors(mine),
            Some(sharing @ (Sharing::Fabric | Sharing::Legacy)) => self.share_bytes(sharing, mine),
        }
    }

    fn share_descriptors(&self, mine: Result<Arc<Memory>>) -> Result<Regions> {
        let made = mine.and_then(|memory| Ok((memory.export_descriptor()?, memory)));
        let (fd, own) = self.group.agree(made, self.alive, self.timeout)?;
        let fds = self.group.exchange_fds(&[fd.as_fd()], self.alive, self.timeout)?;
        self.take(&own, |rank| {
            let [fd]: &[OwnedFd; 1] = fds[rank][..].try_into().map_err(|_| nothing())?;
            Memory::import_descriptor(self.device, fd.as_fd(), own.bytes()).map(Arc::new)
        })
    }

    fn share_bytes(&self, sharing: Sharing, mine: Result<Arc<Memory>>) -> Result<Regions> {
        let made = mine.and_then(|memory| Ok((Parcel::of(&memory)?, memory)));
        let (parcel, own) = self.group.agree(made, self.alive, self.timeout)?;
        let parcels = self.group.all_gather(&parcel.encode(), self.alive, self.timeout)?;
        self.take(&own, |rank| {
            let parcel = Parcel::decode(&parcels[rank]).ok_or_else(nothing)?;
            parcel.open(self.device, sharing, own.bytes())
        })
    }

    fn take(&self, own: &Arc<Memory>, import: impl Fn(usize) -> Result<Arc<Memory>>) -> Result<Regions> {
        let me = self.group.rank() as usize;
        let each = |rank| match self.alive.is_none_or(|alive| alive[rank]) {
            _ if rank == me => Ok(Some(own.clone())),
            true => import(rank).map(Some).map_err(|error| of_rank(rank, error)),
            false => Ok(None),
        };
        let taken = (0..self.group.num_ranks() as usize).map(each).collect();
        self.group.agree(taken, self.alive, self.timeout)
    }
}

fn nothing() -> Error {
    Error::new(Status::DEEP_EP_INTERNAL, "a peer sent no memory")
}

fn of_rank(rank: usize, error: Error) -> Error {
    Error {
        text: format!("the memory of rank {rank} cannot be opened: {error}"),
        ranks: vec![rank as u32],
        ..error
    }
}

/// What memory is passed on by, and whose it is: a process cannot open its own blocks, so its ranks use them as they are.
struct Parcel {
    process: [u8; 16],
    address: u64,
    handle: [u8; 64],
}

impl Parcel {
    fn of(memory: &Arc<Memory>) -> Result<Parcel> {
        let handle = memory.export_bytes()?;
        passed_on().insert(memory.address(), Arc::downgrade(memory));
        Ok(Parcel { process: this_process()?, address: memory.address(), handle })
    }

    fn encode(&self) -> Vec<u8> {
        [&self.process[..], &self.address.to_le_bytes(), &self.handle].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Parcel> {
        let (process, rest) = bytes.split_first_chunk()?;
        let (address, handle) = rest.split_first_chunk()?;
        let address = u64::from_le_bytes(*address);
        Some(Parcel { process: *process, address, handle: handle.try_into().ok()? })
    }

    fn open(&self, device: &Arc<Device>, sharing: Sharing, bytes: u64) -> Result<Arc<Memory>> {
        if sharing == Sharing::Fabric || self.process != this_process()? {
            return Memory::import_bytes(device, sharing, self.handle, bytes).map(Arc::new);
        }
        let memory = passed_on().get(&self.address).and_then(Weak::upgrade);
        let memory = memory.ok_or_else(nothing)?;
        memory.open_to(device)?;
        Ok(memory)
    }
}

/// Memory of this process by its addresses.
fn passed_on() -> MutexGuard<'static, BTreeMap<u64, Weak<Memory>>> {
    static PASSED_ON: Mutex<BTreeMap<u64, Weak<Memory>>> = Mutex::new(BTreeMap::new());
    let mut passed_on = PASSED_ON.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    passed_on.retain(|_, memory| memory.strong_count() > 0);
    passed_on
}

/// A number that no other process has, whatever namespaces they are in.
fn this_process() -> Result<[u8; 16]> {
    static NUMBER: OnceCell<[u8; 16]> = OnceCell::new();
    NUMBER.get_or_try_init(random).copied()
}

/// The best way that works between all ranks, with what was tried it with. `asked`: the only one to try, the same everywhere.
pub fn choose(
    group: &Group,
    device: &Arc<Device>,
    asked: Option<Sharing>,
    timeout: Duration,
) -> Result<(Option<Sharing>, Regions)> {
    if asked.is_none() && group.num_ranks() == 1 {
        return Ok((None, Vec::new()));
    }
    let mut refused: Vec<(Sharing, Error)> = Vec::new();
    for sharing in Sharing::ALL.into_iter().filter(|sharing| asked.is_none_or(|asked| asked == *sharing)) {
        group.begin();
        let terms = Terms { group, device, sharing: Some(sharing), alive: None, timeout };
        match terms.share(trial(device, sharing, &[device])) {
            Ok(regions) => return Ok((Some(sharing), regions)),
            Err(error) if is_of_the_way(error.status) => refused.push((sharing, error)),
            Err(error) => return Err(error),
        }
    }
    Err(none_works(asked, refused))
}

/// The same for ranks that all live in this process, on these devices: they need no way, but are held to one that is asked for.
pub fn check_local(devices: &[Arc<Device>], asked: Option<Sharing>) -> Result<()> {
    let Some(sharing) = asked else { return Ok(()) };
    let users: Vec<&Device> = devices.iter().map(|device| &**device).collect();
    for device in devices {
        let exported = trial(device, sharing, &users).and_then(|memory| match sharing {
            Sharing::Descriptor => memory.export_descriptor().map(drop),
            Sharing::Fabric | Sharing::Legacy => memory.export_bytes().map(drop),
        });
        exported.map_err(|error| none_works(asked, vec![(sharing, error)]))?;
    }
    Ok(())
}

fn trial(device: &Arc<Device>, sharing: Sharing, users: &[&Device]) -> Result<Memory> {
    let bytes = Memory::granularity(device, Some(sharing))?;
    Memory::allocate(device, Some(sharing), bytes, users)
}

/// Whether a failure says something about the way, and not about the ranks or the group.
fn is_of_the_way(status: Status) -> bool {
    use Status::*;
    [DEEP_EP_CUDA, DEEP_EP_UNSUPPORTED, DEEP_EP_PEER_UNREACHABLE, DEEP_EP_SYSTEM].contains(&status)
}

fn none_works(asked: Option<Sharing>, refused: Vec<(Sharing, Error)>) -> Error {
    let reasons: Vec<String> =
        refused.iter().map(|(sharing, error)| format!("{}: {error}", sharing.name())).collect();
    let what = match asked {
        Some(sharing) => format!("{}, which does not work here", sharing.as_asked_for()),
        None => "ranks cannot share device memory".into(),
    };
    let unreachable = refused.iter().find(|(_, error)| error.status == Status::DEEP_EP_PEER_UNREACHABLE);
    let status = unreachable.map_or(Status::DEEP_EP_UNSUPPORTED, |(_, error)| error.status);
    let ranks = unreachable.or(refused.last()).map_or(Vec::new(), |(_, error)| error.ranks.clone());
    Error::about(status, ranks, format_args!("{what} ({})", reasons.join("; ")))
}
