//! Stores of former formats: each image in `lab/images` is a cluster as a former version left it, and is opened for ever.

mod support;

use std::fs;
use std::path::Path;

use support::command::ropewalk;
use support::{Cluster, run};

/// Unpacks an image.
fn unpack(image: &str, place: &Path) {
    let image = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/images").join(image);
    run(place, "tar", &["-xzf", image.to_str().expect("a path in UTF-8")]);
}

/// The files of the image, whose processes were killed a second after the files were synced.
fn check(back: &Path) {
    let read = |name: &str| fs::read(back.join(name)).expect(name);
    assert_eq!(read("d/short"), b"a short file\n");
    let lines: String = (1..=6000).map(|line| format!("line {line} of a long file\n")).collect();
    assert!(read("d/long") == lines.as_bytes(), "the long file differs");
    assert!(read("second") == lines.as_bytes(), "its second name has something else");
    assert!(read("wide") == vec![b'w'; 5_000_000], "the wide file differs");
    let mut holes = vec![0; 5 << 20];
    holes[3_000_000..][..3].copy_from_slice(b"end");
    assert!(read("holes") == holes, "the file with holes differs");
    assert_eq!(fs::read_link(back.join("link")).unwrap(), Path::new("d/short"));
    assert!(fs::read_dir(back.join("empty")).unwrap().next().is_none());
}

#[test]
fn a_cluster_of_the_first_format_goes_on() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    unpack("file-system-1.tar.gz", place);
    let mut cluster = Cluster::start(&place.join("c"));
    let address = cluster.address();
    let ropewalk = |arguments: &[&str]| ropewalk(place, &address, arguments).well();
    for back in ["first", "again"] {
        ropewalk(&["cp", "-rp", ":/", back]);
        check(&place.join(back));
        if back == "first" {
            // It takes new files.
            fs::write(place.join("new"), vec![7; 3_000_000]).unwrap();
            ropewalk(&["cp", "new", ":/new"]);
            ropewalk(&["check", "--read"]);
            cluster.process.kill();
            cluster.restart();
        }
    }
    assert!(fs::read(place.join("again/new")).unwrap() == vec![7; 3_000_000]);
}
