//! Files of a crate that use each other in a circle: an engineer who changes one has to know them all.
//! A file uses another if it names an item of it by a path (`crate::`, `super::`, `self::`). A module that re-exports
//! the items of its files (`pub use`) does not use them, and tests at the end of a file are not looked at.
//!
//! Invariant: [`ALLOWED`] may only shrink. A crate that is not in it has no circle.

use std::collections::{BTreeMap, BTreeSet};

use super::text::split;
use super::{File, Finding};

/// The number of files that lie in circles, by source folder.
const ALLOWED: &[(&str, usize)] = &[
    ("base/src", 2),
    ("face/bmi/src", 2),
    ("face/cli/src", 4),
    ("face/mount/src", 4),
    ("face/mx/src", 7),
    ("fs/client/src", 8),
    ("fs/data/src", 4),
    ("fs/meta/src", 2),
    ("fs/store/src", 9),
    ("lab/bench/src", 14),
    ("lab/sim/src", 4),
    ("net/src", 6),
    ("rail/ether/src", 2),
    ("rail/sim/src", 4),
    ("transport/src", 9),
    ("xtask/src", 2),
];

/// Module paths of a crate, each with its file.
type Modules = BTreeMap<Vec<String>, String>;

/// All findings about the tree.
pub fn check(files: &[File]) -> Vec<Finding> {
    judge(&by_folder(files), ALLOWED)
}

fn judge(found: &BTreeMap<String, Vec<Vec<String>>>, allowed: &[(&str, usize)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let listed =
        |folder: &str| allowed.iter().find(|(name, _)| *name == folder).map_or(0, |it| it.1);
    for (folder, circles) in found {
        let (count, most) = (circles.iter().map(Vec::len).sum::<usize>(), listed(folder));
        let names: Vec<String> = circles.iter().map(|circle| circle.join(", ")).collect();
        if count > most {
            let text = format!(
                "{folder}: {count} files use each other in circles, {most} are allowed: {}; let one side ask the other",
                names.join("; ")
            );
            findings.push(Finding::error("circle", text));
        }
    }
    for (folder, most) in allowed {
        let count = found.get(*folder).map_or(0, |circles| circles.iter().map(Vec::len).sum());
        if count < *most {
            let text = format!(
                "{folder}: only {count} files are in circles now; lower the number in xtask/src/tidy/circles.rs"
            );
            findings.push(Finding::error("circle", text));
        }
    }
    findings
}

/// The circles of each crate's source folder that has some.
fn by_folder(files: &[File]) -> BTreeMap<String, Vec<Vec<String>>> {
    let mut folders: BTreeMap<String, Vec<&File>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        if let Some((folder, _)) = file.path.split_once("/src/") {
            folders.entry(format!("{folder}/src")).or_default().push(file);
        }
    }
    let circles = folders.into_iter().map(|(folder, files)| {
        let circles = circles(&folder, &files);
        (folder, circles)
    });
    circles.filter(|(_, circles)| !circles.is_empty()).collect()
}

fn circles(folder: &str, files: &[&File]) -> Vec<Vec<String>> {
    let module = |file: &File| module_of(file.path.strip_prefix(folder).unwrap_or(&file.path));
    let modules: Modules = files.iter().map(|file| (module(file), file.path.clone())).collect();
    let uses: BTreeMap<String, BTreeSet<String>> =
        files.iter().map(|file| (file.path.clone(), used(file, &module(file), &modules))).collect();
    components(&uses)
}

/// `/a/b.rs` and `/a/b/mod.rs` are `a::b`; the roots of a crate are nothing.
fn module_of(path: &str) -> Vec<String> {
    let mut parts: Vec<String> = path
        .trim_end_matches(".rs")
        .split('/')
        .filter(|part| !part.is_empty())
        .map(Into::into)
        .collect();
    let last = parts.last().map(String::as_str);
    if matches!(last, Some("mod")) || parts.len() == 1 && matches!(last, Some("lib" | "main")) {
        parts.pop();
    }
    parts
}

/// The files that one names.
fn used(file: &File, module: &[String], modules: &Modules) -> BTreeSet<String> {
    let code = split(&file.text).code;
    let code = code.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let mut found = BTreeSet::new();
    let words = tokens(code);
    let mut at = 0;
    while at < words.len() {
        // A re-export counts as a use only in the files that name it.
        if words[at] == "use" && at > 0 && (words[at - 1] == "pub" || words[at - 1] == ")") {
            while at < words.len() && words[at] != ";" {
                at += 1;
            }
        }
        let starts = |word: &str| matches!(word, "crate" | "super" | "self");
        let is_path = at + 1 < words.len() && starts(words[at]) && words[at + 1] == "::";
        if is_path && (at == 0 || words[at - 1] != "::") {
            at = tree(&words, at, module, &mut |path| {
                // The longest beginning that is a file; a crate's root is none that is used.
                let file = (1..=path.len()).rev().find_map(|len| modules.get(&path[..len]));
                found.extend(file.cloned());
            });
        } else {
            at += 1;
        }
    }
    found.remove(&file.path);
    found
}

