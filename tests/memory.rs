//! Memory: nothing is kept of those who went through a queue, and what a client sends is kept once.
//!
//! Counts every byte that is allocated and not freed, on the thread that runs the test, so each test
//! has a count of its own. The server runs over pipes: the same turns in every run, the same bytes.

#![allow(unsafe_code, reason = "an allocator cannot be written without")]
#![allow(
    clippy::unwrap_used,
    reason = "a test helper that fails has to fail the test"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;

use latchd::base::{ConnId, Millis, Nanos};
use latchd::engine::{Engine, Origin, Rules};
use latchd::pipe::{Peer, Pipe, pipe};
use latchd::server::{Server, Settings};

struct Counting;

thread_local! {
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
}

fn note(bytes: isize) {
    LIVE_BYTES.set(LIVE_BYTES.get() + bytes);
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        note(-(layout.size() as isize));
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size as isize - layout.size() as isize);
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A server, its clients, and the time.
struct World {
    server: Server<Pipe>,
    clients: Vec<(ConnId, Peer)>,
    now: Nanos,
}

impl World {
    fn new() -> Self {
        let origin = Origin {
            fence: 0,
            seed: [1, 2],
            salt_key: [3, 4, 5, 6],
        };
        Self {
            server: Server::new(Settings::default(), Engine::new(Rules::default(), origin)),
            clients: Vec::new(),
            now: Nanos(1),
        }
    }

    fn connect(&mut self) -> usize {
        let client = self.new_client();
        self.clients.push(client);
        self.clients.len() - 1
    }

    fn new_client(&mut self) -> (ConnId, Peer) {
        let (here, peer) = pipe(0);
        (self.server.accept(self.now, here).unwrap(), peer)
    }

    fn say(&mut self, who: usize, frames: &[u8]) {
        let (id, peer) = &self.clients[who];
        peer.send(frames);
        peer.arrive(usize::MAX);
        self.server.readable(&|| self.now, *id);
        self.rest();
    }

    /// What was said to it since the last time.
    fn read(&self, who: usize) -> String {
        String::from_utf8(self.clients[who].1.receive()).unwrap()
    }

    /// The token of a grant that has come.
    fn granted(&self, who: usize) -> String {
        let answer = self.read(who);
        let Some(grant) = answer.strip_prefix("ok ") else {
            panic!("{answer:?}");
        };
        grant[..32].to_owned()
    }

    /// It hangs up, and somebody else takes its number.
    fn replace(&mut self, who: usize) {
        let newcomer = self.new_client();
        let (id, peer) = std::mem::replace(&mut self.clients[who], newcomer);
        peer.reset();
        self.server.hang_up(self.now, id);
        self.rest();
    }

    fn pass(&mut self, span: Millis) {
        self.now = self.now.after(span);
        self.rest();
    }

    /// Turns until nothing is due.
    fn rest(&mut self) {
        loop {
            self.server.finish_turn(&|| self.now);
            let next = self.server.next_deadline();
            if next.is_none_or(|next| next > self.now) {
                return;
            }
        }
    }
}

/// A queue that is never empty, which waiters leave in every way there is: granted at its head, out
/// of time in its middle, with their connection. They come again at its end, and a queue of the same
/// length takes the same memory.
#[test]
fn a_queue_keeps_nothing_of_those_who_went_through_it() {
    const WAITERS: usize = 40;
    const JOIN: [&[u8]; 4] = [
        b"l\njob\n600 600\n",
        b"e\njob\n600\n",
        b"l\njob\n1\n",
        b"l\njob\n600\n",
    ];
    let join = |world: &mut World, who: usize| {
        world.say(who, JOIN[who % 4]);
        let said = world.read(who);
        assert_eq!(said, if who % 4 == 1 { "queued\n" } else { "" });
    };
    let mut world = World::new();
    world.connect();
    world.say(0, JOIN[0]);
    let mut token = world.granted(0);
    for who in 1..=WAITERS {
        world.connect();
        join(&mut world, who);
    }
    // The first of those who stay until they are granted is the holder.
    let mut staying: VecDeque<usize> = (0..=WAITERS).filter(|who| who % 4 < 2).collect();
    let mut round = |world: &mut World| {
        world.pass(Millis::from_secs(1));
        for who in (0..=WAITERS).filter(|who| who % 4 >= 2) {
            if who % 4 == 2 {
                assert_eq!(world.read(who), "timeout\n");
            } else {
                world.replace(who);
            }
            join(world, who);
        }
        for _ in 1..staying.len() {
            world.say(staying[0], format!("r\njob\n{token}\n").as_bytes());
            assert_eq!(world.read(staying[0]), "ok\n");
            join(world, staying[0]);
            staying.rotate_left(1);
            if staying[0] % 4 == 1 {
                world.say(staying[0], b"w\njob\n0\n");
            }
            token = world.granted(staying[0]);
        }
    };
    for _ in 0..50 {
        round(&mut world);
    }
    let before = LIVE_BYTES.get();
    for _ in 0..500 {
        round(&mut world);
    }
    let grown = LIVE_BYTES.get() - before;
    assert_eq!(grown, 0, "bytes after {} more waiters", 500 * WAITERS);
}

/// Bytes kept for each byte that a client sends, whatever it asks to be kept.
#[test]
fn what_a_client_sends_is_kept_about_once() {
    const KEPT_MAX: usize = 3;
    const FRAMES: usize = 2_000;
    let frame_of: [fn(String) -> String; 9] = [
        |text| format!("rpush\nq\n{text}\n"),
        |text| format!("rpush\n{text}\nv\n"),
        |text| format!("kset\n{text}\n{text}\n"),
        |text| format!("incr\n{text}\n1\n"),
        |text| format!("l\n{text}\n0\n"),
        |text| format!("listen\n{text}\n\n"),
        |text| format!("listen\na\n{text}\n"),
        |text| format!("watch\n{text}\n\n"),
        |text| format!("observe\n{text}\n\n"),
    ];
    for frame_of in frame_of {
        let mut world = World::new();
        let who = world.connect();
        let before = LIVE_BYTES.get();
        let mut sent = 0;
        for nth in 0..FRAMES {
            let frame = frame_of(format!("{nth:0>250}"));
            sent += frame.len();
            world.say(who, frame.as_bytes());
            assert!(world.read(who).starts_with("ok"));
        }
        let kept = (LIVE_BYTES.get() - before) as usize;
        let verb = frame_of(String::new());
        assert!(
            kept < KEPT_MAX * sent,
            "{kept} bytes are kept of {sent}: {verb:?}"
        );
        assert!(kept > sent / 4, "{verb:?} keeps nothing");
    }
}
