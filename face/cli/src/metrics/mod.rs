//! The figures of the servers of this process for Prometheus.
//!
//! * `catalogue`: the metrics; `page`: their text; `http`: the web server;
//! * this file: reports of servers become a page.
//!
//! A server makes its report when it is asked, between two calls: its counters are plain numbers of its own thread. All
//! text is made here, on the thread of the caller. The same report answers `ropewalk status` and `ropewalk top`.

mod catalogue;
mod http;
mod page;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ropewalk_base::timing::Histogram;
use ropewalk_wire::fs::standby::{NodeRole, NodeStatus};
use ropewalk_wire::fs::status::{Activity, DataStatus, Figure, MetaStatus};

use crate::node::Inquiry;
use crate::report::{announce, complain};
use crate::told::{Network, OwnDisk, Report};
use http::Web;
use page::Page;

/// The port where none is given.
const PORT: u16 = 9277;
/// The time that all servers may take to report. One that takes longer is shown as down.
const ANSWER: Duration = Duration::from_secs(1);
/// The time that each gets at least, where others took long.
const ANSWER_MIN: Duration = Duration::from_millis(20);

/// The place where metrics are served.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    address: SocketAddr,
    /// The command line names it: without it the command fails. One of a file that several processes use may be taken.
    is_asked: bool,
}

impl Place {
    /// As a flag says, else as the configuration file says. Other hosts are let in only with `insecure`.
    pub fn of(
        flag: Option<SocketAddr>,
        file: Option<SocketAddr>,
        insecure: bool,
    ) -> anyhow::Result<Option<Place>> {
        let Some(address) = flag.or(file) else { return Ok(None) };
        if !address.ip().is_loopback() && !insecure {
            bail!(
                "metrics at {address} could be read by other hosts, and nobody is asked for a password: \
                 use an address of loopback like 127.0.0.1:{}, or give --insecure",
                address.port()
            );
        }
        Ok(Some(Place { address, is_asked: flag.is_some() }))
    }
}

/// Reads an address and a port; without a port, the usual one.
pub fn socket(text: &str) -> Result<SocketAddr, String> {
    let whole = text.parse::<SocketAddr>().ok();
    let alone = || text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, PORT));
    whole.or_else(alone).ok_or_else(|| {
        format!("'{text}' is no IP address with a port: write it like 127.0.0.1:{PORT}")
    })
}

/// Serves the figures of servers until it is dropped.
pub struct Exporter {
    _web: Web,
}

impl Exporter {
    /// Starts where a place is given. `servers` are named as labels name them.
    pub fn start(
        place: Option<Place>,
        servers: Vec<(String, Inquiry)>,
    ) -> anyhow::Result<Option<Exporter>> {
        let Some(Place { address, is_asked }) = place else { return Ok(None) };
        match Web::start(address, Box::new(move || page_of(&servers))) {
            Ok(web) => {
                announce!("metrics at http://{}/metrics", web.address);
                Ok(Some(Exporter { _web: web }))
            }
            Err(error) if is_asked => {
                Err(error).with_context(|| format!("cannot serve metrics at {address}"))
            }
            Err(error) => {
                complain!(
                    "ropewalk: cannot serve metrics at {address}: {error}; the servers go on without; \
                     give another address by --metrics"
                );
                Ok(None)
            }
        }
    }
}

/// Asks all servers, and makes the page.
fn page_of(servers: &[(String, Inquiry)]) -> String {
    let begin = Instant::now();
    let mut page = Page::default();
    page.put("build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    for (name, inquiry) in servers {
        // All of them together get little more time than one: callers wait for the page.
        let left = ANSWER.saturating_sub(begin.elapsed());
        let told = inquiry.ask_within(left.max(ANSWER_MIN));
        page.flag("server_up", &[("server", name)], told.is_some());
        match told {
            Some(Report::Meta { status, node, disk, network }) => {
                put_meta(&mut page, name, status.as_deref(), node.as_ref());
                if let Some(OwnDisk { work, space }) = disk {
                    put_work(&mut page, name, &work);
                    let room = space.map(|space| (space.total, space.available));
                    put_room(&mut page, name, room);
                }
                put_network(&mut page, name, &network);
            }
            Some(Report::Data { status, network }) => {
                if let Some(status) = status {
                    put_data(&mut page, name, &status);
                }
                put_network(&mut page, name, &network);
            }
            None => {}
        }
    }
    page.put("scrape_seconds", &[], begin.elapsed().as_secs_f64());
    page.text()
}

