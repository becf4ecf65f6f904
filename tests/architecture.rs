//! Rules about the source text: which module may use which, what stays inside the ABI layer, how long a file may get.
//! Each rule is also shown a piece of text that breaks it.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test may fail by panicking

use std::path::Path;

/// What each top-level module of src/ may use of the others: a module, or one item of it.
const ARROWS: [(&str, &[&str]); 8] = [
    ("capi", &["buffer", "plan", "error", "boot::UniqueId"]),
    ("buffer", &["plan", "backend", "mem", "boot", "driver", "error"]),
    ("backend", &["plan", "mem", "driver", "error", "boot::Group"]), // of the group only its words: who is gone, aborts
    ("plan", &["error"]),
    ("boot", &["mem", "driver", "error"]),
    ("mem", &["driver", "error"]),
    ("driver", &["error"]),
    ("error", &[]),
];

const MAX_RUST_LINES: usize = 500;
const MAX_KERNEL_LINES: usize = 400;

struct File {
    /// From the root of the project, with slashes.
    path: String,
    text: String,
}

impl File {
    fn new(path: &str, text: &str) -> File {
        File { path: path.into(), text: text.into() }
    }

    fn is_test(&self) -> bool {
        self.path.starts_with("tests/") || self.path.contains("/tests/") || self.path.ends_with("tests.rs")
    }

    /// The lines with their numbers, without comments and without the test module at the end of the file.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let code = self.text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        code.lines().enumerate().map(|(index, line)| (index + 1, without_comment(line)))
    }
}

fn without_comment(line: &str) -> &str {
    let comment =
        line.match_indices("//").find(|(at, _)| line[..*at].chars().last().is_none_or(char::is_whitespace));
    &line[..comment.map_or(line.len(), |(at, _)| at)]
}

/// A rule names what is wrong with a file, each with its line.
type Rule = fn(&File) -> Vec<String>;

/// The paths at the front of `text`: `a::{b, c::d}` gives `a::b` and `a::c::d`. Also what follows them.
fn use_tree(text: &str) -> (Vec<String>, &str) {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        let mut paths = Vec::new();
        while !rest.trim_start().starts_with('}') && !rest.trim_start().is_empty() {
            let (branch, after) = use_tree(rest);
            paths.extend(branch);
            let after = after.trim_start();
            let next = after.find([',', '}']).map_or("", |at| &after[at..]);
            rest = next.strip_prefix(',').unwrap_or(next);
        }
        return (paths, rest.trim_start().strip_prefix('}').unwrap_or_default());
    }
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '*')).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    match rest.strip_prefix("::") {
        Some(deeper) if !name.is_empty() => {
            let (branch, rest) = use_tree(deeper);
            (branch.iter().map(|path| format!("{name}::{path}")).collect(), rest)
        }
        _ => (vec![name.to_string()], rest),
    }
}

/// All paths a file names that begin at the root of the crate.
fn root_paths(file: &File) -> Vec<(usize, String)> {
    let code: Vec<&str> = file.text.lines().map(without_comment).collect();
    let code = code.join("\n");
    let inner = file.path.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod");
    let to_root = "super::".repeat(inner.split('/').count());
    let mut paths = Vec::new();
    for root in ["crate::", &to_root] {
        for (at, _) in code.match_indices(root) {
            if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                continue; // a longer name
            }
            let line = code[..at].matches('\n').count() + 1;
            paths.extend(use_tree(&code[at + root.len()..]).0.into_iter().map(|path| (line, path)));
        }
    }
    paths
}

fn module_of(path: &str) -> &str {
    let inner = path.trim_start_matches("src/");
    inner.split('/').next().unwrap_or_default().trim_end_matches(".rs")
}

fn imports_follow_the_arrows(file: &File) -> Vec<String> {
    let from = module_of(&file.path);
    let Some((_, allowed)) = ARROWS.iter().find(|(module, _)| *module == from) else {
        let known = ["lib", "nvshmem-sys"].contains(&from) || !file.path.starts_with("src/");
        return if known { vec![] } else { vec![format!("{}: a module without arrows", file.path)] };
    };
    let mut wrong = Vec::new();
    for (line, path) in root_paths(file) {
        let to = path.split("::").next().unwrap_or_default();
        let is_module = ARROWS.iter().any(|(module, _)| *module == to);
        let allowed = allowed.iter().any(|item| path == *item || path.starts_with(&format!("{item}::")));
        if is_module && to != from && !allowed {
            wrong.push(format!("{}:{line}: {from} must not use {path}", file.path));
        }
    }
    wrong
}

/// Lines of code that have any of `words` in them.
fn lines_with(file: &File, words: &[&str], why: &str) -> Vec<String> {
    let lines = file.code().filter(|(_, line)| words.iter().any(|word| line.contains(word)));
    lines.map(|(number, line)| format!("{}:{number}: {why}: {}", file.path, line.trim())).collect()
}

fn only_driver_names_cudarc(file: &File) -> Vec<String> {
    match module_of(&file.path) {
        "driver" => vec![],
        _ => lines_with(file, &["cudarc"], "only src/driver may name cudarc"),
    }
}

fn only_capi_exports(file: &File) -> Vec<String> {
    match module_of(&file.path) {
        "capi" => vec![],
        _ => lines_with(file, &["no_mangle", "export_name"], "only src/capi may export symbols"),
    }
}

fn nothing_unwraps(file: &File) -> Vec<String> {
    if file.is_test() {
        return vec![];
    }
    lines_with(file, &[".unwrap()", ".expect(", ".unwrap_err()", ".expect_err("], "panics outside tests")
}

