//! Creating, destroying, and what surrounds it. Cases 92 to 96, 99, 106, 109, 110.

use crate::ffi;
use crate::reference::Layout;
use crate::support::process::{listen, part, say, Group};
use crate::support::roundtrip::step;
use crate::support::sum::Combination;
use crate::support::world::{meeting, unique_id};
use crate::support::*;
use deepep::capi::*;
use std::io::Write;
use std::time::{Duration, Instant};

fn small(ranks: usize) -> Case {
    Case::new(Layout::PackedByRank, &vec![2; ranks], 64, 1, ranks, |_, t, _| (t % ranks) as i64)
}

fn three_steps(part: &crate::support::process::Part) -> (Rank, Handle) {
    let case = small(part.ranks);
    let rank = Rank::join(part.rank, part.ranks, part.id, &case.config());
    let exchange = case.exchange();
    let combination = Combination::identity(&exchange);
    let handle = rank.buffer.handle();
    for _ in 0..3 {
        step(&rank, &handle, &exchange, &combination);
    }
    (rank, handle)
}

#[test]
fn case_092_a_process_that_ends_without_destroy_disturbs_nobody() {
    const NAME: &str = "lifetime::case_092_a_process_that_ends_without_destroy_disturbs_nobody";
    let Some(part) = part() else {
        let mut group = Group::start(NAME, 2);
        assert!(group.children[0].wait(Duration::from_secs(20)).success());
        assert_eq!(group.children[1].hear(), "three steps");
        group.children[1].tell("end");
        let begin = Instant::now();
        group.succeed();
        assert!(begin.elapsed() < Duration::from_secs(5));
        return;
    };
    let (rank, handle) = three_steps(&part);
    if part.rank == 0 {
        handle.leak();
        rank.buffer.leak();
        rank.comm.leak();
        std::process::exit(0);
    }
    say("three steps");
    listen();
}

#[test]
fn case_093_a_create_that_fails_half_way_leaves_nothing_behind() {
    // One of two ranks comes, and a stranger that talks nonsense on the meeting point.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let address = std::ffi::CString::new(format!("127.0.0.1:{port}")).unwrap();
    let id = unique_id(Some(&address));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut config = meeting(0, 2, id);
            config.timeout_ms = 800;
            let status = Comm::create(&config).err().unwrap();
            refused(status, TIMEOUT, &["1"]);
        });
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            if let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", port)) {
                let _ = stream.write_all(&[0x55; 4096]);
            }
        });
    });
}

#[test]
fn case_094_a_thousand_resets_leave_the_buffer_as_new() {
    let case = small(2);
    let exchange = case.exchange();
    let combination = Combination::identity(&exchange);
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<i64>().unwrap() * 4096
    };
    let grown = case.world().run(|rank| {
        let handle = rank.buffer.handle();
        step(rank, &handle, &exchange, &combination);
        let before = resident();
        for i in 0..1000 {
            ok(rank.buffer.reset(None));
            if i % 100 == 0 {
                step(rank, &handle, &exchange, &combination);
            }
        }
        step(rank, &handle, &exchange, &combination);
        resident() - before
    });
    // Other tests run in this process at the same time; a leak of one buffer per reset would be far more.
    assert!(grown.iter().all(|&bytes| bytes < 512 << 20), "{grown:?}");
}

#[test]
fn case_096_the_first_rank_leaves_at_once_and_the_others_later() {
    const NAME: &str = "lifetime::case_096_the_first_rank_leaves_at_once_and_the_others_later";
    let Some(part) = part() else {
        return Group::start(NAME, 4).succeed();
    };
    let (rank, handle) = three_steps(&part);
    if part.rank > 0 {
        std::thread::sleep(Duration::from_millis(600));
    }
    ok(handle.destroy());
    ok(rank.buffer.destroy());
    ok(rank.comm.destroy());
}

#[test]
fn case_092_objects_are_destroyed_in_any_order() {
    for order in 0..6 {
        let case = small(1);
        let mut world = case.world();
        let rank = world.ranks.remove(0);
        let handle = rank.buffer.handle();
        let exchange = case.exchange();
        step(&rank, &handle, &exchange, &Combination::identity(&exchange));
        let (mut handle, mut buffer, mut comm) = (Some(handle), Some(rank.buffer), Some(rank.comm));
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        for which in orders[order] {
            match which {
                0 => ok(handle.take().unwrap().destroy()),
                1 => ok(buffer.take().unwrap().destroy()),
                _ => ok(comm.take().unwrap().destroy()),
            }
        }
    }
}

