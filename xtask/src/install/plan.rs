//! The list of installed files and their destinations. Nothing is written here.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The version of the library; its first number is not that of its binary interface.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The name under which programs look for the shared object: it has the version of the binary interface
/// (`face/bmi/build.rs`).
const OBJECT_NAME: &str = "libbmi.so.0";

/// The same of windows (`face/rma/build.rs`).
const RMA_OBJECT_NAME: &str = "libropewalk-rma.so.0";

const HEADERS: [&str; 3] = ["face/bmi/include", "face/mx/include", "face/rma/include"];
/// Programs that use windows; those in Rust need the crates.
const EXAMPLES: &str = "face/rma/examples";
const PAGES: [&str; 3] = ["face/bmi/man", "face/mx/man", "face/rma/man"];
/// The names by which programs find the objects of MX, and the script that links them from their archive.
pub const MX_OBJECTS: [&str; 2] = ["libmyriexpress.so", "libopen-mx.so.0"];
pub const MX_LINK: &str = "face/mx/abi/link.sh";

/// The files that cargo built.
#[derive(Debug)]
pub struct Built {
    pub shared: PathBuf,
    pub archive: PathBuf,
    pub program: PathBuf,
    pub mx_archive: PathBuf,
    /// The objects of MX, by `MX_OBJECTS`.
    pub mx: Vec<PathBuf>,
    pub rma_shared: PathBuf,
    pub rma_archive: PathBuf,
}

impl Built {
    /// The files that an earlier build of the whole workspace has left in its folder.
    pub fn of(folder: &Path) -> Result<Built> {
        let file = |name: &str| {
            let path = folder.join(name);
            if !path.is_file() {
                bail!(
                    "{} is missing: run 'cargo build --workspace --release' first",
                    path.display()
                );
            }
            Ok(path)
        };
        Ok(Built {
            shared: file("libbmi.so")?,
            archive: file("libbmi.a")?,
            program: file("ropewalk")?,
            mx_archive: file("libropewalk_mx.a")?,
            mx: Vec::new(),
            rma_shared: file("libropewalk_rma_face.so")?,
            rma_archive: file("libropewalk_rma_face.a")?,
        })
    }
}

/// Something to put into the prefix.
#[derive(Debug, PartialEq, Eq)]
pub struct Item {
    /// Below the prefix.
    pub path: PathBuf,
    pub what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A copy, that may be executed or not.
    Copy {
        from: PathBuf,
        executable: bool,
    },
    /// A link beside what it points to.
    Link(String),
    Text(String),
}

/// Names by which mount(8) finds the command, for lines of /etc/fstab and for remounts.
const MOUNT_HELPERS: [&str; 2] = ["sbin/mount.ropewalk", "sbin/mount.fuse.ropewalk"];

/// All that is installed below `prefix`.
pub fn plan(root: &Path, built: &Built, prefix: &Path) -> Result<Vec<Item>> {
    let mut items = library(OBJECT_NAME, &built.shared, &built.archive, pkg_config(prefix)?);
    let text = rma_pkg_config(prefix)?;
    items.extend(library(RMA_OBJECT_NAME, &built.rma_shared, &built.rma_archive, text));
    items.push(copy("bin/ropewalk".to_string(), &built.program, true));
    for helper in MOUNT_HELPERS {
        items.push(link(helper.to_string(), "../bin/ropewalk".to_string()));
    }
    for (name, object) in MX_OBJECTS.iter().zip(&built.mx) {
        items.push(copy(format!("lib/{name}"), object, true));
    }
    items.push(link("lib/libopen-mx.so".to_string(), MX_OBJECTS[1].to_string()));
    for (name, text) in [("libmyriexpress", "myriexpress"), ("libopen-mx", "open-mx")] {
        let text = What::Text(mx_pkg_config(prefix, name, text)?);
        items.push(Item { path: format!("lib/pkgconfig/{name}.pc").into(), what: text });
    }
    for headers in HEADERS {
        for (name, path) in listed(&root.join(headers))? {
            items.push(copy(format!("include/{name}"), &path, false));
        }
    }
    for (name, path) in listed(&root.join(EXAMPLES))? {
        if name.ends_with(".c") {
            items.push(copy(format!("share/doc/ropewalk/examples/{name}"), &path, false));
        }
    }
    for pages in PAGES {
        for (name, path) in listed(&root.join(pages))? {
            let section = name.rsplit('.').next().filter(|section| matches!(*section, "3" | "7"));
            let Some(section) = section else { bail!("{} is not a manual page", path.display()) };
            items.push(copy(format!("share/man/man{section}/{name}"), &path, false));
        }
    }
    Ok(items)
}

