//! A fault in a network, until it is mended.
//!
//! Invariant: what a fault changed is changed back, whether it is mended, dropped, or could be injected in part only.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ropewalk_base::random::Random;

use crate::error::{Error, Result};
use crate::fault::{Fault, FaultKind};
use crate::network::Network;
use crate::plan::{self, Part, Plan};
use crate::wire::{ImpairmentId, Wire};

/// A fault that is there, until it is mended or dropped.
#[derive(Debug)]
pub struct Injected {
    network: Arc<Network>,
    fault: Fault,
    parts: Vec<(usize, Part)>,
    /// `None` where nothing was changed.
    mend: Option<Mend>,
    is_over: bool,
    begun: Instant,
    took: Duration,
}

/// How a fault is mended.
#[derive(Debug)]
enum Mend {
    Plan(Plan),
    Impairment(Arc<Wire>, ImpairmentId),
    Flapping(Flapping),
}

impl Injected {
    pub(crate) fn new(network: Arc<Network>, fault: &Fault) -> Result<Injected> {
        plan::check(&network.layout, fault)?;
        let begun = Instant::now();
        let parts = plan::parts(&network.layout, fault);
        network.claims().take(fault.rail, &parts)?;
        // From here on, dropping it gives the parts back.
        let (mend, is_over, took) = (None, false, Duration::ZERO);
        let mut this = Injected { network, fault: *fault, parts, mend, is_over, begun, took };
        this.begin()?;
        this.took = begun.elapsed();
        Ok(this)
    }

    /// The fault.
    pub fn fault(&self) -> &Fault {
        &self.fault
    }

    /// When its first command was given: it took effect between this time and [`took`](Injected::took) later.
    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// How long its commands took.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// Ends it. When this returns the network is as it was, but the kernel may need a moment until frames pass. Where it
    /// fails, the network is damaged.
    pub fn mend(mut self) -> Result<()> {
        self.end()
    }

    fn begin(&mut self) -> Result<()> {
        let Fault { kind, host, rail, direction, seed, .. } = self.fault;
        if let FaultKind::Impaired(impairment) = kind {
            let wire = self.network.wire(host, rail)?;
            let id = wire.impair(direction, impairment, seed);
            self.mend = Some(Mend::Impairment(wire, id));
            return Ok(());
        }
        let number = self.network.faults.fetch_add(1, Ordering::Relaxed);
        let port = self.network.bridge_port(host, rail);
        let plan = plan::plan(&self.network.layout, &self.fault, &port, number);
        if let FaultKind::Flapping { mean, .. } = kind {
            let flapping = Flapping::start(self.network.clone(), plan, mean, seed)?;
            self.mend = Some(Mend::Flapping(flapping));
            return Ok(());
        }
        let first = self.network.run(&plan.inject);
        let done = match first {
            Err(Error::Refused { .. }) if !plan.otherwise.is_empty() => {
                self.network.run(&plan.otherwise)
            }
            done => done,
        };
        match done {
            Ok(()) => self.mend = Some(Mend::Plan(plan)),
            // The part that was done is undone; what was not done cannot be.
            Err(_) => plan.mend.iter().for_each(|order| {
                let _ = self.network.run(std::slice::from_ref(order));
            }),
        }
        done
    }

    fn end(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_over, true) {
            return Ok(());
        }
        let done = match self.mend.take() {
            None => Ok(()),
            Some(Mend::Impairment(wire, id)) => {
                wire.relieve(id);
                Ok(())
            }
            Some(Mend::Flapping(flapping)) => flapping.stop(),
            Some(Mend::Plan(plan)) => self.network.run(&plan.mend).and_then(|()| self.rejoin()),
        };
        self.network.claims().give(self.fault.rail, &self.parts);
        done
    }

    /// Joins a cable that was made anew to what its old one was joined to.
    fn rejoin(&self) -> Result<()> {
        let Fault { kind, host, rail, .. } = self.fault;
        if kind != FaultKind::InterfaceRemoved {
            return Ok(());
        }
        match (self.network.present_wire(host, rail), self.network.layout.plug(host, rail)) {
            (Some(wire), Some(plug)) => wire.rejoin(self.network.namespace(plug.place))?,
            (_, plug) => self.network.run(plug.as_slice())?,
        }
        self.network.wait_for_cable(host, rail)
    }
}

impl Drop for Injected {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("{} could not be mended: {error}", self.fault);
        }
    }
}

/// The thread that lets a link go and come.
#[derive(Debug)]
struct Flapping {
    stop: Sender<()>,
    thread: JoinHandle<Result<()>>,
}

impl Flapping {
    /// The link goes at once. Each time is random: half of the mean at least, and twice that on average.
    fn start(network: Arc<Network>, plan: Plan, mean: Duration, seed: u64) -> Result<Flapping> {
        let (stop, stopped) = channel();
        network.run(&plan.inject)?;
        let thread = move || {
            let mut random = Random::from_seed(seed);
            let mut is_down = true;
            loop {
                let time = mean / 2 + Duration::from_nanos(random.below(mean.as_nanos() as u64));
                if stopped.recv_timeout(time) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
                network.run(if is_down { &plan.mend } else { &plan.inject })?;
                is_down = !is_down;
            }
            if is_down { network.run(&plan.mend) } else { Ok(()) }
        };
        let thread = std::thread::Builder::new()
            .name("ropewalk-flap".to_string())
            .spawn(thread)
            .map_err(|error| Error::system("cannot start a thread", error))?;
        Ok(Flapping { stop, thread })
    }

    fn stop(self) -> Result<()> {
        drop(self.stop);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
