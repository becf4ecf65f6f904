//! What a buffer has on its device, and what its operations have in common.

use super::comm::Site;
use super::handle::HandleMemory;
use super::names;
use super::params::*;
use super::report::{self, REPORT_BYTES, SOFT_BYTES};
use super::share::Regions;
use super::trace::Trace;
use crate::driver::{capture_of, pinned_bytes, Device, Launch, Memory, Pinned, Stream, StreamPointer, Work};
use crate::error::{Error, Result, Status};
use crate::mem::{deadline_after, Backoff};
use crate::plan::config::Config;
use crate::plan::device::{self, HandleArrays, Region, Tuning};
use crate::plan::layout::Areas;
use crate::plan::report::Report;
use crate::plan::request::Address;
use crate::plan::words::{fingerprint, turns, Operation};
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A buffer's part on its device.
pub struct Cuda {
    pub(super) me: usize,
    pub(super) config: Arc<Config>,
    pub(super) site: Arc<Site>,
    pub(super) layout: Region,
    /// Every rank's symmetric memory, as it is mapped here; none of ranks that were given up.
    regions: Regions,
    /// Where this rank's begins.
    base: u64,
    /// What this rank had before resets. Graphs may still name it.
    retired: Vec<Arc<Memory>>,
    pub(super) areas: Areas,
    local: Option<Arc<Memory>>,
    pub(super) reports: Pinned,
    pub(super) trace: Option<Arc<Trace>>,
    /// For copies beside whatever runs.
    copies: Mutex<Stream>,
    comm: CommParams,
    launches: AtomicU64,
    /// The capture that the running call's stream is in, or 0.
    capture: AtomicU64,
    pub(super) soft_taken: Mutex<u64>,
    /// Goes last: then no kernel needs the memory.
    work: Work,
}

/// What a rank keeps when its regions change.
struct Lasting {
    local: Option<Arc<Memory>>,
    trace: Option<Arc<Trace>>,
    retired: Vec<Arc<Memory>>,
    launches: u64,
}

fn region(site: &Site, config: &Config) -> Result<Region> {
    device::check(config)?;
    Tuning::blocks(config, 0, site.blocks)?;
    Region::of(config, site.place.device.sms.into(), STATE_BYTES)
}

/// Bytes: dispatch windows, combine windows, all symmetric, local areas, a handle, pinned.
pub fn sizes(site: &Site, config: &Config, rank: usize) -> Result<[u64; 6]> {
    let region = region(site, config)?;
    let round = |bytes: u64| bytes.next_multiple_of(site.granularity);
    let [dispatch, combine] = region.window_bytes();
    let (areas, handle) = (Areas::of(config, rank)?.bytes, HandleArrays::of(config, rank, RECORD_BYTES)?);
    let pinned = pinned_bytes(REPORT_BYTES) + if config.trace { Trace::bytes() } else { 0 };
    Ok([dispatch, combine, round(region.bytes), round(areas), round(handle.bytes), pinned])
}

impl Cuda {
    /// This rank's symmetric memory, for the devices that will use it, all signals 0.
    pub fn allocate(site: &Site, config: &Config) -> Result<Memory> {
        let region = region(site, config)?;
        let memory = site.allocate_shared(region.bytes)?;
        let stream = Stream::new(&site.place.device)?;
        let start = memory.address();
        // SAFETY: the memory is new; what peers or kernels read before it was written lies outside the windows.
        unsafe {
            stream.fill(start, 0, region.dispatch(0))?;
            stream.fill(start + region.state, 0, region.bytes - region.state)?;
        }
        Ok(memory)
    }

    pub fn new(me: usize, config: Arc<Config>, site: Arc<Site>, regions: Regions) -> Result<Cuda> {
        let local = match Areas::of(&config, me)?.bytes {
            0 => None,
            bytes => Some(Arc::new(site.allocate(bytes)?)),
        };
        let trace = if config.trace { Some(Arc::new(Trace::new(&site.place.device)?)) } else { None };
        Cuda::build(me, config, site, regions, Lasting { local, trace, retired: Vec::new(), launches: 1 })
    }

