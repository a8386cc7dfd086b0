//! `ropewalk mx info`.

use std::time::Duration;

use ropewalk_host_mx::agent::{AgentClient, KnownPeer};
use ropewalk_host_mx::counts::{Counted, counted};
use ropewalk_host_mx::nics::{self, Nics, NicsError};
use ropewalk_net::modules::Options;
use ropewalk_rail_ether::{Interface, Settings, interfaces, settings};
use ropewalk_wire::mxoe::{Dialect, Mode, Order, Station};
use serde_json::json;

use super::advice::{Advice, Faults, advice};
use super::host::{Claim, Files, Host};
use crate::report::{columns, complain, fits, print, print_json, table, wrapped};

/// Arguments of `ropewalk mx info`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk mx info           shows the boards of this host, with advice
  ropewalk mx info --json    as JSON, an object on a line

A board is a network as MX programs know it: an Ethernet interface or a UDP address, with a \
number. $ROPEWALK_MX_BOARDS lists the boards. Without it, each Ethernet interface that is up is a \
board; a process that may not open raw sockets gets one board, the host's first address over UDP. \
An interface without a number is no board.

Columns and lines:
  nic id     the board's Ethernet address, also as the number that MX uses
  MXoE       the longest frame, the byte order and the mode of MXoE on a board
             mxoe://. All hosts of a network must use the same. Set them behind
             the interface: mxoe://eth0?frame=1500&order=big&mode=native
  with all   MXoE is also spoken with hosts that run Ropewalk (ours=mxoe);
             otherwise these hosts use Ropewalk's own packets with checksums
  rx-usecs   microseconds that the card delays interrupts
  AF_XDP     the queue that a process reads by AF_XDP (socket=xdp in an address,
             or $ROPEWALK_ETHER)

The advice applies to the rights of the process that runs this command. A host that uses another \
byte order is reported as soon as it has asked for this host's name; Open-MX does that within \
seconds. A host with another frame length is reported after it has sent a long message.")]
pub struct Info {
    /// Print a JSON object for the host, for each board or other interface, and for each piece of
    /// advice; 'kind' is host, board or advice.
    #[arg(long)]
    json: bool,
}

/// A network, or an Ethernet interface that programs do not have as one.
#[derive(Debug, Clone)]
pub struct Nic {
    /// The number by which programs know it.
    pub number: Option<u32>,
    /// Its name in lists of boards, and the number that stands for its card.
    pub url: String,
    pub nic_id: u64,
    /// `None` over UDP.
    pub interface: Option<Interface>,
    pub settings: Settings,
    /// The dialect of MXoE there; `None` if MXoE is not spoken.
    pub dialect: Option<Dialect>,
    /// Hosts that run Ropewalk speak MXoE there, too, and not their own protocol.
    pub is_for_all: bool,
    /// The number of its endpoints that are taken, if that is seen.
    pub endpoints: Option<usize>,
    /// The queue that a process takes frames from by AF_XDP.
    pub xdp_queue: Option<u32>,
    /// The messages to its agent and its endpoints from hosts that speak another MXoE.
    pub strange: Strange,
}

/// The signs that a host on the wire of an interface speaks MXoE otherwise than hosts here do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Strange {
    /// The agent's byte order, and the cards whose latest messages told that theirs is the other one.
    pub order: Option<(Order, Vec<Station>)>,
    /// Pieces of messages that lie otherwise than in frames as long as those here.
    pub frame: u64,
}

/// A card that has sent no beacon for so long may be gone: Open-MX sends one every three minutes.
const STRANGE_FOR: Duration = Duration::from_secs(400);

impl Strange {
    /// Combines the peers of an interface's agent with the counts of those endpoints on it that report them.
    fn on(interface: &Interface, counted: &[Counted]) -> Strange {
        let agent = AgentClient::reach(interface.index);
        let peers = agent.and_then(|agent| agent.map(|mut agent| agent.peers()).transpose());
        let peers = peers.unwrap_or_else(|error| {
            complain!("ropewalk: {}: {error}", interface.name);
            None
        });
        let peers = peers.unwrap_or_default();
        let own = peers.iter().find(|peer| peer.is_own).and_then(|own| own.order);
        let is_other =
            |it: &&KnownPeer| it.order.is_some() && it.order != own && it.age < STRANGE_FOR;
        let others: Vec<Station> = peers.iter().filter(is_other).map(|it| it.station).collect();
        let index = Some(interface.index);
        let is_there = |it: &&Counted| it.scheme == "mxoe" && it.interface == index;
        let counts = counted.iter().filter(is_there).flat_map(|it| &it.counts);
        Strange {
            order: own.filter(|_| !others.is_empty()).map(|own| (own, others)),
            frame: counts.filter(|it| it.0 == "dropped.wrong_place").map(|it| it.1).sum(),
        }
    }
}

