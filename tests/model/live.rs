//! The library's own state, call by call, on ranks whose windows have contents.
//!
//! Here nothing is known about what a step must follow. Every rank holds its own `Windows`, `Epochs` and
//! `Turns` and asks them at every call; rows carry the number of their operation, words are words of memory
//! with fingerprints. Whichever rank comes first chooses the next call of the common program, in every way the
//! rule allows, so one search covers every program up to its length with every interleaving. What is wrong
//! shows in what ranks read.

use deepep::plan::windows::{guard_at_send, guard_at_take, Epochs, Guard, SyncMode, Windows};
use deepep::plan::words::{check, fingerprint, pack, reached, turns, Found, Operation, Phase, Turns};
use stateright::{Checker, HasDiscoveries, Model, Property};

/// Slips to be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slip {
    None,
    /// Guards are not kept.
    Unguarded,
    /// Windows are taken by the epoch that a send may count on, not by what was received.
    TakenByEpoch,
    /// One word fewer per source than the library has.
    FewerWords,
}

#[derive(Clone, Copy, Debug)]
pub struct Live {
    pub ranks: usize,
    pub windows: usize,
    /// Operations in a program.
    pub length: usize,
    pub depth: usize,
    pub pull: bool,
    pub slip: Slip,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Call {
    /// The caller takes a window that peers will pull, and fills it.
    Take(usize),
    /// Into this window, or from the window taken.
    Send(usize),
    Recv(usize),
    End(usize),
}

/// What a rank does at once. Those of one stage run in any order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Micro {
    Tell(usize),
    Await(usize),
    Store(usize),
    Signal(usize),
    See(usize),
    Pull(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    Choose(usize, Call),
    Do(usize, Micro),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Op {
    window: usize,
    epoch: u64,
    turn: usize,
    received: bool,
    ended: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Rank {
    /// Calls of the program that are over or running.
    at: usize,
    stages: Vec<Vec<Micro>>,
    windows: Windows,
    epochs: Epochs,
    turns: Turns,
    ops: Vec<Op>,
    sent: usize,
    /// Word and epoch of the barrier that runs.
    barrier: (usize, u64),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    program: Vec<(Call, Guard)>,
    ranks: Vec<Rank>,
    /// By owner, window and source: the number of the operation whose rows are there, from 1.
    rows: Vec<u8>,
    words: Vec<u64>,
    wrong: Option<&'static str>,
}

const SOUND: &str = "rows and signals are what they are taken for, and every wait ends";

impl Live {
    fn row(&self, owner: usize, window: usize, source: usize) -> usize {
        (owner * self.windows + window) * self.ranks + source
    }

    fn word(&self, phase: Phase, owner: usize, source: usize, turn: usize) -> usize {
        let count = turns(self.depth);
        let turn = if self.slip == Slip::FewerWords { turn % (count - 1) } else { turn };
        ((phase as usize * self.ranks + owner) * self.ranks + source) * count + turn
    }

    fn print(&self, operation: Operation, window: usize) -> u16 {
        fingerprint(operation, &[window as u32])
    }

    fn guard(&self, rank: &Rank, call: Call) -> Guard {
        let (newest, next) = (rank.epochs.newest_received(), rank.epochs.next());
        match call {
            Call::Take(w) if rank.windows.is_held(w) => Guard::Busy,
            Call::Take(w) if self.slip == Slip::TakenByEpoch => guard_at_take(
                SyncMode::Auto,
                rank.windows.ends(w),
                next.saturating_sub(1 + self.depth as u64),
                next,
            ),
            Call::Take(w) => guard_at_take(SyncMode::Auto, rank.windows.ends(w), newest, next),
            Call::Send(w) if !self.pull => {
                guard_at_send(SyncMode::Auto, false, rank.windows.ends(w), newest, next)
            }
            _ => Guard::Nothing,
        }
    }

    /// The calls a rank may make now.
    fn calls(&self, rank: &Rank) -> Vec<Call> {
        let mut calls = Vec::new();
        let (taken, sent) = (rank.ops.len(), rank.sent);
        for w in 0..self.windows {
            if self.pull && taken <= sent + 1 && taken < self.length {
                calls.push(Call::Take(w));
            }
            let ready =
                if self.pull { taken > sent && rank.ops[sent].window == w } else { sent < self.length };
            if ready && rank.epochs.can_send() {
                calls.push(Call::Send(w));
            }
        }
        for (x, op) in rank.ops.iter().enumerate().take(sent) {
            calls.extend((!op.received).then_some(Call::Recv(x)));
            calls.extend((op.received && !op.ended && !self.pull).then_some(Call::End(x)));
        }
        calls.retain(|&call| self.guard(rank, call) != Guard::Busy);
        calls
    }

    fn peers(&self, i: usize) -> impl Iterator<Item = usize> {
        (0..self.ranks).filter(move |&j| j != i)
    }

    /// Rank `i` begins the next call of the program.
    fn begin(&self, state: &mut State, i: usize) {
        let (call, agreed) = state.program[state.ranks[i].at];
        let decided = self.guard(&state.ranks[i], call);
        if decided != agreed {
            state.wrong = Some("ranks decide differently");
        }
        let guard = if self.slip == Slip::Unguarded { Guard::Nothing } else { decided };
        let wall =
            || vec![self.peers(i).map(Micro::Await).collect(), self.peers(i).map(Micro::Tell).collect()];
        let rank = &mut state.ranks[i];
        rank.at += 1;
        rank.stages = if guard == Guard::Barrier { wall() } else { Vec::new() };
        if guard == Guard::Barrier {
            // An operation of its own where a window is taken, else the entry barrier of the operation.
            let taking = matches!(call, Call::Take(_));
            let epoch = if taking { rank.epochs.barrier() } else { rank.epochs.next() };
            rank.barrier = (rank.turns.take(Phase::Enter), epoch);
            if !taking {
                rank.epochs.meet(false);
            }
        }
        match call {
            Call::Take(w) => {
                rank.windows.hold(w);
                rank.ops.push(Op { window: w, ..Op::default() });
                rank.stages.insert(0, vec![Micro::Store(i)]);
            }
            Call::Send(w) => {
                let (turn, epoch) = (rank.turns.take(Phase::Data), rank.epochs.send().unwrap_or(0));
                if !self.pull {
                    rank.ops.push(Op::default());
                }
                rank.windows.begin(w);
                rank.ops[rank.sent] = Op { window: w, epoch, turn, received: false, ended: false };
                rank.sent += 1;
                let signals = self.peers(i).map(Micro::Signal).collect();
                let stores = (0..self.ranks).map(Micro::Store).collect();
                rank.stages.insert(0, if self.pull { signals } else { stores });
            }
            Call::Recv(_) => {
                rank.stages.insert(0, self.peers(i).map(Micro::See).collect());
            }
            Call::End(x) => {
                rank.ops[x].ended = true;
                rank.windows.end_reads(rank.ops[x].window, rank.epochs.next());
                self.read(state, i, x);
            }
        }
    }

    /// Rank `i` reads the rows of operation `x` in its own window: right after the receive and right before
    /// their end, between which they can only become wrong.
    fn read(&self, state: &mut State, i: usize, x: usize) {
        let window = state.ranks[i].ops[x].window;
        if (0..self.ranks).any(|source| state.rows[self.row(i, window, source)] != x as u8 + 1) {
            state.wrong = Some("a rank reads rows of another operation");
        }
    }

    fn running(&self, state: &State, i: usize) -> Option<Call> {
        state.ranks[i].at.checked_sub(1).map(|at| state.program[at].0)
    }

    fn ready(&self, state: &State, i: usize, micro: Micro) -> bool {
        let rank = &state.ranks[i];
        match (micro, self.running(state, i)) {
            (Micro::Await(j), _) => {
                let (turn, epoch) = rank.barrier;
                reached(state.words[self.word(Phase::Enter, i, j, turn)], epoch)
            }
            (Micro::See(j), Some(Call::Recv(x))) => {
                reached(state.words[self.word(Phase::Data, i, j, rank.ops[x].turn)], rank.ops[x].epoch)
            }
            _ => true,
        }
    }

    fn run(&self, state: &mut State, i: usize, micro: Micro) {
        let Some(call) = self.running(state, i) else { return };
        let rank = &state.ranks[i];
        let (x, barrier) = (rank.sent.max(1) - 1, rank.barrier);
        let mut next = Vec::new();
        match (micro, call) {
            (Micro::Tell(j), _) => {
                let at = self.word(Phase::Enter, j, i, barrier.0);
                state.words[at] = pack(barrier.1, self.print(Operation::Barrier, 0));
            }
            (Micro::Await(j), _) => {
                let word = state.words[self.word(Phase::Enter, i, j, barrier.0)];
                if word != pack(barrier.1, self.print(Operation::Barrier, 0)) {
                    state.wrong = Some("a barrier finds another signal");
                }
            }
            (Micro::Store(_), Call::Take(w)) => {
                let stamp = rank.ops.len() as u8;
                (0..self.ranks).for_each(|reader| state.rows[self.row(i, w, reader)] = stamp);
            }
            (Micro::Store(j), _) => {
                state.rows[self.row(j, rank.ops[x].window, i)] = x as u8 + 1;
                next.extend((j != i).then_some(Micro::Signal(j)));
            }
            (Micro::Signal(j), _) => {
                let op = rank.ops[x];
                let at = self.word(Phase::Data, j, i, op.turn);
                state.words[at] = pack(op.epoch, self.print(Operation::Dispatch, op.window));
            }
            (Micro::See(j), Call::Recv(x)) => {
                let op = rank.ops[x];
                let word = state.words[self.word(Phase::Data, i, j, op.turn)];
                if check(word, op.epoch, self.print(Operation::Dispatch, op.window), self.depth)
                    != Found::Arrived
                {
                    state.wrong = Some("a receive finds another signal");
                }
                next.extend(self.pull.then_some(Micro::Pull(j)));
            }
            (Micro::Pull(j), Call::Recv(x))
                if state.rows[self.row(j, rank.ops[x].window, i)] != x as u8 + 1 =>
            {
                state.wrong = Some("a rank pulls rows of another operation");
            }
            _ => {}
        }
        if let Some(stage) = state.ranks[i].stages.last_mut() {
            stage.retain(|&other| other != micro);
            stage.extend(next);
        }
        while state.ranks[i].stages.last().is_some_and(Vec::is_empty) {
            state.ranks[i].stages.pop();
        }
        if state.ranks[i].stages.is_empty() {
            self.finish(state, i, call);
        }
    }

    fn finish(&self, state: &mut State, i: usize, call: Call) {
        let Call::Recv(x) = call else { return };
        let rank = &mut state.ranks[i];
        let Op { epoch, window, .. } = rank.ops[x];
        rank.epochs.receive(epoch);
        rank.ops[x].received = true;
        if self.pull {
            rank.windows.end_reads(window, rank.epochs.next());
        } else {
            self.read(state, i, x);
        }
    }
}

impl Model for Live {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let rank = Rank {
            at: 0,
            stages: Vec::new(),
            windows: Windows::new(self.windows),
            epochs: Epochs::new(self.depth + 1, (1 << 32) - 3),
            turns: Turns::new(self.depth),
            ops: Vec::new(),
            sent: 0,
            barrier: (0, 0),
        };
        let n = self.ranks;
        let words = vec![0; 4 * n * n * turns(self.depth)];
        vec![State {
            program: vec![],
            ranks: vec![rank; n],
            rows: vec![0; n * self.windows * n],
            words,
            wrong: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (i, rank) in state.ranks.iter().enumerate() {
            if let Some(stage) = rank.stages.last() {
                actions.extend(stage.iter().filter(|&&m| self.ready(state, i, m)).map(|&m| Action::Do(i, m)));
            } else if let Some(&(call, _)) = state.program.get(rank.at) {
                actions.push(Action::Choose(i, call));
            } else {
                actions.extend(self.calls(rank).into_iter().map(|call| Action::Choose(i, call)));
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Choose(i, call) => {
                if state.ranks[i].at == state.program.len() {
                    next.program.push((call, self.guard(&state.ranks[i], call)));
                }
                self.begin(&mut next, i);
            }
            Action::Do(i, micro) => self.run(&mut next, i, micro),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(SOUND, |model, state| {
            let mut actions = Vec::new();
            model.actions(state, &mut actions);
            let waits =
                state.ranks.iter().any(|rank| !rank.stages.is_empty() || rank.at < state.program.len());
            state.wrong.is_none() && !(actions.is_empty() && waits)
        })]
    }
}

/// What goes wrong first and after how many actions, if anything does; and the number of states.
pub fn explore(model: Live) -> (Option<(&'static str, usize)>, usize) {
    let checker = model.checker().threads(1).finish_when(HasDiscoveries::Any).spawn_bfs().join();
    let states = checker.unique_state_count();
    let found = checker.discovery(SOUND).map(|path| {
        let wrong = path.last_state().wrong.unwrap_or("a wait never ends");
        (wrong, path.into_actions(), model)
    });
    let Some((wrong, actions, _)) = found else {
        println!("SAFE   {model:?}  [{states} states]");
        return (None, states);
    };
    println!("UNSAFE {model:?}  [{states} states]\n      {actions:?}  <-- {wrong}");
    (Some((wrong, actions.len())), states)
}
