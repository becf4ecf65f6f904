//! The command line.

use clap::Parser;
use std::path::PathBuf;

/// Runs one MoE layer over the bytes of a text, with the ranks as processes, and checks the output against a run with
/// one rank bit for bit.
#[derive(Parser, Clone)]
#[command(name = "moe", args_override_self = true)]
pub struct Options {
    /// The text; its bytes are the tokens.
    #[arg(default_value = "README.md")]
    pub file: PathBuf,
    /// Processes the layer runs on.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub ranks: u32,
    /// Use at most this many bytes of the text.
    #[arg(long, default_value_t = 16384)]
    pub tokens: usize,
    /// Experts of the layer.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub experts: u32,
    /// Experts per token.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=32))]
    pub top_k: u32,
    /// Tokens a rank sends in one batch.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub batch: u32,
    /// Seed of all weights.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    // For the tests of the demo itself.
    /// Change one bit of the output of this rank.
    #[arg(long, hide = true)]
    pub corrupt: Option<usize>,
    /// Kill this rank in its second batch.
    #[arg(long, hide = true)]
    pub kill: Option<usize>,

    // How the program starts itself as one rank.
    #[arg(long, hide = true, requires = "unique_id")]
    pub rank: Option<usize>,
    #[arg(long, hide = true)]
    pub unique_id: Option<String>,
}

impl Options {
    pub fn ranks(&self) -> usize {
        self.ranks as usize
    }

    pub fn experts(&self) -> usize {
        self.experts as usize
    }

    pub fn topk(&self) -> usize {
        self.top_k as usize
    }

    pub fn batch(&self) -> usize {
        self.batch as usize
    }

    /// The arguments of the process that is one rank.
    pub fn for_rank(&self, rank: usize, id: &str) -> Vec<String> {
        let mut arguments: Vec<String> = [
            ("--ranks", self.ranks.to_string()),
            ("--tokens", self.tokens.to_string()),
            ("--experts", self.experts.to_string()),
            ("--top-k", self.top_k.to_string()),
            ("--batch", self.batch.to_string()),
            ("--seed", self.seed.to_string()),
            ("--rank", rank.to_string()),
            ("--unique-id", id.to_string()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_string(), value])
        .collect();
        for (name, value) in [("--corrupt", self.corrupt), ("--kill", self.kill)] {
            if let Some(value) = value {
                arguments.extend([name.to_string(), value.to_string()]);
            }
        }
        arguments
    }
}