/// The boards of programs that are started now, and the Ethernet interfaces that are none; or why there are no boards.
fn all_nics(files: &Files) -> (Vec<Nic>, Option<NicsError>) {
    let (claims, queues) = (files.claims(), files.queues());
    let ethernet = |it: &Interface| it.is_ethernet && !it.is_loopback;
    let mut interfaces: Vec<Interface> = interfaces().into_iter().filter(ethernet).collect();
    let counted = counted();
    let of = |number, url: String, nic_id, interface: Option<Interface>| {
        let index = interface.as_ref().map(|it| it.index);
        let scheme = url.split("://").next().unwrap_or_default().to_string();
        let is_there = |it: &&Claim, index| it.interface == index && it.scheme == scheme;
        let taken = |index| claims.iter().filter(|claim| is_there(claim, index)).count();
        let queue = queues.iter().find(|it| Some(it.0) == index);
        Nic {
            number,
            url,
            nic_id,
            settings: interface.as_ref().map(|it| settings(&it.name)).unwrap_or_default(),
            dialect: None,
            is_for_all: false,
            endpoints: index.map(taken),
            xdp_queue: queue.map(|(_, queue)| *queue),
            strange: interface.as_ref().map(|it| Strange::on(it, &counted)).unwrap_or_default(),
            interface,
        }
    };
    let (found, why) = match Nics::find() {
        Ok(found) => (found.nics, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    let known = |nic: &nics::Nic| interfaces.iter().find(|it| it.name == nic.interface).cloned();
    let numbered = (0..).zip(&found);
    let mut all: Vec<Nic> = numbered
        .map(|(number, nic)| {
            let interface = known(nic);
            let dialect = interface.as_ref().and_then(|it| nic.dialect(it.mtu));
            let shown = of(Some(number), nic.own_url(), nic.place.nic_id(), interface);
            let is_for_all = dialect.is_some() && !nic.takes_ours();
            Nic { dialect, is_for_all, ..shown }
        })
        .collect();
    interfaces.retain(|it| !found.iter().any(|nic| nic.interface == it.name));
    all.extend(interfaces.into_iter().map(|interface| {
        let url = format!("ether://{}", interface.name);
        of(None, url, interface.station.nic_id(), Some(interface))
    }));
    (all, why)
}

impl Nic {
    /// Its state as people say it.
    fn state(&self) -> &'static str {
        match self.interface.as_ref().map(|it| (it.is_up, it.is_running)) {
            Some((false, _)) => "down",
            Some((true, false)) => "no carrier",
            Some((true, true)) | None => "up",
        }
    }

    /// The address of its card, or the number that stands for it.
    fn card(&self) -> String {
        match &self.interface {
            Some(interface) => format!("{} ({:#014x})", interface.station, self.nic_id),
            None => format!("{:#014x}", self.nic_id),
        }
    }
}

/// Shows the boards.
pub fn run(arguments: &Info) -> anyhow::Result<()> {
    let files = Files::default();
    let (nics, why) = all_nics(&files);
    let faults = Faults { nics: why, sockets: Options::from_environment().check().err() };
    let host = files.host();
    let advice = advice(&host, &nics, &faults);
    if arguments.json {
        return print_objects(&host, &nics, &advice);
    }
    let columns = columns();
    let mut text = format!("{}\n", shown(nics.iter().map(row).collect(), columns));
    for Advice { nic, problem, remedy, .. } in advice {
        let nic = nic.unwrap_or_else(|| "this host".to_string());
        text += &format!("\n{}\n", wrapped(&format!("{nic}: {problem}"), columns, "  "));
        text += &format!("    {}\n", wrapped(&remedy, columns - 4.min(columns), "    "));
    }
    print(text.as_bytes())
}

const HEADER: [&str; 11] = [
    "board",
    "network",
    "state",
    "nic id",
    "MTU",
    "MXoE",
    "speed",
    "driver",
    "rx-usecs",
    "AF_XDP",
    "endpoints",
];

/// The columns of `HEADER` that stand in the table also where it has to be narrow; the others stand below it.
const BRIEF: [usize; 6] = [0, 1, 2, 4, 6, 10];
/// The column with the network.
const NETWORK: usize = 1;

/// The table of boards in so many columns.
fn shown(rows: Vec<Vec<String>>, columns: usize) -> String {
    let whole = table(&HEADER, rows.clone()).to_string();
    if fits(&whole, columns) {
        return whole;
    }
    let brief = |row: &Vec<String>| {
        let mut cells = BRIEF.map(|column| row[column].clone());
        // The settings of an address are below.
        cells[NETWORK].truncate(cells[NETWORK].find('?').unwrap_or(usize::MAX));
        cells.to_vec()
    };
    let header = BRIEF.map(|column| HEADER[column]);
    let mut text = table(&header, rows.iter().map(brief).collect()).to_string();
    for row in rows {
        text.push_str(&format!("\n{}:", row[NETWORK]));
        let mut width = columns;
        for column in (0..HEADER.len()).filter(|it| !BRIEF.contains(it) && row[*it] != "-") {
            let part = format!("{} {}", HEADER[column], row[column]);
            let long = part.chars().count() + 2;
            // A part is not broken.
            if width + long > columns {
                text.push_str("\n    ");
                width = 4;
            } else {
                text.push_str("; ");
            }
            text.push_str(&part);
            width += long;
        }
    }
    text
}

/// The words by which addresses say it.
pub fn order_name(order: Order) -> &'static str {
    match order {
        Order::Big => "big",
        Order::Little => "little",
    }
}

