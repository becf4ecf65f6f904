//! deep_ep_unique_id_create and deep_ep_comm_*.

use super::structs::check_sizes;
use crate::ffi;
use crate::support::world::{meeting, unique_id};
use crate::support::*;
use deepep::capi::*;
use std::ffi::CString;
use std::ptr::{null, null_mut};

#[test]
fn unique_id_create_refuses_null_and_addresses_of_no_known_form() {
    refused(ffi!(deep_ep_unique_id_create(null(), null_mut())), INVALID_ARGUMENT, &["out", "null"]);
    let long = format!("unix:/{}", "x".repeat(200));
    let host = format!("{}:99", "h".repeat(300));
    for address in ["nonsense", "host:", "host:notaport", "host:70000", "unix:", "ftp://x:1", &long, &host] {
        let text = CString::new(address).unwrap();
        let mut id = deep_ep_unique_id_t { bytes: [3; 128] };
        let status = ffi!(deep_ep_unique_id_create(text.as_ptr(), &mut id));
        refused(status, INVALID_ARGUMENT, &["deep_ep_unique_id_create", "address"]);
        assert!(id.bytes == [3; 128], "{address}: out is written only on success");
    }
}

#[test]
fn unique_ids_differ_and_every_form_of_address_is_taken() {
    let a = unique_id(None);
    assert!(a.bytes != unique_id(None).bytes && a.bytes != [0; 128]);
    for address in ["", "127.0.0.1:5555", "localhost:1", "unix:/tmp/deep-ep-test", "unix:@deep-ep-test"] {
        unique_id(Some(&CString::new(address).unwrap()));
    }
}

#[test]
fn ranks_meet_at_every_form_of_address() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let path = std::env::temp_dir().join(format!("deep-ep-{}", std::process::id()));
    for address in [
        format!("127.0.0.1:{port}"),
        format!("unix:{}", path.display()),
        format!("unix:@deep-ep-test-{}", std::process::id()),
    ] {
        let id = unique_id(Some(&CString::new(address).unwrap()));
        let config = buffer_config(deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK, 1, 3, 1);
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let config = &config;
                scope.spawn(move || ok(Rank::join(rank, 3, id, config).buffer.barrier()));
            }
        });
    }
    assert!(!path.exists(), "the socket's name is gone after the meeting");
}

#[test]
fn comm_create_checks_its_arguments() {
    let mut out = null_mut();
    refused(ffi!(deep_ep_comm_create(null(), &mut out)), INVALID_ARGUMENT, &["config", "null"]);
    let good = meeting(0, 1, unique_id(None));
    refused(ffi!(deep_ep_comm_create(&good, null_mut())), INVALID_ARGUMENT, &["out", "null"]);
    type Change = fn(&mut deep_ep_comm_config_t);
    let changes: [(Change, &[&str]); 8] = [
        (|c| c.rank = -1, &["rank", "-1"]),
        (|c| c.rank = 1, &["rank", "1"]),
        (|c| c.num_ranks = 0, &["num_ranks", "0", "1024"]),
        (|c| c.num_ranks = 1025, &["num_ranks", "1025", "1024"]),
        (|c| c.num_ranks = -7, &["num_ranks", "-7"]),
        (|c| c.backend = 3, &["backend", "3"]),
        (|c| c.reserved = 1, &["reserved", "1"]),
        (
            |c| {
                c.num_ranks = 2;
                c.unique_id.bytes = [0; 128];
            },
            &["unique_id", "allgather"],
        ),
    ];
    for (change, words) in changes {
        let mut config = good;
        change(&mut config);
        let status = Comm::create(&config).err().unwrap();
        refused(status, INVALID_ARGUMENT, &[&["deep_ep_comm_create"], words].concat());
    }
    let mut cuda = good;
    cuda.backend = deep_ep_backend_t::DEEP_EP_BACKEND_CUDA as u32;
    refused(Comm::create(&cuda).err().unwrap(), UNSUPPORTED, &["backend"]);
    drop(Comm::create(&good).unwrap());
}

#[test]
fn comm_create_checks_the_struct_size() {
    let mut made = Vec::new();
    let mut config = meeting(0, 1, unique_id(None));
    config.backend = 0;
    check_sizes(
        config,
        |c, size| c.struct_size = size,
        |c| {
            let mut out = null_mut();
            let status = ffi!(deep_ep_comm_create(c, &mut out));
            made.push(Comm(out));
            status
        },
        "deep_ep_comm_create",
    );
}

