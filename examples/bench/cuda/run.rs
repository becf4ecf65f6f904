//! One run: what is there, what the links take, and then case after case, each in its time.

use super::case::Case;
use super::crew::Crew;
use super::link::Link;
use super::record::{Record, Setup};
use super::results::Results;
use super::sequence::Effort;
use super::worker::{Answers, Post};
use super::{estimate, gpu, memory, report, Options, RANKS};
use crate::common::Outcome;
use std::time::{Duration, Instant};

const LINK_LIMIT: Duration = Duration::from_secs(60);
const MEMORY_LIMIT: Duration = Duration::from_secs(30);
/// A case gets so many times what was estimated.
const LENIENCE: f64 = 4.0;
/// Groups in a row that could not meet, after which the rest is not tried.
const TRIES: usize = 2;
const NO_TIME: &str = "not begun: no time left";

/// The records, and whether everything was measured.
pub fn measure(options: &Options) -> Outcome<(Vec<Record>, Outcome<()>)> {
    let devices = gpu::count();
    if devices == 0 {
        return Err("there is no CUDA device here".into());
    }
    let shared = options.shared || devices < 2;
    let ranks = options.ranks.unwrap_or(if shared { RANKS } else { devices });
    if ranks == 0 || (!shared && !(2..=devices).contains(&ranks)) {
        return Err(format!("{ranks} ranks on {devices} devices; from 2 on, or with --shared"));
    }
    let effort = options.effort(gpu::sms()? / if shared { ranks as u32 } else { 1 });
    let mut run = Run::begin(options, ranks, shared, effort)?;
    let cases = options.cases(&run.effort)?;
    let estimated: f64 = cases.iter().map(|(_, case)| estimate::seconds(case, ranks, &run.effort)).sum();
    println!("{} cases, about {estimated:.0} s\n\n{}", cases.len(), report::heading());
    let (numbered, others): (Vec<_>, Vec<_>) = cases.iter().partition(|(_, case)| case.group.is_numbered());
    run.all(&numbered)?;
    if options.has_memory_case()? {
        run.memory()?;
    }
    run.all(&others)?;
    Ok(run.end())
}

struct Run<'a> {
    options: &'a Options,
    begin: Instant,
    setup: Setup,
    shared: bool,
    effort: Effort,
    results: Option<Results>,
    records: Vec<Record>,
    /// None before it is needed, and after a case that failed.
    crew: Option<Crew>,
    lost_crews: usize,
    /// What cases took and were estimated to take.
    taken: f64,
    estimated: f64,
    not_begun: usize,
}

impl<'a> Run<'a> {
    fn begin(options: &'a Options, ranks: usize, shared: bool, effort: Effort) -> Outcome<Run<'a>> {
        let begin = Instant::now();
        let mut setup = Setup::find(ranks, shared, effort.quick, effort.graphs);
        let what =
            if shared { "ranks share one GPU; its memory stands for the links" } else { "one process a GPU" };
        println!("{}: {}, {ranks} ranks; {what}", setup.name, setup.machine);
        let link = Crew::of(&[("the links".into(), Post::Link { ends: ranks, shared })], &effort)
            .and_then(|mut crew| Ok((crew.ask::<Outcome<Link>>("", LINK_LIMIT)?, crew.dismiss())))
            .and_then(|(answers, ())| answers.into_iter().collect::<Outcome<Vec<Link>>>());
        match link {
            Ok(links) => setup.link = links.first().copied(),
            Err(error) => println!("the links could not be measured, so there are no ratios: {error}"),
        }
        if let Some(link) = setup.link {
            println!(
                "each GPU to and from all others at once: push {:.1} GB/s, pull {:.1} GB/s, copy engines {:.1} GB/s",
                link.push, link.pull, link.copy
            );
        }
        let results = options.results.as_ref().map(|dir| Results::open(dir, &setup.name)).transpose()?;
        Ok(Run {
            options,
            begin,
            setup,
            shared,
            effort,
            results,
            records: Vec::new(),
            crew: None,
            lost_crews: 0,
            taken: 0.0,
            estimated: 0.0,
            not_begun: 0,
        })
    }

    fn all(&mut self, cases: &[&(usize, Case)]) -> Outcome<()> {
        for (number, case) in cases {
            let seconds = estimate::seconds(case, self.setup.ranks, &self.effort);
            if let Some(why) = self.hindrance(seconds) {
                self.not_begun += 1;
                self.add(self.setup.not_measured(case, why), false)?;
                continue;
            }
            let begin = Instant::now();
            let seen = self.one(*number, seconds);
            self.taken += begin.elapsed().as_secs_f64();
            self.estimated += seconds;
            self.add(self.setup.record(case, seen), true)?;
        }
        Ok(())
    }

    /// Why a case of so many seconds is not begun.
    fn hindrance(&self, seconds: f64) -> Option<&'static str> {
        let pace = if self.estimated > 0.0 { (self.taken / self.estimated).max(1.0) } else { 1.0 };
        if self.lost_crews >= TRIES {
            return Some("not begun: the ranks could not meet");
        }
        self.left().filter(|left| seconds * pace > *left).map(|_| NO_TIME)
    }

    /// Seconds of the budget.
    fn left(&self) -> Option<f64> {
        self.options.budget.map(|budget| budget - self.begin.elapsed().as_secs_f64())
    }

    /// A group in which something went wrong is left, and the next case gets a new one.
    fn one(&mut self, number: usize, seconds: f64) -> Answers {
        let limit = Duration::from_secs_f64(f64::from(self.effort.case_seconds).max(LENIENCE * seconds));
        let crew = match self.crew.take() {
            Some(crew) => Ok(crew),
            None => Crew::of_ranks(self.setup.ranks, self.shared, &self.effort),
        };
        let mut crew = match crew {
            Ok(crew) => crew,
            Err(error) => {
                self.lost_crews += 1;
                return vec![Err(error)];
            }
        };
        self.lost_crews = 0;
        let seen = crew.measure(number, limit);
        self.crew = Some(crew).filter(|_| seen.iter().all(Result::is_ok));
        seen
    }

    fn memory(&mut self) -> Outcome<()> {
        let bytes = Crew::of(&[("the sizes".into(), Post::Memory)], &self.effort)
            .and_then(|mut crew| crew.ask::<Outcome<i64>>("", MEMORY_LIMIT))
            .and_then(|answers| answers.into_iter().next().unwrap_or(Err("no answer".into())));
        self.add(self.setup.memory(memory::CASE, bytes, memory::GOAL), true)
    }

    fn add(&mut self, record: Record, begun: bool) -> Outcome<()> {
        println!("{}", report::row(&record));
        if let Some(results) = &mut self.results {
            results.add(&record, begun)?;
        }
        self.records.push(record);
        Ok(())
    }

    fn end(self) -> (Vec<Record>, Outcome<()>) {
        if let Some(crew) = self.crew {
            crew.dismiss();
        }
        let count = |fits: fn(&Record) -> bool| self.records.iter().filter(|record| fits(record)).count();
        let failed = count(|record| record.failed.is_some()) - self.not_begun;
        println!(
            "\n{} cases: {failed} failed, {} not begun, {} goals missed; {:.0} s",
            self.records.len(),
            self.not_begun,
            count(|record| record.met() == Some(false)),
            self.begin.elapsed().as_secs_f64()
        );
        let outcome = match failed + self.not_begun {
            0 => Ok(()),
            count => Err(format!("{count} cases were not measured")),
        };
        (self.records, outcome)
    }
}