fn mode_of(dialect: Dialect) -> &'static str {
    match dialect.mode() {
        Mode::Native => "native",
        Mode::Compatible => "compatible",
    }
}

fn row(nic: &Nic) -> Vec<String> {
    let or_not = |text: Option<String>| text.unwrap_or_else(|| "-".to_string());
    vec![
        or_not(nic.number.map(|number| number.to_string())),
        nic.url.clone(),
        nic.state().to_string(),
        nic.card(),
        or_not(nic.interface.as_ref().map(|it| it.mtu.to_string())),
        or_not(nic.dialect.map(|it| {
            let all = if nic.is_for_all { ", with all" } else { "" };
            format!(
                "frame {}, {}, {}{all}",
                it.frame_bytes_max(),
                order_name(it.order()),
                mode_of(it)
            )
        })),
        or_not(nic.settings.speed.map(|speed| match speed {
            0..1000 => format!("{speed} Mbit/s"),
            _ => format!("{} Gbit/s", f64::from(speed) / 1000.0),
        })),
        or_not(nic.settings.driver.clone()),
        or_not(nic.settings.receive_wait_us.map(|wait| match nic.settings.adaptive {
            true => format!("{wait}, adaptive"),
            false => wait.to_string(),
        })),
        or_not(nic.xdp_queue.map(|queue| format!("queue {queue}"))),
        or_not(nic.endpoints.map(|count| count.to_string())),
    ]
}

