//! Signals as words of memory, where a word can be overtaken, cleared or hold too much.

use super::decide::Plan;
use super::net::{Effect, Harm, When};
use deepep::plan::words::{fingerprint, pack, reached, turn, unpack, Operation};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    AtLeast,
    Equal,
    /// At least, and then the word must be the very signal awaited: what a fingerprint checks.
    Checked,
    /// The library's check, which takes a much later signal of the same turn for this one.
    Library,
    /// Numbers modulo 4 are compared as they are.
    Wrapped,
    /// Numbers modulo 4 are compared by the sign of their difference.
    Serial,
}

#[derive(Clone, Debug)]
pub enum Slot {
    One,
    /// The library's: in turn by number of the signal in its phase, over so many words.
    ByNumber(usize),
    ByEpoch(usize),
    /// Two sets of flags, the set given per operation; each operation clears the other set, before its own
    /// signals or at any time.
    Sets {
        set: Vec<usize>,
        clears_first: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Number {
    Epoch,
    /// Two handles that each count their own operations.
    PerHandle,
}

/// Which phase the barrier beside operations signals in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BarrierIn {
    Enter,
    Data,
}

#[derive(Clone, Debug)]
pub struct Words {
    pub test: Test,
    pub slot: Slot,
    pub number: Number,
    pub barrier: BarrierIn,
}

impl Words {
    pub fn new(test: Test, slot: Slot) -> Option<Words> {
        Some(Words { test, slot, number: Number::Epoch, barrier: BarrierIn::Enter })
    }
}

pub struct Memory {
    words: Words,
    ranks: usize,
    depth: usize,
}

const SLOTS: usize = 8;

impl Memory {
    pub fn new(words: Words, ranks: usize, depth: usize) -> Memory {
        Memory { words, ranks, depth }
    }

    pub fn zeros(&self) -> Vec<u64> {
        vec![0; 2 * self.ranks * SLOTS * self.ranks]
    }

    /// The word of rank `owner` for signals of `source`; `phase` 0 is data, 1 is enter.
    fn at(&self, phase: usize, owner: usize, slot: usize, source: usize) -> usize {
        ((phase * self.ranks + owner) * SLOTS + slot) * self.ranks + source
    }

    fn slot(&self, op: usize, epoch: u64, number: u64) -> usize {
        match &self.words.slot {
            Slot::One => 0,
            // The library's count where the words are as many as it has.
            Slot::ByNumber(n) if *n == 2 + 2 * self.depth => turn(number, self.depth),
            Slot::ByNumber(n) => (number % *n as u64) as usize,
            Slot::ByEpoch(n) => (epoch % *n as u64) as usize,
            Slot::Sets { set, .. } => set[op],
        }
    }

    fn value(&self, epoch: u64, operation: Operation) -> u64 {
        let tag = fingerprint(operation, &[]);
        match (&self.words.slot, self.words.test, self.words.number) {
            (Slot::Sets { .. }, ..) => 1,
            (_, Test::Wrapped | Test::Serial, _) => pack(epoch % 4, tag),
            (_, _, Number::PerHandle) => pack(epoch.div_ceil(2), tag),
            _ => pack(epoch, tag),
        }
    }

    fn wait(&self, at: usize, value: u64) -> (When, Vec<Harm>) {
        let holds = match self.words.test {
            Test::AtLeast if matches!(self.words.slot, Slot::Sets { .. }) => |word, value| word >= value,
            Test::AtLeast | Test::Checked | Test::Library => |word, value| reached(word, unpack(value).0),
            Test::Equal => |word, value| word == value,
            Test::Wrapped => |word, value| unpack(word).0 >= unpack(value).0,
            Test::Serial => |word, value| (unpack(word).0 + 4 - unpack(value).0) % 4 < 2,
        };
        let harm = match self.words.test {
            Test::Checked => vec![Harm::Overtaken { at, value, depth: None }],
            Test::Library => vec![Harm::Overtaken { at, value, depth: Some(self.depth) }],
            _ => Vec::new(),
        };
        (When::Word { at, holds, awaited: value }, harm)
    }

    fn data(&self, plan: &Plan, op: usize, owner: usize, source: usize) -> (usize, u64) {
        let slot = self.slot(op, plan.epoch[op], plan.number[op]);
        (self.at(0, owner, slot, source), self.value(plan.epoch[op], Operation::Dispatch))
    }

    pub fn tell(&self, plan: &Plan, op: usize, rank: usize, peer: usize) -> Effect {
        let (at, value) = self.data(plan, op, peer, rank);
        Effect::Store { at, value }
    }

    pub fn see(&self, plan: &Plan, op: usize, rank: usize, peer: usize) -> (When, Vec<Harm>) {
        let (at, value) = self.data(plan, op, rank, peer);
        self.wait(at, value)
    }

    /// The word of the barrier that call `call` runs.
    fn barrier(&self, plan: &Plan, call: usize, owner: usize, source: usize) -> (usize, u64) {
        let phase = usize::from(self.words.barrier == BarrierIn::Enter);
        let slot = self.slot(0, plan.barrier[call], plan.barrier_number[call]);
        (self.at(phase, owner, slot, source), self.value(plan.barrier[call], Operation::Barrier))
    }

    pub fn tell_barrier(&self, plan: &Plan, call: usize, rank: usize, peer: usize) -> Effect {
        let (at, value) = self.barrier(plan, call, peer, rank);
        Effect::Store { at, value }
    }

    pub fn see_barrier(&self, plan: &Plan, call: usize, rank: usize, peer: usize) -> (When, Vec<Harm>) {
        let (at, value) = self.barrier(plan, call, rank, peer);
        self.wait(at, value)
    }

    pub fn clear(&self, op: usize, rank: usize) -> Option<Effect> {
        let Slot::Sets { set, .. } = &self.words.slot else { return None };
        Some(Effect::Zero { at: self.at(0, rank, 1 - set[op], 0), len: self.ranks })
    }

    pub fn clears_first(&self) -> bool {
        matches!(self.words.slot, Slot::Sets { clears_first: true, .. })
    }
}