/// Names, `::` and single signs.
fn tokens(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let is_word = |sign: char| sign.is_alphanumeric() || sign == '_';
        let len = match first {
            first if is_word(first) => rest.find(|sign| !is_word(sign)).unwrap_or(rest.len()),
            ':' if rest.starts_with("::") => 2,
            first => first.len_utf8(),
        };
        if !first.is_whitespace() {
            found.push(&rest[..len]);
        }
        rest = &rest[len..];
    }
    found
}

/// Passes each path of the path tree that begins here to `found`; the index of its end.
fn tree(words: &[&str], at: usize, from: &[String], found: &mut dyn FnMut(&[String])) -> usize {
    let mut path = from.to_vec();
    let mut at = at;
    loop {
        match words.get(at) {
            Some(&"crate") => path.clear(),
            Some(&"super") => drop(path.pop()),
            Some(&"self") => {}
            Some(&"{") => {
                at += 1;
                while !matches!(words.get(at), None | Some(&"}")) {
                    let next = tree(words, at, &path, found);
                    at = next.max(at + 1);
                    if words.get(at) == Some(&",") {
                        at += 1;
                    }
                }
                return at + 1;
            }
            Some(word) if word.starts_with(|sign: char| sign.is_alphabetic() || sign == '_') => {
                path.push((*word).to_string());
            }
            _ => break,
        }
        at += 1;
        if words.get(at) != Some(&"::") {
            break;
        }
        at += 1;
    }
    found(&path);
    at
}

/// Groups of several that reach each other.
fn components(uses: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        uses.keys().map(|from| (from, reached(uses, from))).collect();
    let mut groups: BTreeSet<Vec<String>> = BTreeSet::new();
    for from in uses.keys().filter(|from| reach[*from].contains(from)) {
        let group = uses.keys().filter(|to| reach[from].contains(to) && reach[*to].contains(from));
        groups.insert(group.cloned().collect());
    }
    groups.into_iter().collect()
}

fn reached<'a>(
    uses: &'a BTreeMap<String, BTreeSet<String>>,
    from: &String,
) -> BTreeSet<&'a String> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&String> = uses[from].iter().collect();
    while let Some(file) = next.pop() {
        if found.insert(file) {
            next.extend(uses.get(file).into_iter().flatten());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let files: Vec<File> = files
            .iter()
            .map(|(path, text)| File { path: format!("x/src/{path}"), text: (*text).to_string() })
            .collect();
        by_folder(&files).into_values().flatten().collect()
    }

    #[test]
    fn files_that_use_each_other_are_found_however_they_say_it() {
        let circle = [vec!["x/src/a.rs".to_string(), "x/src/b/mod.rs".to_string()]];
        let root = ("lib.rs", "mod a;\nmod b;\npub use a::A;\n");
        for (a, b) in [
            ("use crate::b::B;", "use crate::a::A;"),
            ("use super::b::B;", "use super::a::{A, C};"),
            ("use crate::{b::{B, c::C}};", "fn f() { super::a::g() }"),
        ] {
            assert_eq!(found(&[root, ("a.rs", a), ("b/mod.rs", b)]), circle, "{a} {b}");
        }
    }

    #[test]
    fn one_way_uses_hand_outs_comments_and_tests_make_no_circle() {
        let a = "use crate::b::B;\npub use crate::c::C;\n";
        let b = "// use crate::a::A;\nfn f() {}\n#[cfg(test)]\nmod tests { use crate::a::A; }\n";
        let c = "use crate::a::A;\nuse crate::D;\n";
        let root = ("lib.rs", "mod a;\npub use a::A;\nuse crate::a::A;\n");
        assert!(found(&[root, ("a.rs", a), ("b.rs", b), ("c.rs", c)]).is_empty());
    }

    #[test]
    fn the_list_only_shrinks() {
        let circles = vec![vec!["x/src/a.rs".to_string(), "x/src/b.rs".to_string()]];
        let found = BTreeMap::from([("x/src".to_string(), circles)]);
        assert!(judge(&found, &[("x/src", 2)]).is_empty());
        let fatal = |allowed: &[(&str, usize)]| judge(&found, allowed).iter().all(|it| it.fatal);
        for allowed in [&[][..], &[("x/src", 1)], &[("x/src", 3)]] {
            assert_eq!(judge(&found, allowed).len(), 1, "{allowed:?}");
            assert!(fatal(allowed));
        }
    }
}
