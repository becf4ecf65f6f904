//! Part of the build script: kernels/entry/*.cu to one image each, with machine code for every architecture and PTX for
//! what comes after them. The benchmark's own kernels are an image too, but not the library's.

use crate::Result;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Architectures that get machine code, and the one that gets PTX.
const MACHINE_CODE: &str = "90,100";
const PTX: &str = "90";
const NVCC_VERSION: &str = "release 13.0";
/// More flags, which nvcc itself takes from the environment.
const NVCC_FLAGS: &str = "NVCC_APPEND_FLAGS";

/// The kernels of the benchmark; it finds their image by this variable of the build.
const PROBES: &str = "kernels/bench/probes.cu";
const PROBES_VARIABLE: &str = "DEEPEP_BENCH_PROBES";

/// Compiles into `out` and writes `images.rs` there: `static IMAGES: [Image; n]`.
pub fn compile(root: &Path, out: &Path) -> Result<()> {
    for variable in ["DEEPEP_NVCC", "NVCC", "CUDA_HOME", "DEEPEP_CUDA_ARCHS", NVCC_FLAGS] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let nvcc = find_nvcc(root)?;
    let mut sources: Vec<PathBuf> = std::fs::read_dir(root.join("kernels/entry"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "cu"))
        .collect();
    // The longest first, so that none is left alone at the end.
    sources.sort_by_key(|path| (!path.ends_with("dispatch_by_expert.cu"), !is_large(path), path.clone()));
    // Images are kept, for all profiles and programs, as long as everything that they were made from is the same.
    let target = out.ancestors().nth(4).unwrap_or(out);
    let images = target.join("kernels").join(stamp(root, &nvcc)?);
    std::fs::create_dir_all(&images)?;
    let probes = root.join(PROBES);
    println!("cargo:rustc-env={PROBES_VARIABLE}={}", image_of(&probes, &images).display());
    let all: Vec<PathBuf> = sources.iter().cloned().chain([probes]).collect();
    let queue = Mutex::new(all.iter());
    let failed = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(2, |n| n.get()).min(sources.len());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let next = || queue.lock().ok().and_then(|mut queue| queue.next());
                while let Some(source) = next() {
                    let Err(error) = compile_one(&nvcc, source, &images) else { continue };
                    if let Ok(mut failed) = failed.lock() {
                        failed.push(error.to_string());
                    }
                }
            });
        }
    });
    let failed = failed.into_inner()?;
    if !failed.is_empty() {
        return Err(failed.join("\n").into());
    }
    sources.sort();
    let mut text = format!("static IMAGES: [Image; {}] = [\n", sources.len());
    for source in &sources {
        let image = image_of(source, &images);
        let name = image.file_stem().unwrap_or_default();
        text += &format!("    Image({name:?}, &Aligned(*include_bytes!({image:?})).0),\n");
    }
    text += "];\n";
    std::fs::write(out.join("images.rs"), text)?;
    Ok(())
}

/// Whether the file holds a family of kernels.
fn is_large(path: &Path) -> bool {
    std::fs::read_to_string(path).is_ok_and(|text| text.contains("kernel.cuh"))
}

fn image_of(source: &Path, images: &Path) -> PathBuf {
    let name = source.file_stem().unwrap_or_default();
    images.join(name).with_extension("fatbin")
}

/// The architectures of this build; fewer make a faster build for one machine.
fn archs() -> String {
    std::env::var("DEEPEP_CUDA_ARCHS").unwrap_or_else(|_| MACHINE_CODE.into())
}

/// A number for compiler, architectures and all kernel sources (FNV-1a).
fn stamp(root: &Path, nvcc: &Path) -> Result<String> {
    let mut paths = Vec::new();
    for layer in ["entry", "impl", "comm", "layout", "ptx", "bench"] {
        for entry in std::fs::read_dir(root.join("kernels").join(layer))? {
            paths.push(entry?.path());
        }
    }
    paths.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for &byte in bytes {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    let flags = std::env::var(NVCC_FLAGS).unwrap_or_default();
    add(format!("{} {} {flags}", nvcc.display(), archs()).as_bytes());
    for path in paths {
        add(path.to_string_lossy().as_bytes());
        add(&std::fs::read(path)?);
    }
    Ok(format!("{hash:016x}"))
}

fn compile_one(nvcc: &Path, source: &Path, images: &Path) -> Result<()> {
    let image = image_of(source, images);
    if image.is_file() {
        return Ok(());
    }
    // Two builds may be at it at once: whole files appear under the final name.
    let part = image.with_extension(format!("{}.part", std::process::id()));
    let mut command = Command::new(nvcc);
    command.args(["-std=c++17", "-O3", "-fatbin", "-diag-suppress", "128", "-Werror", "all-warnings"]);
    for arch in archs().split(',') {
        command.arg("-gencode").arg(format!("arch=compute_{arch},code=sm_{arch}"));
    }
    command.arg("-gencode").arg(format!("arch=compute_{PTX},code=compute_{PTX}"));
    command.arg("-o").arg(&part).arg(source);
    let result = command.output().map_err(|error| format!("{}: {error}", nvcc.display()))?;
    if result.status.success() {
        return Ok(std::fs::rename(part, image)?);
    }
    let text = [result.stdout, result.stderr].concat();
    Err(format!("nvcc could not compile {}:\n{}", source.display(), String::from_utf8_lossy(&text)).into())
}

/// The first nvcc in the usual places; it must be of the version whose PTX the oldest supported driver can take.
fn find_nvcc(root: &Path) -> Result<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(named) = variable("DEEPEP_NVCC").or_else(|| variable("NVCC")) {
        return check_version(&named).map(|()| named);
    }
    let mut places: Vec<PathBuf> =
        variable("CUDA_HOME").map(|home| home.join("bin/nvcc")).into_iter().collect();
    if let Some(path) = std::env::var_os("PATH") {
        places.extend(std::env::split_paths(&path).map(|dir| dir.join("nvcc")));
    }
    // The compiler of the PyPI wheels, which `make cuda` installs.
    if let Ok(pythons) = std::fs::read_dir(root.join("target/cuda-venv/lib")) {
        places.extend(
            pythons.filter_map(|entry| Some(entry.ok()?.path().join("site-packages/nvidia/cu13/bin/nvcc"))),
        );
    }
    let mut others = String::new();
    for place in places.iter().filter(|place| place.is_file()) {
        match check_version(place) {
            Ok(()) => return Ok(place.clone()),
            Err(error) => others += &format!("; {error}"),
        }
    }
    Err(format!(
        "the feature `cuda` needs nvcc 13.0: set DEEPEP_NVCC or NVCC to it, or CUDA_HOME to its toolkit, or put it in \
         PATH, or run `make cuda`, which installs one in target/cuda-venv{others}"
    )
    .into())
}

fn check_version(nvcc: &Path) -> Result<()> {
    let result = Command::new(nvcc).arg("--version").output();
    let text = result.map_err(|error| format!("{}: {error}", nvcc.display()))?.stdout;
    let text = String::from_utf8_lossy(&text);
    if text.contains(NVCC_VERSION) {
        return Ok(());
    }
    let version = text.lines().find(|line| line.contains("release")).unwrap_or("of unknown version");
    Err(format!("{} is not nvcc 13.0 but: {version}", nvcc.display()).into())
}
