//! That a buffer takes what the size function says, and that nothing stays behind when it is gone.

use crate::alloc;
use crate::common::{local_group, sizes, Buffer, Outcome};
use crate::measure::Case;
use crate::pair::{config, run_all, Pair};
use deepep::capi::*;

const CYCLES: usize = 200;
/// Until the allocator has what the cycles need at most.
const WARM_UP: usize = 20;
/// What the resident set may move by: a few pages of the allocator, not 200 of anything.
const SLACK_KIB: i64 = 256;

const LAYOUTS: [(deep_ep_layout_t, &str); 4] = [
    (deep_ep_layout_t::DEEP_EP_PACKED_BY_RANK, "packed by rank"),
    (deep_ep_layout_t::DEEP_EP_PACKED_BY_EXPERT, "packed by expert"),
    (deep_ep_layout_t::DEEP_EP_SLOTTED_BY_RANK, "slotted by rank"),
    (deep_ep_layout_t::DEEP_EP_SLOTTED_BY_EXPERT, "slotted by expert"),
];

/// Bytes mapped by this process: of the library's shared memory, and without a name.
#[derive(Clone, Copy)]
struct Mapped {
    shared: i64,
    anonymous: i64,
}

impl Mapped {
    fn now() -> Mapped {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mut mapped = Mapped { shared: 0, anonymous: 0 };
        for line in maps.lines() {
            let size = line.split([' ', '-']).take(2).filter_map(|hex| i64::from_str_radix(hex, 16).ok());
            let size = size.fold(0, |start, end| end - start);
            if line.contains("memfd:deepep") {
                mapped.shared += size;
            } else if line.split_ascii_whitespace().count() == 5 {
                mapped.anonymous += size;
            }
        }
        mapped
    }
}

/// Compares the size function with what the kernel and the allocator counted.
pub fn exact_sizes() -> Outcome<Vec<Case>> {
    LAYOUTS.into_iter().map(|(layout, name)| exact_size(layout, name)).collect()
}

fn exact_size(layout: deep_ep_layout_t, name: &str) -> Outcome<Case> {
    let mut comms = local_group(1)?;
    let mut config = config(layout)?;
    config.max_tokens = 37;
    let promised = sizes(&comms[0], &config)?;
    let before = Mapped::now();
    let buffer = Buffer::create(&mut comms[0], &config)?;
    let after = Mapped::now();
    let held = alloc::held();
    let handle = buffer.handle()?;
    let heap = alloc::held() - held;
    drop(handle);
    let parts = [
        ("symmetric", promised.total_symmetric, after.shared - before.shared),
        ("local", promised.local_outputs, after.anonymous - before.anonymous),
        ("handle", promised.handle, heap),
    ];
    let counts = parts
        .iter()
        .flat_map(|(part, said, got)| [(format!("{part}_said"), *said), (format!("{part}_allocated"), *got)]);
    Ok(Case {
        case: format!("size function, {name}"),
        ranks: 1,
        shape: "T=37 H=7168 BF16".into(),
        counts: counts.collect(),
        goal: "said = allocated, to the byte".into(),
        met: Some(parts.iter().all(|(_, said, got)| said == got)),
        ..Case::default()
    })
}

/// Creates, uses and destroys a group again and again.
pub fn cycles() -> Outcome<Case> {
    (0..WARM_UP).try_for_each(|_| cycle())?;
    let before = Resources::now();
    (0..CYCLES).try_for_each(|_| cycle())?;
    let after = Resources::now();
    let (grown, opened, mapped) = (
        after.resident_kib - before.resident_kib,
        after.descriptors - before.descriptors,
        after.mapped.shared - before.mapped.shared,
    );
    Ok(Case {
        case: format!("{CYCLES} cycles of create, step, destroy"),
        ranks: 2,
        shape: "slotted, T=1 H=7168 BF16".into(),
        counts: [("resident_kib", grown), ("descriptors", opened), ("shared_bytes", mapped)]
            .map(|(name, count)| (name.to_string(), count))
            .into(),
        goal: format!("no more than {SLACK_KIB} KiB, no descriptor, no mapping"),
        met: Some(grown <= SLACK_KIB && opened == 0 && mapped == 0),
        ..Case::default()
    })
}

fn cycle() -> Outcome<()> {
    let mut comms = local_group(2)?;
    let config = config(deep_ep_layout_t::DEEP_EP_SLOTTED_BY_RANK)?;
    let buffers = Buffer::create_local(&mut comms, &config)?;
    let mut pairs: Vec<Pair> = buffers.iter().map(|buffer| Pair::new(buffer, 1)).collect::<Outcome<_>>()?;
    run_all(&mut pairs)
}

struct Resources {
    resident_kib: i64,
    descriptors: i64,
    mapped: Mapped,
}

impl Resources {
    fn now() -> Resources {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let resident: i64 = pages.split(' ').nth(1).and_then(|number| number.parse().ok()).unwrap_or(0);
        // SAFETY: a query without memory effects.
        let page_kib = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } / 1024;
        Resources {
            resident_kib: resident * page_kib,
            descriptors: std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as i64),
            mapped: Mapped::now(),
        }
    }
}
