//! The benchmark of the CUDA backend, through the C ABI: one process for each of two GPUs, or two threads that share one.

mod case;
mod gpu;
mod group;
mod job;
mod link;
mod list;
mod memory;
mod plot;
mod pool;
mod record;
mod report;
mod sequence;

use crate::common::Outcome;
use case::Case;
use list::Group;
use record::{Record, Setup};
use sequence::Effort;
use std::path::PathBuf;

const RANKS: usize = 2;
const POOL_BYTES: u64 = 6 << 30;
const QUICK_TOKENS: usize = 16;
const QUICK_POOL_BYTES: u64 = 1 << 30;

#[derive(clap::Args)]
pub struct Options {
    /// Groups of cases.
    #[arg(long, value_delimiter = ',', default_values_t = Group::ALL.map(|g| format!("{g:?}").to_lowercase()))]
    groups: Vec<String>,
    /// Only cases whose name contains one of these.
    #[arg(long, value_delimiter = ',')]
    cases: Vec<String>,
    /// Only say which cases there are.
    #[arg(long)]
    list: bool,
    /// Replays of each graph of 20 operations; sweeps take a quarter.
    #[arg(long, default_value_t = 200)]
    replays: usize,
    /// Enqueue the calls each time instead of replaying a graph.
    #[arg(long)]
    eager: bool,
    /// Two ranks on one GPU, also where there are two.
    #[arg(long)]
    shared: bool,
    /// Few tokens and replays: shows that it works, not how fast.
    #[arg(long, conflicts_with = "results")]
    quick: bool,
    /// Write throughput_SETUP.json, latency_SETUP.json and sweeps_SETUP.json into this directory.
    #[arg(long)]
    results: Option<PathBuf>,
    /// Write all results as an array of JSON objects.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Draw bandwidth against SMs and time against tokens into this PNG file.
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Write the results into this Markdown file, between the markers of their setup.
    #[arg(long)]
    markdown: Option<PathBuf>,
    /// Do not measure, but show the results of earlier runs.
    #[arg(long, value_delimiter = ',')]
    from: Vec<PathBuf>,

    // How the program starts itself for another rank.
    #[arg(long, hide = true)]
    rank: Option<usize>,
    #[arg(long, hide = true, default_value_t = 0)]
    ranks: usize,
    #[arg(long, hide = true, default_value = "")]
    id: String,
}

pub fn run(options: &Options) -> Outcome<()> {
    if options.list {
        return options.list_cases();
    }
    if let Some(rank) = options.rank {
        let gpu = gpu::Gpu::open(rank)?;
        let cases = options.cases(gpu.sms)?;
        return group::rank(gpu, rank, options.ranks, &options.id, &cases, &options.effort());
    }
    let records = match options.from.as_slice() {
        [] => options.measure()?,
        files => {
            let read: Vec<Vec<Record>> =
                files.iter().map(|file| report::from_json(file)).collect::<Outcome<_>>()?;
            let records = read.concat();
            println!("{}", report::heading());
            records.iter().for_each(|record| println!("{}", report::row(record)));
            records
        }
    };
    if let Some(file) = &options.json {
        report::write(file, &report::to_json(&records)?)?;
    }
    if let Some(file) = &options.markdown {
        report::into_markdown(file, &records)?;
    }
    if let Some(file) = &options.plot {
        plot::draw(file, &records)?;
    }
    Ok(())
}

impl Options {
    fn effort(&self) -> Effort {
        let (replays, pool_bytes) =
            if self.quick { (self.replays.min(2), QUICK_POOL_BYTES) } else { (self.replays, POOL_BYTES) };
        Effort { replays, graphs: !self.eager, pool_bytes }
    }

    fn groups(&self) -> Outcome<Vec<Group>> {
        let parse = |name: &String| <Group as clap::ValueEnum>::from_str(name, true);
        self.groups.iter().map(parse).collect()
    }

    fn chosen(&self, id: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|part| id.contains(part))
    }

    /// The same list in every process. `sms`: that a rank may use.
    fn cases(&self, sms: u32) -> Outcome<Vec<Case>> {
        let mut cases: Vec<Case> = self.groups()?.into_iter().flat_map(Group::cases).collect();
        cases.retain(|case| self.chosen(&case.id) && (case.group == Group::Throughput || case.sms <= sms));
        if self.quick {
            for case in &mut cases {
                case.tokens = case.tokens.min(QUICK_TOKENS);
                case.sms = case.sms.min(sms);
            }
        }
        Ok(cases)
    }

    fn has_memory_case(&self) -> Outcome<bool> {
        Ok(self.groups()?.contains(&Group::Latency) && self.chosen(memory::CASE))
    }

    fn list_cases(&self) -> Outcome<()> {
        self.cases(u32::MAX)?.iter().for_each(|case| println!("{}", case.id));
        if self.has_memory_case()? {
            println!("{}", memory::CASE);
        }
        Ok(())
    }

    fn measure(&self) -> Outcome<Vec<Record>> {
        let devices = gpu::count();
        if devices == 0 {
            return Err("there is no CUDA device here".into());
        }
        let shared = self.shared || devices < RANKS;
        let gpu = gpu::Gpu::open(0)?;
        let link = link::measure(if shared { 1 } else { devices })?;
        let setup = Setup::find(RANKS, shared, !self.eager, link);
        let what =
            if shared { "ranks share one GPU; its memory stands for the link" } else { "one process a GPU" };
        println!("{}: {}; {what}", setup.name, setup.machine);
        println!(
            "push by SMs {:.1} GB/s, by copy engines {:.1} GB/s, each way, both ways at once\n",
            link.push, link.copy
        );
        let cases = self.cases(gpu.sms / if shared { RANKS as u32 } else { 1 })?;
        let mut records = Vec::new();
        println!("{}", report::heading());
        let tell = &mut |case: &Case, seen: Result<Vec<sequence::Seen>, String>| {
            let record = setup.record(case, seen);
            println!("{}", report::row(&record));
            records.push(record);
        };
        match shared {
            true => group::threads(gpu, RANKS, &cases, &self.effort(), tell)?,
            false => group::processes(RANKS, &std::env::args().skip(1).collect::<Vec<_>>(), &cases, tell)?,
        }
        if self.has_memory_case()? {
            records.push(setup.memory(memory::CASE, memory::symmetric_bytes(), memory::REACH_MIB));
            records.last().into_iter().for_each(|record| println!("{}", report::row(record)));
        }
        if let Some(dir) = &self.results {
            report::write_results(dir, &setup.name, &records)?;
        }
        let (failed, missed) = (
            records.iter().filter(|record| record.failed.is_some()).count(),
            records.iter().filter(|record| record.met() == Some(false)).count(),
        );
        println!("\n{} cases, {failed} not measured, {missed} goals missed", records.len());
        Ok(records)
    }
}
