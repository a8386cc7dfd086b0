//! The output of `cargo metadata` for the workspace, reduced to the data that the checks need.
//!
//! Invariant: nothing here judges; [`crate::tidy`] and [`crate::verify`] do.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The workspace.
pub struct Workspace {
    pub root: PathBuf,
    pub packages: Vec<Package>,
    /// Of a part of it: the crates that were left out.
    pub left_out: Vec<String>,
}

/// A crate of ours.
pub struct Package {
    pub name: String,
    /// Its folder, from the root; empty if that is unknown.
    pub folder: PathBuf,
    /// It has a library, whose documentation may have examples.
    pub library: bool,
    pub dependencies: Vec<Dependency>,
    /// Names of the integration tests (`tests/NAME.rs`).
    pub tests: Vec<String>,
}

/// A line of a crate's `[dependencies]` or `[dev-dependencies]`.
pub struct Dependency {
    pub name: String,
    /// Under `[dev-dependencies]`.
    pub dev: bool,
    /// A crate of this workspace.
    pub ours: bool,
}

impl Workspace {
    /// Asks cargo. The current directory must lie in the workspace.
    pub fn read() -> Result<Workspace> {
        let output = Command::new(cargo())
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .output()
            .context("cargo metadata cannot be started")?;
        if !output.status.success() {
            bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let json = serde_json::from_slice(&output.stdout)
            .context("cargo metadata printed something that is not JSON")?;
        Workspace::from_json(&json)
    }

    /// From the parsed output of `cargo metadata --format-version 1`.
    pub fn from_json(json: &Value) -> Result<Workspace> {
        let root = json["workspace_root"].as_str().context("metadata without workspace_root")?;
        let packages = json["packages"].as_array().context("metadata without packages")?;
        Ok(Workspace {
            root: PathBuf::from(root),
            packages: packages.iter().map(package).collect::<Result<_>>()?,
            left_out: Vec::new(),
        }
        .relative())
    }

    /// Folders count from the root.
    fn relative(mut self) -> Workspace {
        for package in &mut self.packages {
            if let Ok(folder) = package.folder.strip_prefix(&self.root) {
                package.folder = folder.to_path_buf();
            }
        }
        self
    }

    /// The crates that hold one of these files, or use one that does, in their tests, too. All crates if a file
    /// belongs to no crate and is not a document: it may concern any.
    pub fn concerned(mut self, changed: &[PathBuf]) -> Workspace {
        let holder = |file: &PathBuf| {
            let holds = |package: &&Package| {
                !package.folder.as_os_str().is_empty() && file.starts_with(&package.folder)
            };
            self.packages
                .iter()
                .filter(holds)
                .max_by_key(|package| package.folder.as_os_str().len())
        };
        let is_document = |file: &PathBuf| {
            file.starts_with("docs") || file.extension().is_some_and(|it| it == "md")
        };
        if changed.iter().any(|file| holder(file).is_none() && !is_document(file)) {
            return self;
        }
        let mut concerned: BTreeSet<String> =
            changed.iter().filter_map(holder).map(|package| package.name.clone()).collect();
        loop {
            let before = concerned.len();
            for package in &self.packages {
                if package.dependencies.iter().any(|it| it.ours && concerned.contains(&it.name)) {
                    concerned.insert(package.name.clone());
                }
            }
            if concerned.len() == before {
                break;
            }
        }
        let others = self.packages.extract_if(.., |package| !concerned.contains(&package.name));
        self.left_out = others.map(|package| package.name).collect();
        self
    }

    /// Whether a crate of this name exists.
    pub fn has(&self, name: &str) -> bool {
        self.packages.iter().any(|package| package.name == name)
    }

    /// All integration tests whose name satisfies `wanted`, as (package, test).
    pub fn tests(&self, wanted: impl Fn(&str) -> bool) -> Vec<(&str, &str)> {
        self.packages
            .iter()
            .flat_map(|package| {
                package.tests.iter().map(|test| (package.name.as_str(), test.as_str()))
            })
            .filter(|(_, test)| wanted(test))
            .collect()
    }
}

fn package(json: &Value) -> Result<Package> {
    let name = json["name"].as_str().context("a package without a name")?.to_string();
    let dependencies = json["dependencies"].as_array().context("a package without dependencies")?;
    let dependencies = dependencies
        .iter()
        .map(|json| Dependency {
            name: json["name"].as_str().unwrap_or_default().to_string(),
            dev: json["kind"].as_str() == Some("dev"),
            ours: json["path"].is_string(),
        })
        .collect();
    let targets = json["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_test = |target: &&Value| target["kind"][0].as_str() == Some("test");
    let tests = targets.iter().filter(is_test).filter_map(|target| target["name"].as_str());
    let manifest = Path::new(json["manifest_path"].as_str().unwrap_or_default());
    let folder = manifest.parent().unwrap_or(manifest).to_path_buf();
    let is_library = |target: &Value| {
        let kinds = target["kind"].as_array().map(Vec::as_slice).unwrap_or_default();
        kinds.iter().any(|kind| matches!(kind.as_str(), Some("lib" | "rlib")))
    };
    let library = targets.iter().any(is_library);
    Ok(Package { name, folder, library, dependencies, tests: tests.map(str::to_string).collect() })
}

/// The cargo that runs us, or the one on the path.
pub fn cargo() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| Path::new("cargo").to_path_buf(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_tests_are_read() {
        let json = serde_json::json!({
            "workspace_root": "/somewhere",
            "packages": [{
                "name": "a",
                "dependencies": [
                    {"name": "b", "kind": null, "path": "/somewhere/b"},
                    {"name": "c", "kind": "dev"},
                ],
                "targets": [
                    {"kind": ["lib"], "name": "a"},
                    {"kind": ["test"], "name": "loom_ring"},
                    {"kind": ["test"], "name": "scenario"},
                ],
            }],
        });
        let workspace = Workspace::from_json(&json).unwrap();
        assert_eq!(workspace.tests(|name| name.starts_with("loom")), [("a", "loom_ring")]);
        let [b, c] = workspace.packages[0].dependencies.as_slice() else { panic!("two") };
        assert!(b.ours && !b.dev && !c.ours && c.dev);
        assert!(workspace.has("a") && !workspace.has("b"));
        assert!(Workspace::from_json(&serde_json::json!({})).is_err());
    }

    #[test]
    fn a_change_concerns_its_crate_and_all_that_use_it() {
        let package = |name: &str, folder: &str, uses: &[(&str, bool)]| Package {
            name: name.into(),
            folder: folder.into(),
            library: true,
            dependencies: uses
                .iter()
                .map(|(name, dev)| Dependency { name: (*name).into(), dev: *dev, ours: true })
                .collect(),
            tests: Vec::new(),
        };
        let concerned = |changed: &[&str]| {
            let packages = vec![
                package("base", "base", &[]),
                package("rail", "rail", &[("base", false)]),
                package("tcp", "rail/tcp", &[("rail", false)]),
                package("net", "net", &[("rail", false), ("sim", true)]),
                package("sim", "lab/sim", &[("base", false)]),
            ];
            let workspace = Workspace { root: PathBuf::from("/"), packages, left_out: Vec::new() };
            let changed: Vec<PathBuf> = changed.iter().map(PathBuf::from).collect();
            let part = workspace.concerned(&changed);
            let names: Vec<String> = part.packages.into_iter().map(|it| it.name).collect();
            (names.join(" "), part.left_out.join(" "))
        };
        let all = ("base rail tcp net sim".to_string(), String::new());
        assert_eq!(concerned(&["base/src/a.rs"]), all);
        assert_eq!(concerned(&["Cargo.lock"]), all);
        assert_eq!(concerned(&["rail/tcp/src/a.rs"]), ("tcp".into(), "base rail net sim".into()));
        assert_eq!(concerned(&["rail/src/a.rs"]), ("rail tcp net".into(), "base sim".into()));
        assert_eq!(concerned(&["lab/sim/src/a.rs"]).0, "net sim");
        assert_eq!(concerned(&["docs/a.md", "README.md"]).0, "");
    }
}
