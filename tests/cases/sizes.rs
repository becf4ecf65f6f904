//! The size function and the numbers of a configuration. Cases 31, 32, 36 to 39, 107.

use crate::reference::numbers::{FP8, SCALE_FP32};
use crate::reference::{Layout, LAYOUTS};
use crate::support::exchange::Wire;
use crate::support::payload::Noise;
use crate::support::send::Style;
use crate::support::*;
use deepep::capi::*;

const ABI_LAYOUTS: [deep_ep_layout_t; 4] = [
    deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK,
    deep_ep_layout_t::DEEP_EP_PACKED_BY_EXPERT,
    deep_ep_layout_t::DEEP_EP_SLOTTED_BY_RANK,
    deep_ep_layout_t::DEEP_EP_SLOTTED_BY_EXPERT,
];

#[track_caller]
fn sizes(comm: &Comm, config: &deep_ep_buffer_config_t) -> deep_ep_buffer_sizes_t {
    comm.sizes(config, None).unwrap_or_else(|status| panic!("{status:?}: {}", last_error()))
}

#[test]
fn case_031_sizes_do_not_wrap_at_two_to_the_31st() {
    let comms = Comm::local(1);
    for layout in ABI_LAYOUTS {
        // 8192 bytes per row: 524288 rows are 2^32 bytes, and 2^31 elements of two bytes.
        let mut config = buffer_config(layout, 524_287, 8, 1);
        config.max_row_bytes = 8192;
        let below = sizes(&comms[0], &config);
        config.max_tokens = 524_288;
        let at = sizes(&comms[0], &config);
        assert!(below.dispatch_window >= 524_287 * 8192);
        assert!(at.dispatch_window >= 1 << 32);
        assert!((0..1 << 20).contains(&(at.dispatch_window - below.dispatch_window)), "{layout:?}");
    }
}

#[test]
fn case_032_a_buffer_beyond_32_gib_has_an_exact_size() {
    let comms = Comm::local(64);
    for layout in ABI_LAYOUTS {
        let mut config = buffer_config(layout, 4096, 448, 8);
        config.max_row_bytes = 14336;
        let sizes = sizes(&comms[0], &config);
        let rows = 64 * 4096;
        assert!(sizes.dispatch_window > rows * 14336, "{layout:?}: {}", sizes.dispatch_window);
        assert_eq!(sizes.total_symmetric, sizes.dispatch_window + sizes.combine_window + sizes.signals);
        assert_eq!(sizes.total_device, sizes.total_symmetric + sizes.local_outputs);
        if layout == deep_ep_layout_t::DEEP_EP_SLOTTED_BY_EXPERT {
            assert!(sizes.local_outputs >= 7 * rows * 14336, "seven experts with a slab of every token");
        }
    }
}

#[test]
fn case_032_sizes_that_do_not_fit_in_63_bits_are_refused() {
    let comms = Comm::local(2);
    for layout in ABI_LAYOUTS {
        let mut config = buffer_config(layout, 1 << 40, 64, 8);
        config.max_row_bytes = 1 << 30;
        let status = comms[0].sizes(&config, None).err().unwrap();
        assert!(status == CAPACITY_EXCEEDED || status == INVALID_ARGUMENT, "{status:?}");
        assert!(last_error().contains("deep_ep_buffer_size"), "{}", last_error());
    }
}

#[test]
fn case_037_defaults_are_valid_for_every_rank_count() {
    for ranks in 1..=64 {
        let comms = Comm::local(ranks);
        for layout in ABI_LAYOUTS {
            let config = buffer_config(layout, 128, 256, 8);
            let first = sizes(&comms[0], &config);
            let last = sizes(&comms[ranks - 1], &config);
            assert_eq!(first.total_symmetric, last.total_symmetric);
        }
    }
}

#[test]
fn case_037_numbers_out_of_range_are_refused_with_value_and_limit() {
    let comms = Comm::local(2);
    type Change = fn(&mut deep_ep_buffer_config_t);
    let changes: [(Change, &str, &str, &str); 14] = [
        (|c| c.layout = 4, "layout", "4", ""),
        (|c| c.sync = 3, "sync", "3", ""),
        (|c| c.max_tokens = 0, "max_tokens", "0", "1"),
        (|c| c.max_tokens = -5, "max_tokens", "-5", "1"),
        (|c| c.max_recv_rows = -1, "max_recv_rows", "-1", ""),
        (|c| c.max_row_bytes = 24, "max_row_bytes", "24", "16"),
        (|c| c.max_scale_bytes = -4, "max_scale_bytes", "-4", ""),
        (|c| c.num_experts = 0, "num_experts", "0", "1"),
        (|c| c.num_topk = 0, "num_topk", "0", "1"),
        (|c| c.expert_alignment = 65537, "expert_alignment", "65537", ""),
        (|c| c.dispatch_windows = 65, "dispatch_windows", "65", "64"),
        (|c| c.combine_windows = -1, "combine_windows", "-1", "64"),
        (|c| c.max_in_flight = 9, "max_in_flight", "9", "8"),
        (|c| c.flags = 8, "flags", "8", ""),
    ];
    for (change, field, value, limit) in changes {
        let mut config = buffer_config(deep_ep_layout_t::DEEP_EP_PACKED_BY_EXPERT, 4, 8, 2);
        change(&mut config);
        let status = comms[0].sizes(&config, None).err();
        assert_eq!(status, Some(INVALID_ARGUMENT), "{field} = {value}");
        refused(status.unwrap(), INVALID_ARGUMENT, &["deep_ep_buffer_size", field, value, limit]);
        let status = Buffer::local(&comms, &config, None).err().unwrap();
        refused(status, INVALID_ARGUMENT, &["deep_ep_buffer_create_local", field, value, limit]);
    }
}

