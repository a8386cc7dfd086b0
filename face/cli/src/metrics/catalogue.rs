//! All metrics: names, types and meanings. `docs/metrics.md` and `docs/alerts.yml` use them, which a test checks.
//!
//! Labels are few and bounded: the server, the kind of a call or of work, the rail, the other metadata server. None names a
//! file, a session, a client or a peer.

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Gauge,
    Counter,
    Histogram,
}

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        }
    }
}

/// A metric.
#[derive(Debug)]
pub struct Metric {
    /// Behind `ropewalk_`.
    pub name: &'static str,
    pub kind: Kind,
    pub help: &'static str,
}

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, help }
}

const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, help }
}

const fn histogram(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Histogram, help }
}

/// In the order of the page.
pub const METRICS: &[Metric] = &[
    gauge("build_info", "The version of the program; always 1."),
    gauge("server_up", "Whether the server answers within its process."),
    gauge("server_uptime_seconds", "Time since the server's start."),
    counter("calls_total", "Calls that came to the server, by kind."),
    counter("call_bytes_total", "File bytes that these calls moved."),
    histogram("call_seconds", "Time from the arrival of a call to its reply, waits included."),
    histogram("work_seconds", "Time of writes and syncs of the journal, and of calls to the disk."),
    counter("work_bytes_total", "Bytes that these calls moved."),
    gauge("room_bytes", "Size of the file system on which the server keeps its data."),
    gauge("room_available_bytes", "Room there that the server may use."),
    gauge("room_full", "Whether the server takes nothing new for lack of room."),
    // Metadata.
    gauge("meta_active", "Whether this metadata server serves; with one alone always 1."),
    gauge("meta_term", "Number of the term that the server serves in or knows."),
    gauge("meta_inodes", "Files and directories."),
    gauge("meta_sessions", "Sessions of clients."),
    gauge("meta_leases", "Leases and opens that clients hold."),
    gauge(
        "meta_waiting_calls",
        "Calls that wait for leases, for room or for the end of a restart.",
    ),
    gauge("meta_backlog_calls", "Calls that wait for room in the journal."),
    gauge("meta_unwritten_replies", "Replies that wait until their record is written."),
    gauge("meta_undurable_replies", "Replies that wait until their record is durable."),
    gauge("meta_in_grace", "Whether the server waits for its former clients after a restart."),
    gauge("meta_reaps", "Removed files whose objects are on their way out."),
    gauge("meta_cuts", "Files that are being truncated."),
    gauge("meta_journal_position", "Number of the newest record."),
    gauge("meta_journal_written", "Number of the newest record that survives a kill."),
    gauge("meta_journal_durable", "Number of the newest record that survives a power loss."),
    counter("meta_journal_bytes_total", "Bytes of records since the journal was opened."),
    counter("meta_data_messages_total", "Messages to data servers: fences, cuts and reaps."),
    gauge("meta_map_epoch", "Epoch of the map of groups."),
    gauge("meta_pool_version", "Version of the newest set of data servers."),
    gauge("meta_pool_servers", "Data servers in it."),
    gauge("meta_data_servers", "Data servers that belong to the cluster."),
    gauge("meta_data_servers_silent", "Data servers among them that were not heard of lately."),
    gauge("meta_groups_mirrored", "Groups for files of several copies."),
    gauge("meta_groups_short", "Groups among them that lack a copy."),
    gauge("meta_groups_last_copy", "Groups among them of which one copy is left."),
    gauge("meta_groups_together", "Groups among them with two copies in one failure domain."),
    gauge("meta_group_losses", "How often the last copy of a group lost power or its disk, ever."),
    gauge("meta_standby_lag_records", "Records that a standby lacks."),
    gauge("meta_standby_ready", "Whether a standby has all, and may take over."),
    gauge("meta_standbys_ready", "Standby servers that have all, and may take over."),
    gauge("meta_standbys_wanted", "Other metadata servers of the configuration."),
    gauge("meta_witness_silence_seconds", "Time since the witness answered."),
    // Data servers.
    gauge("data_objects", "Objects on the data server."),
    gauge("data_object_bytes", "Bytes in their written blocks."),
    gauge("data_log_bytes", "Bytes of the log that a crash would replay."),
    gauge("data_requests_under_way", "Requests that wait or work."),
    gauge("data_map_epoch", "Epoch of the map of groups that the data server knows."),
    gauge("data_joined", "Whether the metadata server knows this life of the data server."),
    counter("data_corrupt_blocks_total", "Blocks that were found damaged."),
    counter("data_checksum_errors_total", "Writes whose bytes did not match their checksums."),
    counter("data_scrub_objects_total", "Objects that the scrub has looked at."),
    counter("data_scrub_bytes_total", "Bytes that the scrub has read."),
    counter("data_scrub_rounds_total", "Rounds of the scrub through all objects."),
    counter("data_mended_blocks_total", "Damaged blocks that were written again from a copy."),
    counter("data_lost_blocks_total", "Damaged blocks that had no copy, each time they were met."),
    counter("data_turned_away_total", "Requests that came while too many were under way."),
    // Network.
    counter("net_messages_sent_total", "Messages that left the server's endpoint."),
    counter("net_messages_received_total", "Messages that came to it."),
    counter("net_frames_resent_total", "Frames that were sent again."),
    counter("net_corrupt_dropped_total", "Frames that were dropped for a wrong checksum."),
    counter("net_violations_total", "Frames that broke the protocol."),
    counter("rail_frames_sent_total", "Frames that left by the rail."),
    counter("rail_frames_received_total", "Frames that came by the rail."),
    counter("rail_bytes_sent_total", "Bytes that left by the rail."),
    counter("rail_bytes_received_total", "Bytes that came by the rail."),
    counter("rail_native_bytes_total", "Bytes that the rail moved by native reads and writes."),
    counter("rail_system_calls_total", "System calls of the rail."),
    counter("rail_links_up_total", "Links of the rail that were made."),
    counter("rail_links_down_total", "Links of the rail that ended."),
    // The exporter.
    gauge("scrape_seconds", "Time to ask the servers of this process for this page."),
];

