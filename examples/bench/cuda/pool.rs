//! Device memory of one rank, full of random numbers of middling size: nothing is timed on zeros.

use super::gpu::{Gpu, Stream};
use crate::common::Outcome;
use crate::measure::Random;

/// Random numbers made on the host; the rest repeats them.
const SEED_BYTES: u64 = 16 << 20;
const ALIGN: u64 = 256;

pub struct Pool {
    start: u64,
    bytes: u64,
    used: u64,
}

impl Pool {
    pub fn new(gpu: &Gpu, stream: &Stream, bytes: u64, seed: u64) -> Outcome<Pool> {
        let start = gpu.allocate(bytes)?;
        let mut random = Random(seed);
        // BF16 with an exponent around 1.
        let numbers: Vec<u8> = (0..SEED_BYTES / 2)
            .flat_map(|_| {
                let bits = random.below(1 << 16) as u16;
                (bits & 0x807f | (118 + (bits >> 7) % 16) << 7).to_le_bytes()
            })
            .collect();
        stream.write(start, &numbers)?;
        Ok(Pool { start, bytes, used: SEED_BYTES })
    }

    /// Everything is free and random again; what was taken before is not used any more.
    pub fn renew(&mut self, stream: &Stream) -> Outcome<()> {
        self.used = SEED_BYTES;
        self.copy_random(stream, self.start + SEED_BYTES, self.bytes - SEED_BYTES)?;
        stream.wait()
    }

    pub fn take(&mut self, bytes: u64) -> Outcome<u64> {
        let at = self.used.next_multiple_of(ALIGN);
        if at + bytes > self.bytes {
            return Err(format!(
                "a case needs more than the {} MiB of device memory set aside",
                self.bytes >> 20
            ));
        }
        self.used = at + bytes;
        Ok(self.start + at)
    }

    /// Fills other memory.
    pub fn copy_random(&self, stream: &Stream, to: u64, bytes: u64) -> Outcome<()> {
        let mut done = 0;
        while done < bytes {
            let next = SEED_BYTES.min(bytes - done);
            stream.copy(to + done, self.start, next)?;
            done += next;
        }
        Ok(())
    }
}
