//! What the link itself takes: stores by the SMs and copies by the copy engines, in both directions at once.

use super::gpu::{Event, Gpu, Stream};
use crate::common::Outcome;
use crate::measure::median;
use deepep::driver::{Device, Memory};
use serde::{Deserialize, Serialize};

const BYTES: u64 = 256 << 20;
const ROUNDS: u64 = 4;
const SAMPLES: usize = 15;

/// GB/s in each direction.
#[derive(Serialize, Deserialize, Clone, Copy, Default)]
pub struct Link {
    /// By stores of all SMs: what the ratios of a run refer to.
    pub push: f64,
    pub copy: f64,
}

/// One end of the link.
struct End {
    gpu: Gpu,
    stream: Stream,
    own: Memory,
    blocks: u32,
}

/// Between two devices; with one, two streams that share it stand for them, and its memory for the link.
pub fn measure(devices: usize) -> Outcome<Link> {
    let text = |error: deepep::error::Error| error.to_string();
    let opened: Vec<_> =
        (0..devices.min(2)).map(|i| Device::open(i as i32).map_err(text)).collect::<Outcome<_>>()?;
    let users: Vec<&Device> = opened.iter().map(|device| &**device).collect();
    let mut ends = Vec::new();
    for number in 0..2 {
        let ordinal = number % opened.len();
        let gpu = Gpu::open(ordinal)?;
        let own = Memory::allocate(&opened[ordinal], None, 2 * BYTES, &users).map_err(text)?;
        let stream = gpu.stream()?;
        stream.set(own.address(), 0x3c, 2 * BYTES)?;
        stream.wait()?;
        ends.push(End { blocks: gpu.sms / (2 / opened.len() as u32), gpu, stream, own });
    }
    let push = rate(&ends, &|from, to| from.stream.push(to.own.address(), BYTES, ROUNDS, from.blocks))?;
    let copy = rate(&ends, &|from, to| {
        (0..ROUNDS).try_for_each(|_| from.stream.copy(to.own.address(), from.own.address() + BYTES, BYTES))
    })?;
    Ok(Link { push, copy })
}

/// GB/s of the slower end, while both send.
fn rate(ends: &[End], send: &dyn Fn(&End, &End) -> Outcome<()>) -> Outcome<f64> {
    let events = || -> Outcome<Vec<Event>> {
        ends.iter().map(|end| end.gpu.enter().and_then(|()| Event::new())).collect()
    };
    let (begins, dones) = (events()?, events()?);
    let mut samples = Vec::new();
    for _ in 0..SAMPLES {
        for (i, end) in ends.iter().enumerate() {
            end.gpu.enter()?;
            end.stream.record(&begins[i])?;
            send(end, &ends[1 - i])?;
            end.stream.record(&dones[i])?;
        }
        let mut slowest: f64 = 0.0;
        for (i, end) in ends.iter().enumerate() {
            end.gpu.enter()?;
            end.stream.wait()?;
            slowest = slowest.max(begins[i].until(&dones[i])?);
        }
        samples.push((BYTES * ROUNDS) as f64 / slowest / 1e3);
    }
    Ok(median(&mut samples))
}
