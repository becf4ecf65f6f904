//! The main job, once: four ranks as threads exchange rows in every layout, and each token comes back as it went.

use deepep::capi::*;
use std::ffi::CStr;
use std::ptr::{null, null_mut};

const RANKS: usize = 4;
const TOKENS: usize = 5;
const HIDDEN: usize = 64;
const TOPK: usize = 2;
const EXPERTS: usize = 8;

fn check(status: deep_ep_status_t) {
    // SAFETY: the last error is a terminated string.
    assert_eq!(status, deep_ep_status_t::DEEP_EP_SUCCESS, "{:?}", unsafe {
        CStr::from_ptr(deep_ep_last_error())
    });
}

/// A struct as its `_init` leaves it.
macro_rules! init {
    ($type:ty, $init:ident) => {{
        let mut value = std::mem::MaybeUninit::<$type>::uninit();
        check($init(value.as_mut_ptr(), size_of::<$type>()));
        value.assume_init()
    }};
}

#[test]
fn every_layout_brings_tokens_back() {
    for layout in 0..4 {
        run(layout);
    }
}

fn run(layout: u32) {
    // SAFETY: every pointer below lives as long as the call it is passed to.
    unsafe {
        let mut config = init!(deep_ep_comm_config_t, deep_ep_comm_config_init);
        config.num_ranks = RANKS as i32;
        let mut comms = [null_mut(); RANKS];
        check(deep_ep_comm_create_local(&config, null(), comms.as_mut_ptr()));
        let mut config = init!(deep_ep_buffer_config_t, deep_ep_buffer_config_init);
        config.layout = layout;
        config.max_tokens = TOKENS as i64;
        config.max_row_bytes = HIDDEN as i64 * 2;
        config.num_experts = EXPERTS as i32;
        config.num_topk = TOPK as i32;
        let mut buffers = [null_mut(); RANKS];
        check(deep_ep_buffer_create_local(comms.as_ptr(), &config, null(), buffers.as_mut_ptr()));
        let addresses: Vec<usize> = buffers.iter().map(|buffer| *buffer as usize).collect();
        std::thread::scope(|scope| {
            for (rank, buffer) in addresses.into_iter().enumerate() {
                scope.spawn(move || rank_loop(rank, buffer as *mut deep_ep_buffer_t, layout));
            }
        });
        buffers.into_iter().for_each(|buffer| check(deep_ep_buffer_destroy(buffer)));
        comms.into_iter().for_each(|comm| check(deep_ep_comm_destroy(comm)));
    }
}

#[repr(align(16))]
struct Rows([u16; TOKENS * HIDDEN]);

/// Identity experts with weights one half each: by expert the sum of both is the token again; by rank each of the two
/// ranks returns the row, which counts twice unless both experts live together.
fn bf16(value: f32) -> u16 {
    (value.to_bits() >> 16) as u16
}

fn rank_loop(rank: usize, buffer: *mut deep_ep_buffer_t, layout: u32) {
    let x = Box::new(Rows(std::array::from_fn(|i| bf16((rank * 31 + i) as f32 % 64.0))));
    let ids: Vec<i64> =
        (0..TOKENS).flat_map(|t| [(t + rank) as i64 % 8, (t + rank + 3) as i64 % 8]).collect();
    let weights = [0.5f32; TOKENS * TOPK];
    let by_expert = layout % 2 == 1;
    for _ in 0..20 {
        // SAFETY: every pointer below lives as long as the call it is passed to.
        unsafe { one_step(rank, buffer, by_expert, &x, &ids, &weights) };
    }
}

unsafe fn one_step(
    rank: usize,
    buffer: *mut deep_ep_buffer_t,
    by_expert: bool,
    x: &Rows,
    ids: &[i64],
    weights: &[f32],
) {
    // SAFETY: as the caller promises.
    unsafe {
        let mut handle = null_mut();
        check(deep_ep_handle_create(buffer, &mut handle));
        let mut input = init!(deep_ep_dispatch_in_t, deep_ep_dispatch_in_init);
        input.num_tokens = TOKENS as i64;
        input.hidden = HIDDEN as i64;
        input.x.data = x.0.as_ptr().cast_mut().cast();
        input.x.dtype = deep_ep_dtype_t::DEEP_EP_BF16 as u32;
        input.topk_idx = ids.as_ptr().cast();
        input.topk_idx_dtype = deep_ep_dtype_t::DEEP_EP_INT64 as u32;
        input.topk_weights = weights.as_ptr();
        let mut output = init!(deep_ep_dispatch_out_t, deep_ep_dispatch_out_init);
        check(deep_ep_handle_dispatch(handle, &input, &mut output, null_mut()));

        let mut back = init!(deep_ep_combine_in_t, deep_ep_combine_in_init);
        back.x = output.x;
        back.flags = if by_expert { DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH } else { 0 };
        let mut result = Box::new(Rows([0xffff; TOKENS * HIDDEN]));
        let mut sums = init!(deep_ep_combine_out_t, deep_ep_combine_out_init);
        sums.x.data = result.0.as_mut_ptr().cast();
        check(deep_ep_handle_combine(handle, &back, &sums, null_mut()));
        for (i, (got, sent)) in result.0.iter().zip(&x.0).enumerate() {
            let t = i / HIDDEN;
            let together = ids[t * TOPK] / 2 == ids[t * TOPK + 1] / 2;
            let factor = if by_expert || together { 1.0 } else { 2.0 };
            let want = bf16(f32::from_bits(u32::from(*sent) << 16) * factor);
            assert_eq!(*got, want, "by expert: {by_expert}, rank {rank}, element {i}");
        }
        check(deep_ep_handle_destroy(handle));
    }
}
