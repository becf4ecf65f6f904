//! Ranks as threads: the rendezvous, its failures and its disturbers. Ranks as processes are in tests/boot.rs.

use super::client;
use super::exchange_tests::StopAtEnd;
use super::host::Host;
use super::server::{Listener, Server};
use super::sock;
use super::wire::{Hello, Purpose, Seal, PROTOCOL};
use super::{Group, UniqueId};
use crate::error::{Error, Result, Status};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Runs `rank` on a thread for each of `ranks`.
fn each<T: Send>(ranks: &[u32], rank: impl Fn(u32) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.iter().map(|number| scope.spawn(|| rank(*number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// What the ranks of a new group must be able to do.
fn use_group(group: &Group) {
    let all = group.all_gather(&[group.rank() as u8; 3], None, LONG).unwrap();
    let expected: Vec<Vec<u8>> = (0..group.num_ranks()).map(|rank| vec![rank as u8; 3]).collect();
    assert_eq!(all, expected);
}

/// The failures of all ranks, which must be alike in status and ranks.
fn failure(results: Vec<Result<Group>>) -> Error {
    let errors: Vec<Error> = results.into_iter().map(|result| result.map(drop).unwrap_err()).collect();
    for error in &errors {
        assert_eq!((error.status, &error.ranks), (errors[0].status, &errors[0].ranks), "{errors:?}");
    }
    errors[0].clone()
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn every_form_of_address_makes_a_group() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let forms = [
        None,
        Some(format!("127.0.0.1:{}", free_port())),
        Some(format!("localhost:{}", free_port())),
        Some("127.0.0.1:0".to_owned()),
        Some(format!("unix:{}", path.display())),
        Some(format!("unix:@deepep-test-{}", std::process::id())),
    ];
    for (form, num_ranks) in forms.iter().zip([2, 3, 4, 2, 5, 3]) {
        let id = UniqueId::create(form.as_deref()).unwrap();
        let ranks: Vec<u32> = (0..num_ranks).collect();
        each(&ranks, |rank| use_group(&Group::join(rank, num_ranks, &id, LONG).unwrap()));
        assert!(!path.exists());
    }
}

#[test]
fn one_rank_needs_nobody() {
    let id = UniqueId::create(Some("192.0.2.1:1")).unwrap(); // cannot be listened at
    let group = Group::join(0, 1, &id, millis(0)).unwrap();
    use_group(&group);
    assert_eq!(Group::join(1, 1, &id, LONG).map(drop).unwrap_err().status, Status::DEEP_EP_INVALID_ARGUMENT);
    assert_eq!(Group::join(0, 0, &id, LONG).map(drop).unwrap_err().status, Status::DEEP_EP_INVALID_ARGUMENT);
    let error = Group::join(0, 2, &id, LONG).map(drop).unwrap_err();
    assert!(error.status == Status::DEEP_EP_SYSTEM && error.text.contains("192.0.2.1:1"), "{error}");
}

#[test]
fn seventy_two_ranks() {
    let id = UniqueId::create(None).unwrap();
    let ranks: Vec<u32> = (0..72).collect();
    each(&ranks, |rank| use_group(&Group::join(rank, 72, &id, LONG).unwrap()));
}

#[test]
fn late_ranks_are_awaited() {
    for late in [0, 1] {
        let id = UniqueId::create(None).unwrap();
        each(&[0, 1, 2], |rank| {
            if rank == late {
                std::thread::sleep(millis(150));
            }
            use_group(&Group::join(rank, 3, &id, LONG).unwrap());
        });
    }
}

#[test]
fn missing_ranks_are_named_to_all() {
    let id = UniqueId::create(None).unwrap();
    let error = failure(each(&[0, 2, 4], |rank| Group::join(rank, 5, &id, millis(1500))));
    assert_eq!((error.status, &error.ranks[..]), (Status::DEEP_EP_TIMEOUT, &[1, 3][..]));
    assert!(error.text.starts_with("ranks 1 and 3 of 5 "), "{error}");
    // The least patient rank decides, so that it too learns who is missing.
    let start = Instant::now();
    let patience = |rank| if rank == 2 { millis(1500) } else { LONG };
    let error = failure(each(&[0, 1, 2], |rank| Group::join(rank, 4, &id, patience(rank))));
    assert_eq!((error.status, &error.ranks[..]), (Status::DEEP_EP_TIMEOUT, &[3][..]));
    assert!(start.elapsed() < LONG / 2);
    let error = failure(each(&[1, 2], |rank| Group::join(rank, 3, &id, millis(100))));
    assert_eq!((error.status, &error.ranks[..]), (Status::DEEP_EP_TIMEOUT, &[0][..]));
}

/// Rank 0's thread was held up until the deadline had passed.
#[test]
fn who_has_come_by_the_deadline_is_heard() {
    let id = UniqueId::create(None).unwrap();
    let hello = |rank: u32, num_ranks| Hello {
        version: PROTOCOL,
        rank,
        num_ranks,
        patience_ms: 0,
        host: Host::current(),
        mailbox: [rank as u8; 16],
    };
    let later = Instant::now() + LONG;
    let never = || -> Option<Error> { unreachable!("the address is free") };
    std::thread::scope(|scope| {
        let listener = Listener::obtain(&id, later, never).unwrap();
        let ranks = [1, 2].map(|rank| {
            scope.spawn({
                let (id, hello) = (&id, hello(rank, 3));
                move || client::meet(id, &hello, later).map(drop)
            })
        });
        std::thread::sleep(millis(300));
        let me = hello(0, 3);
        assert!(Server::new(&id, &me, listener, Instant::now()).run().is_ok());
        ranks.into_iter().for_each(|rank| rank.join().unwrap().unwrap());
    });
}

#[test]
fn a_rank_that_comes_twice_is_named_to_all() {
    // As many as expected, so that somebody is missing: without that the group is complete before, and the
    // one too many finds nobody.
    for (ranks, twice) in [(&[0, 1, 1][..], 1), (&[0, 2, 2, 3], 2), (&[0, 0, 1], 0), (&[3, 0, 1, 0], 0)] {
        let id = UniqueId::create(None).unwrap();
        let start = Instant::now();
        let error = failure(each(ranks, |rank| {
            if rank == 3 {
                std::thread::sleep(millis(100)); // comes after the others have failed
            }
            Group::join(rank, ranks.len() as u32, &id, LONG)
        }));
        assert_eq!((error.status, &error.ranks[..]), (Status::DEEP_EP_PEER_FAILED, &[twice][..]), "{error}");
        assert!(error.text.contains("came twice"), "{error}");
        assert!(start.elapsed() < LONG / 2);
    }
}

#[test]
fn different_numbers_of_ranks_are_named_to_all() {
    let id = UniqueId::create(None).unwrap();
    let error = failure(each(&[0, 1, 2], |rank| Group::join(rank, if rank == 2 { 4 } else { 3 }, &id, LONG)));
    assert_eq!((error.status, &error.ranks[..]), (Status::DEEP_EP_CONFIG_MISMATCH, &[2][..]));
    assert_eq!(error.text, "num_ranks: rank 2 passed 4, rank 0 passed 3");
}

#[test]
fn another_host_or_version_is_named_to_all() {
    let other = Host { id: [9; 16], label: "elsewhere".to_owned() };
    let id = UniqueId::create(None).unwrap();
    let error = failure(each(&[0, 1, 2], |rank| {
        let host = if rank == 1 { other.clone() } else { Host::current() };
        Group::join_from(rank, 3, &id, LONG, host, PROTOCOL)
    }));
    assert_eq!((error.status, &error.ranks[..]), (Status::DEEP_EP_PEER_UNREACHABLE, &[1][..]));
    assert!(error.text.contains("rank 1 is on host elsewhere"), "{error}");
    let error = failure(each(&[0, 1, 2], |rank| {
        let version = if rank == 2 { PROTOCOL + 1 } else { PROTOCOL };
        Group::join_from(rank, 3, &id, LONG, Host::current(), version)
    }));
    assert_eq!((error.status, &error.ranks[..]), (Status::DEEP_EP_ABI_MISMATCH, &[2][..]));
}

/// Connects again and again and behaves badly in the given way, until told to stop.
fn disturb(path: &str, stop: &AtomicBool, way: u32) {
    let mut kept = Vec::new();
    let mut count = 0u32;
    while !stop.load(Ordering::Relaxed) {
        if let Ok(mut stream) = UnixStream::connect(path) {
            count += 1;
            let _ = match way {
                0 => Ok(()),                                                              // says nothing
                1 => stream.write_all(&[count as u8; 4000]), // garbage, and too much
                2 => stream.write_all(b"GET / HTTP/1.1\r\n\r\n"), // another protocol
                _ => stream.write_all(&[0; 16]).and_then(|()| stream.write_all(b"dEP1")), // slow bytes
            };
            kept.push(stream);
            if way == 1 || kept.len() > 200 {
                kept.clear();
            }
        }
        std::thread::sleep(millis(1));
        for stream in kept.iter_mut().filter(|_| way == 3) {
            let _ = stream.write(&[1]);
        }
    }
}

#[test]
fn strangers_do_not_disturb() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket").display().to_string();
    let id = UniqueId::create(Some(&format!("unix:{path}"))).unwrap();
    let wrong = UniqueId::create(Some(&format!("unix:{path}"))).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for way in 0..4 {
            let (path, stop) = (&path, &stop);
            scope.spawn(move || disturb(path, stop, way));
        }
        let _stop = StopAtEnd(&stop);
        // A rank of another group, whose secret is wrong, never gets in and is told nothing.
        let stranger = scope.spawn(|| Group::join(1, 3, &wrong, millis(600)).map(drop).unwrap_err());
        let start = Instant::now();
        each(&[0, 1, 2], |rank| {
            if rank == 2 {
                std::thread::sleep(millis(300));
            }
            use_group(&Group::join(rank, 3, &id, LONG).unwrap());
        });
        assert!(start.elapsed() < millis(2500), "the strangers held the group up: {:?}", start.elapsed());
        let error = stranger.join().unwrap();
        assert_eq!((error.status, &error.ranks[..]), (Status::DEEP_EP_TIMEOUT, &[0][..]), "{error}");
    });
}

#[test]
fn silent_connections_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let id = UniqueId::create(Some(&format!("unix:{}", path.display()))).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| use_group(&Group::join(0, 2, &id, LONG).unwrap()));
        let start = Instant::now();
        let mut streams = Vec::new();
        while streams.len() < 300 {
            assert!(start.elapsed() < LONG);
            streams.extend(UnixStream::connect(&path)); // refused until rank 0 listens
        }
        // The first is closed to make room, long before its time is up: its nonce, then the end.
        let mut heard = Vec::new();
        streams[0].set_read_timeout(Some(LONG)).unwrap();
        streams[0].read_to_end(&mut heard).unwrap();
        assert!(heard.len() <= 16 && start.elapsed() < millis(2500), "{:?}", start.elapsed());
        use_group(&Group::join(1, 2, &id, LONG).unwrap());
    });
}

