//! Two kernels on two streams of every rank: they compete for the next epoch, or for processors.

use super::net::{step, Draft, Effect, Kind, Net, Step, When};

#[derive(Clone, Copy, Default)]
pub struct Streams {
    /// The kernels work on one buffer and share its epochs: whoever starts takes the next. Otherwise each has
    /// a buffer of its own.
    pub one_buffer: bool,
    /// Kernel 2 starts after kernel 1 on every rank.
    pub chained: bool,
    /// Both do not fit on the device together.
    pub crowded: bool,
}

impl Streams {
    pub fn net(self, ranks: usize) -> Net {
        let epochs = 3 * ranks + 1;
        let mut draft = Draft::default();
        draft.memory = vec![0; epochs + ranks + ranks * ranks];
        for rank in 0..ranks {
            for kernel in 0..2 {
                self.kernel(&mut draft, ranks, rank, kernel);
            }
        }
        draft.close(None)
    }

    fn kernel(self, draft: &mut Draft, ranks: usize, rank: usize, kernel: usize) {
        // Memory: the epoch count of each rank, the epoch of each kernel, who has the processors, the words.
        let (taken, processors) = (ranks + 2 * rank + kernel, 3 * ranks + 1 + rank);
        let word = |owner: usize, source: usize| 4 * ranks + 1 + owner * ranks + source;
        let own = |kind: Kind| step(kind, rank, rank, kernel);
        let mut start: Vec<Step> = Vec::new();
        if self.chained && kernel == 1 {
            start.push(step(Kind::Finish, rank, rank, 0));
        }
        if self.crowded {
            start = vec![draft.add(own(Kind::Launch), &start)];
            draft.when(Some(When::Word { at: processors, holds: |word, _| word == 0, awaited: 0 }));
            draft.effect(Some(Effect::Store { at: processors, value: 1 }));
        }
        if self.one_buffer {
            start = vec![draft.add(own(Kind::TakeEpoch), &start)];
            draft.effect(Some(Effect::Count { counter: rank, into: taken }));
        }
        let peers: Vec<usize> = (0..ranks).filter(|&j| j != rank).collect();
        let mut seen = Vec::new();
        for &j in &peers {
            let written = draft.add(step(Kind::Write, rank, j, kernel), &start);
            let signal = draft.add(step(Kind::Signal, rank, j, kernel), &[written]);
            if self.one_buffer {
                draft.effect(Some(Effect::Raise { at: word(j, rank), from: taken }));
                seen.push(draft.add(step(Kind::See, rank, j, kernel), &[signal]));
                draft.when(Some(When::Reaches { at: word(rank, j), than: taken }));
            } else {
                let sent = step(Kind::Signal, j, rank, kernel);
                seen.push(draft.add(step(Kind::See, rank, j, kernel), &[signal, sent]));
            }
        }
        let rows = peers.iter().map(|&j| step(Kind::Write, j, rank, kernel)).collect();
        draft.add_must(own(Kind::Read), &seen, rows);
        draft.add(own(Kind::Finish), &[own(Kind::Read)]);
        if self.crowded {
            draft.effect(Some(Effect::Store { at: processors, value: 0 }));
        }
    }
}
