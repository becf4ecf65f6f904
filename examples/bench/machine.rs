//! What it ran on.

use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Clone)]
pub struct Machine {
    pub case: String,
    pub cpu: String,
    pub cores: usize,
    pub kernel: String,
    pub memory_gib: u64,
    /// Processes that wanted to run, on average over the last minute before the measurement.
    pub load: String,
    /// The priority it ran with: negative goes before others.
    pub nice: i32,
    pub date: String,
    pub version: String,
}

impl Machine {
    pub fn this() -> Machine {
        let field = |file: &str, name: &str| -> String {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_string();
            line.split_once(':').map_or_else(String::new, |(_, value)| value.trim().to_string())
        };
        let kib: u64 = field("/proc/meminfo", "MemTotal")
            .split(' ')
            .next()
            .and_then(|number| number.parse().ok())
            .unwrap_or(0);
        let text = |file: &str| std::fs::read_to_string(file).unwrap_or_default().trim().to_string();
        Machine {
            case: "machine".into(),
            cpu: field("/proc/cpuinfo", "model name"),
            cores: cores(),
            kernel: text("/proc/sys/kernel/osrelease"),
            memory_gib: kib >> 20,
            load: text("/proc/loadavg").split(' ').next().unwrap_or_default().into(),
            // SAFETY: a query without memory effects.
            nice: unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) },
            date: today(),
            version: env!("CARGO_PKG_VERSION").into(),
        }
    }

    pub fn line(&self) -> String {
        format!(
            "{}, {} cores, {} GiB, Linux {}, load {} from others at the start, nice {}, {}, version {}",
            self.cpu, self.cores, self.memory_gib, self.kernel, self.load, self.nice, self.date, self.version
        )
    }
}

pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Keeps this thread on one of the cores that it may use, so that ranks do not meet on the same one.
pub fn stay_on_core(number: usize) {
    // SAFETY: a set of cores is plain data, and the calls read or write only that.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        if libc::sched_getaffinity(0, size, &mut set) != 0 {
            return;
        }
        let mine: Vec<usize> =
            (0..libc::CPU_SETSIZE as usize).filter(|&core| libc::CPU_ISSET(core, &set)).collect();
        let Some(&core) = mine.get(number % mine.len().max(1)) else { return };
        libc::CPU_ZERO(&mut set);
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size, &set);
    }
}

/// The date in UTC as YYYY-MM-DD.
pub fn today() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seconds = now.map_or(0, |since| since.as_secs()) as libc::time_t;
    // SAFETY: plain data, filled in by the call.
    let date = unsafe {
        let mut date: libc::tm = std::mem::zeroed();
        libc::gmtime_r(&seconds, &mut date);
        date
    };
    format!("{:04}-{:02}-{:02}", date.tm_year + 1900, date.tm_mon + 1, date.tm_mday)
}