/// A library under the names by which programs, linkers and pkg-config find it.
fn library(object_name: &str, shared: &Path, archive: &Path, pkg_config: String) -> Vec<Item> {
    let name = object_name.split(".so").next().unwrap_or(object_name);
    let object = format!("{name}.so.{VERSION}");
    let text = What::Text(pkg_config);
    vec![
        copy(format!("lib/{object}"), shared, true),
        link(format!("lib/{object_name}"), object),
        link(format!("lib/{name}.so"), object_name.to_string()),
        copy(format!("lib/{name}.a"), archive, false),
        Item { path: format!("lib/pkgconfig/{name}.pc").into(), what: text },
    ]
}

fn copy(path: String, from: &Path, executable: bool) -> Item {
    Item { path: path.into(), what: What::Copy { from: from.to_path_buf(), executable } }
}

fn link(path: String, to: String) -> Item {
    Item { path: path.into(), what: What::Link(to) }
}

/// The files of a folder by name, in order.
fn listed(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("{} cannot be read", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        files.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
    }
    files.sort();
    Ok(files)
}

fn written(prefix: &Path) -> Result<&str> {
    let prefix = prefix.to_str().filter(|prefix| !prefix.contains(char::is_whitespace));
    prefix.context("--prefix must not contain blanks, since it becomes part of compiler options")
}

/// Prefixes whose libraries every program finds once ldconfig was run.
const USUAL: [&str; 2] = ["/usr", "/usr/local"];

fn is_usual(prefix: &Path) -> bool {
    USUAL.map(Path::new).contains(&prefix)
}

/// The linker flags by which programs find libraries in an unusual prefix. `LD_LIBRARY_PATH` is an alternative, but
/// not for programs with capabilities, which raw frames need: the loader ignores the variable for them.
fn run_path(prefix: &Path) -> &'static str {
    if is_usual(prefix) { "" } else { " -Wl,-rpath,${libdir}" }
}

/// The pkg-config file of MX.
fn mx_pkg_config(prefix: &Path, name: &str, library: &str) -> Result<String> {
    let (prefix, run_path) = (written(prefix)?, run_path(prefix));
    Ok(format!(
        "prefix={prefix}
exec_prefix=${{prefix}}
libdir=${{exec_prefix}}/lib
includedir=${{prefix}}/include

Name: {name}
Description: MX (Myrinet Express), over Ropewalk's message layer
Version: {VERSION}
Cflags: -I${{includedir}}
Libs: -L${{libdir}}{run_path} -l{library}
"
    ))
}

/// The pkg-config file of the library. Its private libraries are those of the archive.
fn pkg_config(prefix: &Path) -> Result<String> {
    let (prefix, run_path) = (written(prefix)?, run_path(prefix));
    Ok(format!(
        "prefix={prefix}
exec_prefix=${{prefix}}
libdir=${{exec_prefix}}/lib
includedir=${{prefix}}/include
# For programs that were written for OrangeFS's flavour of the interface, beside the usual flags:
# pkg-config --variable=orangefs_cflags libbmi
orangefs_cflags=-DBMI_API_ORANGEFS

Name: libbmi
Description: BMI, the Buffered Message Interface, over Ropewalk's message layer
Version: {VERSION}
Cflags: -I${{includedir}}
Libs: -L${{libdir}}{run_path} -lbmi
Libs.private: -lpthread -ldl -lm
"
    ))
}

/// The pkg-config file of windows.
fn rma_pkg_config(prefix: &Path) -> Result<String> {
    let (prefix, run_path) = (written(prefix)?, run_path(prefix));
    Ok(format!(
        "prefix={prefix}
exec_prefix=${{prefix}}
libdir=${{exec_prefix}}/lib
includedir=${{prefix}}/include

Name: libropewalk-rma
Description: One-sided windows with the semantics of MPI's, over Ropewalk's message layer
Version: {VERSION}
Cflags: -I${{includedir}}
Libs: -L${{libdir}}{run_path} -lropewalk-rma
Libs.private: -lpthread -ldl -lm
"
    ))
}