    /// The same rank's part with other regions. Nothing of the old part runs any more; should a graph of it be replayed, it
    /// finds the old state poisoned.
    pub fn with_regions(&self, regions: Regions) -> Result<Cuda> {
        let poisoned = self.layout.state + offset_of!(BufferWords, poisoned) as u64;
        // SAFETY: a word of the buffer's state.
        unsafe { self.write(self.own(poisoned), &(Status::DEEP_EP_INVALID_STATE as u64).to_le_bytes())? };
        let mut retired = self.retired.clone();
        retired.extend(self.regions[self.me].clone());
        let lasting = Lasting {
            local: self.local.clone(),
            trace: self.trace.clone(),
            retired,
            launches: self.launches.load(Ordering::Relaxed),
        };
        let next = Cuda::build(self.me, self.config.clone(), self.site.clone(), regions, lasting)?;
        // SAFETY: the layout has room for them.
        unsafe { next.write(next.own(next.layout.counters), &self.counter_bytes()?)? };
        if self.work.is_replayed() {
            next.work.will_be_replayed();
        }
        Ok(next)
    }

    fn build(
        me: usize,
        config: Arc<Config>,
        site: Arc<Site>,
        regions: Regions,
        lasting: Lasting,
    ) -> Result<Cuda> {
        let layout = region(&site, &config)?;
        let device = site.place.device.clone();
        let reports = Pinned::new(&device, REPORT_BYTES)?;
        let bases = bases(&regions, me)?;
        let comm = CommParams {
            trace: lasting.trace.as_ref().map_or(0, |trace| trace.address()),
            ..common(me, &config, &site, &layout, &bases, &reports)
        };
        let cuda = Cuda {
            me,
            site,
            layout,
            regions,
            base: bases[me],
            retired: lasting.retired,
            areas: Areas::of(&config, me)?,
            config,
            local: lasting.local,
            reports,
            trace: lasting.trace,
            copies: Mutex::new(Stream::new(&device)?),
            comm,
            launches: AtomicU64::new(lasting.launches),
            capture: AtomicU64::new(0),
            soft_taken: Mutex::new(0),
            work: Work::new(&device),
        };
        cuda.write_tables(&bases)?;
        cuda.set_timeouts(cuda.config.timeout_ms, cuda.config.first_timeout_ms)?;
        if let Some(trace) = &cuda.trace {
            cuda.read_clock(&trace.clock);
        }
        Ok(cuda)
    }

    fn write_tables(&self, bases: &[u64]) -> Result<()> {
        let experts = &self.config.experts;
        let home = |expert: usize| {
            let home = experts.home(expert);
            home.rank << 16 | home.local
        };
        let homes: Vec<u32> = (0..experts.count()).map(home).collect();
        let ranks = 0..self.config.num_ranks;
        let order: Vec<u32> =
            ranks.clone().flat_map(|rank| experts.of_rank(rank)).map(|&expert| expert as u32).collect();
        let mut first = vec![0u32];
        for rank in ranks {
            first.push(first[rank] + experts.of_rank(rank).len() as u32);
        }
        let bytes = |numbers: &[u32]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
        for (offset, content) in [
            (self.layout.expert_home, bytes(&homes)),
            (self.layout.expert_order, bytes(&order)),
            (self.layout.rank_first, bytes(&first)),
            (self.layout.peer_bases, bases.iter().flat_map(|base| base.to_le_bytes()).collect()),
            (self.layout.alive, vec![1; self.config.num_ranks]),
        ] {
            // SAFETY: the layout has room for each table.
            unsafe { self.write(self.own(offset), &content)? };
        }
        Ok(())
    }

    pub(super) fn device(&self) -> &Device {
        &self.site.place.device
    }

    /// The address of an offset in this rank's symmetric memory.
    pub(super) fn own(&self, offset: u64) -> u64 {
        self.base + offset
    }