#[test]
fn case_038_no_choices_is_refused() {
    let comms = Comm::local(2);
    let config = buffer_config(deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK, 4, 8, 0);
    refused(comms[0].sizes(&config, None).err().unwrap(), INVALID_ARGUMENT, &["num_topk", "0"]);
}

#[test]
fn case_038_more_of_anything_never_needs_less() {
    let few = Comm::local(3);
    let many = Comm::local(5);
    for layout in ABI_LAYOUTS {
        let base = buffer_config(layout, 20, 24, 3);
        let least = sizes(&few[0], &base).total_device;
        type Change = fn(&mut deep_ep_buffer_config_t);
        let changes: [Change; 5] = [
            |c| c.max_tokens = 21,
            |c| c.max_row_bytes = 528,
            |c| c.num_topk = 4,
            |c| c.max_scale_bytes = 64,
            |c| c.max_in_flight = 2,
        ];
        for change in changes {
            let mut config = base;
            change(&mut config);
            assert!(sizes(&few[0], &config).total_device >= least, "{layout:?}");
        }
        let symmetric = sizes(&few[0], &base).total_symmetric;
        assert!(sizes(&many[0], &base).total_symmetric >= symmetric, "{layout:?}: more ranks");
    }
}

#[test]
fn case_039_scales_a_buffer_has_no_room_for_are_refused_naming_the_bytes() {
    for layout in LAYOUTS {
        let mut case = Case::new(layout, &[2, 2], 256, 1, 2, |_, t, _| (t % 2) as i64);
        let world = case.world();
        case.wire = Wire::scaled(FP8, 256, SCALE_FP32, 0);
        let exchange = case.exchange();
        world.run(|rank| {
            let handle = rank.buffer.handle();
            let sending = exchange.sending(rank.rank, Style::default());
            let status = handle.dispatch(&sending.input, &mut dispatch_out());
            refused(status, CAPACITY_EXCEEDED, &["scale", "8", "0"]);
        });
        case.wire = Wire::plain(crate::reference::numbers::BF16, 256);
        case.run_on(&world);
    }
}

#[test]
fn case_107_no_set_of_numbers_is_inconsistent_without_a_name_for_it() {
    let comms = Comm::local(3);
    let mut noise = Noise::new(&[107]);
    let mut good = 0;
    for _ in 0..1000 {
        let mut config = buffer_config(ABI_LAYOUTS[noise.below(4)], 1 + noise.below(5000), 1, 1);
        config.num_experts = noise.below(300) as i32;
        config.num_topk = noise.below(36) as i32;
        config.sync = noise.below(4) as u32;
        config.max_row_bytes = 8 * noise.below(2000) as i64;
        let mut maybe = |value: i64, percent| if noise.chance(percent) { value } else { 0 };
        config.max_recv_rows = maybe(4000, 20);
        config.max_expert_rows = maybe(4000, 20);
        config.max_scale_bytes = maybe(36, 30);
        config.max_combine_row_bytes = maybe(40, 20);
        config.expert_alignment = maybe(128, 20) as i32;
        config.dispatch_windows = maybe(3, 40) as i32;
        config.combine_windows = maybe(66, 10) as i32;
        config.max_in_flight = maybe(4, 40) as i32;
        config.num_sms = maybe(24, 5) as i32;
        match comms[0].sizes(&config, None) {
            Ok(sizes) => {
                good += 1;
                assert!(sizes.total_device > 0);
            }
            Err(status) => {
                assert!([INVALID_ARGUMENT, CAPACITY_EXCEEDED, UNSUPPORTED].contains(&status), "{status:?}");
                assert!(last_error().len() > "deep_ep_buffer_size: ".len());
            }
        }
    }
    assert!(good > 50, "only {good} sets were good");
}

#[test]
fn case_036_the_size_of_random_buffers_is_what_is_mapped_and_they_work() {
    let mut noise = Noise::new(&[36]);
    for _ in 0..50 {
        let layout = LAYOUTS[noise.below(4)];
        let ranks = 1 + noise.below(3);
        let topk = 1 + noise.below(4);
        let experts = topk + noise.below(9);
        let tokens = vec![1 + noise.below(40); ranks];
        let hidden = 8 * (1 + noise.below(64));
        let case =
            Case::new(layout, &tokens, hidden, topk, experts, |r, t, k| ((r + t + k) % experts) as i64);
        let world = case.world();
        let sizes = sizes(&world.ranks[0].comm, &case.config());
        let sum = sizes.dispatch_window + sizes.combine_window + sizes.signals;
        assert_eq!(sizes.total_symmetric, sum);
        assert_eq!(sizes.total_device, sum + sizes.local_outputs);
        assert_eq!(sizes.pinned_host, 0);
        assert!(sizes.local_outputs > 0 || !layout.by_expert());
        let slabs = exchange_slabs(&case);
        assert_eq!((sizes.slabs, sizes.slab_rows), slabs, "{layout:?}");
        case.run_on(&world);
    }
}

/// Slabs of rank 0 and rows in each.
fn exchange_slabs(case: &Case) -> (i64, i64) {
    let (setup, link) = (&case.setup, case.setup.ranks * case.setup.max_tokens);
    match setup.layout {
        Layout::PackedByRank => (1, link as i64),
        Layout::PackedByExpert => {
            let most = setup.owner.iter().filter(|&&owner| owner == 0).count().min(setup.topk);
            (1, (link * most) as i64)
        }
        _ => {
            let (slabs, rows) = setup.slabs(0, None);
            (slabs as i64, rows as i64)
        }
    }
}
