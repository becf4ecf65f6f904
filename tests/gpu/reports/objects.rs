//! Memory, contexts, and objects beside each other.

use crate::cases::Case;
use crate::memory::{Arena, Where};
use crate::ranks::{last_error, ok, Seat, World};
use crate::rng::Rng;
use crate::stamped::{Rank, Setup};
use crate::stress;
use crate::{cuda, devices};
use deepep::capi::*;

pub fn on_a_gpu() -> bool {
    !crate::against_itself() && crate::ready()
}

pub fn setup() -> Setup {
    Setup {
        seed: 77,
        ranks: 2,
        layout: 0,
        sync: 0,
        tokens: 24,
        max_tokens: 24,
        max_row_bytes: 128,
        topk: 3,
        experts: 8,
        in_flight: 1,
        windows: 0,
        sms: 8,
        stages: 0,
    }
}

/// The last of the windows lie beyond 4 GiB.
#[test]
fn report_033_windows_beyond_4_gib() {
    if !on_a_gpu() {
        return;
    }
    for layout in [0, 1] {
        let large = Setup { layout, max_tokens: 4096, max_row_bytes: 65_536, topk: 2, windows: 8, ..setup() };
        assert!(stress::run(&large, Where::Device));
    }
}

#[test]
fn report_048_numbers_of_sms_out_of_range() {
    if !on_a_gpu() {
        return;
    }
    let world = World::create(Where::Device, 2).unwrap();
    for num_sms in [-1, 133, i32::MAX] {
        let mut config = setup().config(Where::Device);
        config.num_sms = num_sms;
        let mut buffers = [std::ptr::null_mut(); 2];
        let status = unsafe {
            deep_ep_buffer_create_local(world.comms.as_ptr(), &config, std::ptr::null(), buffers.as_mut_ptr())
        };
        assert_eq!(status, deep_ep_status_t::DEEP_EP_INVALID_ARGUMENT, "{num_sms}");
        assert!(last_error().contains("num_sms"), "{}", last_error());
    }
}

/// Steps of several worlds, each rank's thread taking one of each in turn.
fn side_by_side(setups: &[Setup], seats: Vec<Vec<(usize, Seat)>>) {
    std::thread::scope(|scope| {
        for me in 0..setups[0].ranks {
            let seats: Vec<_> = seats.iter().map(|all| all[me]).collect();
            scope.spawn(move || {
                let rank = |(setup, seat)| Rank::new(setup, Where::Device, seat, 2, 16);
                let mut ranks: Vec<Rank> = setups.iter().zip(seats).map(rank).collect();
                let mut dice: Vec<Rng> = setups.iter().map(|setup| Rng::new(setup.seed)).collect();
                for stretch in 0..4 {
                    let inputs: Vec<_> =
                        ranks.iter_mut().map(|rank| rank.prepare(stretch * 16..(stretch + 1) * 16)).collect();
                    for step in 0..16 {
                        for ((rank, inputs), dice) in ranks.iter_mut().zip(&inputs).zip(&mut dice) {
                            rank.step(&inputs[step], dice);
                        }
                    }
                    ranks.iter_mut().for_each(Rank::check);
                }
                ranks.iter_mut().for_each(Rank::finish);
            });
        }
    });
}

#[test]
fn report_067_two_buffers_of_one_comm() {
    if !on_a_gpu() {
        return;
    }
    let setups = [setup(), Setup { seed: 78, layout: 1, in_flight: 2, sync: 2, ..setup() }];
    let world = World::create(Where::Device, 2).unwrap();
    let seats = |setup: &Setup| world.seats(world.buffers(&setup.config(Where::Device), None)).collect();
    side_by_side(&setups, setups.iter().map(seats).collect());
}

#[test]
fn several_comms_in_one_process() {
    if !on_a_gpu() {
        return;
    }
    let setups = [setup(), Setup { seed: 79, sync: 1, ..setup() }, Setup { seed: 80, layout: 1, ..setup() }];
    let worlds: Vec<_> = setups.iter().map(|_| World::create(Where::Device, 2).unwrap()).collect();
    let seats = |(world, setup): (&World, &Setup)| {
        world.seats(world.buffers(&setup.config(Where::Device), None)).collect()
    };
    side_by_side(&setups, worlds.iter().zip(&setups).map(seats).collect());
}

