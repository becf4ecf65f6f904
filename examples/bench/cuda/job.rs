//! One rank's side of a case: its buffer, its inputs in device memory, and the calls of the C ABI that are measured.

use super::case::{Case, Rows, Work, ALIGNMENT, EXPERTS, HIDDEN, TOPK};
use super::gpu::{Event, Stream};
use super::pool::Pool;
use crate::common::{check, sizes, Buffer, Comm, Handle, Outcome};
use crate::filled;
use deepep::capi::*;

/// So that a combine alone never meets the window of the one before.
const COMBINE_WINDOWS: i32 = 2;

pub struct Job<'a> {
    case: &'a Case,
    stream: &'a Stream,
    /// Where reads of received rows end, beside the flush that follows.
    side: Stream,
    done: Event,
    released: Event,
    is_open: bool,
    late: bool,
    handle: Handle,
    buffer: Buffer,
    input: deep_ep_dispatch_in_t,
    arrived: deep_ep_dispatch_out_t,
    back: deep_ep_combine_in_t,
    sums: deep_ep_combine_out_t,
}

/// `patience_ms`: after which the library's waits end.
pub fn config(case: &Case, patience_ms: u32) -> Outcome<deep_ep_buffer_config_t> {
    let mut config = filled!(deep_ep_buffer_config_t, deep_ep_buffer_config_init);
    config.layout = case.layout as u32;
    config.sync = case.sync as u32;
    config.max_tokens = case.tokens as i64;
    config.max_row_bytes = case.rows.sent_bytes() as i64;
    config.max_scale_bytes = case.rows.scale_bytes() as i64;
    config.max_combine_row_bytes = 2 * HIDDEN as i64;
    config.num_experts = EXPERTS as i32;
    config.num_topk = TOPK as i32;
    if case.layout == deep_ep_layout_t::DEEP_EP_PACKED_BY_EXPERT {
        config.expert_alignment = ALIGNMENT as i32;
    }
    if case.packed() {
        config.combine_windows = COMBINE_WINDOWS;
    }
    config.num_sms = case.sms as i32;
    config.num_stages = case.stages;
    config.timeout_ms = patience_ms;
    config.first_timeout_ms = 2 * patience_ms;
    Ok(config)
}

