//! The rendezvous: ranks that never come, come twice, disagree, or are strangers.

use crate::support::process::{listen, part, say, Group};
use crate::support::world::{meeting, unique_id};
use crate::support::*;
use deepep::capi::*;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// Every listed rank tries to join on a thread of its own; returns statuses and texts in the order of the list.
fn join(configs: Vec<deep_ep_comm_config_t>) -> Vec<(deep_ep_status_t, String)> {
    struct Sent(deep_ep_comm_config_t);
    // SAFETY: no pointer is set in these configurations.
    unsafe impl Send for Sent {}
    std::thread::scope(|scope| {
        let threads: Vec<_> = configs
            .into_iter()
            .map(|config| {
                let config = Sent(config);
                scope.spawn(move || {
                    let config = config;
                    match Comm::create(&config.0) {
                        Ok(_) => (SUCCESS, String::new()),
                        Err(status) => (status, last_error()),
                    }
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn quick(rank: usize, ranks: usize, id: deep_ep_unique_id_t) -> deep_ep_comm_config_t {
    let mut config = meeting(rank, ranks, id);
    config.timeout_ms = 600;
    config
}

#[test]
fn ranks_that_never_come_are_named_to_all_that_came() {
    let id = unique_id(None);
    let begin = Instant::now();
    let results = join([0, 2, 4].map(|rank| quick(rank, 5, id)).to_vec());
    for (status, text) in results {
        assert_eq!(status, TIMEOUT, "{text}");
        assert!(text.contains('1') && text.contains('3'), "{text}");
    }
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn without_rank_zero_the_others_end_within_their_deadline() {
    let id = unique_id(None);
    let begin = Instant::now();
    for (status, text) in join([1, 2].map(|rank| quick(rank, 3, id)).to_vec()) {
        assert_eq!(status, TIMEOUT, "{text}");
        assert!(text.contains('0'), "{text}");
    }
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_rank_that_comes_twice_is_an_error_that_names_it() {
    let id = unique_id(None);
    let results = join([0, 1, 1].map(|rank| quick(rank, 3, id)).to_vec());
    // Whichever of the two came second learns it; nobody gets a group.
    assert!(results.iter().all(|(status, _)| *status != SUCCESS), "{results:?}");
    assert!(results.iter().any(|(status, _)| *status == PEER_FAILED), "{results:?}");
    for (status, text) in results {
        assert!([PEER_FAILED, TIMEOUT].contains(&status), "{status:?} {text}");
        if status == PEER_FAILED {
            assert!(text.contains('1'), "{text}");
        }
    }
}

#[test]
fn rank_zero_twice_is_an_error() {
    let id = unique_id(None);
    let results = join([0, 0, 1].map(|rank| quick(rank, 3, id)).to_vec());
    assert!(results.iter().all(|(status, _)| *status != SUCCESS), "{results:?}");
}

#[test]
fn ranks_that_disagree_about_the_number_of_ranks_are_told_both_numbers() {
    let id = unique_id(None);
    let results = join(vec![quick(0, 2, id), quick(1, 3, id)]);
    for (status, text) in results {
        assert_eq!(status, CONFIG_MISMATCH, "{text}");
        assert!(text.contains("num_ranks") && text.contains('2') && text.contains('3'), "{text}");
    }
}

#[test]
fn a_stranger_without_the_secret_gets_nothing_and_stops_nothing() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = std::ffi::CString::new(format!("127.0.0.1:{port}")).unwrap();
    let id = unique_id(Some(&address));
    let config = buffer_config(deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK, 1, 2, 1);
    std::thread::scope(|scope| {
        let config = &config;
        scope.spawn(move || ok(Rank::join(0, 2, id, config).buffer.barrier()));
        scope.spawn(move || {
            let mut strangers = Vec::new();
            for i in 0..6 {
                std::thread::sleep(Duration::from_millis(20));
                let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", port)) else { continue };
                stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
                // Silent, talkative, or with a hello whose secret is wrong.
                let _ = match i % 3 {
                    0 => Ok(()),
                    1 => stream.write_all(b"GET / HTTP/1.0\r\n\r\n"),
                    _ => stream.write_all(&[1; 300]),
                };
                let mut answer = Vec::new();
                let _ = stream.read_to_end(&mut answer);
                for secret in id.bytes.windows(8).filter(|bytes| bytes.iter().all(|&b| b != 0)) {
                    assert!(!answer.windows(8).any(|bytes| bytes == secret), "the secret was told");
                }
                strangers.push(stream);
            }
            let mut wrong = id;
            // Same address, other secret: the last bytes that are not zero are part of it or of the address.
            let other = unique_id(Some(&std::ffi::CString::new(format!("127.0.0.1:{port}")).unwrap()));
            wrong.bytes = other.bytes;
            let status = Comm::create(&quick(1, 2, wrong)).err().unwrap();
            assert!([TIMEOUT, PEER_FAILED, INVALID_ARGUMENT].contains(&status), "{status:?}");
            ok(Rank::join(1, 2, id, config).buffer.barrier());
        });
    });
}

#[test]
fn a_group_can_meet_again_and_again() {
    let config = buffer_config(deep_ep_layout_t::DEEP_EP_SLOTTED_BY_RANK, 1, 2, 1);
    for _ in 0..10 {
        World::meet(3, &config).run(|rank| ok(rank.buffer.barrier()));
    }
}

#[test]
fn a_rank_killed_while_it_joins_is_named() {
    const NAME: &str = "joining::a_rank_killed_while_it_joins_is_named";
    let Some(part) = part() else {
        let mut group = Group::start_some(NAME, 3, &[0, 1]);
        assert_eq!(group.children[1].hear(), "joining");
        std::thread::sleep(Duration::from_millis(300));
        group.children[1].kill();
        return group.succeed_but(&[1]);
    };
    // Rank 2 never comes, so the others are still at the rendezvous when rank 1 dies.
    let mut config = meeting(part.rank, 3, part.id);
    config.timeout_ms = 2500;
    if part.rank == 1 {
        say("joining");
    }
    let begin = Instant::now();
    let status = Comm::create(&config).err().unwrap();
    assert!([TIMEOUT, PEER_FAILED].contains(&status), "{status:?}");
    let text = last_error();
    assert!(text.contains('2') || text.contains('1'), "{text}");
    assert!(begin.elapsed() < Duration::from_secs(6));
}

#[test]
fn a_killed_group_leaves_no_name_that_stops_the_next_start() {
    const NAME: &str = "joining::a_killed_group_leaves_no_name_that_stops_the_next_start";
    let Some(part) = part() else {
        let before = shared_names();
        for _ in 0..3 {
            let mut group = Group::start(NAME, 3);
            for member in &mut group.children {
                assert_eq!(member.hear(), "joined");
            }
            group.children.iter_mut().for_each(|member| member.kill());
        }
        let left: Vec<_> = shared_names().into_iter().filter(|name| !before.contains(name)).collect();
        let ours: Vec<_> = left.iter().filter(|name| name.contains("deep")).collect();
        assert!(ours.is_empty(), "left in /dev/shm: {ours:?}");
        return;
    };
    let config = buffer_config(deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK, 4, 3, 1);
    let rank = Rank::join(part.rank, 3, part.id, &config);
    ok(rank.buffer.barrier());
    say("joined");
    listen();
}

fn shared_names() -> Vec<String> {
    std::fs::read_dir("/dev/shm")
        .map(|dir| {
            dir.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect()
        })
        .unwrap_or_default()
}
