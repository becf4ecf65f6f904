//! One dispatch of all ranks: what goes in, and what the model says must come out.

use super::payload::Payload;
use crate::reference::numbers::{self, element_bytes, scale_bytes};
use crate::reference::{self, Arrival, Layout, Setup, Source};

/// Types and row length of a dispatch, equal on all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    pub hidden: usize,
    pub dtype: u32,
    /// Scales that the caller passes.
    pub scale: u32,
    /// Bytes of opaque scales per row.
    pub block: usize,
    /// Scales of a cast to FP8; none: no cast.
    pub cast: u32,
    pub ids64: bool,
}

impl Wire {
    pub fn plain(dtype: u32, hidden: usize) -> Wire {
        Wire { hidden, dtype, scale: 0, block: 0, cast: 0, ids64: true }
    }

    pub fn scaled(dtype: u32, hidden: usize, scale: u32, block: usize) -> Wire {
        Wire { scale, block, ..Wire::plain(dtype, hidden) }
    }

    pub fn cast(dtype: u32, hidden: usize, scale: u32) -> Wire {
        Wire { cast: scale, ..Wire::plain(dtype, hidden) }
    }

    pub fn wire_dtype(&self) -> u32 {
        if self.cast != 0 {
            numbers::FP8
        } else {
            self.dtype
        }
    }

    pub fn wire_scale(&self) -> u32 {
        if self.cast != 0 {
            self.cast
        } else {
            self.scale
        }
    }

    /// Bytes of a row as it crosses.
    pub fn row_bytes(&self) -> usize {
        self.hidden * element_bytes(self.wire_dtype())
    }

    /// Bytes of a row's scales as they cross.
    pub fn scale_bytes(&self) -> usize {
        scale_bytes(self.wire_scale(), self.hidden, self.block)
    }
}

/// What one rank's caller has.
#[derive(Clone, Debug)]
pub struct Input {
    pub ids: Vec<i64>,
    /// None: a null pointer.
    pub weights: Option<Vec<f32>>,
    pub rows: Vec<Vec<u8>>,
    pub scales: Vec<Vec<u8>>,
}

#[derive(Debug)]
pub struct Exchange {
    pub setup: Setup,
    pub wire: Wire,
    pub cached: bool,
    pub inputs: Vec<Input>,
    pub sources: Vec<Source>,
    pub arrivals: Vec<Arrival>,
    /// Rows of the caller's memory, in all (packed) or per slab (slotted).
    pub limits: Vec<Option<usize>>,
}

impl Exchange {
    pub fn new(
        setup: &Setup,
        wire: Wire,
        ids: Vec<Vec<i64>>,
        weights: Vec<Option<Vec<f32>>>,
        payload: Payload,
    ) -> Exchange {
        let mut inputs = Vec::new();
        for (rank, (ids, weights)) in ids.into_iter().zip(weights).enumerate() {
            let tokens = ids.len() / setup.topk;
            let rows = (0..tokens).map(|token| payload.row(wire.dtype, rank, token, wire.hidden)).collect();
            let bytes = scale_bytes(wire.scale, wire.hidden, wire.block);
            let scales = (0..tokens)
                .map(|token| Payload::Wild { seed: 77 }.row(numbers::OPAQUE, rank, token, bytes))
                .collect();
            inputs.push(Input { ids, weights, rows, scales });
        }
        Exchange::from_inputs(setup, wire, inputs)
    }

    pub fn from_inputs(setup: &Setup, wire: Wire, inputs: Vec<Input>) -> Exchange {
        let sources = inputs.iter().map(|input| crossing(&wire, input)).collect();
        Exchange {
            setup: setup.clone(),
            wire,
            cached: false,
            inputs,
            sources,
            arrivals: Vec::new(),
            limits: vec![None; setup.ranks],
        }
        .expect()
    }

    /// The same routing again with other rows; a rank without weights keeps the earlier ones.
    pub fn again(&self, wire: Wire, weights: Vec<Option<Vec<f32>>>, payload: Payload) -> Exchange {
        let ids = self.inputs.iter().map(|input| input.ids.clone()).collect();
        let mut again = Exchange::new(&self.setup, wire, ids, weights, payload);
        for (new, old) in again.sources.iter_mut().zip(&self.sources) {
            if new.weights.is_none() {
                new.weights = old.weights.clone();
            }
        }
        again.cached = true;
        again.limits = self.limits.clone();
        again.expect()
    }

    pub fn limited(mut self, limits: Vec<Option<usize>>) -> Exchange {
        self.limits = limits;
        self.expect()
    }

    fn expect(mut self) -> Exchange {
        self.arrivals = reference::dispatch(&self.setup, &self.sources, &self.limits);
        self
    }

    /// Positions of a rank's output; None: the library's choice.
    pub fn capacity(&self, rank: usize) -> Option<usize> {
        let setup = &self.setup;
        let (slabs, rows) = setup.slabs(rank, self.limits[rank]);
        let limit = self.limits[rank].unwrap_or(usize::MAX);
        match setup.layout {
            Layout::PackedByRank => {
                Some(setup.max_recv_rows.unwrap_or(setup.ranks * setup.max_tokens).min(limit))
            }
            Layout::PackedByExpert => match (setup.max_expert_rows, self.limits[rank]) {
                (None, None) => None,
                (rows, _) => Some(rows.unwrap_or(usize::MAX).min(limit)),
            },
            _ => Some(slabs * rows),
        }
    }

    /// Limits for caller memory where the layout's capacity is the library's choice: a few rows more than arrive.
    pub fn with_room(self, spare: usize) -> Exchange {
        if self.setup.layout != Layout::PackedByExpert || self.setup.max_expert_rows.is_some() {
            return self;
        }
        let setup = &self.setup;
        let limits = (0..setup.ranks)
            .map(|rank| {
                let local = setup.local_experts(rank).len();
                let link = setup.max_recv_rows.unwrap_or(setup.ranks * setup.max_tokens);
                let most = link * setup.topk.min(local);
                let here = self.arrivals[rank].slots.len();
                Some(here.max(most.min(here + spare)).max(1))
            })
            .collect();
        self.limited(limits)
    }

    pub fn has_bad_ids(&self, rank: usize) -> bool {
        reference::first_bad_id(&self.setup, &self.sources[rank]).is_some()
    }

    /// Rows were dropped on `rank`; a pad that has no room is no loss.
    pub fn overflows(&self, rank: usize) -> bool {
        let arrival = &self.arrivals[rank];
        let sum = |counts: &[i32]| counts.iter().map(|&count| count as usize).sum::<usize>();
        let mut sent = 0;
        for source in &self.sources {
            for token in 0..source.tokens() {
                let experts = reference::clean(&self.setup, source, token);
                sent += experts.iter().flatten().filter(|&&expert| self.setup.owner[expert] == rank).count();
            }
        }
        sum(&arrival.rank_counts) < arrival.true_rows[0] as usize || sum(&arrival.expert_counts) < sent
    }
}

/// The caller's rows in the form in which they cross.
fn crossing(wire: &Wire, input: &Input) -> Source {
    let mut source = Source { ids: input.ids.clone(), weights: input.weights.clone(), ..Source::default() };
    for (row, scales) in input.rows.iter().zip(&input.scales) {
        if wire.cast != 0 {
            let (row, scales) = numbers::cast_row(&numbers::decode_row(wire.dtype, row), wire.cast);
            source.rows.push(row);
            source.scales.push(scales);
        } else {
            source.rows.push(row.clone());
            source.scales.push(scales.clone());
        }
    }
    source
}
