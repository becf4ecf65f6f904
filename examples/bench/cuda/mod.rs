//! The benchmark of the CUDA backend, through the C ABI: one process for each GPU, or threads that share one.

mod case;
mod crew;
mod estimate;
mod goals;
mod gpu;
mod job;
mod link;
mod list;
mod memory;
mod plot;
mod pool;
mod predicted;
mod record;
mod report;
mod results;
mod run;
mod sequence;
mod tables;
mod worker;

use crate::common::Outcome;
use case::Case;
use list::Group;
use record::Record;
use sequence::Effort;
use std::path::PathBuf;

/// Where nothing else is known: of ranks that share a device, and of those that `--list` is about.
const RANKS: usize = 2;

#[derive(clap::Args)]
pub struct Options {
    /// Groups of cases.
    #[arg(long, value_delimiter = ',', default_values_t = Group::ALL.map(|g| format!("{g:?}").to_lowercase()))]
    groups: Vec<String>,
    /// Only cases whose name contains one of these.
    #[arg(long, value_delimiter = ',')]
    cases: Vec<String>,
    /// Only say which cases there are, about how many seconds each takes, and what it is to reach.
    #[arg(long)]
    list: bool,
    /// Only say how many devices there are.
    #[arg(long)]
    devices: bool,
    /// How many ranks; on GPUs of their own, as many as there are if nothing is said.
    #[arg(long)]
    ranks: Option<usize>,
    /// Ranks share one GPU, also where there are more.
    #[arg(long)]
    shared: bool,
    /// Begin no case that would not end within so many seconds.
    #[arg(long)]
    budget: Option<f64>,
    /// Give up a case after so many seconds; the library's waits end after a quarter of it.
    #[arg(long, default_value_t = 30)]
    case_seconds: u32,
    /// Replays of each graph of 20 operations; sweeps take a quarter.
    #[arg(long, default_value_t = 200)]
    replays: usize,
    /// Enqueue the calls each time instead of replaying a graph.
    #[arg(long)]
    eager: bool,
    /// Few tokens and replays: shows that it works, not how fast; so do the names of its results.
    #[arg(long)]
    quick: bool,
    /// Write {throughput,latency,sweeps,not_measured}_SETUP.json into this directory, after every case.
    #[arg(long)]
    results: Option<PathBuf>,
    /// Write all results as an array of JSON objects.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Draw bandwidth against SMs and time against tokens into this PNG file.
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Write the results into this Markdown file, between the markers of their setup, and beside predictions.
    #[arg(long)]
    markdown: Option<PathBuf>,
    /// Write the table of the ways to synchronise into this Markdown file, between its markers.
    #[arg(long)]
    sync_markdown: Option<PathBuf>,
    /// Do not measure, but show the results of earlier runs.
    #[arg(long, value_delimiter = ',')]
    from: Vec<PathBuf>,

    /// How the program starts itself as a worker.
    #[arg(long, hide = true)]
    worker: Option<String>,
}

pub fn run(options: &Options) -> Outcome<()> {
    if let Some(orders) = &options.worker {
        let orders: worker::Orders = serde_json::from_str(orders).map_err(|error| error.to_string())?;
        return worker::run(&orders, &list::all(&orders.effort));
    }
    if options.devices {
        println!("{}", gpu::count());
        return Ok(());
    }
    if options.list {
        return options.list_cases();
    }
    let (records, outcome) = match options.from.as_slice() {
        [] => run::measure(options)?,
        files => (show(files)?, Ok(())),
    };
    if let Some(file) = &options.json {
        report::write(file, &report::to_json(&records)?)?;
    }
    if let Some(file) = &options.markdown {
        report::into_markdown(file, &records)?;
    }
    if let Some(file) = &options.sync_markdown {
        report::into_sync_markdown(file, &records)?;
    }
    if let Some(file) = &options.plot {
        plot::draw(file, &records)?;
    }
    outcome
}

fn show(files: &[PathBuf]) -> Outcome<Vec<Record>> {
    let read: Vec<Vec<Record>> = files.iter().map(|file| report::from_json(file)).collect::<Outcome<_>>()?;
    let records = read.concat();
    println!("{}", report::heading());
    records.iter().for_each(|record| println!("{}", report::row(record)));
    Ok(records)
}

impl Options {
    /// `sms`: that a rank may use.
    fn effort(&self, sms: u32) -> Effort {
        Effort {
            replays: if self.quick { self.replays.min(2) } else { self.replays },
            graphs: !self.eager,
            quick: self.quick,
            sms,
            case_seconds: self.case_seconds,
        }
    }

    fn groups(&self) -> Outcome<Vec<Group>> {
        let parse = |name: &String| <Group as clap::ValueEnum>::from_str(name, true);
        self.groups.iter().map(parse).collect()
    }

    fn chosen(&self, id: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|part| id.contains(part))
    }

    /// What is to be measured, in this order, with the numbers that workers know cases by. Points of sweeps with more SMs
    /// than there are left out.
    fn cases(&self, effort: &Effort) -> Outcome<Vec<(usize, Case)>> {
        let groups = self.groups()?;
        let wanted = |case: &Case| {
            groups.contains(&case.group)
                && self.chosen(&case.id)
                && (case.group.is_numbered() || case.sms <= effort.sms)
        };
        Ok(list::all(effort).into_iter().enumerate().filter(|(_, case)| wanted(case)).collect())
    }

    fn has_memory_case(&self) -> Outcome<bool> {
        Ok(self.groups()?.contains(&Group::Latency) && self.chosen(memory::CASE))
    }

    fn list_cases(&self) -> Outcome<()> {
        let (effort, ranks) = (self.effort(u32::MAX), self.ranks.unwrap_or(RANKS));
        let mut total = 0.0;
        for (_, case) in self.cases(&effort)? {
            let seconds = estimate::seconds(&case, ranks, &effort);
            total += seconds;
            let goal = goals::of(&case, ranks, !self.shared).text();
            println!("{:<44} {seconds:>5.1} s   {goal}", case.id);
        }
        if self.has_memory_case()? {
            println!("{:<44} {:>5} s   {}", memory::CASE, "-", memory::GOAL.text());
        }
        eprintln!("about {total:.0} s with {ranks} ranks");
        Ok(())
    }
}
