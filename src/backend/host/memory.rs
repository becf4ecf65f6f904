//! Symmetric regions and local areas of one rank, and typed views of what lies in them.

use super::rows::{RowType, ScaleKind as RowScale};
use crate::error::Result;
use crate::mem::{LocalMemory, Region, Word};
use crate::plan::config::Config;
use crate::plan::dtype::{Dtype, ScaleKind};
use crate::plan::layout::{self, Areas};
use crate::plan::request::Address;
use std::ops::Range;
use std::sync::Arc;

/// One rank's view of the memory of a buffer.
pub struct Host {
    pub me: usize,
    pub config: Arc<Config>,
    pub layout: layout::Region,
    pub areas: Areas,
    regions: Vec<Option<Arc<Region>>>,
    /// Own regions of before a reset that left ranks out, kept as they are: those ranks may only be slow and still read
    /// them, and callers may still pass their addresses in a struct that a dispatch filled.
    retired: Vec<Arc<Region>>,
    local: LocalMemory,
}

/// Arrays of a dispatch window, in one rank's region.
#[derive(Clone, Copy)]
pub struct DispatchView {
    pub x: *mut u8,
    pub scales: *mut u8,
    pub ids: *mut i32,
    pub weights: *mut f32,
    pub source: *mut i64,
    pub counts: *mut i64,
}

/// Arrays of a combine window, in one rank's region.
#[derive(Clone, Copy)]
pub struct CombineView {
    pub x: *mut u8,
    pub carried: *mut f32,
    pub index: *mut i32,
}

impl Host {
    pub fn new(me: usize, config: Arc<Config>, regions: Vec<Option<Arc<Region>>>) -> Result<Host> {
        let layout = layout::Region::of(&config)?;
        let areas = Areas::of(&config, me)?;
        let local = LocalMemory::new(areas.bytes as usize)?;
        Ok(Host { me, config, layout, areas, regions, retired: Vec::new(), local })
    }

    /// The numbers of a buffer whose memory is elsewhere.
    pub fn without_memory(me: usize, config: Arc<Config>) -> Result<Host> {
        let (layout, areas) = (layout::Region::of(&config)?, Areas::of(&config, me)?);
        let regions = vec![None; config.num_ranks];
        Ok(Host { me, config, layout, areas, regions, retired: Vec::new(), local: LocalMemory::new(0)? })
    }

    /// A region for one rank, as large as the size function says.
    pub fn allocate(config: &Config) -> Result<Arc<Region>> {
        Ok(Arc::new(Region::create(layout::Region::of(config)?.bytes as usize)?))
    }

    pub fn num_ranks(&self) -> usize {
        self.regions.len()
    }

    /// Goes on with other regions, after a reset that left ranks out.
    pub fn replace_regions(&mut self, regions: Vec<Option<Arc<Region>>>) {
        let old = std::mem::replace(&mut self.regions, regions);
        if let Some(mine) = old.into_iter().nth(self.me).flatten() {
            self.retired.push(mine);
        }
    }

    /// Memory that is the library's own, as address ranges.
    pub fn own_ranges(&self) -> [Range<Address>; 2] {
        let range = |start: *mut u8, bytes: usize| start as usize..start as usize + bytes;
        let mine = self.regions[self.me].as_ref().map_or(0..0, |region| range(region.as_ptr(), region.len()));
        let local = if self.local.as_ptr().is_null() { 0 } else { self.areas.bytes as usize };
        [mine, range(self.local.as_ptr(), local)]
    }

    /// The address `offset` bytes into a rank's region; null for a rank that does not take part.
    fn at(&self, rank: usize, offset: u64) -> *mut u8 {
        match &self.regions[rank] {
            // Plain address arithmetic: the layout keeps every offset inside the region.
            Some(region) => region.as_ptr().wrapping_add(offset as usize),
            None => std::ptr::null_mut(),
        }
    }

    /// A word in a rank's region; `rank` takes part.
    pub(super) fn atomic(&self, rank: usize, offset: u64) -> &Word {
        // SAFETY: regions are mapped as long as this object lives, words are 8-byte aligned, and every rank touches
        // them only as atomics.
        unsafe { Word::from_ptr(self.at(rank, offset).cast()) }
    }

    pub(super) fn counts(&self, rank: usize, region: usize, source: usize) -> *mut i32 {
        self.at(rank, self.layout.counts(region, source)).cast()
    }

    pub fn dispatch_window(&self, rank: usize, window: usize) -> DispatchView {
        let (base, arrays) = (self.layout.dispatch(window), &self.layout.dispatch_window);
        DispatchView {
            x: self.at(rank, base + arrays.x),
            scales: self.at(rank, base + arrays.scales),
            ids: self.at(rank, base + arrays.ids).cast(),
            weights: self.at(rank, base + arrays.weights).cast(),
            source: self.at(rank, base + arrays.source).cast(),
            counts: self.at(rank, base + arrays.counts).cast(),
        }
    }

    pub fn combine_window(&self, rank: usize, window: usize) -> CombineView {
        let (base, arrays) = (self.layout.combine(window), &self.layout.combine_window);
        CombineView {
            x: self.at(rank, base + arrays.x),
            carried: self.at(rank, base + arrays.carried).cast(),
            index: self.at(rank, base + arrays.index).cast(),
        }
    }

    /// Rows and scales of a local area for received rows.
    pub fn received_area(&self, area: usize) -> (*mut u8, *mut u8) {
        let x = self.local.as_ptr().wrapping_add(self.areas.received(area) as usize);
        (x, x.wrapping_add(self.areas.scales as usize))
    }

    /// Where a combine's rows are written in place: the window itself where peers pull what the caller writes, else a
    /// local area.
    pub fn combine_area(&self, window: usize) -> *mut u8 {
        if self.pulls_from_caller() {
            self.combine_window(self.me, window).x
        } else {
            self.local.as_ptr().wrapping_add(self.areas.combine(window) as usize)
        }
    }

    /// Whether peers read the very rows that the caller of `combine_input` writes.
    pub fn pulls_from_caller(&self) -> bool {
        self.config.layout.packed() && !self.config.layout.by_expert()
    }
}

/// Row and scale types of the row kernels.
pub(super) fn row_type(dtype: Dtype) -> RowType {
    match dtype {
        Dtype::Bf16 => RowType::Bf16,
        Dtype::Fp16 => RowType::Fp16,
        _ => RowType::Fp32,
    }
}

pub(super) fn row_scale(kind: ScaleKind) -> RowScale {
    match kind {
        ScaleKind::Fp32Pow2 => RowScale::Fp32Pow2,
        ScaleKind::Ue8m0Packed => RowScale::Ue8m0Packed,
        ScaleKind::Fp32 | ScaleKind::Opaque => RowScale::Fp32,
    }
}
