//! What is sent in which step: a function of the seed, so that every rank knows what it must receive from every other.

use crate::cases::patience;
use crate::memory::Where;
use crate::ranks::ok;
use crate::rng::Rng;
use deepep::capi::*;
use std::collections::BTreeMap;

pub const HIDDEN: usize = 64;
pub const ROW: usize = 2 * HIDDEN;

#[derive(Debug, Clone)]
pub struct Setup {
    pub seed: u64,
    pub ranks: usize,
    pub layout: u32,
    pub sync: u32,
    /// Tokens of a rank, at most; and what its memory has room for.
    pub tokens: usize,
    pub max_tokens: usize,
    pub max_row_bytes: usize,
    pub topk: usize,
    pub experts: usize,
    pub in_flight: i32,
    pub windows: i32,
    pub sms: i32,
    pub stages: i32,
}

impl Setup {
    pub fn by_expert(&self) -> bool {
        self.layout % 2 == 1
    }

    pub fn config(&self, place: Where) -> deep_ep_buffer_config_t {
        let mut config = unsafe { std::mem::zeroed() };
        ok(unsafe { deep_ep_buffer_config_init(&mut config, size_of::<deep_ep_buffer_config_t>()) });
        config.layout = self.layout;
        config.sync = self.sync;
        config.max_tokens = self.max_tokens as i64;
        config.max_row_bytes = self.max_row_bytes as i64;
        config.num_experts = self.experts as i32;
        config.num_topk = self.topk as i32;
        config.max_in_flight = self.in_flight;
        config.dispatch_windows = self.windows;
        config.combine_windows = self.windows;
        (config.timeout_ms, config.first_timeout_ms) = (6000 * patience(), 9000 * patience());
        if place == Where::Device {
            (config.num_sms, config.num_stages) = (self.sms, self.stages);
        }
        config
    }

    fn dice(&self, step: usize, rank: usize, token: usize) -> Rng {
        Rng::new(self.seed + ((step * 64 + rank) * 1024 + token) as u64 * 977)
    }

    pub fn tokens(&self, step: usize, rank: usize) -> usize {
        let mut dice = self.dice(step, rank, 1023);
        match dice.below(6) {
            0 => 0,
            1 => self.tokens,
            _ => dice.below(self.tokens + 1),
        }
    }

    /// Different experts, or none.
    pub fn ids(&self, step: usize, rank: usize, token: usize) -> Vec<i64> {
        let mut dice = self.dice(step, rank, token);
        let first = dice.below(self.experts);
        let stride = 1 + dice.below((self.experts - 1) / self.topk.max(2));
        let id = |k: usize| (first + k * stride) % self.experts;
        (0..self.topk).map(|k| if dice.below(12) == 0 { -1 } else { id(k) as i64 }).collect()
    }

    fn owner(&self, expert: i64) -> usize {
        let (each, more) = (self.experts / self.ranks, self.experts % self.ranks);
        let expert = expert as usize;
        match expert < more * (each + 1) {
            true => expert / (each + 1),
            false => more + (expert - more * (each + 1)) / each,
        }
    }

    /// How often a token's row comes to each rank.
    pub fn copies(&self, step: usize, rank: usize, token: usize) -> BTreeMap<usize, usize> {
        let mut copies = BTreeMap::new();
        for id in self.ids(step, rank, token).into_iter().filter(|&id| id >= 0) {
            *copies.entry(self.owner(id)).or_insert(0) += 1;
        }
        if !self.by_expert() {
            copies.values_mut().for_each(|count| *count = 1);
        }
        copies
    }
}

/// Whole numbers that BF16 has, also when they are added up.
pub fn row(step: usize, rank: usize, token: usize, times: usize) -> [u8; ROW] {
    let digits = [step % 60, step / 60 % 60, rank, token % 60, token / 60, 1, 7, 33];
    std::array::from_fn(|i| {
        let number = (digits[i / 2 % digits.len()] * times) as f32;
        (number.to_bits() >> 16).to_le_bytes()[i % 2]
    })
}
