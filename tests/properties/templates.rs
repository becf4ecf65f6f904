//! The shapes of programs: which calls follow which, with up to three operations in flight.

use super::generate::Writer;
use super::program::Action::*;
use super::program::*;

pub const TEMPLATES: usize = 12;

impl Writer<'_> {
    /// Windows for handles with rows in use, as configured.
    fn windows(&self) -> usize {
        let m = self.numbers.in_flight;
        match self.program.config.dispatch_windows {
            0 if self.program.setup.layout.slotted() => 2 * m,
            0 => m,
            windows => windows as usize,
        }
    }

    pub fn template(&mut self, template: usize) {
        let first = self.program.steps.len();
        let m = self.numbers.in_flight;
        let possible = match template {
            6.. if m < 2 || self.windows() < 2 => template % 6,
            11 if m < 3 || self.windows() < 3 => 6,
            _ => template,
        };
        match possible {
            0 => {
                let exchange = self.dispatch();
                let sum = self.combine(exchange);
                self.push(&[Dispatch { handle: 0, exchange }, Combine { handle: 0, sum }]);
            }
            1 => {
                let exchange = self.dispatch();
                let sum = self.combine(exchange);
                self.push(&[Send { handle: 1, exchange }, Recv { handle: 1, exchange }]);
                self.push(&[CombineSend { handle: 1, sum }, CombineRecv { handle: 1, sum }]);
            }
            2 => {
                let exchange = self.dispatch();
                self.push(&[Dispatch { handle: 2, exchange }, Release { handle: 2 }, Barrier]);
            }
            3 => {
                let exchange = self.dispatch();
                let (one, two) = (self.combine(exchange), self.combine(exchange));
                self.push(&[Dispatch { handle: 0, exchange }, Combine { handle: 0, sum: one }]);
                self.push(&[Combine { handle: 0, sum: two }]);
            }
            4 => {
                let exchange = self.dispatch();
                let sum = self.combine(exchange);
                let again = self.dispatch_again(exchange);
                let sum_again = self.combine(again);
                self.push(&[Dispatch { handle: 0, exchange }, Combine { handle: 0, sum }]);
                self.push(&[Dispatch { handle: 0, exchange: again }, Combine { handle: 0, sum: sum_again }]);
            }
            5 => {
                // A barrier is not in the way of operations in flight, nor they in its.
                let exchange = self.dispatch();
                let sum = self.combine(exchange);
                self.push(&[Send { handle: 0, exchange }, Barrier, Recv { handle: 0, exchange }]);
                self.push(&[CombineSend { handle: 0, sum }, Barrier, CombineRecv { handle: 0, sum }]);
            }
            10 => self.pipelined(),
            11 => self.three_at_once(),
            _ => self.two_at_once(possible),
        }
        self.push(&[Report { first, last: self.program.steps.len() }]);
    }

    fn two_at_once(&mut self, template: usize) {
        let (a, b) = (self.dispatch(), self.dispatch());
        let (sum_a, sum_b) = (self.combine(a), self.combine(b));
        let (send_a, send_b) = (Send { handle: 0, exchange: a }, Send { handle: 1, exchange: b });
        let (recv_a, recv_b) = (Recv { handle: 0, exchange: a }, Recv { handle: 1, exchange: b });
        let c_send_a = CombineSend { handle: 0, sum: sum_a };
        let c_send_b = CombineSend { handle: 1, sum: sum_b };
        let c_recv_a = CombineRecv { handle: 0, sum: sum_a };
        let c_recv_b = CombineRecv { handle: 1, sum: sum_b };
        match template {
            6 => {
                self.push(&[Dispatch { handle: 0, exchange: a }, Dispatch { handle: 1, exchange: b }]);
                self.push(&[Combine { handle: 0, sum: sum_a }, Combine { handle: 1, sum: sum_b }]);
            }
            7 => {
                self.push(&[send_a, send_b, recv_a, recv_b]);
                self.push(&[c_send_a, c_send_b, c_recv_a, c_recv_b]);
            }
            8 => {
                self.push(&[send_a, send_b, recv_b, recv_a]);
                self.push(&[c_send_a, c_send_b, c_recv_b, c_recv_a]);
            }
            _ => {
                self.push(&[send_a, send_b, recv_a, c_send_a]);
                self.push(&[recv_b, c_send_b, c_recv_a, c_recv_b]);
            }
        }
    }

    /// Each dispatch is sent while the combine of the one before is in flight.
    fn pipelined(&mut self) {
        let mut exchange = self.dispatch();
        self.push(&[Send { handle: 0, exchange }, Recv { handle: 0, exchange }]);
        for round in 0..4 {
            let (now, next) = (round % 2, (round + 1) % 2);
            let sum = self.combine(exchange);
            exchange = self.dispatch();
            self.push(&[CombineSend { handle: now, sum }, Send { handle: next, exchange }]);
            self.push(&[CombineRecv { handle: now, sum }, Recv { handle: next, exchange }]);
        }
        self.push(&[Release { handle: 0 }]);
    }

    fn three_at_once(&mut self) {
        let exchanges = [self.dispatch(), self.dispatch(), self.dispatch()];
        let sums = exchanges.map(|exchange| self.combine(exchange));
        let orders = [[0, 1, 2], [2, 0, 1], [1, 2, 0]];
        let (first, second) = (orders[self.noise.below(3)], orders[self.noise.below(3)]);
        for (handle, exchange) in exchanges.into_iter().enumerate() {
            self.push(&[Send { handle, exchange }]);
        }
        for handle in first {
            self.push(&[Recv { handle, exchange: exchanges[handle] }]);
        }
        for (handle, sum) in sums.into_iter().enumerate() {
            self.push(&[CombineSend { handle, sum }]);
        }
        for handle in second {
            self.push(&[CombineRecv { handle, sum: sums[handle] }]);
        }
    }

    fn push(&mut self, actions: &[Action]) {
        self.program.actions.extend(actions);
    }
}
