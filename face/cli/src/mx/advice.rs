//! Problems of a host or a NIC, and the settings that remedy them.

use ropewalk_host_mx::nics::{NICS_VARIABLE, NicsError, PEERS_FILE, PEERS_VARIABLE};
use ropewalk_net::modules::{ModuleError, SOCKETS_VARIABLE};

use ropewalk_wire::mxoe::Station;

use super::host::Host;
use super::info::{Nic, order_name};

/// Longest payload of frames that most networks can be set to.
const MTU_WANTED: usize = 9000;
/// The least MTU of hosts that speak MXoE, unless all agree upon less.
const FOREIGN_MTU: usize = 1500;
/// Microseconds that a card, or the kernel, may wait before it tells of what came, and a processor need to wake up.
const WAIT_US_MAX: u32 = 10;
const WAKE_US_MAX: u32 = 20;
/// Cards that are named where there are many, and pieces that lie wrong which no few changed bits explain.
const NAMED_MAX: usize = 3;
const STRANGE_PIECES: u64 = 10;
/// The receive buffer that a UDP socket asks for.
const RECEIVE_BUFFER_WANTED: u64 = 4 << 20;

/// One thing that could be better.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    /// Of one board, or of the host.
    pub nic: Option<String>,
    pub topic: &'static str,
    /// The problem, and its cost.
    pub problem: String,
    pub remedy: String,
}

/// Errors in the environment of programs.
#[derive(Debug, Default)]
pub struct Faults {
    /// The error that leaves programs without boards.
    pub nics: Option<NicsError>,
    /// The error that keeps endpoints with raw frames from opening.
    pub sockets: Option<ModuleError>,
}

/// All advice: that of the host first.
pub fn advice(host: &Host, nics: &[Nic], faults: &Faults) -> Vec<Advice> {
    let mut all = of_host(host);
    all.extend(faults.nics.as_ref().map(of_no_nics));
    all.extend(faults.sockets.as_ref().map(of_no_sockets));
    let is_up = |nic: &Nic| nic.interface.as_ref().is_some_and(|it| it.is_up);
    if !nics.iter().any(is_up) {
        all.push(Advice {
            nic: None,
            topic: "boards",
            problem: "no Ethernet interface is up, so ether:// and mxoe:// cannot be used"
                .to_string(),
            remedy: "bring one up: `ip link set NAME up`".to_string(),
        });
    }
    let speaks = |other: &Nic, nic: &Nic| {
        let name = |nic: &Nic| nic.interface.as_ref().map(|it| it.name.clone());
        other.dialect.is_some() && name(other) == name(nic)
    };
    let is_agreed = |nic: &Nic| nics.iter().any(|other| speaks(other, nic));
    let numbered = nics.iter().filter(|nic| nic.number.is_some());
    let of_nics = numbered.flat_map(|nic| of_nic(nic, is_agreed(nic)));
    // The NICs in use on an interface need not be the NICs that programs would get there now.
    for advice in of_nics.chain(nics.iter().flat_map(of_strangers)) {
        // Several NICs may be of one interface.
        if !all.contains(&advice) {
            all.push(advice);
        }
    }
    all
}

/// Hosts that speak MXoE otherwise than what runs here.
fn of_strangers(nic: &Nic) -> Vec<Advice> {
    let (Some(interface), strange) = (&nic.interface, &nic.strange) else { return Vec::new() };
    let mut all = Vec::new();
    let mut say = |topic, problem, remedy: String| {
        all.push(Advice { nic: Some(interface.name.clone()), topic, problem, remedy });
    };
    if let Some((own, others)) = &strange.order {
        let (own, theirs) = (order_name(*own), order_name(own.other()));
        let named: Vec<_> = others.iter().take(NAMED_MAX).map(Station::to_string).collect();
        let more = if others.len() > NAMED_MAX { " and others" } else { "" };
        say(
            "byte order",
            format!(
                "{}{more} use the byte order '{theirs}' for MXoE, but processes on this host use \
                 '{own}': they cannot exchange messages",
                named.join(", ")
            ),
            format!(
                "set order={theirs} for the boards of this host, or order={own} on the other \
                 hosts: all hosts of a network need the same"
            ),
        );
    }
    if strange.frame >= STRANGE_PIECES {
        say(
            "frame length",
            format!(
                "{} packets of long messages came from hosts with another frame length or mode: \
                 short messages arrive, but long ones never do",
                strange.frame
            ),
            "set frame= and mode= of the boards as on the other hosts: all hosts of a network need \
             the same"
                .to_string(),
        );
    }
    all
}

