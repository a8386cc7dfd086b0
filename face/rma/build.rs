//! Gives the shared object its name: programs that were linked against it find this version of the
//! binary interface.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libropewalk-rma.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
