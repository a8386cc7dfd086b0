//! Pages that programs changed in the memory of a kernel, while another client wants the lease and the file
//! is truncated: all of it ends soon, and nobody loses the session.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use crate::programs::*;
use ropewalk_client::{
    Actor, AttributeChange, Caller, Client, Errno, File, How, Invalidate, OpenOptions, Path,
};
use ropewalk_sim::{Cluster, ClusterConfig, Simulation};

const PAGE: usize = 4096;
const PAGES: u64 = 64;
/// The time that a kernel takes from one page to the next one.
const STEP: Duration = Duration::from_micros(50);
/// All ends within so long; a lease that does not come back is taken much later.
const SOON: Duration = Duration::from_secs(1);
const WRITE_BACK: How = How {
    append: false,
    kill_privileges: false,
    actor: Actor { path: Path::WriteBack, ..Actor::OWN },
};

type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

/// A kernel with changed pages of one file. It writes them one by one when it has to forget the file.
#[derive(Clone)]
struct Kernel(Rc<Pages>);

struct Pages {
    client: Client,
    file: Rc<File>,
    changed: RefCell<BTreeMap<u64, Vec<u8>>>,
    /// Writes are held back while the size is set, as FUSE does.
    held: Cell<bool>,
    under_way: Cell<u32>,
    written: Cell<u32>,
}

impl Kernel {
    fn new(client: &Client, file: Rc<File>) -> Kernel {
        let changed = (0..PAGES).map(|page| (page, pattern(100 + page, PAGE))).collect();
        let pages = Pages {
            client: client.clone(),
            file,
            changed: RefCell::new(changed),
            held: Cell::new(false),
            under_way: Cell::new(0),
            written: Cell::new(0),
        };
        Kernel(Rc::new(pages))
    }

    async fn write_back(self) {
        let Pages { client, file, changed, held, under_way, written } = &*self.0;
        loop {
            // In a statement of its own: nothing stays borrowed.
            let first = changed.borrow_mut().pop_first();
            let Some((page, bytes)) = first else { return };
            while held.get() {
                client.world().sleep(STEP).await;
            }
            under_way.set(under_way.get() + 1);
            let buffer = client.pool().copy_of(&bytes).expect("memory");
            let offset = page * PAGE as u64;
            let done = client.write_for_kernel(file, offset, buffer, 0..PAGE, WRITE_BACK).await;
            assert_eq!(done, Ok(offset), "page {page}");
            under_way.set(under_way.get() - 1);
            written.set(written.get() + 1);
            client.world().sleep(STEP).await;
        }
    }

    /// `open(2)` with `O_TRUNC`.
    async fn open_anew(self) -> Result<File, Errno> {
        let options = OpenOptions { truncate: true, ..BOTH };
        let opened = open(&self.0.client, b"f", options).await;
        self.0.changed.borrow_mut().clear();
        opened
    }

    /// `ftruncate(2)`.
    async fn truncate(self, size: u64) -> Result<(), Errno> {
        let Pages { client, file, changed, held, under_way, .. } = &*self.0;
        held.set(true);
        while under_way.get() > 0 {
            client.world().sleep(STEP).await;
        }
        let change = AttributeChange { size: Some(size), ..AttributeChange::default() };
        let done = client.set_attributes(&Caller::root(), file.number(), change).await;
        changed.borrow_mut().retain(|page, _| page * (PAGE as u64) < size);
        held.set(false);
        done.map(drop)
    }
}

impl Invalidate for Kernel {
    fn inode(&self, _inode: u64) -> LocalFuture {
        Box::pin(self.clone().write_back())
    }

    fn pages(&self, _inode: u64, _begin: u64, _end: u64) -> LocalFuture {
        Box::pin(async {})
    }

    fn grown(&self, _inode: u64, _size: u64) -> LocalFuture {
        Box::pin(async {})
    }
}

/// A file that one client has changed in memory and that another one looks at: the kernel writes the
/// first pages back.
struct Scene {
    simulation: Simulation,
    cluster: Cluster,
    kernel: Kernel,
    look: Rc<RefCell<Option<Result<u64, Errno>>>>,
}

impl Scene {
    fn new() -> Scene {
        let mut simulation = Simulation::new(6);
        let config = ClusterConfig { clients: 2, ..ClusterConfig::default() };
        let cluster = Cluster::start(&mut simulation, config);
        let kernel = cluster.run(&mut simulation, 0, |client| async move {
            let file = create(&client, b"f").await;
            write(&client, &file, 0, &pattern(1, PAGES as usize * PAGE)).await.expect("written");
            client.sync(&file).await.expect("synced");
            let kernel = Kernel::new(&client, Rc::new(file));
            client.set_invalidate(Rc::new(kernel.clone()));
            kernel
        });
        let number = kernel.0.file.number();
        let look = cluster.spawn(&simulation, 1, |client| async move {
            client.attributes(number).await.map(|found| found.size)
        });
        let begun = simulation.run_until(SOON, |_| kernel.0.written.get() == 3);
        assert!(begun, "the lease is recalled");
        Scene { simulation, cluster, kernel, look }
    }

    /// Both end soon; the bytes of the file then.
    fn end(mut self, done: impl Fn() -> bool) -> Vec<u8> {
        let look = self.look.clone();
        let ended = self.simulation.run_until(SOON, |_| done() && look.borrow().is_some());
        assert!(ended, "done: {}, seen: {:?}", done(), look.borrow());
        look.take().expect("just seen").expect("attributes");
        let file = self.kernel.0.file.clone();
        self.cluster.run(&mut self.simulation, 0, |client| async move {
            client.sync(&file).await.expect("nothing is lost");
        });
        self.cluster.run(&mut self.simulation, 1, |client| async move {
            let file = open(&client, b"f", READ).await.expect("opened");
            read_all(&client, &file).await.expect("read")
        })
    }
}

#[test]
fn a_file_is_opened_anew_while_its_changed_pages_are_written_for_another_client() {
    for later in 0..40 {
        let mut scene = Scene::new();
        scene.simulation.run_for(Duration::from_micros(7 * later));
        let kernel = scene.kernel.clone();
        let opened = scene.cluster.spawn(&scene.simulation, 0, |_| kernel.open_anew());
        let done = opened.clone();
        let bytes = scene.end(move || done.borrow().is_some());
        opened.take().expect("it has ended").expect("opened");
        assert_eq!(bytes.len(), 0, "what was changed before does not come back");
    }
}

#[test]
fn a_file_is_truncated_while_its_changed_pages_are_written_for_another_client() {
    let size = PAGES / 2 * PAGE as u64;
    for later in 0..40 {
        let mut scene = Scene::new();
        scene.simulation.run_for(Duration::from_micros(7 * later));
        let kernel = scene.kernel.clone();
        let cut = scene.cluster.spawn(&scene.simulation, 0, |_| kernel.truncate(size));
        let done = cut.clone();
        let bytes = scene.end(move || done.borrow().is_some());
        assert_eq!(cut.take(), Some(Ok(())));
        let expected = (0..PAGES / 2).flat_map(|page| pattern(100 + page, PAGE));
        assert_same(&bytes, &expected.collect::<Vec<u8>>());
    }
}
