//! Steps of ranks and what each must wait for; whether a step can come too early; the shortest way there.
//!
//! A step has three relations to others:
//! - `after`: it runs only once these have run. Program order, signals awaited, barriers.
//! - `must`: these have to be over, or the step destroys rows (or takes wrong ones). Nobody waits for them
//!   here: that the waits imply them is what is to be proved.
//! - `when` and `effect`: a condition on, and a change of, memory that can go back or be overtaken.
//!
//! Without the third kind a wait once satisfied stays satisfied, so the reachable states are the sets closed
//! under `after`, and a step can run before something it must follow exactly if that is not among its
//! ancestors. [`Net::order`] decides by that, for nets of any size; `search` visits every state and has to
//! agree.

use deepep::plan::words::{check, unpack, Found};
use std::collections::HashMap;
use std::fmt;

const WORDS: usize = 12;

/// A set of steps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Bits([u64; WORDS]);

impl Bits {
    pub fn set(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }
    pub fn has(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 != 0
    }
    pub fn add(&mut self, other: &Bits) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a |= b);
    }
    pub fn without(mut self, other: &Bits) -> Bits {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a &= !b);
        self
    }
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&w| w == 0)
    }
    pub fn len(&self) -> usize {
        self.0.iter().map(|w| w.count_ones() as usize).sum()
    }
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..WORDS * 64).filter(move |&at| self.has(at))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    Write,
    Signal,
    See,
    /// The reads of a whole window end.
    Read,
    /// The reads of the rows of one source end, inside a combine.
    Part,
    /// Entry barrier of an operation.
    Enter,
    Entered,
    /// A barrier beside operations, or an agreement.
    Meet,
    Met,
    Counts,
    SeeCounts,
    EndCounts,
    Fill,
    Pull,
    Ack,
    SeeAck,
    Clear,
    TakeEpoch,
    Launch,
    Finish,
}

/// What one rank does once. `peer` is the other rank, or the rank itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Step {
    pub kind: Kind,
    pub rank: usize,
    pub peer: usize,
    pub op: usize,
}

pub fn step(kind: Kind, rank: usize, peer: usize, op: usize) -> Step {
    Step { kind, rank, peer, op }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (p, o) = (self.peer, self.op + 1);
        match self.kind {
            Kind::Write => write!(f, "writes {p} for op {o}"),
            Kind::Signal => write!(f, "signals op {o} to {p}"),
            Kind::See => write!(f, "sees op {o} of {p}"),
            Kind::Read => write!(f, "ends its reads of op {o}"),
            Kind::Part => write!(f, "ends its reads of {p}'s rows of op {o}"),
            Kind::Enter => write!(f, "tells {p} it enters op {o}"),
            Kind::Entered => write!(f, "sees {p} enter op {o}"),
            Kind::Meet => write!(f, "tells {p} it is at barrier {o}"),
            Kind::Met => write!(f, "sees {p} at barrier {o}"),
            Kind::Counts => write!(f, "writes counts of op {o} to {p}"),
            Kind::SeeCounts => write!(f, "sees counts of op {o} of {p}"),
            Kind::EndCounts => write!(f, "ends its reads of the counts of op {o}"),
            Kind::Fill => write!(f, "fills its own window for op {o}"),
            Kind::Pull => write!(f, "has pulled op {o} from {p}"),
            Kind::Ack => write!(f, "acknowledges op {o} to {p}"),
            Kind::SeeAck => write!(f, "sees {p} acknowledge op {o}"),
            Kind::Clear => write!(f, "clears the other set's flags in op {o}"),
            Kind::TakeEpoch => write!(f, "takes the next epoch for op {o}"),
            Kind::Launch => write!(f, "gets the processors for op {o}"),
            Kind::Finish => write!(f, "gives the processors of op {o} back"),
        }
    }
}

/// A condition on memory, or on what others have done.
#[derive(Clone)]
pub enum When {
    Word {
        at: usize,
        holds: fn(word: u64, awaited: u64) -> bool,
        awaited: u64,
    },
    /// Word `at` is at least word `than`.
    Reaches {
        at: usize,
        than: usize,
    },
    /// None of these has happened.
    Unless(Vec<Step>),
}

#[derive(Clone)]
pub enum Effect {
    Store {
        at: usize,
        value: u64,
    },
    Zero {
        at: usize,
        len: usize,
    },
    /// Adds 1 to word `counter` and copies it.
    Count {
        counter: usize,
        into: usize,
    },
    /// Word `at` becomes the larger of itself and word `from`.
    Raise {
        at: usize,
        from: usize,
    },
}

