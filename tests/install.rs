//! What bindings/install.sh lays out is enough to build and run consumers, wherever the tree is moved afterwards.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test may fail by panicking

#[path = "native/tools.rs"]
#[allow(dead_code)] // not every helper is needed here
mod tools;

use std::path::{Path, PathBuf};
use std::process::Command;
use tools::{command, require, root, run, scratch, succeed, text};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn install(prefix: &str, destination: &Path) -> Command {
    let mut command = command("sh");
    command.arg(root().join("bindings/install.sh")).arg(prefix).arg(destination);
    command.env("LIBRARY", tools::built_library());
    command
}

/// An installed tree that was moved away from where it was installed.
fn moved_tree(test: &str) -> PathBuf {
    let dir = scratch(test);
    succeed(&mut install("/opt/deepep", &dir.join("stage")));
    let tree = dir.join("elsewhere");
    std::fs::rename(dir.join("stage/opt/deepep"), &tree).unwrap();
    tree
}

#[test]
fn tree_is_complete_and_has_the_version_of_the_package() {
    let tree = moved_tree("tree");
    for file in ["include/deep_ep.h", "include/deep_ep.hpp"] {
        let original = if file.ends_with("hpp") { "bindings/cpp/deep_ep.hpp" } else { file };
        assert_eq!(
            std::fs::read(tree.join(file)).unwrap(),
            std::fs::read(root().join(original)).unwrap(),
            "{file}"
        );
    }
    let link = |name: &str| std::fs::read_link(tree.join("lib").join(name)).unwrap();
    assert_eq!(link("libdeepep.so"), Path::new("libdeepep.so.0"));
    assert_eq!(link("libdeepep.so.0").to_str().unwrap(), format!("libdeepep.so.{VERSION}"));
    assert!(tree.join("lib").join(format!("libdeepep.so.{VERSION}")).is_file());
    for file in
        ["pkgconfig/deepep.pc", "cmake/deepep/deepepConfig.cmake", "cmake/deepep/deepepConfigVersion.cmake"]
    {
        let contents = std::fs::read_to_string(tree.join("lib").join(file)).unwrap();
        assert!(contents.contains(VERSION) && !contents.contains('@'), "{file}:\n{contents}");
        assert!(!contents.contains("/opt"), "{file} holds the path of the installation:\n{contents}");
    }
}

#[test]
fn installing_twice_changes_nothing() {
    let dir = scratch("twice");
    succeed(&mut install("/usr", &dir));
    succeed(&mut install("/usr", &dir));
    assert_eq!(std::fs::read_dir(dir.join("usr/lib")).unwrap().count(), 5);
}

#[test]
fn wrong_calls_are_refused() {
    let script = root().join("bindings/install.sh");
    let dir = scratch("wrong");
    let none = run(command("sh").arg(&script));
    assert!(none.status.code() == Some(2) && text(&none).contains("usage"), "{}", text(&none));
    let relative = run(&mut install("usr", &dir));
    assert!(relative.status.code() == Some(2) && text(&relative).contains("slash"), "{}", text(&relative));
    let missing = run(install("/usr", &dir).env("LIBRARY", dir.join("libnone.so")));
    assert!(missing.status.code() == Some(1) && text(&missing).contains("libnone.so"), "{}", text(&missing));
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0, "something was installed all the same");
}

#[test]
fn c_consumer_needs_only_pkg_config() {
    require("pkg-config");
    require("gcc");
    let tree = moved_tree("pkg-config");
    let program = tree.join("consumer");
    let ask = |what: &[&str]| {
        let mut command = command("pkg-config");
        command.args(what).arg("deepep");
        succeed(
            command.env("PKG_CONFIG_PATH", tree.join("lib/pkgconfig")).env_remove("PKG_CONFIG_SYSROOT_DIR"),
        )
    };
    assert_eq!(ask(&["--modversion"]).trim(), VERSION);
    let flags = ask(&["--cflags", "--libs"]);
    let mut compile = command("gcc");
    compile.arg(root().join("examples/roundtrip.c")).args(flags.split_whitespace()).arg("-o").arg(&program);
    succeed(&mut compile);
    let printed = succeed(command(&program).env("LD_LIBRARY_PATH", tree.join("lib")));
    assert!(printed.contains("0 of 4 ranks failed"), "{printed}");
}

fn configure(tree: &Path, build: &str, wanted: &str) -> Command {
    let mut cmake = command("cmake");
    cmake.arg("-S").arg(root().join("tests/install")).arg("-B").arg(tree.join(build));
    cmake.arg(format!("-DCMAKE_PREFIX_PATH={}", tree.display())).arg(format!("-DWANTED={wanted}"));
    cmake.arg(format!("-DSOURCE={}", root().join("examples/roundtrip.cpp").display()));
    cmake
}

#[test]
fn cpp_consumer_needs_only_cmake() {
    require("cmake");
    let tree = moved_tree("cmake");
    succeed(&mut configure(&tree, "build", "0.1"));
    succeed(command("cmake").arg("--build").arg(tree.join("build")));
    let printed = succeed(&mut command(tree.join("build/consumer")));
    assert!(printed.contains("rows reached rank 0"), "{printed}");
}

#[test]
fn cmake_refuses_another_version() {
    require("cmake");
    let tree = moved_tree("cmake-version");
    for wanted in ["0.2", "1.0", "0.1.99"] {
        let output = run(&mut configure(&tree, wanted, wanted));
        assert!(!output.status.success() && text(&output).contains(VERSION), "{wanted}: {}", text(&output));
    }
}

/// The README quotes the examples that these tests build.
#[test]
fn readme_quotes_the_examples() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md is there");
    for (file, language) in [("examples/roundtrip.c", "c"), ("examples/roundtrip.cpp", "cpp")] {
        let example = std::fs::read_to_string(root().join(file)).unwrap();
        assert!(
            readme.contains(&format!("```{language}\n{example}```\n")),
            "README.md does not quote {file} verbatim"
        );
    }
}
