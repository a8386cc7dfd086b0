//! `ropewalk meta dump`: all metadata in a file.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use ropewalk_base::ids::ClusterId;
use ropewalk_client::operator::{Operator, OperatorError};
use ropewalk_meta::dump::{Head, Item, Lost, Parser, StoredRows, Totals, survey};

use super::restore;
use super::summary;
use crate::commands::seconds;
use crate::network::{client_rails, complete_address};
use crate::node;
use crate::operate::Keys;
use crate::report::{bytes, complain, print, print_json, say};

/// The pause before a server is asked once more that gives a dump to somebody else.
const BUSY_PAUSE: Duration = Duration::from_secs(1);
/// Lost places that are remembered.
const LOST_MAX: usize = 1000;

/// Arguments of `ropewalk meta dump`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk meta dump tcp://n1:7700 meta.dump       of a running server
  ropewalk meta dump tcp://n2:7700 meta.dump       of a standby: spares the
                                                   active one the work
  ropewalk meta dump /srv/rope/meta meta.dump      of a server that is stopped
  ropewalk meta dump tcp://n1:7700 - | zstd > meta.dump.zst
  ropewalk meta dump --verify meta.dump            compares checksums, counts

A dump has all metadata of one moment: names, attributes, contents of small files, and where the \
data servers keep the rest. Clients go on meanwhile. Sessions, locks and leases are not in it, nor \
is the file 'cluster' with the secret: copy that, too. The dump has the names of all files; only \
its owner may read it. 'ropewalk meta restore' makes a metadata directory of it.

Where metadata cannot be read, the dump goes on behind them. It says what is missing, and the exit \
status is 1: 'ropewalk meta restore --salvage' restores the rest. This is a way out for damage of \
which no other copy exists.

Exit status: 0 if the dump is whole, 1 if metadata are missing in it, 2 if there is no dump.")]
pub struct DumpArguments {
    /// Dump the metadata of the server at this address or in this directory; with --verify, the
    /// dump to read.
    source: String,
    /// Write to this file ('-': standard output). An existing file is replaced when the dump is
    /// whole.
    #[arg(required_unless_present = "verify", conflicts_with = "verify")]
    file: Option<PathBuf>,
    /// Read a dump, compare all checksums, and count what is in it.
    #[arg(long)]
    verify: bool,
    /// With --verify: go on behind what is damaged.
    #[arg(long, requires = "verify")]
    salvage: bool,
    /// Of a directory: go on at the first record that the journal lacks.
    #[arg(long)]
    accept_loss: bool,
    #[command(flatten)]
    keys: Keys,
    /// Wait this long for each answer of a server.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, default_value = "30", value_parser = seconds)]
    patience: Duration,
    /// Print the result as a JSON object.
    #[arg(long)]
    json: bool,
}

/// Dumps, or reads a dump.
pub fn run(arguments: &DumpArguments) -> anyhow::Result<ExitCode> {
    let Some(file) = &arguments.file else { return verify(arguments) };
    let to_stdout = file.as_os_str() == "-";
    let out = if to_stdout { Output::Standard } else { Output::File(NewFile::create(file)?) };
    let mut taker = Taker::new(out);
    match is_directory(&arguments.source) {
        true => of_directory(Path::new(&arguments.source), arguments.accept_loss, &mut taker)?,
        false if arguments.accept_loss => bail!("--accept-loss is for directories"),
        false => of_server(arguments, &mut taker)?,
    }
    let taken = taker.end()?;
    if arguments.json && !to_stdout {
        let mut value = summary::json(&taken.head, &taken.totals);
        value["bytes"] = taken.bytes.into();
        print_json(&value)?;
    } else if !to_stdout {
        let name = file.display();
        say!("dumped {} rows, {}: {name}", taken.totals.all_rows(), bytes(taken.bytes))?;
        say!("{}", summary::origin(&taken.head))?;
    }
    if taken.totals.lost == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    summary::warn_of_lost(&taken.lost, taken.totals.lost);
    complain!(
        "ropewalk: metadata at {} places could not be read and are not in the dump: keep former \
         dumps; 'ropewalk meta restore --salvage' restores what is there",
        taken.totals.lost
    );
    Ok(ExitCode::from(1))
}

/// Whether the source is a directory of this host. All else is an address.
fn is_directory(source: &str) -> bool {
    !source.contains("://") && (source.contains('/') || Path::new(source).is_dir())
}

fn of_server(arguments: &DumpArguments, taker: &mut Taker) -> anyhow::Result<()> {
    let address = complete_address(&arguments.source)?;
    let secret = arguments.keys.secret()?;
    let (reactor, world, endpoint) = node::calling(ClusterId(0), client_rails()?, &address)?;
    let operator = Operator::new(&world, &endpoint, &address, arguments.patience, secret)?;
    let done = reactor.block_on(async {
        let until = world.now() + arguments.patience;
        let mut dump = loop {
            match operator.dump().await {
                Err(OperatorError::Refused { errno, .. })
                    if errno == ropewalk_wire::fs::value::Errno::EBUSY && world.now() < until =>
                {
                    world.sleep(BUSY_PAUSE).await;
                }
                begun => break begun?,
            }
        };
        loop {
            let bytes = dump.next_bytes().await?;
            if bytes.is_empty() {
                return Ok(());
            }
            taker.take(&bytes)?;
        }
    });
    endpoint.endpoint().close();
    done
}