/// Harm that depends on what has happened already.
#[derive(Clone)]
pub enum Harm {
    /// Rows of a later operation are there (any of the steps) and still wanted (the first is to come).
    Mixes(Step, Vec<Step>),
    /// One of these has replaced the rows.
    Replaced(Vec<Step>),
    /// The word has moved on to another signal than the one awaited; with `depth`, as the library sees it.
    Overtaken { at: usize, value: u64, depth: Option<usize> },
}

struct Def {
    step: Step,
    after: Vec<Step>,
    must: Vec<Step>,
    when: Option<When>,
    effect: Option<Effect>,
    harm: Vec<Harm>,
}

#[derive(Default)]
pub struct Draft {
    defs: Vec<Def>,
    pub memory: Vec<u64>,
}

impl Draft {
    pub fn add(&mut self, step: Step, after: &[Step]) -> Step {
        self.add_must(step, after, Vec::new())
    }

    pub fn add_must(&mut self, step: Step, after: &[Step], must: Vec<Step>) -> Step {
        self.defs.push(Def { step, after: after.to_vec(), must, when: None, effect: None, harm: Vec::new() });
        step
    }

    /// More about the step that was added last.
    pub fn when(&mut self, when: Option<When>) {
        self.defs.last_mut().into_iter().for_each(|def| def.when.clone_from(&when));
    }
    pub fn effect(&mut self, effect: Option<Effect>) {
        self.defs.last_mut().into_iter().for_each(|def| def.effect.clone_from(&effect));
    }
    pub fn harm(&mut self, harm: Vec<Harm>) {
        self.defs.last_mut().into_iter().for_each(|def| def.harm.clone_from(&harm));
    }

    /// A wait for a step that nobody takes never ends; a `must` that nobody takes was given up. Steps of the
    /// rank `given_up` need not all happen.
    pub fn close(self, given_up: Option<usize>) -> Net {
        let n = self.defs.len();
        assert!(n < WORDS * 64, "{n} steps");
        let index: HashMap<Step, usize> = self.defs.iter().enumerate().map(|(v, d)| (d.step, v)).collect();
        assert_eq!(index.len(), n, "a step was added twice");
        let mut net = Net { index, memory: self.memory, plain: true, ..Net::default() };
        net.succ = vec![Vec::new(); n];
        for (v, def) in self.defs.iter().enumerate() {
            let (mut after, mut must) = (Bits::default(), Bits::default());
            let found = |step: &Step| net.index.get(step).copied();
            def.must.iter().filter_map(found).for_each(|u| must.set(u));
            for u in &def.after {
                after.set(found(u).unwrap_or(n)); // step n never happens
            }
            for u in after.iter().filter(|&u| u < n) {
                net.succ[u].push(v);
            }
            if given_up != Some(def.step.rank) {
                net.goal.set(v);
            }
            net.after.push(after);
            net.must.push(must);
        }
        for def in self.defs {
            net.plain &= def.when.is_none() && def.effect.is_none() && def.harm.is_empty();
            net.steps.push(def.step);
            net.when.push(def.when);
            net.effect.push(def.effect);
            net.harm.push(def.harm);
        }
        net
    }
}

#[derive(Default)]
pub struct Net {
    pub steps: Vec<Step>,
    index: HashMap<Step, usize>,
    pub after: Vec<Bits>,
    must: Vec<Bits>,
    succ: Vec<Vec<usize>>,
    when: Vec<Option<When>>,
    effect: Vec<Option<Effect>>,
    harm: Vec<Vec<Harm>>,
    pub goal: Bits,
    pub memory: Vec<u64>,
    pub plain: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Safe,
    Unsafe,
    Hang,
}

/// What a net comes to. `trace` is the way there; for `Unsafe` its last step does the harm.
pub struct Outcome {
    pub verdict: Verdict,
    pub trace: Vec<usize>,
    pub states: usize,
}

impl Net {
    pub fn may_run(&self, v: usize, done: &Bits, memory: &[u64]) -> bool {
        let happened = |s: &Step| self.index.get(s).is_some_and(|&u| done.has(u));
        !done.has(v)
            && self.after[v].without(done).is_empty()
            && match &self.when[v] {
                None => true,
                Some(When::Word { at, holds, awaited }) => holds(memory[*at], *awaited),
                Some(When::Reaches { at, than }) => memory[*at] >= memory[*than],
                Some(When::Unless(steps)) => !steps.iter().any(happened),
            }
    }

    pub fn apply(&self, v: usize, memory: &mut [u64]) {
        match self.effect[v] {
            None => {}
            Some(Effect::Store { at, value }) => memory[at] = value,
            Some(Effect::Zero { at, len }) => memory[at..at + len].fill(0),
            Some(Effect::Count { counter, into }) => {
                memory[counter] += 1;
                memory[into] = memory[counter];
            }
            Some(Effect::Raise { at, from }) => memory[at] = memory[at].max(memory[from]),
        }
    }

