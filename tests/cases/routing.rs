//! Expert ids: how many, which type, which are none. Cases 1 to 13.

use crate::reference::{Layout, LAYOUTS};
use crate::support::exchange::Wire;
use crate::support::memory::Mem;
use crate::support::roundtrip::{once, step};
use crate::support::send::Style;
use crate::support::sum::{Combination, Manner};
use crate::support::*;
use deepep::capi::*;

#[test]
fn case_001_more_choices_than_experts_is_refused_with_both_numbers() {
    let comms = Comm::local(2);
    let config = buffer_config(deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK, 4, 8, 9);
    let status = Buffer::local(&comms, &config, None).err().unwrap();
    refused(status, INVALID_ARGUMENT, &["num_topk", "9", "8"]);
}

#[test]
fn case_001_every_token_to_every_expert() {
    for layout in LAYOUTS {
        let case = Case::new(layout, &[4, 4], 256, 8, 8, |_, _, k| k as i64);
        let exchange = case.exchange();
        assert_eq!(exchange.arrivals[0].true_rows[0], 8);
        case.run();
    }
}

#[test]
fn case_002_ids_of_both_widths_are_exact() {
    for layout in LAYOUTS {
        for ids64 in [false, true] {
            let mut case = Case::new(layout, &[4, 4], 64, 2, 4, |r, t, k| ((r + t + k) % 4) as i64);
            case.wire.ids64 = ids64;
            case.run();
        }
    }
}

#[test]
fn case_002_an_unknown_id_type_is_refused() {
    let case = Case::new(Layout::PackedByRank, &[2], 64, 1, 2, |_, t, _| t as i64);
    let world = case.world();
    let exchange = case.exchange();
    let handle = world.ranks[0].buffer.handle();
    for dtype in [0, 1, 99] {
        let mut sending = exchange.sending(0, Style::default());
        sending.input.topk_idx_dtype = dtype;
        let mut out = dispatch_out();
        let status = handle.dispatch(&sending.input, &mut out);
        refused(status, INVALID_ARGUMENT, &["topk_idx_dtype", &dtype.to_string()]);
    }
    step(&world.ranks[0], &handle, &exchange, &Combination::identity(&exchange));
}

#[test]
fn case_002_every_received_id_slot_is_written() {
    let case = Case::new(Layout::PackedByRank, &[4, 4], 64, 2, 4, |_, t, k| ((t + k) % 4) as i64);
    let world = case.world();
    let exchange = case.exchange();
    world.run(|rank| {
        let handle = rank.buffer.handle();
        let sending = exchange.sending(rank.rank, Style::default());
        let mut ids = Mem::poisoned(4 * 2 * 8);
        ids.bytes_mut().fill(0x77);
        let mut out = dispatch_out();
        out.topk_idx = ids.ptr();
        ok(handle.dispatch(&sending.input, &mut out));
        for id in ids.bytes().chunks(4) {
            let id = i32::from_le_bytes(id.try_into().unwrap());
            assert!((-1..2).contains(&id), "id {id}");
        }
        ok(handle.release());
    });
}

#[test]
fn case_003_any_number_of_choices_up_to_32() {
    for layout in LAYOUTS {
        for topk in [1, 2, 6, 7, 8, 9, 10, 11, 12, 14, 16, 32] {
            Case::new(layout, &[5, 5], 256, topk, 64, |_, t, k| ((t + 3 * k) % 64) as i64).run();
        }
    }
    let config = buffer_config(deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK, 5, 64, 33);
    let status = Buffer::local(&Comm::local(2), &config, None).err().unwrap();
    refused(status, INVALID_ARGUMENT, &["num_topk", "33", "32"]);
}

#[test]
fn case_004_neither_choices_nor_experts_a_power_of_two() {
    for layout in LAYOUTS {
        Case::new(layout, &[9, 9], 128, 7, 42, |_, t, k| ((5 * t + 6 * k) % 42) as i64).run();
    }
}

#[test]
fn case_005_heavy_skew_keeps_its_counts() {
    let route = |_: usize, t: usize, k: usize| if t < 10 { (8 * t + k) as i64 } else { k as i64 };
    let case = Case::new(Layout::PackedByRank, &[2304; 4], 128, 8, 256, route);
    let exchange = case.exchange();
    let mut counts = vec![9180; 8];
    counts.extend(vec![4; 56]);
    assert_eq!(exchange.arrivals[0].expert_counts, counts);
    assert_eq!(exchange.arrivals[1].expert_counts[..16], [4; 16]);
    let rows: Vec<_> = exchange.arrivals.iter().map(|arrival| arrival.true_rows[0]).collect();
    assert_eq!(rows, [9208, 8, 0, 0]);
    case.run_on(&case.world());
}

