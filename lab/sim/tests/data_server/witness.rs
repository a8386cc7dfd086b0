//! A data server as a witness: it votes for metadata servers, before it has joined and after that.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::ids::{ClusterId, ServerId};
use ropewalk_data::{DataConfig, DataServer, WitnessConfig};
use ropewalk_rail::address::Address;
use ropewalk_rpc::{CallError, Connection, Options, Proof};
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::endpoint::endpoint;
use ropewalk_sim::{Kill, SimConfig, Simulation};
use ropewalk_wire::fs::election::{Answer, Ballot, Members, Set};
use ropewalk_wire::fs::head::Service;
use ropewalk_wire::fs::trust::{Member, Role};
use ropewalk_wire::fs::{decode, encode};

use crate::client::secret;
use crate::cluster::{DIRECTORY, LIMIT};

const LEASE: Duration = Duration::from_secs(2);

type Place<T> = Rc<RefCell<Option<T>>>;

/// A witness, and a node with connections of several callers.
struct Site {
    simulation: Simulation,
    disk: VirtualDisk,
    server: Place<Rc<DataServer>>,
    has_failed: Rc<Cell<bool>>,
    callers: Vec<Connection>,
}

/// The caller with this number in `Site::callers`.
const ONE: usize = 0;
const TWO: usize = 1;
const DATA: usize = 2;
const NOBODY: usize = 3;

fn callers() -> [Option<Member>; 4] {
    let member = |role, number| Some(Member { role, number });
    [member(Role::Metadata, 1), member(Role::Metadata, 2), member(Role::Data, 1), None]
}

impl Site {
    /// A site whose witness waits for an active metadata server, or needs none.
    fn new(waits: bool, is_witness: bool) -> Site {
        let mut simulation = Simulation::new(61);
        let disk = VirtualDisk::new(1);
        let (server, has_failed) = (Place::default(), Rc::new(Cell::new(false)));
        let (place, failed) = (server.clone(), has_failed.clone());
        simulation.add_virtual_node("server", disk.clone(), move |node| {
            let endpoint = endpoint(node, ClusterId(1), SimConfig::stream());
            let path = PathBuf::from(DIRECTORY);
            let mut config = DataConfig::new(path, ClusterId(1), ServerId(3), secret());
            if waits {
                let meta = Address::parse("sim://meta").unwrap();
                config.meta = vec![endpoint.endpoint().lookup(&meta).unwrap()];
            }
            config.witness = is_witness.then_some(WitnessConfig { lease: LEASE });
            let (world, place, failed) = (node.world().clone(), place.clone(), failed.clone());
            place.borrow_mut().take();
            node.world().spawn(async move {
                match DataServer::start(&world, endpoint, config).await {
                    Ok(started) => *place.borrow_mut() = Some(started),
                    Err(_) => failed.set(true),
                }
            });
        });
        let made: Place<Vec<Connection>> = Place::default();
        let out = made.clone();
        simulation.add_virtual_node("client", VirtualDisk::new(0), move |node| {
            let endpoint = endpoint(node, ClusterId(1), SimConfig::stream());
            let address = Address::parse("sim://server").unwrap();
            let peer = endpoint.endpoint().lookup(&address).unwrap();
            let connections = callers().into_iter().map(|member| {
                let proof = member.map(|member| Proof { secret: secret(), member });
                let options =
                    Options { limit: Duration::from_secs(5), proof, ..Options::default() };
                Connection::new(node.world(), &endpoint, peer, options)
            });
            *out.borrow_mut() = Some(connections.collect());
        });
        let callers = made.take().expect("the node has booted");
        Site { simulation, disk, server, has_failed, callers }
    }

    fn cast(&mut self, caller: usize, ballot: Ballot) -> Result<Answer, CallError> {
        let connection = self.callers[caller].clone();
        let asked = async move {
            let mut body = Vec::new();
            encode(&ballot, &mut body);
            let reply = connection.call_free(Service::Election, &body).await?;
            Ok(decode::<Answer>(reply.body()).expect("answers decode"))
        };
        self.simulation.block_on("client", LIMIT, asked).expect("it ends in time")
    }

