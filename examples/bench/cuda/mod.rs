//! The benchmark of the CUDA backend, through the C ABI.

mod case;
mod gpu;
mod group;
mod job;
mod link;
mod pool;
mod sequence;

use crate::common::Outcome;
use crate::measure::{median, quantile};
use case::{Case, Rows, Work};
use deepep::capi::deep_ep_layout_t::*;
use sequence::Effort;

#[derive(clap::Args)]
pub struct Options {
    /// Only cases whose name contains one of these.
    #[arg(long, value_delimiter = ',')]
    cases: Vec<String>,
    #[arg(long, default_value_t = 200)]
    replays: usize,
    #[arg(long)]
    graphs: bool,
    #[arg(long, default_value_t = 0)]
    sms: u32,
    #[arg(long, hide = true)]
    rank: Option<usize>,
    #[arg(long, hide = true, default_value_t = 0)]
    ranks: usize,
    #[arg(long, hide = true, default_value = "")]
    id: String,
}

pub fn run(options: &Options) -> Outcome<()> {
    let sms = options.sms;
    let all = [
        Case::new("dispatch_fp8_t8192_by_rank", Work::Dispatch, DEEP_EP_PACKED_BY_RANK, Rows::Fp8, 8192, sms),
        Case::new(
            "dispatch_fp8_t8192_by_expert",
            Work::Dispatch,
            DEEP_EP_PACKED_BY_EXPERT,
            Rows::Fp8,
            8192,
            sms,
        ),
        Case::new("combine_bf16_t8192_by_rank", Work::Combine, DEEP_EP_PACKED_BY_RANK, Rows::Bf16, 8192, sms),
        Case::new(
            "combine_bf16_t8192_by_expert",
            Work::Combine,
            DEEP_EP_PACKED_BY_EXPERT,
            Rows::Bf16,
            8192,
            sms,
        ),
        Case::new("dispatch_fp8_t128_by_rank", Work::Dispatch, DEEP_EP_PACKED_BY_RANK, Rows::Fp8, 128, sms),
        Case::new("pair_t8192_by_rank", Work::Pair, DEEP_EP_PACKED_BY_RANK, Rows::Fp8, 8192, sms),
    ];
    let chosen =
        |case: &Case| options.cases.is_empty() || options.cases.iter().any(|name| case.id.contains(name));
    let cases: Vec<Case> = all.into_iter().filter(chosen).collect();
    let effort = Effort { replays: options.replays, graphs: options.graphs };
    if let Some(rank) = options.rank {
        return group::rank(rank, options.ranks, &options.id, &cases, &effort);
    }
    let link = link::measure(gpu::count())?;
    println!("push {:.1} copy {:.1} GB/s", link.push, link.copy);
    group::threads(2, &cases, &effort, &mut |case, seen| match seen {
        Err(error) => println!("{}: {error}", case.id),
        Ok(seen) => {
            let mut us: Vec<f64> =
                (0..seen[0].us.len()).map(|i| seen.iter().map(|s| s.us[i]).fold(0.0, f64::max)).collect();
            let mut one: Vec<f64> = (0..seen[0].single_us.len())
                .map(|i| seen.iter().map(|s| s.single_us[i]).fold(0.0, f64::max))
                .collect();
            let off = seen.iter().map(|s| s.off_rank).max().unwrap_or(0) as f64;
            println!(
                "{:32} median {:8.2} p99 {:8.2}; single median {:8.2} p99 {:8.2}; off-rank {:6.1} GB/s",
                case.id,
                median(&mut us),
                quantile(&mut us, 0.99),
                median(&mut one),
                quantile(&mut one, 0.99),
                off / median(&mut us) / 1e3
            );
        }
    })
}
