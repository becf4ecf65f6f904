//! All-gather, sharing and abort among ranks of one process.

use super::control::{Control, Look, Publication};
use super::{Group, UniqueId};
use crate::error::Status;
use crate::mem::Region;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Runs `work` on a thread for each group.
fn each<T: Send>(groups: &[Group], work: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = groups.iter().map(|group| scope.spawn(|| work(group))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Groups of both kinds: sharing objects within the process, and passing descriptors.
fn both_kinds(num_ranks: u32) -> [Vec<Group>; 2] {
    let id = UniqueId::create(None).unwrap();
    let joined = std::thread::scope(|scope| {
        let join = |rank| Group::join(rank, num_ranks, &id, LONG).unwrap();
        let threads: Vec<_> = (0..num_ranks).map(|rank| scope.spawn(move || join(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    [Group::local(num_ranks).unwrap(), joined]
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *state >> 33
}

fn payload(rank: u32, round: u64) -> Vec<u8> {
    let mut state = round * 100 + u64::from(rank);
    let len = match random(&mut state) % 8 {
        0 => 0,
        1 => random(&mut state) % 100_000,
        _ => random(&mut state) % 9000,
    };
    (0..len).map(|i| (state + i) as u8).collect()
}

#[test]
fn a_thousand_gathers_of_any_size() {
    let groups = Group::local(3).unwrap();
    each(&groups, |group| {
        let mut state = u64::from(group.rank());
        for round in 0..1000 {
            if random(&mut state).is_multiple_of(20) {
                std::thread::sleep(Duration::from_micros(random(&mut state) % 1500));
            }
            let all = group.all_gather(&payload(group.rank(), round), None, LONG).unwrap();
            for (rank, theirs) in (0..).zip(&all) {
                assert_eq!(*theirs, payload(rank, round), "round {round}, rank {rank}");
            }
        }
    });
}

#[test]
fn too_much_is_refused_and_no_more() {
    let group = &Group::local(1).unwrap()[0];
    let big = vec![0; super::MAX_GATHER_BYTES + 1];
    assert_eq!(group.all_gather(&big, None, LONG).unwrap_err().status, Status::DEEP_EP_INVALID_ARGUMENT);
    assert_eq!(group.all_gather(&big[..100_000], None, LONG).unwrap(), [&big[..100_000]]);
}

#[test]
fn a_missing_rank_is_named_and_can_come_back() {
    let groups = Group::local(3).unwrap();
    let came = AtomicU64::new(0);
    each(&groups, |group| {
        if group.rank() == 2 {
            while came.load(Ordering::Acquire) < 2 {
                std::thread::sleep(millis(1));
            }
            // The call it missed: all the others' parts are there.
            assert_eq!(group.all_gather(b"late", None, LONG).unwrap()[..2], [vec![0], vec![1]]);
        } else {
            let error = group.all_gather(&[group.rank() as u8], None, millis(50)).unwrap_err();
            assert_eq!((error.status, &error.ranks[..]), (Status::DEEP_EP_TIMEOUT, &[2][..]), "{error}");
            came.fetch_add(1, Ordering::Release);
        }
        let all = group.all_gather(&payload(group.rank(), 5), None, LONG).unwrap();
        assert_eq!(all, [payload(0, 5), payload(1, 5), payload(2, 5)]);
    });
}

#[test]
fn a_rank_that_gave_up_does_not_feed_old_calls() {
    let groups = Group::local(2).unwrap();
    for _ in 0..3 {
        let error = groups[0].all_gather(b"x", None, millis(5)).unwrap_err();
        assert_eq!(error.ranks, [1]);
    }
    let start = Instant::now();
    let error = groups[1].all_gather(b"y", None, LONG).unwrap_err();
    assert_eq!((error.status, &error.ranks[..]), (Status::DEEP_EP_TIMEOUT, &[0][..]));
    assert!(error.text.contains("given up") && start.elapsed() < LONG / 2);
    // Calls pair up by number, so the newest two can still be made up for.
    assert_eq!(groups[1].all_gather(b"y", None, LONG).unwrap()[0], b"x");
    assert_eq!(groups[1].all_gather(b"y", None, LONG).unwrap()[0], b"x");
    let all = each(&groups, |group| group.all_gather(&[group.rank() as u8], None, LONG).unwrap());
    assert_eq!(all, [[[0], [1]], [[0], [1]]]);
}

#[test]
fn subsets_gather_without_the_others() {
    let groups = Group::local(4).unwrap();
    each(&groups, |group| group.all_gather(b"all", None, LONG).unwrap());
    let alive = [true, false, true, true];
    each(&groups, |group| {
        if group.rank() == 1 {
            // Masked, and behind: it is told so and disturbs nobody.
            let error = group.all_gather(b"behind", None, millis(100)).unwrap_err();
            assert!(matches!(error.status, Status::DEEP_EP_TIMEOUT | Status::DEEP_EP_CONFIG_MISMATCH));
            return;
        }
        for round in 0..50 {
            let all = group.all_gather(&payload(group.rank(), round), Some(&alive), LONG).unwrap();
            assert_eq!(all, [payload(0, round), vec![], payload(2, round), payload(3, round)]);
        }
        let region = Arc::new(Region::create(1).unwrap());
        let regions = group.share_region(region, Some(&alive), LONG).unwrap();
        assert_eq!(regions.iter().map(Option::is_some).collect::<Vec<_>>(), alive);
    });
    for (alive, names) in
        [(&alive[..3], "3 entries for 4"), (&[false, true, true, true], "leaves out rank 0")]
    {
        let error = groups[0].all_gather(b"", Some(alive), LONG).unwrap_err();
        assert_eq!(error.status, Status::DEEP_EP_INVALID_ARGUMENT);
        assert!(error.text.contains(names), "{error}");
    }
}

#[test]
fn different_subsets_are_named() {
    let groups = Group::local(2).unwrap();
    let errors = each(&groups, |group| {
        let alive = [true, true];
        let other = [group.rank() == 0, true];
        let alive = if group.rank() == 0 { alive } else { other };
        group.all_gather(b"", Some(&alive), millis(200)).map_err(|error| (error.status, error.ranks))
    });
    // Rank 1 is content without rank 0.
    assert_eq!(errors[0], Err((Status::DEEP_EP_CONFIG_MISMATCH, vec![1])));
    assert!(errors[1].is_ok());
}

#[test]
fn agreement_is_everybodys() {
    let groups = Group::local(3).unwrap();
    let outcomes = each(&groups, |group| {
        assert_eq!(group.agree(Ok(group.rank()), None, LONG), Ok(group.rank()));
        let mine = if group.rank() == 1 { Err(Region::create(1 << 45).unwrap_err()) } else { Ok(()) };
        group.agree(mine, None, LONG).unwrap_err()
    });
    assert!(outcomes.iter().all(|error| error.status == Status::DEEP_EP_OUT_OF_MEMORY));
    assert_eq!(outcomes[0].ranks, [1]);
    assert_eq!(outcomes[0].text, format!("rank 1: {}", outcomes[1].text));
}

/// The first words of a region, one per rank.
fn words(region: &Region) -> &[AtomicU64; 3] {
    // SAFETY: a region has at least a page, mapped as long as it lives, and is used as atomics only.
    unsafe { &*region.as_ptr().cast() }
}

#[test]
fn shared_regions_are_the_same_memory() {
    for groups in both_kinds(3) {
        each(&groups, |group| {
            for size in [1usize, 70_000, 4096] {
                let bytes = size * (group.rank() as usize + 1);
                let mine = Arc::new(Region::create(bytes).unwrap());
                let regions = group.share_region(mine.clone(), None, LONG).unwrap();
                mine.close_fd();
                assert!(Arc::ptr_eq(regions[group.rank() as usize].as_ref().unwrap(), &mine));
                for (owner, region) in (0..).zip(&regions) {
                    let region = region.as_ref().unwrap();
                    assert!(region.len() >= size * (owner + 1));
                    words(region)[group.rank() as usize]
                        .store(u64::from(group.rank()) + 7, Ordering::Release);
                }
                group.all_gather(&[], None, LONG).unwrap();
                let seen: Vec<u64> = words(&mine).iter().map(|word| word.load(Ordering::Acquire)).collect();
                assert_eq!(seen, [7, 8, 9]);
                drop(regions);
                group.all_gather(&[], None, LONG).unwrap();
                assert_eq!(Arc::strong_count(&mine), 1, "somebody still holds the region");
            }
        });
    }
}

#[test]
fn a_region_that_cannot_be_shared_fails_everywhere() {
    let [_, groups] = both_kinds(3);
    let errors = each(&groups, |group| {
        let mine = Arc::new(Region::create(1).unwrap());
        if group.rank() == 2 {
            mine.close_fd();
        }
        let error = group.share_region(mine, None, LONG).unwrap_err();
        group.all_gather(&[], None, LONG).unwrap(); // and they are still in step
        error
    });
    assert!(errors.iter().all(|error| error.status == Status::DEEP_EP_INVALID_STATE), "{errors:?}");
    assert_eq!(errors[0].ranks, [2]);
}

#[test]
fn descriptors_arrive_at_every_peer() {
    for groups in both_kinds(3) {
        each(&groups, |group| {
            let regions: Vec<Region> =
                (0..group.rank()).map(|i| Region::create(4096 << i).unwrap()).collect();
            let fds: Vec<_> = regions.iter().map(|region| region.fd().unwrap()).collect();
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            let all = group.exchange_fds(&fds, None, LONG).unwrap();
            let counts: Vec<usize> =
                (0..3).map(|rank| if rank == group.rank() { 0 } else { rank as usize }).collect();
            assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), counts);
            for (i, fd) in all.iter().flat_map(|fds| fds.iter().enumerate()) {
                assert_eq!(Region::map(fd.as_fd(), 4096 << i).unwrap().len(), 4096 << i);
            }
            let region = Region::create(1).unwrap().fd().unwrap();
            let error = group.exchange_fds(&[region.as_fd(); 65], None, LONG).unwrap_err();
            assert_eq!(error.status, Status::DEEP_EP_INVALID_ARGUMENT);
        });
    }
}

#[test]
fn an_abort_ends_the_waits_of_all() {
    for groups in both_kinds(3) {
        let start = Instant::now();
        each(&groups, |group| {
            assert_eq!(group.aborted(), None);
            if group.rank() == 1 {
                std::thread::sleep(millis(50));
                group.abort("out of patience");
            }
            let region = Arc::new(Region::create(1).unwrap());
            let error = match group.rank() {
                0 => group.all_gather(b"", None, LONG).unwrap_err(),
                _ => group.share_region(region, None, LONG).unwrap_err(),
            };
            assert_eq!((error.status, &error.ranks[..]), (Status::DEEP_EP_ABORTED, &[1][..]));
            assert_eq!(error.text, "rank 1 aborted: out of patience");
            group.abort("too late");
            assert_eq!(group.aborted(), Some((1, "out of patience".to_owned())));
        });
        assert!(start.elapsed() < LONG / 2);
    }
}

#[test]
fn only_groups_of_one_local_call_share_a_process() {
    let [local, joined] = both_kinds(2);
    assert!(local[0].same_process(&local[1]));
    assert!(!local[0].same_process(&Group::local(2).unwrap()[0]));
    assert!(!joined[0].same_process(&joined[1]) && !joined[0].same_process(&joined[0]));
    assert!(!local[0].in_forked_child() && !local[0].host_label().is_empty());
    assert_eq!((joined[1].rank(), joined[1].num_ranks()), (1, 2));
}

/// Ends the other thread also when this one fails.
pub(super) struct StopAtEnd<'a>(pub &'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_look_never_returns_a_mix_of_two_publications() {
    let control = Control::create().unwrap();
    let stop = AtomicBool::new(false);
    let newest = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0u64;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                let chunk = number.to_ne_bytes().repeat(if number.is_multiple_of(2) { 1000 } else { 30 });
                let publication =
                    Publication { number, total: chunk.len() as u64, members: number, chunk: &chunk };
                control.publish(number, &publication);
                newest.store(number, Ordering::Relaxed);
            }
        });
        let _stop = StopAtEnd(&stop);
        let (mut taken, mut gone) = (0, 0);
        let start = Instant::now();
        while start.elapsed() < millis(300) {
            let number = newest.load(Ordering::Relaxed).max(1);
            let mut into = Vec::new();
            match control.look(number, 0, &mut into) {
                Look::Taken { total, members } => {
                    taken += 1;
                    assert_eq!((total as usize, members), (into.len(), number));
                    assert!(into.chunks_exact(8).all(|word| word == number.to_ne_bytes()));
                }
                Look::Gone => gone += 1,
                Look::Early => {}
            }
        }
        assert!(taken > 0 && gone > 0, "{taken} taken, {gone} gone: the race did not happen");
    });
}
