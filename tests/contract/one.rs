//! A group of one rank, on which every call can be made from one thread.

use crate::reference::Layout;
use crate::support::exchange::Exchange;
use crate::support::roundtrip::step;
use crate::support::send::{Sending, Style};
use crate::support::sum::{Combination, Giving, Manner, Summing};
use crate::support::*;

pub struct One {
    pub case: Case,
    pub exchange: Exchange,
    pub combination: Combination,
    pub handle: Handle,
    pub world: World,
}

impl One {
    pub fn new(layout: Layout) -> One {
        let case = Case::new(layout, &[3], 64, 2, 4, |_, t, k| ((t + 2 * k) % 4) as i64);
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        let world = case.world();
        let handle = world.ranks[0].buffer.handle();
        One { case, exchange, combination, handle, world }
    }

    pub fn rank(&self) -> &Rank {
        &self.world.ranks[0]
    }

    pub fn sending(&self) -> Sending {
        self.exchange.sending(0, Style::default())
    }

    pub fn giving(&self) -> Giving {
        self.combination.giving(0, &self.handle, Manner::default())
    }

    pub fn summing(&self) -> Summing {
        self.combination.summing(0, Manner::default())
    }

    /// A dispatch, so that a combine has something to combine.
    pub fn dispatched(self) -> One {
        self.handle.exchange(0, &self.exchange, Style::default(), Asked::OWN);
        self
    }

    /// The buffer and the handle work.
    #[track_caller]
    pub fn works(&self) {
        ok(self.handle.release());
        step(self.rank(), &self.handle, &self.exchange, &self.combination);
        self.rank().buffer.expect_no_report();
    }
}
