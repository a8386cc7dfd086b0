//! The faults of random histories.

use std::time::Duration;

use super::{Run, say};
use crate::programs::model::Model;
use ropewalk_sim::cluster::{META, METAS};
use ropewalk_sim::{Cut, Kill};
use ropewalk_wire::fs::map::Band;

impl Run<'_> {
    /// The power of one server fails; the others and the programs go on.
    pub(super) fn lone_power_loss(&mut self) {
        let server = self.any_server();
        let pause = Duration::from_micros(self.random.below(4_000_000));
        self.handles.iter().for_each(|handles| handles.borrow_mut().clear());
        let before = self.model.clone();
        let mut after = before.clone();
        if self.loses_nothing(&server) {
            say(self.simulation, || format!("{server} loses power, and others have all it had"));
            self.restart(&[server], Kill::Power, pause, &mut after);
            self.model = before;
            return;
        }
        self.restart(&[server], Kill::Power, pause, &mut after);
        self.model = after;
        self.recover(false);
        // The next syncs of the clients report their knowledge of this.
        self.model.server_died(self.cluster.client_count());
    }

    /// Whether each group of a data server has another member.
    fn loses_nothing(&self, server: &str) -> bool {
        let number = server.strip_prefix("data").and_then(|number| number.parse::<u32>().ok());
        let Some(number) = number.filter(|_| self.setting.mirrored) else { return false };
        let map = self.cluster.meta_if_up().and_then(|meta| meta.map());
        let Some(map) = map else { return false };
        let mirrored = map.bands(0).filter(|band| band.mirroring.is_some());
        let mut groups = mirrored.flat_map(Band::groups);
        groups.all(|(_, group)| group.servers != [number])
    }

    fn any_server(&mut self) -> String {
        let servers = self.cluster.servers();
        // The metadata server more often than it would by its share.
        let at = self.random.below(servers.len() as u64 + 1) as usize;
        servers.get(at).map_or(META, String::as_str).to_string()
    }

    /// The metadata server, or one of two.
    pub(super) fn any_meta(&mut self) -> String {
        let number =
            if self.setting.paired { self.random.below(METAS.len() as u64) as usize } else { 0 };
        METAS[number].to_owned()
    }

    /// Something that only two metadata servers survive: one of them stands still, or is cut off from some.
    fn fault_of_pair(&mut self) {
        let pause = Duration::from_micros(self.random.below(4_000_000));
        let meta = self.any_meta();
        let kind = self.random.below(3);
        say(self.simulation, || format!("fault {kind} of the pair, {meta} {pause:?}"));
        match kind {
            0 => {
                self.simulation.pause(&meta);
                self.simulation.run_for(pause);
                self.simulation.resume(&meta);
            }
            1 => {
                let other = METAS.into_iter().find(|it| *it != meta).expect("there are two");
                self.simulation.network().partition(&meta, other);
                self.simulation.run_for(pause);
                self.simulation.network().heal(&meta, other);
            }
            _ => {
                let servers = self.cluster.servers();
                let cut: Vec<&String> = servers.iter().filter(|it| **it != meta).collect();
                cut.iter().for_each(|it| self.simulation.network().partition(&meta, it));
                self.simulation.run_for(pause);
                cut.iter().for_each(|it| self.simulation.network().heal(&meta, it));
            }
        }
    }

    /// Something that members of groups survive: one of them stands still, or is cut off from the metadata server, from
    /// another one, or from all servers.
    fn fault_of_mirrors(&mut self) {
        let pause = Duration::from_micros(self.random.below(6_000_000));
        let servers = self.cluster.servers();
        let data: Vec<&String> = servers.iter().filter(|it| it.starts_with("data")).collect();
        let one = data[self.random.below(data.len() as u64) as usize].clone();
        let other = data[self.random.below(data.len() as u64) as usize].clone();
        let kind = self.random.below(4);
        say(self.simulation, || format!("fault {kind} of {one}, {other} {pause:?}"));
        let cut: Vec<String> = match kind {
            0 => {
                self.simulation.pause(&one);
                self.simulation.run_for(pause);
                return self.simulation.resume(&one);
            }
            1 => vec![self.any_meta()],
            2 => vec![other],
            _ => servers.clone(),
        };
        let cut: Vec<String> = cut.into_iter().filter(|it| *it != one).collect();
        cut.iter().for_each(|it| self.simulation.network().partition(&one, it));
        self.simulation.run_for(pause);
        cut.iter().for_each(|it| self.simulation.network().heal(&one, it));
    }

    /// Something that an operator or a clock does: a calendar jumps, a data server gets a new disk, or an older copy of its
    /// disk and then a new one.
    fn fault_of_hosts(&mut self) {
        let servers = self.cluster.servers();
        let one = servers[self.random.below(servers.len() as u64) as usize].clone();
        let kind = self.random.below(3);
        let data = one.strip_prefix("data").and_then(|number| number.parse::<u32>().ok());
        // A disk is given up only where others have all that it has.
        let Some(number) = data.filter(|_| kind > 0 && self.loses_nothing(&one)) else {
            let seconds = self.random.below(7200) as i64 - 3600;
            say(self.simulation, || format!("the calendar of {one} jumps by {seconds} s"));
            return self.simulation.jump_calendar(&one, seconds);
        };
        let pause = Duration::from_micros(self.random.below(4_000_000));
        self.cluster.kill(self.simulation, &one, Kill::Process(Duration::ZERO));
        // The older copy of a voter's file is a lie that nobody can see through.
        let now = self.simulation.now();
        // The metadata server has met a later start by then.
        let is_former = |at| kind == 2 && number != 1 && now.since(at) > Duration::from_secs(10);
        if let Some((older, _)) = self.older.get(&number).filter(|(_, at)| is_former(*at)) {
            say(self.simulation, || format!("{one} gets an older copy of its disk"));
            self.cluster.data_disk(number as usize - 1).restore(older);
            self.cluster.restart(self.simulation, &one);
            self.simulation.run_for(Duration::from_secs(3));
            if let Some(server) = self.cluster.data_if_up(number as usize - 1) {
                let refused = async move { server.refused().await.to_string() };
                let told = self.simulation.block_on(&one, Duration::from_secs(30), refused);
                let told = told.expect("an older copy is not noticed");
                assert!(told.contains("is an older copy"), "{told}");
            }
            self.cluster.kill(self.simulation, &one, Kill::Process(Duration::ZERO));
        }
        say(self.simulation, || format!("{one} gets a new disk, {pause:?}"));
        self.older.remove(&number);
        self.cluster.renew_disk(number);
        self.simulation.run_for(pause);
        self.cluster.restart(self.simulation, &one);
    }

    /// Something happens; true if the power of everything failed.
    pub(super) fn fault(&mut self, after: &mut Model) -> bool {
        let pause = Duration::from_micros(self.random.below(4_000_000));
        let client = self
            .cluster
            .client_name(self.random.below(self.cluster.client_count() as u64) as usize);
        let client = client.to_string();
        let server = self.any_server();
        let kind = self.random.below(if self.power { 8 } else { 7 });
        say(self.simulation, || format!("fault {kind} {server} {client} {pause:?}"));
        if self.setting.whole && self.random.below(3) == 0 {
            self.fault_of_hosts();
            return false;
        }
        if self.setting.paired && self.random.below(2) == 0 {
            self.fault_of_pair();
            return false;
        }
        if self.setting.mirrored && self.random.below(2) == 0 {
            self.fault_of_mirrors();
            return false;
        }
        match kind {
            0 | 1 => {
                self.simulation.network().cut(&server, &client, Cut::Both);
            }
            2 => {
                self.simulation.network().partition(&server, &client);
                self.simulation.run_for(pause);
                self.simulation.network().heal(&server, &client);
            }
            3 | 4 => self.restart(&[server], Kill::Process(pause / 1000), pause, after),
            5 => {
                let meta = self.any_meta();
                self.restart(&[meta], Kill::Process(Duration::ZERO), pause, after);
            }
            6 => {
                let servers = self.cluster.servers();
                self.restart(&servers, Kill::Process(pause / 1000), pause, after);
            }
            _ => {
                let mut everything = self.cluster.servers();
                let clients = 0..self.cluster.client_count();
                everything.extend(clients.map(|client| self.cluster.client_name(client).into()));
                self.restart(&everything, Kill::Power, pause, after);
                return true;
            }
        }
        false
    }

    pub(super) fn restart(
        &mut self,
        names: &[String],
        kill: Kill,
        pause: Duration,
        after: &mut Model,
    ) {
        if names.iter().any(|name| name.starts_with("client")) {
            self.handles.iter().for_each(|handles| handles.borrow_mut().clear());
        }
        for name in names {
            self.cluster.kill(self.simulation, name, kill);
            let number = name.strip_prefix("data").and_then(|number| number.parse::<u32>().ok());
            if let Some(number) = number.filter(|_| self.setting.whole) {
                let disk = self.cluster.data_disk(number as usize - 1).copy();
                self.older.insert(number, (disk, self.simulation.now()));
            }
        }
        self.simulation.run_for(pause);
        for name in names {
            self.cluster.restart(self.simulation, name);
        }
        // Mere deaths of processes lose nothing: no sync may say that they did.
        if matches!(kill, Kill::Power) {
            after.server_died(self.cluster.client_count());
        }
    }
}