#[test]
fn case_006_padding_rows_are_not_sent() {
    let route =
        |r: usize, t: usize, k: usize| if t.is_multiple_of(2) { -1 } else { ((t + r + k) % 8) as i64 };
    for layout in LAYOUTS {
        let case = Case::new(layout, &[8; 4], 256, 2, 8, route);
        let exchange = case.exchange();
        let total: i32 = exchange.arrivals.iter().flat_map(|arrival| &arrival.expert_counts).sum();
        assert_eq!(total, 32);
        for source in exchange.arrivals.iter().flat_map(|arrival| &arrival.row_source) {
            assert!(*source == -1 || source % 8 % 2 == 1, "an even row arrived");
        }
        let combination = Combination::identity(&exchange);
        for merged in &combination.expected {
            assert!(merged.rows.iter().step_by(2).flatten().all(|&byte| byte == 0));
        }
        case.world().run(|rank| once(rank, &exchange, &combination));
    }
}

fn case_007(layout: Layout) -> Case {
    let mut case = Case::new(layout, &[3, 3], 128, 2, 4, |_, t, k| ((t + k) % 4) as i64);
    case.ids[0] = vec![4, 0, -2, 1, -1, 3];
    case
}

#[test]
fn case_007_an_id_out_of_range_is_reported_with_row_and_value() {
    for layout in LAYOUTS {
        let case = case_007(layout);
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        case.world().run(|rank| {
            let handle = rank.buffer.handle();
            step(rank, &handle, &exchange, &combination);
            let (report, _) = rank.buffer.report();
            if rank.rank == 0 {
                assert_eq!((report.status, report.row, report.value), (INVALID_EXPERT_ID, 0, 4));
            } else {
                assert_eq!(report.status, SUCCESS);
            }
            rank.buffer.expect_no_report();
        });
    }
}

#[test]
fn case_007_a_buffer_can_refuse_bad_ids_before_any_peer_is_signalled() {
    let mut case = case_007(Layout::PackedByRank);
    let mut config = case.config();
    config.flags = DEEP_EP_BUFFER_REFUSE_BAD_IDS;
    let world = World::new(2, &config);
    let bad = case.exchange();
    case.ids[0] = vec![-1, 0, -1, 1, -1, 3];
    case.ids[1] = vec![-1; 6];
    let good = case.exchange();
    let counts: Vec<_> = good.arrivals.iter().flat_map(|arrival| arrival.expert_counts.clone()).collect();
    assert_eq!(counts, [1, 1, 0, 1]);
    let combination = Combination::identity(&good);
    world.run(|rank| {
        let handle = rank.buffer.handle();
        if rank.rank == 0 {
            let sending = bad.sending(0, Style::default());
            let mut out = dispatch_out();
            let status = handle.dispatch(&sending.input, &mut out);
            refused(status, INVALID_EXPERT_ID, &["deep_ep_handle_dispatch", "0", "4"]);
            assert_eq!(rank.buffer.statistics().epoch, 0, "a refused call consumes no epoch");
        }
        step(rank, &handle, &good, &combination);
        rank.buffer.expect_no_report();
    });
}

#[test]
fn case_008_minus_one_survives_both_widths() {
    for layout in LAYOUTS {
        for ids64 in [false, true] {
            let route = |r: usize, t: usize, k: usize| {
                if (r + t + k).is_multiple_of(2) {
                    -1
                } else {
                    ((t + 3 * k) % 8) as i64
                }
            };
            let mut case = Case::new(layout, &[6, 6], 128, 3, 8, route);
            case.wire.ids64 = ids64;
            case.run();
        }
    }
}

