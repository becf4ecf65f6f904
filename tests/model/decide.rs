//! What every rank decides at every call of a program: epochs, windows, guards. All of it is computed by the
//! library; the variants only feed it other numbers, or do not do what it says.

use deepep::plan::windows::{
    entry, guard_at_send, guard_at_take, Ends, Entry, Epochs, Guard, SyncMode, Windows,
};
use deepep::plan::words::{Phase, Turns};

/// How the rows of an operation travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    Push,
    /// Pushed after an exchange of counts.
    Counted,
    Pull,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Frozen in a graph, or chosen by the program.
    Fixed(usize),
    /// Chosen by the library.
    Chosen,
}

#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub how: How,
    /// Dispatch and combine windows are different pools.
    pub pool: usize,
    pub place: Place,
    /// A combine that reads the rows of this operation in place, before it signals.
    pub reads: Option<usize>,
}

pub fn op(how: How, pool: usize, window: usize) -> Op {
    Op { how, pool, place: Place::Fixed(window), reads: None }
}

/// The calls of one rank, in stream order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    Send(usize),
    Recv(usize),
    /// The rows of this pushed operation are no longer read.
    End(usize),
    /// The caller takes the window of this pulled operation and fills it.
    Take(usize),
    /// Survivors of a lost rank agree how to go on, in a barrier with this number.
    Reset(usize, Resume),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resume {
    /// Each at its own next epoch.
    Own,
    /// Beyond the newest that any of them began.
    At(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Windows are entered at once, always.
    None,
    /// The library's.
    Mode(SyncMode),
    /// The newest epoch a send may count on by itself, whatever has been received.
    ByEpoch,
    /// What the rule comes to for send, receive, send, receive: a barrier iff the last use is later than e-2.
    LastUse,
    /// A barrier always, in place of a refusal too.
    Forced,
    Wrong(Mistake),
}

pub const AUTO: Rule = Rule::Mode(SyncMode::Auto);

/// Slips in the rule, each of which must be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    NewestOneTooHigh,
    EndsOneTooLow,
    BusyOneTooLate,
    /// The entry barrier of a combine that still reads counts for the rows it reads.
    MeetingOfReader,
    /// Reads of a pulled window are taken as over when its receive begins.
    EndsAtSend,
}

/// The decisions, per operation or per call.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub epoch: Vec<u64>,
    pub window: Vec<(usize, usize)>,
    /// The operation that used the window before.
    pub before: Vec<Option<usize>>,
    /// The number of the operation's signal in the data phase.
    pub number: Vec<u64>,
    pub guard: Vec<Guard>,
    /// The epoch of the barrier that a `Take` runs.
    pub barrier: Vec<u64>,
    /// The number of that barrier's signal in its phase.
    pub barrier_number: Vec<u64>,
    pub refused: bool,
}

impl Plan {
    pub fn barriers(&self) -> Vec<usize> {
        (0..self.guard.len()).filter(|&at| self.guard[at] == Guard::Barrier).collect()
    }
}

const NOWHERE: usize = usize::MAX;

pub struct Decider<'a> {
    ops: &'a [Op],
    rule: Rule,
    depth: usize,
    /// The phase in which barriers beside operations signal.
    barriers: Phase,
    epochs: Epochs,
    turns: Turns,
    pools: Vec<Windows>,
    last: Vec<Vec<Option<usize>>>,
    plan: Plan,
}

impl<'a> Decider<'a> {
    /// `chosen`: windows per pool where the library chooses.
    pub fn decide(
        ops: &'a [Op],
        calls: &[Call],
        rule: Rule,
        depth: usize,
        chosen: usize,
        barriers: Phase,
    ) -> Plan {
        let count = |o: &Op| if let Place::Fixed(w) = o.place { w + 1 } else { chosen };
        let pools = ops.iter().map(|o| o.pool + 1).max().unwrap_or(0);
        let size = |p| ops.iter().filter(|o| o.pool == p).map(count).max().unwrap_or(0);
        let (n, calls_n) = (ops.len(), calls.len());
        let plan = Plan {
            epoch: vec![0; n],
            window: vec![(0, NOWHERE); n],
            before: vec![None; n],
            number: vec![0; n],
            guard: vec![Guard::Nothing; calls_n],
            barrier: vec![0; calls_n],
            barrier_number: vec![0; calls_n],
            refused: false,
        };
        let mut this = Decider {
            ops,
            rule,
            depth,
            barriers,
            epochs: Epochs::new(depth + 1, 0),
            turns: Turns::new(depth),
            pools: (0..pools).map(|p| Windows::new(size(p))).collect(),
            last: (0..pools).map(|p| vec![None; size(p)]).collect(),
            plan,
        };
        for (at, call) in calls.iter().enumerate() {
            match *call {
                Call::Send(x) => this.send(at, x),
                Call::Recv(x) => this.recv(x),
                Call::End(x) => this.end(x, this.epochs.next()),
                Call::Take(x) => this.take(at, x),
                Call::Reset(_, resume) => this.reset(resume),
            }
        }
        this.plan
    }