#[test]
fn an_impostor_at_the_address_learns_nothing_it_can_use() {
    let name = format!("deepep-impostor-{}", std::process::id());
    let id = UniqueId::create(Some(&format!("unix:@{name}"))).unwrap();
    let listener = sock::listen(&id.sock_addr()).unwrap();
    let heard = std::thread::scope(|scope| {
        let rank = scope.spawn(|| Group::join(1, 2, &id, millis(300)).map(drop).unwrap_err());
        let mut conn = loop {
            if let Some(conn) = sock::accept(&listener).unwrap() {
                break conn;
            }
            std::thread::sleep(millis(1));
        };
        // It says what rank 0 would, as far as it can without the secret.
        conn.send_all(&[5; 16], Instant::now() + LONG).unwrap();
        while conn.input.len() < 100 {
            conn.wait_fill(4096, Instant::now() + LONG).unwrap();
        }
        let client = *conn.input.first_chunk::<16>().unwrap();
        let forged = Seal { secret: [0; 16], server: [5; 16], client };
        conn.send_all(&forged.frame(Purpose::Welcome, &[]), Instant::now() + LONG).unwrap();
        let error = rank.join().unwrap();
        assert_eq!((error.status, &error.ranks[..]), (Status::DEEP_EP_TIMEOUT, &[0][..]), "{error}");
        conn.input.clone()
    });
    assert!(!heard.windows(16).any(|window| window == id.secret()), "the secret went over the line");
    // And rank 0 says that the address is taken.
    let error = Group::join(0, 2, &id, millis(100)).map(drop).unwrap_err();
    assert!(error.status == Status::DEEP_EP_SYSTEM && error.text.contains("in use"), "{error}");
}

