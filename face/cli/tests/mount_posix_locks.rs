//! Locks and their ends: those of processes, of open file descriptions (`F_OFD_SETLK`) and of whole files
//! (`flock`), by fcntl(2) and flock(2). Each process here is a perl that is told what to do.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use support::posix::{Place, run_checks};
use support::{Cluster, mounts_usable, unmount};

#[test]
fn locks_end_when_the_standard_says() {
    run_checks(&[
        ("descriptions_end_with_their_last_close", descriptions_end_with_their_last_close),
        ("descriptions_end_with_processes", descriptions_end_with_processes),
        ("closes_of_others_end_nothing", closes_of_others_end_nothing),
        ("records_end_with_any_close", records_end_with_any_close),
        ("whole_files_end_with_their_last_close", whole_files_end_with_their_last_close),
        ("families", families),
        ("waiters_get_what_ends", waiters_get_what_ends),
        ("addresses_are_used_again", addresses_are_used_again),
        ("signals_take_no_lock_away", signals_take_no_lock_away),
    ]);
}

/// The commands that a process understands, each a line: files are numbers of its own choice.
const SCRIPT: &str = r#"
use strict; use IO::Handle; use POSIX qw(SIGALRM SA_RESTART); use Time::HiRes qw(setitimer ITIMER_REAL);
$| = 1;
my (%file, %child); my ($set, $wait, $ofd_set, $ofd_wait) = (6, 7, 37, 38);
sub lock_it { my ($what, $file, $kind, $start, $length) = @_;
    my $request = pack 's s x4 q q i x4', $kind, 0, $start, $length, 0;
    fcntl($file, $what, $request) ? 'ok' : $! + 0 }
my %kinds = (read => 0, write => 1, none => 2);
while (my $line = <STDIN>) {
    my ($verb, $number, @rest) = split ' ', $line;
    my $answer = 'ok';
    if ($verb eq 'open') { open($file{$number}, '+<', $rest[0]) or $answer = $! + 0 }
    elsif ($verb eq 'copy') { open($file{$rest[0]}, '+<&', $file{$number}) or $answer = $! + 0 }
    elsif ($verb eq 'close') { close(delete $file{$number}) or $answer = $! + 0 }
    elsif ($verb eq 'record') { $answer = lock_it($set, $file{$number}, $kinds{shift @rest}, @rest) }
    elsif ($verb eq 'described') { $answer = lock_it($ofd_set, $file{$number}, $kinds{shift @rest}, @rest) }
    elsif ($verb eq 'wait') { $answer = lock_it($ofd_wait, $file{$number}, $kinds{shift @rest}, @rest) }
    elsif ($verb eq 'whole') { flock($file{$number}, $rest[0] | 4) or $answer = $! + 0 }
    elsif ($verb eq 'fork') {
        # The child has copies of all descriptors, and only waits until it is ended.
        my $child = fork();
        if (!$child) { close STDIN; sleep 1000; exit }
        $child{$number} = $child }
    elsif ($verb eq 'reap') { kill $rest[0], $child{$number}; waitpid delete $child{$number}, 0 }
    elsif ($verb eq 'once') {
        # A child that opens, locks and ends, closing nothing.
        my $child = fork();
        if (!$child) { open(my $own, '+<', $rest[0]) or exit 1;
            exit(lock_it($ofd_set, $own, 1, 0, 10) eq 'ok' ? 0 : 2) }
        waitpid $child, 0; $answer = $? >> 8 || 'ok' }
    elsif ($verb eq 'count') {
        # Counts up a number in the file under a lock; signals come all the while.
        my ($times, $flock) = @rest; my $file = $file{$number}; my $all = 0;
        POSIX::sigaction(SIGALRM, POSIX::SigAction->new(sub { $all++ }, POSIX::SigSet->new, SA_RESTART));
        setitimer(ITIMER_REAL, 0.0007, 0.0007);
        for (1 .. $times) {
            my $got = $flock ? flock($file, 2) : lock_it($wait, $file, 1, 0, 0) eq 'ok';
            my ($count, $bytes) = (0, '');
            $got && defined sysseek($file, 0, 0) && sysread($file, $bytes, 8) == 8 or $answer = "$!";
            $count = unpack('Q', $bytes) + 1;
            sysseek($file, 0, 0) && syswrite($file, pack('Q', $count)) == 8 or $answer = "$!";
            $flock ? flock($file, 8) : lock_it($set, $file, 2, 0, 0);
        }
        setitimer(ITIMER_REAL, 0);
        $answer = 'no signals' unless $all; }
    elsif ($verb eq 'number') {
        sysseek($file{$number}, 0, 0); sysread($file{$number}, $answer, 8); $answer = unpack('Q', $answer) }
    else { $answer = 'what?' }
    print "$answer\n";
}
"#;

const BUSY: &str = "11";

