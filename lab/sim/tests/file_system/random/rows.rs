//! The rows of both metadata servers, compared at the end of a history.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_sim::cluster::METAS;
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::{Kill, Simulation};
use ropewalk_store::superblock::{Role, hold};
use ropewalk_store::{JournaledConfig, JournaledStore, KeyRange};

use super::Run;

/// The last record, and all rows as of it.
type Rows = (u64, BTreeMap<Vec<u8>, Vec<u8>>);

/// Reads the store on a disk, as a node that does nothing else.
fn read(simulation: &mut Simulation, name: &str, disk: VirtualDisk) -> Rows {
    let result: Rc<RefCell<Option<Rows>>> = Rc::default();
    let place = result.clone();
    simulation.add_virtual_node(name, disk, move |node| {
        let (world, place) = (node.world().clone(), place.clone());
        node.world().spawn(async move {
            let path = Path::new("/meta");
            let held = hold(&*world.disk(), path, Role::Metadata, 7).expect("nobody uses it");
            let boot = held.as_ref().expect("it is a store").boot;
            let config = JournaledConfig::default();
            let found = JournaledStore::find(&world, path, boot, config, false).await;
            let found = found.expect("it can be read");
            let rows = found.scan(KeyRange::all(), usize::MAX).expect("it can be read");
            let rows = rows.into_iter().map(|(key, value)| (key, value.to_vec())).collect();
            *place.borrow_mut() = Some((found.position().0, rows));
        });
    });
    let is_read = simulation.run_until(Duration::from_secs(5), |_| result.borrow().is_some());
    assert!(is_read, "{name} cannot be read");
    result.borrow_mut().take().expect("it is there")
}

impl Run<'_> {
    /// Once one follows the other and nobody changes anything, both have the same rows.
    pub(super) fn check_rows(&mut self) {
        self.cluster.await_start(self.simulation);
        let cluster = &self.cluster;
        let follows = |_: &Simulation| {
            let active = cluster.active().and_then(|number| cluster.member(number));
            active.is_some_and(|it| it.has_standby())
        };
        let has_standby = self.simulation.run_until(Duration::from_secs(60), follows);
        assert!(has_standby, "no standby: {:#?}", cluster.logged());
        // Clients renew their sessions, and servers their rows, all the time: both end at one moment.
        for client in 0..cluster.client_count() {
            let name = cluster.client_name(client).to_owned();
            cluster.kill(self.simulation, &name, Kill::Process(Duration::ZERO));
        }
        self.simulation.run_for(Duration::from_millis(200));
        for name in METAS {
            cluster.kill(self.simulation, name, Kill::Process(Duration::ZERO));
        }
        let disks = [0, 1].map(|number| cluster.member_disk(number).copy());
        let [first, second] = disks;
        let first = read(self.simulation, "reader0", first);
        let second = read(self.simulation, "reader1", second);
        assert_eq!(first.0, second.0, "nothing happened for a while");
        let differ = first.1.iter().filter(|(key, value)| second.1.get(*key) != Some(value));
        let differ: Vec<_> = differ.map(|(key, _)| key.clone()).collect();
        assert!(differ.is_empty() && first.1.len() == second.1.len(), "{differ:?}");
    }
}
