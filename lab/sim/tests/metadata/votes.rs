//! A voter's file under power cuts and kill -9 at arbitrary moments.
//!
//! One seed is one history: several lives of a voter on one virtual disk. In each life servers send ballots, some of which they
//! give up, and the life ends at a random call to the disk. Checked over all lives: no term is granted to two servers, the set
//! and the term never go back, and the number that was noted beside them stays.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::disk::Disk;
use ropewalk_base::random::Random;
use ropewalk_election::{Answer, Ballot, Record, Set, VoteError, VoterKeeper, record};
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::seeds;

use crate::store_life::{Life, STORE};

const LIVES: u64 = 8;
const LEASE: Duration = Duration::from_millis(50);

/// Term and set of an answer.
type Known = (u64, Option<Set>);

/// The voter's answers so far.
#[derive(Default)]
struct Said {
    granted: BTreeMap<u64, u32>,
    newest: Known,
    whole: u64,
    answers: u64,
    broken: Option<String>,
}

impl Said {
    /// Takes an answer. `before` was known when the ballot was sent.
    fn answered(&mut self, ballot: &Ballot, answer: Answer, before: Known) {
        self.answers += 1;
        let claimed = match ballot {
            Ballot::Claim { term, server } | Ballot::Change { term, server, .. } => {
                Some((*term, *server))
            }
            Ballot::Release { .. } | Ballot::Ask { .. } => None,
        };
        if let Some((term, server)) = claimed.filter(|_| answer.is_granted) {
            let first = *self.granted.entry(term).or_insert(server);
            if first != server {
                self.broken = Some(format!("term {term} is granted to {first} and {server}"));
            }
        }
        let (term, set) = (answer.term, Some(answer.set));
        if term < before.0 || set < before.1 {
            self.broken = Some(format!("{term} and {set:?} after {before:?}"));
        }
        let newest = &mut self.newest;
        *newest = (newest.0.max(term), newest.1.take().max(set));
    }
}

/// Opens the voter in a life; None if the disk stops.
fn open(life: &mut Life) -> Option<Result<Rc<VoterKeeper>, VoteError>> {
    let opened = Rc::new(RefCell::new(None));
    let (out, world) = (opened.clone(), life.world.clone());
    life.executor.spawn(async move {
        let keeper = VoterKeeper::open(&world, PathBuf::from(STORE), LEASE, Record::fresh()).await;
        *out.borrow_mut() = Some(keeper);
    });
    life.run(|| opened.borrow().is_some());
    opened.take()
}

/// A ballot of a server that does not care what the others do.
fn some_ballot(random: &mut Random, known: u64) -> Ballot {
    let (term, server) = ((known + random.below(3)).max(1), 1 + random.below(2) as u32);
    match random.below(5) {
        0 => Ballot::Release { term, server },
        1 | 2 => {
            let members = if random.below(2) == 0 { vec![1, 2] } else { vec![server] };
            let set = Set { term, number: random.below(4), members: members.into_iter().collect() };
            Ballot::Change { term, server, set }
        }
        _ => Ballot::Claim { term, server },
    }
}

/// Starts some servers that send ballots, and a server that notes eras.
fn ask(life: &Life, keeper: &Rc<VoterKeeper>, said: &Rc<RefCell<Said>>, random: &mut Random) {
    for _ in 0..3 {
        let (world, keeper, said) = (life.world.clone(), keeper.clone(), said.clone());
        let mut random = random.fork();
        life.executor.spawn(async move {
            for _ in 0..15 {
                let ballot = some_ballot(&mut random, keeper.record().term);
                let patience = Duration::from_millis(1 + random.below(100));
                let before = said.borrow().newest.clone();
                let answer = world.timeout(patience, keeper.answer(&ballot)).await;
                match answer {
                    Some(Ok(answer)) => said.borrow_mut().answered(&ballot, answer, before),
                    Some(Err(_)) => return,
                    None => {}
                }
                world.sleep(Duration::from_millis(random.below(40))).await;
            }
        });
    }
    let (world, keeper, said) = (life.world.clone(), keeper.clone(), said.clone());
    life.executor.spawn(async move {
        for _ in 0..3 {
            let era = keeper.whole().max(said.borrow().whole) + 1;
            if keeper.note_whole(era).await.is_err() {
                return;
            }
            said.borrow_mut().whole = era;
            world.sleep(Duration::from_millis(30)).await;
        }
    });
}

/// A history; an error names what was forgotten.
fn history(seed: u64, skip_sync: bool) -> Result<u64, String> {
    let mut random = Random::from_seed(seed);
    let disk = VirtualDisk::new(random.next_u64());
    disk.create_directory(Path::new(STORE)).expect("the disk is new");
    disk.sync_directory(Path::new("/")).expect("the disk is new");
    disk.skip_sync(skip_sync);
    let said = Rc::new(RefCell::new(Said::default()));
    for _ in 0..LIVES {
        let mut life = Life::new(&disk, &mut random);
        disk.halt_after(1 + random.below(60));
        if random.below(4) == 0 {
            disk.fail_sync(1 + random.below(20));
        }
        match open(&mut life) {
            Some(Ok(keeper)) => {
                if keeper.whole() < said.borrow().whole {
                    return Err(format!("the number {} was noted", said.borrow().whole));
                }
                ask(&life, &keeper, &said, &mut random);
                life.run(|| disk.is_halted());
            }
            Some(Err(VoteError::Io { .. })) | None => {}
            Some(Err(error)) => return Err(error.to_string()),
        }
        drop(life);
        if let Some(broken) = said.borrow_mut().broken.take() {
            return Err(broken);
        }
        match random.below(2) {
            0 => disk.survive_process_death(),
            _ => disk.crash(&mut random),
        }
    }
    let answers = said.borrow().answers;
    Ok(answers)
}

