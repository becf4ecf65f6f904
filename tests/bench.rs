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
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, CUDA_CASES);

    let sweep = |sms: u32| {
        let case = format!("dispatch_fp8_t8192_by_rank_sm{sms}");
        serde_json::json!({"case": case, "group": "sms", "us_median": 200.5, "gbps_off_rank": 10.0 * f64::from(sms),
            "sms": sms, "setup": "2xtest", "machine": "2x Test", "date": "today", "method": "graph"})
    };
    let mut late = sweep(4);
    late["group"] = "throughput".into();
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
    let points = "| us against SMs | 8 | 16 |\n|---|---|---|\n| dispatch_fp8_t8192_by_rank | 200 | 200 |\n";
    assert!(text.contains(points), "{text}");

    let drawn = Command::new(&program).args(["cuda", "--from", &json, "--plot", &plot]).output().unwrap();
    match drawn.status.success() {
        true => assert!(std::fs::read(&plot).unwrap().starts_with(b"\x89PNG")),
        false => assert!(String::from_utf8_lossy(&drawn.stderr).contains("font"), "{drawn:?}"),
    }
}

/// What is asked of each case, where something is.
fn goals(program: &Path, ranks: &str) -> Vec<String> {
    let listed = run(program, &["cuda", "--list", "--ranks", ranks]);
    let asked = listed.lines().filter(|line| line.contains("<="));
    asked.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn goals_of_cuda_are_those_of_the_number_of_ranks() {
    let program = program();
    let two = goals(&program, "2");
    assert_eq!(two.len(), CUDA_CASES.len(), "{two:#?}");
    assert!(two.iter().any(|line| line.ends_with("s <= 9.5 us, p99 <= 1.3 medians")), "{two:#?}");
    let ends = ["<= 840 us, ratio >= 0.93", "<= 1740 us, ratio >= 0.93", "<= 22 us", "<= 34 us", "<= 64 MiB"];
    let eight = goals(&program, "8");
    assert_eq!(eight.len(), ends.len(), "{eight:#?}");
    for (line, end) in eight.iter().zip(ends) {
        assert!(line.ends_with(end), "{line}, not {end}");
    }
    assert_eq!(goals(&program, "4").len(), 1); // the memory of eight ranks
}

/// A measured case of `ranks` GPUs.
fn measured(case: &str, group: &str, ranks: usize, us: f64) -> Value {
    serde_json::json!({"case": case, "group": group, "us_median": us, "ranks": ranks, "link_push_gbps": 360.0,
        "link_pull_gbps": 340.0, "setup": format!("{ranks}xtest"), "machine": "Test", "date": "today", "method": "graph"})
}

#[test]
fn predictions_stand_beside_what_was_measured() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let (json, markdown) = (path("in.json"), path("BENCHMARKS.md"));
    let program = program();
    let with = |records: &[Value]| {
        let marked = "# Title\n\n<!-- measured: predictions -->\nold\n<!-- end: predictions -->\n\nlast\n";
        std::fs::write(&markdown, marked).unwrap();
        std::fs::write(&json, serde_json::to_string(records).unwrap()).unwrap();
        run(&program, &["cuda", "--from", &json, "--markdown", &markdown]);
        let text = std::fs::read_to_string(&markdown).unwrap();
        assert!(text.contains("\nlast\n") && !text.contains("old"), "{text}");
        text
    };
    assert_eq!(with(&[]).matches(": not measured.").count(), 4);

    let (dispatch, small) = ("dispatch_fp8_t8192_by_rank_sm64", "ll_dispatch_cast_t128_by_rank");
    let mut eight = measured(dispatch, "throughput", 8, 830.0);
    eight["link_ratio"] = 0.94.into();
    let mut shared = measured(dispatch, "throughput", 4, 100.0); // not of GPUs of their own
    shared["setup"] = "1xtest_shared4".into();
    let text = with(&[eight.clone(), measured(dispatch, "throughput", 4, 490.0), shared]);
    assert!(text.contains("| 4 | 2.71 | 486 / 490 |") && text.contains("| 8 | 4.63 | 823 / 830 |"), "{text}");
    assert!(text.contains("dispatch FP8 T=8192 0.940, as predicted"), "{text}");
    assert!(text.contains("dispatch FP8 T=8192 1.69, as predicted"), "{text}");
    assert!(text.contains("R=8 360 and 340, as predicted") && !text.contains("REFUTED"), "{text}");

    eight["link_ratio"] = 0.92.into();
    eight["link_push_gbps"] = 300.0.into();
    let late = measured(small, "latency", 8, 21.4);
    let text = with(&[eight, measured(dispatch, "throughput", 4, 420.0), late]);
    assert_eq!(text.matches("REFUTED").count(), 4, "{text}");
}

#[test]
fn ways_to_synchronise_are_shown_in_one_table() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let (json, markdown) = (path("in.json"), path("SYNCHRONIZATION.md"));
    let program = program();
    let case = |name: &str, tokens: usize, us: f64, late: u32| {
        let mut record = measured(&format!("sync_pair_t{tokens}_by_rank_{name}"), "sync", 2, us);
        record["tokens"] = tokens.into();
        record["late_us"] = late.into();
        record
    };
    let records = [
        case("barrier", 8, 14.25, 0),
        case("auto", 8, 11.0, 0),
        case("auto_late20", 8, 31.5, 20),
        case("auto", 1, 10.0, 0),
    ];
    std::fs::write(&json, serde_json::to_string(&records).unwrap()).unwrap();
    std::fs::write(&markdown, "a\n<!-- measured: sync -->\nold\n<!-- end: sync -->\nz\n").unwrap();
    run(&program, &["cuda", "--from", &json, "--sync-markdown", &markdown]);
    let text = std::fs::read_to_string(&markdown).unwrap();
    assert!(text.starts_with("a\n") && text.ends_with("z\n") && !text.contains("old"), "{text}");
    let rows = "| tokens per rank | AUTO | BARRIER | AUTO, one 20 us late |\n|---|---|---|---|\n\
        | 1 | 10.0 | - | - |\n| 8 | 11.0 | 14.2 | 31.5 |\n";
    assert!(text.contains(rows), "{text}");

    let all = run(&program, &["cuda", "--list", "--groups", "sync"]);
    for tokens in [1, 8, 32, 128, 256] {
        for way in ["auto", "ack", "barrier", "auto_late20", "ack_late20", "barrier_late20"] {
            let name = format!("sync_pair_t{tokens}_by_rank_{way} ");
            assert!(all.contains(&name), "{name} is not in {all}");
        }
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
