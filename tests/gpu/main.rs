//! The CUDA backend against the host backend, byte for byte, through the C ABI: the same calls with the same random
//! inputs and poisoned outputs, ranks as threads, on all GPUs there are (`devices`). Without a GPU, or without the feature `cuda`, nothing is
//! tested, and said so; with DEEPEP_GPU_TESTS_REQUIRED in the environment that is a failure. Run it with `make test-gpu`,
//! or anywhere from the program that it builds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::undocumented_unsafe_blocks)] // a test may fail by panicking

mod cases;
mod cuda;
mod devices;
mod graphs;
mod meeting;
mod memory;
mod observe;
mod processes;
mod ranks;
mod reports;
mod rng;
mod run;
mod shapes;
mod sharing;
mod stamped;
mod stress;

use cases::Case;
use deepep::capi::*;
use memory::Where;
use ranks::{refusal, World};

/// For work on these tests without a GPU: the host backend takes the part of CUDA.
fn against_itself() -> bool {
    std::env::var_os("DEEPEP_GPU_TESTS_ON_HOST").is_some()
}

/// Whether there is a GPU to test on.
fn ready() -> bool {
    if against_itself() {
        return true;
    }
    match World::create(Where::Device, 1) {
        Ok(_) => true,
        Err((status, text)) => {
            let absent = [
                deep_ep_status_t::DEEP_EP_UNSUPPORTED,
                deep_ep_status_t::DEEP_EP_NO_DRIVER,
                deep_ep_status_t::DEEP_EP_NO_DEVICE,
            ];
            assert!(absent.contains(&status), "{text}");
            assert!(std::env::var_os("DEEPEP_GPU_TESTS_REQUIRED").is_none(), "{text}");
            eprintln!("SKIPPED, no CUDA backend here: {text}");
            false
        }
    }
}

fn same(case: Case) {
    if !ready() {
        return;
    }
    let place = if against_itself() { Where::Host } else { Where::Device };
    compare(&case, &run::run(&case, Where::Host), &run::run(&case, place));
}

