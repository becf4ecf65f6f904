//! What the shared library shows to a loader: exactly the ABI, and no need for anything but the C library.

use crate::c_header;
use crate::tools::{self, succeed};
use std::collections::BTreeSet;

fn dynamic_section(tag: &str) -> BTreeSet<String> {
    tools::require("readelf");
    let text = succeed(tools::command("readelf").args(["-d", "-W"]).arg(tools::built_library()));
    let lines = text.lines().filter(|line| line.contains(&format!("({tag})")));
    lines.map(|line| line.split(['[', ']']).nth(1).unwrap_or_default().to_string()).collect()
}

/// A symbol that comes or goes changes the ABI: `UPDATE_SYMBOLS=1 cargo test --test native` accepts it.
#[test]
fn exported_symbols_are_the_golden_ones() {
    tools::require("nm");
    let text = succeed(tools::command("nm").args(["-D", "--defined-only"]).arg(tools::built_library()));
    let exported: BTreeSet<&str> = text.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let path = tools::root().join("tests/golden/symbols.txt");
    let list: String = exported.iter().map(|symbol| format!("{symbol}\n")).collect();
    if std::env::var_os("UPDATE_SYMBOLS").is_some() {
        std::fs::write(&path, &list).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert!(golden == list, "exported are now:\n{list}");

    let header = c_header::read(&std::fs::read_to_string(tools::root().join("include/deep_ep.h")).unwrap());
    let declared: BTreeSet<&str> = header.functions.iter().map(|function| function.name.as_str()).collect();
    assert_eq!(declared, exported, "the header declares other functions than the library exports");
}

#[test]
fn soname_carries_the_major_version() {
    assert_eq!(dynamic_section("SONAME"), BTreeSet::from(["libdeepep.so.0".to_string()]));
    assert!(env!("CARGO_PKG_VERSION").starts_with("0."), "the soname in build.rs has the old major version");
}

#[test]
fn library_needs_only_the_c_library() {
    let allowed = ["libc.so.6", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0", "libdl.so.2"];
    let needed = dynamic_section("NEEDED");
    let known = |name: &&String| allowed.contains(&name.as_str()) || name.starts_with("ld-linux-");
    let other: Vec<_> = needed.iter().filter(|name| !known(name)).collect();
    assert!(needed.contains("libc.so.6") && other.is_empty(), "the library needs {other:?}");
}

/// No search path, no environment at all, no CUDA: loading and asking for the version works all the same.
#[test]
fn library_loads_with_an_empty_environment() {
    let program = tools::scratch("bare").join("program");
    tools::build(&["tests/c/header.c"], &[], tools::library_dir(), &program);
    succeed(std::process::Command::new(&program).env_clear().env("PATH", ""));
    let loaded = succeed(tools::command("ldd").arg(&program));
    assert!(!loaded.contains("cuda") && !loaded.contains("not found"), "{loaded}");
}
