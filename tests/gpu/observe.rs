//! What a buffer tells about itself: totals, and the times of phases.

use crate::cases::{patience, Case};
use crate::memory::{Arena, Where};
use crate::ranks::{last_error, ok, Buffer, World};
use deepep::capi::*;
use deepep::mem::monotonic_ns;
use std::time::{Duration, Instant};

/// How late one of two ranks comes.
const LATE: Duration = Duration::from_millis(60);

pub fn totals(buffer: Buffer) -> deep_ep_statistics_t {
    let mut totals = unsafe { std::mem::zeroed() };
    ok(unsafe { deep_ep_statistics_init(&mut totals, size_of::<deep_ep_statistics_t>()) });
    ok(unsafe { deep_ep_buffer_statistics(buffer.0, &mut totals) });
    totals
}

pub fn of_peer(buffer: Buffer, peer: usize) -> deep_ep_peer_statistics_t {
    let mut part = unsafe { std::mem::zeroed() };
    ok(unsafe { deep_ep_peer_statistics_init(&mut part, size_of::<deep_ep_peer_statistics_t>()) });
    ok(unsafe { deep_ep_buffer_peer_statistics(buffer.0, peer as i32, &mut part) });
    part
}

/// Everything but times, which no two runs share.
pub fn counted(buffer: Buffer, ranks: usize) -> (String, Vec<u8>) {
    let mut local_experts = 0;
    ok(unsafe { deep_ep_buffer_local_experts(buffer.0, std::ptr::null_mut(), 0, &mut local_experts) });
    let t = totals(buffer);
    let mut all = vec![t.epoch, t.dispatches, t.combines, t.barriers, t.entry_barriers];
    all.extend([t.rows_sent, t.rows_received, t.bytes_sent, t.bytes_received]);
    for peer in 0..ranks {
        let p = of_peer(buffer, peer);
        all.extend([p.rows_sent, p.rows_received, p.bytes_sent, p.bytes_received]);
    }
    let mut experts = vec![0; local_experts];
    ok(unsafe { deep_ep_buffer_expert_statistics(buffer.0, experts.as_mut_ptr(), local_experts) });
    all.extend(experts);
    ("statistics".into(), all.iter().flat_map(|n| n.to_le_bytes()).collect())
}

fn barrier(buffer: Buffer, arena: &Arena) {
    ok(unsafe { deep_ep_buffer_barrier(buffer.0, arena.stream()) });
}

fn two_ranks(flags: u32, run: impl Fn(usize, Buffer, &Arena) + Sync) {
    let world = World::create(Where::Device, 2).unwrap();
    let mut config = Case::default().config(Where::Device);
    config.flags = flags;
    let buffers = world.buffers(&config, None);
    std::thread::scope(|scope| {
        for (rank, &buffer) in buffers.iter().enumerate() {
            let run = &run;
            scope.spawn(move || run(rank, buffer, &Arena::new(Where::Device, rank)));
        }
    });
    for buffer in buffers {
        ok(unsafe { deep_ep_buffer_destroy(buffer.0) });
    }
}

/// The rank that waits can be asked meanwhile, and tells afterwards for whom it waited.
pub fn waits() {
    two_ranks(0, |rank, buffer, arena| {
        barrier(buffer, arena);
        arena.wait();
        if rank == 1 {
            std::thread::sleep(LATE);
        }
        barrier(buffer, arena);
        if rank == 0 {
            std::thread::sleep(LATE / 3);
            let start = Instant::now();
            let meanwhile = totals(buffer);
            assert!(start.elapsed() < LATE / 3, "{:?}", start.elapsed());
            assert_eq!((meanwhile.epoch, meanwhile.barriers), (2, 1));
        }
        arena.wait();
        let (all, mine, other) = (totals(buffer), of_peer(buffer, rank), of_peer(buffer, 1 - rank));
        assert_eq!((all.epoch, all.barriers), (2, 2));
        if rank == 0 {
            let late = LATE.as_nanos() as u64;
            for waited in [all.wait_ns_last, other.wait_ns_last] {
                assert!((late / 2..late * 20).contains(&waited), "{waited} ns");
            }
            assert!(mine.wait_ns_last < late / 10, "{} ns for itself", mine.wait_ns_last);
            assert!(all.wait_ns_total >= all.wait_ns_last && other.wait_ns_total >= other.wait_ns_last);
        } else {
            assert!(all.wait_ns_last < LATE.as_nanos() as u64 / 2, "{} ns", all.wait_ns_last);
        }
    });
}

#[derive(Debug)]
struct Event {
    name: String,
    epoch: u64,
    begin_us: f64,
    end_us: f64,
}