/// The outputs of some ranks on both backends.
fn compare(case: &Case, host: &[run::Outputs], device: &[run::Outputs]) {
    let mut wrong = Vec::new();
    for (rank, (host, device)) in host.iter().zip(device).enumerate() {
        assert_eq!(host.len(), device.len(), "rank {rank}: another number of outputs");
        for ((name, want), (other, got)) in host.iter().zip(device) {
            assert_eq!(name, other);
            if want != got {
                let at = want.iter().zip(got).position(|(a, b)| a != b).unwrap_or(want.len().min(got.len()));
                let end = |bytes: &Vec<u8>| (at + 8).min(bytes.len());
                wrong.push(format!(
                    "rank {rank}, {name}: byte {at} of {} / {}: host {:02x?}, CUDA {:02x?}",
                    want.len(),
                    got.len(),
                    &want[at / 8 * 8..end(want)],
                    &got[at / 8 * 8..end(got)]
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{case:?}\n{}", wrong[..wrong.len().min(20)].join("\n"));
}

macro_rules! cases {
    ($($name:ident: $($field:ident = $value:expr),*;)*) => {$(
        #[test]
        fn $name() {
            same(Case { $($field: $value,)* ..Case::default() });
        }
    )*};
}

use cases::{Mode, Rows, Scales};

cases! {
    rank_bf16_2: ranks = 2;
    rank_bf16_3: ranks = 3, experts = 20, topk = 6, tokens = 97;
    rank_bf16_4: ranks = 4, experts = 33, topk = 8, tokens = 301;
    rank_bf16_8: ranks = 8, experts = 256, topk = 8, tokens = 200, hidden = 2048;
    rank_one_rank: ranks = 1, topk = 1;
    rank_fp16_k32: ranks = 4, experts = 64, topk = 32, rows = Rows::Fp16, combine = Rows::Fp16, tokens = 50;
    rank_fp32: ranks = 2, rows = Rows::Fp32, combine = Rows::Fp32, hidden = 260;
    rank_fp8_scales: ranks = 3, rows = Rows::Fp8, scales = Scales::Fp32, hidden = 640;
    rank_fp8_ue8m0_h7168: ranks = 2, rows = Rows::Fp8, scales = Scales::Ue8m0, hidden = 7168, topk = 8, experts = 256;
    rank_opaque: ranks = 2, rows = Rows::Opaque, scales = Scales::Opaque(36), hidden = 5008;
    rank_cast_fp32: ranks = 4, rows = Rows::Cast, scales = Scales::Fp32, hidden = 1280;
    rank_cast_pow2: ranks = 2, rows = Rows::Cast, scales = Scales::Pow2, hidden = 208, mode = Mode::Caller;
    rank_cast_ue8m0: ranks = 2, rows = Rows::Cast, scales = Scales::Ue8m0, hidden = 896;
    rank_cast_from_fp16: ranks = 2, rows = Rows::CastFp16, scales = Scales::Fp32, hidden = 400;
    rank_cast_from_fp32_h7168: ranks = 2, rows = Rows::CastFp32, scales = Scales::Ue8m0, hidden = 7168, rounds = 4;
    rank_caller_memory: ranks = 4, mode = Mode::Caller;
    rank_caller_memory_8: ranks = 8, mode = Mode::Caller, experts = 64, topk = 6;
    rank_split: ranks = 2, split = true;
    rank_split_caller: ranks = 3, split = true, mode = Mode::Caller;
    rank_overflow: ranks = 3, max_recv_rows = 70, mode = Mode::Caller;
    rank_overflow_split: ranks = 2, max_recv_rows = 33, split = true, mode = Mode::InPlace;
    rank_little_room: ranks = 4, mode = Mode::Caller, out_rows = 50, rows = Rows::Fp8, scales = Scales::Fp32;
    rank_little_room_split: ranks = 2, mode = Mode::Caller, out_rows = 20, max_recv_rows = 60, split = true;
    rank_input_in_place: ranks = 4, mode = Mode::InPlace;
    rank_int32_ids: ranks = 2, int64 = false;
    rank_ack: ranks = 4, sync = 1, mode = Mode::Caller;
    rank_barrier: ranks = 4, sync = 2, split = true;
    rank_mapped_experts: ranks = 3, mapped = true, experts = 17;
    rank_bad_ids: ranks = 3, bad_ids = true;
    rank_stages_1: ranks = 2, stages = 1, sms = 5;
    rank_stages_2_windows_3: ranks = 2, stages = 2, windows = 3, sms = 16, mode = Mode::InPlace;
    rank_few_experts: ranks = 4, experts = 2, topk = 2;
    expert_bf16_2: ranks = 2, by_expert = true, align = 8;
    expert_bf16_3: ranks = 3, by_expert = true, experts = 20, topk = 6;
    expert_bf16_4: ranks = 4, by_expert = true, experts = 30, topk = 6, align = 4, mode = Mode::InPlace;
    expert_bf16_8: ranks = 8, by_expert = true, experts = 256, topk = 8, align = 16, hidden = 1024, tokens = 150;
    expert_fp32: ranks = 4, by_expert = true, rows = Rows::Fp32, combine = Rows::Fp32;
    expert_fp16: ranks = 2, by_expert = true, combine = Rows::Fp16, rows = Rows::Fp16, align = 4;
    expert_fp8_scales: ranks = 2, by_expert = true, rows = Rows::Fp8, scales = Scales::Fp32, align = 16, hidden = 1024;
    expert_fp8_columns: ranks = 2, by_expert = true, rows = Rows::Fp8, scales = Scales::Ue8m0, align = 32,
        hidden = 1536, column_major = true;
    expert_cast: ranks = 2, by_expert = true, rows = Rows::Cast, scales = Scales::Fp32, hidden = 768, align = 8;
    expert_cast_split: ranks = 3, by_expert = true, rows = Rows::Cast, scales = Scales::Ue8m0, hidden = 768, split = true;
    expert_cast_from_fp16: ranks = 2, by_expert = true, rows = Rows::CastFp16, scales = Scales::Pow2, hidden = 656,
        align = 4;
    expert_cast_from_fp32: ranks = 3, by_expert = true, rows = Rows::CastFp32, scales = Scales::Ue8m0, hidden = 1168,
        mode = Mode::Caller, column_major = true;
    expert_cast_from_fp32_split: ranks = 2, by_expert = true, rows = Rows::CastFp32, scales = Scales::Fp32, hidden = 7168,
        split = true, rounds = 4;
    expert_split: ranks = 2, by_expert = true, split = true, align = 4;
    expert_caller: ranks = 4, by_expert = true, mode = Mode::Caller, align = 16;
    expert_one_rank: ranks = 1, by_expert = true, align = 128;
    expert_overflow: ranks = 2, by_expert = true, align = 4, max_expert_rows = 100;
    expert_link_overflow: ranks = 3, by_expert = true, align = 4, max_recv_rows = 60;
    expert_link_overflow_4: ranks = 4, by_expert = true, experts = 30, topk = 6, tokens = 150, max_recv_rows = 200,
        mode = Mode::Caller, rows = Rows::Fp8, scales = Scales::Fp32, align = 8;
    expert_link_overflow_split: ranks = 2, by_expert = true, max_recv_rows = 40, split = true, mode = Mode::InPlace;
    expert_little_room: ranks = 2, by_expert = true, align = 4, mode = Mode::Caller, out_rows = 70;
    expert_little_room_split: ranks = 3, by_expert = true, mode = Mode::Caller, out_rows = 64, split = true;
    expert_overflow_everywhere: ranks = 4, by_expert = true, mode = Mode::Caller, tokens = 90, max_recv_rows = 120,
        max_expert_rows = 110, out_rows = 97, align = 4, bad_ids = true;
    rank_skewed: ranks = 3, mode = Mode::Caller, skewed = true, rows = Rows::Fp8, scales = Scales::Fp32, hidden = 2048,
        topk = 5;
    expert_skewed: ranks = 2, by_expert = true, mode = Mode::Caller, skewed = true, rows = Rows::Fp8,
        scales = Scales::Fp32, hidden = 2048, align = 16, split = true;
    expert_skewed_cast: ranks = 2, by_expert = true, mode = Mode::Caller, skewed = true, rows = Rows::Cast,
        scales = Scales::Fp32, hidden = 2048, align = 16;
    rank_traced: ranks = 3, trace = true, mode = Mode::Caller;
    expert_traced: ranks = 2, by_expert = true, trace = true, split = true;
    expert_bad_ids: ranks = 2, by_expert = true, bad_ids = true;
    expert_bf16_h7168: ranks = 2, by_expert = true, hidden = 7168, topk = 8, experts = 64, align = 128, tokens = 300;
}

macro_rules! slotted_cases {
    ($($name:ident: $($field:ident = $value:expr),*;)*) => {$(
        #[test]
        fn $name() {
            same(Case { $($field: $value,)* slotted: true, ..Case::default() });
        }
    )*};
}

slotted_cases! {
    slots_rank_bf16_1: ranks = 1, experts = 8, topk = 2, tokens = 7;
    slots_rank_bf16_2: ranks = 2;
    slots_rank_bf16_3: ranks = 3, experts = 20, topk = 6, tokens = 97;
    slots_rank_bf16_4: ranks = 4, experts = 33, topk = 8, tokens = 300;
    slots_rank_bf16_8: ranks = 8, experts = 256, topk = 8, tokens = 128, hidden = 2048;
    slots_rank_one_token: ranks = 2, tokens = 1, hidden = 7168, topk = 8, experts = 256, full = true;
    slots_rank_t128_h7168: ranks = 2, tokens = 128, hidden = 7168, topk = 8, experts = 256, full = true, rounds = 5,
        rows = Rows::Cast, scales = Scales::Fp32;
    slots_rank_many_tokens: ranks = 2, tokens = 1200, topk = 8, experts = 64, rounds = 5;
    slots_rank_fp16_k32: ranks = 4, experts = 64, topk = 32, rows = Rows::Fp16, combine = Rows::Fp16, tokens = 50;
    slots_rank_fp32: ranks = 2, rows = Rows::Fp32, combine = Rows::Fp32, hidden = 260;
    slots_rank_fp8_scales: ranks = 3, rows = Rows::Fp8, scales = Scales::Fp32, hidden = 640;
    slots_rank_opaque: ranks = 2, rows = Rows::Opaque, scales = Scales::Opaque(36), hidden = 5008;
    slots_rank_cast: ranks = 4, rows = Rows::Cast, scales = Scales::Fp32, hidden = 1280;
    slots_rank_cast_pow2: ranks = 2, rows = Rows::Cast, scales = Scales::Pow2, hidden = 208, mode = Mode::Caller;
    slots_rank_cast_ue8m0: ranks = 2, rows = Rows::Cast, scales = Scales::Ue8m0, hidden = 896;
    slots_rank_cast_ue8m0_h7168: ranks = 2, rows = Rows::Cast, scales = Scales::Ue8m0, hidden = 7168, split = true;
    slots_rank_caller: ranks = 4, mode = Mode::Caller, sync = 1;
    slots_rank_caller_small: ranks = 3, mode = Mode::Caller, out_rows = 9, rows = Rows::Fp8, scales = Scales::Ue8m0;
    slots_rank_split: ranks = 2, split = true;
    slots_rank_split_caller: ranks = 3, split = true, mode = Mode::Caller, sync = 1;
    slots_rank_input_in_place: ranks = 4, mode = Mode::InPlace;
    slots_rank_int32_ids: ranks = 2, int64 = false, topk = 5;
    slots_rank_barrier: ranks = 4, sync = 2, split = true;
    slots_rank_ack: ranks = 2, sync = 1;
    slots_rank_cast_fp16: ranks = 2, rows = Rows::CastFp16, scales = Scales::Fp32, hidden = 1280;
    slots_rank_cast_fp32: ranks = 3, rows = Rows::CastFp32, scales = Scales::Fp32, hidden = 1168;
    slots_rank_cast_fp32_ue8m0: ranks = 2, rows = Rows::CastFp32, scales = Scales::Ue8m0, hidden = 896, split = true;
    slots_rank_skewed: ranks = 3, mode = Mode::Caller, skewed = true, rows = Rows::Fp8, scales = Scales::Fp32,
        hidden = 2048, topk = 5;
    slots_rank_traced: ranks = 3, trace = true, mode = Mode::Caller;
    slots_rank_mapped_experts: ranks = 3, mapped = true, experts = 17;
    slots_rank_bad_ids: ranks = 3, bad_ids = true;
    slots_rank_few_sms: ranks = 2, sms = 3, tokens = 150;
    slots_rank_one_window: ranks = 2, windows = 1;
    slots_rank_few_experts: ranks = 4, experts = 2, topk = 2;
    slots_expert_bf16_1: ranks = 1, by_expert = true, tokens = 7;
    slots_expert_bf16_2: ranks = 2, by_expert = true;
    slots_expert_bf16_3: ranks = 3, by_expert = true, experts = 20, topk = 6, tokens = 97;
    slots_expert_bf16_4: ranks = 4, by_expert = true, experts = 30, topk = 6, mode = Mode::InPlace;
    slots_expert_bf16_8: ranks = 8, by_expert = true, experts = 256, topk = 8, hidden = 1024, tokens = 128, rounds = 5;
    slots_expert_one_token: ranks = 2, by_expert = true, tokens = 1, hidden = 7168, topk = 8, experts = 256;
    slots_expert_t128_h7168: ranks = 2, by_expert = true, tokens = 128, hidden = 7168, topk = 8, experts = 64,
        full = true, rounds = 5, rows = Rows::Cast, scales = Scales::Fp32, column_major = true;
    slots_expert_many_tokens: ranks = 2, by_expert = true, tokens = 700, topk = 8, experts = 16, rounds = 5;
    slots_expert_fp32: ranks = 4, by_expert = true, rows = Rows::Fp32, combine = Rows::Fp32;
    slots_expert_fp8_columns: ranks = 2, by_expert = true, rows = Rows::Fp8, scales = Scales::Ue8m0, hidden = 1536,
        column_major = true;
    slots_expert_cast: ranks = 2, by_expert = true, rows = Rows::Cast, scales = Scales::Fp32, hidden = 768;
    slots_expert_cast_split: ranks = 3, by_expert = true, rows = Rows::Cast, scales = Scales::Ue8m0, hidden = 768,
        split = true, sync = 1;
    slots_expert_caller: ranks = 4, by_expert = true, mode = Mode::Caller, sync = 2;
    slots_expert_caller_small: ranks = 2, by_expert = true, mode = Mode::Caller, out_rows = 13, rows = Rows::Fp8,
        scales = Scales::Fp32, column_major = true;
    slots_expert_cast_fp32: ranks = 2, by_expert = true, rows = Rows::CastFp32, scales = Scales::Ue8m0, hidden = 528,
        column_major = true;
    slots_expert_skewed: ranks = 2, by_expert = true, mode = Mode::Caller, skewed = true, rows = Rows::Fp8,
        scales = Scales::Fp32, hidden = 2048, split = true;
    slots_expert_traced: ranks = 2, by_expert = true, trace = true, split = true;
    slots_expert_bad_ids: ranks = 2, by_expert = true, bad_ids = true, mapped = true, experts = 11;
    slots_expert_few_sms: ranks = 2, by_expert = true, sms = 2, windows = 1;
}

#[test]
fn two_processes_share_a_gpu_with_slots() {
    if processes::child_rank().is_some() || ready() {
        let case = Case { ranks: 2, slotted: true, dispatches: true, rounds: 4, ..Case::default() };
        processes::parent_or_child("two_processes_share_a_gpu_with_slots", case, processes::on_one_gpu);
    }
}

/// What the sanitizers run, a hundred times slower; see sanitizers.sh.
macro_rules! small_cases {
    ($($name:ident: $($field:ident = $value:expr),*;)*) => {$(
        #[test]
        fn $name() {
            let case = Case { $($field: $value,)* tokens: 20, sms: 3, rounds: 4, ..Case::default() };
            // A sanitizer's own work on the device waits for all kernels of its process, which may wait for another rank there.
            match processes::are_wrapped() {
                true => processes::parent_or_child(stringify!($name), case, processes::on_one_gpu),
                false => same(case),
            }
        }
    )*};
}

small_cases! {
    small_rank: ranks = 2;
    small_rank_caller: ranks = 3, mode = Mode::Caller, sync = 1;
    small_rank_cast_split: ranks = 2, rows = Rows::Cast, scales = Scales::Fp32, hidden = 400, split = true, sync = 2;
    small_expert_one: ranks = 1, by_expert = true, align = 8;
    small_expert: ranks = 2, by_expert = true, align = 4, mode = Mode::InPlace;
    small_expert_cast: ranks = 3, by_expert = true, rows = Rows::Cast, scales = Scales::Ue8m0, hidden = 400,
        mode = Mode::Caller;
    small_expert_split: ranks = 2, by_expert = true, split = true, align = 8, rows = Rows::Fp8, scales = Scales::Fp32,
        max_expert_rows = 60;
    small_slots_rank: ranks = 2, slotted = true;
    small_slots_rank_cast: ranks = 3, slotted = true, rows = Rows::Cast, scales = Scales::Fp32, hidden = 400,
        mode = Mode::Caller, sync = 1;
    small_slots_rank_split: ranks = 2, slotted = true, split = true, sync = 2, rows = Rows::Fp8, scales = Scales::Fp32;
    small_slots_expert: ranks = 2, slotted = true, by_expert = true, mode = Mode::InPlace;
    small_slots_expert_cast: ranks = 3, slotted = true, by_expert = true, rows = Rows::Cast, scales = Scales::Ue8m0,
        hidden = 400, split = true, sync = 1;
}

#[test]
fn a_missing_rank_is_named_within_the_deadline() {
    if !against_itself() && ready() {
        refusal::missing_rank();
    }
}

#[test]
fn two_processes_share_a_gpu() {
    if processes::child_rank().is_some() || ready() {
        processes::parent_or_child(
            "two_processes_share_a_gpu",
            Case { ranks: 2, rounds: 4, ..Case::default() },
            processes::on_one_gpu,
        );
    }
}

#[test]
fn three_processes_by_expert_share_a_gpu() {
    if processes::child_rank().is_some() || ready() {
        let case =
            Case { ranks: 3, by_expert: true, align: 8, rounds: 4, mode: Mode::Caller, ..Case::default() };
        processes::parent_or_child("three_processes_by_expert_share_a_gpu", case, processes::on_one_gpu);
    }
}

#[test]
fn a_killed_process_is_named_within_the_deadline() {
    if processes::child_rank().is_some() || (!against_itself() && ready()) {
        processes::kill_one("a_killed_process_is_named_within_the_deadline", processes::as_it_is);
    }
}

#[test]
fn waits_are_counted_for_whom_they_were() {
    if !against_itself() && ready() {
        observe::waits();
    }
}

#[test]
fn phases_lie_on_the_clock_of_the_host() {
    if !against_itself() && ready() {
        observe::traces();
    }
}

#[test]
fn events_without_room_are_counted() {
    if !against_itself() && ready() {
        observe::lost_events();
    }
}

#[test]
fn an_abort_ends_the_waits() {
    if !against_itself() && ready() {
        refusal::abort();
    }
}

#[test]
fn what_is_not_done_says_so() {
    if !against_itself() && ready() {
        refusal::unsupported();
    }
}

macro_rules! graphs {
    ($($name:ident: $run:ident($($argument:expr),*) $($field:ident = $value:expr),*;)*) => {$(
        #[test]
        fn $name() {
            if ready() {
                graphs::$run(Case { $($field: $value,)* ..Case::default() } $(, $argument)*);
            }
        }
    )*};
}

graphs! {
    graph_rank_1_pair: replays(1, false, 12) ranks = 2;
    graph_rank_3_operations: replays(1, true, 12) ranks = 3, experts = 20, topk = 6, tokens = 97, mode = Mode::InPlace;
    graph_rank_20_operations: replays(10, false, 5) ranks = 4, experts = 33, topk = 8, tokens = 150;
    graph_rank_caller_memory: replays(2, true, 8) ranks = 4, mode = Mode::Caller;
    graph_rank_split: replays(2, true, 8) ranks = 2, split = true, mode = Mode::InPlace;
    graph_rank_ack: replays(2, true, 8) ranks = 3, sync = 1, mode = Mode::InPlace;
    graph_rank_barrier: replays(2, false, 8) ranks = 2, sync = 2, mode = Mode::InPlace, windows = 2;
    graph_expert_1_pair: replays(1, false, 12) ranks = 4, by_expert = true;
    graph_expert_3_operations: replays(1, true, 12) ranks = 3, by_expert = true, experts = 21, mode = Mode::InPlace;
    graph_expert_20_operations: replays(10, false, 5) ranks = 2, by_expert = true, topk = 6, tokens = 120;
    graph_expert_caller_split: replays(3, true, 6) ranks = 2, by_expert = true, split = true, mode = Mode::Caller;
    graph_rank_overflow: overflowing(12) ranks = 3, max_recv_rows = 50;
    graph_expert_overflow: overflowing(12) ranks = 2, by_expert = true, align = 4, max_expert_rows = 100;
    graph_mixed_rank: mixed(30) ranks = 4, mode = Mode::InPlace;
    graph_mixed_rank_windows_2: mixed(30) ranks = 2, mode = Mode::InPlace, windows = 2;
    graph_mixed_rank_ack: mixed(20) ranks = 3, sync = 1, mode = Mode::InPlace, split = true;
    graph_mixed_expert: mixed(30) ranks = 3, by_expert = true, mode = Mode::InPlace, experts = 24;
    graph_mixed_caller: mixed(20) ranks = 2, mode = Mode::Caller, sync = 2;
    graph_halves_apart_rank: apart(12) ranks = 3, mode = Mode::InPlace;
    graph_halves_apart_expert: apart(12) ranks = 2, by_expert = true;
    graph_bad_ids: replays(1, false, 8) ranks = 3, bad_ids = true;
    graph_overflow: replays(1, true, 8) ranks = 2, by_expert = true, align = 4, max_expert_rows = 100;
    graph_1000_replays: replays(1, false, 1000) ranks = 2, tokens = 12, hidden = 64;
    graph_window_written_at_once: overwriting(8) ranks = 2, mode = Mode::InPlace, windows = 1, tokens = 1500,
        hidden = 4096, topk = 2;
    graph_window_written_at_once_ack: overwriting(4) ranks = 2, mode = Mode::InPlace, windows = 1, tokens = 1500,
        hidden = 4096, topk = 2, sync = 1;
    graph_claims_auto: claims() ranks = 2, mode = Mode::InPlace;
    graph_claims_ack: claims() ranks = 2, mode = Mode::InPlace, sync = 1;
    graph_claims_barrier: claims() ranks = 3, mode = Mode::InPlace, sync = 2;
    graph_claims_split: claims() ranks = 2, mode = Mode::InPlace, split = true, windows = 2;
    graph_two_streams: forked(8) ranks = 3, mode = Mode::InPlace;
    graph_two_buffers: two_buffers(8) ranks = 2, by_expert = true;
    graph_slots_rank: replays(2, true, 8) ranks = 3, slotted = true, mode = Mode::InPlace;
    graph_slots_rank_split: replays(2, true, 8) ranks = 2, slotted = true, split = true, mode = Mode::Caller;
    graph_slots_expert: replays(2, true, 8) ranks = 2, slotted = true, by_expert = true;
    graph_slots_expert_split: replays(1, true, 8) ranks = 3, slotted = true, by_expert = true, split = true,
        mode = Mode::Caller;
    graph_slots_mixed: mixed(20) ranks = 2, slotted = true, mode = Mode::InPlace, windows = 1;
    graph_slots_mixed_ack: mixed(20) ranks = 3, slotted = true, by_expert = true, sync = 1, split = true;
    graph_slots_apart: apart(12) ranks = 3, slotted = true, mode = Mode::InPlace, windows = 1;
    graph_slots_two_buffers: two_buffers(8) ranks = 2, slotted = true;
}

#[test]
fn graph_busy_on_every_rank() {
    if !against_itself() && ready() {
        graphs::busy_everywhere();
    }
}

#[test]
fn graph_send_without_receive() {
    if !against_itself() && ready() {
        graphs::send_without_receive();
    }
}

#[test]
fn graph_areas_and_claims() {
    if !against_itself() && ready() {
        graphs::areas_and_claims();
    }
}

#[test]
fn graph_destroyed_under_a_replay() {
    if !against_itself() && ready() {
        graphs::destroy_under_replay();
    }
}

#[test]
fn graph_peer_killed_between_replays() {
    if processes::child_rank().is_some() || (!against_itself() && ready()) {
        graphs::kill_in_replay("graph_peer_killed_between_replays");
    }
}

#[test]
fn reset_survivors_of_a_killed_process() {
    if processes::child_rank().is_some() || (!against_itself() && ready()) {
        graphs::survivors("reset_survivors_of_a_killed_process");
    }
}

#[test]
fn reset_all_alive_after_a_timeout() {
    if !against_itself() && ready() {
        graphs::all_alive(Case { ranks: 3, mode: Mode::InPlace, ..Case::default() });
        graphs::all_alive(Case { ranks: 2, by_expert: true, split: true, sync: 1, ..Case::default() });
        graphs::all_alive(Case { ranks: 3, slotted: true, split: true, ..Case::default() });
        graphs::all_alive(Case { ranks: 2, slotted: true, by_expert: true, sync: 1, ..Case::default() });
    }
}

#[test]
fn reset_leaves_a_rank_out() {
    if !against_itself() && ready() {
        graphs::one_left_out(Case { ranks: 3, mode: Mode::InPlace, ..Case::default() });
        graphs::one_left_out(Case { ranks: 4, by_expert: true, experts: 18, ..Case::default() });
        graphs::one_left_out(Case { ranks: 3, sync: 1, split: true, mode: Mode::Caller, ..Case::default() });
        graphs::one_left_out(Case { ranks: 3, slotted: true, mode: Mode::InPlace, ..Case::default() });
        graphs::one_left_out(Case {
            ranks: 3,
            slotted: true,
            by_expert: true,
            experts: 18,
            ..Case::default()
        });
    }
}

#[test]
fn graph_launched_beside_another() {
    if !against_itself() && ready() {
        graphs::two_at_once(Case::default());
        graphs::two_at_once(Case { slotted: true, by_expert: true, ..Case::default() });
    }
}

#[test]
fn graph_beside_other_calls() {
    if !against_itself() && ready() {
        graphs::beside_a_capture();
    }
}
