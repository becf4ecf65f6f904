//! What the links themselves take, with all pairs of devices busy at once: stores and loads by the SMs, and copies by the
//! copy engines. In one process, which drives all devices.

use super::gpu::{self, Event, Gpu, Stream};
use crate::common::Outcome;
use crate::measure::median;
use deepep::driver::{Device, Memory};
use serde::{Deserialize, Serialize};

/// GB/s of each device to or from all others together, while all do the same.
#[derive(Serialize, Deserialize, Clone, Copy, Default)]
pub struct Link {
    /// By stores of all SMs.
    pub push: f64,
    /// By loads of all SMs.
    pub pull: f64,
    pub copy: f64,
}

/// How much is moved to know it.
#[derive(Clone, Copy)]
pub struct Amount {
    /// Of a device in one round.
    pub bytes: u64,
    pub rounds: u32,
    pub samples: usize,
}

/// Long enough that devices which begin microseconds apart do not matter.
pub const FULL: Amount = Amount { bytes: 256 << 20, rounds: 12, samples: 15 };
pub const QUICK: Amount = Amount { bytes: 1 << 20, rounds: 1, samples: 2 };

/// One device, or a part of one where ranks share it.
struct End {
    gpu: Gpu,
    stream: Stream,
    /// A part for each other end, which stores there or loads from there, and as much to copy from.
    own: Memory,
    seen: u64,
    blocks: u32,
}

/// Between the first `ends` devices; where they share one, its memory stands for the links.
pub fn measure(ends: usize, shared: bool, amount: Amount) -> Outcome<Link> {
    let text = |error: deepep::error::Error| error.to_string();
    let devices = if shared { 1 } else { ends };
    let opened: Vec<_> =
        (0..devices).map(|i| Device::open(i as i32).map_err(text)).collect::<Outcome<_>>()?;
    let users: Vec<&Device> = opened.iter().map(|device| &**device).collect();
    let mut all = Vec::new();
    for number in 0..ends {
        let ordinal = number % devices;
        let gpu = Gpu::open(ordinal)?;
        let own = Memory::allocate(&opened[ordinal], None, 2 * amount.bytes, &users).map_err(text)?;
        let stream = gpu.stream()?;
        stream.set(own.address(), 0x3c, 2 * amount.bytes)?;
        stream.wait()?;
        let blocks = gpu.sms / (ends / devices) as u32;
        all.push(End { seen: gpu.allocate(gpu::seen_bytes(blocks))?, blocks, gpu, stream, own });
    }
    let part = part_bytes(ends, amount);
    let each = Each { ends: &all, part, amount };
    let push = each.rate(&|end, places| end.stream.push(places, part, amount.rounds, end.blocks))?;
    let pull =
        each.rate(&|end, places| end.stream.pull(places, part, amount.rounds, end.blocks, end.seen))?;
    let copy = each.rate(&|end, places| {
        let from = end.own.address() + amount.bytes;
        (0..amount.rounds).try_for_each(|_| places.iter().try_for_each(|&to| end.stream.copy(to, from, part)))
    })?;
    Ok(Link { push, pull, copy })
}

/// Of what a device moves, the share of each other one.
fn part_bytes(ends: usize, amount: Amount) -> u64 {
    let others = ends.max(2) as u64 - 1;
    amount.bytes / others / 256 * 256
}

struct Each<'a> {
    ends: &'a [End],
    part: u64,
    amount: Amount,
}

impl Each<'_> {
    /// What end `number` uses of the others' memory, the next one first: at each moment all turn to different ones.
    fn places(&self, number: usize) -> Vec<u64> {
        let count = self.ends.len();
        let place = |distance: usize| {
            let other = (number + distance) % count;
            self.ends[other].own.address() + (distance as u64 - 1) * self.part
        };
        (1..count).map(place).collect()
    }

    /// GB/s of the slowest end, while all do it.
    fn rate(&self, work: &dyn Fn(&End, &[u64]) -> Outcome<()>) -> Outcome<f64> {
        let events = || -> Outcome<Vec<Event>> {
            self.ends.iter().map(|end| end.gpu.enter().and_then(|()| Event::new())).collect()
        };
        let (begins, dones) = (events()?, events()?);
        let mut samples = Vec::new();
        for _ in 0..self.amount.samples {
            for (i, end) in self.ends.iter().enumerate() {
                end.gpu.enter()?;
                end.stream.record(&begins[i])?;
                work(end, &self.places(i))?;
                end.stream.record(&dones[i])?;
            }
            let mut slowest: f64 = 0.0;
            for (i, end) in self.ends.iter().enumerate() {
                end.gpu.enter()?;
                end.stream.wait()?;
                slowest = slowest.max(begins[i].until(&dones[i])?);
            }
            let bytes = self.part * (self.ends.len() as u64 - 1) * u64::from(self.amount.rounds);
            samples.push(bytes as f64 / slowest / 1e3);
        }
        Ok(median(&mut samples))
    }
}