fn no_multicast(file: &File) -> Vec<String> {
    let lines = file.text.lines().enumerate();
    let found = lines.filter(|(_, line)| line.contains("cuMulticast") || line.contains("multimem"));
    found.map(|(index, line)| format!("{}:{}: multicast: {}", file.path, index + 1, line.trim())).collect()
}

fn files_stay_short(file: &File) -> Vec<String> {
    let limit = if file.path.ends_with(".rs") { MAX_RUST_LINES } else { MAX_KERNEL_LINES };
    match file.text.lines().count() {
        lines if lines > limit => vec![format!("{}: {lines} lines, at most {limit}", file.path)],
        _ => vec![],
    }
}

/// The files under `dir` with one of these extensions; none if there is no such directory.
fn files(dir: &str, extensions: &[&str]) -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut dirs = vec![root.join(dir)];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|e| extensions.iter().any(|wanted| e == *wanted)) {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap();
                found.push(File::new(name, &std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found
}

fn source() -> Vec<File> {
    let source = files("src", &["rs"]);
    assert!(source.len() > 20, "src/ was not read");
    source
}

/// Applies a rule to `files`, after showing that it objects to `bad` and not to `good`.
fn enforce(rule: Rule, files: &[File], bad: &[(&str, &str)], good: &[(&str, &str)]) {
    for (path, text) in bad {
        assert_eq!(rule(&File::new(path, text)).len(), 1, "the rule is silent about {path}: {text}");
    }
    for (path, text) in good {
        assert_eq!(rule(&File::new(path, text)), Vec::<String>::new(), "the rule forbids {path}: {text}");
    }
    let wrong: Vec<String> = files.iter().flat_map(rule).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn modules_use_only_what_the_arrows_allow() {
    let bad = [
        ("src/plan/mod.rs", "use crate::mem::Region;"),
        ("src/plan/config.rs", "fn f() { crate::buffer::g() }"),
        ("src/plan/config.rs", "use crate::{error::Result, boot};"),
        ("src/plan/config.rs", "use super::super::mem::Region;"),
        ("src/mem/region.rs", "use crate::{\n    error::{Error, Result},\n    plan::windows,\n};"),
        ("src/boot/mod.rs", "pub use crate::backend::host;"),
        ("src/error.rs", "use super::plan::config;"),
        ("src/backend/host/wait.rs", "use crate::boot::{Group, Listener};"),
        ("src/backend/host/wait.rs", "use crate::buffer;"),
        ("src/capi/comm.rs", "use crate::boot::Group;"),
        ("src/capi/comm.rs", "use crate::mem::Region;"),
        ("src/new/mod.rs", ""),
    ];
    let good = [
        ("src/plan/mod.rs", "use crate::plan::config; use crate::error::{Error, Result};"),
        ("src/plan/mod.rs", "// not crate::mem\nuse super::windows; use other_crate::mem::X;"),
        (
            "src/backend/host/wait.rs",
            "use crate::boot::Group; use super::super::host::x; use crate::mem::Backoff;",
        ),
        ("src/capi/comm.rs", "crate::boot::UniqueId::create(address)"),
        ("src/lib.rs", "mod anything;"),
    ];
    enforce(imports_follow_the_arrows, &source(), &bad, &good);
}

#[test]
fn only_the_driver_module_names_cudarc() {
    let bad = [("src/mem/vmm.rs", "use cudarc::driver::sys;")];
    let good = [("src/driver/mod.rs", "use cudarc::driver::sys;"), ("src/mem/vmm.rs", "// as cudarc does")];
    enforce(only_driver_names_cudarc, &source(), &bad, &good);
}

#[test]
fn only_the_abi_layer_exports_symbols() {
    let bad =
        [("src/buffer/mod.rs", "#[no_mangle]\npub fn f() {}"), ("src/boot/id.rs", "#[export_name = \"f\"]")];
    let good = [("src/capi/comm.rs", "#[no_mangle]")];
    enforce(only_capi_exports, &source(), &bad, &good);
}

#[test]
fn nothing_outside_tests_unwraps() {
    let bad = [("src/mem/region.rs", "let x = y.unwrap();"), ("src/boot/id.rs", "y.expect(\"there\")")];
    let good = [
        ("src/mem/region.rs", "y.unwrap_or(0) // not .unwrap()\n#[cfg(test)]\nmod tests { y.unwrap() }"),
        ("src/plan/tests.rs", "y.unwrap()"),
    ];
    enforce(nothing_unwraps, &source(), &bad, &good);
}

#[test]
fn there_is_no_multicast() {
    let mut all = source();
    all.extend(files("kernels", &["cu", "cuh", "h"]));
    let bad = [("kernels/ptx/store.cuh", "multimem.st.f32"), ("src/driver/ffi.rs", "cuMulticastCreate")];
    enforce(no_multicast, &all, &bad, &[("src/plan/mod.rs", "the multicast address of nobody")]);
}

#[test]
fn no_file_is_too_long() {
    let mut all = source();
    all.extend(files("tests", &["rs"]));
    all.extend(files("kernels", &["cu", "cuh"]));
    all.extend(files("tests/emulator", &["h", "cpp", "cuh"]));
    let (line, long) = ("x\n".repeat(400), "x\n".repeat(501));
    let bad = [("src/plan/mod.rs", long.as_str()), ("kernels/impl/x.cuh", long.as_str())];
    enforce(files_stay_short, &all, &bad, &[("src/plan/mod.rs", &line), ("kernels/impl/x.cuh", &line)]);
}