/// Objects go in any order, with a group beside them that goes on.
#[test]
fn report_092_objects_are_destroyed_in_any_order() {
    if !on_a_gpu() {
        return;
    }
    for order in 0..3 {
        let world = World::create(Where::Device, 2).unwrap();
        let buffers = world.buffers(&setup().config(Where::Device), None);
        let handles = buffers.iter().map(|buffer| {
            let mut handle = std::ptr::null_mut();
            ok(unsafe { deep_ep_handle_create(buffer.0, &mut handle) });
            handle
        });
        let handles: Vec<_> = handles.collect();
        let end_handles = || handles.iter().for_each(|&handle| ok(unsafe { deep_ep_handle_destroy(handle) }));
        if order == 0 {
            end_handles();
        }
        if order == 2 {
            drop(world);
        }
        for buffer in buffers {
            ok(unsafe { deep_ep_buffer_destroy(buffer.0) });
        }
        if order > 0 {
            end_handles();
        }
    }
    assert!(stress::run(&setup(), Where::Device));
}

#[test]
fn report_095_the_size_that_is_said_is_the_size_that_is_taken() {
    if !on_a_gpu() {
        return;
    }
    let world = World::create(Where::Device, 2).unwrap();
    for (layout, max_tokens) in [(0, 300), (1, 300), (0, 5000), (1, 2000)] {
        let config = Setup { layout, max_tokens, max_row_bytes: 4096, ..setup() }.config(Where::Device);
        // What a first buffer takes beside its memory stays for the next.
        for buffer in world.buffers(&config, None) {
            ok(unsafe { deep_ep_buffer_destroy(buffer.0) });
        }
        let mut sizes: deep_ep_buffer_sizes_t = unsafe { std::mem::zeroed() };
        ok(unsafe { deep_ep_buffer_sizes_init(&mut sizes, size_of::<deep_ep_buffer_sizes_t>()) });
        ok(unsafe { deep_ep_buffer_size(world.comms[0], &config, std::ptr::null(), &mut sizes) });
        let before = cuda::free_bytes();
        let buffers = world.buffers(&config, None);
        let taken = before as i64 - cuda::free_bytes() as i64;
        let granule = devices::count() as i64 * (2 << 20);
        let beside = taken - 2 * sizes.total_device;
        assert!(
            (-granule..=2 * granule).contains(&beside),
            "{taken} bytes taken, 2 * {} said",
            sizes.total_device
        );
        for buffer in buffers {
            ok(unsafe { deep_ep_buffer_destroy(buffer.0) });
        }
        let left = before as i64 - cuda::free_bytes() as i64;
        assert!(left <= granule, "{left} bytes are not given back");
    }
}

/// Tests take their arrays from cuMemCreate; here from cuMemAlloc, at addresses that no granule begins with.
#[test]
fn report_097_inputs_of_another_allocator() {
    if !on_a_gpu() {
        return;
    }
    let arena = Arena::classic(Where::Device, 0);
    let array = arena.array(1000);
    assert_ne!(array.address() % (2 << 20), 0);
    let case = Case { classic_memory: true, ranks: 3, ..Case::default() };
    crate::same(Case { by_expert: true, align: 4, ..case.clone() });
    crate::same(case);
}

/// Makes calls under a context of one's own, or none, and can look whether it is still there.
fn with_context(device: Option<i32>, work: impl FnOnce(&dyn Fn())) {
    let context = device.map(cuda::new_context);
    let current = cuda::current_context();
    assert_eq!(current, context.unwrap_or(std::ptr::null_mut()));
    work(&|| assert_eq!(cuda::current_context(), current));
    if let Some(context) = context {
        cuda::end_context(context);
    }
}

/// Whatever context a thread has, of whichever device, or none, it has after every call.
#[test]
fn the_callers_context_is_untouched() {
    if !on_a_gpu() {
        return;
    }
    assert!(stress::run(&setup(), Where::Device)); // the library has its own by now
    for own in [false, true] {
        // Where there are several, not the rank's device.
        let device = move |rank: usize| own.then(|| devices::of(rank + 1));
        let all = move |is_there: &dyn Fn()| {
            let (world, setup) = (World::create(Where::Device, 2).unwrap(), setup());
            let buffers = world.buffers(&setup.config(Where::Device), None);
            is_there();
            std::thread::scope(|scope| {
                for seat in world.seats(buffers) {
                    let setup = &setup;
                    scope.spawn(move || {
                        with_context(device(seat.0), |is_there| {
                            let mut rank = Rank::new(setup, Where::Device, seat, 2, 40);
                            let mut dice = Rng::new(5);
                            for input in rank.prepare(0..40) {
                                rank.step(&input, &mut dice);
                                is_there();
                            }
                            rank.check();
                            rank.finish();
                            is_there();
                        })
                    });
                }
            });
            drop(world);
            is_there();
        };
        std::thread::spawn(move || with_context(device(0), all)).join().unwrap();
    }
}
