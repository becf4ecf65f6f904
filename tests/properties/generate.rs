//! From a few small numbers to a program. The numbers are what proptest shrinks; the rest follows from the seed.

use super::program::{Program, Step, Sum};
use crate::reference::numbers::*;
use crate::reference::{even_owners, Layout, Setup, LAYOUTS};
use crate::support::exchange::{Exchange, Wire};
use crate::support::payload::{Noise, Payload};
use crate::support::receive::may_be_column_major;
use crate::support::send::Style;
use crate::support::sum::{Combination, Manner, Terms};
use crate::support::*;
use deepep::capi::*;

#[derive(Clone, Debug)]
pub struct Numbers {
    pub ranks: usize,
    pub layout: usize,
    pub tokens: usize,
    pub topk: usize,
    pub experts: usize,
    /// Rows of this many 16-byte units.
    pub units: usize,
    pub sync: u32,
    pub in_flight: usize,
    pub routing: usize,
    pub counts: usize,
    pub overflow: bool,
    pub in_place: bool,
    pub templates: Vec<usize>,
    pub seed: u64,
}

pub const ROUTINGS: usize = 6;
pub const COUNTS: usize = 4;

const MAX_HIDDEN_BYTES: usize = 4096;

pub fn program(numbers: &Numbers) -> Program {
    let mut noise = Noise::new(&[numbers.seed]);
    let layout = LAYOUTS[numbers.layout];
    let experts = numbers.experts.max(numbers.topk);
    let mut setup = Setup::new(layout, numbers.ranks, numbers.tokens, experts, numbers.topk);
    let mut map = None;
    if noise.chance(30) {
        let owners: Vec<_> = (0..experts).map(|_| noise.below(numbers.ranks)).collect();
        map = Some(owners.iter().map(|&owner| owner as i32).collect());
        setup.owner = owners;
    } else {
        assert_eq!(setup.owner, even_owners(experts, numbers.ranks));
    }
    if layout == Layout::PackedByExpert {
        setup.alignment = [1, 1, 2, 3, 8, 16][noise.below(6)];
    }
    if numbers.overflow && !layout.slotted() {
        let most = numbers.ranks * numbers.tokens;
        setup.max_recv_rows = Some(1 + noise.below(most));
        if layout == Layout::PackedByExpert && noise.chance(70) {
            setup.max_expert_rows = Some(1 + noise.below(most * numbers.topk.min(4)));
        }
    } else if layout == Layout::PackedByExpert && noise.chance(50) {
        let worst = numbers.ranks * numbers.tokens * numbers.topk + experts * setup.alignment;
        setup.max_expert_rows = Some(worst);
    }
    let mut writer = Writer {
        numbers,
        noise,
        program: Program {
            config: config(numbers, &setup),
            setup,
            experts: map,
            handles: 3,
            steps: Vec::new(),
            sums: Vec::new(),
            actions: Vec::new(),
            seed: numbers.seed,
        },
    };
    for &template in &numbers.templates {
        writer.template(template);
    }
    writer.program
}

fn config(numbers: &Numbers, setup: &Setup) -> deep_ep_buffer_config_t {
    let layouts = [
        deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK,
        deep_ep_layout_t::DEEP_EP_PACKED_BY_EXPERT,
        deep_ep_layout_t::DEEP_EP_SLOTTED_BY_RANK,
        deep_ep_layout_t::DEEP_EP_SLOTTED_BY_EXPERT,
    ];
    let mut config = buffer_config(layouts[numbers.layout], setup.max_tokens, setup.experts, setup.topk);
    config.sync = numbers.sync;
    config.max_row_bytes = MAX_HIDDEN_BYTES as i64;
    config.max_scale_bytes = 128;
    config.max_combine_row_bytes = 4 * MAX_HIDDEN_BYTES as i64;
    config.max_in_flight = numbers.in_flight as i32;
    config.max_recv_rows = setup.max_recv_rows.unwrap_or(0) as i64;
    config.max_expert_rows = setup.max_expert_rows.unwrap_or(0) as i64;
    if setup.layout == Layout::PackedByExpert {
        config.expert_alignment = setup.alignment as i32;
    }
    if numbers.seed.is_multiple_of(3) {
        // As few windows as three open handles and the operations in flight can do with.
        config.dispatch_windows = numbers.in_flight.max(3) as i32;
        config.combine_windows = numbers.in_flight.max(3) as i32;
    }
    config
}

