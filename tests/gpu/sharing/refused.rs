//! Ranks that cannot use each other's memory are told so when they join, with names.

use super::{runs, runs_emulated, set, WAY};
use crate::memory::Where;
use crate::processes::{child_rank, run_all, try_join, Environment};
use crate::ranks::World;
use deepep::capi::deep_ep_status_t::{self, *};

/// Every rank of two is refused with this status, and the words are in its text.
fn refused(test: &str, status: deep_ep_status_t, words: &[&str], environment: impl Fn(usize) -> Environment) {
    let Some(rank) = child_rank() else { return run_all(test, 2, environment) };
    let (found, text) = try_join(rank, 2).map(|_| ()).unwrap_err();
    assert_eq!(found, status, "{text}");
    words.iter().for_each(|word| assert!(text.contains(word), "{text}"));
}

#[test]
fn a_way_that_is_none() {
    if runs() {
        let words = ["DEEPEP_CUDA_SHARING is pigeon", "fabric, fd, ipc"];
        refused("sharing::refused::a_way_that_is_none", DEEP_EP_INVALID_ARGUMENT, &words, |_| {
            set(&[(WAY, "pigeon")])
        });
    }
}

#[test]
fn report_098_different_ways() {
    if runs() {
        let way = |rank| set(&[(WAY, ["fd", "ipc"][rank])]);
        let words = ["rank 0, DEEPEP_CUDA_SHARING is fd", "rank 1, DEEPEP_CUDA_SHARING is ipc"];
        refused("sharing::refused::report_098_different_ways", DEEP_EP_CONFIG_MISMATCH, &words, way);
    }
}

#[test]
fn a_way_that_does_not_work() {
    if runs_emulated() {
        let words = ["DEEPEP_CUDA_SHARING is fabric, which does not work here", "NOT_PERMITTED"];
        refused("sharing::refused::a_way_that_does_not_work", DEEP_EP_UNSUPPORTED, &words, |_| {
            set(&[(WAY, "fabric")])
        });
    }
}

#[test]
fn no_way_at_all() {
    if runs_emulated() {
        let environment = |_| set(&[("EMULATOR_DESCRIPTORS", "0"), ("EMULATOR_IPC", "0")]);
        let words = ["fabric: ", "fd: ", "ipc: ", "cuIpcGetMemHandle"];
        refused("sharing::refused::no_way_at_all", DEEP_EP_UNSUPPORTED, &words, environment);
    }
}

#[test]
fn devices_of_different_sizes() {
    if runs_emulated() {
        let environment = |rank| set(&[("EMULATOR_SMS", ["8", "6"][rank])]);
        refused(
            "sharing::refused::devices_of_different_sizes",
            DEEP_EP_CONFIG_MISMATCH,
            &["8 SMs", "6"],
            environment,
        );
    }
}

const TWO_APART: [(&str, &str); 2] = [("EMULATOR_GPUS", "2"), ("EMULATOR_PEERS", "0")];
const NO_ATOMICS: [(&str, &str); 2] = [("EMULATOR_GPUS", "2"), ("EMULATOR_PEER_ATOMICS", "0")];

#[test]
fn report_100_devices_without_peer_access() {
    if runs_emulated() {
        let test = "sharing::refused::report_100_devices_without_peer_access";
        refused(test, DEEP_EP_PEER_UNREACHABLE, &["rank 0", "rank 1", "no peer access"], |_| set(&TWO_APART));
    }
}

#[test]
fn report_101_devices_without_nvlink() {
    if runs_emulated() {
        let test = "sharing::refused::report_101_devices_without_nvlink";
        refused(
            test,
            DEEP_EP_PEER_UNREACHABLE,
            &["rank 0", "rank 1", "NVLink", "DEEP_EP_BACKEND_HOST"],
            |_| set(&NO_ATOMICS),
        );
    }
}

/// Nobody can ask about a device that is not seen: only the trial finds out.
#[test]
fn report_100_unseen_devices_without_peer_access() {
    if runs_emulated() {
        let environment =
            |rank: usize| [set(&TWO_APART), vec![("CUDA_VISIBLE_DEVICES", rank.to_string())]].concat();
        let test = "sharing::refused::report_100_unseen_devices_without_peer_access";
        refused(test, DEEP_EP_PEER_UNREACHABLE, &["fd: ", "ipc: ", "cannot be opened"], environment);
    }
}

#[test]
fn report_100_one_process_without_peer_access() {
    const TEST: &str = "sharing::refused::report_100_one_process_without_peer_access";
    if !runs_emulated() {
        return;
    }
    if child_rank().is_none() {
        for environment in [TWO_APART, NO_ATOMICS] {
            run_all(TEST, 1, |_| set(&environment));
        }
        return;
    }
    let (status, text) = World::create(Where::Device, 2).map(|_| ()).unwrap_err();
    assert_eq!(status, DEEP_EP_PEER_UNREACHABLE, "{text}");
    assert!(text.contains("rank 0") && text.contains("rank 1"), "{text}");
}