    /// Why step `v` would do harm now.
    pub fn harm(&self, v: usize, done: &Bits, memory: &[u64]) -> Option<String> {
        let early = self.must[v].without(done).iter().next();
        if let Some(u) = early {
            return Some(format!("not yet: rank {} {}", self.steps[u].rank, self.steps[u]));
        }
        let happened = |s: &Step| self.index.get(s).is_some_and(|&u| done.has(u));
        self.harm[v].iter().find_map(|harm| match harm {
            Harm::Mixes(wanted, rows) => {
                let mixes = self.index.contains_key(wanted) && !happened(wanted) && rows.iter().any(happened);
                mixes.then(|| format!("among later rows; not yet: rank {} {wanted}", wanted.rank))
            }
            Harm::Replaced(by) => by.iter().find(|s| happened(s)).map(|s| format!("but rank {} {s}", s.rank)),
            Harm::Overtaken { at, value, depth } => {
                let (word, (epoch, print)) = (memory[*at], unpack(*value));
                let wrong = match depth {
                    Some(depth) => check(word, epoch, print, *depth) == Found::Mismatch,
                    None => word != *value,
                };
                wrong.then(|| "but the word holds another signal".into())
            }
        })
    }

    /// Decides a plain net by ancestors. The trace is the shortest: a step's ancestors and nothing else.
    pub fn order(&self) -> Outcome {
        let n = self.steps.len();
        let mut left: Vec<usize> = self.after.iter().map(Bits::len).collect();
        let mut ready: Vec<usize> = (0..n).filter(|&v| left[v] == 0).collect();
        let (mut run, mut past, mut rank) = (Vec::with_capacity(n), vec![Bits::default(); n], usize::MAX);
        while !ready.is_empty() {
            // One rank as long as it gets on: easier to read.
            let at = ready.iter().position(|&v| self.steps[v].rank == rank).unwrap_or(0);
            let v = ready.remove(at);
            run.push(v);
            rank = self.steps[v].rank;
            let mut with = past[v];
            with.set(v);
            for &u in &self.succ[v] {
                past[u].add(&with);
                left[u] -= 1;
                if left[u] == 0 {
                    ready.push(u);
                }
            }
        }
        let early = |v: &usize| !self.must[*v].without(&past[*v]).is_empty();
        if let Some(v) = run.iter().copied().filter(early).min_by_key(|&v| past[v].len()) {
            let trace = run.iter().copied().filter(|&u| past[v].has(u)).chain([v]).collect();
            return Outcome { verdict: Verdict::Unsafe, trace, states: 0 };
        }
        let mut done = Bits::default();
        run.iter().for_each(|&v| done.set(v));
        let verdict = if self.goal.without(&done).is_empty() { Verdict::Safe } else { Verdict::Hang };
        Outcome { verdict, trace: run, states: 0 }
    }

    /// The trace in words: who does what, and what is wrong with its end.
    pub fn tell(&self, outcome: &Outcome) -> String {
        let (mut done, mut memory, mut text, mut rank) =
            (Bits::default(), self.memory.clone(), String::new(), usize::MAX);
        for (n, &v) in outcome.trace.iter().enumerate() {
            let step = self.steps[v];
            let last = n + 1 == outcome.trace.len() && outcome.verdict == Verdict::Unsafe;
            if step.kind != Kind::Write || step.rank != step.peer || last {
                text += &if step.rank == rank { ", ".into() } else { format!("\n      rank {} ", step.rank) };
                text += &step.to_string();
                rank = step.rank;
            }
            if last {
                let why = self.harm(v, &done, &memory).unwrap_or_default();
                return format!("{text}  <-- {why}");
            }
            done.set(v);
            self.apply(v, &mut memory);
        }
        let waits = |v: &usize| {
            matches!(
                self.steps[*v].kind,
                Kind::See | Kind::Entered | Kind::Met | Kind::SeeAck | Kind::SeeCounts | Kind::Launch
            )
        };
        let stuck: Vec<_> = self.goal.without(&done).iter().filter(waits).collect();
        let first = |r: usize| {
            stuck.iter().find(|&&v| self.steps[v].rank == r).map(|&v| format!("rank {r} {}", self.steps[v]))
        };
        let ranks = self.steps.iter().map(|s| s.rank + 1).max().unwrap_or(0);
        format!("{text}  <-- for ever: {}", (0..ranks).filter_map(first).collect::<Vec<_>>().join(", "))
    }
}
