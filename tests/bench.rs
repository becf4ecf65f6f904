//! What the benchmark says beside times: sizes to the byte, nothing left behind, a data path without allocations and
//! system calls. Times depend on the machine and are not tested.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test may fail by panicking

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the benchmark where only this test target is run, and returns its path.
fn program() -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--example", "bench"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    // This test lies in <profile>/deps, the examples beside it.
    let profile = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_path_buf();
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "the benchmark does not build");
    profile.join("examples/bench")
}

fn run(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn everything_but_speed_is_as_promised() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let (json, markdown) = (path("bench.json"), path("BENCHMARKS.md"));
    std::fs::write(&markdown, "# Title\n\n## Host backend\n\nold\n\n## Other\n\nkept\n").unwrap();
    let program = program();
    let table = run(&program, &["--quick", "--json", &json]);

    let results: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(results[0]["case"], "machine");
    let is_speed = |case: &&Value| {
        let goal = case["goal"].as_str().unwrap();
        goal.starts_with("ratio") || goal.starts_with("median")
    };
    let (speed, facts): (Vec<&Value>, Vec<&Value>) = results[1..].iter().partition(is_speed);
    assert!(speed.len() >= 3 && facts.len() == 7, "{table}");
    for case in facts {
        assert_eq!(case["met"], true, "{case:#}");
    }
    assert_eq!(speed[speed.len() - 1]["counts"]["allocations"], 0);

    run(&program, &["--from", &json, "--markdown", &markdown]);
    let text = std::fs::read_to_string(&markdown).unwrap();
    assert!(text.starts_with("# Title\n\n## Host backend\n") && text.ends_with("\n## Other\n\nkept\n"));
    assert!(text.contains("| packed dispatch, R=2 |") && !text.contains("\nold\n"), "{text}");
}

/// The names that results are known by.
const CUDA_CASES: [&str; 21] = [
    "dispatch_fp8_t8192_by_rank_sm64",
    "dispatch_fp8_t8192_by_rank_sm16",
    "dispatch_bf16_t4096_by_rank_sm64",
    "dispatch_bf16_t4096_by_rank_sm16",
    "dispatch_fp8_t8192_by_expert_sm64",
    "combine_bf16_t8192_by_rank_sm64",
    "combine_bf16_t8192_by_rank_sm16",
    "combine_bf16_t8192_by_expert_sm64",
    "dispatch_fp8_t8192_by_rank_unbalanced15",
    "pair_graph_t8192_by_rank_sm16",
    "ll_dispatch_cast_t128_by_rank",
    "ll_dispatch_cast_t1_by_rank",
    "ll_dispatch_cast_t32_by_rank",
    "ll_dispatch_cast_t128_by_expert",
    "ll_combine_t128_by_rank",
    "ll_combine_weighted_t128_by_expert",
    "ll_pair_t128_by_expert",
    "ll_pair_t128_by_rank",
    "ll_pair_t1_by_expert",
    "ll_pair_t1_by_rank",
    "ll_memory_mib_t128_r8",
];

#[test]
fn results_of_cuda_are_shown_between_their_markers() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let (json, markdown, plot) = (path("in.json"), path("BENCHMARKS.md"), path("out.png"));
    let program = program();
    let listed = run(&program, &["cuda", "--list", "--groups", "throughput,latency"]);
    assert_eq!(listed.lines().collect::<Vec<_>>(), CUDA_CASES);

    let sweep = |sms: u32| {
        let case = format!("dispatch_fp8_t8192_by_rank_sm{sms}");
        serde_json::json!({"case": case, "group": "sms", "us_median": 200.5, "gbps_off_rank": 10.0 * f64::from(sms),
            "sms": sms, "setup": "2xtest", "machine": "2x Test", "date": "today", "method": "graph"})
    };
    let mut late = sweep(4);
    late["us_median"] = 190.0.into();
    late["reach"] = 180.0.into();
    std::fs::write(&json, serde_json::to_string(&[late, sweep(8), sweep(16)]).unwrap()).unwrap();
    let kept = "# Title\n\n## Host backend\n\nhost\n";
    let old = "<!-- measured: 2xtest -->\nold\n<!-- end: 2xtest -->\n";
    let other = "<!-- measured: 1xtest -->\nother\n<!-- end: 1xtest -->\n\n## Last\n";
    std::fs::write(&markdown, format!("{kept}\n## CUDA backend\n\n{old}{other}")).unwrap();
    run(&program, &["cuda", "--from", &json, "--markdown", &markdown]);
    let text = std::fs::read_to_string(&markdown).unwrap();
    assert!(text.starts_with(kept) && text.ends_with(other) && !text.contains("old"), "{text}");
    assert!(
        text.contains("| dispatch_fp8_t8192_by_rank_sm4 | 190.00 |") && text.contains("| <= 180 us | NO |"),
        "{text}"
    );

    let drawn = Command::new(&program).args(["cuda", "--from", &json, "--plot", &plot]).output().unwrap();
    match drawn.status.success() {
        true => assert!(std::fs::read(&plot).unwrap().starts_with(b"\x89PNG")),
        false => assert!(String::from_utf8_lossy(&drawn.stderr).contains("font"), "{drawn:?}"),
    }
}

#[test]
fn a_system_call_on_the_data_path_is_noticed() {
    use std::os::unix::process::ExitStatusExt;
    let program = program();
    let watched = ["--role", "quiet", "--pairs", "10"];
    run(&program, &watched);
    let status = Command::new(&program).args(watched).arg("--plant").status().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}");
}