    /// The window for operation `x` and the guard before it is written.
    fn place(&mut self, at: usize, x: usize) -> bool {
        let Op { pool, place, .. } = self.ops[x];
        let chosen = match place {
            Place::Fixed(w) => Some(w),
            Place::Chosen => self.pools[pool].choose(),
        };
        let Some(w) = chosen else {
            self.plan.guard[at] = Guard::Busy;
            self.plan.refused = true;
            return false;
        };
        self.plan.window[x] = (pool, w);
        self.plan.before[x] = self.last[pool][w];
        let taken = self.pools[pool].is_held(w);
        let careless = matches!(self.rule, Rule::None | Rule::LastUse | Rule::Forced);
        let guard = if taken && !careless { Guard::Busy } else { self.guard(x, w) };
        self.plan.refused |= guard == Guard::Busy;
        self.plan.guard[at] = guard;
        self.last[pool][w] = Some(x);
        true
    }

    fn guard(&self, x: usize, w: usize) -> Guard {
        let Op { pool, how, .. } = self.ops[x];
        let (ends, newest, next) =
            (self.pools[pool].ends(w), self.epochs.newest_received(), self.epochs.next());
        let pushed_before = self.last[pool][w].is_some_and(|y| self.ops[y].how != How::Pull);
        let rule = |mode, ends, newest, next| match how {
            // In eager calls the host compares these numbers; once there are graphs a kernel does, in the order of the
            // stream, so that `newest` is what has been received and not what was enqueued.
            // Only the owner's own reads are in the way of the owner.
            How::Pull if pushed_before && ends != Ends::Open => Guard::Nothing,
            How::Pull => guard_at_take(mode, ends, newest, next),
            _ => guard_at_send(mode, how == How::Counted, ends, newest, next),
        };
        let auto = |ends, newest, next| rule(SyncMode::Auto, ends, newest, next);
        match self.rule {
            Rule::None => Guard::Nothing,
            Rule::Mode(mode) => rule(mode, ends, newest, next),
            Rule::ByEpoch => auto(ends, next.saturating_sub(1 + self.depth as u64), next),
            Rule::LastUse => match self.last[pool][w].map(|y| self.plan.epoch[y]) {
                Some(y) if entry(Ends::At(y + 1), next - 1, next) != Entry::AtOnce => Guard::Barrier,
                _ => Guard::Nothing,
            },
            Rule::Forced => Guard::Barrier,
            Rule::Wrong(Mistake::NewestOneTooHigh) => auto(ends, newest + 1, next),
            Rule::Wrong(Mistake::EndsOneTooLow) => auto(lower(ends), newest, next),
            Rule::Wrong(Mistake::BusyOneTooLate) if ends == Ends::Open => auto(Ends::At(next), newest, next),
            Rule::Wrong(_) => auto(ends, newest, next),
        }
    }

    fn send(&mut self, at: usize, x: usize) {
        let Op { how, pool, reads, .. } = self.ops[x];
        let placed = how == How::Pull || self.place(at, x);
        let meets = self.plan.guard[at] == Guard::Barrier || how == How::Counted;
        if meets {
            let still_reads = reads.is_some() && self.rule != Rule::Wrong(Mistake::MeetingOfReader);
            self.epochs.meet(still_reads);
        }
        self.plan.number[x] = self.turns.number(Phase::Data);
        self.turns.take(Phase::Data);
        self.plan.epoch[x] = match self.epochs.send() {
            Some(epoch) => epoch,
            None => panic!("the program sends more than its depth"),
        };
        if placed {
            self.pools[pool].begin(self.plan.window[x].1);
        }
        if how == How::Pull && self.rule == Rule::Wrong(Mistake::EndsAtSend) {
            self.end(x, self.plan.epoch[x]);
        }
        if let Some(y) = reads {
            self.end(y, self.plan.epoch[x]);
        }
    }

    fn recv(&mut self, x: usize) {
        assert!(self.epochs.receive(self.plan.epoch[x]));
        if self.ops[x].how == How::Pull && self.rule != Rule::Wrong(Mistake::EndsAtSend) {
            self.end(x, self.epochs.next());
        }
    }

    fn end(&mut self, x: usize, next_epoch: u64) {
        let (pool, w) = self.plan.window[x];
        // Where a variant has let a later operation in, the window is that one's.
        if w != NOWHERE && self.last[pool][w] == Some(x) {
            self.pools[pool].end_reads(w, next_epoch);
        }
    }

    fn take(&mut self, at: usize, x: usize) {
        if !self.place(at, x) {
            return;
        }
        if self.plan.guard[at] == Guard::Barrier {
            self.plan.barrier[at] = self.epochs.barrier();
            self.plan.barrier_number[at] = self.turns.number(self.barriers);
            self.turns.take(self.barriers);
        }
        let (pool, w) = self.plan.window[x];
        self.pools[pool].hold(w);
    }

    fn reset(&mut self, resume: Resume) {
        let next = match resume {
            Resume::Own => self.epochs.next(),
            Resume::At(epoch) => epoch,
        };
        self.epochs.reset(next, true);
        self.pools.iter_mut().for_each(|windows| windows.reset(next));
    }
}

fn lower(ends: Ends) -> Ends {
    match ends {
        Ends::At(epoch) => Ends::At(epoch - 1),
        other => other,
    }
}