    pub(super) fn copies(&self) -> std::sync::MutexGuard<'_, Stream> {
        self.copies.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// # Safety
    /// `from` is device memory of at least as many bytes.
    pub(super) unsafe fn read(&self, bytes: &mut [u8], from: u64) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.copies().read(bytes, from) }
    }

    /// # Safety
    /// `to` is device memory with room for the bytes.
    pub(super) unsafe fn write(&self, to: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.copies().write(to, bytes) }
    }

    /// # Safety
    /// `to` is device memory with room for the bytes.
    pub(super) unsafe fn fill(&self, to: u64, value: u8, bytes: u64) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.copies().fill(to, value, bytes) }
    }

    /// Deadlines of every later wait. Kernels read them when they wait.
    pub fn set_timeouts(&self, timeout_ms: u32, first_timeout_ms: u32) -> Result<()> {
        let ns = |ms: u32| (u64::from(ms) * 1_000_000).to_le_bytes();
        let bytes = [ns(timeout_ms), ns(first_timeout_ms)].concat();
        // SAFETY: the control block begins with the two deadlines.
        unsafe { self.write(self.own(self.layout.control), &bytes) }
    }

    /// Memory that is the library's own, as address ranges.
    pub fn own_ranges(&self) -> [Range<Address>; 2] {
        let range = |memory: &Memory| {
            let start = memory.address() as usize;
            start..start + memory.bytes() as usize
        };
        let own = self.regions[self.me].as_deref();
        [own.map_or(0..0, range), self.local.as_deref().map_or(0..0, range)]
    }

    /// Rows and scales of a dispatch in place: in the window by rank, in a local area by expert.
    pub fn received_rows(&self, window: usize, area: Option<usize>) -> (u64, u64) {
        match (area, &self.local) {
            (Some(area), Some(local)) => {
                let start = local.address() + self.areas.received(area);
                (start, start + self.areas.scales)
            }
            _ => {
                let (base, arrays) = (self.own(self.layout.dispatch(window)), &self.layout.dispatch_window);
                (base + arrays.rows, base + arrays.scales)
            }
        }
    }

    /// Where a combine's rows are written in place.
    pub fn combine_area(&self, window: usize) -> u64 {
        match &self.local {
            Some(local) => local.address() + self.areas.combine(window),
            None => self.own(self.layout.combine(window) + self.layout.combine_window.rows),
        }
    }

    /// Which capture the caller's stream is in, or 0; what is enqueued until the next such call belongs to it.
    pub fn follow(&self, stream: StreamPointer) -> Result<u64> {
        let _guard = self.device().enter()?;
        let capture = capture_of(self.device(), stream)?;
        self.capture.store(capture, Ordering::Relaxed);
        if capture != 0 {
            self.work.will_be_replayed();
        }
        Ok(capture)
    }

    fn is_captured(&self) -> bool {
        self.capture.load(Ordering::Relaxed) != 0
    }

    /// The common parameters of an operation; every launch has a number of its own, which its replays share.
    pub(super) fn comm_params(&self, fingerprint: u16) -> CommParams {
        let kind = if self.is_captured() { CAPTURED } else { 0 };
        let launch = self.launches.fetch_add(1, Ordering::Relaxed) | kind;
        CommParams { launch, fingerprint: fingerprint.into(), ..self.comm }
    }

    /// Enqueues a kernel.
    ///
    /// # Safety
    /// `params` is what the kernel takes, and its addresses hold until it has run.
    pub(super) unsafe fn launch<T: Copy>(&self, kernel: &str, launch: Launch, params: &T) -> Result<()> {
        let function = self.site.place.kernels.get(kernel)?;
        let device = self.device();
        let _guard = device.enter()?;
        // SAFETY: as the caller promises.
        let enqueue = || unsafe { function.launch(device, &launch, params) };
        match self.is_captured() {
            true => enqueue(), // it runs when and where the graph is launched
            false => self.work.enqueue(launch.stream, enqueue),
        }
    }

    /// Waits until no kernel of this rank uses the buffer any more. Those that wait for peers give up at once.
    pub fn drain(&self) -> Result<()> {
        self.set_timeouts(1, 1)?;
        self.work.wait()?;
        if self.work.is_replayed() {
            self.wait_for_replay()?;
        }
        Ok(())
    }

    /// A replay's stream is unknown here; the state tells whether one of its kernels runs. Those that fail leave their
    /// number behind, but have no long way to go then.
    fn wait_for_replay(&self) -> Result<()> {
        const LONGEST: Duration = Duration::from_secs(1);
        const LAST_STEPS: Duration = Duration::from_millis(2);
        let mut backoff = Backoff::new(deadline_after(LONGEST));
        loop {
            let poisoned = self.state_word(offset_of!(BufferWords, poisoned) as u64)?;
            if self.state_word(OWNER_BYTES)? == 0 {
                return Ok(());
            }
            if poisoned != 0 || !backoff.pause() {
                std::thread::sleep(LAST_STEPS);
                return Ok(());
            }
        }
    }

    pub(super) fn state_word(&self, offset: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        // SAFETY: a word of the buffer's state.
        unsafe { self.copies().read(&mut bytes, self.own(self.layout.state + offset))? };
        Ok(u64::from_le_bytes(bytes))
    }

    /// `counted`: it is one of the caller's, for the statistics.
    pub fn barrier(&self, counted: bool, stream: StreamPointer) -> Result<()> {
        let comm = self.comm_params(fingerprint(Operation::Barrier, &[]));
        let params = BarrierParams { comm, counted: counted.into() };
        // SAFETY: the buffer's memory outlives what it enqueues.
        unsafe { self.launch(names::BARRIER, self.small_launch(stream), &params) }
    }

    /// The reads of a handle's rows end here, in stream order. `abandon`: what it has sent will not be received.
    pub fn release(&self, handle: &HandleMemory, abandon: bool, stream: StreamPointer) -> Result<()> {
        let params =
            ReleaseParams { comm: self.comm_params(0), record: handle.record(), abandon: abandon.into() };
        // SAFETY: as above.
        unsafe { self.launch(names::RELEASE, self.small_launch(stream), &params) }
    }

    /// Gives a combine window to a handle. `pulled`: peers may still read it.
    pub fn claim(
        &self,
        handle: &HandleMemory,
        window: usize,
        pulled: bool,
        stream: StreamPointer,
    ) -> Result<()> {
        let params = ClaimParams {
            comm: self.comm_params(fingerprint(Operation::Barrier, &[])),
            record: handle.record(),
            window: window as u32,
            pulled: pulled.into(),
        };
        // SAFETY: as above.
        unsafe { self.launch(names::CLAIM, self.small_launch(stream), &params) }
    }

    /// One block with a thread for each rank.
    fn small_launch(&self, stream: StreamPointer) -> Launch {
        let threads = (self.config.num_ranks as u32).next_multiple_of(WARP).clamp(64, 1024);
        Launch { blocks: 1, threads, dynamic_bytes: 0, stream }
    }

    /// The failure that ended the buffer's work on the device, if there is one.
    pub fn failure(&self) -> Option<Report> {
        report::read(&self.reports, false, self.config.num_ranks).1
    }

    /// The oldest report that did not; taken, so that the next one can come.
    pub fn take_soft(&self) -> Result<Option<Report>> {
        let mut taken = self.soft_taken.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (number, report) = report::read(&self.reports, true, self.config.num_ranks);
        if number <= *taken {
            return Ok(None);
        }
        *taken = number;
        let at = self.own(self.layout.control) + offset_of!(BufferControl, soft_cleared) as u64;
        // SAFETY: a word of the control block.
        unsafe { self.write(at, &number.to_le_bytes())? };
        Ok(report)
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // A device that is lost has no kernels either.
        let _ = self.drain();
    }
}