/// Advice on the steps that users may have to take after the installation.
pub fn advice(prefix: &Path, staged: bool) -> String {
    match (staged, is_usual(prefix)) {
        (true, _) => "staged; run ldconfig where the package is installed".to_string(),
        (false, true) => "run ldconfig, so that programs find the library".to_string(),
        (false, false) => format!(
            "to use it:\n  export PKG_CONFIG_PATH={0}/lib/pkgconfig MANPATH={0}/share/man:\n  cc \
             program.c $(pkg-config --cflags --libs libbmi)\n(libropewalk-rma for windows)\nfor programs that were linked \
             otherwise, set LD_LIBRARY_PATH={0}/lib",
            prefix.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned() -> Vec<Item> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the root");
        let built = Built {
            shared: "/t/libbmi.so".into(),
            archive: "/t/libbmi.a".into(),
            program: "/t/ropewalk".into(),
            mx_archive: "/t/libropewalk_mx.a".into(),
            mx: MX_OBJECTS.iter().map(|name| Path::new("/t/mx").join(name)).collect(),
            rma_shared: "/t/libropewalk_rma_face.so".into(),
            rma_archive: "/t/libropewalk_rma_face.a".into(),
        };
        plan(root, &built, Path::new("/opt/rope")).unwrap()
    }

    fn at<'a>(items: &'a [Item], path: &str) -> &'a What {
        let found = items.iter().find(|item| item.path == Path::new(path));
        &found.unwrap_or_else(|| panic!("{path} is not installed")).what
    }

    #[test]
    fn programs_find_the_object_by_its_interface_and_linkers_by_its_name() {
        let items = planned();
        let object = format!("libbmi.so.{VERSION}");
        let shared = What::Copy { from: "/t/libbmi.so".into(), executable: true };
        assert_eq!(*at(&items, &format!("lib/{object}")), shared);
        assert_eq!(*at(&items, "lib/libbmi.so.0"), What::Link(object));
        assert_eq!(*at(&items, "lib/libbmi.so"), What::Link("libbmi.so.0".to_string()));
        let script = include_str!("../../../face/bmi/build.rs");
        assert!(script.contains(&format!("-soname,{OBJECT_NAME}\"")), "another object name");
    }

    #[test]
    fn windows_have_a_library_with_their_name() {
        let items = planned();
        let object = format!("libropewalk-rma.so.{VERSION}");
        let from = "/t/libropewalk_rma_face.so".into();
        assert_eq!(*at(&items, &format!("lib/{object}")), What::Copy { from, executable: true });
        assert_eq!(*at(&items, "lib/libropewalk-rma.so.0"), What::Link(object));
        let linked = What::Link("libropewalk-rma.so.0".to_string());
        assert_eq!(*at(&items, "lib/libropewalk-rma.so"), linked);
        at(&items, "lib/libropewalk-rma.a");
        let text = at(&items, "lib/pkgconfig/libropewalk-rma.pc");
        let What::Text(text) = text else { panic!("no text") };
        assert!(text.contains(" -lropewalk-rma\n") && text.contains("\nLibs.private: "));
        let script = include_str!("../../../face/rma/build.rs");
        assert!(script.contains(&format!("-soname,{RMA_OBJECT_NAME}\"")), "another object name");
    }

    #[test]
    fn both_objects_of_mx_are_there_under_the_names_that_programs_have() {
        let items = planned();
        for name in MX_OBJECTS {
            let object = What::Copy { from: Path::new("/t/mx").join(name), executable: true };
            assert_eq!(*at(&items, &format!("lib/{name}")), object);
        }
        assert_eq!(*at(&items, "lib/libopen-mx.so"), What::Link("libopen-mx.so.0".to_string()));
        at(&items, "lib/pkgconfig/libmyriexpress.pc");
    }

    #[test]
    fn everything_is_installed_once_and_below_the_prefix() {
        let items = planned();
        let pages = ["bmi.7", "mx.7", "ropewalk-rma.7"].map(|it| format!("share/man/man7/{it}"));
        let plain = ["lib/libbmi.a", "bin/ropewalk"].map(String::from);
        for path in plain.iter().chain(&pages) {
            at(&items, path);
        }
        let bmi = ["bmi.h", "bmi-types.h", "bmi-byteswap.h"];
        let others = ["myriexpress.h", "mx_raw.h", "open-mx.h", "ropewalk_rma.h"];
        for header in bmi.into_iter().chain(others) {
            at(&items, &format!("include/{header}"));
        }
        let mut paths: Vec<_> = items.iter().map(|item| &item.path).collect();
        assert!(paths.iter().all(|path| path.is_relative()));
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), items.len());
    }

    #[test]
    fn pkg_config_names_the_prefix_and_the_other_flavour() {
        let items = planned();
        let What::Text(text) = at(&items, "lib/pkgconfig/libbmi.pc") else { panic!("no text") };
        assert!(text.starts_with("prefix=/opt/rope\n"));
        assert!(text.contains("\norangefs_cflags=-DBMI_API_ORANGEFS\n"));
        assert!(text.contains("\nLibs.private: ") && text.contains(VERSION));
        assert!(pkg_config(Path::new("/my files")).is_err());
    }

    #[test]
    fn programs_are_told_where_libraries_are_unless_all_of_them_look_there() {
        for (prefix, told) in
            [("/opt/rope", true), ("/usr/local", false), ("/usr/", false), ("/usr/lib", true)]
        {
            let prefix = Path::new(prefix);
            let mx = mx_pkg_config(prefix, "libopen-mx", "open-mx");
            let texts = [pkg_config(prefix), mx, rma_pkg_config(prefix)];
            for text in texts.map(Result::unwrap) {
                let libraries = text.lines().find(|line| line.starts_with("Libs:")).unwrap();
                let path = libraries.contains(" -Wl,-rpath,${libdir} -l");
                assert_eq!(path, told, "{}: {text}", prefix.display());
            }
        }
    }
}
