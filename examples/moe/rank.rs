//! One rank of the layer: batches of tokens through gate, dispatch, experts and combine.

use crate::common::{Buffer, Comm, Handle, Lines, Outcome};
use crate::filled;
use crate::message::{ExpertReport, Report, Traffic};
use crate::model::{Expert, Front, HIDDEN};
use crate::options::Options;
use crate::text::{batches, share};
use deepep::capi::*;
use std::time::{Duration, Instant};

pub const ROW_BYTES: usize = HIDDEN * 2;
/// Every expert's rows begin at a multiple of this, as a matrix kernel would ask for.
const ALIGNMENT: i32 = 8;
/// A peer that says nothing for so long is taken to be gone.
const TIMEOUT_MS: u32 = 20_000;

pub struct Layer<'a> {
    options: &'a Options,
    rank: usize,
    ranks: usize,
    buffer: Buffer,
    front: Front,
    experts: Vec<Expert>,
    report: Report,
}

/// The arrays of one batch.
struct Batch {
    x: Lines,
    ids: Vec<i32>,
    weights: Vec<f32>,
}

impl<'a> Layer<'a> {
    /// Collective: every rank of `comm` makes its layer.
    pub fn new(options: &'a Options, comm: &mut Comm, rank: usize, ranks: usize) -> Outcome<Layer<'a>> {
        let mut config = filled!(deep_ep_buffer_config_t, deep_ep_buffer_config_init);
        config.layout = deep_ep_layout_t::DEEP_EP_PACKED_BY_EXPERT as u32;
        config.max_tokens = i64::from(options.batch);
        config.max_row_bytes = ROW_BYTES as i64;
        config.num_experts = options.experts as i32;
        config.num_topk = options.top_k as i32;
        config.expert_alignment = ALIGNMENT;
        config.timeout_ms = TIMEOUT_MS;
        config.first_timeout_ms = TIMEOUT_MS;
        let buffer = Buffer::create(comm, &config)?;
        let local: Vec<usize> = buffer.local_experts()?.into_iter().map(|id| id as usize).collect();
        let report = Report {
            rank,
            chosen: vec![0; options.experts()],
            experts: local.iter().map(|&id| ExpertReport { id, from: vec![0; ranks] }).collect(),
            ..Report::default()
        };
        Ok(Layer {
            options,
            rank,
            ranks,
            buffer,
            front: Front::new(options.seed, options.experts(), options.topk()),
            experts: local.iter().map(|&id| Expert::new(options.seed, id)).collect(),
            report,
        })
    }

    /// The layer's output for this rank's share of the text. `ended` is called after each batch.
    pub fn run(
        mut self,
        text: &[u8],
        ended: &mut dyn FnMut(usize) -> Outcome<()>,
    ) -> Outcome<(Report, Lines)> {
        let share = share(text.len(), self.rank, self.ranks);
        let mut output = Lines::new(share.len() * ROW_BYTES);
        let handle = self.buffer.handle()?;
        let batches = batches(text.len(), self.ranks, self.options.batch());
        for number in 0..batches {
            let first = (share.start + number * self.options.batch()).min(share.end);
            let tokens = first..(first + self.options.batch()).min(share.end);
            let rows = (first - share.start) * ROW_BYTES..(tokens.end - share.start) * ROW_BYTES;
            let batch = self.gate(&text[tokens.clone()], tokens.start);
            self.step(&handle, &batch, tokens.len(), &mut output[rows])?;
            ended(number)?;
        }
        drop(handle);
        self.report.tokens = share.len();
        self.report.batches = batches;
        Ok((self.report, output))
    }

    fn gate(&mut self, bytes: &[u8], position: usize) -> Batch {
        let k = self.options.topk();
        let mut x = Lines::new(bytes.len() * ROW_BYTES);
        let (mut ids, mut weights) = (vec![0; bytes.len() * k], vec![0.0; bytes.len() * k]);
        for (token, &byte) in bytes.iter().enumerate() {
            let row = &mut as_codes_mut(&mut x)[token * HIDDEN..][..HIDDEN];
            self.front.embed(byte, position + token, row);
            self.front.route(row, &mut ids[token * k..][..k], &mut weights[token * k..][..k]);
        }
        ids.iter().for_each(|&id| self.report.chosen[id as usize] += 1);
        Batch { x, ids, weights }
    }

    /// One batch, from the gate's choice to the sums.
    fn step(&mut self, handle: &Handle, batch: &Batch, tokens: usize, sums: &mut [u8]) -> Outcome<()> {
        let before = self.traffic()?;
        let start = Instant::now();
        let arrived = dispatch(handle, batch, tokens)?;
        let dispatched = (self.traffic()?, Instant::now());
        let results = handle.combine_input(deep_ep_dtype_t::DEEP_EP_BF16)?;
        self.apply_experts(&arrived, &results);
        let computed = Instant::now();
        combine(handle, results, sums)?;
        let combined = (self.traffic()?, Instant::now());
        add(&mut self.report.dispatch, before, dispatched.0);
        add(&mut self.report.combine, dispatched.0, combined.0);
        self.report.dispatch_us += micros(dispatched.1 - start);
        self.report.experts_us += micros(computed - dispatched.1);
        self.report.combine_us += micros(combined.1 - computed);
        Ok(())
    }

    /// Every local expert over the rows that came for it.
    fn apply_experts(&mut self, arrived: &deep_ep_dispatch_out_t, results: &deep_ep_rows_t) {
        for (local, expert) in self.experts.iter().enumerate() {
            // SAFETY: the dispatch filled in one count and one offset per local expert.
            let (count, offset) = unsafe {
                (*arrived.expert_counts.add(local) as usize, *arrived.expert_offsets.add(local) as usize)
            };
            for position in offset..offset + count {
                // SAFETY: the dispatch put a row at every position, and the combine input has room for as many.
                unsafe {
                    let source = *arrived.row_source.add(position) as usize / self.options.batch();
                    self.report.experts[local].from[source] += 1;
                    expert.apply(row(&arrived.x, position), row_mut(results, position));
                }
            }
        }
    }

    fn traffic(&self) -> Outcome<Traffic> {
        let totals = self.buffer.statistics()?;
        Ok(Traffic {
            rows_sent: totals.rows_sent,
            bytes_sent: totals.bytes_sent,
            rows_received: totals.rows_received,
            bytes_received: totals.bytes_received,
        })
    }
}

fn dispatch(handle: &Handle, batch: &Batch, tokens: usize) -> Outcome<deep_ep_dispatch_out_t> {
    let mut input = filled!(deep_ep_dispatch_in_t, deep_ep_dispatch_in_init);
    input.num_tokens = tokens as i64;
    input.hidden = HIDDEN as i64;
    input.x.data = batch.x.as_ptr().cast_mut().cast();
    input.x.dtype = deep_ep_dtype_t::DEEP_EP_BF16 as u32;
    input.topk_idx = batch.ids.as_ptr().cast();
    input.topk_idx_dtype = deep_ep_dtype_t::DEEP_EP_INT32 as u32;
    input.topk_weights = batch.weights.as_ptr();
    let mut output = filled!(deep_ep_dispatch_out_t, deep_ep_dispatch_out_init);
    // SAFETY: the arrays have `tokens` rows; every output is the library's.
    unsafe { handle.dispatch(&input, &mut output)? };
    Ok(output)
}

fn combine(handle: &Handle, results: deep_ep_rows_t, sums: &mut [u8]) -> Outcome<()> {
    let mut input = filled!(deep_ep_combine_in_t, deep_ep_combine_in_init);
    input.flags = DEEP_EP_COMBINE_EXACT | DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH;
    input.x = results;
    let mut output = filled!(deep_ep_combine_out_t, deep_ep_combine_out_init);
    output.x.data = sums.as_mut_ptr().cast();
    // SAFETY: the results lie in place, and `sums` has a row for every token of the batch.
    unsafe { handle.combine(&input, &output) }
}

fn add(sum: &mut Traffic, before: Traffic, after: Traffic) {
    sum.rows_sent += after.rows_sent - before.rows_sent;
    sum.bytes_sent += after.bytes_sent - before.bytes_sent;
    sum.rows_received += after.rows_received - before.rows_received;
    sum.bytes_received += after.bytes_received - before.bytes_received;
}

fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}

fn as_codes_mut(bytes: &mut [u8]) -> &mut [u16] {
    // SAFETY: rows are aligned far beyond 2 bytes and any two bytes are a code.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / 2) }
}

/// # Safety
/// `rows` has a row at `position`, and nobody writes it as long as the result is used.
unsafe fn row<'a>(rows: &deep_ep_rows_t, position: usize) -> &'a [u16] {
    // SAFETY: as the caller promises.
    unsafe {
        let start = rows.data.cast::<u8>().add(position * rows.row_stride as usize);
        std::slice::from_raw_parts(start.cast(), HIDDEN)
    }
}

/// # Safety
/// As [`row`], and nobody reads it either.
unsafe fn row_mut<'a>(rows: &deep_ep_rows_t, position: usize) -> &'a mut [u16] {
    // SAFETY: as the caller promises.
    unsafe {
        let start = rows.data.cast::<u8>().add(position * rows.row_stride as usize);
        std::slice::from_raw_parts_mut(start.cast(), HIDDEN)
    }
}