    /// Whether the claim of a metadata server is granted.
    fn grants(&mut self, caller: usize, term: u64) -> bool {
        let server = caller as u32 + 1;
        self.cast(caller, Ballot::Claim { term, server }).unwrap().is_granted
    }

    fn restart(&mut self, kill: Kill) {
        self.simulation.kill("server", kill);
        self.server.borrow_mut().take();
        self.simulation.run_for(Duration::from_millis(10));
        self.simulation.restart("server");
    }

    fn strangers(&self) -> u64 {
        self.server.borrow().as_ref().expect("it has started").counters().strangers
    }
}

#[test]
fn a_witness_votes_before_it_has_joined_and_remembers_through_deaths() {
    let mut site = Site::new(true, true);
    assert!(site.grants(ONE, 1));
    assert!(!site.grants(TWO, 1) && !site.grants(TWO, 2), "it has promised");
    let members = Members::new(vec![1]).unwrap();
    let set = Set { term: 1, number: 0, members };
    let stored = site.cast(ONE, Ballot::Change { term: 1, server: 1, set: set.clone() }).unwrap();
    assert_eq!(stored, Answer { is_granted: true, term: 1, set: set.clone() });
    assert!(site.server.borrow().is_none(), "nobody has taken it in");
    for kill in [Kill::Process(Default::default()), Kill::Power] {
        site.restart(kill);
        let refused = site.cast(TWO, Ballot::Claim { term: 2, server: 2 }).unwrap();
        assert_eq!(refused, Answer { is_granted: false, term: 1, set: set.clone() });
        assert!(site.grants(ONE, 1), "it is renewed");
    }
    site.simulation.run_for(LEASE);
    assert!(site.grants(TWO, 2));
    assert!(!site.grants(ONE, 1), "an older term");
    assert!(!site.has_failed.get());
}

#[test]
fn a_server_that_has_started_votes_as_well_and_ends_tidily() {
    let mut site = Site::new(false, true);
    assert!(site.grants(ONE, 7));
    assert!(site.simulation.run_until(LIMIT, |_| site.server.borrow().is_some()));
    assert!(!site.grants(TWO, 8) && site.grants(ONE, 7));
    let released = site.cast(ONE, Ballot::Release { term: 7, server: 1 }).unwrap();
    assert!(released.is_granted && site.grants(TWO, 8));
    let stopping = site.server.borrow().clone().unwrap();
    let stopped = site.simulation.block_on("server", LIMIT, async move { stopping.stop().await });
    stopped.unwrap().unwrap();
    let late = site.cast(ONE, Ballot::Claim { term: 9, server: 1 });
    assert_eq!(late, Err(CallError::TimedOut), "a server that stops does not vote");
}

#[test]
fn only_the_metadata_server_itself_casts_its_ballots() {
    for waits in [true, false] {
        let mut site = Site::new(waits, true);
        if !waits {
            assert!(site.simulation.run_until(LIMIT, |_| site.server.borrow().is_some()));
        }
        for (caller, server) in [(TWO, 1), (DATA, 1), (NOBODY, 1), (NOBODY, 0)] {
            let refused = site.cast(caller, Ballot::Claim { term: 5, server });
            assert_eq!(refused, Err(CallError::Unproven), "caller {caller}, server {server}");
        }
        if !waits {
            assert_eq!(site.strangers(), 4);
        }
        assert!(site.grants(TWO, 1), "nothing was granted to them");
        assert!(site.disk.bytes(&PathBuf::from(DIRECTORY).join("vote")).is_some());
    }
}

#[test]
fn a_data_server_that_is_no_witness_does_not_vote() {
    let mut site = Site::new(false, false);
    let refused = site.cast(ONE, Ballot::Claim { term: 1, server: 1 });
    assert_eq!(refused, Err(CallError::Malformed));
    assert_eq!(site.disk.bytes(&PathBuf::from(DIRECTORY).join("vote")), None);
}