/// The metric of a name behind `ropewalk_`.
pub fn find(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_those_of_prometheus_and_say_their_unit() {
        let mut seen = BTreeSet::new();
        for metric in METRICS {
            let Metric { name, kind, help } = metric;
            assert!(seen.insert(name), "{name} is there twice");
            assert!(name.bytes().all(|it| it.is_ascii_lowercase() || it == b'_'), "{name}");
            assert!(help.ends_with('.') && help.len() < 80, "{name}: {help}");
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            assert!(*kind != Kind::Histogram || name.ends_with("_seconds"), "{name}");
        }
    }

    /// The words of a text that are names of metrics, without the ends of histograms and of paths' metrics.
    fn names_in(text: &str) -> BTreeSet<String> {
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let words = text.split(|letter| !is_name(letter));
        let names = words.filter_map(|word| word.strip_prefix("ropewalk_"));
        let plain = names.map(|name| {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            base.unwrap_or(name).to_string()
        });
        plain.filter(|name| !name.is_empty() && !name.starts_with("path_")).collect()
    }

    fn read(path: &str) -> String {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
        std::fs::read_to_string(path).expect("it is there")
    }

    #[test]
    fn alert_rules_use_metrics_that_exist_and_explain_themselves() {
        let text = read("docs/alerts.yml");
        for name in names_in(&text) {
            assert!(find(&name).is_some(), "no metric ropewalk_{name}");
        }
        let rules = text.matches("- alert: ").count();
        assert!(rules >= 10, "{rules}");
        for key in ["expr: ", "summary: ", "description: ", "severity: "] {
            assert_eq!(text.matches(key).count(), rules, "{key}");
        }
    }

    #[test]
    fn the_document_has_every_metric_and_no_other() {
        let documented = names_in(&read("docs/metrics.md"));
        let all: BTreeSet<String> = METRICS.iter().map(|metric| metric.name.to_string()).collect();
        assert_eq!(documented, all);
    }
}
