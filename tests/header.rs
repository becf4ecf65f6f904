//! include/deep_ep.h is what the source generates, says which version it is of, and leaves nothing undocumented.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test may fail by panicking

#[path = "native/c_header.rs"]
mod c_header;

use c_header::{Header, Item, Member};

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/include/deep_ep.h");

fn committed() -> String {
    std::fs::read_to_string(COMMITTED).unwrap()
}

fn header() -> Header {
    let header = c_header::read(&committed());
    assert!(
        header.functions.len() > 30 && header.structs.len() > 10 && header.enums.len() > 5,
        "the reader fails"
    );
    header
}

#[test]
fn committed_header_is_the_generated_one() {
    let generated = std::fs::read_to_string(env!("DEEPEP_GENERATED_HEADER")).unwrap();
    if std::env::var_os("UPDATE_HEADER").is_some() {
        // In one step, since other tests read the file meanwhile.
        let fresh = format!("{COMMITTED}.new");
        std::fs::write(&fresh, &generated).unwrap();
        std::fs::rename(&fresh, COMMITTED).unwrap();
    }
    assert!(
        committed() == generated,
        "include/deep_ep.h is not what src/capi generates; `UPDATE_HEADER=1 cargo test --test header` rewrites it"
    );
}

/// Names that the header gives to a program: macros, types, enumerators and functions.
fn names(text: &str) -> Vec<String> {
    let header = c_header::read(text);
    let items = header.functions.iter().chain(&header.structs).chain(&header.enums);
    let mut names: Vec<String> = items.map(|item| item.name.clone()).collect();
    names.extend(header.enums.iter().flat_map(|item| &item.members).map(|member| member.name.clone()));
    let lines = text.lines().map(|line| line.trim_start());
    names.extend(lines.clone().filter_map(|line| line.strip_prefix("#define ")).map(str::to_string));
    names.extend(lines.filter(|line| line.starts_with("typedef ") && line.ends_with(';')).map(|line| {
        let declared = line.trim_end_matches(';').split(")(").next().unwrap_or_default();
        declared.rsplit([' ', '*', '(']).next().unwrap_or_default().to_string()
    }));
    names
}

fn foreign_names(text: &str) -> Vec<String> {
    let own = |name: &String| name.starts_with("deep_ep_") || name.starts_with("DEEP_EP_");
    names(text).into_iter().filter(|name| !own(name)).collect()
}

/// A program's own NONE or PAGE must not be changed by including the header.
#[test]
fn header_defines_only_names_of_its_own() {
    assert_eq!(foreign_names(&committed()), Vec::<String>::new());
    let leak = "#define NONE -1\nenum Phase\n {\n    Enter = 0,\n};\ntypedef uint32_t Phase;\n";
    assert_eq!(foreign_names(leak), ["Phase", "Enter", "NONE -1", "Phase"]);
}

#[test]
fn version_macros_are_the_version_of_the_package() {
    let macros = header().macros;
    let number = |name: &str| macros.iter().find(|(key, _)| key == name).unwrap().1.clone();
    let version =
        ["MAJOR", "MINOR", "PATCH"].map(|part| number(&format!("DEEP_EP_VERSION_{part}"))).join(".");
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
}

/// What every function's comment must say, each in a line or sentence of its own.
const SECTIONS: [&str; 5] = ["Collective:", "Blocks the host:", "Capture:", "Threads:", "Returns:"];

fn missing_from_function(function: &Item) -> Vec<String> {
    let mut missing = Vec::new();
    let description = function.comment.lines().next().unwrap_or_default();
    if description.len() < 10 || SECTIONS.iter().any(|section| description.starts_with(section)) {
        missing.push(format!("{}: a description", function.name));
    }
    for section in SECTIONS {
        if !function.comment.contains(section) {
            missing.push(format!("{}: \"{section}\"", function.name));
        }
    }
    missing
}

