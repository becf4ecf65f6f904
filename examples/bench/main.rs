//! The benchmark of the host backend, through the C ABI. Speed is given as a ratio to what plain memcpy reaches in the
//! same run, since machines differ and are seldom idle.

mod alloc;
mod bandwidth;
#[path = "../common/mod.rs"]
mod common;
mod cuda;
mod latency;
mod lifetime;
mod machine;
mod measure;
mod pair;
mod quiet;
mod report;

use clap::Parser;
use common::Outcome;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use machine::Machine;
use measure::Case;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

/// Measures the host backend: large operations beside memcpy, small ones in microseconds, and what a buffer takes.
#[derive(Parser)]
#[command(name = "bench")]
struct Options {
    #[command(subcommand)]
    backend: Option<Backend>,
    /// Write the results as an array of JSON objects; the first is the machine.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write the results into this Markdown file, as its section "Host backend".
    #[arg(long)]
    markdown: Option<PathBuf>,
    /// Do not measure, but show the results of an earlier --json.
    #[arg(long, conflicts_with = "quick")]
    from: Option<PathBuf>,
    /// Small shapes and few rounds: shows that it works, not how fast.
    #[arg(long)]
    quick: bool,

    // How the program starts itself as another process of a case.
    #[arg(long, hide = true, requires = "pairs")]
    role: Option<String>,
    #[arg(long, hide = true, default_value = "")]
    id: String,
    #[arg(long, hide = true, default_value_t = 0)]
    pairs: usize,
    /// Make a system call where none may be, for the test of the watch.
    #[arg(long, hide = true)]
    plant: bool,
}

#[derive(clap::Subcommand)]
enum Backend {
    /// Measures the CUDA backend instead.
    Cuda(cuda::Options),
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(Backend::Cuda(options)) = &options.backend {
        return end(cuda::run(options));
    }
    let outcome = match options.role.as_deref() {
        Some(latency::ROLE) => latency::peer(&options.id, options.pairs),
        Some(quiet::ROLE) => quiet::watched(options.pairs, options.plant),
        Some(role) => Err(format!("no role is called {role}")),
        None => run(&options),
    };
    end(outcome)
}

fn end(outcome: Outcome<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Outcome<()> {
    let (machine, cases) = match &options.from {
        Some(file) => {
            let text = std::fs::read_to_string(file)
                .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
            report::from_json(&text)?
        }
        None => (Machine::this(), measure_all(options.quick)?),
    };
    print!("{}", report::table(&machine, &cases));
    if let Some(file) = &options.json {
        std::fs::write(file, report::to_json(&machine, &cases)? + "\n")
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    if let Some(file) = &options.markdown {
        report::into_markdown(file, &machine, &cases)?;
    }
    let missed = cases.iter().filter(|case| case.met == Some(false)).count();
    println!("\n{} cases, {missed} goals missed", cases.len());
    Ok(())
}

fn measure_all(quick: bool) -> Outcome<Vec<Case>> {
    let (tokens, rounds, pairs) = if quick { (256, 12, 2_000) } else { (4096, 62, 50_000) };
    let groups: Vec<usize> =
        [2, 4].into_iter().filter(|&ranks| ranks == 2 || ranks <= machine::cores()).collect();
    let progress = Progress::new((groups.len() * rounds + 4) as u64);
    let mut cases = Vec::new();
    for ranks in groups {
        progress.say(&format!("packed, {ranks} ranks"));
        let plan = bandwidth::Plan { ranks, tokens, rounds };
        cases.extend(bandwidth::run(&plan, &|| progress.step())?);
    }
    progress.say("slotted pair, 2 processes");
    cases.push(latency::run(pairs)?);
    progress.step();
    progress.say("slotted pair without system calls");
    cases.extend(quiet::run(pairs)?);
    progress.step();
    progress.say("sizes");
    cases.extend(lifetime::exact_sizes()?);
    progress.step();
    progress.say("cycles of create and destroy");
    cases.push(lifetime::cycles()?);
    progress.step();
    Ok(cases)
}

/// A bar on a terminal, a line per case elsewhere; on standard error.
struct Progress(ProgressBar);

impl Progress {
    fn new(steps: u64) -> Progress {
        let style = ProgressStyle::with_template("{msg} [{bar:40}] {pos}/{len}, {elapsed}");
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        Progress(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
    }

    fn say(&self, text: &str) {
        if std::io::stderr().is_terminal() {
            self.0.set_message(text.to_string());
        } else {
            eprintln!("measuring: {text}");
        }
    }

    fn step(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
