//! A thread with a reactor and an endpoint: the form of every server and every client of this process.

use std::cell::Cell;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use ropewalk_base::disk::Disk;
use ropewalk_base::ids::ClusterId;
use ropewalk_base::task::{Either, Receiver, Sender, oneshot, race};
use ropewalk_base::world::World;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_net::reactor::Reactor;
use ropewalk_net::threads;
use ropewalk_rail::Rail;
use ropewalk_rpc::servers;
use ropewalk_store::HostDisk;

use crate::report::complain;
use crate::security;
use crate::told::Report;

/// Threads for blocking disk work of one server.
const DISK_THREADS: usize = 2;
/// The pause before one looks again whether a node can be asked.
const LOOK: Duration = Duration::from_millis(1);

/// A server that runs on a thread of its own until it is told to stop.
pub struct NodeThread {
    /// The address at which peers reach it.
    pub address: String,
    stop: Option<Sender<()>>,
    inquiry: Inquiry,
    failure: Failure,
    thread: Option<JoinHandle<()>>,
}

/// The context of a node's work: its world, its endpoint, and the wish to end.
pub struct Node {
    pub world: World,
    pub endpoint: LocalEndpoint,
    pub stop: Receiver<()>,
    /// Told once the node serves, or why it does not.
    pub ready: Ready,
    /// Asked from outside while the node works.
    pub inquiry: Inquiry,
}

/// The error with which a serving node ended by itself.
type Failure = Arc<Mutex<Option<String>>>;

/// A way to ask a working node for something, from another thread.
#[derive(Clone, Default)]
pub struct Inquiry {
    waiting: Arc<Mutex<Option<Sender<mpsc::Sender<Report>>>>>,
}

impl Inquiry {
    /// Asks, and waits for the answer that long; `None` where the node does not answer.
    pub fn ask_within(&self, limit: Duration) -> Option<Report> {
        let until = Instant::now() + limit;
        let question = loop {
            // Somebody else may be asking.
            if let Some(question) = self.waiting.lock().expect("replaced whole").take() {
                break question;
            }
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(LOOK);
        };
        let (sender, receiver) = mpsc::channel();
        question.send(sender);
        receiver.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
    }

    /// The node's side: answers all questions by `tell`, until `stop` comes.
    pub async fn answer_until(&self, mut stop: Receiver<()>, tell: impl Fn() -> Report) {
        loop {
            let (sender, question) = oneshot();
            *self.waiting.lock().expect("replaced whole") = Some(sender);
            match race(&mut stop, question).await {
                Either::Left(_) => return,
                Either::Right(Some(asker)) => {
                    // The thread that asked may have given up.
                    let _ = asker.send(tell());
                }
                Either::Right(None) => {}
            }
        }
    }
}

/// Tells the thread that started a node that it serves, or why it does not (any more).
pub struct Ready {
    address: String,
    sender: mpsc::Sender<Result<String, String>>,
    serves: Cell<bool>,
    failure: Failure,
}

impl Ready {
    /// It serves.
    pub fn serving(&self) {
        self.serves.set(true);
        // The thread that asked may be gone; then nobody wants to know.
        let _ = self.sender.send(Ok(self.address.clone()));
    }

    /// It cannot serve, or cannot go on.
    pub fn failed(&self, error: &dyn std::fmt::Display) {
        if self.serves.get() {
            *self.failure.lock().expect("replaced whole") = Some(error.to_string());
        } else {
            let _ = self.sender.send(Err(error.to_string()));
        }
    }
}

/// `never` lets processors sleep as the kernel likes; else they are kept awake while a node is busy,
/// where it may do that.
const KEEP_AWAKE: &str = "ROPEWALK_KEEP_AWAKE";

/// A reactor and its world, for work on this host alone.
pub fn offline() -> anyhow::Result<(Reactor, World)> {
    let reactor = Reactor::new().context("cannot create an event loop")?;
    let disk: Arc<dyn Disk> = HostDisk::shared();
    let world = reactor.world(disk, DISK_THREADS)?;
    Ok((reactor, world))
}

