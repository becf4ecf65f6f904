//! Compiling C and C++ programs against the library that this test run was built with, and running them under a
//! deadline.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The longest a compiler or a program may take, in seconds. A group whose member died ends by its own deadlines.
const DEADLINE: &str = "150";

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A fresh directory for one test of this test binary.
pub fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME")).join(name);
    match std::fs::remove_dir_all(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{}: {error}", path.display()),
        _ => std::fs::create_dir_all(&path).unwrap(),
    }
    path
}

/// The library that cargo built beside this test binary.
pub fn built_library() -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let library = deps.join("libdeepep.so");
    if !library.is_file() {
        panic!("{} is missing: cargo builds it together with the tests", library.display());
    }
    library
}

/// A directory with the library under the names that the linker and the loader look for.
pub fn library_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = scratch("lib");
        lay_out_library(&built_library(), &dir);
        dir
    })
}

/// Puts a library into `dir` under the two names it is looked for.
pub fn lay_out_library(library: &Path, dir: &Path) {
    std::fs::copy(library, dir.join("libdeepep.so.0")).unwrap();
    std::os::unix::fs::symlink("libdeepep.so.0", dir.join("libdeepep.so")).unwrap();
}

/// A command that is killed, with all it started, at the deadline.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", DEADLINE]).arg(program);
    command
}

/// Fails the test with a sentence that says what to do when a tool is not there.
pub fn require(tool: &str) {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(tool).is_file()));
    assert!(found, "{tool} is not installed; `make test` installs it, or: apt-get install {tool}");
}

pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.code() != Some(124),
        "{command:?} had not ended after {DEADLINE} s: {}",
        text(&output)
    );
    output
}

/// Runs a command that must succeed and gives what it printed.
pub fn succeed(command: &mut Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{command:?} failed with {}:\n{}", output.status, text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Standard output and error of a command.
pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A compiler run with the strictest warnings as errors and the headers found, for one source of this project.
pub fn compiler(source: &str) -> Command {
    let cxx = source.ends_with(".cpp");
    let tool = if cxx { "g++" } else { "gcc" };
    require(tool);
    let mut command = command(tool);
    command.arg(if cxx { "-std=c++17" } else { "-std=c99" });
    command.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-g", "-pthread"]);
    command.arg("-I").arg(root().join("include")).arg("-I").arg(root().join("bindings/cpp"));
    command
}

/// Compiles `sources` (paths in this project) with `flags` and links them with the library in `library_dir`.
pub fn build(sources: &[&str], flags: &[&str], library_dir: &Path, program: &Path) {
    let mut objects = Vec::new();
    for (index, source) in sources.iter().enumerate() {
        let object = program.with_extension(format!("{index}.o"));
        succeed(compiler(source).args(flags).arg("-c").arg(root().join(source)).arg("-o").arg(&object));
        objects.push(object);
    }
    let cxx = sources.iter().any(|source| source.ends_with(".cpp"));
    let mut link = command(if cxx { "g++" } else { "gcc" });
    link.args(&objects).args(flags).args(["-pthread", "-o"]).arg(program);
    link.arg("-L").arg(library_dir).arg(format!("-Wl,-rpath,{}", library_dir.display()));
    succeed(link.args(["-ldeepep", "-lm"]));
}
