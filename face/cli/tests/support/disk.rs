//! A file system in a file, whose power can be cut.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A mounted file system of its own.
pub struct PowerDisk {
    image: PathBuf,
    place: PathBuf,
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program} cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} {}: {}", arguments.join(" "), text.trim()))
}

impl PowerDisk {
    /// A new file system of this kind below `directory`.
    pub fn new(kind: &str, directory: &Path, name: &str) -> Result<PowerDisk, String> {
        let image = directory.join(format!("{name}.image"));
        let place = directory.join(name);
        std::fs::create_dir_all(&place).map_err(|error| error.to_string())?;
        let file = std::fs::File::create(&image).map_err(|error| error.to_string())?;
        // xfs takes no less.
        file.set_len(320 << 20).map_err(|error| error.to_string())?;
        let disk = PowerDisk { image, place };
        run(&format!("mkfs.{kind}"), &["-q", disk.image()])?;
        disk.mount()?;
        Ok(disk)
    }

    fn image(&self) -> &str {
        self.image.to_str().expect("a path in UTF-8")
    }

    fn mount(&self) -> Result<(), String> {
        run("mount", &["-o", "loop", self.image(), self.place().to_str().expect("UTF-8")])
    }

    /// The mount point.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// From now on nothing reaches the disk any more; unsynced data is lost.
    pub fn cut(&self) {
        let place = self.place().to_str().expect("a path in UTF-8");
        // Without a flag the log is not flushed either.
        run("xfs_io", &["-x", "-c", "shutdown", place]).expect("the power can be cut");
    }

    /// Power is back. Nobody may use the disk any more.
    pub fn restore(&self) {
        let place = self.place().to_str().expect("a path in UTF-8");
        let begin = Instant::now();
        loop {
            let error = match run("umount", &[place]) {
                Err(error) => error,
                Ok(()) => {
                    self.mount().expect("what was mounted once can be mounted");
                    // A mount namespace that somebody made meanwhile keeps the dead file system,
                    // and the image is mounted as that.
                    match std::fs::File::create(self.place.join("alive")) {
                        Ok(_) => return,
                        Err(error) => format!("{place} is dead after it was mounted: {error}"),
                    }
                }
            };
            assert!(begin.elapsed() < Duration::from_secs(30), "{error}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for PowerDisk {
    fn drop(&mut self) {
        let _ = run("umount", &["-l", self.place().to_str().expect("a path in UTF-8")]);
    }
}

/// Whether file systems of this kind can be made and cut here.
pub fn power_usable(kind: &str, directory: &Path) -> bool {
    let made = PowerDisk::new(kind, directory, "trial").and_then(|disk| {
        run("xfs_io", &["-x", "-c", "shutdown", disk.place().to_str().expect("UTF-8")])
    });
    if let Err(error) = &made {
        println!("SKIP: no power cut of {kind} here: {error}");
    }
    made.is_ok()
}