fn of_no_nics(why: &NicsError) -> Advice {
    let (topic, without) = match why {
        NicsError::Peers { .. } => (
            "peers",
            format!("without {PEERS_VARIABLE} they read the file {PEERS_FILE}, if it exists"),
        ),
        NicsError::UsualPeers(_) => (
            "peers",
            format!(
                "without the file they know no hosts by name; {PEERS_VARIABLE} can name another \
                 file"
            ),
        ),
        _ => ("list", format!("without {NICS_VARIABLE} they use all interfaces that are up")),
    };
    let remedy = format!("correct this: until then MX programs do not start; {without}");
    Advice { nic: None, topic, problem: why.to_string(), remedy }
}

fn of_no_sockets(why: &ModuleError) -> Advice {
    let remedy = format!(
        "correct this: until then no endpoint of ether:// or mxoe:// opens; without \
         {SOCKETS_VARIABLE} they use packet sockets"
    );
    Advice { nic: None, topic: "sockets", problem: why.to_string(), remedy }
}

fn of_host(host: &Host) -> Vec<Advice> {
    let mut all = Vec::new();
    let mut say = |topic, problem: String, remedy: &str| {
        all.push(Advice { nic: None, topic, problem, remedy: remedy.to_string() });
    };
    if !host.raw {
        say(
            "rights",
            "raw Ethernet frames (ether://, mxoe://) need the capability CAP_NET_RAW, which this \
             process does not have"
                .to_string(),
            "run programs as root, or give it to them (`setcap cap_net_raw+ep PROGRAM`), or use \
             udp://, which does not need it",
        );
    }
    if let Some(max) = host.receive_buffer_max.filter(|max| *max < RECEIVE_BUFFER_WANTED)
        && !host.admin
    {
        say(
            "receive buffer",
            format!(
                "without CAP_NET_ADMIN the receive buffer of udp:// is limited to {} KiB: packets \
                 of bursts are lost and sent again",
                max >> 10
            ),
            "raise the limit: `sysctl -w net.core.rmem_max=8388608`",
        );
    }
    if let Some(wake) = host.wake_us.filter(|wake| *wake > WAKE_US_MAX) {
        say(
            "sleeping processors",
            format!("an idle processor takes up to {wake} us to wake up, which delays messages"),
            "forbid deep sleep: `cpupower idle-set -D 20`, or let a process write a 0 to \
             /dev/cpu_dma_latency and keep it open",
        );
    }
    all
}

/// `is_agreed`: MXoE is spoken on its interface, by another board or by this one, in frames that all hosts have.
fn of_nic(nic: &Nic, is_agreed: bool) -> Vec<Advice> {
    let Some(interface) = &nic.interface else { return Vec::new() };
    let name = &interface.name;
    let mut all = Vec::new();
    let mut say = |topic, problem, remedy| {
        all.push(Advice { nic: Some(name.clone()), topic, problem, remedy });
    };
    // The MTU that hosts with MXoE agree upon is not for this host alone to change.
    if interface.mtu < MTU_WANTED && !is_agreed {
        say(
            "MTU",
            format!(
                "the MTU is {}: long messages need more packets than with a larger one",
                interface.mtu
            ),
            format!(
                "raise it, if all hosts and switches allow that: `ip link set {name} mtu 9000`"
            ),
        );
    }
    if nic.dialect.is_some() && interface.mtu < FOREIGN_MTU {
        say(
            "MTU",
            format!(
                "the MTU is {}, but other hosts send MXoE frames of {FOREIGN_MTU} bytes or more \
                 unless they are configured: short messages arrive, but long ones never do",
                interface.mtu
            ),
            format!(
                "raise it (`ip link set {name} mtu {FOREIGN_MTU}`), or set frame={} for the boards \
                 of all hosts",
                interface.mtu
            ),
        );
    }
    let settings = &nic.settings;
    if let Some(wait) = settings.receive_wait_us.filter(|wait| *wait > WAIT_US_MAX) {
        say(
            "interrupts",
            format!("the card delays the interrupt for a received packet by {wait} us (rx-usecs)"),
            format!("switch that off: `ethtool -C {name} adaptive-rx off rx-usecs 0`"),
        );
    } else if settings.adaptive {
        say(
            "interrupts",
            "the card delays the interrupt for a received packet as it chooses (adaptive-rx)"
                .to_string(),
            format!("switch that off: `ethtool -C {name} adaptive-rx off rx-usecs 0`"),
        );
    }
    let deferred = settings.deferred_ns.filter(|_| settings.deferred_times.unwrap_or(0) > 0);
    if let Some(nanos) = deferred.filter(|nanos| *nanos > u64::from(WAIT_US_MAX) * 1000) {
        say(
            "deferred interrupts",
            format!(
                "the kernel looks for packets every {} us instead of using interrupts \
                 (napi_defer_hard_irqs, gro_flush_timeout)",
                nanos / 1000
            ),
            format!(
                "switch that off, unless programs poll busily (poll=MICROSECONDS): `echo 0 > \
                 /sys/class/net/{name}/napi_defer_hard_irqs`"
            ),
        );
    }
    all
}

