//! Writes the C header into OUT_DIR (a test compares it with include/deep_ep.h) and sets the library's soname.

use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rerun-if-changed=cbindgen.toml");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdeepep.so.0");

    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let header = PathBuf::from(std::env::var("OUT_DIR")?).join("deep_ep.h");
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml"))?;
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in interface(&root)? {
        builder = builder.with_src(source);
    }
    builder.generate()?.write_to_file(&header);
    println!("cargo:rustc-env=DEEPEP_GENERATED_HEADER={}", header.display());
    Ok(())
}

/// The files the header is made of. Any other file's public constants and enums would end up in it too.
fn interface(root: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = vec![root.join("src/error.rs")]; // the status codes
    for entry in std::fs::read_dir(root.join("src/capi"))? {
        files.push(entry?.path());
    }
    files.retain(|file| file.is_file());
    files.sort();
    Ok(files)
}
