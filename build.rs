//! Writes the C header into OUT_DIR (a test compares it with include/deep_ep.h), sets the library's soname and, with the
//! feature `cuda`, compiles the kernels.

use std::path::PathBuf;

#[path = "kernels/build.rs"]
mod kernels;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rerun-if-changed=cbindgen.toml");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdeepep.so.0");

    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let header = out.join("deep_ep.h");
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml"))?;
    // The ABI layer and the status codes; the public constants of any other file would end up in the header too.
    let sources = ["src/error.rs", "src/capi/mod.rs"];
    let builder =
        sources.iter().fold(cbindgen::Builder::new(), |builder, file| builder.with_src(root.join(file)));
    builder.with_config(config).generate()?.write_to_file(&header);
    println!("cargo:rustc-env=DEEPEP_GENERATED_HEADER={}", header.display());
    println!("cargo:rerun-if-changed=kernels");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_some() {
        kernels::compile(&root, &out)?;
    }
    Ok(())
}
