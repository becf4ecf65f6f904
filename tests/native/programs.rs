//! The programs of tests/c, tests/cpp and examples, plain and under each checker.

use crate::checkers::*;
use crate::tools;

struct Program {
    name: &'static str,
    sources: &'static [&'static str],
}

const ROUNDTRIP: Program = Program { name: "roundtrip", sources: &["tests/c/roundtrip.c"] };
const THREADS: Program = Program { name: "threads", sources: &["tests/c/threads.c"] };
const DECODE_LOOP: Program = Program { name: "decode_loop", sources: &["tests/cpp/decode_loop.cpp"] };
const BINDING: Program = Program { name: "binding_test", sources: &["tests/cpp/binding_test.cpp"] };
const EXAMPLE_C: Program = Program { name: "example_c", sources: &["examples/roundtrip.c"] };
const EXAMPLE_CPP: Program = Program { name: "example_cpp", sources: &["examples/roundtrip.cpp"] };

impl Program {
    fn passes(&self, checker: Checker) {
        checker.approves(self.name, self.sources, &[]);
    }

    /// A program whose processes meet through a file.
    fn passes_with_file(&self, checker: Checker) {
        let file = tools::scratch(&format!("{}-{checker:?}-id", self.name)).join("id");
        checker.approves(self.name, self.sources, &[file.to_str().unwrap()]);
    }
}

#[test]
fn processes_exchange_every_byte() {
    ROUNDTRIP.passes_with_file(Nothing);
}

#[test]
fn processes_exchange_every_byte_under_asan() {
    ROUNDTRIP.passes_with_file(Address);
}

#[test]
fn processes_exchange_every_byte_under_valgrind() {
    ROUNDTRIP.passes_with_file(Memcheck);
}

#[test]
fn threads_exchange_every_byte() {
    THREADS.passes(Nothing);
}

#[test]
fn threads_exchange_every_byte_under_asan() {
    THREADS.passes(Address);
}

#[test]
fn threads_exchange_every_byte_under_tsan() {
    THREADS.passes(Thread);
}

#[test]
fn threads_exchange_every_byte_under_valgrind() {
    THREADS.passes(Memcheck);
}

#[test]
fn decode_loop() {
    DECODE_LOOP.passes(Nothing);
}

#[test]
fn decode_loop_under_asan() {
    DECODE_LOOP.passes(Address);
}

#[test]
fn decode_loop_under_tsan() {
    DECODE_LOOP.passes(Thread);
}

#[test]
fn decode_loop_under_valgrind() {
    DECODE_LOOP.passes(Memcheck);
}

#[test]
fn cpp_binding() {
    BINDING.passes(Nothing);
}

#[test]
fn cpp_binding_under_asan() {
    BINDING.passes(Address);
}

#[test]
fn cpp_binding_under_tsan() {
    BINDING.passes(Thread);
}

#[test]
fn cpp_binding_under_valgrind() {
    BINDING.passes(Memcheck);
}

#[test]
fn examples() {
    EXAMPLE_C.passes(Nothing);
    EXAMPLE_CPP.passes(Nothing);
}

#[test]
fn examples_under_asan() {
    EXAMPLE_C.passes(Address);
    EXAMPLE_CPP.passes(Address);
}

const PLANTED: &[&str] = &["tests/c/planted.c"];

/// The base of the tests below: without a defect no checker complains, and without a checker no defect shows.
#[test]
fn planted_defects_need_a_checker() {
    for checker in [Nothing, Address, Thread, Memcheck] {
        checker.approves("planted", PLANTED, &["none"]);
    }
    for defect in ["overflow", "short", "leak", "lost", "race", "reuse"] {
        Nothing.approves(&format!("planted-{defect}"), PLANTED, &[defect]);
    }
}

#[test]
fn asan_finds_planted_defects() {
    Address.condemns("overflow", PLANTED, &["overflow"], "heap-buffer-overflow");
    Address.condemns("short", PLANTED, &["short"], "heap-buffer-overflow");
    Address.condemns("leak", PLANTED, &["leak"], "LeakSanitizer: detected memory leaks");
    Address.condemns("lost", PLANTED, &["lost"], "LeakSanitizer: detected memory leaks");
}

#[test]
fn tsan_finds_planted_defects() {
    Thread.condemns("race", PLANTED, &["race"], "data race");
    Thread.condemns("reuse", PLANTED, &["reuse"], "deepep"); // the library's half of the race
}

#[test]
fn valgrind_finds_planted_defects() {
    Memcheck.condemns("overflow", PLANTED, &["overflow"], "Invalid read");
    Memcheck.condemns("short", PLANTED, &["short"], "Invalid read");
    Memcheck.condemns("leak", PLANTED, &["leak"], "definitely lost");
    Memcheck.condemns("lost", PLANTED, &["lost"], "definitely lost");
}
