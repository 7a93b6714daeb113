//! Callbacks of grants that were lost: one after the other, on a thread that is there only meanwhile.
//!
//! However many guards are lost at once, there is one such thread; unless a callback takes so long that others wait for it:
//! then there is one more, up to a bound. Where none can be started, the renewal thread calls them, with none of our locks
//! taken: better there than never. A callback that panics takes nothing with it but itself.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use super::clock;
use super::error::Lost;
use super::locked;
use super::sys::Poller;
use crate::base::Nanos;

/// How long a callback may take before the next one is called beside it.
const HELP_AFTER: Duration = Duration::from_secs(1);

/// Most threads that call at the same time. If all of them hang, the others wait.
const CALLERS_MAX: usize = 8;

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
    /// So many threads are calling them, and will see what is added.
    callers: usize,
    /// When the last one of them was begun.
    begun_at: Nanos,
}

impl Queue {
    /// When another thread is to call those that wait, if nobody is done before that.
    fn help_at(&self) -> Nanos {
        match self.callers {
            1..CALLERS_MAX if !self.waiting.is_empty() => {
                Nanos(self.begun_at.0.saturating_add(clock::nanos(HELP_AFTER)))
            }
            _ => Nanos::NEVER,
        }
    }
}

impl Calls {
    /// The renewal thread is there from now on.
    pub(super) fn set_poller(&self, poller: &Arc<Poller>) {
        let _ = self.poller.set(Arc::clone(poller)); // there is only one
    }

    /// Has these called soon, on another thread: never here, where locks may be taken.
    pub(super) fn add(self: &Arc<Self>, callbacks: Vec<Callback>, why: Lost) {
        self.add_to(callbacks, why, || self.start_thread());
    }

    fn start_thread(self: &Arc<Self>) -> io::Result<()> {
        let theirs = Arc::clone(self);
        let thread = thread::Builder::new().name("latch-lost".to_owned());
        thread.spawn(move || theirs.serve()).map(drop)
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
        let is_served = queue.callers > 0;
        if !is_served {
            (queue.callers, queue.begun_at) = (1, clock::now());
        }
        drop(queue);
        if is_served || start_thread().is_err() {
            if !is_served {
                locked(&self.queue).callers -= 1;
            }
            // It looks after those that are not called in time.
            if let Some(poller) = self.poller.get() {
                poller.wake();
            }
        }
    }

    /// When [`catch_up`](Self::catch_up) is wanted next.
    pub(super) fn help_at(&self) -> Nanos {
        locked(&self.queue).help_at()
    }

    /// Calls those for which no thread could be started, with no lock taken, and has another thread call those that wait for
    /// one that takes long. The renewal thread does.
    pub(super) fn catch_up(self: &Arc<Self>) {
        let mut queue = locked(&self.queue);
        let is_nobody_there = queue.callers == 0 && !queue.waiting.is_empty();
        let now = clock::now();
        if !is_nobody_there && queue.help_at() > now {
            return;
        }
        queue.callers += 1;
        queue.begun_at = now;
        drop(queue);
        if is_nobody_there {
            self.serve();
        } else if self.start_thread().is_err() {
            locked(&self.queue).callers -= 1; // and it is tried again later
        }
    }

    fn serve(&self) {
        loop {
            let mut queue = locked(&self.queue);
            let Some((callback, why)) = queue.waiting.pop_front() else {
                queue.callers -= 1;
                return;
            };
            queue.begun_at = clock::now();
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
        let calls = Arc::new(Calls::default());
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

    #[test]
    fn help_comes_when_one_takes_long_and_not_for_ever_more() {
        let calls = Arc::new(Calls::default());
        let (go, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let (tell, told) = mpsc::channel();
        let count = CALLERS_MAX + 1;
        for number in 0..count {
            let (tell, wait) = (tell.clone(), Arc::clone(&wait));
            let blocks = move |_| {
                tell.send(number).unwrap();
                let _ = locked(&wait).recv();
            };
            calls.add(vec![Box::new(blocks)], Lost::Expired);
        }
        assert_eq!(told.recv(), Ok(0));
        for number in 1..CALLERS_MAX {
            let help_at = calls.help_at();
            assert!(help_at < Nanos::NEVER, "{number} waits");
            // As if that time were over.
            locked(&calls.queue).begun_at = Nanos(0);
            calls.catch_up();
            assert_eq!(told.recv(), Ok(number));
        }
        locked(&calls.queue).begun_at = Nanos(0);
        assert_eq!(calls.help_at(), Nanos::NEVER, "there are enough");
        calls.catch_up();
        assert!(told.try_recv().is_err());
        drop(go);
        assert_eq!(told.recv(), Ok(count - 1));
    }
}
