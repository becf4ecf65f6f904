//! One rank's calls in a random program: whole operations on real rows, every row stamped with its step.

use super::super::handle::Handle;
use super::super::state::Buffer;
use crate::error::{Result, Status};
use crate::plan::dtype::{Dtype, IdType};
use crate::plan::request::{CombineRequest, CombineTarget, DispatchRequest, DispatchTarget, Rows};
use std::sync::Arc;

const HIDDEN: usize = 8;
pub const TOKENS: usize = 3;
/// Every token goes to two ranks.
pub const TOPK: usize = 2;
const POISON: u16 = 0x7fc1;

/// A choice of calls that is the same on all ranks.
#[derive(Clone)]
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// How far a handle is.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Idle,
    Sent,
    Arrived(Rows),
    Combining,
}

struct Batch {
    handle: Handle,
    stage: Stage,
    step: usize,
    /// Where the rows of a dispatch go that are not left in place.
    received: Vec<u128>,
}

pub struct Rank {
    buffer: Arc<Buffer>,
    me: usize,
    ranks: usize,
    slabs: usize,
    slab_rows: usize,
    batches: Vec<Batch>,
    /// What every call returned: all ranks must decide alike.
    pub decisions: Vec<Option<Status>>,
}

/// What a token's row holds, a whole number that BF16 has.
fn stamp(step: usize, rank: usize, token: usize) -> u16 {
    let value = 1 + (step * 31 + rank * 7 + token) % 120;
    ((value as f32).to_bits() >> 16) as u16
}

fn doubled(stamp: u16) -> u16 {
    ((f32::from_bits(u32::from(stamp) << 16) * 2.0).to_bits() >> 16) as u16
}

/// The experts of a token; each rank has one.
fn experts(step: usize, rank: usize, token: usize, ranks: usize) -> [i64; TOPK] {
    let first = step + rank + token * token;
    [0, 1].map(|k| ((first + k) % ranks) as i64)
}

/// Rank `rank` comes with fewer tokens now and then, and with none.
fn tokens(step: usize, rank: usize) -> usize {
    (step * 5 + rank * 3) % (TOKENS + 1)
}

impl Rank {
    pub fn new(buffer: Arc<Buffer>, handles: usize) -> Rank {
        let (ranks, me) = (buffer.num_ranks(), buffer.comm.rank());
        let (slabs, slab_rows) = crate::plan::layout::slabs(&buffer.config, me);
        let room = (slabs * slab_rows) as usize * HIDDEN * 2 / 16;
        let batch = |_| Batch {
            handle: Handle::create(&buffer).unwrap(),
            stage: Stage::Idle,
            step: 0,
            received: vec![0; room],
        };
        let batches = (0..handles).map(batch).collect();
        let (slabs, slab_rows) = (slabs as usize, slab_rows as usize);
        Rank { buffer, me, ranks, slabs, slab_rows, batches, decisions: Vec::new() }
    }

    /// One random call. Refusals for want of windows are part of the program; everything else ends it.
    pub fn step(&mut self, step: usize, dice: &mut Dice) -> Result<()> {
        let (at, what, variant) = (dice.below(self.batches.len()), dice.below(8), dice.below(4));
        let done = match (self.batches[at].stage, what) {
            (_, 0) => self.buffer.barrier(0),
            (Stage::Idle, 1..=3) => self.send(at, step),
            (Stage::Idle, _) => self.send(at, step).and_then(|()| self.receive(at, variant)),
            (Stage::Sent, _) => self.receive(at, variant),
            (Stage::Arrived(_), 1) => self.release(at),
            (Stage::Arrived(rows), 2..=4) => self.give_back(at, rows, variant),
            (Stage::Arrived(rows), _) => self.give_back(at, rows, variant).and_then(|()| self.sum(at)),
            (Stage::Combining, _) => self.sum(at),
        };
        self.decisions.push(done.as_ref().err().map(|error| error.status));
        match done {
            Err(error) if error.status == Status::DEEP_EP_BUSY => Ok(()),
            done => done,
        }
    }

    /// Everything to its end.
    pub fn finish(&mut self) -> Result<()> {
        for at in 0..self.batches.len() {
            if self.batches[at].stage == Stage::Combining {
                self.sum(at)?;
            }
            if self.batches[at].stage == Stage::Sent {
                self.receive(at, 1)?;
            }
        }
        self.buffer.barrier(0)
    }

    fn send(&mut self, at: usize, step: usize) -> Result<()> {
        let tokens = tokens(step, self.me);
        let x: Vec<[u16; HIDDEN]> = (0..tokens).map(|token| [stamp(step, self.me, token); HIDDEN]).collect();
        let x: Vec<u128> = x.iter().map(|row| u128::from_ne_bytes(bytes_of(row))).collect();
        let ids: Vec<i64> = (0..tokens).flat_map(|token| experts(step, self.me, token, self.ranks)).collect();
        let request = DispatchRequest {
            cached: false,
            num_sms: 0,
            num_tokens: tokens as i64,
            num_tokens_device: 0,
            hidden: HIDDEN as i64,
            x: Rows {
                data: x.as_ptr() as usize,
                rows: tokens as i64,
                dtype: Some(Dtype::Bf16),
                ..Rows::default()
            },
            x_scales: Default::default(),
            ids: ids.as_ptr() as usize,
            id_type: Some(IdType::Int64),
            weights: 0,
            wire_dtype: None,
            wire_scale: None,
            wire_scale_block: 0,
        };
        let batch = &mut self.batches[at];
        batch.handle.dispatch_send(&request, 0)?;
        (batch.stage, batch.step) = (Stage::Sent, step);
        Ok(())
    }

