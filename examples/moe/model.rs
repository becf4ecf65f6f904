//! One MoE layer with seeded weights: embedding, softmax top-k gate, SwiGLU experts. Every number of a row depends on
//! that row alone and is computed in one fixed order, so it does not matter on which rank or in which batch.

pub const HIDDEN: usize = 256;
const INNER: usize = 128;
/// Positions in the text that have a vector of their own; then they repeat.
const POSITIONS: usize = 64;

/// What a seeded table is for; each has its own sequence.
#[derive(Clone, Copy)]
enum Table {
    Bytes,
    Positions,
    Gate,
    Expert,
}

/// A sequence of numbers between -1 and 1.
struct Numbers(u64);

impl Numbers {
    fn new(seed: u64, table: Table, index: usize) -> Numbers {
        let mut numbers = Numbers(seed ^ ((table as u64 + 1) << 56) ^ ((index as u64) << 32));
        numbers.next();
        numbers
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn take(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| ((self.next() >> 40) as f32 / (1u32 << 23) as f32 - 1.0) * scale).collect()
    }
}

pub fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    (bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16) as u16
}

pub fn from_bf16(code: u16) -> f32 {
    f32::from_bits(u32::from(code) << 16)
}

/// What every rank has: the tables that turn bytes into rows and rows into experts.
pub struct Front {
    bytes: Vec<f32>,
    positions: Vec<f32>,
    gate: Vec<f32>,
    experts: usize,
    topk: usize,
}

impl Front {
    pub fn new(seed: u64, experts: usize, topk: usize) -> Front {
        Front {
            bytes: Numbers::new(seed, Table::Bytes, 0).take(256 * HIDDEN, 1.0),
            positions: Numbers::new(seed, Table::Positions, 0).take(POSITIONS * HIDDEN, 0.5),
            gate: Numbers::new(seed, Table::Gate, 0).take(HIDDEN * experts, 0.3),
            experts,
            topk,
        }
    }

    /// The row of the byte at a position of the text.
    pub fn embed(&self, byte: u8, position: usize, row: &mut [u16]) {
        let byte = &self.bytes[usize::from(byte) * HIDDEN..][..HIDDEN];
        let position = &self.positions[position % POSITIONS * HIDDEN..][..HIDDEN];
        for ((out, a), b) in row.iter_mut().zip(byte).zip(position) {
            *out = to_bf16(a + b);
        }
    }

    /// The experts of a row with the largest softmax weights, largest first, and those weights made to add up to 1.
    pub fn route(&self, row: &[u16], ids: &mut [i32], weights: &mut [f32]) {
        let mut logits = vec![0f32; self.experts];
        for (code, gate) in row.iter().zip(self.gate.chunks_exact(self.experts)) {
            add_scaled(&mut logits, gate, from_bf16(*code));
        }
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exps: Vec<f32> = logits.iter().map(|logit| (logit - largest).exp()).collect();
        let mut order: Vec<usize> = (0..self.experts).collect();
        order.sort_by(|&a, &b| exps[b].total_cmp(&exps[a]).then(a.cmp(&b)));
        let chosen: f32 = order[..self.topk].iter().map(|&expert| exps[expert]).sum();
        for ((id, weight), &expert) in ids.iter_mut().zip(weights).zip(&order) {
            *id = expert as i32;
            *weight = exps[expert] / chosen;
        }
    }
}

/// The weights of one expert.
pub struct Expert {
    gate: Vec<f32>,
    up: Vec<f32>,
    down: Vec<f32>,
}

impl Expert {
    pub fn new(seed: u64, id: usize) -> Expert {
        let mut numbers = Numbers::new(seed, Table::Expert, id);
        let scale = |inputs: usize| (3.0 / inputs as f32).sqrt();
        Expert {
            gate: numbers.take(HIDDEN * INNER, scale(HIDDEN)),
            up: numbers.take(HIDDEN * INNER, scale(HIDDEN)),
            down: numbers.take(INNER * HIDDEN, scale(INNER)),
        }
    }

    /// down(silu(gate(x)) * up(x)), rounded to BF16 at the end.
    pub fn apply(&self, row: &[u16], out: &mut [u16]) {
        let (mut gate, mut up) = ([0f32; INNER], [0f32; INNER]);
        for (i, code) in row.iter().enumerate() {
            let x = from_bf16(*code);
            add_scaled(&mut gate, &self.gate[i * INNER..][..INNER], x);
            add_scaled(&mut up, &self.up[i * INNER..][..INNER], x);
        }
        let mut sum = [0f32; HIDDEN];
        for (i, (g, u)) in gate.iter().zip(&up).enumerate() {
            let inner = g / (1.0 + (-g).exp()) * u;
            add_scaled(&mut sum, &self.down[i * HIDDEN..][..HIDDEN], inner);
        }
        for (out, value) in out.iter_mut().zip(&sum) {
            *out = to_bf16(*value);
        }
    }
}

fn add_scaled(sum: &mut [f32], row: &[f32], factor: f32) {
    for (sum, value) in sum.iter_mut().zip(row) {
        *sum += factor * value;
    }
}
