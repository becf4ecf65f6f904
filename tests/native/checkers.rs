//! The tools that watch a program: address and race detection of GCC, and valgrind.

use crate::tools::{self, run, succeed, text};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checker {
    Nothing,
    /// Memory errors and leaks, in the program and in memory that the library takes from the heap.
    Address,
    /// Data races, in the program and in the library, which is compiled for it.
    Thread,
    /// Memory errors, leaks and use of uninitialised values, in machine code.
    Memcheck,
}

pub use Checker::*;

impl Checker {
    /// Compiles a program for this checker.
    pub fn build(self, sources: &[&str], program: &Path) {
        match self {
            Nothing | Memcheck => tools::build(sources, &[], tools::library_dir(), program),
            Address => {
                tools::build(sources, &["-fsanitize=address"], tools::library_dir(), program);
                assert_linked(program, "__asan_init");
            }
            Thread => {
                let mut sources = sources.to_vec();
                sources.insert(0, "tests/c/tsan_names.c");
                // As its own function calls, memcpy and the like are seen by the detector.
                tools::build(&sources, &["-fsanitize=thread", "-fno-builtin"], race_library_dir(), program);
                assert_linked(program, "__tsan_init");
            }
        }
    }

    /// Runs a program under this checker.
    pub fn run(self, program: &Path, arguments: &[&str]) -> Output {
        let mut command = match self {
            Nothing => tools::command(program),
            Address => {
                let mut command = tools::command(program);
                command.env("ASAN_OPTIONS", "detect_leaks=1:exitcode=99");
                command
            }
            Thread => {
                let mut command = tools::command("setarch"); // GCC's detector fails under wide address randomisation
                command.arg("-R").arg(program);
                let suppressions = tools::root().join("tests/native/tsan.supp");
                command.env("TSAN_OPTIONS", format!("exitcode=99:suppressions={}", suppressions.display()));
                command
            }
            Memcheck => {
                tools::require("valgrind");
                let mut command = tools::command("valgrind");
                command.args(["--quiet", "--error-exitcode=99", "--trace-children=yes", "--fair-sched=yes"]);
                command.args(["--leak-check=full", "--errors-for-leak-kinds=definite,indirect"]);
                command.arg(program);
                command
            }
        };
        run(command.args(arguments))
    }

    /// What this checker prints when it has found something.
    fn mark(self) -> &'static str {
        match self {
            Nothing => "\0",
            Address => "Sanitizer: ",
            Thread => "ThreadSanitizer: ",
            Memcheck => "\n==",
        }
    }

    /// Builds and runs a program in which this checker must find nothing.
    pub fn approves(self, name: &str, sources: &[&str], arguments: &[&str]) {
        let program = self.program(name, sources);
        let output = self.run(&program, arguments);
        let told = format!("\n{}", text(&output));
        assert!(
            output.status.success() && !told.contains(self.mark()),
            "{name} under {self:?}: {}{told}",
            output.status
        );
    }

    /// Builds and runs a program in which this checker must find something that has `finding` in it.
    pub fn condemns(self, name: &str, sources: &[&str], arguments: &[&str], finding: &str) {
        let program = self.program(name, sources);
        let output = self.run(&program, arguments);
        let told = format!("\n{}", text(&output));
        assert!(
            output.status.code() == Some(99) && told.contains(self.mark()) && told.contains(finding),
            "{self:?} did not find \"{finding}\" in {name}: {}{told}",
            output.status
        );
    }

    fn program(self, name: &str, sources: &[&str]) -> PathBuf {
        let program = tools::scratch(&format!("{name}-{self:?}")).join("program");
        self.build(sources, &program);
        program
    }
}

/// A checker whose code is not in the program would find nothing.
fn assert_linked(program: &Path, symbol: &str) {
    let symbols = succeed(tools::command("nm").arg(program));
    assert!(symbols.contains(symbol), "{} has no {symbol}: the sanitizer is not linked", program.display());
}

/// A directory with the library compiled for race detection: without it, the detector would not see how the ranks
/// wait for each other and would take every exchange for a race.
fn race_library_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let profile = tools::built_library().parent().unwrap().parent().unwrap().to_path_buf();
        let target = profile.parent().unwrap();
        let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(tools::root()).args(["build", "--lib", "--offline", "--target", &triple]);
        cargo.env("CARGO_TARGET_DIR", target).env_remove("RUSTC_BOOTSTRAP");
        let rustc = Path::new(env!("CARGO")).with_file_name("rustc"); // the compiler that made what is there already
        if rustc.is_file() {
            cargo.env("RUSTC", rustc);
        }
        cargo.env("RUSTC_WORKSPACE_WRAPPER", tools::root().join("tests/native/rustc_tsan.sh"));
        succeed(&mut cargo);
        let library = target.join(triple).join("debug/libdeepep.so");
        let symbols = succeed(tools::command("nm").arg("-D").arg(&library));
        assert!(
            symbols.contains("__tsan_func_entry"),
            "{} is not compiled for race detection",
            library.display()
        );
        let dir = tools::scratch("race-lib");
        tools::lay_out_library(&library, &dir);
        dir
    })
}