/// A reactor, its world, and an endpoint on these rails. It opens more as the addresses that it calls
/// need them.
pub fn local(
    cluster: ClusterId,
    rails: Vec<Box<dyn Rail>>,
) -> anyhow::Result<(Reactor, World, LocalEndpoint)> {
    let (reactor, world) = offline()?;
    if std::env::var_os(KEEP_AWAKE).is_none_or(|value| value != "never") {
        reactor.keep_processors_awake();
    }
    let (peers, payload) = (security::of_process()?, security::payload());
    let endpoint = reactor.open_endpoint_with(cluster, rails, peers, payload)?;
    endpoint.endpoint().open_rails_by_need(|error| {
        complain!("ropewalk: skipping a network of the address: {error}")
    });
    Ok((reactor, world, endpoint))
}

/// As `local`, for a process that only connects, and first of all to `address`.
pub fn calling(
    cluster: ClusterId,
    rails: Vec<Box<dyn Rail>>,
    address: &str,
) -> anyhow::Result<(Reactor, World, LocalEndpoint)> {
    let parts = local(cluster, rails)?;
    reach_all(&parts.2, address)?;
    Ok(parts)
}

/// Opens rails to the metadata servers that a text names, as far as this host can: one server is enough.
pub fn reach_all(endpoint: &LocalEndpoint, text: &str) -> anyhow::Result<()> {
    let mut wrong = None;
    let mut any = false;
    for address in servers::addresses(text)? {
        match endpoint.endpoint().reach(&address) {
            Ok(()) => any = true,
            Err(error) => wrong = wrong.or(Some(error)),
        }
    }
    wrong.filter(|_| !any).map_or(Ok(()), |error| Err(error.into()))
}

/// A server as messages name it, by the name of its thread.
fn role(name: &str) -> String {
    match name.strip_prefix("data") {
        Some(number) => format!("data server {number}"),
        None => "metadata server".to_string(),
    }
}

impl NodeThread {
    /// Starts a node on a thread of its own, and waits until it serves.
    pub fn start<F, W>(
        name: &str,
        cluster: ClusterId,
        rails: Vec<Box<dyn Rail>>,
        work: F,
    ) -> anyhow::Result<NodeThread>
    where
        F: FnOnce(Node) -> W + Send + 'static,
        W: Future<Output = ()>,
    {
        let (sender, receiver) = mpsc::channel();
        let (stop, stopped) = oneshot();
        let failed = sender.clone();
        let inquiry = Inquiry::default();
        let asked = inquiry.clone();
        let failure = Failure::default();
        let (told, shown_as) = (failure.clone(), role(name));
        let thread = threads::start(name, move || {
            let (reactor, world, endpoint) = match local(cluster, rails) {
                Ok(parts) => parts,
                Err(error) => {
                    let _ = failed.send(Err(format!("{error:#}")));
                    return;
                }
            };
            drop(failed);
            ropewalk_host_paths::show(endpoint.endpoint(), &shown_as);
            let address = endpoint.endpoint().addresses().to_string();
            let (serves, failure) = (Cell::new(false), told);
            let ready = Ready { address, sender, serves, failure };
            reactor.block_on(work(Node {
                world,
                endpoint: endpoint.clone(),
                stop: stopped,
                ready,
                inquiry: asked,
            }));
            endpoint.endpoint().close();
        })?;
        let answer =
            receiver.recv().map_err(|_| anyhow!("the {} ended before it was ready", role(name)))?;
        let address = answer.map_err(|error| anyhow!("{}: {error}", role(name)))?;
        Ok(NodeThread { address, stop: Some(stop), inquiry, failure, thread: Some(thread) })
    }

    /// The error with which it ended by itself, if it did.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().expect("replaced whole").clone()
    }

    /// A way to ask it, for other threads.
    pub fn inquiry(&self) -> Inquiry {
        self.inquiry.clone()
    }

    /// Stops the node in good order, and waits for its end.
    pub fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so on its way out.
            let _ = thread.join();
        }
    }
}

impl Drop for NodeThread {
    fn drop(&mut self) {
        self.stop();
    }
}
