//! A program of all ranks and everything that can be done differently about it.

use super::decide::{Call, Decider, Op, Plan, Rule, AUTO};
use super::net::{Draft, Net};
use super::programs::{with_ends, with_takes};
use super::words::{BarrierIn, Memory, Words};
use super::writer::write_rank;
use deepep::plan::words::Phase;

/// Which of the regions an exchange of counts uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Regions {
    /// In turn by number of the exchange.
    ByNumber(usize),
    /// By the operation's epoch.
    ByEpoch(usize),
}

/// How survivors keep a lost rank, which may only be slow, from doing harm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fix {
    Nothing,
    /// Each source stores only into its own slots; those of a masked rank are not read.
    Slots,
    /// The agreement waits for proof that the rank stores nothing any more.
    Proof,
    /// After the agreement, windows that the rank has never mapped.
    NewWindows,
    /// The rank learns that it is masked before it trusts what it pulled.
    Told,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lost {
    pub rank: usize,
    /// The operation in which the others gave it up.
    pub op: usize,
    pub fix: Fix,
}

/// One program of all ranks, and everything that can be done differently about it.
#[derive(Clone)]
pub struct Setup {
    pub ranks: usize,
    pub ops: Vec<Op>,
    pub calls: Vec<Call>,
    /// Calls of ranks that differ.
    pub others: Vec<(usize, Vec<Call>)>,
    pub rule: Rule,
    pub depth: usize,
    /// Sends for which rows are kept after their receive.
    pub kept: usize,
    /// Windows per pool where the library chooses.
    pub chosen: usize,
    /// A barrier, by call, that is decided and then left out.
    pub left_out: Option<usize>,
    /// Entry signals instead of an entry barrier: a rank writes to a peer once that one has entered.
    pub per_peer: bool,
    /// The guard of a pulled window at the operation's entry instead of where the caller takes it.
    pub guard_at_entry: bool,
    pub regions: Regions,
    /// Counts are read in the receive, not before the own data signal.
    pub counts_read_late: bool,
    /// (from, to, op): a signal left out, as if an empty message needed none.
    pub mute: Option<(usize, usize, usize)>,
    /// A combine that reads in place signals each rank as soon as it has read that one's rows.
    pub signals_early: bool,
    pub words: Option<Words>,
    pub lost: Option<Lost>,
}

impl Setup {
    pub fn new(ranks: usize, ops: Vec<Op>, calls: Vec<Call>, depth: usize) -> Setup {
        Setup {
            ranks,
            ops,
            calls,
            others: Vec::new(),
            rule: Rule::None,
            depth,
            kept: 0,
            chosen: 0,
            left_out: None,
            per_peer: false,
            guard_at_entry: false,
            regions: Regions::ByNumber(2),
            counts_read_late: false,
            mute: None,
            signals_early: false,
            words: None,
            lost: None,
        }
    }

    pub fn auto(ranks: usize, ops: Vec<Op>, calls: Vec<Call>, depth: usize) -> Setup {
        Setup { rule: AUTO, ..Setup::new(ranks, ops, calls, depth) }
    }

    fn spelled_out(&self, calls: &[Call]) -> Vec<Call> {
        with_ends(&self.ops, &with_takes(&self.ops, calls), self.kept)
    }

    pub fn plan(&self) -> Plan {
        self.decide(&self.spelled_out(&self.calls))
    }

    fn decide(&self, calls: &[Call]) -> Plan {
        let barriers = match &self.words {
            Some(words) if words.barrier == BarrierIn::Data => Phase::Data,
            _ => Phase::Enter,
        };
        Decider::decide(&self.ops, calls, self.rule, self.depth, self.chosen, barriers)
    }

    pub fn net(&self) -> Net {
        let mut draft = Draft::default();
        let programs: Vec<Vec<Call>> = (0..self.ranks)
            .map(|rank| {
                self.others.iter().find(|other| other.0 == rank).map_or(&self.calls, |other| &other.1)
            })
            .map(|calls| self.spelled_out(calls))
            .collect();
        let plans: Vec<Plan> = programs.iter().map(|calls| self.decide(calls)).collect();
        let memory = self.words.clone().map(|words| Memory::new(words, self.ranks, self.depth));
        draft.memory = memory.as_ref().map_or(Vec::new(), Memory::zeros);
        for (rank, calls) in programs.iter().enumerate() {
            write_rank(self, &plans[rank], memory.as_ref(), rank, calls, &mut draft);
        }
        draft.close(self.lost.map(|lost| lost.rank))
    }
}
