//! `ropewalk run`: ranks that are started, find each other, and end together.

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use ropewalk_host_job::Job;
use ropewalk_netns::Namespace;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use support::PROGRAM;

const LIMIT: Duration = Duration::from_secs(30);
/// What a rank of this program does.
const PART: &str = "ROPEWALK_RUN_TEST_PART";

fn run(options: &[&str], program: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("run").args(options).arg("--").args(program);
    command
}

fn script(text: &str) -> [&str; 3] {
    ["sh", "-c", text]
}

struct Ended {
    status: i32,
    /// Sorted, since ranks write at once.
    out: Vec<String>,
    err: String,
}

fn ended(mut command: Command) -> Ended {
    let begin = Instant::now();
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    assert!(begin.elapsed() < LIMIT, "{command:?}: {:?}", begin.elapsed());
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let mut out: Vec<String> = text(stdout).lines().map(String::from).collect();
    out.sort();
    Ended { status: status.code().expect("no signal"), out, err: text(stderr) }
}

/// A job that runs, and its lines as they come.
struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Running {
    fn start(mut command: Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
        let out = child.stdout.take().expect("it was asked for");
        Running { child, lines: BufReader::new(out).lines() }
    }

    /// So many lines.
    fn hear(&mut self, count: usize) -> Vec<String> {
        self.lines.by_ref().take(count).map(|line| line.expect("text")).collect()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }
}