impl<'a> Job<'a> {
    /// Collective. `ids`: this rank's routing.
    pub fn new(
        case: &'a Case,
        config: &deep_ep_buffer_config_t,
        comm: &mut Comm,
        stream: &'a Stream,
        side: Stream,
        pool: &mut Pool,
        ids: &[i32],
    ) -> Outcome<Job<'a>> {
        let slab = sizes(comm, config)?;
        let buffer = Buffer::create(comm, config)?;
        pool.renew(stream)?;
        let handle = buffer.handle()?;
        let mut job = Job {
            case,
            stream,
            side,
            done: Event::new()?,
            released: Event::new()?,
            is_open: false,
            late: false,
            handle,
            buffer,
            input: filled!(deep_ep_dispatch_in_t, deep_ep_dispatch_in_init),
            arrived: filled!(deep_ep_dispatch_out_t, deep_ep_dispatch_out_init),
            back: filled!(deep_ep_combine_in_t, deep_ep_combine_in_init),
            sums: filled!(deep_ep_combine_out_t, deep_ep_combine_out_init),
        };
        job.describe_dispatch(pool, ids, &slab)?;
        job.describe_combine(pool, &slab)?;
        if case.work == Work::Combine {
            job.dispatch()?;
            job.fill_windows(pool)?;
        }
        Ok(job)
    }

    fn describe_dispatch(
        &mut self,
        pool: &mut Pool,
        ids: &[i32],
        slab: &deep_ep_buffer_sizes_t,
    ) -> Outcome<()> {
        let (case, input, arrived) = (self.case, &mut self.input, &mut self.arrived);
        let tokens = ids.len() / TOPK;
        let ids: Vec<u8> = ids.iter().flat_map(|&id| i64::from(id).to_le_bytes()).collect();
        let given = pool.take(ids.len() as u64)?;
        self.stream.write(given, &ids)?;
        input.num_tokens = tokens as i64;
        input.hidden = HIDDEN as i64;
        input.topk_idx = given as *const _;
        input.topk_idx_dtype = deep_ep_dtype_t::DEEP_EP_INT64 as u32;
        input.topk_weights = pool.take((case.tokens * TOPK * 4) as u64)? as *const f32;
        input.x.data = pool.take((case.tokens * case.rows.given_bytes()) as u64)? as *mut _;
        input.x.dtype = match case.rows {
            Rows::Fp8 => deep_ep_dtype_t::DEEP_EP_FP8_E4M3,
            _ => deep_ep_dtype_t::DEEP_EP_BF16,
        } as u32;
        match case.rows {
            Rows::Bf16 => {}
            Rows::Fp8 => {
                input.x_scales.data = pool.take((case.tokens * case.rows.scale_bytes()) as u64)? as *mut _;
                input.x_scales.dtype = deep_ep_scale_dtype_t::DEEP_EP_SCALE_FP32 as u32;
            }
            Rows::Cast => input.wire_dtype = deep_ep_dtype_t::DEEP_EP_FP8_E4M3 as u32,
        }
        if case.by_expert() {
            // Caller memory costs nothing here, and needs no release.
            let rows = slab.slabs * slab.slab_rows;
            arrived.x.data = pool.take(rows as u64 * case.rows.sent_bytes() as u64)? as *mut _;
            arrived.x.rows = slab.slab_rows;
            if case.rows.scale_bytes() > 0 {
                arrived.scales.data = pool.take(rows as u64 * case.rows.scale_bytes() as u64)? as *mut _;
            }
        }
        Ok(())
    }

    fn describe_combine(&mut self, pool: &mut Pool, slab: &deep_ep_buffer_sizes_t) -> Outcome<()> {
        let (case, row) = (self.case, 2 * HIDDEN as u64);
        self.back.x.dtype = deep_ep_dtype_t::DEEP_EP_BF16 as u32;
        if !self.in_place() {
            // As many rows as there can be, all of random content.
            self.back.x.data = pool.take((slab.slabs * slab.slab_rows) as u64 * row)? as *mut _;
            self.back.x.rows = slab.slab_rows;
        }
        if case.weighted {
            self.back.flags = DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH;
        }
        self.sums.x.data = pool.take(case.tokens as u64 * row)? as *mut _;
        self.sums.x.rows = case.tokens as i64;
        Ok(())
    }

    /// Combine rows by rank lie in the window; by expert, and where rows are pushed, any memory is read in place.
    fn in_place(&self) -> bool {
        self.case.layout == deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK
    }

    /// The experts' rows, once for each window.
    fn fill_windows(&mut self, pool: &Pool) -> Outcome<()> {
        if !self.in_place() {
            return Ok(());
        }
        for _ in 0..COMBINE_WINDOWS {
            self.combine_input()?;
            pool.copy_random(
                self.stream,
                self.back.x.data as u64,
                (self.arrived.x.rows * 2) as u64 * HIDDEN as u64,
            )?;
            self.combine()?;
        }
        Ok(())
    }

    /// This rank begins each timed operation late, where the case says so.
    pub fn come_late(&mut self) {
        self.late = true;
    }

    pub fn barrier(&self) -> Outcome<()> {
        // SAFETY: the buffer lives, the stream too.
        check(unsafe { deep_ep_buffer_barrier(self.buffer.raw(), self.stream.pointer()) })
    }

    /// What the timed operation needs and is not part of.
    pub fn prepare(&mut self) -> Outcome<()> {
        if self.case.work == Work::Combine && self.in_place() {
            self.combine_input()?;
        }
        Ok(())
    }

    /// The timed operation.
    pub fn run(&mut self) -> Outcome<()> {
        if self.late {
            self.stream.pause(u64::from(self.case.late_us) * 1000)?;
        }
        match self.case.work {
            Work::Dispatch => self.dispatch(),
            Work::Combine => self.combine(),
            Work::Pair => {
                self.dispatch()?;
                if self.in_place() {
                    self.combine_input()?;
                }
                self.combine()
            }
        }
    }

    /// After a dispatch alone its reads end: beside the flush that follows, on another stream, or at once.
    pub fn release(&mut self) -> Outcome<()> {
        if self.case.work != Work::Dispatch || !self.case.flushed() {
            return self.release_at_once();
        }
        self.stream.record(&self.done)?;
        self.side.wait_for(&self.done)?;
        self.end_reads(&self.side)?;
        self.side.record(&self.released)?;
        self.is_open = true;
        Ok(())
    }

    /// Part of what lies between operations that nothing is flushed for, as if there had been one.
    pub fn release_at_once(&self) -> Outcome<()> {
        match self.case.work == Work::Dispatch && !self.case.flushed() {
            true => self.end_reads(self.stream),
            false => Ok(()),
        }
    }

    fn end_reads(&self, stream: &Stream) -> Outcome<()> {
        // SAFETY: the handle lives, the stream too.
        check(unsafe { deep_ep_handle_release(self.handle.raw(), stream.pointer()) })
    }

    /// Before the next operation of the buffer.
    pub fn join(&mut self) -> Outcome<()> {
        if std::mem::take(&mut self.is_open) {
            self.stream.wait_for(&self.released)?;
        }
        Ok(())
    }

    fn dispatch(&mut self) -> Outcome<()> {
        // SAFETY: the pool holds all arrays in the sizes that the shapes say.
        check(unsafe {
            deep_ep_handle_dispatch(self.handle.raw(), &self.input, &mut self.arrived, self.stream.pointer())
        })
    }

    fn combine_input(&mut self) -> Outcome<()> {
        // SAFETY: the handle lives, the struct is writable.
        check(unsafe {
            deep_ep_handle_combine_input(self.handle.raw(), &mut self.back.x, self.stream.pointer())
        })
    }

    fn combine(&mut self) -> Outcome<()> {
        // SAFETY: as for the dispatch.
        check(unsafe {
            deep_ep_handle_combine(self.handle.raw(), &self.back, &self.sums, self.stream.pointer())
        })
    }

    /// Whatever the device has found wrong.
    pub fn look(&self) -> Outcome<()> {
        let mut report = filled!(deep_ep_report_t, deep_ep_report_init);
        // SAFETY: the buffer lives and the report is writable; null asks for no missing ranks.
        check(unsafe { deep_ep_buffer_report(self.buffer.raw(), &mut report, std::ptr::null_mut(), 0) })?;
        match report.status {
            deep_ep_status_t::DEEP_EP_SUCCESS => Ok(()),
            status => {
                Err(format!("the buffer reports {status:?}: row {}, value {}", report.row, report.value))
            }
        }
    }
}
