//! The headers as a compiler sees them, and the layout probe.

use crate::c_header;
use crate::tools::{self, compiler, succeed};

fn compiles(compiler: &str, standard: &str, source: &str) {
    tools::require(compiler);
    let mut command = tools::command(compiler);
    command.args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Wpadded", "-Wconversion", "-Werror"]);
    command.args(["-fsyntax-only", "-I"]).arg(tools::root().join("include"));
    succeed(command.arg(tools::root().join(source)));
}

/// Alone, twice, without padding that would differ between compilers, in every language it is written for.
#[test]
fn header_compiles_in_each_language() {
    for standard in ["-std=c99", "-std=c11", "-std=c17", "-std=c2x"] {
        compiles("gcc", standard, "tests/c/header.c");
    }
    for standard in ["-std=c++17", "-std=c++20"] {
        tools::require("g++");
        let mut command = tools::command("g++");
        command.args(["-x", "c++", standard, "-Wall", "-Wextra", "-Wpedantic", "-Wpadded", "-Werror"]);
        command.args(["-fsyntax-only", "-I"]).arg(tools::root().join("include"));
        succeed(command.arg(tools::root().join("tests/c/header.c")));
    }
}

/// -Wpadded really is what guards the layout.
#[test]
fn padding_would_be_found() {
    let source = tools::scratch("padded").join("padded.c");
    std::fs::write(&source, "struct padded { char a; int b; };\nint main(void) { return 0; }\n").unwrap();
    let output =
        tools::run(tools::command("gcc").args(["-Wpadded", "-Werror", "-fsyntax-only"]).arg(&source));
    assert!(
        !output.status.success() && tools::text(&output).contains("-Werror=padded"),
        "{}",
        tools::text(&output)
    );
}

#[test]
fn wrapper_compiles_without_rtti_and_in_cpp20() {
    for flags in [["-std=c++17", "-fno-rtti"], ["-std=c++20", "-Wshadow"]] {
        let source = "tests/cpp/binding_test.cpp";
        succeed(compiler(source).args(flags).arg("-fsyntax-only").arg(tools::root().join(source)));
    }
}

#[test]
fn header_and_library_have_one_version() {
    let program = tools::scratch("header").join("program");
    tools::build(&["tests/c/header.c"], &[], tools::library_dir(), &program);
    succeed(&mut tools::command(&program));
}

#[test]
fn two_units_share_the_headers() {
    let program = tools::scratch("two-units").join("program");
    let sources = ["tests/cpp/two_units_a.cpp", "tests/cpp/two_units_b.cpp"];
    tools::build(&sources, &[], tools::library_dir(), &program);
    succeed(&mut tools::command(&program));
}

/// tests/c/layout.c names every struct, field and constant of the header: the bindings rely on it.
#[test]
fn layout_probe_knows_everything() {
    let program = tools::scratch("layout").join("program");
    tools::build(&["tests/c/layout.c"], &[], tools::library_dir(), &program);
    let json = succeed(&mut tools::command(&program));
    let header = c_header::read(&std::fs::read_to_string(tools::root().join("include/deep_ep.h")).unwrap());
    let mut rest = json.as_str();
    let mut find = |name: &str| {
        let at = rest
            .find(&format!("\"{name}\": "))
            .unwrap_or_else(|| panic!("the probe lacks {name}, or its order"));
        rest = &rest[at..];
        rest.split_once(": ").unwrap().1.to_string()
    };
    for item in &header.structs {
        find(&item.name);
        for field in &item.members {
            find(&field.name);
        }
    }
    let enumerators = header.enums.iter().flat_map(|item| &item.members);
    let constants = enumerators.map(|member| (member.name.clone(), member.kind.clone()));
    let macros = header.macros.iter().filter(|(_, value)| value.parse::<i64>().is_ok()).cloned();
    for (name, value) in macros.chain(constants) {
        let printed = find(&name);
        let digits = printed.find(|c: char| !c.is_ascii_digit()).unwrap_or(printed.len());
        assert_eq!(printed[..digits], value, "{name}");
    }
}
