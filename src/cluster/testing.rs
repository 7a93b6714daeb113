//! What the tests of these threads share: a place where time passes only while somebody waits, and a member that
//! stands there.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::member::{Member, Options};
use super::role::Terms;
use crate::base::{Millis, Nanos};
use crate::etcd::{Answer, Ask, Etcd, Trouble, Watching};
use crate::store::etcd::{Bell, Place};

/// A place where time passes only while somebody waits, and by what a test says.
#[derive(Default)]
pub(super) struct TestPlace {
    now_ns: AtomicU64,
    waits: Mutex<Vec<Duration>>,
}

impl TestPlace {
    /// Later, by so much.
    pub(super) fn pass(&self, time: Duration) {
        let ns = time.as_nanos() as u64;
        self.now_ns.fetch_add(ns, Ordering::SeqCst);
    }

    /// How long was waited each time, since this was last asked.
    pub(super) fn take_waits(&self) -> Vec<Duration> {
        std::mem::take(&mut *self.waits.lock().unwrap())
    }
}

impl Place for TestPlace {
    fn now(&self) -> Nanos {
        Nanos(self.now_ns.load(Ordering::SeqCst))
    }

    fn wake(&self) {}

    fn spawn(&self, _: &'static str, _: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        Ok(())
    }

    fn wait(&self, _: &Arc<Bell>, _: u64, most: Duration) {
        self.waits.lock().unwrap().push(most);
        self.pass(most);
    }

    fn etcd(&self, _: usize) -> Box<dyn Etcd + Send> {
        Box::new(Nobody)
    }

    fn watch(&self, _: usize) -> Box<dyn Watching + Send> {
        panic!("it is given one")
    }
}

/// For threads that are not begun here.
struct Nobody;

impl Etcd for Nobody {
    fn call(&mut self, _: &Ask, _: Duration) -> Result<Answer, Trouble> {
        panic!("there are no threads")
    }
}

/// What a member of the tests is set with.
pub(super) fn options() -> Options {
    Options {
        cluster: "test".to_owned(),
        shard: crate::shard::Shard::WHOLE,
        terms: Terms {
            ttl_s: 5,
            margin: Millis(500),
        },
        advertise: String::new(),
        advertise_http: String::new(),
        batch_bytes: 1 << 10,
        trim_bytes: 32 << 20,
        quota_bytes: 1_000_000,
        compacts: true,
        nonce: 1,
    }
}

/// A member, and where it stands. The first thousand seconds have passed.
pub(super) fn member(options: Options) -> (Arc<Member>, Arc<TestPlace>) {
    let place = Arc::new(TestPlace::default());
    place.pass(Duration::from_secs(1_000));
    let there: Arc<dyn Place> = place.clone();
    (Member::new(options, there), place)
}