/// A program in the making.
pub struct Writer<'a> {
    pub numbers: &'a Numbers,
    pub noise: Noise,
    pub program: Program,
}

impl Writer<'_> {
    pub fn dispatch(&mut self) -> usize {
        let wire = self.wire();
        let setup = &self.program.setup;
        let noise = &mut self.noise;
        let one_rank = noise.below(setup.ranks);
        let mut ids = Vec::new();
        let mut weights = Vec::new();
        for rank in 0..setup.ranks {
            let tokens = match self.numbers.counts {
                0 => setup.max_tokens,
                1 => noise.below(setup.max_tokens + 1),
                2 if rank == one_rank => setup.max_tokens,
                3 => noise.below(2).min(setup.max_tokens),
                _ => 0,
            };
            let rows: Vec<i64> =
                (0..tokens).flat_map(|_| route(noise, setup, self.numbers.routing, wire.ids64)).collect();
            weights
                .push(noise.chance(80).then(|| (0..tokens * setup.topk).map(|_| noise.number()).collect()));
            ids.push(rows);
        }
        let payload = Payload::Special { seed: noise.next() };
        let mut exchange = Exchange::new(setup, wire, ids, weights, payload);
        if !self.numbers.in_place {
            exchange = exchange.with_room(4);
        }
        if self.numbers.overflow && !self.numbers.in_place && noise.chance(30) {
            let limits = (0..exchange.setup.ranks)
                .map(|rank| {
                    let slab = exchange.setup.slabs(rank, None).1;
                    exchange.capacity(rank).map(|rows| 1 + noise.below(rows.min(slab).max(1)))
                })
                .collect();
            exchange = exchange.limited(limits);
        }
        self.add_step(exchange)
    }

    pub fn dispatch_again(&mut self, earlier: usize) -> usize {
        let wire = self.wire();
        let noise = &mut self.noise;
        let earlier = &self.program.steps[earlier].exchange;
        let weights = earlier
            .inputs
            .iter()
            .map(|input| noise.chance(50).then(|| input.ids.iter().map(|_| noise.number()).collect()))
            .collect();
        let exchange = earlier.again(wire, weights, Payload::Special { seed: noise.next() });
        self.add_step(exchange)
    }

    fn add_step(&mut self, exchange: Exchange) -> usize {
        let noise = &mut self.noise;
        let ranks = exchange.setup.ranks;
        let mut styles = Vec::new();
        let mut asked = Vec::new();
        for rank in 0..ranks {
            styles.push(Style {
                row_gap: 16 * noise.below(3),
                scale_gap: 4 * noise.below(2),
                scales_column_major: noise.chance(30) && exchange.wire.scale != SCALE_OPAQUE,
                device_count: noise.chance(25) && !exchange.cached,
            });
            let mut sides = noise.next() as u16;
            if exchange.capacity(rank).is_none() {
                sides &= !7; // lists as long as the library's own choice of rows
            }
            asked.push(Asked {
                in_place: self.numbers.in_place,
                own_sides: sides,
                row_gap: 16 * noise.below(3),
                scale_gap: 4 * noise.below(2),
                slot_gap: if exchange.setup.layout.slotted() { 16 * noise.below(3) } else { 0 },
                column_major: may_be_column_major(&exchange) && noise.chance(40),
                say_types: noise.chance(50),
            });
        }
        self.program.steps.push(Step { exchange, styles, asked });
        self.program.steps.len() - 1
    }

    fn wire(&mut self) -> Wire {
        let noise = &mut self.noise;
        let units = self.numbers.units;
        let scale = [SCALE_FP32, SCALE_POW2, SCALE_UE8M0][noise.below(3)];
        let mut wire = match noise.below(9) {
            0 | 1 => Wire::plain(BF16, units * 8),
            2 => Wire::plain(FP16, units * 8),
            3 => Wire::plain(FP32, units * 4),
            4 => Wire::plain(OPAQUE, units * 16),
            5 => Wire::scaled(OPAQUE, units * 16, SCALE_OPAQUE, 4 * (1 + noise.below(8))),
            6 => Wire::scaled(FP8, units * 16, scale, 0),
            _ => Wire::cast([BF16, FP16, FP32][noise.below(3)], units * 16, scale),
        };
        wire.ids64 = noise.chance(50);
        wire
    }

    pub fn combine(&mut self, step: usize) -> usize {
        let noise = &mut self.noise;
        let exchange = &self.program.steps[step].exchange;
        let by_expert = exchange.setup.layout.by_expert();
        let slotted = exchange.setup.layout.slotted();
        let in_place = noise.chance(40) && (!slotted || exchange.limits.iter().all(Option::is_none));
        let mut dtype = [BF16, FP16, FP32][noise.below(3)];
        let mut hidden = 8 * (1 + noise.below(40));
        if in_place {
            hidden = exchange.wire.hidden;
            if !hidden.is_multiple_of(8) {
                dtype = FP32;
            }
        }
        let exact = by_expert && noise.chance(50);
        let weights_of_dispatch = by_expert && noise.chance(35);
        let overflows = (0..exchange.setup.ranks).any(|rank| exchange.overflows(rank));
        let terms = Terms {
            dtype,
            hidden,
            exact,
            weights_of_dispatch,
            row_weights: (exact || !weights_of_dispatch) && noise.chance(40),
            topk_weights: exact && !weights_of_dispatch && noise.chance(50),
            carried: noise.chance(40),
            bias: noise.below(4) as u8,
            identity: false,
            special: !overflows && noise.chance(60),
        };
        let combination = Combination::new(exchange, terms, noise.next() >> 8);
        let manners = (0..exchange.setup.ranks)
            .map(|_| Manner {
                in_place,
                row_gap: 16 * noise.below(3),
                slot_gap: if slotted { 16 * noise.below(3) } else { 0 },
                out_gap: 16 * noise.below(3),
            })
            .collect();
        self.program.sums.push(Sum { combination, manners });
        self.program.sums.len() - 1
    }
}

/// The ids of one token.
fn route(noise: &mut Noise, setup: &Setup, routing: usize, ids64: bool) -> Vec<i64> {
    let mut all: Vec<i64> = (0..setup.experts as i64).collect();
    let mut row = Vec::new();
    for _ in 0..setup.topk {
        let reach = if routing == 4 { all.len().min(3) } else { all.len() };
        row.push(all.swap_remove(noise.below(reach)));
    }
    match routing {
        1 => {
            row = vec![-1; setup.topk];
            row[noise.below(setup.topk)] = 0;
        }
        2 => row = vec![-1; setup.topk],
        3 => row.iter_mut().for_each(|id| *id = if noise.chance(40) { -1 } else { *id }),
        5 => {
            for k in 0..row.len() {
                row[k] = match noise.below(12) {
                    0 => setup.experts as i64 + noise.below(3) as i64,
                    1 => -2 - noise.below(3) as i64,
                    2 if ids64 => [i64::MIN, i64::MAX, 1 << 32, -(1 << 40)][noise.below(4)],
                    3 => row[noise.below(setup.topk)],
                    4 => -1,
                    _ => row[k],
                };
            }
        }
        _ => {}
    }
    row
}