#[cfg(test)]
mod tests {
    use ropewalk_net::modules::Options;
    use ropewalk_rail_ether::{Interface, Settings};
    use ropewalk_wire::mxoe::{Dialect, Order};

    use super::super::info::Strange;
    use super::super::info::tests::nic;
    use super::*;

    fn topics(host: &Host, nics: &[Nic]) -> Vec<&'static str> {
        advice(host, nics, &Faults::default()).iter().map(|advice| advice.topic).collect()
    }

    #[test]
    fn a_host_that_is_set_well_gets_no_advice() {
        let host =
            Host { raw: true, admin: false, receive_buffer_max: Some(8 << 20), wake_us: Some(2) };
        let settings = Settings { receive_wait_us: Some(0), ..Settings::default() };
        let good = Nic { settings, ..nic("eth0", 9000) };
        assert_eq!(topics(&host, std::slice::from_ref(&good)), [""; 0]);
        let foreign = Dialect::native(1500, Order::Big).unwrap();
        let settings = good.settings.clone();
        let agreed = Nic { dialect: Some(foreign), settings, ..nic("eth0", 1500) };
        assert_eq!(topics(&host, &[agreed]), [""; 0], "all hosts would have to change it");
        let short = Dialect::native(1400, Order::Big).ok();
        let narrow = [Nic { dialect: short, ..nic("eth0", 1400) }];
        assert_eq!(topics(&host, &narrow), ["MTU"]);
        let all = advice(&host, &narrow, &Faults::default());
        assert!(all[0].remedy.contains("mtu 1500") && all[0].remedy.contains("frame=1400"));
        let admin = Host { admin: true, receive_buffer_max: Some(1), wake_us: None, ..host };
        assert_eq!(topics(&admin, &[good]), [""; 0]);
        assert_eq!(topics(&host, &[]), ["boards"]);
    }

    #[test]
    fn what_could_be_better_is_said_with_what_to_set() {
        let host = Host {
            raw: false,
            admin: false,
            receive_buffer_max: Some(212_992),
            wake_us: Some(133),
        };
        let settings =
            Settings { receive_wait_us: Some(50), adaptive: true, ..Settings::default() };
        let bad = Nic { settings: settings.clone(), ..nic("eth0", 1500) };
        let expected = ["rights", "receive buffer", "sleeping processors", "MTU", "interrupts"];
        assert_eq!(topics(&host, std::slice::from_ref(&bad)), expected);
        let all = advice(&host, &[bad], &Faults::default());
        assert!(all[0].problem.contains("CAP_NET_RAW") && all[0].remedy.contains("udp://"));
        assert!(all[1].problem.contains("208 KiB") && all[1].remedy.contains("rmem_max"));
        assert!(all[3].remedy.contains("ip link set eth0 mtu 9000"));
        assert!(all[4].problem.contains("50 us") && all[4].remedy.contains("ethtool -C eth0"));
        let adaptive = Settings { receive_wait_us: Some(3), ..settings };
        let bad = Nic { settings: adaptive, ..nic("eth1", 9000) };
        assert_eq!(topics(&Host { raw: true, ..Host::default() }, &[bad]), ["interrupts"]);
        let deferred = |nanos, times| Settings {
            deferred_ns: Some(nanos),
            deferred_times: Some(times),
            ..Settings::default()
        };
        let host = Host { raw: true, ..Host::default() };
        for (settings, told) in [
            (deferred(200_000, 2), vec!["deferred interrupts"]),
            (deferred(200_000, 0), vec![]),
            (deferred(1000, 2), vec![]),
        ] {
            assert_eq!(topics(&host, &[Nic { settings, ..nic("eth1", 9000) }]), told);
        }
        let down = nic("eth2", 1500);
        let interface = down.interface.clone().map(|it| Interface { is_up: false, ..it });
        let down = Nic { number: None, interface, ..down };
        assert_eq!(topics(&host, std::slice::from_ref(&down)), ["boards"]);
    }

    #[test]
    fn hosts_that_speak_another_mxoe_are_told_of() {
        let host = Host { raw: true, ..Host::default() };
        let of = |cards: u8, frame| {
            let others = (1..=cards).map(|number| Station([2, 0, 0, 0, 0, number])).collect();
            let order = (cards > 0).then_some((Order::Big, others));
            // No NIC that programs would have now.
            Nic { number: None, strange: Strange { order, frame }, ..nic("eth0", 9000) }
        };
        assert_eq!(topics(&host, &[of(0, STRANGE_PIECES - 1)]), [""; 0]);
        let nics = [of(4, STRANGE_PIECES), of(4, STRANGE_PIECES)];
        assert_eq!(topics(&host, &nics), ["byte order", "frame length"], "it is one interface");
        let all = advice(&host, &nics, &Faults::default());
        assert!(all[0].problem.starts_with("02:00:00:00:00:01, 02:00:00:00:00:02, 02:"), "{all:?}");
        assert!(all[0].problem.contains(" and others") && all[0].remedy.contains("order=little"));
        assert!(all[1].problem.starts_with("10 packets of long messages"), "{all:?}");
    }

    #[test]
    fn where_mxoe_is_spoken_the_mtu_is_left_to_all_hosts() {
        let host = Host { raw: true, ..Host::default() };
        let ether = nic("eth0", 1500);
        let mxoe = Nic { dialect: Dialect::native(1500, Order::Big).ok(), ..ether.clone() };
        assert_eq!(topics(&host, &[ether.clone(), ether.clone()]), ["MTU"], "it is said once");
        assert_eq!(topics(&host, &[mxoe, ether]), [""; 0]);
    }

    #[test]
    fn a_fault_of_the_environment_is_told_with_its_own_remedy() {
        let host = Host { raw: true, ..Host::default() };
        let told = |nics, sockets| {
            let all = advice(&host, &[nic("eth0", 9000)], &Faults { nics, sockets });
            assert_eq!(all.len(), 1, "{all:?}");
            let Advice { topic, problem, remedy, .. } = all[0].clone();
            (topic, problem, remedy)
        };
        let why = || "line 3".to_string();
        let (topic, problem, remedy) = told(Some(NicsError::List(why())), None);
        assert_eq!((topic, problem.as_str()), ("list", "ROPEWALK_MX_BOARDS: line 3"));
        assert!(remedy.contains("without ROPEWALK_MX_BOARDS"), "{remedy}");
        let named = NicsError::Peers { path: "/a/b".to_string(), why: why() };
        let (topic, problem, remedy) = told(Some(named), None);
        assert_eq!((topic, problem.as_str()), ("peers", "ROPEWALK_MX_PEERS: /a/b: line 3"));
        assert!(remedy.contains("without ROPEWALK_MX_PEERS"), "{remedy}");
        let (topic, problem, remedy) = told(Some(NicsError::UsualPeers(why())), None);
        assert_eq!((topic, problem.as_str()), ("peers", "/etc/ropewalk/mx-peers: line 3"));
        assert!(remedy.contains("without the file"), "{remedy}");
        let options = Options { sockets: "banana".to_string(), ..Options::default() };
        let (topic, problem, remedy) = told(None, options.check().err());
        assert_eq!(topic, "sockets");
        assert!(problem.starts_with("ROPEWALK_ETHER: 'banana'"), "{problem}");
        assert!(remedy.contains("without ROPEWALK_ETHER"), "{remedy}");
    }
}
