//! A process that shows its paths, and what it answers. One test: whoever shows paths does so for the whole process.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use ropewalk_base::ids::ClusterId;
use ropewalk_host_paths::{AskError, ask, ask_all, show};
use ropewalk_net::{Endpoint, EndpointConfig};
use ropewalk_rail_sim::{SimConfig, SimNetwork};
use serde_json::{Value, json};

/// Bytes as a stranger sends them to the socket of this process; the answer.
fn raw(name: &str, bytes: &[u8]) -> Value {
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let mut stream = UnixStream::connect_addr(&address).unwrap();
    stream.write_all(bytes).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_process_shows_its_endpoints_while_they_are_open_and_survives_bad_questions() {
    let own = std::process::id();
    let status = json!({ "do": "status" });
    let error = ask(own, &status).unwrap_err();
    assert!(matches!(&error, AskError::NotShown(process, _) if *process == own), "{error}");
    assert_eq!(ask(u32::MAX >> 1, &status).unwrap_err(), AskError::NoProcess(u32::MAX >> 1));
    let network = SimNetwork::new(1);
    let open = |name: &str| {
        let rail = Box::new(network.rail(name, SimConfig::stream()));
        Endpoint::open(EndpointConfig::new(ClusterId(1)), vec![rail]).unwrap()
    };
    let (first, second) = (open("first"), open("second"));
    show(&first, "the first");
    show(&second, "the second");
    let shown = |question: &Value| {
        let answer = ask(own, question).unwrap();
        assert_eq!(answer.process, own);
        answer.object["endpoints"].as_array().unwrap().clone()
    };
    let roles = |shown: &[Value]| shown.iter().map(|it| it["role"].clone()).collect::<Vec<_>>();
    let told = shown(&status);
    assert_eq!(roles(&told), ["the first", "the second"]);
    assert_eq!(told[0]["addresses"], "sim://first");
    assert_eq!(told[0]["endpoint"], first.identity().endpoint.to_string());
    assert_eq!(told[1]["paths"], json!([]));
    assert_eq!(shown(&json!({ "do": "history", "after": {} }))[0]["events"], json!([]));
    assert!(ask_all(&status).into_iter().flatten().any(|answer| answer.process == own));

    let refused = ask(own, &json!({ "do": "dance" })).unwrap_err();
    assert!(matches!(&refused, AskError::Refused { process, .. } if *process == own), "{refused}");
    let table = std::fs::read_to_string("/proc/thread-self/net/unix").unwrap();
    let names = table.lines().filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'));
    let is_own = |name: &&str| name.starts_with("ropewalk/paths/");
    for name in names.filter(is_own) {
        for bytes in [&b""[..], b"\n", b"status\n", b"\xff\xfe\n", b"[1]\n", &[b'{'; 4096]] {
            // Text that is none ends the call without an answer.
            let is_text = std::str::from_utf8(bytes).is_ok();
            assert!(!is_text || raw(name, bytes)["error"].is_string(), "{bytes:?}");
        }
    }
    first.close();
    assert_eq!(roles(&shown(&status)), ["the second"]);
    second.close();
    let error = ask(own, &status).unwrap_err();
    assert!(matches!(error, AskError::NotShown(..)), "the socket ended with the last: {error}");

    // One that its program drives has no service thread.
    let mut config = EndpointConfig::new(ClusterId(1));
    config.service_thread = false;
    let rail = Box::new(network.rail("third", SimConfig::stream()));
    let third = Endpoint::open(config, vec![rail]).unwrap();
    let fourth = open("fourth");
    show(&third, "the third");
    show(&fourth, "the fourth");
    for _ in 0..20 {
        assert_eq!(roles(&shown(&status)), ["the third", "the fourth"], "one of them answers");
    }
    let asked = ask_all(&status).into_iter().flatten().filter(|answer| answer.process == own);
    assert_eq!(asked.count(), 1, "a process has one socket");
    fourth.close();
    third.close();
    assert_eq!(shown(&status), Vec::<Value>::new());
}
