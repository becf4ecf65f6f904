//! Memory, maps and descriptors, each test in a process of its own.

use crate::reference::LAYOUTS;
use crate::support::process::{part, Group};
use crate::support::roundtrip::step;
use crate::support::sum::Combination;
use crate::support::*;

fn maps() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/maps").unwrap();
    text.lines().map(str::to_string).collect()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn resident() -> i64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<i64>().unwrap() * 4096
}

/// Bytes of shared mappings.
fn shared_bytes() -> i64 {
    let mut total = 0;
    for line in maps() {
        let mut fields = line.split_whitespace();
        let (range, flags) = (fields.next().unwrap(), fields.next().unwrap());
        if flags.ends_with('s') {
            let (begin, end) = range.split_once('-').unwrap();
            total += i64::from_str_radix(end, 16).unwrap() - i64::from_str_radix(begin, 16).unwrap();
        }
    }
    total
}

fn cycle(layout: crate::reference::Layout) {
    let case = Case::new(layout, &[3, 2], 64, 2, 4, |r, t, k| ((r + t + 2 * k) % 4) as i64);
    let world = World::meet(2, &case.config());
    let exchange = case.exchange();
    let combination = Combination::identity(&exchange);
    world.run(|rank| {
        let handle = rank.buffer.handle();
        step(rank, &handle, &exchange, &combination);
    });
}

#[test]
fn two_hundred_cycles_leave_memory_and_descriptors_where_they_were() {
    const NAME: &str = "resources::two_hundred_cycles_leave_memory_and_descriptors_where_they_were";
    if part().is_none() {
        return Group::start(NAME, 1).succeed();
    }
    for layout in LAYOUTS {
        for _ in 0..5 {
            cycle(layout);
        }
    }
    let (maps_before, fds, tasks, memory) = (maps().len(), descriptors(), threads(), resident());
    for i in 0..200 {
        cycle(LAYOUTS[i % 4]);
    }
    assert_eq!(descriptors(), fds, "descriptors");
    assert_eq!(threads(), tasks, "threads");
    let grown = maps().len() as i64 - maps_before as i64;
    assert!(grown <= 4, "{grown} more mappings: {:#?}", maps());
    let grown = resident() - memory;
    assert!(grown < 8 << 20, "{grown} more bytes in memory");
}

#[test]
fn a_buffer_maps_what_the_size_function_says() {
    const NAME: &str = "resources::a_buffer_maps_what_the_size_function_says";
    if part().is_none() {
        return Group::start(NAME, 1).succeed();
    }
    for layout in LAYOUTS {
        for tokens in [1, 7, 300] {
            let case = Case::new(layout, &[tokens], 512, 2, 4, |_, t, k| ((t + k) % 4) as i64);
            let comms = Comm::local(1);
            let config = case.config();
            let sizes = comms[0].sizes(&config, None).unwrap_or_else(|_| panic!("{}", last_error()));
            let before = shared_bytes();
            let buffers = Buffer::local(&comms, &config, None).unwrap();
            let mapped = shared_bytes() - before;
            assert_eq!(mapped, sizes.total_symmetric, "{layout:?}, {tokens} tokens: shared bytes");
            drop(buffers);
            assert_eq!(shared_bytes(), before, "{layout:?}: destroy gives all of it back");
        }
    }
}

#[test]
fn a_create_that_fails_gives_everything_back() {
    const NAME: &str = "resources::a_create_that_fails_gives_everything_back";
    if part().is_none() {
        return Group::start(NAME, 1).succeed();
    }
    let fail = || {
        let id = world::unique_id(None);
        let mut config = world::meeting(0, 2, id);
        config.timeout_ms = 20;
        assert_eq!(Comm::create(&config).err(), Some(TIMEOUT));
        let comms = Comm::local(2);
        let mut config = buffer_config(deepep::capi::deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK, 4, 4, 2);
        config.first_timeout_ms = 20;
        assert_eq!(Buffer::create(&comms[0], &config, None).err(), Some(TIMEOUT));
    };
    for _ in 0..3 {
        fail();
    }
    let (fds, tasks, shared) = (descriptors(), threads(), shared_bytes());
    for _ in 0..20 {
        fail();
    }
    assert_eq!((descriptors(), threads(), shared_bytes()), (fds, tasks, shared));
}

#[test]
fn operations_change_nothing_of_the_process() {
    const NAME: &str = "resources::operations_change_nothing_of_the_process";
    if part().is_none() {
        return Group::start(NAME, 1).succeed();
    }
    let state = || {
        // Of this thread: the main one, which the test runner owns, may be starting a thread just now.
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let masks = ["SigBlk", "SigIgn", "SigCgt"];
        let is_mask = |line: &&str| masks.iter().any(|mask| line.starts_with(mask));
        let signals: Vec<_> = status.lines().filter(is_mask).map(str::to_string).collect();
        let environment: Vec<_> = std::env::vars_os().collect();
        (signals, environment, std::env::current_dir().unwrap())
    };
    let before = state();
    cycle(LAYOUTS[0]);
    assert!(state() == before, "signals, environment and directory stay");
}
