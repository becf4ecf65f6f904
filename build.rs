//! Writes the C header into OUT_DIR (a test compares it with include/deep_ep.h) and sets the library's soname.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rerun-if-changed=cbindgen.toml");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdeepep.so.0");

    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let header = PathBuf::from(std::env::var("OUT_DIR")?).join("deep_ep.h");
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml"))?;
    // The ABI layer and the status codes; the public constants of any other file would end up in the header too.
    let sources = ["src/error.rs", "src/capi/mod.rs"];
    let builder =
        sources.iter().fold(cbindgen::Builder::new(), |builder, file| builder.with_src(root.join(file)));
    builder.with_config(config).generate()?.write_to_file(&header);
    println!("cargo:rustc-env=DEEPEP_GENERATED_HEADER={}", header.display());
    Ok(())
}
