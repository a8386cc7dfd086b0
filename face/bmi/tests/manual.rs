//! The manual pages say everything: each function has a page, each name of the headers and each variable of
//! the environment is described, and the example compiles and runs.

mod common;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::{build, folder, here, is_there, succeed, words};

fn page(name: &str) -> String {
    let path = here().join("man").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn pages() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(here().join("man")).expect("the pages");
    let mut pages: Vec<PathBuf> = entries.map(|entry| entry.expect("a page").path()).collect();
    pages.sort();
    pages
}

fn is_link(text: &str) -> bool {
    text.starts_with(".so ")
}

fn header(name: &str) -> String {
    std::fs::read_to_string(here().join("include").join(name)).expect("a header")
}

/// Functions that a header declares: words before a parenthesis, on lines that are no macro.
fn functions(text: &str) -> Vec<&str> {
    let declarations = text.lines().filter(|line| !line.starts_with([' ', '#', '/']));
    let mut names: Vec<&str> = declarations
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .filter(|name| name.to_ascii_lowercase().starts_with("bmi_"))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[test]
fn every_function_has_a_page_that_names_it() {
    let (interface, types) = (header("bmi.h"), header("bmi-types.h"));
    let mut names = functions(&interface);
    names.extend(functions(&types));
    assert_eq!(names.len(), 29, "{names:?}");
    for name in &names {
        let own = page(&format!("{name}.3"));
        let target = own.strip_prefix(".so man3/").map(|rest| page(rest.trim()));
        let text = target.unwrap_or(own);
        let title = text.split(".SH ").find(|part| part.starts_with("NAME")).expect("a name");
        assert!(words(title).any(|word| word == *name), "{name} is not named by its page");
        let synopsis = text.split(".SH ").find(|part| part.starts_with("SYNOPSIS"));
        assert!(synopsis.expect("a synopsis").contains(&format!("{name}(")), "{name}");
    }
    // And no page is left of one that is gone.
    assert_eq!(pages().len(), names.len() + 1, "pages, bmi(7) included");
}

#[test]
fn every_option_flag_and_code_of_the_headers_is_described() {
    let all: String = pages()
        .iter()
        .map(|path| std::fs::read_to_string(path).expect("a page").replace("\\-D", " "))
        .collect();
    let described: Vec<&str> = words(&all).collect();
    let types = header("bmi-types.h");
    let constant = |word: &&str| {
        word.starts_with("BMI_") && word.chars().all(|c| c.is_ascii_uppercase() || c == '_')
    };
    let mut wanted: Vec<&str> = words(&types).filter(constant).collect();
    wanted.sort_unstable();
    wanted.dedup();
    assert!(wanted.len() > 90, "the header has that many: {wanted:?}");
    let missing: Vec<&&str> = wanted.iter().filter(|word| !described.contains(word)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_variable_of_the_environment_is_described_and_no_other() {
    let source = [
        include_str!("../src/options.rs"),
        include_str!("../../../net/src/capture/mod.rs"),
        include_str!("../../../net/src/paths.rs"),
        include_str!("../../../host/paths/src/lib.rs"),
    ];
    let source = &source.concat();
    let variables = |text: &str| {
        let mut names: Vec<String> =
            words(text).filter(|word| word.starts_with("ROPEWALK_")).map(String::from).collect();
        names.sort();
        names.dedup();
        names
    };
    assert!(variables(source).len() > 2);
    assert_eq!(variables(&page("bmi.7")), variables(source));
}

#[test]
fn the_pages_are_well_formed() {
    let text = |path: &PathBuf| std::fs::read_to_string(path).expect("a page");
    let whole = pages().into_iter().filter(|path| !is_link(&text(path)));
    let mut lint = Command::new("mandoc");
    // It has no option that only says that it is there.
    let Ok(output) = lint.args(["-T", "lint", "-W", "warning"]).args(whole).output() else {
        println!("SKIP: there is no mandoc");
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

/// The program in a page's example, as a reader sees it.
fn example(text: &str) -> String {
    let (_, rest) = text.split_once(".EX\n").expect("an example");
    let (code, _) = rest.split_once(".EE\n").expect("its end");
    code.replace("\\e", "\\").replace("\\-", "-")
}

#[test]
fn the_example_compiles_and_its_two_sides_talk() {
    if !is_there("gcc") {
        println!("SKIP: there is no gcc");
        return;
    }
    let (source, program) = (folder().join("example.c"), folder().join("example"));
    std::fs::write(&source, example(&page("bmi.7"))).expect("the source");
    succeed(build("gcc", &program).arg("-std=c99").arg(&source).arg("-lbmi"));
    let run = || {
        let mut command = Command::new(&program);
        command.env("LD_LIBRARY_PATH", folder());
        command
    };
    let mut server = run().stdout(Stdio::piped()).spawn().expect("a server");
    let mut url = String::new();
    let told = server.stdout.take().map(|output| BufReader::new(output).read_line(&mut url));
    assert!(told.is_some_and(|told| told.is_ok()) && url.starts_with("tcp://127.0.0.1:"), "{url}");
    let answers = [(); 2].map(|()| run().arg(url.trim()).output());
    server.kill().expect("it ran");
    server.wait().expect("it ended");
    for answer in answers {
        let answer = answer.expect("a client");
        assert_eq!(String::from_utf8_lossy(&answer.stdout), "Is anybody there?\n", "{answer:?}");
    }
}
