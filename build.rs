//! Writes the C header into OUT_DIR (a test compares it with include/deep_ep.h) and sets the library's soname.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rerun-if-changed=cbindgen.toml");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdeepep.so.0");

    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let header = PathBuf::from(std::env::var("OUT_DIR")?).join("deep_ep.h");
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml"))?;
    cbindgen::Builder::new().with_crate(&root).with_config(config).generate()?.write_to_file(&header);
    println!("cargo:rustc-env=DEEPEP_GENERATED_HEADER={}", header.display());
    Ok(())
}
