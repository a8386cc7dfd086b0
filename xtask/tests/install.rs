//! An installation as a user has it: into a prefix, and a program that finds it with pkg-config, linked
//! against the shared object and against the archive.

use std::path::Path;
use std::process::{Command, Output};

fn succeed(command: &mut Command) -> Output {
    let output = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {said}", output.status);
    output
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The profile of this build: the libraries of another one would be built for nothing.
fn profile() -> String {
    let own = Path::new(env!("CARGO_BIN_EXE_xtask")).parent().and_then(Path::file_name);
    match own.and_then(|name| name.to_str()).expect("a folder for each profile") {
        "debug" => "dev".to_string(),
        other => other.to_string(),
    }
}

fn install(prefix: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command.args(["install", "--profile", &profile(), "--prefix"]).arg(prefix);
    // Test programs may run with it; a build with it would share nothing with the one before.
    command.env_remove("RUSTC_BOOTSTRAP");
    command
}

fn flags(prefix: &Path, package: &str, arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(arguments).arg(package).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let output = String::from_utf8(succeed(&mut command).stdout).expect("flags are text");
    output.split_whitespace().map(String::from).collect()
}

const PROGRAM: &str = r#"
#include <bmi.h>
#include <stdio.h>
#ifdef BMI_API_ORANGEFS
#define BEGIN() BMI_initialize(NULL, NULL, 0, NULL)
#define LOOK_UP(address, url) BMI_addr_lookup(address, url, NULL)
#else
#define BEGIN() BMI_initialize(NULL, NULL, 0)
#define LOOK_UP(address, url) BMI_addr_lookup(address, url)
#endif
int main(void)
{
    BMI_addr_t address;
    if (BEGIN() != 0 || LOOK_UP(&address, "tcp://h:1") != 0)
        return 1;
    puts(BMI_addr_rev_lookup(address));
    return BMI_finalize();
}
"#;

/// A program for MX: its name, and what it prints.
const MX_PROGRAM: &str = r#"
#include <myriexpress.h>
#include <stdio.h>
int main(void)
{
    uint32_t boards = 0;
    if (mx_init() != MX_SUCCESS)
        return 1;
    mx_get_info(NULL, MX_NIC_COUNT, NULL, 0, &boards, sizeof boards);
    printf("%u\n", boards);
    return mx_finalize();
}
"#;

/// Programs for MX find it under both names.
fn check_mx(folder: &Path, prefix: &Path) {
    let source = folder.join("mx.c");
    std::fs::write(&source, MX_PROGRAM).expect("the source");
    for package in ["libmyriexpress", "libopen-mx"] {
        let program = folder.join(package);
        let mut compile = Command::new("gcc");
        compile.arg("-Wall").arg("-o").arg(&program).arg(&source);
        compile.args(flags(prefix, package, &["--cflags", "--libs"]));
        succeed(&mut compile);
        let run = |command: &mut Command| {
            command.env_remove("LD_LIBRARY_PATH");
            command.env("ROPEWALK_MX_BOARDS", "udp://127.0.0.1,udp://127.0.0.2");
            assert_eq!(succeed(command).stdout, b"2\n", "{package}");
        };
        run(&mut Command::new(&program));
        if let Some(mut with_rights) = with_rights(folder, &program) {
            run(&mut with_rights);
        }
    }
}

/// An example with windows, shared and static, as ranks of the installed command.
fn check_windows(folder: &Path, prefix: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../face/rma/examples/histogram.c");
    for (name, more, mode) in
        [("windows", None, "--libs"), ("windows-static", Some("-static"), "--static")]
    {
        let program = folder.join(name);
        let mut compile = Command::new("gcc");
        compile.arg("-Wall").args(more).arg("-o").arg(&program).arg(&source);
        compile.args(flags(prefix, "libropewalk-rma", &[mode, "--cflags", "--libs"]));
        succeed(&mut compile);
        let mut run = Command::new(prefix.join("bin/ropewalk"));
        run.args(["run", "-n", "2", "--"]).arg(&program).env_remove("LD_LIBRARY_PATH");
        let said = String::from_utf8(succeed(&mut run).stdout).expect("it says text");
        assert_eq!(said.matches("has what one process counts").count(), 2, "{name}: {said}");
    }
}

/// The program as a plain user runs it who needs the right to raw frames, which is the program's own. `None`, with the
/// reason on the standard output, where this machine does not allow it.
fn with_rights(folder: &Path, program: &Path) -> Option<Command> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let mut give = Command::new("setcap");
    let given = give.arg("cap_net_raw+ep").arg(program).output();
    if !given.is_ok_and(|output| output.status.success()) || !is_there("setpriv") {
        println!("SKIP: programs cannot be given rights: run as root, with libcap and util-linux");
        return None;
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
    Some(command)
}

/// Everything that was said to be there is there, and the command runs.
fn check_files(prefix: &Path, said: &str) {
    let written: Vec<&str> = said.lines().filter(|line| line.starts_with('/')).collect();
    assert!(written.len() > 30, "{said}");
    for line in &written {
        let path = line.split(" -> ").next().expect("a path");
        assert!(Path::new(path).is_file(), "{line}");
    }
    assert!(said.contains("lib/libbmi.so -> libbmi.so.0") && said.contains("PKG_CONFIG_PATH"));
    let version = succeed(Command::new(prefix.join("bin/ropewalk")).arg("--version"));
    assert!(version.stdout.starts_with(b"ropewalk "));
}

#[test]
fn a_program_finds_what_was_installed_shared_and_static() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = folder.path().join("prefix");
    let said = String::from_utf8(succeed(&mut install(&prefix)).stdout).expect("it says text");
    check_files(&prefix, &said);
    // The files of that build are installed without another one.
    let (again, own) = (folder.path().join("again"), Path::new(env!("CARGO_BIN_EXE_xtask")));
    let mut command = install(&again);
    command.arg("--built").arg(own.parent().expect("a folder"));
    check_files(&again, &String::from_utf8(succeed(&mut command).stdout).expect("it says text"));
    for program in ["gcc", "pkg-config"] {
        if !is_there(program) {
            println!("SKIP: there is no {program}");
            return;
        }
    }
    let source = folder.path().join("program.c");
    std::fs::write(&source, PROGRAM).expect("the source");
    let orangefs = flags(&prefix, "libbmi", &["--variable=orangefs_cflags"]);
    assert_eq!(orangefs, ["-DBMI_API_ORANGEFS"]);
    let shared = flags(&prefix, "libbmi", &["--cflags", "--libs"]);
    let archive = flags(&prefix, "libbmi", &["--static", "--cflags", "--libs"]);
    assert!(archive.len() > shared.len(), "the archive needs more");
    let whole = vec!["-static".to_string()];
    let builds = [
        ("shared", Vec::new(), &shared),
        ("orangefs", orangefs, &shared),
        ("static", whole, &archive),
    ];
    for (name, more, flags) in builds {
        let program = folder.path().join(name);
        let mut compile = Command::new("gcc");
        compile.arg("-Wall").args(more).arg("-o").arg(&program).arg(&source).args(flags);
        succeed(&mut compile);
        let mut run = Command::new(&program);
        run.env_remove("LD_LIBRARY_PATH");
        assert_eq!(succeed(&mut run).stdout, b"tcp://h:1\n", "{name}");
    }
    check_mx(folder.path(), &prefix);
    check_windows(folder.path(), &prefix);
}

#[test]
fn a_folder_without_a_build_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = install(&folder.path().join("prefix"));
    let output = command.arg("--built").arg(folder.path()).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("libbmi.so is missing"), "{said}");
}

#[test]
fn a_prefix_where_nothing_can_be_written_is_named() {
    let output = install(Path::new("/proc/nowhere")).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("/proc/nowhere/lib"), "{said}");
}
