//! Ranks as processes, one of them killed before, in and between operations.

use crate::ffi;
use crate::reference::Layout;
use crate::support::process::{listen, part, say, Group, Part};
use crate::support::roundtrip::step;
use crate::support::send::Style;
use crate::support::sum::{Combination, Manner};
use crate::support::*;
use deepep::capi::*;
use std::time::{Duration, Instant};

const VICTIM: usize = 1;

struct Ready {
    rank: Rank,
    case: Case,
    exchange: Exchange,
    combination: Combination,
    handle: Handle,
}

fn case(ranks: usize, layout: Layout) -> Case {
    Case::new(layout, &vec![3; ranks], 64, 2, 2 * ranks, |r, t, k| ((r + t + 2 * k) % (2 * ranks)) as i64)
}

fn ready(part: &Part, layout: Layout) -> Ready {
    let case = case(part.ranks, layout);
    let mut config = case.config();
    config.first_timeout_ms = 10_000;
    config.timeout_ms = 10_000;
    let rank = Rank::join(part.rank, part.ranks, part.id, &config);
    let exchange = case.exchange();
    let combination = Combination::identity(&exchange);
    let handle = rank.buffer.handle();
    step(&rank, &handle, &exchange, &combination);
    ok(ffi!(deep_ep_buffer_set_timeout(rank.buffer.0, 600)));
    Ready { rank, case, exchange, combination, handle }
}

impl Ready {
    /// The next operation names the victim, and the survivors go on without it.
    fn lose_the_victim(self, part: &Part) {
        let begin = Instant::now();
        let sending = self.exchange.sending(part.rank, Style::default());
        let status = self.handle.dispatch(&sending.input, &mut dispatch_out());
        refused(status, TIMEOUT, &[&VICTIM.to_string()]);
        assert!(begin.elapsed() < Duration::from_secs(3));
        self.go_on(part);
    }

    fn go_on(mut self, part: &Part) {
        assert_eq!(self.rank.buffer.report().1, [VICTIM as i32]);
        let mut alive = vec![1; part.ranks];
        alive[VICTIM] = 0;
        ok(self.rank.buffer.reset(Some(&alive)));
        ok(ffi!(deep_ep_buffer_set_timeout(self.rank.buffer.0, 10_000)));
        self.case.setup.alive = alive.iter().map(|&alive| alive == 1).collect();
        self.case.tokens[VICTIM] = 0;
        self.case.ids[VICTIM].clear();
        let exchange = self.case.exchange();
        let combination = Combination::identity(&exchange);
        for _ in 0..3 {
            step(&self.rank, &self.handle, &exchange, &combination);
        }
        let before = self.rank.buffer.statistics().epoch;
        assert!(before > 6, "epochs go on: {before}");
    }
}

/// Starts a group whose victim is killed after it said `word`; the rest must end well.
fn kill_after(name: &str, ranks: usize, word: &str) {
    let mut group = Group::start(name, ranks);
    assert_eq!(group.children[VICTIM].hear(), word);
    group.children[VICTIM].kill();
    for (rank, member) in group.children.iter_mut().enumerate() {
        if rank != VICTIM {
            member.tell("it is dead");
        }
    }
    group.succeed_but(&[VICTIM]);
}

#[test]
fn a_rank_killed_between_operations_packed() {
    const NAME: &str = "killed::a_rank_killed_between_operations_packed";
    let Some(part) = part() else { return kill_after(NAME, 3, "between") };
    between(&part, Layout::PackedByExpert);
}

#[test]
fn a_rank_killed_between_operations_slotted() {
    const NAME: &str = "killed::a_rank_killed_between_operations_slotted";
    let Some(part) = part() else { return kill_after(NAME, 3, "between") };
    between(&part, Layout::SlottedByExpert);
}

fn between(part: &Part, layout: Layout) {
    let ready = ready(part, layout);
    if part.rank == VICTIM {
        say("between");
    }
    listen();
    ready.lose_the_victim(part);
}