#[test]
fn comm_create_local_checks_its_arguments() {
    let mut out = [null_mut(); 4];
    let config = comm_config();
    refused(
        ffi!(deep_ep_comm_create_local(null(), null(), out.as_mut_ptr())),
        INVALID_ARGUMENT,
        &["config", "null"],
    );
    refused(ffi!(deep_ep_comm_create_local(&config, null(), null_mut())), INVALID_ARGUMENT, &["out", "null"]);
    let mut cuda = config;
    cuda.backend = deep_ep_backend_t::DEEP_EP_BACKEND_CUDA as u32;
    let status = ffi!(deep_ep_comm_create_local(&cuda, null(), out.as_mut_ptr()));
    refused(status, UNSUPPORTED, &["backend"]);
    let mut odd = config;
    odd.backend = 77;
    let status = ffi!(deep_ep_comm_create_local(&odd, null(), out.as_mut_ptr()));
    refused(status, INVALID_ARGUMENT, &["backend", "77"]);
    assert!(out.iter().all(|p| p.is_null()));
    let mut made = Vec::new();
    check_sizes(
        config,
        |c, size| c.struct_size = size,
        |c| {
            let mut out = null_mut();
            let status = ffi!(deep_ep_comm_create_local(c, null(), &mut out));
            made.push(Comm(out));
            status
        },
        "deep_ep_comm_create_local",
    );
}

#[test]
fn comm_abort_and_destroy_take_null_as_documented() {
    refused(ffi!(deep_ep_comm_abort(null(), null())), INVALID_ARGUMENT, &["comm", "null"]);
    ok(ffi!(deep_ep_comm_destroy(null_mut())));
    let comms = Comm::local(1);
    ok(ffi!(deep_ep_comm_abort(comms[0].0, null())));
}

#[test]
fn comm_info_tells_rank_size_and_backend() {
    let comms = Comm::local(3);
    let (mut rank, mut ranks, mut backend) = (-1, -1, 99);
    refused(
        ffi!(deep_ep_comm_info(null(), &mut rank, &mut ranks, &mut backend)),
        INVALID_ARGUMENT,
        &["comm", "null"],
    );
    for (expected, comm) in comms.iter().enumerate() {
        ok(ffi!(deep_ep_comm_info(comm.0, &mut rank, &mut ranks, &mut backend)));
        assert_eq!((rank, ranks), (expected as i32, 3));
        assert_eq!(backend, deep_ep_backend_t::DEEP_EP_BACKEND_HOST as u32);
        ok(ffi!(deep_ep_comm_info(comm.0, null_mut(), null_mut(), null_mut())));
    }
}

/// An all-gather over a shared table, as a caller with a transport of its own would have.
struct Table {
    rank: usize,
    ranks: usize,
    rows: &'static (std::sync::Mutex<Vec<Vec<Vec<u8>>>>, std::sync::Condvar),
    round: std::cell::Cell<usize>,
}

unsafe extern "C" fn gather(
    context: *mut std::ffi::c_void,
    mine: *const std::ffi::c_void,
    all: *mut std::ffi::c_void,
    bytes: usize,
) -> i32 {
    // SAFETY: the context is the table that this rank passed.
    let table = unsafe { &*context.cast::<Table>() };
    // SAFETY: the library passes that many bytes.
    let mine = unsafe { std::slice::from_raw_parts(mine.cast::<u8>(), bytes) }.to_vec();
    let round = table.round.get();
    table.round.set(round + 1);
    let (rows, changed) = table.rows;
    let mut rows = rows.lock().unwrap();
    while rows.len() <= round {
        rows.push(vec![Vec::new(); table.ranks]);
    }
    rows[round][table.rank] = mine;
    changed.notify_all();
    while rows[round].iter().any(Vec::is_empty) {
        rows = changed.wait(rows).unwrap();
    }
    let everything = rows[round].concat();
    // SAFETY: the library has room for the bytes of every rank.
    unsafe { std::ptr::copy_nonoverlapping(everything.as_ptr(), all.cast(), everything.len()) };
    0
}

unsafe extern "C" fn fail(
    _: *mut std::ffi::c_void,
    _: *const std::ffi::c_void,
    _: *mut std::ffi::c_void,
    _: usize,
) -> i32 {
    -5
}

#[test]
fn ranks_meet_through_the_callers_all_gather() {
    let rows: &'static (std::sync::Mutex<_>, std::sync::Condvar) = Box::leak(Box::default());
    let case =
        Case::new(crate::reference::Layout::PackedByRank, &[2; 3], 64, 1, 3, |r, t, _| ((r + t) % 3) as i64);
    let buffer = case.config();
    let ranks: Vec<Rank> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|rank| {
                let buffer = &buffer;
                scope.spawn(move || {
                    let mut table = Table { rank, ranks: 3, rows, round: 0.into() };
                    let mut config = meeting(rank, 3, deep_ep_unique_id_t { bytes: [0; 128] });
                    config.allgather = Some(gather);
                    config.allgather_context = (&raw mut table).cast();
                    let comm = Comm::create(&config).unwrap_or_else(|s| panic!("{s:?}: {}", last_error()));
                    let buffer = Buffer::create(&comm, buffer, None).unwrap();
                    Rank { rank, ranks: 3, buffer, comm }
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    case.run_on(&World { ranks });
}

#[test]
fn an_all_gather_that_fails_ends_the_create() {
    let mut config = meeting(0, 2, deep_ep_unique_id_t { bytes: [0; 128] });
    config.allgather = Some(fail);
    let status = Comm::create(&config).err().unwrap();
    refused(status, deep_ep_status_t::DEEP_EP_SYSTEM, &["allgather", "-5"]);
}
