//! What a case is, and its inputs.

use crate::rng::Rng;
use deepep::capi::*;

/// A number of the environment.
pub fn setting<T: std::str::FromStr<Err: std::fmt::Debug>>(variable: &str, default: T) -> T {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// How many times longer everything may take: under a sanitizer, or on an emulated device.
pub fn patience() -> u32 {
    setting("DEEPEP_GPU_TESTS_PATIENCE", 1)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    Bf16,
    Fp16,
    Fp32,
    Fp8,
    Opaque,
    /// BF16, cast to FP8 on the way.
    Cast,
    CastFp16,
    CastFp32,
}

impl Rows {
    pub fn given(self) -> u32 {
        (match self {
            Rows::Bf16 | Rows::Cast => deep_ep_dtype_t::DEEP_EP_BF16,
            Rows::Fp16 | Rows::CastFp16 => deep_ep_dtype_t::DEEP_EP_FP16,
            Rows::Fp32 | Rows::CastFp32 => deep_ep_dtype_t::DEEP_EP_FP32,
            Rows::Fp8 => deep_ep_dtype_t::DEEP_EP_FP8_E4M3,
            Rows::Opaque => deep_ep_dtype_t::DEEP_EP_OPAQUE,
        }) as u32
    }

    pub fn given_bytes(self) -> usize {
        match self {
            Rows::Bf16 | Rows::Cast | Rows::Fp16 | Rows::CastFp16 => 2,
            Rows::Fp32 | Rows::CastFp32 => 4,
            Rows::Fp8 | Rows::Opaque => 1,
        }
    }

    pub fn is_cast(self) -> bool {
        matches!(self, Rows::Cast | Rows::CastFp16 | Rows::CastFp32)
    }

    pub fn sent_bytes(self) -> usize {
        if self.is_cast() {
            1
        } else {
            self.given_bytes()
        }
    }

    /// Random rows: mostly of middling size, now and then any bits at all.
    pub fn random(self, rng: &mut Rng, elements: usize) -> Vec<u8> {
        let mut bytes = rng.bytes(elements * self.given_bytes());
        match self {
            Rows::Bf16 | Rows::Cast => tame(&mut bytes, 0x80, 7, 118, 16),
            Rows::Fp16 | Rows::CastFp16 => tame(&mut bytes, 0x80, 2, 10, 8),
            Rows::Fp32 | Rows::CastFp32 => {
                for word in bytes.chunks_exact_mut(4) {
                    let raw = u32::from_le_bytes(word.try_into().unwrap());
                    if raw % 509 != 0 {
                        let tame = raw & 0x807f_ffff | (118 + (raw >> 23) % 16) << 23;
                        word.copy_from_slice(&tame.to_le_bytes());
                    }
                }
            }
            Rows::Fp8 | Rows::Opaque => {}
        }
        bytes
    }
}

/// 16-bit floats with their exponent in a small range. `shift`: of the exponent in the whole number, less 8 for FP16.
fn tame(bytes: &mut [u8], _sign: u8, shift: u32, low: u16, range: u16) {
    let shift = if shift == 2 { 10 } else { shift };
    let mantissa = (1u16 << shift) - 1;
    for word in bytes.chunks_exact_mut(2) {
        let raw = u16::from_le_bytes(word.try_into().unwrap());
        if raw % 509 != 0 {
            let tame = raw & (0x8000 | mantissa) | (low + (raw >> shift) % range) << shift;
            word.copy_from_slice(&tame.to_le_bytes());
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scales {
    None,
    Fp32,
    Pow2,
    Ue8m0,
    Opaque(usize),
}

impl Scales {
    pub fn dtype(self) -> u32 {
        match self {
            Scales::None => 0,
            Scales::Fp32 => 1,
            Scales::Pow2 => 2,
            Scales::Ue8m0 => 3,
            Scales::Opaque(_) => 4,
        }
    }

    pub fn row_bytes(self, hidden: usize) -> usize {
        match self {
            Scales::None => 0,
            Scales::Fp32 | Scales::Pow2 => hidden.div_ceil(128) * 4,
            Scales::Ue8m0 => hidden.div_ceil(128).next_multiple_of(4),
            Scales::Opaque(bytes) => bytes,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Received rows in place, combine input from caller memory.
    Mixed,
    /// Everything in caller memory.
    Caller,
    /// Received rows and combine input in place.
    InPlace,
}

/// How many tokens a rank has in a round, and their ids; what is not given is random.
pub type Routing = fn(&Case, usize, usize) -> (usize, Vec<i64>);

#[derive(Debug, Clone)]
pub struct Case {
    pub ranks: usize,
    pub by_expert: bool,
    pub slotted: bool,
    /// Without combines.
    pub dispatches: bool,
    /// Every rank always has all its tokens.
    pub full: bool,
    pub tokens: usize,
    pub hidden: usize,
    pub topk: usize,
    pub experts: usize,
    pub rows: Rows,
    pub scales: Scales,
    pub combine: Rows,
    pub mode: Mode,
    pub split: bool,
    pub int64: bool,
    pub sync: u32,
    pub align: i32,
    pub mapped: bool,
    pub bad_ids: bool,
    pub column_major: bool,
    pub max_recv_rows: i64,
    pub max_expert_rows: i64,
    /// Rows for which the caller's outputs have room; 0 for all that may come.
    pub out_rows: usize,
    pub stages: i32,
    pub sms: i32,
    pub windows: i32,
    /// Operations that may be sent and not received; 0 for one.
    pub in_flight: i32,
    pub trace: bool,
    /// The caller's side outputs lie as their elements allow, not at multiples of 16.
    pub skewed: bool,
    pub rounds: usize,
    /// Inputs are written by the stream just before each dispatch, and ranks are late at random.
    pub late: bool,
    /// Arrays come from cuMemAlloc.
    pub classic_memory: bool,
    pub routing: Option<Routing>,
}

impl Default for Case {
    fn default() -> Case {
        Case {
            ranks: 2,
            by_expert: false,
            slotted: false,
            dispatches: false,
            full: false,
            tokens: 64,
            hidden: 512,
            topk: 4,
            experts: 16,
            rows: Rows::Bf16,
            scales: Scales::None,
            combine: Rows::Bf16,
            mode: Mode::Mixed,
            split: false,
            int64: true,
            sync: 0,
            align: 1,
            mapped: false,
            bad_ids: false,
            column_major: false,
            max_recv_rows: 0,
            max_expert_rows: 0,
            out_rows: 0,
            stages: 0,
            sms: 0,
            windows: 0,
            in_flight: 0,
            trace: false,
            skewed: false,
            rounds: 9,
            late: false,
            classic_memory: false,
            routing: None,
        }
    }
}

/// One rank's inputs of one round.
pub struct Inputs {
    pub tokens: usize,
    pub x: Vec<u8>,
    pub scales: Vec<u8>,
    pub ids: Vec<i64>,
    pub weights: Vec<f32>,
}

impl Case {
    pub fn inputs(&self, rank: usize, round: usize) -> Inputs {
        let mut rng = Rng::new((round * 1000 + rank + 1) as u64 * 7919 + self.hidden as u64);
        let (tokens, ids) = match self.routing {
            Some(given) => given(self, rank, round),
            None => self.random_routing(&mut rng),
        };
        Inputs {
            tokens,
            x: self.rows.random(&mut rng, tokens * self.hidden),
            scales: rng.bytes(tokens * self.given_scale_bytes()),
            ids,
            weights: rng.floats(tokens * self.topk),
        }
    }

    fn random_routing(&self, rng: &mut Rng) -> (usize, Vec<i64>) {
        let tokens = match rng.below(8) {
            _ if self.full => self.tokens,
            0 => 0,
            1 => self.tokens,
            _ => rng.below(self.tokens + 1),
        };
        let mut ids = Vec::with_capacity(tokens * self.topk);
        for _ in 0..tokens {
            let mut all: Vec<i64> = (0..self.experts as i64).collect();
            for k in 0..self.topk {
                let other = k + rng.below(self.experts - k);
                all.swap(k, other);
                let dice = rng.below(100);
                let id = match dice {
                    0..=4 => -1,
                    5 if self.bad_ids => (self.experts + rng.below(5)) as i64,
                    6 if self.bad_ids => -2 - rng.below(9) as i64,
                    7 if self.bad_ids => all[rng.below(k + 1)],
                    _ => all[k],
                };
                ids.push(id);
            }
        }
        (tokens, ids)
    }

    /// Scales that come with the rows; a cast makes them.
    pub fn given_scale_bytes(&self) -> usize {
        match self.rows {
            rows if rows.is_cast() => 0,
            _ => self.scales.row_bytes(self.hidden),
        }
    }

    /// Ids as the caller gives them.
    pub fn id_bytes(&self, ids: &[i64]) -> Vec<u8> {
        match self.int64 {
            true => ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
            false => ids.iter().flat_map(|&id| (id as i32).to_le_bytes()).collect(),
        }
    }

    pub fn layout(&self) -> u32 {
        u32::from(self.by_expert) + 2 * u32::from(self.slotted)
    }

    /// Experts of a rank.
    pub fn local_experts(&self, rank: usize) -> usize {
        match self.map() {
            Some(map) => map.iter().filter(|&&owner| owner as usize == rank).count(),
            None => self.experts / self.ranks + usize::from(rank < self.experts % self.ranks),
        }
    }

    /// Slabs of the outputs of a rank's dispatch, and rows that each has room for.
    pub fn slabs(&self, rank: usize) -> (usize, usize) {
        let all = match self.max_recv_rows {
            0 => self.ranks * self.tokens,
            rows => rows as usize,
        };
        let most_local = (0..self.ranks).map(|rank| self.local_experts(rank)).max().unwrap();
        let align = self.align as usize;
        let (slabs, rows) = match (self.slotted, self.by_expert, self.max_expert_rows) {
            (true, false, _) => (self.ranks, self.tokens),
            (true, true, _) => (self.local_experts(rank), all),
            (false, false, _) => (1, all),
            (false, true, 0) => {
                (1, (all * most_local.min(self.topk) + most_local * (align - 1)) / align * align)
            }
            (false, true, rows) => (1, rows as usize),
        };
        (slabs, if self.out_rows > 0 { rows.min(self.out_rows) } else { rows })
    }

    pub fn config(&self, place: crate::Where) -> deep_ep_buffer_config_t {
        let mut config = unsafe { std::mem::zeroed() };
        crate::ranks::ok(unsafe {
            deep_ep_buffer_config_init(&mut config, size_of::<deep_ep_buffer_config_t>())
        });
        let combine_bytes = self.hidden * self.combine.given_bytes();
        config.layout = self.layout();
        config.sync = self.sync;
        config.max_tokens = self.tokens as i64;
        config.max_recv_rows = self.max_recv_rows;
        config.max_expert_rows = self.max_expert_rows;
        config.max_row_bytes = (self.hidden * self.rows.sent_bytes()) as i64;
        config.max_scale_bytes = self.scales.row_bytes(self.hidden) as i64;
        config.max_combine_row_bytes = combine_bytes as i64;
        config.num_experts = self.experts as i32;
        config.num_topk = self.topk as i32;
        config.expert_alignment = if self.by_expert && !self.slotted { self.align } else { 0 };
        config.dispatch_windows = self.windows;
        config.combine_windows = self.windows;
        config.max_in_flight = self.in_flight;
        config.flags = if self.trace { DEEP_EP_BUFFER_TRACE } else { 0 };
        config.timeout_ms = 4000 * patience();
        config.first_timeout_ms = 6000 * patience();
        if place == crate::Where::Device {
            config.num_stages = self.stages;
            config.num_sms = self.sms;
        }
        config
    }

    pub fn map(&self) -> Option<Vec<i32>> {
        self.mapped.then(|| (0..self.experts).map(|expert| (expert * 7 % self.ranks) as i32).collect())
    }
}