/// An all-gather among threads, as a caller would bring one.
struct Callback {
    blobs: Mutex<Vec<Vec<u8>>>,
    barrier: Barrier,
}

impl Callback {
    fn new(num_ranks: usize) -> Self {
        Callback { blobs: Mutex::new(vec![Vec::new(); num_ranks]), barrier: Barrier::new(num_ranks) }
    }

    fn gather(&self, rank: u32, mine: &[u8]) -> Vec<u8> {
        self.blobs.lock().unwrap()[rank as usize] = mine.to_vec();
        self.barrier.wait();
        let all = self.blobs.lock().unwrap().concat();
        self.barrier.wait();
        all
    }
}

#[test]
fn the_callers_all_gather_makes_a_group() {
    for num_ranks in 1..=5 {
        let callback = Callback::new(num_ranks as usize);
        let ranks: Vec<u32> = (0..num_ranks).collect();
        each(&ranks, |rank| {
            let mut gather = |mine: &[u8]| Ok(callback.gather(rank, mine));
            use_group(&Group::join_with(rank, num_ranks, &mut gather, LONG).unwrap());
        });
    }
}

#[test]
fn bad_blobs_name_their_rank() {
    // What rank 2's blob is turned into, and what every other rank makes of it.
    type Spoil = fn(&mut Vec<u8>);
    let cases: [(Spoil, Status); 6] = [
        (
            |blob| blob.iter_mut().enumerate().for_each(|(i, b)| *b = (i * 37 + 11) as u8),
            Status::DEEP_EP_PEER_FAILED,
        ),
        (|blob| blob.fill(0), Status::DEEP_EP_PEER_FAILED),
        (|blob| blob[4] = 200, Status::DEEP_EP_PEER_FAILED), // no status
        (|blob| blob[28] = 1, Status::DEEP_EP_PEER_FAILED),  // calls itself rank 1
        (|blob| blob[32] = 9, Status::DEEP_EP_CONFIG_MISMATCH),
        (|blob| blob[56] ^= 1, Status::DEEP_EP_PEER_UNREACHABLE),
    ];
    for (spoil, status) in cases {
        let callback = Callback::new(3);
        let errors = each(&[0, 1, 2], |rank| {
            let mut gather = |mine: &[u8]| {
                let mut mine = mine.to_vec();
                if rank == 2 {
                    spoil(&mut mine);
                }
                Ok(callback.gather(rank, &mine))
            };
            Group::join_with(rank, 3, &mut gather, millis(300)).map(drop).unwrap_err()
        });
        for error in &errors[..2] {
            assert_eq!((error.status, &error.ranks[..]), (status, &[2][..]), "{error}");
        }
    }
    let mut short = |_: &[u8]| Ok(vec![0; 64]);
    let error = Group::join_with(0, 2, &mut short, LONG).map(drop).unwrap_err();
    assert!(error.status == Status::DEEP_EP_INVALID_ARGUMENT && error.text.contains("64 bytes"), "{error}");
    let mut fails = |_: &[u8]| Err(Error::invalid_argument("theirs"));
    assert_eq!(Group::join_with(0, 2, &mut fails, LONG).map(drop).unwrap_err().text, "theirs");
}

#[test]
fn a_rank_that_leaves_after_the_callback_is_named() {
    let callback = Callback::new(3);
    let results = each(&[0, 1, 2], |rank| {
        let mut gather = |mine: &[u8]| {
            let all = callback.gather(rank, mine);
            if rank == 2 {
                Err(Error::invalid_state("leaves"))
            } else {
                Ok(all)
            }
        };
        Group::join_with(rank, 3, &mut gather, millis(100))
    });
    for error in results.into_iter().take(2).map(|result| result.map(drop).unwrap_err()) {
        let fits = matches!(error.status, Status::DEEP_EP_PEER_FAILED | Status::DEEP_EP_TIMEOUT);
        assert!(fits && error.ranks.contains(&2), "{error:?}");
    }
}