/// Where each rank's region begins here. Nobody looks for that of a rank that was given up; if anyone did, it would not
/// leave this rank's own.
fn bases(regions: &[Option<Arc<Memory>>], me: usize) -> Result<Vec<u64>> {
    let own = regions.get(me).and_then(Option::as_deref).map(Memory::address);
    let own = own.ok_or_else(|| Error::new(Status::DEEP_EP_INTERNAL, "this rank has no region"))?;
    Ok(regions.iter().map(|region| region.as_deref().map_or(own, Memory::address)).collect())
}

fn common(
    me: usize,
    config: &Config,
    site: &Site,
    layout: &Region,
    bases: &[u64],
    reports: &Pinned,
) -> CommParams {
    let own = bases[me];
    let mut near_bases = [0; NEAR_BASES];
    for (near, &base) in near_bases.iter_mut().zip(bases) {
        *near = base;
    }
    CommParams {
        state: own + layout.state,
        control: own + layout.control,
        report: reports.address(),
        soft_report: reports.address() + SOFT_BYTES,
        abort_word: site.abort_word,
        peer_bases: own + layout.peer_bases,
        near_bases,
        alive: own + layout.alive,
        signals: layout.signals,
        verdicts: layout.verdicts,
        verdict_masks: layout.verdict_masks,
        arrivals: layout.arrivals,
        counters: own + layout.counters,
        rank: me as u32,
        ranks: config.num_ranks as u32,
        turns: turns(config.depth()) as u32,
        sync: config.sync as u32,
        in_flight: config.depth() as u32,
        own,
        ..CommParams::default()
    }
}