/// Waits until none of these processes is there.
fn gone(processes: &[String]) {
    let begin = Instant::now();
    for number in processes {
        let process = Pid::from_raw(number.parse().expect("a number")).expect("a process");
        while test_kill_process(process).is_ok() {
            assert!(begin.elapsed() < LIMIT, "{number} survives");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The last words of lines.
fn words(lines: &[String]) -> Vec<String> {
    let last = |line: &String| line.split(' ').next_back().map(String::from);
    lines.iter().filter_map(last).collect()
}

#[test]
fn ranks_have_numbers_and_their_lines_begin_with_them() {
    let told = script("echo rank $ROPEWALK_RANK of $ROPEWALK_SIZE in $PLACE; echo so >&2");
    let job = ended(run(&["-n", "3", "--env", "PLACE=this house"], &told));
    assert_eq!(job.status, 0, "{}", job.err);
    let want = [0, 1, 2].map(|rank| format!("[{rank}] rank {rank} of 3 in this house"));
    assert_eq!(job.out, want);
    assert_eq!(job.err.lines().filter(|line| line.ends_with("] so")).count(), 3);
    let job = ended(run(&["-n", "2", "--plain"], &["echo", "-n", "all"]));
    assert_eq!(job.out, ["all", "all"]);
}

#[test]
fn the_first_failure_ends_the_job_and_is_its_status() {
    let fails = script("if [ $ROPEWALK_RANK = 1 ]; then exit 7; fi; sleep 600");
    let job = ended(run(&["-n", "3"], &fails));
    assert_eq!(job.status, 7);
    let want = "ropewalk run: rank 1 ended with status 7; the other 2 are ended\n";
    assert_eq!(job.err, want);
    let job = ended(run(&["-n", "1"], &script("exit 200")));
    assert_eq!(job.err, "ropewalk run: rank 0 ended with status 200\n");
    assert_eq!(job.status, 200);
    let killed =
        script("if [ $ROPEWALK_RANK = 0 ]; then kill -KILL $$; fi; trap '' TERM; sleep 600");
    let job = ended(run(&["-n", "2"], &killed));
    assert_eq!(job.status, 128 + 9);
    assert!(job.err.contains("rank 0 was ended by signal 9"), "{}", job.err);
    let job = ended(run(&["-n", "1"], &["/no/such/program"]));
    assert_eq!(job.status, 127);
    assert!(job.err.contains("cannot start '/no/such/program': No such file"), "{}", job.err);
    for (options, why) in [
        (&["-n", "0"][..], "1 to 1024 ranks"),
        (&["-n", "2000"], "1 to 1024 ranks"),
        (&["--namespaces", "nowhere-at-all"], "'nowhere-at-all' is no network namespace"),
        (&["--hosts", "-oProxyCommand=x"], "is no name of a host"),
        (&["--hosts", "a", "--shell", "/no/such/shell"], "cannot start '/no/such/shell'"),
        (&["--hosts", "a", "--shell", "false"], "host 'a' is lost"),
        (&["--env", "=x"], "is no variable"),
    ] {
        let job = ended(run(options, &["true"]));
        assert!(job.status != 0 && job.err.contains(why), "{options:?}: {}", job.err);
    }
}

#[test]
fn signals_go_to_all_ranks_and_a_second_one_kills() {
    let waits = script("trap 'echo told; exit 3' TERM; echo ready; while :; do sleep 0.01; done");
    let mut job = Running::start(run(&["-n", "2"], &waits));
    job.hear(2);
    job.signal(Signal::TERM);
    let mut told = job.hear(2);
    told.sort();
    assert_eq!(told, ["[0] told", "[1] told"]);
    assert_eq!(job.child.wait().expect("it ends").code(), Some(128 + 15));
    let stays = script("trap '' INT; echo ready $$; while :; do sleep 0.01; done");
    let mut job = Running::start(run(&["-n", "2"], &stays));
    let ready = job.hear(2);
    let begin = Instant::now();
    job.signal(Signal::INT);
    std::thread::sleep(Duration::from_millis(100));
    job.signal(Signal::INT);
    assert_eq!(job.child.wait().expect("it ends").code(), Some(128 + 2));
    assert!(begin.elapsed() < Duration::from_millis(1900), "{:?}", begin.elapsed());
    gone(&words(&ready));
}

#[test]
fn no_rank_survives_and_nothing_that_it_started() {
    // One child stays in its group, one leaves it.
    let leaves = "sleep 600 & echo child $!; setsid sleep 600 & echo child $!";
    let job = ended(run(&["-n", "2"], &script(leaves)));
    assert_eq!(job.status, 0, "{}", job.err);
    gone(&words(&job.out));
    let stays = format!("trap '' TERM; echo rank $$; {leaves}; sleep 600");
    for kills_agent in [false, true] {
        let mut job = Running::start(run(&["-n", "2"], &script(&stays)));
        let mut all = words(&job.hear(6));
        let launcher = job.child.id();
        let children = format!("/proc/{launcher}/task/{launcher}/children");
        let agent = std::fs::read_to_string(children).expect("it runs").trim().to_string();
        let victim = if kills_agent { agent.clone() } else { launcher.to_string() };
        let victim = Pid::from_raw(victim.parse().expect("a number")).expect("a process");
        kill_process(victim, Signal::KILL).expect("it runs");
        let status = job.child.wait().expect("it ends");
        if kills_agent {
            assert_eq!(status.code(), Some(1));
        } else {
            all.push(agent);
        }
        gone(&all);
    }
}

/// Not a test of its own: a rank.
#[test]
fn part() {
    let Ok(part) = std::env::var(PART) else { return };
    let mut job = Job::join().unwrap_or_else(|error| panic!("{error}"));
    let (rank, size) = (job.rank(), job.size());
    match part.as_str() {
        "gather" => {
            for round in 0..20u8 {
                let own = vec![rank as u8 + round; (rank as usize) * 1000];
                let all = job.all_gather(&own).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(all.len(), size as usize);
                for (other, part) in all.iter().enumerate() {
                    assert_eq!(*part, vec![other as u8 + round; other * 1000], "round {round}");
                }
            }
            job.barrier().expect("the job goes on");
            println!("gathered {size}");
        }
        "early" if rank == 1 => {}
        "abort" if rank == 1 => job.abort(9, "there is no use"),
        _ => println!("{}", job.barrier().expect_err("one of us is gone")),
    }
}

/// Ranks that are this program.
fn parts(options: &[&str], part: &str) -> Command {
    let this = std::env::current_exe().expect("a test has a file");
    let this = this.to_str().expect("text").to_string();
    let mut command = run(options, &[&this, "--exact", "part", "--nocapture"]);
    command.env(PART, part);
    command
}

#[test]
fn ranks_exchange_bytes_round_by_round() {
    let job = ended(parts(&["-n", "5"], "gather"));
    assert_eq!(job.status, 0, "{}", job.err);
    assert_eq!(job.out.iter().filter(|line| line.contains("gathered 5")).count(), 5);
    let this = std::env::current_exe().expect("a test has a file");
    let mut alone = Command::new(this);
    alone.args(["--exact", "part", "--nocapture"]).env(PART, "gather");
    let alone = ended(alone);
    assert!(alone.out.iter().any(|line| line.contains("gathered 1")), "{:?}", alone.out);
}

#[test]
fn who_waits_for_a_rank_that_is_gone_does_not_wait_for_ever() {
    let job = ended(parts(&["-n", "3"], "early"));
    assert_eq!(job.status, 1);
    assert!(job.err.contains("rank 1 ended, and others wait for it"), "{}", job.err);
    let job = ended(parts(&["-n", "3"], "abort"));
    assert_eq!(job.status, 9);
    assert!(job.err.contains("rank 1 ends the job: there is no use"), "{}", job.err);
}

#[test]
fn a_stranger_takes_no_part() {
    let this = std::env::current_exe().expect("a test has a file");
    for (variable, value, why) in [
        ("ROPEWALK_JOB_KEY", "wrong", "the job has ended"),
        ("ROPEWALK_SIZE", "x", "ROPEWALK_SIZE"),
        ("ROPEWALK_RANK", "7", "ROPEWALK_SIZE"),
        ("ROPEWALK_JOB", "ropewalk/job/nobody", "cannot reach the agent"),
    ] {
        let line = format!("{variable}={value} {} --exact part --nocapture; true", this.display());
        let mut command = run(&["-n", "1"], &script(&line));
        command.env(PART, "gather");
        let job = ended(command);
        assert!(job.err.contains(why), "{variable}: {}", job.err);
    }
}

#[test]
fn ranks_run_in_namespaces_and_find_each_other() {
    let namespaces = ["one", "two"].map(Namespace::new);
    let [Ok(one), Ok(two)] = namespaces else {
        assert!(std::env::var_os("CI").is_none(), "namespaces need root");
        println!("SKIP: namespaces need root");
        return;
    };
    let names = [&one, &two].map(|it| it.path().to_str().expect("text").to_string());
    let options = ["-n", "4", "--namespaces", &names.join(",")];
    let job = ended(run(&options, &["readlink", "/proc/self/ns/net"]));
    assert_eq!(job.status, 0, "{}", job.err);
    let places: Vec<&str> = job.out.iter().map(|line| &line[4..]).collect();
    assert!(
        places[0] == places[1] && places[2] == places[3] && places[0] != places[2],
        "{places:?}"
    );
    let job = ended(parts(&options, "gather"));
    assert_eq!(job.out.iter().filter(|line| line.contains("gathered 4")).count(), 4, "{}", job.err);
}

#[test]
fn ranks_run_on_hosts_by_a_remote_shell() {
    let place = tempfile::tempdir().expect("a directory");
    let shell = place.path().join("shell");
    // A remote shell that stays here: it begins elsewhere, and reads a line.
    let text = "#!/bin/sh\nHOST=$1; export HOST; cd /; shift; exec sh -c \"$*\"\n";
    std::fs::write(&shell, text).expect("it is written");
    let shell = format!("sh {}", shell.display());
    let options = ["-n", "4", "--hosts", "alpha,beta", "--shell", &shell];
    let mut command = run(&options, &script("echo $HOST $PWD $ROPEWALK_RMA_LISTEN"));
    command.current_dir(place.path()).env("ROPEWALK_RMA_LISTEN", "shm://");
    let job = ended(command);
    assert_eq!(job.status, 0, "{}", job.err);
    let host = |rank: u32| if rank < 2 { "alpha" } else { "beta" };
    let here = place.path().canonicalize().expect("it is there");
    let want = |rank| format!("[{rank}] {} {} shm://", host(rank), here.display());
    assert_eq!(job.out, (0..4).map(want).collect::<Vec<_>>());
    // A remote shell takes no environment along.
    let this = std::env::current_exe().expect("a test has a file");
    let all = [&options[..], &["--env", "ROPEWALK_RUN_TEST_PART=gather"]].concat();
    let words = [this.to_str().expect("text"), "--exact", "part", "--nocapture"];
    let job = ended(run(&all, &words));
    assert_eq!(job.out.iter().filter(|line| line.contains("gathered 4")).count(), 4, "{}", job.err);
}
