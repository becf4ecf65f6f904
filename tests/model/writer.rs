//! The steps of one rank, call by call: stores, signals, barriers, acknowledgements, counts, pulls.

use super::decide::{Call, How, Plan, Rule};
use super::net::{step, Draft, Harm, Kind, Step, When};
use super::protocol::{Fix, Regions, Setup};
use super::words::Memory;
use deepep::plan::windows::{Guard, SyncMode};

/// Barriers beside operations carry the number of the operation they are for; the agreement of survivors this.
const AGREEMENT: usize = 100;

/// Adds the steps of `rank` for its calls, as `plan` decided them.
pub fn write_rank(
    setup: &Setup,
    plan: &Plan,
    memory: Option<&Memory>,
    rank: usize,
    calls: &[Call],
    draft: &mut Draft,
) {
    let mut writer = Writer { setup, plan, memory, rank, base: Vec::new(), agreed: false, draft };
    for (at, &call) in calls.iter().enumerate() {
        writer.call(at, call, calls);
    }
}

struct Writer<'a> {
    setup: &'a Setup,
    plan: &'a Plan,
    memory: Option<&'a Memory>,
    rank: usize,
    /// What the next call waits for: every step of the call before.
    base: Vec<Step>,
    /// Whether this survivor has agreed with the others.
    agreed: bool,
    draft: &'a mut Draft,
}