/// The rule for fields. A field is explained by a comment of its own, or, without one,
/// - by the comment of the field before it, when both have the same type: one comment for a group;
/// - by the comment of its struct, when it is the only field;
/// - by its name, when it counts: a plural (`dispatches`) or a past participle behind one (`rows_sent`).
fn unexplained_fields(structure: &Item) -> Vec<String> {
    let mut unexplained = Vec::new();
    let mut group: Option<&Member> = None;
    for field in &structure.members {
        let first = field.name.split('_').next().unwrap_or_default();
        let counts = field.kind == "uint64_t" && first.ends_with('s');
        let grouped = group.is_some_and(|before| before.kind == field.kind);
        let alone = structure.members.len() == 1 && !structure.comment.is_empty();
        if !field.comment.is_empty() {
            group = Some(field);
        } else if !(grouped || alone || counts) {
            unexplained.push(format!("{}.{}", structure.name, field.name));
        }
    }
    unexplained
}

#[test]
fn every_function_is_documented() {
    let missing: Vec<String> = header().functions.iter().flat_map(missing_from_function).collect();
    assert!(missing.is_empty(), "the header does not say: {missing:#?}");
}

#[test]
fn every_struct_and_field_is_explained() {
    let header = header();
    let mut missing: Vec<String> = header.structs.iter().flat_map(unexplained_fields).collect();
    missing
        .extend(header.structs.iter().filter(|item| item.comment.is_empty()).map(|item| item.name.clone()));
    assert!(missing.is_empty(), "the header does not explain: {missing:#?}");
}

/// Enumerators may speak for themselves (DEEP_EP_BF16); their enum may not.
#[test]
fn every_enum_is_explained() {
    let missing: Vec<String> =
        header().enums.into_iter().filter(|item| item.comment.len() < 10).map(|item| item.name).collect();
    assert!(missing.is_empty(), "the header does not explain: {missing:#?}");
}

#[test]
fn missing_documentation_is_found() {
    let good = "/**\n * Does a thing to it.\n *\n * Collective: no. Blocks the host: no. Capture: allowed. Threads: any.\n \
                *\n * Returns: 0.\n */\nDEEP_EP_API\nint deep_ep_thing(void);\n";
    let read = c_header::read(good);
    assert_eq!(read.functions[0].name, "deep_ep_thing");
    assert_eq!(missing_from_function(&read.functions[0]), Vec::<String>::new());
    for section in SECTIONS {
        let bad = c_header::read(&good.replace(section, "So:"));
        assert_eq!(missing_from_function(&bad.functions[0]), [format!("deep_ep_thing: \"{section}\"")]);
    }
    let bad = c_header::read(&good.replace(" * Does a thing to it.\n *\n", ""));
    assert_eq!(missing_from_function(&bad.functions[0]), ["deep_ep_thing: a description"]);
    let bare = c_header::read("DEEP_EP_API\nconst char *deep_ep_bare(int a,\n int b);\n");
    assert_eq!(missing_from_function(&bare.functions[0]).len(), 6);

    let fields = "/**\n * A thing.\n */\ntypedef struct {\n    /**\n     * Said.\n     */\n    int32_t a;\n    int32_t b;\n    \
                  int64_t c;\n    uint64_t rows_sent;\n    void *d[2];\n} deep_ep_thing_t;\n";
    let read = c_header::read(fields);
    assert_eq!(read.structs[0].comment, "A thing.");
    assert_eq!(unexplained_fields(&read.structs[0]), ["deep_ep_thing_t.c", "deep_ep_thing_t.d"]);
}

/// Public report deepseek-ai/DeepEP#673: the contract for -1 and for ids out of range must be written down.
#[test]
fn case_010_header_states_the_sentinel() {
    let text = committed().replace("\n *", "").split_whitespace().collect::<Vec<_>>().join(" ");
    for sentence in [
        "Expert ids: 0 to num_experts - 1, and -1 for \"no expert\", the only sentinel.",
        "Any other id, and a second occurrence of an id in its row, is treated as -1 and reported by \
         deep_ep_buffer_report with row and value.",
    ] {
        assert!(text.contains(sentence), "the header does not say: {sentence}");
    }
    let header = header();
    let input = header.structs.iter().find(|item| item.name == "deep_ep_dispatch_in_t").unwrap();
    let ids = input.members.iter().find(|field| field.name == "topk_idx").unwrap();
    assert!(ids.comment.contains("-1 is \"no expert\", the only sentinel"), "{}", ids.comment);
}
