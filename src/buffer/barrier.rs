//! Meeting all ranks: the barrier operation, and the guards in front of operations that write.

use super::books::Kind;
use super::state::{Buffer, Entered, Op};
use crate::backend::host::Wanted;
use crate::driver::StreamPointer;
use crate::error::Result;
use crate::plan::windows::Guard;
use crate::plan::words::{fingerprint, Operation, Phase};

impl Buffer {
    pub fn barrier(&self, stream: StreamPointer) -> Result<()> {
        let mut entered = self.operate()?;
        entered.follow(stream)?;
        entered.barrier(true, stream)?;
        self.statistics.count_barrier();
        Ok(())
    }
}

impl Entered<'_> {
    /// An operation of its own that only meets. `asked_for`: by the caller.
    pub fn barrier(&mut self, asked_for: bool, stream: StreamPointer) -> Result<()> {
        if self.state.device.is_some() {
            return self.barrier_on_device(asked_for, stream);
        }
        let op = Op {
            operation: Operation::Barrier,
            epoch: self.state.books.epochs.next(),
            fingerprint: fingerprint(Operation::Barrier, &[]),
        };
        self.buffer.statistics.begin(op.epoch);
        self.meet(op)?;
        self.state.books.epochs.barrier();
        Ok(())
    }

    /// Awaits what must be awaited before a window is written. `still_reads`: the operation reads rows in place that
    /// peers may overwrite when it has ended.
    pub fn guard(
        &mut self,
        op: Op,
        kind: Kind,
        window: usize,
        guard: Guard,
        still_reads: bool,
    ) -> Result<()> {
        match guard {
            Guard::Nothing | Guard::Busy => {}
            Guard::Barrier => {
                self.meet(op)?;
                self.state.books.epochs.meet(still_reads);
                self.buffer.statistics.count_entry_barrier();
            }
            Guard::Acks => {
                let number = self.state.books.set(kind).ack(window);
                self.wait(op, Wanted { phase: Phase::Read, turn: 0, number })?;
            }
        }
        Ok(())
    }

    fn meet(&mut self, op: Op) -> Result<()> {
        let turn = self.state.turns.take(Phase::Enter);
        self.signal(op, Phase::Enter, turn);
        self.wait(op, Wanted { phase: Phase::Enter, turn, number: op.epoch })
    }

    pub fn signal(&self, op: Op, phase: Phase, turn: usize) {
        self.state.host.signal(phase, turn, op.epoch, op.fingerprint, &self.state.alive);
    }

    /// A bounded wait for all peers; if it fails the peers are told and the buffer is poisoned.
    pub fn wait(&self, op: Op, wanted: Wanted) -> Result<()> {
        let _span = self.buffer.span(wanted.phase.name(), op);
        let waited_for = |peer, ns| self.buffer.statistics.waited_for(peer, ns);
        let watch = self.state.watch(self.buffer, op, &waited_for);
        let ns = self.state.host.wait(&watch, wanted).map_err(|report| {
            self.state.host.leave_verdict(&report, &self.state.alive);
            self.buffer.failures.poison(report)
        })?;
        self.buffer.statistics.waited(ns);
        Ok(())
    }
}
