//! The demo: one MoE layer over the bytes of a text, with ranks as processes that exchange their rows through the C ABI.
//! The output is compared with that of a single rank, byte for byte.

#[path = "../common/mod.rs"]
mod common;
mod compare;
mod message;
mod model;
mod options;
mod parent;
mod progress;
mod rank;
mod tables;
mod text;

use clap::Parser;
use common::{id_from_text, local_group, Comm, Outcome};
use message::Message;
use options::Options;
use progress::Progress;
use rank::{Layer, ROW_BYTES};
use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::Instant;

/// How long ranks wait for one another to come.
const MEET_MS: u32 = 30_000;

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(rank) = options.rank {
        return one_rank_of_many(&options, rank);
    }
    match demo(&options) {
        Ok(line) => {
            println!("OK: {line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn demo(options: &Options) -> Outcome<String> {
    if options.top_k > options.experts {
        return Err(format!("--top-k {} is more than --experts {}", options.top_k, options.experts));
    }
    let text = text::read(options)?;
    println!(
        "{}: {} tokens over {} ranks, {} experts, top {}, hidden {}, BF16 rows, batches of {}, combine EXACT",
        options.file.display(),
        text.len(),
        options.ranks,
        options.experts,
        options.top_k,
        model::HIDDEN,
        options.batch
    );
    let start = Instant::now();
    let (ranks, batch) = (options.ranks(), options.batch());
    let mut progress =
        Progress::new(&format!("{ranks} ranks"), ranks * text::batches(text.len(), ranks, batch));
    let done = parent::run(options, &text, &mut || progress.step())?;
    drop(progress);
    let parallel = start.elapsed();
    let reports: Vec<_> = done.iter().map(|(report, _)| report.clone()).collect();
    tables::per_rank(&reports);
    tables::per_expert(&reports);
    if let Some(lost) = tables::lost_rows(&reports) {
        return Err(lost);
    }
    let start = Instant::now();
    let want = alone(options, &text)?;
    let got: Vec<u8> = done.into_iter().flat_map(|(_, rows)| rows).collect();
    println!(
        "{ranks} ranks: {:.2} s; one rank: {:.2} s",
        parallel.as_secs_f64(),
        start.elapsed().as_secs_f64()
    );
    match compare::difference(&got, &want, ROW_BYTES) {
        Some(difference) => Err(difference),
        None => Ok(format!(
            "{} tokens, {ranks} ranks, output equals the one-rank run bit for bit ({} bytes)",
            text.len(),
            got.len()
        )),
    }
}

/// The same layer with one rank, in this process.
fn alone(options: &Options, text: &[u8]) -> Outcome<Vec<u8>> {
    let mut comms = local_group(1)?;
    let mut progress = Progress::new("one rank", text::batches(text.len(), 1, options.batch()));
    let layer = Layer::new(options, &mut comms[0], 0, 1)?;
    let (_, rows) = layer.run(text, &mut |_| {
        progress.step();
        Ok(())
    })?;
    Ok(rows.to_vec())
}

/// What a process does that was started as one rank.
fn one_rank_of_many(options: &Options, rank: usize) -> ExitCode {
    let mut out = std::io::stdout().lock();
    let told = match run_rank(options, rank, &mut out) {
        Ok((message, rows)) => message::write(&mut out, &message, &rows),
        Err(error) => message::write(&mut out, &Message::Failed(error), &[]).and(Err("failed".into())),
    };
    if told.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run_rank(options: &Options, rank: usize, out: &mut impl Write) -> Outcome<(Message, Vec<u8>)> {
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text).map_err(|error| format!("cannot read the text: {error}"))?;
    let id = id_from_text(options.unique_id.as_deref().unwrap_or_default())?;
    let mut comm = Comm::join(rank, options.ranks(), id, MEET_MS)?;
    let layer = Layer::new(options, &mut comm, rank, options.ranks())?;
    let (report, rows) = layer.run(&text, &mut |number| {
        if options.kill == Some(rank) && number == 1 {
            // SAFETY: ends this very process, as the tests ask for.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        message::write(out, &Message::Batch, &[])
    })?;
    let mut rows = rows.to_vec();
    if let (true, Some(byte)) = (options.corrupt == Some(rank), rows.last_mut()) {
        *byte ^= 1;
    }
    Ok((Message::Done(report, rows.len()), rows))
}
