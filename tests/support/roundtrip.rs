//! A whole dispatch and combine described in one line, as the numbered cases need it.

use super::api::*;
use super::exchange::{Exchange, Wire};
use super::payload::Payload;
use super::receive::Asked;
use super::send::Style;
use super::sum::{Combination, Manner};
use super::world::{Rank, World};
use crate::reference::numbers::BF16;
use crate::reference::{Layout, Setup};
use deepep::capi::*;

pub struct Case {
    pub setup: Setup,
    pub wire: Wire,
    /// Tokens of each rank.
    pub tokens: Vec<usize>,
    /// Ids, topk per token, of each rank.
    pub ids: Vec<Vec<i64>>,
    /// Weights by place; the default is 2^-(k+1).
    pub weights: Vec<f32>,
    pub step: usize,
}

impl Case {
    /// `route` gives the expert of (rank, token, k).
    pub fn new(
        layout: Layout,
        tokens: &[usize],
        hidden: usize,
        topk: usize,
        experts: usize,
        route: impl Fn(usize, usize, usize) -> i64,
    ) -> Case {
        let most = tokens.iter().copied().max().unwrap_or(0).max(1);
        let setup = Setup::new(layout, tokens.len(), most, experts, topk);
        let ids = tokens
            .iter()
            .enumerate()
            .map(|(rank, &tokens)| (0..tokens * topk).map(|i| route(rank, i / topk, i % topk)).collect())
            .collect();
        let weights = (0..topk).map(|k| 0.5f32.powi(k as i32 + 1)).collect();
        Case { setup, wire: Wire::plain(BF16, hidden), tokens: tokens.to_vec(), ids, weights, step: 0 }
    }

    pub fn ranks(&self) -> usize {
        self.tokens.len()
    }

    pub fn config(&self) -> deep_ep_buffer_config_t {
        let setup = &self.setup;
        let layout = [
            deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK,
            deep_ep_layout_t::DEEP_EP_PACKED_BY_EXPERT,
            deep_ep_layout_t::DEEP_EP_SLOTTED_BY_RANK,
            deep_ep_layout_t::DEEP_EP_SLOTTED_BY_EXPERT,
        ][setup.layout as usize];
        let mut config = buffer_config(layout, setup.max_tokens, setup.experts, setup.topk);
        config.max_row_bytes = (self.wire.row_bytes().div_ceil(16) * 16) as i64;
        config.max_combine_row_bytes = (self.wire.hidden * 4).div_ceil(16) as i64 * 16;
        config.max_scale_bytes = self.wire.scale_bytes() as i64;
        if setup.layout == Layout::PackedByExpert {
            config.expert_alignment = setup.alignment as i32;
            config.max_expert_rows = setup.max_expert_rows.unwrap_or(0) as i64;
        }
        config.max_recv_rows = setup.max_recv_rows.unwrap_or(0) as i64;
        config
    }

    pub fn world(&self) -> World {
        World::new(self.ranks(), &self.config())
    }

    pub fn exchange(&self) -> Exchange {
        let topk = self.setup.topk;
        let weights = self
            .tokens
            .iter()
            .map(|&tokens| Some((0..tokens * topk).map(|i| self.weights[i % topk]).collect()))
            .collect();
        Exchange::new(&self.setup, self.wire, self.ids.clone(), weights, Payload::Plain { step: self.step })
            .with_room(5)
    }

    /// One dispatch and one combine with identity experts on a fresh buffer; every byte is compared.
    pub fn run(&self) {
        self.run_on(&self.world());
    }

    pub fn run_on(&self, world: &World) {
        let exchange = self.exchange();
        let combination = Combination::identity(&exchange);
        world.run(|rank| once(rank, &exchange, &combination));
    }
}

/// One dispatch and one combine on a fresh handle, outputs in caller memory.
pub fn once(rank: &Rank, exchange: &Exchange, combination: &Combination) {
    let handle = rank.buffer.handle();
    step(rank, &handle, exchange, combination);
    Exchange::check_report(rank, &[exchange]);
}

pub fn step(rank: &Rank, handle: &Handle, exchange: &Exchange, combination: &Combination) {
    let _received = handle.exchange(rank.rank, exchange, Style::default(), Asked::OWN);
    handle.combine(rank.rank, combination, Manner::default());
}
