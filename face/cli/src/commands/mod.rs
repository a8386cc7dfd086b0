//! Commands that run something: servers, clusters, mounts. One file each; here is what they share.

pub mod data_options;
pub mod down;
pub mod export;
pub mod format;
pub mod key;
pub mod meta;
pub mod mount;
pub mod mount_helper;
pub mod mount_options;
pub mod run;
pub mod scrub;
pub mod serve;
pub mod server;
pub mod up;
pub mod upgrade;

use std::time::Duration;

use ropewalk_base::world::World;
use ropewalk_client::operator::Operator;

use crate::operate::{Keys, Target};

/// The interval at which a waiting command checks whether it shall end.
pub const LOOK: Duration = Duration::from_millis(50);

/// Seconds, also parts of one, as the user writes them.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| format!("'{text}' is not a number of seconds"))?;
    checked_seconds(number)
}

/// The cluster, the keys and the patience of a command that asks the metadata server as an operator.
#[derive(Debug, clap::Args)]
pub struct Asking {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    keys: Keys,
    /// Wait this long for the metadata server's answer.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, default_value = "20", value_parser = seconds)]
    patience: Duration,
}

impl Asking {
    /// As [`Target::run_with`].
    pub fn run<T>(
        &self,
        work: impl AsyncFnOnce(&World, &Operator) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        self.target.run_with(&self.keys, self.patience, work)
    }
}

/// The number of a data server as the user writes it.
pub fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "give a whole number from 0, such as 4".to_string())
}

/// A time that a user may ask for.
pub fn checked_seconds(number: f64) -> Result<Duration, String> {
    if (0.2..=86_400.0).contains(&number) {
        Ok(Duration::from_secs_f64(number))
    } else {
        Err("give a time from 0.2 to 86400 seconds".to_string())
    }
}