    fn receive(&mut self, at: usize, variant: usize) -> Result<()> {
        let batch = &mut self.batches[at];
        let mut target = DispatchTarget::default();
        if variant % 2 == 1 {
            target.x = Rows {
                data: batch.received.as_mut_ptr() as usize,
                rows: self.slab_rows as i64,
                ..Rows::default()
            };
        }
        let outputs = batch.handle.dispatch_recv(&target, 0)?.outputs;
        batch.stage = Stage::Arrived(outputs.x);
        self.check_rows(at, &outputs);
        Ok(())
    }

    /// The rows are those of this step, and all of them.
    fn check_rows(&self, at: usize, outputs: &DispatchTarget) {
        let (x, step) = (outputs.x, self.batches[at].step);
        let mut found = Vec::new();
        for (slab, row) in (0..self.slabs).flat_map(|slab| (0..self.slab_rows).map(move |row| (slab, row))) {
            let (source, row) =
                (slab * self.slab_rows + row, slab * x.slot_stride as usize + row * x.row_stride as usize);
            // SAFETY: the receive has written that many sources, and a row for each that is not -1.
            let source = unsafe { *(outputs.source as *const i64).add(source) };
            if source < 0 {
                continue;
            }
            let (rank, token) = (source as usize / TOKENS, source as usize % TOKENS);
            // SAFETY: as above.
            let bytes: [u16; HIDDEN] = unsafe { *((x.data + row) as *const [u16; HIDDEN]) };
            assert_eq!(
                bytes,
                [stamp(step, rank, token); HIDDEN],
                "step {step}, token {token} of rank {rank}"
            );
            found.push((rank, token));
        }
        found.sort_unstable();
        let mine = |&(rank, token): &(usize, usize)| {
            token < tokens(step, rank) && experts(step, rank, token, self.ranks).contains(&(self.me as i64))
        };
        let all = (0..self.ranks).flat_map(|rank| (0..TOKENS).map(move |token| (rank, token)));
        assert_eq!(found, all.filter(mine).collect::<Vec<_>>(), "step {step}");
    }

    fn release(&mut self, at: usize) -> Result<()> {
        self.batches[at].handle.release(0)?;
        self.batches[at].stage = Stage::Idle;
        Ok(())
    }

    /// Gives the received rows back as they are: from where they lie, or through the library's own memory.
    fn give_back(&mut self, at: usize, rows: Rows, variant: usize) -> Result<()> {
        let batch = &mut self.batches[at];
        let mut x = rows;
        if variant >= 2 {
            x = batch.handle.combine_input(Dtype::Bf16, 0)?;
            for slab in 0..self.slabs {
                let (from, to) = (slab * rows.slot_stride as usize, slab * x.slot_stride as usize);
                let bytes = self.slab_rows * HIDDEN * 2;
                // SAFETY: both have room for as many rows in every slab, without gaps.
                unsafe { ((rows.data + from) as *const u8).copy_to((x.data + to) as *mut u8, bytes) };
            }
            x.data = 0;
        }
        let request = CombineRequest {
            exact: false,
            weights_of_dispatch: false,
            num_sms: 0,
            hidden: 0,
            x,
            row_weights: 0,
            topk_weights: 0,
            carried_weights: 0,
        };
        batch.handle.combine_send(&request, 0)?;
        batch.stage = Stage::Combining;
        Ok(())
    }

    /// Every token went to two ranks, so it comes back twice.
    fn sum(&mut self, at: usize) -> Result<()> {
        let batch = &mut self.batches[at];
        let tokens = tokens(batch.step, self.me);
        let mut sums = [u128::from_ne_bytes(bytes_of(&[POISON; HIDDEN])); TOKENS];
        let x = Rows {
            data: sums.as_mut_ptr() as usize,
            rows: tokens as i64,
            dtype: Some(Dtype::Bf16),
            ..Rows::default()
        };
        batch.handle.combine_recv(&CombineTarget { x, bias: [0, 0], carried_weights: 0 }, 0)?;
        batch.stage = Stage::Idle;
        for (token, sum) in sums.iter().enumerate() {
            let expected = if token < tokens { doubled(stamp(batch.step, self.me, token)) } else { POISON };
            assert_eq!(sum.to_ne_bytes(), bytes_of(&[expected; HIDDEN]), "sum of step {}", batch.step);
        }
        Ok(())
    }
}

fn bytes_of(row: &[u16; HIDDEN]) -> [u8; 16] {
    std::array::from_fn(|i| row[i / 2].to_ne_bytes()[i % 2])
}
