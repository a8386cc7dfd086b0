//! `ropewalk mx info`.

use ropewalk_rail_ether::{Interface, Settings, interfaces, settings};
use serde_json::json;

use super::advice::{Advice, advice};
use super::host::{Files, Host};
use crate::report::{print, print_json, table};

/// Arguments of `ropewalk mx info`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk mx info           the boards of this host, and what to set
  ropewalk mx info --json    an object a line

A board is an Ethernet interface that is up; its number is that of programs that use MX, its id is \
the address of the interface as one number. AF_XDP: the queue that a process takes frames from past \
the packet layer (socket=xdp in an address, or ROPEWALK_ETHER). Rights are those of this process.")]
pub struct Info {
    /// A JSON object for the host, one for each interface, and one for each piece of advice: 'kind' is host, board
    /// or advice.
    #[arg(long)]
    json: bool,
}

/// An Ethernet interface.
#[derive(Debug, Clone)]
pub struct Board {
    /// `None` where it cannot be used.
    pub number: Option<u32>,
    pub interface: Interface,
    pub settings: Settings,
    /// How many endpoints of it are taken.
    pub endpoints: usize,
    /// The queue that a process takes frames from by AF_XDP.
    pub xdp_queue: Option<u32>,
}

/// All Ethernet interfaces; those that can be used have numbers.
fn boards(files: &Files) -> Vec<Board> {
    let (claims, queues) = (files.claims(), files.queues());
    let mut numbers = 0..;
    let ethernet = |it: &Interface| it.is_ethernet && !it.is_loopback;
    let board = |interface: Interface| Board {
        number: numbers.next().filter(|_| interface.is_up),
        settings: settings(&interface.name),
        endpoints: claims.iter().filter(|claim| claim.interface == interface.index).count(),
        xdp_queue: queues.iter().find(|it| it.0 == interface.index).map(|(_, queue)| *queue),
        interface,
    };
    // Those that are up come first, so that their numbers have no holes.
    let (up, down): (Vec<_>, Vec<_>) =
        interfaces().into_iter().filter(ethernet).partition(|interface| interface.is_up);
    up.into_iter().chain(down).map(board).collect()
}

impl Board {
    /// Its state as people say it.
    fn state(&self) -> &'static str {
        match (self.interface.is_up, self.interface.is_running) {
            (false, _) => "down",
            (true, false) => "no carrier",
            (true, true) => "up",
        }
    }
}

/// Shows the boards.
pub fn run(arguments: &Info) -> anyhow::Result<()> {
    let files = Files::default();
    let (host, boards) = (files.host(), boards(&files));
    let advice = advice(&host, &boards);
    if arguments.json {
        return print_objects(&host, &boards, &advice);
    }
    let mut text = format!("{}\n", table(&HEADER, boards.iter().map(row).collect()));
    for Advice { board, problem, remedy, .. } in advice {
        let board = board.unwrap_or_else(|| "this host".to_string());
        text += &format!("\n{board}: {problem}\n    {remedy}\n");
    }
    print(text.as_bytes())
}

const HEADER: [&str; 10] = [
    "interface",
    "board",
    "state",
    "nic id",
    "MTU",
    "speed",
    "driver",
    "rx-usecs",
    "AF_XDP",
    "endpoints",
];

fn row(board: &Board) -> Vec<String> {
    let or_not = |text: Option<String>| text.unwrap_or_else(|| "-".to_string());
    vec![
        board.interface.name.clone(),
        or_not(board.number.map(|number| number.to_string())),
        board.state().to_string(),
        format!("{} ({:#014x})", board.interface.station, board.interface.station.nic_id()),
        board.interface.mtu.to_string(),
        or_not(board.settings.speed.map(|speed| match speed {
            0..1000 => format!("{speed} Mbit/s"),
            _ => format!("{} Gbit/s", f64::from(speed) / 1000.0),
        })),
        or_not(board.settings.driver.clone()),
        or_not(board.settings.receive_wait_us.map(|wait| match board.settings.adaptive {
            true => format!("{wait}, adaptive"),
            false => wait.to_string(),
        })),
        or_not(board.xdp_queue.map(|queue| format!("queue {queue}"))),
        board.endpoints.to_string(),
    ]
}

fn print_objects(host: &Host, boards: &[Board], advice: &[Advice]) -> anyhow::Result<()> {
    print_json(&json!({
        "kind": "host",
        "cap_net_raw": host.raw,
        "cap_net_admin": host.admin,
        "receive_buffer_bytes_max": host.receive_buffer_max,
        "processor_wake_us": host.wake_us,
    }))?;
    for board in boards {
        print_json(&json!({
            "kind": "board",
            "interface": board.interface.name,
            "board": board.number,
            "state": board.state(),
            "address": board.interface.station.to_string(),
            "nic_id": board.interface.station.nic_id(),
            "mtu": board.interface.mtu,
            "speed_mbits": board.settings.speed,
            "driver": board.settings.driver,
            "receive_wait_us": board.settings.receive_wait_us,
            "adaptive": board.settings.adaptive,
            "xdp_queue": board.xdp_queue,
            "endpoints": board.endpoints,
        }))?;
    }
    for Advice { board, topic, problem, remedy } in advice {
        let (topic, interface) = (*topic, board);
        let kind = "advice";
        print_json(&json!({
            "kind": kind, "interface": interface, "topic": topic, "problem": problem,
            "remedy": remedy,
        }))?;
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// One that is up.
    pub fn board(name: &str, mtu: usize) -> Board {
        let interface = Interface {
            name: name.to_string(),
            index: 7,
            station: "02:00:00:00:00:01".parse().unwrap(),
            mtu,
            is_up: true,
            is_running: true,
            is_loopback: false,
            is_ethernet: true,
        };
        let settings = Settings::default();
        Board { number: Some(0), interface, settings, endpoints: 0, xdp_queue: None }
    }

    #[test]
    fn a_row_says_what_is_known_and_states_are_words() {
        let id = "02:00:00:00:00:01 (0x020000000001)";
        let idle = ["eth0", "0", "up", id, "1500", "-", "-", "-", "-", "0"];
        assert_eq!(row(&board("eth0", 1500)), idle);
        let settings = Settings {
            driver: Some("mlx5".into()),
            speed: Some(25_000),
            receive_wait_us: Some(8),
            adaptive: true,
        };
        let mut busy = Board { settings, endpoints: 2, xdp_queue: Some(3), ..board("eth1", 9000) };
        assert_eq!(row(&busy)[5..], ["25 Gbit/s", "mlx5", "8, adaptive", "queue 3", "2"]);
        assert_eq!(busy.state(), "up");
        busy.interface.is_running = false;
        assert_eq!(busy.state(), "no carrier");
        busy.interface.is_up = false;
        assert_eq!(busy.state(), "down");
    }
}
