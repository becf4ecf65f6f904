//! The demo program, run as a user would: its last line, its exit code, and that its check can fail.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test may fail by panicking

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

#[path = "../examples/moe/compare.rs"]
mod compare;
#[allow(dead_code)]
#[path = "../examples/moe/model.rs"]
mod model;

const TEXT: &str = "Every rank has some experts; every token chooses two of them, wherever they live.\n";
/// Bytes of the text that the runs use.
const TOKENS: usize = 700;

/// The program, built first where a single test target is run.
fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--example", "moe"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        // This test lies in <profile>/deps, the examples beside it.
        let profile = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_path_buf();
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the demo does not build");
        profile.join("examples/moe")
    })
}

fn run(ranks: usize, more: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text");
    std::fs::write(&file, TEXT.repeat(20)).unwrap();
    Command::new(program())
        .arg(&file)
        .args(["--ranks", &ranks.to_string(), "--tokens", &TOKENS.to_string(), "--batch", "64"])
        .args(more)
        .output()
        .unwrap()
}

fn last_line(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).lines().last().unwrap_or_default().to_string()
}

#[test]
fn the_output_equals_the_one_rank_run() {
    for ranks in [1, 3, 4] {
        let output = run(ranks, &["--top-k", "2"]);
        let line = last_line(&output);
        assert!(output.status.success(), "{ranks} ranks: {line}");
        let want = format!("OK: {TOKENS} tokens, {ranks} ranks, output equals the one-rank run bit for bit");
        assert!(line.starts_with(&want), "{line}");
        assert!(!output.stderr.is_empty(), "no progress was shown");
    }
}

#[test]
fn more_ranks_than_experts_and_tokens() {
    let output = run(5, &["--experts", "3", "--top-k", "3", "--tokens", "4", "--seed", "9"]);
    assert!(last_line(&output).starts_with("OK: 4 tokens, 5 ranks"), "{}", last_line(&output));
}

#[test]
fn a_changed_output_is_detected() {
    let output = run(4, &["--corrupt", "2"]);
    let line = last_line(&output);
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(line.starts_with("FAILED: 1 of 358400 bytes differ"), "{line}");
}

#[test]
fn a_killed_rank_ends_the_demo() {
    let start = Instant::now();
    let output = run(4, &["--kill", "3"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(last_line(&output), "FAILED: rank 3 was killed by signal 9 before its work was done");
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn bad_arguments_are_told() {
    let output = run(2, &["--experts", "2", "--top-k", "3"]);
    assert_eq!(last_line(&output), "FAILED: --top-k 3 is more than --experts 2");
    let output = Command::new(program()).arg("no such file").output().unwrap();
    assert!(last_line(&output).starts_with("FAILED: cannot read no such file: "), "{}", last_line(&output));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn the_comparison_looks_at_every_byte() {
    let want: Vec<u8> = (0..64).collect();
    assert_eq!(compare::difference(&want, &want, 16), None);
    for at in 0..want.len() {
        let mut got = want.clone();
        got[at] ^= 0x80;
        let text = compare::difference(&got, &want, 16).expect("a difference");
        assert!(text.contains(&format!("at token {}, byte {}", at / 16, at % 16)), "{text}");
    }
    assert!(compare::difference(&want[..60], &want, 16).is_some());
    assert!(compare::difference(&[], &want, 16).is_some());
}

#[test]
fn the_model_is_no_identity() {
    let front = model::Front::new(1, 8, 2);
    let (mut row, mut ids, mut weights) = ([0; model::HIDDEN], [0; 2], [0f32; 2]);
    front.embed(b'a', 3, &mut row);
    front.route(&row, &mut ids, &mut weights);
    assert!(ids[0] != ids[1] && weights[0] >= weights[1]);
    assert!((weights[0] + weights[1] - 1.0).abs() < 1e-6, "{weights:?}");
    let (mut one, mut other) = ([0; model::HIDDEN], [0; model::HIDDEN]);
    model::Expert::new(1, 0).apply(&row, &mut one);
    model::Expert::new(1, 1).apply(&row, &mut other);
    assert!(one != other && one != row);
    assert!(one.iter().all(|&code| model::from_bf16(code).is_finite()));
}
