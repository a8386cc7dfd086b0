//! The client library's example against a cluster of another process: the file itself is compiled
//! in, so what the documents show is what runs here.

mod support;

#[allow(dead_code, reason = "its main function reads the command line of the example")]
#[path = "../../../fs/client/examples/tour.rs"]
mod tour;

use support::Cluster;
use support::command::ropewalk;

#[test]
fn the_example_of_the_library_does_what_it_says_and_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("cluster"));
    let said = tour::tour(&cluster.address()).unwrap();
    assert_eq!(said[0], "around the patch: \"patched\"");
    assert_eq!(said.iter().filter(|line| line.starts_with("stripe ")).count(), 5);
    let rest = &said[6..];
    assert_eq!(rest[0], "large (File, 5000000)");
    assert!(rest[1].starts_with("notes (Directory, "), "{rest:?}");
    assert_eq!(rest[2..], ["the note: laid a rope", "10 bytes behind the name's end"]);
    assert_eq!(ropewalk(place.path(), &cluster.address(), &["ls", "-a"]).well(), ".\n..\n");
    let error = tour::tour("node1").unwrap_err().to_string();
    assert!(error.contains("has no scheme; write one like tcp://node1"), "{error}");
}
