//! `ropewalk meta restore`: a metadata directory out of a dump.

use std::path::PathBuf;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use ropewalk_meta::dump::{Progress, Restore};

use super::summary;
use crate::commands::number;
use crate::node;
use crate::report::{complain, print_json, say};

/// Arguments of `ropewalk meta restore`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk meta restore meta.dump /srv/rope/meta
  ropewalk meta restore --salvage meta.dump /srv/rope/meta

Stop the former metadata servers first. Data servers and clients that have met the restored one \
refuse them afterwards. Move their directories away: nothing is restored into a directory that \
holds a store. The file 'cluster' is not in a dump: keep a copy of it; each host of the cluster has \
one.

Then start the metadata server as before, and run 'ropewalk check'. Files that were made since the \
dump are gone, and their objects are reported as orphans. Of several metadata servers, the others \
begin with empty directories and --join.

If the command is killed, no server starts from the directory; run the command once more.

Exit status: 0 if everything was restored, 1 if metadata are missing (--salvage), 2 if nothing was \
restored.")]
pub struct RestoreArguments {
    /// Restore this dump.
    file: PathBuf,
    /// Write the metadata into this directory, which is empty or does not exist.
    directory: PathBuf,
    /// Restore for the metadata server of this number, where there are several.
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value = "0", value_parser = number)]
    number: u32,
    /// Restore what is there, where parts of the dump are damaged or missing.
    #[arg(long)]
    salvage: bool,
    /// Print the result as a JSON object.
    #[arg(long)]
    json: bool,
}

/// Restores.
pub fn run(arguments: &RestoreArguments) -> anyhow::Result<ExitCode> {
    let RestoreArguments { file, directory, number, salvage, json } = arguments;
    let (number, salvage) = (*number, *salvage);
    let (reactor, world) = node::offline()?;
    let restore = Restore { file: file.clone(), directory: directory.clone(), number, salvage };
    let bar = bar();
    let tell = |Progress { done, all }: Progress| {
        bar.set_length(all);
        bar.set_position(done);
    };
    let restored = reactor.block_on(restore.run(&world, &tell));
    bar.finish_and_clear();
    let restored = restored?;
    let survey = &restored.survey;
    summary::warn_of_missing(survey);
    if *json {
        let mut value = summary::survey_json(survey, &restored.head);
        value["new_term"] = restored.term.into();
        value["number"] = restored.number.into();
        print_json(&value)?;
    } else {
        say!(
            "restored {} inodes, {} rows, into {}, as metadata server {}; its next term is above {}",
            restored.inodes,
            restored.rows,
            directory.display(),
            restored.number,
            restored.term
        )?;
    }
    if survey.is_incomplete() {
        complain!(
            "ropewalk: the restored metadata are not complete: run 'ropewalk check --read' when the \
             servers run, and restore what it lists from backups"
        );
        return Ok(ExitCode::from(1));
    }
    Ok(ExitCode::SUCCESS)
}

/// A bar of bytes; not seen where standard error is no terminal.
pub fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0).with_message("bytes of the dump");
    let template = "{msg:18} [{bar:30}] {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}";
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
