//! The proof that operations whose peers are prompt make no system call: both ranks take turns on one thread, which the
//! kernel would kill for any call but those that end it.

use crate::alloc;
use crate::common::{local_group, Buffer, Outcome};
use crate::measure::{quantile, Case};
use crate::pair::{config, run_all, Pair, HIDDEN};
use deepep::capi::deep_ep_layout_t;
use std::process::Command;
use std::time::Instant;

/// The argument by which the process is started that is to be watched.
pub const ROLE: &str = "quiet";
const RANKS: usize = 2;
const LAYOUTS: [(deep_ep_layout_t, &str); 2] = [
    (deep_ep_layout_t::DEEP_EP_SLOTTED_BY_RANK, "by rank"),
    (deep_ep_layout_t::DEEP_EP_SLOTTED_BY_EXPERT, "by expert"),
];

pub fn run(pairs: usize) -> Outcome<Vec<Case>> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(program)
        .args(["--role", ROLE, "--pairs", &pairs.to_string()])
        .output()
        .map_err(|error| format!("cannot start the watched process: {error}"))?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        return Err(match output.status.code() {
            Some(_) => told.trim().into(),
            None => {
                format!("a system call on the data path: the watched process ended with {}", output.status)
            }
        });
    }
    let text = String::from_utf8_lossy(&output.stdout);
    LAYOUTS.iter().zip(text.lines()).map(|((_, name), line)| case(pairs, name, line)).collect()
}

fn case(pairs: usize, name: &str, line: &str) -> Outcome<Case> {
    let numbers: Vec<f64> = line.split(' ').filter_map(|number| number.parse().ok()).collect();
    let [median, p99, allocations] = numbers[..] else { return Err(format!("unexpected: {line}")) };
    Ok(Case {
        case: format!("slotted pair {name}, peers prompt"),
        ranks: RANKS,
        shape: format!("both ranks on one thread, T=1 H={HIDDEN} BF16"),
        us_median: Some(median),
        us_p99: Some(p99),
        counts: [("pairs", pairs as i64), ("allocations", allocations as i64), ("system_calls", 0)]
            .map(|(name, count)| (name.to_string(), count))
            .into(),
        goal: "no allocation, no system call".into(),
        met: Some(allocations == 0.0),
        ..Case::default()
    })
}

/// Measures, and leaves the process with the numbers on standard output. `plant`: with a system call of its own.
pub fn watched(pairs: usize, plant: bool) -> Outcome<()> {
    let mut results = Vec::with_capacity(LAYOUTS.len());
    let mut groups = Vec::new();
    for (layout, _) in LAYOUTS {
        let mut comms = local_group(RANKS)?;
        let buffers = Buffer::create_local(&mut comms, &config(layout)?)?;
        let mut ranks: Vec<Pair> = (0..RANKS as u64)
            .map(|rank| Pair::new(&buffers[rank as usize], rank + 1))
            .collect::<Outcome<_>>()?;
        // Pages are touched, and each window used, before anything is forbidden.
        (0..200).try_for_each(|_| run_all(&mut ranks))?;
        groups.push((ranks, buffers, comms, vec![1.0; pairs]));
    }
    forbid_system_calls()?;
    if plant {
        std::thread::yield_now();
    }
    for (ranks, _, _, us) in &mut groups {
        let allocations = alloc::calls();
        for sample in us.iter_mut() {
            let begin = Instant::now();
            run_all(ranks)?;
            *sample = begin.elapsed().as_nanos() as f64 / 1e3;
        }
        results.push((alloc::calls() - allocations, us));
    }
    for (allocations, us) in results {
        let line = format!("{} {} {allocations}\n", quantile(us, 0.5), quantile(us, 0.99));
        // SAFETY: writes the bytes of a string that lives.
        unsafe { libc::write(1, line.as_ptr().cast(), line.len()) };
    }
    // Giving memory back takes system calls.
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}

/// From here on the kernel kills the process for any system call but writing and leaving.
fn forbid_system_calls() -> Outcome<()> {
    let step = |code: u32, jump: u8, k: u32| libc::sock_filter { code: code as u16, jt: jump, jf: 0, k };
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut filter = [
        // The number of the system call is the first field of what a filter sees.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(equal, 2, libc::SYS_write as u32),
        step(equal, 1, libc::SYS_exit_group as u32),
        step(answer, 0, libc::SECCOMP_RET_KILL_PROCESS),
        step(answer, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its steps live for the calls, which change this process only.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    };
    if set {
        Ok(())
    } else {
        Err(format!("this system has no seccomp filters: {}", std::io::Error::last_os_error()))
    }
}