#[test]
fn case_009_unused_slots_do_not_reach_the_sums() {
    // The combination's own rows past the counts are NaN throughout; here they lie where the rows arrived.
    let mut case = Case::new(Layout::SlottedByExpert, &[3; 4], 256, 1, 4, |r, t, _| ((r + t) % 4) as i64);
    case.setup.max_tokens = 16;
    let exchange = case.exchange();
    let combination = Combination::identity(&exchange);
    case.world().run(|rank| {
        let handle = rank.buffer.handle();
        let received = handle.exchange(rank.rank, &exchange, Style::default(), Asked::IN_PLACE);
        let x = received.out.x;
        let row_bytes = exchange.wire.row_bytes();
        for position in 0..x.rows as usize {
            if exchange.arrivals[rank.rank].row_source[position] == -1 {
                let at = x.data.cast::<u8>().wrapping_add(position * x.row_stride as usize);
                // SAFETY: the library's memory for received rows, which are this rank's until the combine.
                unsafe { at.write_bytes(0xFF, row_bytes) };
            }
        }
        let mut input = combine_in();
        input.flags = DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH;
        input.x = x;
        let summing = combination.summing(rank.rank, Manner::default());
        ok(handle.combine_call(&input, &summing.output));
        combination.check(rank.rank, &summing);
    });
}

#[test]
fn case_010_the_header_states_the_range_of_ids_the_sentinel_and_what_happens_otherwise() {
    let header = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/include/deep_ep.h")).unwrap();
    let text = header.replace("\n * ", " ").replace("\n     * ", " ");
    for words in
        ["0 to num_experts - 1", "-1 for \"no expert\"", "the only sentinel", "is treated as -1 and reported"]
    {
        assert!(text.contains(words), "the header lacks {words:?}");
    }
}

#[test]
fn case_011_experts_that_do_not_divide_by_the_ranks_are_exact() {
    for layout in LAYOUTS {
        for experts in [256, 255] {
            let case = Case::new(layout, &[4; 3], 64, 2, experts, |r, t, k| {
                ((85 * r + 37 * t + 86 * k) % experts) as i64
            });
            let world = case.world();
            let local: Vec<_> = world.ranks.iter().map(|rank| rank.buffer.local_experts().len()).collect();
            assert_eq!(local, if experts == 256 { [86, 85, 85] } else { [85, 85, 85] });
            case.run_on(&world);
        }
    }
}

#[test]
fn case_011_fewer_experts_than_ranks_leave_ranks_without_any() {
    for layout in LAYOUTS {
        Case::new(layout, &[3; 4], 64, 2, 2, |_, _, k| k as i64).run();
    }
}

#[test]
fn case_013_a_larger_row_is_refused_naming_the_bytes_and_a_smaller_one_is_exact() {
    let mut case = Case::new(Layout::PackedByRank, &[3, 3], 256, 2, 4, |_, t, k| ((t + k) % 4) as i64);
    let world = case.world();
    case.wire = Wire::plain(crate::reference::numbers::BF16, 512);
    let large = case.exchange();
    world.run(|rank| {
        let handle = rank.buffer.handle();
        let sending = large.sending(rank.rank, Style::default());
        let mut out = dispatch_out();
        let status = handle.dispatch(&sending.input, &mut out);
        refused(status, CAPACITY_EXCEEDED, &["1024", "512"]);
    });
    case.wire = Wire::plain(crate::reference::numbers::BF16, 128);
    case.run_on(&world);
}

#[test]
fn case_007_repeated_ids_count_once_and_are_reported() {
    for layout in LAYOUTS {
        let mut case = Case::new(layout, &[2, 2], 64, 3, 4, |_, t, k| ((t + k) % 4) as i64);
        case.ids[1] = vec![0, 2, 3, 1, 3, 1];
        let exchange = case.exchange();
        let combination = Combination::identity(&exchange);
        case.world().run(|rank| {
            let handle = rank.buffer.handle();
            step(rank, &handle, &exchange, &combination);
            let (report, _) = rank.buffer.report();
            if rank.rank == 1 {
                assert_eq!((report.status, report.row, report.value), (INVALID_EXPERT_ID, 1, 1));
            } else {
                assert_eq!(report.status, SUCCESS);
            }
        });
    }
}

#[test]
fn case_002_ids_beyond_32_bits_are_not_cut_to_a_valid_one() {
    let mut case = Case::new(Layout::PackedByRank, &[1, 1], 64, 1, 4, |_, _, _| 0);
    case.ids[0] = vec![(1 << 32) + 1];
    let exchange = case.exchange();
    assert_eq!(exchange.arrivals[0].true_rows[0], 1, "only rank 1's token is routed");
    case.run();
}