fn of_directory(directory: &Path, accept_loss: bool, taker: &mut Taker) -> anyhow::Result<()> {
    let (reactor, world) = node::offline()?;
    let rows = reactor.block_on(StoredRows::read(&world, directory, accept_loss))?;
    let made = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (mut dumper, held) = rows.dump(i64::try_from(made.as_secs()).unwrap_or_default());
    loop {
        let bytes = dumper.next_bytes()?;
        if bytes.is_empty() {
            break;
        }
        taker.take(&bytes)?;
    }
    // The store is closed before others may use it.
    drop(dumper);
    drop(held);
    Ok(())
}

fn verify(arguments: &DumpArguments) -> anyhow::Result<ExitCode> {
    let (reactor, world) = node::offline()?;
    let bar = restore::bar();
    let tell = |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    };
    let path = Path::new(&arguments.source);
    let survey = reactor.block_on(survey(&world, path, arguments.salvage, &tell));
    bar.finish_and_clear();
    let survey = survey?;
    let head = survey.head.as_ref().context("the dump does not say where it is from")?;
    if arguments.json {
        print_json(&summary::survey_json(&survey, head))?;
    } else {
        summary::print(&survey.found)?;
        say!("{}", summary::origin(head))?;
    }
    if !survey.is_incomplete() {
        return Ok(ExitCode::SUCCESS);
    }
    summary::warn_of_missing(&survey);
    complain!("ropewalk: metadata are missing in this dump");
    Ok(ExitCode::from(1))
}

/// Where a dump goes.
enum Output {
    Standard,
    File(NewFile),
}

/// A file under another name until it is whole.
struct NewFile {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    is_done: bool,
}

impl NewFile {
    fn create(path: &Path) -> anyhow::Result<NewFile> {
        let name = path.file_name().context("give the name of a file to write")?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}", std::process::id()));
        let temporary = path.with_file_name(hidden);
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
        let file = opened.with_context(|| format!("cannot make {}", temporary.display()))?;
        Ok(NewFile { file, temporary, path: path.to_path_buf(), is_done: false })
    }

    /// It is whole: durable, and under its name.
    fn finish(&mut self) -> anyhow::Result<()> {
        let path = &self.path;
        let fail = || format!("cannot write {}", path.display());
        self.file.sync_all().with_context(fail)?;
        fs::rename(&self.temporary, path).with_context(fail)?;
        self.is_done = true;
        let directory = path.parent().filter(|it| !it.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        File::open(directory).and_then(|it| it.sync_all()).with_context(fail)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_done {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Writes a dump as it comes, and compares its checksums on the way.
struct Taker {
    out: Output,
    parser: Parser,
    bar: ProgressBar,
    bytes: u64,
    head: Option<Head>,
    totals: Option<Totals>,
    lost: Vec<Lost>,
}

/// A dump that was written.
struct Taken {
    head: Head,
    totals: Totals,
    lost: Vec<Lost>,
    bytes: u64,
}

impl Taker {
    fn new(out: Output) -> Taker {
        let bar = ProgressBar::new_spinner().with_message("rows");
        let style = ProgressStyle::with_template("{spinner} {pos} {msg} {per_sec} {elapsed}");
        let bar = if let Ok(style) = style { bar.with_style(style) } else { bar };
        let parser = Parser::strict();
        Taker { out, parser, bar, bytes: 0, head: None, totals: None, lost: Vec::new() }
    }

    fn take(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.parser.push(bytes);
        while let Some(item) = self.parser.next_item()? {
            self.note(item);
        }
        self.bar.set_position(self.parser.found().all_rows());
        self.bytes += bytes.len() as u64;
        match &mut self.out {
            Output::Standard => print(bytes),
            Output::File(file) => file
                .file
                .write_all(bytes)
                .with_context(|| format!("cannot write {}", file.temporary.display())),
        }
    }

    fn note(&mut self, item: Item) {
        match item {
            Item::Head(head) => self.head = Some(head),
            Item::Lost(lost) if self.lost.len() < LOST_MAX => self.lost.push(lost),
            Item::End(totals) => self.totals = Some(totals),
            _ => {}
        }
    }

    /// The dump is whole.
    fn end(mut self) -> anyhow::Result<Taken> {
        while let Some(item) = self.parser.last_item()? {
            self.note(item);
        }
        self.bar.finish_and_clear();
        let (Some(head), Some(totals)) = (self.head.take(), self.totals.take()) else {
            bail!("the dump has no end");
        };
        if let Output::File(file) = &mut self.out {
            file.finish()?;
        }
        Ok(Taken { head, totals, lost: std::mem::take(&mut self.lost), bytes: self.bytes })
    }
}