fn print_objects(host: &Host, nics: &[Nic], advice: &[Advice]) -> anyhow::Result<()> {
    print_json(&json!({
        "kind": "host",
        "cap_net_raw": host.raw,
        "cap_net_admin": host.admin,
        "receive_buffer_bytes_max": host.receive_buffer_max,
        "processor_wake_us": host.wake_us,
    }))?;
    for nic in nics {
        let interface = nic.interface.as_ref();
        print_json(&json!({
            "kind": "board",
            "board": nic.number,
            "url": nic.url,
            "interface": interface.map(|it| &it.name),
            "state": nic.state(),
            "address": interface.map(|it| it.station.to_string()),
            "nic_id": nic.nic_id,
            "mtu": interface.map(|it| it.mtu),
            "frame_bytes": nic.dialect.map(Dialect::frame_bytes_max),
            "order": nic.dialect.map(|it| order_name(it.order())),
            "mode": nic.dialect.map(mode_of),
            "ours": nic.dialect.map(|_| if nic.is_for_all { "mxoe" } else { "packets" }),
            "speed_mbits": nic.settings.speed,
            "driver": nic.settings.driver,
            "receive_wait_us": nic.settings.receive_wait_us,
            "adaptive": nic.settings.adaptive,
            "deferred_ns": nic.settings.deferred_ns,
            "deferred_times": nic.settings.deferred_times,
            "xdp_queue": nic.xdp_queue,
            "endpoints": nic.endpoints,
            "other_order": nic.strange.order.as_ref().map(|(_, others)| {
                others.iter().map(Station::to_string).collect::<Vec<_>>()
            }),
            "wrong_place": nic.strange.frame,
        }))?;
    }
    for Advice { nic, topic, problem, remedy } in advice {
        let (topic, interface) = (*topic, nic);
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
    pub fn nic(name: &str, mtu: usize) -> Nic {
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
        Nic {
            number: Some(0),
            url: format!("ether://{name}"),
            nic_id: interface.station.nic_id(),
            interface: Some(interface),
            settings: Settings::default(),
            dialect: None,
            is_for_all: false,
            endpoints: Some(0),
            xdp_queue: None,
            strange: Strange::default(),
        }
    }

    #[test]
    fn a_board_over_udp_has_no_interface() {
        let url = "udp://10.0.0.1:7100".to_string();
        let nic = Nic { url, nic_id: 0x0212, interface: None, endpoints: None, ..nic("", 0) };
        let id = "0x000000000212";
        let shown = ["0", "udp://10.0.0.1:7100", "up", id, "-", "-", "-", "-", "-", "-", "-"];
        assert_eq!(row(&nic), shown);
    }

    #[test]
    fn the_table_of_boards_fits_the_terminal() {
        let url = "mxoe://card0?frame=1400&order=little&socket=packet".to_string();
        let dialect = Some(Dialect::native(1400, Order::Little).unwrap());
        let rows = vec![row(&Nic { url, dialect, ..nic("card0", 1500) }), row(&nic("eth0", 9000))];
        let text = shown(rows.clone(), 80);
        assert!(fits(&text, 80), "{text}");
        assert!(text.contains("\nmxoe://card0?frame=1400&order=little&socket=packet:\n"), "{text}");
        for part in rows.iter().flatten().filter(|part| *part != "-") {
            assert!(text.contains(part.as_str()), "'{part}' is not in {text}");
        }
        assert!(shown(rows, 300).contains("AF_XDP"));
    }

    #[test]
    fn a_row_says_what_is_known_and_states_are_words() {
        let id = "02:00:00:00:00:01 (0x020000000001)";
        let idle = ["0", "ether://eth0", "up", id, "1500", "-", "-", "-", "-", "-", "0"];
        assert_eq!(row(&nic("eth0", 1500)), idle);
        let [native, compatible] =
            [Dialect::native(1500, Order::Little).unwrap(), Dialect::compatible()]
                .map(|it| Nic { dialect: Some(it), ..nic("eth0", 9000) });
        assert_eq!(row(&native)[5], "frame 1500, little, native");
        assert!(row(&compatible)[5].ends_with(", big, compatible"));
        assert!(row(&Nic { is_for_all: true, ..compatible })[5].ends_with("compatible, with all"));
        let settings = Settings {
            driver: Some("mlx5".into()),
            speed: Some(25_000),
            receive_wait_us: Some(8),
            adaptive: true,
            ..Settings::default()
        };
        let mut busy =
            Nic { settings, endpoints: Some(2), xdp_queue: Some(3), ..nic("eth1", 9000) };
        assert_eq!(row(&busy)[6..], ["25 Gbit/s", "mlx5", "8, adaptive", "queue 3", "2"]);
        assert_eq!(busy.state(), "up");
        let interface = busy.interface.clone().unwrap();
        busy.interface = Some(Interface { is_running: false, ..interface.clone() });
        assert_eq!(busy.state(), "no carrier");
        busy.interface = Some(Interface { is_up: false, ..interface });
        assert_eq!(busy.state(), "down");
    }
}