fn read_trace(buffer: Buffer) -> (Vec<Event>, u64) {
    let mut needed = 0;
    ok(unsafe { deep_ep_buffer_trace(buffer.0, std::ptr::null_mut(), 0, &mut needed) });
    let mut text = vec![0u8; needed + 4096];
    let status = unsafe { deep_ep_buffer_trace(buffer.0, text.as_mut_ptr().cast(), text.len(), &mut needed) };
    assert_eq!(status, deep_ep_status_t::DEEP_EP_SUCCESS, "{}", last_error());
    let text = String::from_utf8(text[..needed - 1].to_vec()).unwrap();
    let field = |line: &str, name: &str| {
        let start = line.find(&format!("\"{name}\":")).unwrap() + name.len() + 3;
        line[start..].trim_start_matches('"').split(['"', ',', '}']).next().unwrap().to_string()
    };
    let number = |line: &str, name: &str| field(line, name).parse::<f64>().unwrap();
    let event = |line: &str| {
        let (begin_us, length) = (number(line, "ts"), number(line, "dur"));
        let (name, epoch) = (field(line, "name"), number(line, "epoch") as u64);
        Event { name, epoch, begin_us, end_us: begin_us + length }
    };
    let events = text.lines().filter(|line| line.contains("\"ph\":\"X\"")).map(event).collect();
    (events, number(text.lines().next().unwrap(), "lost_events") as u64)
}

/// The phases of both ranks lie where the host's clock says.
pub fn traces() {
    let seen = std::sync::Mutex::new(vec![(0.0, 0.0); 2]);
    let created = monotonic_ns() as f64 / 1e3;
    two_ranks(DEEP_EP_BUFFER_TRACE, |rank, buffer, arena| {
        barrier(buffer, arena);
        arena.wait();
        if rank == 1 {
            std::thread::sleep(LATE);
        }
        let begun = monotonic_ns() as f64 / 1e3;
        barrier(buffer, arena);
        arena.wait();
        let ended = monotonic_ns() as f64 / 1e3;
        let (events, lost) = read_trace(buffer);
        let names: Vec<_> = events.iter().map(|event| (event.name.as_str(), event.epoch)).collect();
        let of = |epoch| [("barrier entry", epoch), ("barrier end", epoch)];
        assert_eq!((&names[..], lost), (&[of(1), of(2)].concat()[..], 0));
        let entry = &events[2];
        let error = 200.0 * f64::from(patience()); // of the comparison of clocks, and of launches
        assert!(created - error < events[0].begin_us, "{created} {events:?}");
        assert!(begun - error < entry.begin_us && entry.end_us < ended + error, "{begun} {events:?} {ended}");
        let late = LATE.as_micros() as f64;
        let waited = entry.end_us - entry.begin_us;
        assert!(if rank == 0 { waited > late / 2.0 } else { waited < late / 2.0 }, "rank {rank}: {events:?}");
        seen.lock().unwrap()[rank] = (entry.begin_us, entry.end_us);
    });
    // Neither can end the entry before the other has begun it, on the common clock.
    let (seen, close) = (seen.into_inner().unwrap(), 50.0 * f64::from(patience()));
    assert!(seen[0].1 + close > seen[1].0 && seen[1].1 + close > seen[0].0, "{seen:?}");
    assert!((seen[0].1 - seen[1].1).abs() < close, "{seen:?}");
}

/// Of more events than the ring takes, the newest are told and the others counted.
pub fn lost_events() {
    const BARRIERS: u64 = 33_000; // two events each
    two_ranks(DEEP_EP_BUFFER_TRACE, |_, buffer, arena| {
        (0..BARRIERS).for_each(|_| barrier(buffer, arena));
        arena.wait();
        let (events, lost) = read_trace(buffer);
        assert_eq!(events.len() as u64 + lost, 2 * BARRIERS);
        assert!((464..1000).contains(&lost), "{lost} lost");
        assert_eq!(events.last().unwrap().epoch, BARRIERS);
    });
}

/// A traced dispatch and combine have all their phases, in order, also in halves.
pub fn phases(case: &Case, events_of: &[(&str, usize)], buffer: Buffer) {
    let (events, _) = read_trace(buffer);
    for (name, most) in events_of {
        let found = events.iter().filter(|event| event.name == *name).count();
        assert!(found > 0 && found <= *most * case.rounds, "{name}: {found} of {events:?}");
    }
    for pair in events.windows(2).filter(|pair| pair[0].epoch == pair[1].epoch) {
        assert!(pair[0].begin_us <= pair[0].end_us && pair[0].end_us <= pair[1].end_us + 0.001, "{pair:?}");
    }
}
