//! Operators and the paths of running processes: a process shows its endpoints at a socket, and a command asks there.
//!
//! * [`show`]: an endpoint's paths can be asked for from now on (`door`, `answer`), and told what to do (`order`);
//! * [`mod@ask`]: the client's side.
//!
//! A question and its answer are one JSON object each: a line, and what follows until the socket is closed. `docs/design/095-paths-command.md`
//! has the reasons.
//!
//! Invariants
//! * a process tells only root and its own user, and obeys nobody else;
//! * the name of the socket is one of the network namespace, which ends with the process, however that ends;
//! * nothing is counted, copied or looked at for this purpose before somebody asks; no thread that works for a program
//!   waits for one who asks, longer than the question holds the engine.
//!
//! `ROPEWALK_SHOW_PATHS=0` in the environment has a process show nothing.
#![forbid(unsafe_code)]

mod answer;
mod ask;
mod door;
mod order;
mod shown;

pub use ask::{Answer, AskError, ask, ask_all};
pub use door::show;

/// The prefix of the sockets' names; a number follows that is drawn.
const NAME: &str = "ropewalk/paths/";

/// The variable of the environment that is 0 in processes that show no paths.
pub const SHOW_VARIABLE: &str = "ROPEWALK_SHOW_PATHS";