impl Writer<'_> {
    fn all(&self) -> std::ops::Range<usize> {
        0..self.setup.ranks
    }

    fn peers(&self) -> impl Iterator<Item = usize> + Clone {
        let rank = self.rank;
        self.all().filter(move |&j| j != rank)
    }

    /// Whether this rank still sends operation `x` to `j`, or awaits it from there.
    fn sends(&self, j: usize, x: usize) -> bool {
        let gone =
            self.setup.lost.is_some_and(|lost| self.rank != lost.rank && j == lost.rank && x > lost.op);
        !gone && self.setup.mute != Some((self.rank, j, x))
    }

    fn awaits(&self, j: usize, x: usize) -> bool {
        let gone =
            self.setup.lost.is_some_and(|lost| self.rank != lost.rank && j == lost.rank && x >= lost.op);
        !gone && self.setup.mute != Some((j, self.rank, x))
    }

    fn how(&self, x: usize) -> How {
        self.setup.ops[x].how
    }

    /// Who reads the rows of `x` in the windows of `owner`.
    fn readers(&self, owner: usize, x: Option<usize>, now: usize) -> Vec<Step> {
        let Some(x) = x else { return Vec::new() };
        if let Some(lost) = self.setup.lost {
            if lost.fix == Fix::NewWindows && x <= lost.op && now > lost.op {
                return Vec::new();
            }
        }
        if self.how(x) == How::Pull {
            let masked = |r| self.setup.lost.is_some_and(|lost| r == lost.rank && now > lost.op);
            self.all().filter(|&r| !masked(r)).map(|r| step(Kind::Pull, r, owner, x)).collect()
        } else if self.setup.ops.iter().any(|o| o.reads == Some(x)) {
            self.all().map(|source| step(Kind::Part, owner, source, x)).collect()
        } else {
            vec![step(Kind::Read, owner, owner, x)]
        }
    }

    /// Tells every rank of `group`, then sees every one of them.
    fn wall(&mut self, told: Kind, seen: Kind, tag: usize, group: &[usize]) -> Vec<Step> {
        let (rank, base) = (self.rank, self.base.clone());
        let mut steps: Vec<Step> =
            group.iter().map(|&j| self.draft.add(step(told, rank, j, tag), &base)).collect();
        for &j in group {
            let after = [&base[..], &[step(told, j, rank, tag)]].concat();
            steps.push(self.draft.add(step(seen, rank, j, tag), &after));
        }
        steps
    }

    /// A barrier in the words of a phase, as `wall` but through memory.
    fn word_wall(&mut self, memory: &Memory, at: usize, tag: usize) -> Vec<Step> {
        let (rank, base, peers) = (self.rank, self.base.clone(), self.peers().collect::<Vec<_>>());
        let mut steps = Vec::new();
        for &j in &peers {
            steps.push(self.draft.add(step(Kind::Meet, rank, j, tag), &base));
            self.draft.effect(Some(memory.tell_barrier(self.plan, at, rank, j)));
        }
        for &j in &peers {
            steps.push(self.draft.add(step(Kind::Met, rank, j, tag), &base));
            let (when, harm) = memory.see_barrier(self.plan, at, rank, j);
            self.draft.when(Some(when));
            self.draft.harm(harm);
        }
        steps
    }

    fn call(&mut self, at: usize, call: Call, calls: &[Call]) {
        if let (Some(lost), Call::Send(x) | Call::Take(x)) = (self.setup.lost, call) {
            if x > lost.op && self.rank != lost.rank && !self.agreed {
                let survivors: Vec<_> = self.peers().filter(|&j| j != lost.rank).collect();
                self.base = self.wall(Kind::Meet, Kind::Met, AGREEMENT, &survivors);
                self.agreed = true;
            }
        }
        match call {
            Call::Send(x) => self.send(at, x, calls),
            Call::Recv(x) => self.recv(x),
            Call::End(x) => self.end(x),
            Call::Take(x) => self.take(at, x),
            Call::Reset(tag, _) => {
                let peers: Vec<_> = self.peers().collect();
                self.base = self.wall(Kind::Meet, Kind::Met, tag, &peers);
            }
        }
    }

    fn group(&self, x: usize) -> Vec<usize> {
        self.peers().filter(|&j| self.sends(j, x) && self.awaits(j, x)).collect()
    }

    fn take(&mut self, at: usize, x: usize) {
        let before = self.plan.before[x];
        if !self.setup.guard_at_entry && self.setup.left_out != Some(at) {
            match self.plan.guard[at] {
                Guard::Barrier => {
                    let group = self.group(x);
                    self.base = match self.memory {
                        Some(memory) => self.word_wall(memory, at, x),
                        None => self.wall(Kind::Meet, Kind::Met, x, &group),
                    };
                }
                Guard::Acks => {
                    for j in self.peers() {
                        let seen = self.see_ack(j, before);
                        self.base.push(seen);
                    }
                }
                Guard::Nothing | Guard::Busy => {}
            }
        }
        let must = self.readers(self.rank, before, x);
        self.draft.add_must(step(Kind::Fill, self.rank, self.rank, x), &self.base, must);
    }

    fn see_ack(&mut self, j: usize, of: Option<usize>) -> Step {
        let of = of.unwrap_or(usize::MAX);
        let after = [&self.base[..], &[step(Kind::Ack, j, self.rank, of)]].concat();
        self.draft.add(step(Kind::SeeAck, self.rank, j, of), &after)
    }

    /// The guard decided for operation `x`, unless it is left out or belongs to another call.
    fn guard(&self, at: usize, x: usize, calls: &[Call]) -> Guard {
        let decided = match (self.how(x), self.setup.guard_at_entry) {
            (How::Pull, false) => return Guard::Nothing,
            (How::Pull, true) => calls.iter().position(|&call| call == Call::Take(x)).unwrap_or(at),
            _ => at,
        };
        if self.setup.left_out == Some(decided) {
            Guard::Nothing
        } else {
            self.plan.guard[decided]
        }
    }

    fn send(&mut self, at: usize, x: usize, calls: &[Call]) {
        let (rank, pull) = (self.rank, self.how(x) == How::Pull);
        if pull {
            self.base.push(step(Kind::Fill, rank, rank, x));
        }
        let (mut steps, guard, group) = (Vec::new(), self.guard(at, x, calls), self.group(x));
        if guard == Guard::Barrier {
            let entered = self.wall(Kind::Enter, Kind::Entered, x, &group);
            *(if self.setup.per_peer { &mut steps } else { &mut self.base }) = entered;
        }
        if self.how(x) == How::Counted {
            self.counts(x, calls, &mut steps);
        }
        let clear = self.memory.and_then(|memory| memory.clear(x, rank));
        if let Some(effect) = clear.clone() {
            steps.push(self.draft.add(step(Kind::Clear, rank, rank, x), &self.base));
            self.draft.effect(Some(effect));
        }
        let parts: Vec<Step> = match self.setup.ops[x].reads {
            Some(y) => self
                .all()
                .map(|source| self.draft.add(step(Kind::Part, rank, source, y), &self.base))
                .collect(),
            None => Vec::new(),
        };
        steps.extend(&parts);
        for j in self.all().filter(|&j| self.sends(j, x)).collect::<Vec<_>>() {
            let mut after = self.base.clone();
            if guard == Guard::Barrier && self.setup.per_peer {
                // Peers that pull from the own window have all to be over before it is written.
                let pulled = self.plan.before[x].is_some_and(|y| self.how(y) == How::Pull);
                let awaited = group.iter().filter(|&&peer| peer == j || j == rank && pulled);
                after.extend(awaited.map(|&peer| step(Kind::Entered, rank, peer, x)));
            }
            if guard == Guard::Acks && j != rank {
                after.push(self.see_ack(j, self.plan.before[x]));
            }
            after.extend(parts.get(j));
            if !pull {
                after = vec![self.write(j, x, &after)];
            }
            if j != rank {
                after.extend(parts.iter().filter(|_| !self.setup.signals_early));
                if clear.is_some() && self.memory.is_some_and(Memory::clears_first) {
                    after.push(step(Kind::Clear, rank, rank, x));
                }
                after = vec![self.draft.add(step(Kind::Signal, rank, j, x), &after)];
                self.draft.effect(self.memory.map(|memory| memory.tell(self.plan, x, rank, j)));
                self.stopped();
            }
            steps.extend(after);
        }
        if let Some(y) = self.setup.ops[x].reads {
            let acks = self.acks(y, &parts);
            steps.extend(acks);
        }
        self.base = steps;
    }

    fn write(&mut self, j: usize, x: usize, after: &[Step]) -> Step {
        let must = self.readers(j, self.plan.before[x], x);
        let written = self.draft.add_must(step(Kind::Write, self.rank, j, x), after, must);
        self.stopped();
        if let Some(lost) = self.setup.lost.filter(|lost| lost.rank == self.rank && lost.rank != j) {
            let fresh = |y| lost.fix == Fix::NewWindows && y > lost.op;
            let same = |y: &usize| *y > lost.op && self.plan.window[*y] == self.plan.window[x] && !fresh(*y);
            let rows = |y| self.peers().map(|s| step(Kind::Write, s, j, y)).collect();
            let later = (0..self.setup.ops.len()).filter(same);
            let harm = later.map(|y| Harm::Mixes(step(Kind::Read, j, j, y), rows(y))).collect();
            if lost.fix != Fix::Slots {
                self.draft.harm(harm);
            }
        }
        written
    }

    /// With proof, a lost rank takes no step that others could notice after the survivors have agreed.
    fn stopped(&mut self) {
        let Some(lost) = self.setup.lost.filter(|lost| lost.rank == self.rank && lost.fix == Fix::Proof)
        else {
            return;
        };
        let survivors: Vec<_> = self.all().filter(|&r| r != lost.rank).collect();
        let met =
            survivors.iter().flat_map(|&i| survivors.iter().filter(move |&&j| j != i).map(move |&j| (i, j)));
        self.draft.when(Some(When::Unless(met.map(|(i, j)| step(Kind::Met, i, j, AGREEMENT)).collect())));
    }

    fn counts(&mut self, x: usize, calls: &[Call], steps: &mut Vec<Step>) {
        let (rank, base) = (self.rank, self.base.clone());
        let exchange = |call: &Call| match *call {
            Call::Send(y) if self.how(y) == How::Counted => Some(y),
            _ => None,
        };
        let earlier: Vec<usize> = calls.iter().filter_map(exchange).take_while(|&y| y != x).collect();
        let last = match self.setup.regions {
            Regions::ByNumber(n) => earlier.len().checked_sub(n).map(|at| earlier[at]),
            Regions::ByEpoch(n) => {
                let region = |y: usize| self.plan.epoch[y] % n as u64;
                earlier.into_iter().rev().find(|&y| region(y) == region(x))
            }
        };
        for j in self.peers().filter(|&j| self.sends(j, x)).collect::<Vec<_>>() {
            let must = last.map(|y| step(Kind::EndCounts, j, j, y)).into_iter().collect();
            steps.push(self.draft.add_must(step(Kind::Counts, rank, j, x), &base, must));
        }
        for j in self.peers().filter(|&j| self.awaits(j, x)).collect::<Vec<_>>() {
            let after = [&base[..], &[step(Kind::Counts, j, rank, x)]].concat();
            let seen = self.draft.add(step(Kind::SeeCounts, rank, j, x), &after);
            self.base.push(seen);
        }
        if !self.setup.counts_read_late {
            self.base = vec![self.draft.add(step(Kind::EndCounts, rank, rank, x), &self.base)];
        }
    }

    fn recv(&mut self, x: usize) {
        let (rank, mut seen) = (self.rank, self.base.clone());
        for j in self.peers().filter(|&j| self.awaits(j, x)).collect::<Vec<_>>() {
            let sent = step(Kind::Signal, j, rank, x);
            let after =
                if self.memory.is_some() { self.base.clone() } else { [&self.base[..], &[sent]].concat() };
            seen.push(self.draft.add(step(Kind::See, rank, j, x), &after));
            if let Some(memory) = self.memory {
                let (when, harm) = memory.see(self.plan, x, rank, j);
                self.draft.when(Some(when));
                self.draft.harm(harm);
            }
        }
        if self.how(x) == How::Pull {
            self.base = self.pull(x);
            return;
        }
        if !self.setup.ops.iter().any(|o| o.reads == Some(x)) {
            let rows = self
                .peers()
                .filter(|_| self.memory.is_some())
                .map(|j| step(Kind::Write, j, rank, x))
                .collect();
            self.draft.add_must(step(Kind::Read, rank, rank, x), &seen, rows);
        }
        if self.how(x) == How::Counted && self.setup.counts_read_late {
            seen.push(self.draft.add(step(Kind::EndCounts, rank, rank, x), &seen));
        }
        self.base = seen;
    }

    fn pull(&mut self, x: usize) -> Vec<Step> {
        let (rank, mut steps) = (self.rank, Vec::new());
        for j in self.all().filter(|&j| j == rank || self.awaits(j, x)).collect::<Vec<_>>() {
            let mut after = self.base.clone();
            after.extend((j != rank).then_some(step(Kind::See, rank, j, x)));
            let filled = self.memory.map(|_| step(Kind::Fill, j, j, x)).into_iter().collect();
            let pulled = self.draft.add_must(step(Kind::Pull, rank, j, x), &after, filled);
            if self.setup.lost.is_some_and(|lost| lost.rank == rank && lost.fix != Fix::Told) {
                let again = |y: &usize| *y > x && self.plan.window[*y] == self.plan.window[x];
                let fills =
                    (0..self.setup.ops.len()).filter(again).map(|y| step(Kind::Fill, j, j, y)).collect();
                self.draft.harm(vec![Harm::Replaced(fills)]);
            }
            steps.push(pulled);
            if self.setup.rule == Rule::Mode(SyncMode::Ack) && j != rank {
                steps.push(self.draft.add(step(Kind::Ack, rank, j, x), &[pulled]));
            }
        }
        steps
    }

    fn end(&mut self, x: usize) {
        self.base.push(step(Kind::Read, self.rank, self.rank, x));
        let over = self.base.clone();
        let acks = self.acks(x, &over);
        self.base.extend(acks);
    }

    fn acks(&mut self, x: usize, over: &[Step]) -> Vec<Step> {
        if self.setup.rule != Rule::Mode(SyncMode::Ack) {
            return Vec::new();
        }
        let peers: Vec<_> = self.peers().collect();
        peers.into_iter().map(|j| self.draft.add(step(Kind::Ack, self.rank, j, x), over)).collect()
    }
}
