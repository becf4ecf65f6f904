//! Writes the C header into OUT_DIR (a test compares it with include/deep_ep.h) and sets the library's soname.

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rerun-if-changed=cbindgen.toml");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdeepep.so.0");

    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap());
    let out = PathBuf::from(std::env::var("OUT_DIR").unwrap());
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml is readable");
    cbindgen::Builder::new()
        .with_crate(&root)
        .with_config(config)
        .generate()
        .expect("src/capi can be turned into a header")
        .write_to_file(out.join("deep_ep.h"));
    println!("cargo:rustc-env=DEEPEP_GENERATED_HEADER={}", out.join("deep_ep.h").display());
}