#[test]
fn a_rank_killed_after_its_send_has_still_sent() {
    const NAME: &str = "killed::a_rank_killed_after_its_send_has_still_sent";
    let Some(part) = part() else { return kill_after(NAME, 3, "sent") };
    let ready = ready(&part, Layout::SlottedByRank);
    ready.handle.send(part.rank, &ready.exchange, Style::default());
    if part.rank == VICTIM {
        say("sent");
    }
    listen();
    // The rows of the dead rank had all left: this receive is exact, the next operation is not.
    ready.handle.recv(part.rank, &ready.exchange, Asked::OWN);
    let giving = ready.combination.giving(part.rank, &ready.handle, Manner::default());
    let summing = ready.combination.summing(part.rank, Manner::default());
    let status = ready.handle.combine_call(&giving.input, &summing.output);
    refused(status, TIMEOUT, &[&VICTIM.to_string()]);
    assert!(summing.rows.bytes().iter().all(|&b| b == memory::POISON), "outputs of a failed combine");
    ready.go_on(&part);
}

#[test]
fn a_rank_killed_in_an_operation_is_named() {
    const NAME: &str = "killed::a_rank_killed_in_an_operation_is_named";
    let Some(part) = part() else { return kill_after(NAME, 3, "running") };
    let ready = ready(&part, Layout::PackedByRank);
    ok(ffi!(deep_ep_buffer_set_timeout(ready.rank.buffer.0, 2000)));
    if part.rank == VICTIM {
        say("running");
    }
    // Everybody works at full speed when the victim goes.
    let begin = Instant::now();
    loop {
        let sending = ready.exchange.sending(part.rank, Style::default());
        let mut target = ready.exchange.target(part.rank, Asked::OWN);
        let status = ready.handle.dispatch(&sending.input, &mut target.out);
        if status != SUCCESS {
            refused(status, TIMEOUT, &[&VICTIM.to_string()]);
            break;
        }
        ready.exchange.check(part.rank, target);
        let giving = ready.combination.giving(part.rank, &ready.handle, Manner::default());
        let summing = ready.combination.summing(part.rank, Manner::default());
        let status = ready.handle.combine_call(&giving.input, &summing.output);
        if status != SUCCESS {
            refused(status, TIMEOUT, &[&VICTIM.to_string()]);
            break;
        }
        ready.combination.check(part.rank, &summing);
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
    ready.go_on(&part);
}

#[test]
fn a_rank_killed_before_it_makes_its_buffer_is_named() {
    const NAME: &str = "killed::a_rank_killed_before_it_makes_its_buffer_is_named";
    let Some(part) = part() else { return kill_after(NAME, 3, "joined") };
    let comm = Comm::create(&world::meeting(part.rank, 3, part.id)).unwrap();
    if part.rank == VICTIM {
        say("joined");
    }
    listen();
    let mut config = case(3, Layout::PackedByRank).config();
    config.first_timeout_ms = 700;
    let begin = Instant::now();
    let status = Buffer::create(&comm, &config, None).err().unwrap();
    assert!([TIMEOUT, PEER_FAILED].contains(&status), "{status:?}: {}", last_error());
    refused(status, status, &[&VICTIM.to_string()]);
    assert!(begin.elapsed() < Duration::from_secs(4));
}

#[test]
fn processes_exchange_rows_in_every_layout() {
    const NAME: &str = "killed::processes_exchange_rows_in_every_layout";
    let Some(part) = part() else { return Group::start(NAME, 4).succeed() };
    let comm = Comm::create(&world::meeting(part.rank, 4, part.id)).unwrap();
    let mut comm = Some(comm);
    for layout in crate::reference::LAYOUTS {
        let case = case(4, layout);
        let owner = comm.take().unwrap();
        let buffer = Buffer::create(&owner, &case.config(), None).unwrap();
        let rank = Rank { rank: part.rank, ranks: 4, buffer, comm: owner };
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        let handle = rank.buffer.handle();
        for _ in 0..20 {
            step(&rank, &handle, &exchange, &combination);
        }
        let open = case.exchange().limited(vec![None; 4]);
        handle.exchange(part.rank, &open, Style::default(), Asked::IN_PLACE);
        handle.combine(part.rank, &combination, Manner { in_place: true, ..Manner::default() });
        drop(handle);
        let Rank { buffer, comm: owner, .. } = rank;
        ok(buffer.destroy());
        comm = Some(owner);
    }
}
