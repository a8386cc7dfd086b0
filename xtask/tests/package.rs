//! The packages as an administrator has them: made from this build, unpacked, installed by dpkg into a fresh root directory,
//! and used there.

mod fresh;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fresh::Fresh;

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {said}", output.status);
    output
}

fn text(command: &mut Command) -> String {
    String::from_utf8(succeed(command).stdout).expect("it says text")
}

fn is_there(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Whether these programs are there; else the test is skipped, and says so.
fn all_there(programs: &[&str]) -> bool {
    let missing: Vec<&&str> = programs.iter().filter(|program| !is_there(program)).collect();
    if !missing.is_empty() {
        println!("SKIP: these programs are missing: {missing:?}");
    }
    missing.is_empty()
}

fn is_root() -> bool {
    text(Command::new("id").arg("-u")).trim() == "0"
}

/// Both packages, in a folder.
struct Packages {
    deb: PathBuf,
    tarball: PathBuf,
}

/// Makes the packages of this build.
fn packages(out: &Path, more: &[&str]) -> Packages {
    let own = Path::new(env!("CARGO_BIN_EXE_xtask")).parent().expect("a folder");
    let profile = match own.file_name().and_then(|name| name.to_str()) {
        Some("debug") => "dev",
        other => other.expect("a folder for each profile"),
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(["package", "--level", "1", "--out"]);
    command.arg(out).args(["--profile", profile]).args(more);
    // Test programs may run with it; a build with it would share nothing with the one before.
    command.env_remove("RUSTC_BOOTSTRAP").env("SOURCE_DATE_EPOCH", "1795961129");
    let said = text(&mut command);
    let paths: Vec<PathBuf> = said.lines().map(PathBuf::from).collect();
    let [deb, tarball] = <[PathBuf; 2]>::try_from(paths).expect("two packages");
    assert_eq!(std::fs::read_dir(out).expect("a folder").count(), 2, "nothing else is left");
    Packages { deb, tarball }
}

/// The entries of an archive as `tar -tv` lists them, by path: mode, owner, and where a link points.
fn entries(listing: &str) -> BTreeMap<String, (String, String, Option<String>)> {
    let entry = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let path = words[5].trim_start_matches("./").trim_end_matches('/').to_string();
        let link = words.get(7).map(|link| (*link).to_string());
        (path, (words[0].to_string(), words[1].to_string(), link))
    };
    listing.lines().map(entry).collect()
}

/// The paths below a prefix that both packages have.
const SHARED: &[&str] = &[
    "bin/ropewalk",
    "include/bmi.h",
    "include/myriexpress.h",
    "include/open-mx.h",
    "include/ropewalk_rma.h",
    "lib/libbmi.a",
    "lib/libbmi.so.0.1.0",
    "lib/libmyriexpress.so",
    "lib/libopen-mx.so.0",
    "lib/libropewalk-rma.so.0.1.0",
    "lib/pkgconfig/libbmi.pc",
    "lib/pkgconfig/libmyriexpress.pc",
    "lib/pkgconfig/libropewalk-rma.pc",
    "lib/systemd/system/ropewalk-data@.service",
    "lib/systemd/system/ropewalk-meta@.service",
    "lib/systemd/system/ropewalk-mount.service",
    "lib/systemd/system/ropewalk.service",
    "lib/sysusers.d/ropewalk.conf",
    "sbin/mount.ropewalk",
    "share/bash-completion/completions/ropewalk",
    "share/doc/ropewalk/copyright",
    "share/doc/ropewalk/examples/jacobi.c",
    "share/doc/ropewalk/examples/mnt-ropewalk.mount",
    "share/doc/ropewalk/examples/ropewalk.toml",
    "share/doc/ropewalk/install.md",
    "share/fish/vendor_completions.d/ropewalk.fish",
    "share/man/man1/ropewalk.1",
    "share/man/man3/BMI_post_send.3",
    "share/man/man5/ropewalk.toml.5",
    "share/man/man7/bmi.7",
    "share/man/man8/mount.ropewalk.8",
];

/// Checks names, modes and owners of a listing.
fn check_entries(listing: &str, prefix: &str) -> Vec<String> {
    let entries = entries(listing);
    for path in SHARED {
        assert!(entries.contains_key(&format!("{prefix}/{path}")), "{prefix}/{path} is missing");
    }
    assert!(entries.contains_key("etc/ropewalk/ropewalk.toml"));
    for (path, (mode, owner, link)) in &entries {
        assert!(owner == "0/0" || owner == "root/root", "{path} belongs to {owner}");
        let runs = path.contains("/bin/") || path.contains(".so");
        let wanted = match (&mode[..1], runs) {
            ("d", _) => "drwxr-xr-x",
            ("l", _) => "lrwxrwxrwx",
            (_, true) => "-rwxr-xr-x",
            (_, false) => "-rw-r--r--",
        };
        assert_eq!(mode, wanted, "{path}");
        // A link leads to a file of the package.
        let Some(link) = link else { continue };
        let target = Path::new(path).parent().expect("a folder").join(link);
        let target = target.to_string_lossy().replace("sbin/../", "");
        assert!(entries.contains_key(&target), "{path} -> {link}");
    }
    let below = |path: &String| path.strip_prefix(&format!("{prefix}/")).map(String::from);
    let files = entries.iter().filter(|(_, (mode, ..))| !mode.starts_with('d'));
    files.filter_map(|(path, _)| below(path)).collect()
}

fn check_control(deb: &Path) {
    let field = |name: &str| {
        text(Command::new("dpkg-deb").arg("--field").arg(deb).arg(name)).trim().to_string()
    };
    assert_eq!((field("Package"), field("Version")), ("ropewalk".into(), "0.1.0".into()));
    let depends = field("Depends");
    assert!(depends.starts_with("libc6 (>= 2.") && depends.contains("libgcc-s1"), "{depends}");
    assert_eq!(field("Recommends"), "fuse3");
    let info = |name: &str| text(Command::new("dpkg-deb").arg("--info").arg(deb).arg(name));
    assert_eq!(info("conffiles"), "/etc/ropewalk/ropewalk.toml\n");
    for script in ["postinst", "prerm", "postrm"] {
        let body = info(script);
        assert!(body.starts_with("#!/bin/sh\n"), "{script}");
        let mut shell = Command::new("sh");
        succeed(shell.args(["-n", "-c", &body]));
    }
}

/// The checksums are those of the files.
fn check_sums(deb: &Path, root: &Path) {
    let sums = text(Command::new("dpkg-deb").arg("--info").arg(deb).arg("md5sums"));
    assert!(sums.lines().count() > 60 && !sums.contains("etc/"), "{sums}");
    let file = root.join("sums");
    std::fs::write(&file, sums).expect("the sums");
    succeed(
        Command::new("md5sum")
            .args(["--check", "--quiet", "--strict"])
            .arg(&file)
            .current_dir(root),
    );
    std::fs::remove_file(file).expect("the sums");
}

fn check_pages(root: &Path) {
    for page in ["man1/ropewalk.1", "man5/ropewalk.toml.5", "man8/mount.ropewalk.8"] {
        let path = root.join("usr/share/man").join(page);
        let said = text(Command::new("mandoc").args(["-T", "lint", "-W", "warning"]).arg(&path));
        assert_eq!(said, "");
        let first = std::fs::read_to_string(&path).expect("a page");
        assert!(first.contains(" 2026-11-29 "), "the day is that of the package");
    }
}

/// Bash completes the commands with the packaged file.
fn check_completions(root: &Path) {
    let file = root.join("usr/share/bash-completion/completions/ropewalk");
    let script = "source \"$1\"; COMP_WORDS=(ropewalk mou); COMP_CWORD=1; \
                  _ropewalk ropewalk mou ropewalk; echo \"${COMPREPLY[*]}\"; complete -p ropewalk";
    let mut bash = Command::new("bash");
    let said = text(bash.args(["--norc", "-c", script, "bash"]).arg(file));
    assert!(said.starts_with("mount\n") && said.contains("_ropewalk"), "{said}");
}

/// systemd understands the units, finds their program, and finds them closed enough.
fn check_units(root: &Path) {
    let folder = root.join("usr/lib/systemd/system");
    // systemd-analyze knows programs of this host only.
    let units = root.join("units");
    std::fs::create_dir(&units).expect("a folder");
    let mut paths = Vec::new();
    for name in [
        "ropewalk.service",
        "ropewalk-meta@.service",
        "ropewalk-data@.service",
        "ropewalk-mount.service",
    ] {
        let unit = std::fs::read_to_string(folder.join(name)).expect("a unit");
        assert!(!unit.contains("@prefix@"), "{name}");
        let program = root.join("usr/bin/ropewalk");
        let unit = unit.replace("=/usr/bin/ropewalk ", &format!("={} ", program.display()));
        let path = units.join(name.replace('@', "@0"));
        std::fs::write(&path, unit).expect("a unit");
        paths.push(path);
    }
    let example = root.join("usr/share/doc/ropewalk/examples/mnt-ropewalk.mount");
    let copy = units.join("mnt-ropewalk.mount");
    std::fs::copy(example, &copy).expect("a unit");
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=no"]).args(&paths).arg(&copy);
    let output = verify.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("ropewalk"), "{said}");
    let mut judge = Command::new("systemd-analyze");
    succeed(
        judge.args(["security", "--offline=true", "--threshold=30", "--no-pager"]).arg(&paths[0]),
    );
    std::fs::remove_dir_all(units).expect("they were ours");
}

