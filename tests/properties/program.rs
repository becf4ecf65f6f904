//! A program: buffer, operations with their inputs, and the run of it on every rank.

use crate::reference::Setup;
use crate::support::exchange::Exchange;
use crate::support::payload::Noise;
use crate::support::receive::Received;
use crate::support::send::Style;
use crate::support::sum::Manner;
use crate::support::*;
use deepep::capi::deep_ep_buffer_config_t;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub enum Action {
    Dispatch {
        handle: usize,
        exchange: usize,
    },
    Send {
        handle: usize,
        exchange: usize,
    },
    Recv {
        handle: usize,
        exchange: usize,
    },
    Combine {
        handle: usize,
        sum: usize,
    },
    CombineSend {
        handle: usize,
        sum: usize,
    },
    CombineRecv {
        handle: usize,
        sum: usize,
    },
    Release {
        handle: usize,
    },
    Barrier,
    /// Nothing is in flight: all reports are in.
    Report {
        first: usize,
        last: usize,
    },
}

/// One dispatch of the program; style and request by rank.
pub struct Step {
    pub exchange: Exchange,
    pub styles: Vec<Style>,
    pub asked: Vec<Asked>,
}

/// One combine of the program.
pub struct Sum {
    pub combination: Combination,
    pub manners: Vec<Manner>,
}

pub struct Program {
    pub setup: Setup,
    pub config: deep_ep_buffer_config_t,
    pub experts: Option<Vec<i32>>,
    pub handles: usize,
    pub steps: Vec<Step>,
    pub sums: Vec<Sum>,
    pub actions: Vec<Action>,
    pub seed: u64,
}

impl Program {
    pub fn run(&self) {
        let world = World::with_experts(self.setup.ranks, &self.config, self.experts.as_deref());
        for (rank, expected) in world.ranks.iter().zip(0..) {
            let local: Vec<_> =
                self.setup.local_experts(expected).iter().map(|&expert| expert as i32).collect();
            assert_eq!(rank.buffer.local_experts(), local);
        }
        world.run(|rank| {
            let mut noise = Noise::new(&[self.seed, 99, rank.rank as u64]);
            let handles: Vec<_> = (0..self.handles).map(|_| rank.buffer.handle()).collect();
            let mut received: Vec<Option<(usize, Received)>> = (0..self.handles).map(|_| None).collect();
            for &action in &self.actions {
                if noise.chance(4) {
                    std::thread::sleep(Duration::from_micros(noise.below(400) as u64));
                }
                self.act(rank, &handles, &mut received, action);
            }
        });
    }

    fn act(
        &self,
        rank: &Rank,
        handles: &[Handle],
        received: &mut [Option<(usize, Received)>],
        action: Action,
    ) {
        let me = rank.rank;
        match action {
            Action::Dispatch { handle, exchange } => {
                let step = &self.steps[exchange];
                let got = handles[handle].exchange(me, &step.exchange, step.styles[me], step.asked[me]);
                received[handle] = Some((exchange, got));
            }
            Action::Send { handle, exchange } => {
                let step = &self.steps[exchange];
                handles[handle].send(me, &step.exchange, step.styles[me]);
                received[handle] = None;
            }
            Action::Recv { handle, exchange } => {
                let step = &self.steps[exchange];
                let got = handles[handle].recv(me, &step.exchange, step.asked[me]);
                received[handle] = Some((exchange, got));
            }
            Action::Combine { handle, sum } => {
                self.recheck(me, received[handle].take());
                let sum = &self.sums[sum];
                handles[handle].combine(me, &sum.combination, sum.manners[me]);
            }
            Action::CombineSend { handle, sum } => {
                self.recheck(me, received[handle].take());
                let sum = &self.sums[sum];
                handles[handle].combine_send(me, &sum.combination, sum.manners[me]);
            }
            Action::CombineRecv { handle, sum } => {
                let sum = &self.sums[sum];
                handles[handle].combine_recv(me, &sum.combination, sum.manners[me]);
            }
            Action::Release { handle } => {
                self.recheck(me, received[handle].take());
                ok(handles[handle].release());
            }
            Action::Barrier => ok(rank.buffer.barrier()),
            Action::Report { first, last } => {
                let all: Vec<_> = self.steps[first..last].iter().map(|step| &step.exchange).collect();
                Exchange::check_report(rank, &all);
            }
        }
    }

    /// Rows stay as they are until the handle's combine or release, whatever other ranks do meanwhile.
    fn recheck(&self, rank: usize, received: Option<(usize, Received)>) {
        if let Some((exchange, received)) = received {
            self.steps[exchange].exchange.recheck(rank, &received);
        }
    }
}
