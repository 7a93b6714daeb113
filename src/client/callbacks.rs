//! Callbacks of grants that were lost: one after the other, on a thread that is there only meanwhile.
//!
//! However many guards are lost at once, there is one such thread. Where none can be started, the renewal
//! thread calls them, with none of our locks taken: better there than never. A callback that panics takes
//! nothing with it but itself.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use super::error::Lost;
use super::locked;
use super::poller::Poller;

/// What is called when a grant is lost.
pub(super) type Callback = Box<dyn FnOnce(Lost) + Send>;

/// The callbacks of one client whose time has come. There are never more than its guards were given.
#[derive(Default)]
pub(super) struct Calls {
    queue: Mutex<Queue>,
    /// Wakes the renewal thread.
    poller: OnceLock<Arc<Poller>>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Callback, Lost)>,
    /// Somebody is calling them, and will see what is added.
    is_served: bool,
}

impl Calls {
    /// The renewal thread is there from now on.
    pub(super) fn set_poller(&self, poller: &Arc<Poller>) {
        let _ = self.poller.set(Arc::clone(poller)); // there is only one
    }

    /// Has these called soon, on another thread: never here, where locks may be taken.
    pub(super) fn add(self: &Arc<Self>, callbacks: Vec<Callback>, why: Lost) {
        let theirs = Arc::clone(self);
        self.add_to(callbacks, why, || {
            let thread = thread::Builder::new().name("latch-lost".to_owned());
            thread.spawn(move || theirs.serve()).map(drop)
        });
    }

    fn add_to(
        &self,
        callbacks: Vec<Callback>,
        why: Lost,
        start_thread: impl FnOnce() -> io::Result<()>,
    ) {
        if callbacks.is_empty() {
            return;
        }
        let mut queue = locked(&self.queue);
        queue
            .waiting
            .extend(callbacks.into_iter().map(|it| (it, why)));
        if queue.is_served {
            return;
        }
        queue.is_served = true;
        drop(queue);
        if start_thread().is_err() {
            locked(&self.queue).is_served = false;
            if let Some(poller) = self.poller.get() {
                poller.wake();
            }
        }
    }

    /// Calls those for which no thread could be started. The renewal thread does, with no lock taken.
    pub(super) fn catch_up(&self) {
        let mut queue = locked(&self.queue);
        if queue.is_served || queue.waiting.is_empty() {
            return;
        }
        queue.is_served = true;
        drop(queue);
        self.serve();
    }

    fn serve(&self) {
        loop {
            let mut queue = locked(&self.queue);
            let Some((callback, why)) = queue.waiting.pop_front() else {
                queue.is_served = false;
                return;
            };
            drop(queue);
            // The panic was printed when it happened.
            let _ = catch_unwind(AssertUnwindSafe(move || callback(why)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn without_a_thread_they_are_called_by_whoever_catches_up() {
        let calls = Calls::default();
        let (tell, told) = mpsc::channel();
        for number in 0..3 {
            let tell = tell.clone();
            let callback = move |why| {
                assert_ne!(number, 1, "on purpose");
                tell.send((number, why)).unwrap();
            };
            calls.add_to(vec![Box::new(callback)], Lost::Broken, || {
                Err(io::ErrorKind::WouldBlock.into())
            });
        }
        assert!(told.try_recv().is_err(), "not by whoever found the loss");
        calls.catch_up();
        assert_eq!(
            told.try_iter().collect::<Vec<_>>(),
            [(0, Lost::Broken), (2, Lost::Broken)]
        );
        calls.catch_up();
        assert!(told.try_recv().is_err(), "each of them once");
    }

    #[test]
    fn one_thread_serves_them_all() {
        let calls = Arc::new(Calls::default());
        let (go, wait) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let first = tell.clone();
        let blocks = move |_| {
            let _ = wait.recv();
            first.send(thread::current().id()).unwrap();
        };
        calls.add(vec![Box::new(blocks)], Lost::Expired);
        let second = move |_| tell.send(thread::current().id()).unwrap();
        calls.add_to(vec![Box::new(second)], Lost::Expired, || {
            panic!("there is one already")
        });
        drop(go);
        assert_eq!(told.recv().unwrap(), told.recv().unwrap());
    }
}