/// The packages of pkg-config, and a header of each.
const LIBRARIES: &[(&str, &str)] = &[
    ("libbmi", "bmi.h"),
    ("libmyriexpress", "myriexpress.h"),
    ("libopen-mx", "open-mx.h"),
    ("libropewalk-rma", "ropewalk_rma.h"),
];

/// Compiles a program in C with what pkg-config finds in the root directory.
fn compile(root: &Path, package: &str, text_of_it: &str) {
    let mut command = Command::new("pkg-config");
    command.args(["--cflags", "--libs", package]).env("PKG_CONFIG_SYSROOT_DIR", root);
    command.env("PKG_CONFIG_LIBDIR", root.join("usr/lib/pkgconfig"));
    // These folders are no matter of course in another root directory.
    command.env("PKG_CONFIG_ALLOW_SYSTEM_CFLAGS", "1").env("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1");
    let flags = text(&mut command);
    assert!(flags.contains(&format!("-I{}", root.join("usr/include").display())), "{flags}");
    let source = root.join(format!("{package}.c"));
    std::fs::write(&source, text_of_it).expect("the source");
    let mut compile = Command::new("gcc");
    // Each library has to be found when the program starts, also if it calls nothing of it.
    compile.args(["-Wall", "-Wl,--no-as-needed", "-o"]).arg(root.join(package)).arg(&source);
    succeed(compile.args(flags.split_whitespace()));
}