struct Process {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Process {
    fn new() -> Process {
        let mut child = Command::new("perl")
            .args(["-e", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("perl is there");
        let (orders, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Process { child, orders: Some(orders), answers: BufReader::new(answers) }
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders.as_ref().unwrap(), "{order}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    #[track_caller]
    fn says(&mut self, order: &str, expected: &str) {
        self.order(order);
        assert_eq!(self.answer(), expected, "{order}");
    }

    fn open(&mut self, number: u32, path: &Path) {
        self.says(&format!("open {number} {}", path.display()), "ok");
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// As the end of its orders has it.
    fn exit(mut self) {
        drop(self.orders.take());
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // If the process has ended, there is nobody to kill, and the mount that it used can be unmounted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that has the file open as 1, on either mount.
fn process(at: &Place, here: bool) -> Process {
    let path = if here { at.a.join("file") } else { at.b.join("file") };
    if !path.exists() {
        std::fs::write(&path, "content").unwrap();
    }
    let mut process = Process::new();
    process.open(1, &path);
    process
}

/// Waits for an answer that another process gets before long: a release may be on its way between two mounts.
#[track_caller]
fn soon(process: &mut Process, order: &str, expected: &str) {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        process.order(order);
        let answer = process.answer();
        if answer == expected {
            return;
        }
        assert!(Instant::now() < end, "{order}: {answer}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn descriptions_end_with_their_last_close(at: &Place) {
    let (mut one, mut other) = (process(at, true), process(at, false));
    let path = at.a.join("file");
    for _ in 0..10 {
        one.says("described 1 write 0 10", "ok");
        other.says("described 1 write 5 1", BUSY);
        other.says("described 1 write 10 1", "ok");
        other.says("described 1 none 0 0", "ok");
        // A copy is the same description, and another open is not.
        one.says("copy 1 2", "ok");
        one.open(3, &path);
        one.says("described 3 write 0 1", BUSY);
        one.says("described 2 write 0 1", "ok");
        one.says("close 1", "ok");
        other.says("described 1 write 5 1", BUSY);
        one.says("close 2", "ok");
        // On one mount at once.
        one.says("described 3 write 0 10", "ok");
        one.says("close 3", "ok");
        soon(&mut other, "described 1 write 0 10", "ok");
        other.says("described 1 none 0 0", "ok");
        one.open(1, &path);
    }
}

fn descriptions_end_with_processes(at: &Place) {
    let (mut one, mut other) = (process(at, true), process(at, false));
    let name = at.a.join("file").display().to_string();
    for _ in 0..10 {
        one.says(&format!("once 1 {name}"), "ok");
        one.says("described 1 write 0 10", "ok");
        one.says("described 1 none 0 0", "ok");
    }
    // A forked child keeps the description alive, until it is killed.
    one.says("described 1 write 0 10", "ok");
    one.says("fork 1", "ok");
    one.says("close 1", "ok");
    other.says("described 1 write 0 10", BUSY);
    one.says("reap 1 KILL", "ok");
    soon(&mut other, "described 1 write 0 10", "ok");
    other.says("described 1 none 0 0", "ok");
    let mut third = process(at, true);
    third.says("described 1 read 0 0", "ok");
    other.says("described 1 write 3 1", BUSY);
    third.kill();
    soon(&mut other, "described 1 write 3 1", "ok");
    other.exit();
    one.open(1, &at.a.join("file"));
    soon(&mut one, "described 1 write 3 1", "ok");
}

fn closes_of_others_end_nothing(at: &Place) {
    let (mut one, mut other) = (process(at, true), process(at, false));
    one.says("described 1 write 0 10", "ok");
    // A second description of the same process comes and goes, and so does a child's copy.
    one.open(2, &at.a.join("file"));
    one.says("close 2", "ok");
    one.says("fork 1", "ok");
    one.says("reap 1 TERM", "ok");
    let mut third = process(at, true);
    third.says("described 1 read 100 5", "ok");
    third.exit();
    other.says("described 1 read 0 1", BUSY);
    other.says("record 1 read 0 1", BUSY);
    one.says("described 1 none 0 5", "ok");
    other.says("described 1 read 0 5", "ok");
    other.says("described 1 read 5 1", BUSY);
}

fn records_end_with_any_close(at: &Place) {
    let (mut one, mut other) = (process(at, true), process(at, false));
    one.says("record 1 write 0 10", "ok");
    one.says("record 1 write 20 10", "ok");
    one.says("record 1 none 0 10", "ok");
    // A child has no locks of its parent, and takes none along.
    one.says("fork 1", "ok");
    one.says("reap 1 KILL", "ok");
    other.says("record 1 write 5 1", "ok");
    other.says("record 1 none 0 0", "ok");
    other.says("record 1 write 25 1", BUSY);
    one.open(2, &at.a.join("file"));
    one.says("described 2 write 50 1", "ok");
    one.says("close 2", "ok");
    other.says("record 1 write 25 1", "ok");
    soon(&mut other, "record 1 write 50 1", "ok");
    one.says("record 1 write 60 1", "ok");
    one.kill();
    soon(&mut other, "record 1 write 0 0", "ok");
}

fn whole_files_end_with_their_last_close(at: &Place) {
    let (mut one, mut other) = (process(at, true), process(at, false));
    for _ in 0..5 {
        one.says("whole 1 2", "ok");
        other.says("whole 1 1", BUSY);
        one.says("copy 1 2", "ok");
        one.says("fork 1", "ok");
        one.says("close 1", "ok");
        one.says("close 2", "ok");
        other.says("whole 1 1", BUSY);
        one.says("reap 1 KILL", "ok");
        soon(&mut other, "whole 1 2", "ok");
        other.says("whole 1 8", "ok");
        one.open(1, &at.a.join("file"));
    }
    one.says("whole 1 2", "ok");
    one.says("whole 1 8", "ok");
    other.says("whole 1 2", "ok");
}

/// Records of processes and of descriptions exclude each other; whole files are another family.
fn families(at: &Place) {
    let (mut one, mut other) = (process(at, true), process(at, false));
    one.says("whole 1 2", "ok");
    other.says("record 1 write 0 0", "ok");
    one.says("described 1 read 0 1", BUSY);
    other.says("record 1 none 0 0", "ok");
    one.says("described 1 read 0 1", "ok");
    one.says("record 1 write 0 1", BUSY);
    one.says("record 1 read 0 1", "ok");
    one.says("close 1", "ok");
    soon(&mut other, "record 1 write 0 0", "ok");
    soon(&mut other, "whole 1 2", "ok");
}

fn waiters_get_what_ends(at: &Place) {
    let (mut one, mut other) = (process(at, true), process(at, false));
    for kill in [false, true] {
        one.says("described 1 write 0 10", "ok");
        other.order("wait 1 write 5 10");
        std::thread::sleep(Duration::from_millis(30));
        if kill {
            one.kill();
            one = process(at, true);
        } else {
            one.says("close 1", "ok");
            one.open(1, &at.a.join("file"));
        }
        assert_eq!(other.answer(), "ok");
        other.says("described 1 none 0 0", "ok");
    }
}

/// The kernel names owners by addresses, and the next open has that of the last close.
fn addresses_are_used_again(at: &Place) {
    let (mut one, mut other) = (process(at, true), process(at, false));
    for round in 0..100 {
        one.says("described 1 write 0 10", "ok");
        one.says("whole 1 2", "ok");
        one.says("close 1", "ok");
        one.open(1, &at.a.join("file"));
        one.says("described 1 write 0 10", "ok");
        one.says("whole 1 2", "ok");
        if round % 10 == 0 {
            other.says("described 1 write 0 10", BUSY);
            other.says("whole 1 2", BUSY);
        }
    }
}

/// A wait that a signal interrupts begins anew at once: messages about the first one must not concern the
/// second.
fn signals_take_no_lock_away(at: &Place) {
    const TIMES: u32 = 150;
    for flock in ["", " 1"] {
        let (mut one, mut other) = (process(at, true), process(at, false));
        std::fs::write(at.a.join("file"), [0; 8]).unwrap();
        for process in [&mut one, &mut other] {
            process.order(&format!("count 1 {TIMES}{flock}"));
        }
        assert_eq!([one.answer(), other.answer()], ["ok", "ok"]);
        one.says("number 1", &(2 * TIMES).to_string());
    }
}

/// A process that holds nothing asks nobody, however dead the servers are. A process that ended beside dead
/// servers has no locks when they are back.
#[test]
fn processes_without_locks_end_beside_dead_servers() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (mount, second) = (place.path().join("m"), place.path().join("second"));
    std::fs::create_dir(&mount).unwrap();
    std::fs::create_dir(&second).unwrap();
    let mut cluster = Cluster::start(&place.path().join("cluster"));
    let mounted = |path: &Path| {
        let arguments = ["mount", &cluster.address(), path.to_str().unwrap(), "--patience", "2"];
        support::Process::mount(&arguments, path)
    };
    let (_one, _two) = (mounted(&mount), mounted(&second));
    std::fs::write(mount.join("file"), "content").unwrap();
    let (mut one, mut parent) = (Process::new(), Process::new());
    one.open(1, &mount.join("file"));
    parent.open(1, &mount.join("file"));
    // One has locked and unlocked, the other holds locks and has a child that does not.
    for order in ["record 1 write 0 10", "record 1 none 0 10", "whole 1 2", "whole 1 8"] {
        one.says(order, "ok");
    }
    for order in ["record 1 write 0 10", "described 1 write 20 10", "whole 1 2", "fork 1"] {
        parent.says(order, "ok");
    }
    let mut other = Process::new();
    other.open(1, &second.join("file"));
    other.says("record 1 write 0 1", BUSY);
    cluster.process.kill();
    let begin = Instant::now();
    parent.says("reap 1 KILL", "ok");
    one.says("record 1 none 0 10", "ok");
    one.exit();
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    // Its close is told to nobody before patience ends.
    parent.kill();
    cluster.restart();
    soon(&mut other, "record 1 write 0 0", "ok");
    soon(&mut other, "whole 1 2", "ok");
    other.exit();
    unmount(&mount);
    unmount(&second);
}