#[test]
fn no_granted_answer_is_forgotten_over_1000_histories() {
    let (mut histories, mut answers) = (0, 0);
    for seed in seeds(0, 1000) {
        match history(seed, false) {
            Ok(count) => answers += count,
            Err(error) => panic!("ROPEWALK_SEED={seed}: {error}"),
        }
        histories += 1;
    }
    assert!(answers > 20 * histories, "only {answers} answers: the test shows little");
}

#[test]
fn a_voter_that_answers_before_its_sync_is_found_out() {
    let found = (0..50).filter(|seed| history(*seed, true).is_err()).count();
    assert!(found >= 20, "only {found} of 50 histories noticed the planted bug");
}

/// A keeper on a disk that works, and its life.
fn begin(disk: &VirtualDisk) -> (Life, Rc<VoterKeeper>) {
    let mut life = Life::new(disk, &mut Random::from_seed(7));
    let keeper = open(&mut life).expect("the disk works").expect("the voter starts");
    (life, keeper)
}

fn new_disk() -> VirtualDisk {
    let disk = VirtualDisk::new(3);
    disk.create_directory(Path::new(STORE)).expect("the disk is new");
    disk.sync_directory(Path::new("/")).expect("the disk is new");
    disk
}

/// Runs a future in a life.
fn wait<T: 'static>(life: &mut Life, future: impl Future<Output = T> + 'static) -> T {
    let done = Rc::new(RefCell::new(None));
    let out = done.clone();
    life.executor.spawn(async move {
        *out.borrow_mut() = Some(future.await);
    });
    life.run(|| done.borrow().is_some());
    done.take().expect("it ends")
}

fn answer(life: &mut Life, keeper: &Rc<VoterKeeper>, ballot: Ballot) -> Result<Answer, VoteError> {
    let keeper = keeper.clone();
    wait(life, async move { keeper.answer(&ballot).await })
}

#[test]
fn a_renewal_waits_until_the_grant_before_it_is_stored() {
    let disk = new_disk();
    let (mut life, keeper) = begin(&disk);
    assert!(!record::has_record(&disk, Path::new(STORE)).unwrap(), "a start writes nothing");
    let stored = Rc::new(Cell::new(0));
    // The first one is given up at once, and stored all the same.
    let first = keeper.clone();
    let world = life.world.clone();
    life.executor.spawn(async move {
        let ballot = Ballot::Claim { term: 1, server: 1 };
        let _ = world.timeout(Duration::ZERO, first.answer(&ballot)).await;
    });
    while !life.executor.run_one() {}
    for _ in 0..3 {
        let (keeper, stored, disk) = (keeper.clone(), stored.clone(), disk.clone());
        life.executor.spawn(async move {
            let renewal = Ballot::Claim { term: 1, server: 1 };
            assert!(keeper.answer(&renewal).await.unwrap().is_granted);
            assert!(record::has_record(&disk, Path::new(STORE)).unwrap(), "it is stored");
            assert_eq!(keeper.record().term, 1);
            stored.set(stored.get() + 1);
        });
    }
    life.run(|| stored.get() == 3);
    assert_eq!(stored.get(), 3);
}

#[test]
fn after_a_failed_write_nothing_is_answered_until_a_restart() {
    let disk = new_disk();
    let (mut life, keeper) = begin(&disk);
    let claim = |term| Ballot::Claim { term, server: 1 };
    assert!(answer(&mut life, &keeper, claim(1)).unwrap().is_granted);
    disk.fail_sync(1);
    assert!(matches!(answer(&mut life, &keeper, claim(2)), Err(VoteError::Io { .. })));
    for ballot in [claim(1), claim(2), Ballot::Release { term: 1, server: 1 }] {
        assert!(matches!(answer(&mut life, &keeper, ballot), Err(VoteError::Failed { .. })));
    }
    let noting = keeper.clone();
    let noted = wait(&mut life, async move { noting.note_whole(9).await });
    assert!(matches!(noted, Err(VoteError::Failed { .. })));
    assert_eq!((keeper.record().term, keeper.whole()), (1, 0), "what is durable");
    drop(life);
    disk.survive_process_death();
    let (mut life, keeper) = begin(&disk);
    assert!(answer(&mut life, &keeper, claim(2)).unwrap().is_granted);
    let noting = keeper.clone();
    wait(&mut life, async move { noting.note_whole(9).await }).unwrap();
    drop(life);
    disk.crash(&mut Random::from_seed(1));
    let (_life, keeper) = begin(&disk);
    assert_eq!((keeper.record().term, keeper.record().server, keeper.whole()), (2, 1, 9));
}

#[test]
fn a_file_that_is_damaged_in_both_places_is_an_error_that_says_what_to_do() {
    let disk = new_disk();
    let (mut life, keeper) = begin(&disk);
    answer(&mut life, &keeper, Ballot::Claim { term: 1, server: 1 }).unwrap();
    drop(life);
    disk.survive_process_death();
    let path = Path::new(STORE).join("vote");
    disk.flip_bit(&path, 20, 0);
    let (life, keeper) = begin(&disk);
    assert_eq!(keeper.record().term, 1, "the second copy is whole");
    drop(life);
    disk.survive_process_death();
    disk.flip_bit(&path, 20, 0);
    disk.flip_bit(&path, 512 + 20, 0);
    let mut life = Life::new(&disk, &mut Random::from_seed(7));
    let Some(Err(error)) = open(&mut life) else { panic!("it is damaged") };
    assert!(error.to_string().contains("/store/vote is damaged: restore it"), "{error}");
}