/// Programs in C find headers and libraries in the root directory, and run there.
fn check_programs(fresh: &Fresh) {
    for (package, header) in LIBRARIES {
        let plain = format!("#include <{header}>\nint main(void) {{ return 0; }}\n");
        let text = if *package == "libbmi" { PROGRAM } else { &plain };
        compile(fresh.path(), package, text);
    }
    let said = fresh.run("/libbmi; /libmyriexpress; /libopen-mx; /libropewalk-rma");
    assert_eq!(said, "tcp://h:1\n");
}

const PROGRAM: &str = r#"
#include <bmi.h>
#include <stdio.h>
int main(void)
{
    BMI_addr_t address;
    if (BMI_initialize(NULL, NULL, 0) != 0 || BMI_addr_lookup(&address, "tcp://h:1") != 0)
        return 1;
    puts(BMI_addr_rev_lookup(address));
    return BMI_finalize();
}
"#;

#[test]
fn both_packages_have_all_files_and_an_administrator_can_use_them() {
    if !all_there(&[
        "dpkg-deb",
        "dpkg",
        "tar",
        "gcc",
        "pkg-config",
        "mandoc",
        "bash",
        "systemd-analyze",
    ]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let packages_made = packages(&folder.path().join("one"), &[]);
    let Packages { deb, tarball } = &packages_made;
    let of_deb = check_entries(&text(Command::new("dpkg-deb").arg("--contents").arg(deb)), "usr");
    let listing =
        text(Command::new("tar").arg("--list").arg("--verbose").arg("--file").arg(tarball));
    let of_tarball = check_entries(&listing, "usr/local");
    assert!(!listing.contains("\ndrwx"), "the tarball has no folders");
    let zsh = |path: &String| !path.contains("/zsh/");
    let plain = |paths: Vec<String>| paths.into_iter().filter(zsh).collect::<Vec<_>>();
    assert_eq!(plain(of_deb), plain(of_tarball));
    check_control(deb);
    check_same(&packages_made, &folder.path().join("two"));

    let root = folder.path().join("root");
    succeed(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(&root));
    check_sums(deb, &root);
    check_pages(&root);
    check_completions(&root);
    check_units(&root);
    let example = std::fs::read(root.join("usr/share/doc/ropewalk/examples/ropewalk.toml"));
    let config = std::fs::read(root.join("etc/ropewalk/ropewalk.toml"));
    assert_eq!(example.expect("an example"), config.expect("a configuration"));

    if !is_root() {
        println!("SKIP: only root can install the package into a fresh root directory");
        return;
    }
    let fresh = Fresh::new(&folder.path().join("fresh"));
    fresh.install(deb);
    check_programs(&fresh);
    fresh.use_cluster();
    fresh.remove();
    fresh.unpack(tarball);
}

/// The same files of this build make the same bytes.
fn check_same(one: &Packages, folder: &Path) {
    let own = Path::new(env!("CARGO_BIN_EXE_xtask")).parent().expect("a folder");
    let two = packages(folder, &["--built", own.to_str().expect("a path in UTF-8")]);
    for (one, two) in [(&one.deb, &two.deb), (&one.tarball, &two.tarball)] {
        let bytes = |path: &Path| std::fs::read(path).expect("a package");
        assert!(bytes(one) == bytes(two), "{} differs", one.display());
    }
}
