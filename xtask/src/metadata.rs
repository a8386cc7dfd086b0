//! What `cargo metadata` says about the workspace, cut down to what the checks ask.
//!
//! Invariant: nothing here judges; [`crate::tidy`] and [`crate::verify`] do.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The workspace.
pub struct Workspace {
    pub root: PathBuf,
    pub packages: Vec<Package>,
}

/// A crate of ours.
pub struct Package {
    pub name: String,
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
        })
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
    Ok(Package { name, dependencies, tests: tests.map(str::to_string).collect() })
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
}