/// Figures that all servers have.
fn put_all(
    page: &mut Page,
    server: &str,
    uptime: u64,
    (calls, work): (&[Activity<'_>], &[Activity<'_>]),
    figures: &[Figure<'_>],
) {
    let own = [("server", server)];
    page.put("server_uptime_seconds", &own, uptime as f64 / 1e3);
    for Activity { kind, calls, bytes, times } in calls {
        let op = label(kind.0);
        let labels = [("server", server), ("op", op.as_str())];
        page.put("calls_total", &labels, calls);
        if *bytes > 0 {
            page.put("call_bytes_total", &labels, bytes);
        }
        let times = Histogram::from(*times);
        if times.count() > 0 {
            page.times("call_seconds", &labels, &times);
        }
    }
    put_work(page, server, work);
    for Figure { name, value } in figures {
        page.put(&String::from_utf8_lossy(name.0), &own, value);
    }
}

/// The work of a journal and of a disk.
fn put_work(page: &mut Page, server: &str, work: &[Activity<'_>]) {
    for Activity { kind, bytes, times, .. } in work {
        let kind = label(kind.0);
        let labels = [("server", server), ("work", kind.as_str())];
        page.times("work_seconds", &labels, &Histogram::from(*times));
        if *bytes > 0 {
            page.put("work_bytes_total", &labels, bytes);
        }
    }
}

/// The size of a disk, and its room.
fn put_room(page: &mut Page, server: &str, room: Option<(u64, u64)>) {
    if let Some((total, available)) = room {
        page.put("room_bytes", &[("server", server)], total);
        page.put("room_available_bytes", &[("server", server)], available);
    }
}

/// The name of a kind as a label has it.
fn label(kind: &[u8]) -> String {
    String::from_utf8_lossy(kind).replace(' ', "_")
}

fn put_meta(
    page: &mut Page,
    server: &str,
    status: Option<&MetaStatus<'_>>,
    node: Option<&NodeStatus>,
) {
    let own = [("server", server)];
    page.flag("meta_active", &own, status.is_some());
    if let Some(node) = node {
        put_node(page, server, node);
    }
    let Some(status) = status else { return };
    put_all(page, server, status.uptime, (&status.activities, &status.work), &status.figures);
    put_room(page, server, status.room.map(|room| (room.total_bytes, room.available_bytes)));
    page.flag("room_full", &own, status.full);
    page.flag("meta_in_grace", &own, status.in_grace);
    for (name, value) in [
        ("meta_inodes", status.inodes),
        ("meta_sessions", status.sessions.into()),
        ("meta_waiting_calls", status.waiting.into()),
        ("meta_reaps", status.reaps.into()),
        ("meta_cuts", status.cuts.into()),
        ("meta_journal_position", status.position),
        ("meta_journal_written", status.written),
        ("meta_journal_durable", status.durable),
        ("meta_pool_version", status.pool_version.into()),
        ("meta_pool_servers", status.pool_servers.into()),
    ] {
        page.put(name, &own, value);
    }
}

/// The place of a metadata server among the others.
fn put_node(page: &mut Page, server: &str, node: &NodeStatus) {
    let own = [("server", server)];
    page.put("meta_term", &own, node.term);
    if node.role != NodeRole::Active {
        page.put("meta_journal_position", &own, node.position);
        page.put("meta_journal_written", &own, node.reached.written);
        page.put("meta_journal_durable", &own, node.reached.durable);
        return;
    }
    let (mut ready, mut wanted) = (0, 0);
    for voter in &node.voters {
        if voter.is_witness {
            if let Some(silence) = voter.silence {
                page.put("meta_witness_silence_seconds", &own, silence as f64 / 1e3);
            }
            continue;
        }
        let standby = voter.standby.filter(|it| !it.copies);
        let is_ready = standby.is_some_and(|it| it.has_all && it.may_lead);
        (ready, wanted) = (ready + u32::from(is_ready), wanted + 1);
        let name = format!("meta{}", voter.number);
        let labels = [("server", server), ("standby", name.as_str())];
        page.flag("meta_standby_ready", &labels, is_ready);
        if let Some(standby) = standby {
            let lag = node.position.saturating_sub(standby.reached.written);
            page.put("meta_standby_lag_records", &labels, lag);
        }
    }
    page.put("meta_standbys_ready", &own, ready);
    page.put("meta_standbys_wanted", &own, wanted);
}

fn put_data(page: &mut Page, server: &str, status: &DataStatus<'_>) {
    let own = [("server", server)];
    put_all(page, server, status.uptime, (&status.activities, &status.work), &status.figures);
    put_room(page, server, Some((status.room.total_bytes, status.room.available_bytes)));
    for (name, value) in [
        ("data_objects", status.objects),
        ("data_object_bytes", status.object_bytes),
        ("data_log_bytes", status.log_bytes),
        ("data_requests_under_way", status.under_way.into()),
        ("data_corrupt_blocks_total", status.corrupt_blocks),
        ("data_checksum_errors_total", status.checksum_errors),
    ] {
        page.put(name, &own, value);
    }
}

fn put_network(page: &mut Page, server: &str, network: &Network) {
    let own = [("server", server)];
    let counters = &network.counters;
    for (name, value) in [
        ("net_messages_sent_total", counters.messages_eager_sent + counters.messages_announced),
        ("net_messages_received_total", counters.messages_received),
        ("net_frames_resent_total", counters.frames_re_sent),
        ("net_corrupt_dropped_total", counters.corrupt_dropped),
        ("net_violations_total", counters.violations),
    ] {
        page.put(name, &own, value);
    }
    // Rails of one scheme are one series.
    let mut schemes: Vec<&str> = network.rails.iter().map(|(scheme, _)| *scheme).collect();
    schemes.sort_unstable();
    schemes.dedup();
    for scheme in schemes {
        let rails = || network.rails.iter().filter(|(it, _)| *it == scheme).map(|(_, rail)| rail);
        let labels = [("server", server), ("rail", scheme)];
        for (name, value) in [
            ("rail_frames_sent_total", rails().map(|it| it.frames_sent).sum::<u64>()),
            ("rail_frames_received_total", rails().map(|it| it.frames_received).sum()),
            ("rail_bytes_sent_total", rails().map(|it| it.bytes_sent).sum()),
            ("rail_bytes_received_total", rails().map(|it| it.bytes_received).sum()),
            ("rail_native_bytes_total", rails().map(|it| it.bytes_native).sum()),
            ("rail_system_calls_total", rails().map(|it| it.system_calls).sum()),
            ("rail_links_up_total", rails().map(|it| it.links_up).sum()),
            ("rail_links_down_total", rails().map(|it| it.links_down).sum()),
        ] {
            page.put(name, &labels, value);
        }
    }
}
