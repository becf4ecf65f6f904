//! Processes that share device memory, in each of the ways that there are, and what is refused. The emulated devices can be
//! told what not to have; what needs that is not tested on others.

mod lifetime;
mod refused;

use crate::cases::{Case, Mode};
use crate::cuda;
use crate::graphs::{kill_in_the_middle, Middle};
use crate::processes::{
    as_it_is, child_rank, compare_rank, join, kill_one, parent_or_child, run_all, try_join, Environment,
};
use deepep::capi::deep_ep_status_t::*;

const WAY: &str = "DEEPEP_CUDA_SHARING";

/// Of a test that needs a GPU, or is a rank of one.
fn runs() -> bool {
    child_rank().is_some() || (!crate::against_itself() && crate::ready())
}

/// Of a test that tells the devices what not to have.
fn runs_emulated() -> bool {
    runs() && cuda::is_emulated()
}

fn set(all: &[(&'static str, &str)]) -> Environment {
    all.iter().map(|&(name, value)| (name, value.to_string())).collect()
}

fn case() -> Case {
    Case { ranks: 2, rounds: 4, ..Case::default() }
}

#[test]
fn processes_on_all_gpus() {
    if runs() {
        let case = Case { mode: Mode::InPlace, ..case() };
        parent_or_child("sharing::processes_on_all_gpus", case, as_it_is);
    }
}

#[test]
fn processes_on_all_gpus_by_expert() {
    if runs() {
        let case = Case { ranks: 4, by_expert: true, align: 8, mode: Mode::Caller, ..case() };
        parent_or_child("sharing::processes_on_all_gpus_by_expert", case, as_it_is);
    }
}

#[test]
fn processes_on_all_gpus_with_slots() {
    if runs() {
        let case = Case { ranks: 3, slotted: true, ..case() };
        parent_or_child("sharing::processes_on_all_gpus_with_slots", case, as_it_is);
    }
}

#[test]
fn processes_that_see_one_gpu_each() {
    const TEST: &str = "sharing::processes_that_see_one_gpu_each";
    if !runs() {
        return;
    }
    let gpus = cuda::device_count();
    parent_or_child(TEST, case(), |rank| vec![("CUDA_VISIBLE_DEVICES", (rank % gpus).to_string())]);
}

#[test]
fn by_descriptor() {
    if runs() {
        parent_or_child("sharing::by_descriptor", case(), |_| set(&[(WAY, "fd")]));
    }
}

#[test]
fn by_legacy_ipc() {
    if runs() {
        parent_or_child("sharing::by_legacy_ipc", case(), |_| set(&[(WAY, "ipc")]));
    }
}

#[test]
fn by_legacy_ipc_with_slots() {
    if runs() {
        let case = Case { ranks: 3, slotted: true, by_expert: true, ..case() };
        parent_or_child("sharing::by_legacy_ipc_with_slots", case, |_| set(&[(WAY, "ipc")]));
    }
}

/// Where nobody may use the fabric that is refused by name, on every rank.
#[test]
fn by_fabric() {
    if !runs() {
        return;
    }
    let Some(rank) = child_rank() else {
        return run_all("sharing::by_fabric", 2, |_| set(&[(WAY, "fabric"), ("EMULATOR_FABRIC", "1")]));
    };
    match try_join(rank, 2) {
        Ok(comm) => compare_rank(&case(), rank, comm),
        Err((status, text)) => {
            assert!(!cuda::is_emulated(), "{text}");
            assert_eq!(status, DEEP_EP_UNSUPPORTED, "{text}");
            assert!(text.contains("DEEPEP_CUDA_SHARING is fabric"), "{text}");
            eprintln!("no fabric here: {text}");
        }
    }
}

#[test]
fn a_killed_process_with_descriptors() {
    if runs() {
        kill_one("sharing::a_killed_process_with_descriptors", |_| set(&[(WAY, "fd")]));
    }
}

#[test]
fn a_killed_process_with_legacy_ipc() {
    if runs() {
        kill_one("sharing::a_killed_process_with_legacy_ipc", |_| set(&[(WAY, "ipc")]));
    }
}

#[test]
fn a_killed_process_with_fabric() {
    if runs_emulated() {
        let environment = set(&[(WAY, "fabric"), ("EMULATOR_FABRIC", "1")]);
        kill_one("sharing::a_killed_process_with_fabric", |_| environment.clone());
    }
}

#[test]
fn killed_in_a_dispatch() {
    if runs() {
        kill_in_the_middle("sharing::killed_in_a_dispatch", Middle::Dispatch, as_it_is);
    }
}

#[test]
fn killed_in_a_combine() {
    if runs() {
        kill_in_the_middle("sharing::killed_in_a_combine", Middle::Combine, as_it_is);
    }
}

#[test]
fn killed_in_a_replay() {
    if runs() {
        kill_in_the_middle("sharing::killed_in_a_replay", Middle::Replay, as_it_is);
    }
}

#[test]
fn killed_in_a_dispatch_with_legacy_ipc() {
    if runs() {
        let test = "sharing::killed_in_a_dispatch_with_legacy_ipc";
        kill_in_the_middle(test, Middle::Dispatch, |_| set(&[(WAY, "ipc")]));
    }
}

/// Without being asked for: the best of what is there. What is not to be taken is not there.
#[test]
fn the_fabric_is_taken_first() {
    if runs_emulated() {
        let environment =
            set(&[("EMULATOR_FABRIC", "1"), ("EMULATOR_DESCRIPTORS", "0"), ("EMULATOR_IPC", "0")]);
        parent_or_child("sharing::the_fabric_is_taken_first", case(), |_| environment.clone());
    }
}

#[test]
fn descriptors_are_taken_where_the_fabric_only_says_that_it_is_there() {
    if runs_emulated() {
        const TEST: &str = "sharing::descriptors_are_taken_where_the_fabric_only_says_that_it_is_there";
        parent_or_child(TEST, case(), |_| set(&[("EMULATOR_IPC", "0")]));
    }
}

/// One process may use the fabric, the other not.
#[test]
fn all_ranks_take_what_works_on_all() {
    if runs_emulated() {
        let fabric = |rank: usize| vec![("EMULATOR_FABRIC", (1 - rank).to_string())];
        parent_or_child("sharing::all_ranks_take_what_works_on_all", case(), fabric);
    }
}

#[test]
fn legacy_ipc_is_taken_where_nothing_else_works() {
    if runs_emulated() {
        let environment = |_| set(&[("EMULATOR_DESCRIPTORS", "0")]);
        parent_or_child("sharing::legacy_ipc_is_taken_where_nothing_else_works", case(), environment);
    }
}

#[test]
fn devices_without_virtual_memory() {
    if runs_emulated() {
        let case = Case { by_expert: true, align: 4, ..case() };
        let environment = |_| set(&[("EMULATOR_VIRTUAL_MEMORY", "0")]);
        parent_or_child("sharing::devices_without_virtual_memory", case, environment);
    }
}

/// All ranks in one process, their memory as if it were for several.
#[test]
fn one_process_with_each_way() {
    const TEST: &str = "sharing::one_process_with_each_way";
    if !runs() {
        return;
    }
    if child_rank().is_some() {
        crate::same(Case { ranks: 3, rounds: 4, ..Case::default() });
        crate::same(Case { ranks: 3, rounds: 4, slotted: true, by_expert: true, ..Case::default() });
        return crate::graphs::one_left_out(Case { ranks: 3, mode: Mode::InPlace, ..Case::default() });
    }
    let mut environments = vec![set(&[(WAY, "fd")]), set(&[(WAY, "ipc")])];
    if cuda::is_emulated() {
        environments.push(set(&[(WAY, "fabric"), ("EMULATOR_FABRIC", "1")]));
        environments.push(set(&[("EMULATOR_VIRTUAL_MEMORY", "0"), ("EMULATOR_IPC", "0")]));
    }
    for environment in environments {
        run_all(TEST, 1, |_| environment.clone());
    }
}

/// Ranks of one process that met as ranks of several do: a process cannot open its own blocks.
#[test]
fn ranks_of_one_process_that_meet_by_an_id() {
    const TEST: &str = "sharing::ranks_of_one_process_that_meet_by_an_id";
    if !runs() {
        return;
    }
    if child_rank().is_some() {
        let rank = |rank| move || compare_rank(&case(), rank, join(rank, 2));
        return std::thread::scope(|scope| {
            let ranks = [0, 1].map(|number| scope.spawn(rank(number)));
            ranks.into_iter().for_each(|rank| rank.join().unwrap());
        });
    }
    for way in ["fd", "ipc"] {
        run_all(TEST, 1, |_| set(&[(WAY, way)]));
    }
}