#[test]
fn case_092_a_handle_outlives_its_buffer_only_to_be_destroyed() {
    let case = small(1);
    let mut world = case.world();
    let rank = world.ranks.remove(0);
    let handle = rank.buffer.handle();
    let exchange = case.exchange();
    ok(rank.buffer.destroy());
    let sending = exchange.sending(0, Default::default());
    refused(handle.dispatch(&sending.input, &mut dispatch_out()), INVALID_STATE, &["buffer"]);
    ok(handle.destroy());
}

#[test]
fn case_099_bytes_that_are_no_unique_id_are_refused() {
    let mut noise = payload::Noise::new(&[99]);
    for _ in 0..20 {
        let mut id = deep_ep_unique_id_t { bytes: [0; 128] };
        id.bytes.fill_with(|| noise.next() as u8);
        let mut config = meeting(1, 2, id);
        config.timeout_ms = 300;
        let status = Comm::create(&config).err().unwrap();
        refused(status, INVALID_ARGUMENT, &["deep_ep_comm_create", "unique_id"]);
    }
}

#[test]
fn case_106_a_group_on_one_machine_starts_promptly() {
    let begin = Instant::now();
    let case = small(4);
    let world = World::meet(4, &case.config());
    case.run_on(&world);
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn case_109_files_of_other_libraries_in_shared_memory_do_not_matter() {
    let names = ["/dev/shm/libep-fake", "/dev/shm/nccl-x", "/dev/shm/deep_ep-0"];
    let made: Vec<_> = names.iter().filter(|name| std::fs::write(name, b"not ours").is_ok()).collect();
    let case = small(2);
    case.run_on(&World::meet(2, &case.config()));
    for name in made {
        assert_eq!(std::fs::read(name).unwrap(), b"not ours");
        std::fs::remove_file(name).unwrap();
    }
}

#[test]
fn case_110_struct_sizes_tell_versions_apart() {
    let comms = Comm::local(1);
    let config = buffer_config(deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK, 1, 1, 1);
    let mut short = config;
    short.struct_size -= 8;
    refused(comms[0].sizes(&short, None).err().unwrap(), ABI_MISMATCH, &["struct_size"]);
    #[repr(C)]
    struct Longer {
        config: deep_ep_buffer_config_t,
        more: [u64; 2],
    }
    let mut longer = Longer { config, more: [0; 2] };
    longer.config.struct_size = std::mem::size_of::<Longer>();
    let mut sizes = buffer_sizes();
    let config: *const Longer = &longer;
    ok(ffi!(deep_ep_buffer_size(comms[0].0, config.cast(), std::ptr::null(), &mut sizes)));
    longer.more[1] = 1;
    let config: *const Longer = &longer;
    let status = ffi!(deep_ep_buffer_size(comms[0].0, config.cast(), std::ptr::null(), &mut sizes));
    refused(status, ABI_MISMATCH, &["deep_ep_buffer_size"]);
}

#[test]
fn case_113_the_counters_tell_the_bytes_of_the_type_that_crossed() {
    use crate::reference::numbers::{BF16, SCALE_FP32};
    use crate::support::exchange::Wire;
    let bytes = |wire: Wire| {
        let mut case = Case::new(Layout::SlottedByRank, &[8, 8], 1024, 2, 4, |_, _, k| 2 * k as i64);
        case.wire = wire;
        let exchange = case.exchange();
        let totals = case.world().run(|rank| {
            let handle = rank.buffer.handle();
            handle.exchange(rank.rank, &exchange, Default::default(), Asked::OWN);
            let totals = rank.buffer.statistics();
            assert_eq!((totals.dispatches, totals.combines, totals.epoch), (1, 0, 1));
            assert_eq!((totals.rows_sent, totals.rows_received), (16, 16));
            let peers: Vec<_> = (0..2).map(|peer| rank.buffer.peer_statistics(peer)).collect();
            assert_eq!(peers.iter().map(|peer| peer.bytes_sent).sum::<u64>(), totals.bytes_sent);
            assert_eq!(peers.iter().map(|peer| peer.rows_received).sum::<u64>(), 16);
            totals
        });
        assert_eq!(totals[0].bytes_sent, totals[0].bytes_received, "both ranks send the same");
        totals[0].bytes_sent
    };
    let plain = bytes(Wire::plain(BF16, 1024));
    let cast = bytes(Wire::cast(BF16, 1024, SCALE_FP32));
    // Rows and scales, and beside each row at most 128 bytes of ids and weights.
    assert!((16 * 2048..16 * (2048 + 128)).contains(&plain), "{plain}");
    assert!((16 * (1024 + 32)..16 * (1024 + 32 + 128)).contains(&cast), "{cast}");
}
