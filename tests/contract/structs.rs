//! struct_size and _init, the same for every struct.

use crate::ffi;
use crate::support::*;
use deepep::capi::deep_ep_status_t as Status;
use deepep::capi::*;
use std::mem::size_of;
use std::ptr::null_mut;

/// A struct of a newer version of the library: known fields, then two words.
#[repr(C)]
pub struct Longer<T> {
    pub known: T,
    pub more: [u64; 2],
}

macro_rules! init_contract {
    ($($test:ident: $init:ident($type:ident);)*) => {$(
        #[test]
        fn $test() {
            let size = size_of::<$type>();
            refused(ffi!($init(null_mut(), size)), INVALID_ARGUMENT, &[stringify!($init), "null"]);
            let mut memory = memory::Mem::poisoned(size + 64);
            for wrong in [0, 1, 8 - 1, size - 8, size - 1] {
                memory.poison();
                let status = ffi!($init(memory.ptr(), wrong));
                refused(status, ABI_MISMATCH, &[stringify!($init), &wrong.to_string()]);
                assert!(memory.bytes().iter().all(|&b| b == memory::POISON), "a refused init writes nothing");
            }
            memory.poison();
            ok(ffi!($init(memory.ptr(), size)));
            assert!(memory.bytes()[size..].iter().all(|&b| b == memory::POISON), "written past the struct");
            assert_eq!(memory.bytes()[..8], size.to_le_bytes());
            memory.check_guards(stringify!($init));
        }
    )*};
}

init_contract! {
    comm_config_init_checks_its_arguments: deep_ep_comm_config_init(deep_ep_comm_config_t);
    buffer_config_init_checks_its_arguments: deep_ep_buffer_config_init(deep_ep_buffer_config_t);
    buffer_sizes_init_checks_its_arguments: deep_ep_buffer_sizes_init(deep_ep_buffer_sizes_t);
    dispatch_in_init_checks_its_arguments: deep_ep_dispatch_in_init(deep_ep_dispatch_in_t);
    dispatch_out_init_checks_its_arguments: deep_ep_dispatch_out_init(deep_ep_dispatch_out_t);
    combine_in_init_checks_its_arguments: deep_ep_combine_in_init(deep_ep_combine_in_t);
    combine_out_init_checks_its_arguments: deep_ep_combine_out_init(deep_ep_combine_out_t);
    report_init_checks_its_arguments: deep_ep_report_init(deep_ep_report_t);
    statistics_init_checks_its_arguments: deep_ep_statistics_init(deep_ep_statistics_t);
    peer_statistics_init_checks_its_arguments: deep_ep_peer_statistics_init(deep_ep_peer_statistics_t);
}

/// Calls with `struct_size` 0, too short, longer with a zero tail, and longer with junk. `write` sets the size,
/// `call` makes the call with a pointer to the struct.
#[track_caller]
pub fn check_sizes<T: Copy>(
    value: T,
    write: impl Fn(&mut T, usize),
    mut call: impl FnMut(*mut T) -> Status,
    function: &str,
) {
    let size = size_of::<T>();
    let mut longer = Longer { known: value, more: [0; 2] };
    for wrong in [0, 1, 7, size - 8, size - 1] {
        write(&mut longer.known, wrong);
        refused(call((&raw mut longer).cast()), ABI_MISMATCH, &[function, "struct_size", &wrong.to_string()]);
    }
    longer.known = value;
    write(&mut longer.known, size_of::<Longer<T>>());
    ok(call((&raw mut longer).cast()));
    assert_eq!(longer.more, [0; 2]);
    for tail in [[1, 0], [0, 1 << 63]] {
        longer.known = value;
        write(&mut longer.known, size_of::<Longer<T>>());
        longer.more = tail;
        refused(call((&raw mut longer).cast()), ABI_MISMATCH, &[function]);
        assert_eq!(longer.more, tail, "a field nobody knows was written");
    }
    longer.known = value;
    write(&mut longer.known, size_of::<Longer<T>>() + (1 << 40));
    longer.more = [0; 2];
    // A size that no struct has is not read through.
    refused(call((&raw mut longer).cast()), ABI_MISMATCH, &[function]);
}

#[test]
fn a_version_is_a_number_and_a_status_has_a_name() {
    assert_eq!(deep_ep_version(), 100);
    let name = |status: i32| {
        let text = deep_ep_status_string(status);
        assert!(!text.is_null());
        // SAFETY: a static string.
        unsafe { std::ffi::CStr::from_ptr(text) }.to_str().unwrap().to_string()
    };
    let known = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 21, 22, 23, 24, 25, 40, 42, 60, 61, 62, 63, 90, 91];
    let mut names: Vec<_> = known.into_iter().map(name).collect();
    assert!(names.iter().all(|name| !name.is_empty() && !name.contains("unknown")));
    names.sort();
    names.dedup();
    assert_eq!(names.len(), known.len(), "two statuses have one name");
    for unknown in [-1, 10, 41, 64, 1000, i32::MIN, i32::MAX] {
        assert!(name(unknown).contains("unknown"));
    }
}

#[test]
fn the_last_error_belongs_to_a_thread_and_outlives_a_success() {
    assert!(last_error().is_empty(), "nothing has failed on this thread: {}", last_error());
    refused(
        ffi!(deep_ep_comm_abort(std::ptr::null(), std::ptr::null())),
        INVALID_ARGUMENT,
        &["comm", "null"],
    );
    let text = last_error();
    std::thread::spawn(|| assert!(last_error().is_empty())).join().unwrap();
    comm_config();
    assert_eq!(last_error(), text, "a success leaves the text as it is");
    let pointer = deep_ep_last_error();
    refused(ffi!(deep_ep_handle_release(null_mut(), null_mut())), INVALID_ARGUMENT, &["handle", "null"]);
    assert_eq!(deep_ep_last_error(), pointer, "the text lives as long as the thread");
}
