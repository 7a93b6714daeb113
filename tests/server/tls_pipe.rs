//! TLS over pipes: the shipped server with its sessions, cut, stalled and broken at every byte.
//!
//! Time is a number and the network moves when a seed says so, as in the simulator; what the simulator
//! checks of locks is checked there. Keys and signatures are as random as ever, but all have the same
//! lengths, so the same seed cuts at the same places and hears the same answers.

#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;

use fastrand::Rng;
use latch_sim::pipe::{ORIGIN, Peer, Pipe, pipe};
use latchd::access::Access;
use latchd::base::{ConnId, Millis, Nanos};
use latchd::engine::{Engine, Rules};
use latchd::server::{Door, Event, Host, Readiness, Server, Settings};
use latchd::tls::{Files, Keys, MaybeTls, SESSION_BYTES, Tls};
use latchd::wire::client::frame;
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion};

use crate::allocator::live_bytes;

/// Most turns that anything here may take.
const TURNS_MAX: u32 = 200_000;

/// What a client trusts, and what the server offers.
#[derive(Clone)]
struct Trust {
    keys: Keys,
    client: Arc<ClientConfig>,
}

impl Trust {
    fn new(version: &'static SupportedProtocolVersion) -> Self {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let cert = params.self_signed(&key).unwrap();
        let (cert_pem, key_pem) = (cert.pem(), key.serialize_pem());
        let files = Files {
            cert: cert_pem.as_bytes(),
            key: key_pem.as_bytes(),
            client_ca: None,
        };
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).unwrap();
        let mut client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.resumption = rustls::client::Resumption::disabled();
        Self {
            keys: Keys::read(files, 1_800_000_000).unwrap(),
            client: Arc::new(client),
        }
    }
}

/// A server and its clients.
struct World {
    server: Server<MaybeTls<Pipe>>,
    clients: Vec<Client>,
    trust: Trust,
    now: Nanos,
    reported: Vec<usize>,
}

struct Client {
    peer: Peer,
    id: Option<ConnId>,
    /// None speaks without TLS.
    session: Option<ClientConnection>,
    is_watched: bool,
    heard: Vec<u8>,
    /// How the end was told, if it was.
    ended: Option<End>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Announced,
    Truncated,
}

impl World {
    fn new(trust: &Trust) -> Self {
        Self::with_slots(trust, 0)
    }

    /// A server with this limit of connections; 0 is no limit.
    fn with_slots(trust: &Trust, connections_max: u32) -> Self {
        let settings = Settings {
            connections_max,
            ..Settings::default()
        };
        Self::with(trust, settings)
    }

    fn with(trust: &Trust, settings: Settings) -> Self {
        let engine = Engine::new(Rules::default(), ORIGIN);
        Self {
            server: Server::new(settings, engine),
            clients: Vec::new(),
            trust: trust.clone(),
            now: Nanos(1),
            reported: Vec::new(),
        }
    }

    fn connect(&mut self, is_encrypted: bool) -> usize {
        self.connect_to(Door::Line, is_encrypted)
    }

    fn connect_to(&mut self, door: Door, is_encrypted: bool) -> usize {
        let who = self.clients.len();
        let (here, peer) = pipe(who as u32, Host::User(1));
        let transport = if is_encrypted {
            let terms = self.trust.keys.terms(door);
            let memory = self.server.transport_memory();
            MaybeTls::Tls(Box::new(Tls::new(here, terms, memory)))
        } else {
            MaybeTls::Plain(here)
        };
        let session = is_encrypted.then(|| {
            let name = ServerName::try_from("localhost").unwrap();
            ClientConnection::new(Arc::clone(&self.trust.client), name).unwrap()
        });
        let id = self.server.accept_at(self.now, transport, door);
        self.clients.push(Client {
            peer,
            id,
            session,
            is_watched: false,
            heard: Vec::new(),
            ended: None,
        });
        self.pump(who);
        who
    }

    /// Puts on its way what a client has to send.
    fn pump(&mut self, who: usize) {
        let client = &mut self.clients[who];
        if let Some(session) = &mut client.session {
            let mut records = Vec::new();
            while session.wants_write() {
                session.write_tls(&mut records).unwrap();
            }
            client.peer.send(&records);
        }
    }

    fn say(&mut self, who: usize, bytes: &[u8]) {
        let client = &mut self.clients[who];
        match &mut client.session {
            None => client.peer.send(bytes),
            Some(session) => {
                session.set_buffer_limit(None);
                session.writer().write_all(bytes).unwrap();
            }
        }
        self.pump(who);
    }

    /// So many bytes arrive at the server.
    fn arrive(&mut self, who: usize, count: usize) -> usize {
        let arrived = self.clients[who].peer.arrive(count);
        if arrived > 0 {
            self.reported.push(who);
        }
        arrived
    }

    /// The client reads what there is.
    fn hear(&mut self, who: usize) {
        let client = &mut self.clients[who];
        let bytes = client.peer.receive();
        let is_over = client.peer.is_ended();
        match &mut client.session {
            None => client.heard.extend(bytes),
            Some(session) => {
                let mut rest = &bytes[..];
                while !rest.is_empty() && session.read_tls(&mut rest).unwrap() > 0 {
                    session.process_new_packets().expect("good records");
                    let mut plain = [0; 32 * 1024];
                    while let Ok(count @ 1..) = session.reader().read(&mut plain) {
                        client.heard.extend(&plain[..count]);
                    }
                }
                if is_over && client.ended.is_none() {
                    let _ = session.read_tls(&mut &b""[..]);
                    let _ = session.process_new_packets();
                    client.ended = match session.reader().read(&mut [0]) {
                        Ok(0) => Some(End::Announced),
                        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                            Some(End::Truncated)
                        }
                        other => panic!("{other:?} at the end"),
                    };
                }
            }
        }
        if client.is_watched {
            self.reported.push(who);
        }
        self.pump(who);
    }

    /// One turn with everything that happened since the last.
    fn turn(&mut self) {
        let mut events: Vec<Event> = Vec::new();
        for who in std::mem::take(&mut self.reported) {
            let client = &self.clients[who];
            let mut readiness = client.peer.readiness();
            readiness.writable &= client.is_watched;
            if let Some(conn) = client.id
                && readiness != Readiness::default()
                && !events.iter().any(|it| it.conn == conn)
            {
                events.push(Event { conn, readiness });
            }
        }
        let now = self.now;
        self.server.turn(&|| now, events.into_iter(), 0);
        self.server.engine().check();
        let mut changed = Vec::new();
        self.server
            .changed_interests(|id, _, wants_write| changed.push((id, wants_write)));
        for (id, wants_write) in changed {
            let of = |it: &Client| it.id == Some(id);
            if let Some(who) = self.clients.iter().position(of) {
                self.clients[who].is_watched = wants_write;
                if wants_write && self.clients[who].peer.readiness().writable {
                    self.reported.push(who);
                }
            }
        }
    }

    fn has_more(&self) -> bool {
        let next = self.server.next_deadline();
        !self.reported.is_empty() || next.is_some_and(|at| at <= self.now)
    }

    /// Until nothing moves any more: everything arrives, everybody reads.
    fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            let mut moved = self.has_more();
            self.turn();
            for who in 0..self.clients.len() {
                let before = self.clients[who].heard.len();
                self.hear(who);
                moved |= self.clients[who].heard.len() != before;
                moved |= self.arrive(who, usize::MAX) > 0;
            }
            if !moved && !self.has_more() {
                return;
            }
        }
        panic!("the server never comes to rest");
    }

    /// Everybody has left, and nothing of them is left.
    fn check_empty(&mut self) {
        self.settle();
        let holdings = self.server.holdings();
        assert_eq!(holdings.connections, 0);
        assert_eq!(holdings.engine.holders, 0);
        assert_eq!(self.server.transport_memory().bytes(), 0);
    }
}

/// What answers are, without what depends on who else asks: tokens and fences. Long values are said
/// in a few words.
fn plain_words(heard: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(heard);
    text.lines().map(plain_word_line).collect()
}

fn plain_word_line(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    if let ["ok", token, lease, ..] = words[..]
        && token.len() == 32
    {
        return format!("ok TOKEN {lease}");
    }
    let value = words.last().unwrap();
    let first = value.chars().next().unwrap_or(' ');
    if value.len() > 40 && value.chars().all(|it| it == first) {
        return format!("ok {} times {first}", value.len());
    }
    line.to_owned()
}

/// What a client asks, on keys of its own, so that it is answered the same whoever else is there.
fn script(rng: &mut Rng, who: usize) -> Vec<String> {
    let mut asked = Vec::new();
    for number in 0..rng.usize(1..30) {
        asked.push(match rng.u8(..8) {
            0 => format!("l k{who}.{number} 0"),
            1 => "ping _ _".to_owned(),
            2 => format!("incr c{who} 3"),
            3 => {
                let length = *rng
                    .choice(&[1, 100, 5_000, 16_383, 16_384, 16_385, 40_000, 65_536])
                    .unwrap();
                format!("kset v{who} {}", "x".repeat(length))
            }
            4 | 5 => format!("kget v{who} _"),
            6 => format!("l taken{who} 0"),
            _ => format!("nonsense k{who} 0"),
        });
    }
    asked
}

/// One run: what each client heard, and how many turns it took.
fn play(seed: u64, trust: &Trust, is_encrypted: bool) -> (Vec<Vec<String>>, u32) {
    let mut rng = Rng::with_seed(seed);
    let mut world = World::new(trust);
    let count = rng.usize(1..4);
    let scripts: Vec<_> = (0..count).map(|who| script(&mut rng, who)).collect();
    for script in &scripts {
        let who = world.connect(is_encrypted);
        let bytes: String = script.iter().map(|it| frame(it)).collect();
        world.say(who, bytes.as_bytes());
    }
    let sizes = [1, 2, 5, 17, 100, 4_096, 20_000, 100_000];
    let mut turns = 0;
    loop {
        for who in 0..count {
            let size = *rng.choice(&sizes).unwrap();
            if rng.u8(..3) > 0 {
                world.arrive(who, rng.usize(1..=size));
            }
            if rng.u8(..3) == 0 {
                let room = *rng.choice(&sizes).unwrap();
                world.clients[who].peer.set_room(rng.usize(..=room));
            }
            if rng.u8(..2) > 0 {
                world.hear(who);
            }
        }
        world.turn();
        world.now = world.now.after(Millis(1));
        turns += 1;
        let is_done = |(client, script): (&Client, &Vec<String>)| {
            client.heard.iter().filter(|&&it| it == b'\n').count() == script.len()
        };
        if world.clients.iter().zip(&scripts).all(is_done) {
            break;
        }
        // A peer that is slow for too long is closed; these are not that slow.
        assert!(turns < 4_000, "seed {seed} does not come to its end");
        if turns % 50 == 0 {
            for who in 0..count {
                world.clients[who].peer.set_room(usize::MAX);
                world.arrive(who, usize::MAX);
                world.hear(who);
            }
        }
    }
    let heard = world.clients.iter().map(|it| plain_words(&it.heard));
    let heard = heard.collect();
    for client in &world.clients {
        client.peer.set_room(usize::MAX);
        client.peer.close();
    }
    world.reported.extend(0..count);
    world.check_empty();
    (heard, turns)
}

#[test]
fn answers_are_the_same_with_tls_however_it_is_cut() {
    for version in [&TLS12, &TLS13] {
        let trust = Trust::new(version);
        for seed in 0..150 {
            let (plain, _) = play(seed, &trust, false);
            let (encrypted, _) = play(seed, &trust, true);
            assert_eq!(plain, encrypted, "seed {seed}");
        }
    }
}

/// Contents differ each time, lengths do not.
#[test]
fn the_same_seed_gives_the_same_run() {
    for version in [&TLS12, &TLS13] {
        for seed in 200..220 {
            let first = play(seed, &Trust::new(version), true);
            let second = play(seed, &Trust::new(version), true);
            assert_eq!(first, second, "seed {seed}");
        }
    }
}

/// How a peer leaves after so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    Close,
    Reset,
}

#[test]
fn a_peer_that_leaves_at_any_byte_executes_nothing_and_leaves_nothing() {
    for version in [&TLS12, &TLS13] {
        let trust = Trust::new(version);
        for leaving in [Leaving::Close, Leaving::Reset] {
            let mut cut_at = 0;
            loop {
                let mut world = World::new(&trust);
                let who = world.connect(true);
                world.say(who, frame("l k 0").as_bytes());
                // The hello, and what follows when the server has answered it.
                let mut sent = 0;
                let mut is_whole = true;
                while world.clients[who].peer.in_flight() > 0 {
                    let left = cut_at - sent;
                    let arrived = world.arrive(who, left);
                    sent += arrived;
                    if world.clients[who].peer.in_flight() > 0 {
                        is_whole = false;
                        break;
                    }
                    while world.has_more() {
                        world.turn();
                    }
                    world.hear(who);
                }
                match leaving {
                    Leaving::Close => world.clients[who].peer.close(),
                    Leaving::Reset => world.clients[who].peer.reset(),
                }
                world.reported.push(who);
                while world.has_more() {
                    world.turn();
                }
                let tally = world.server.engine().tally();
                let grants = u64::from(is_whole);
                assert_eq!(tally.grants, grants, "{leaving:?} after {cut_at} bytes");
                world.reported.clear();
                let holdings = world.server.holdings();
                assert_eq!((holdings.connections, holdings.engine.holders), (0, 0));
                assert_eq!(world.server.transport_memory().bytes(), 0);
                if is_whole {
                    assert!(cut_at > 200, "the whole of it is not so short");
                    break;
                }
                cut_at += 1;
            }
        }
    }
}

#[test]
fn a_reader_that_takes_any_number_of_bytes_gets_everything() {
    for version in [&TLS12, &TLS13] {
        let trust = Trust::new(version);
        for room in (1..40).chain([100, 1_000, 5_000, 16_384, 16_406, 20_000]) {
            let mut world = World::new(&trust);
            let who = world.connect(true);
            let value = "v".repeat(if room < 40 { 300 } else { 60_000 });
            world.say(who, frame(&format!("kset k {value}")).as_bytes());
            world.say(who, frame("kget k _").as_bytes());
            world.clients[who].peer.set_room(room);
            world.settle();
            let heard = plain_words(&world.clients[who].heard);
            let told = format!("ok {} times v", value.len());
            assert_eq!(heard, ["ok".to_owned(), told], "{room}");
            world.clients[who].peer.set_room(usize::MAX);
            let session = world.clients[who].session.as_mut().unwrap();
            session.send_close_notify();
            world.pump(who);
            world.settle();
            assert_eq!(world.clients[who].ended, Some(End::Announced), "{room}");
            world.check_empty();
        }
    }
}

#[test]
fn what_does_not_leave_counts_as_owed_and_ends_at_the_write_timeout() {
    let trust = Trust::new(&TLS13);
    let mut world = World::new(&trust);
    let who = world.connect(true);
    world.say(
        who,
        frame(&format!("kset k {}", "v".repeat(60_000))).as_bytes(),
    );
    world.settle();
    let idle = world.server.transport_memory().bytes();
    world.clients[who].peer.set_room(10_000);
    world.say(who, frame("kget k _").as_bytes());
    world.arrive(who, usize::MAX);
    while world.has_more() {
        world.turn();
    }
    assert!(
        world.server.holdings().buffered_bytes > 50_000,
        "it is all owed yet"
    );
    assert!(
        world.server.transport_memory().bytes() > idle,
        "and some is encrypted"
    );
    assert!(
        world.server.transport_memory().bytes() < idle + 20_000,
        "one record"
    );
    world.now = world.now.after(Millis(4_999));
    world.turn();
    assert_eq!(world.server.connections(), 1);
    world.now = world.now.after(Millis(2));
    world.turn();
    assert_eq!(world.server.connections(), 0);
    assert_eq!(world.server.transport_memory().bytes(), 0);
}

#[test]
fn a_handshake_has_only_so_much_time_and_a_session_the_read_timeout() {
    let trust = Trust::new(&TLS13);
    let mut world = World::new(&trust);
    let (silent, half, whole) = (
        world.connect(true),
        world.connect(true),
        world.connect(true),
    );
    world.arrive(half, 100);
    world.arrive(whole, usize::MAX);
    while world.has_more() {
        world.turn();
    }
    world.hear(whole);
    world.arrive(whole, usize::MAX);
    for step in [4_000, 999] {
        world.now = world.now.after(Millis(step));
        world.arrive(half, 1);
        world.turn();
        assert_eq!(world.server.connections(), 3, "{step}");
    }
    world.now = world.now.after(Millis(2));
    world.turn();
    assert_eq!(world.server.connections(), 1, "only the one that is done");
    for who in [silent, half] {
        assert!(world.clients[who].peer.is_closed());
    }
    // From the end of its handshake on it may be as silent as any other.
    world.now = world.now.after(Millis(19_000));
    world.turn();
    assert_eq!(world.server.connections(), 1);
    world.now = world.now.after(Millis(5_000));
    world.turn();
    assert_eq!(world.server.connections(), 0);
}

#[test]
fn a_crowd_that_shakes_hands_keeps_nobody_waiting() {
    let trust = Trust::new(&TLS13);
    let mut world = World::new(&trust);
    let good = world.connect(true);
    world.settle();
    let crowd: Vec<usize> = (0..1_000).map(|_| world.connect(true)).collect();
    for &who in &crowd {
        world.arrive(who, usize::MAX);
    }
    let (mut turns, mut answered) = (0, 0);
    while answered < crowd.len() {
        world.say(good, frame("ping _ _").as_bytes());
        world.arrive(good, usize::MAX);
        world.turn();
        world.hear(good);
        turns += 1;
        let heard = plain_words(&world.clients[good].heard);
        assert_eq!(heard.len(), turns, "it is answered in every turn");
        let flights = crowd.iter().map(|&who| world.clients[who].peer.receive());
        let flights = flights.filter(|it| !it.is_empty()).count();
        assert!(flights <= 8, "{flights} handshakes in one turn");
        answered += flights;
        assert!(turns < 2_000);
    }
}

/// A second hello where they should go on, and much behind it: as `tls-begin-again` of `latch-load` does. A socket
/// whose buffers are full takes the system fifty times as long to close as an empty one.
#[test]
fn a_crowd_that_begins_again_is_refused_and_closed_over_many_turns() {
    const CROWD: usize = 40;
    let trust = Trust::new(&TLS13);
    let mut world = World::new(&trust);
    for who in 0..CROWD {
        world.connect(true);
        let name = ServerName::try_from("localhost").unwrap();
        let second = ClientConnection::new(Arc::clone(&trust.client), name);
        let mut hello = Vec::new();
        second.unwrap().write_tls(&mut hello).unwrap();
        world.clients[who].peer.send(&hello);
        // More than is read of somebody who was refused.
        world.clients[who].peer.send(&vec![0; 5 << 18]);
        world.arrive(who, usize::MAX);
    }
    let count = |world: &World, is: fn(&Peer) -> bool| {
        let those = world.clients.iter().filter(|it| is(&it.peer));
        those.count()
    };
    let mut refused = 0;
    while refused < CROWD {
        world.turn();
        let now = count(&world, Peer::is_ended);
        assert!((1..=8).contains(&(now - refused)), "{refused} to {now}");
        refused = now;
    }
    while world.has_more() {
        world.turn();
    }
    assert_eq!(count(&world, Peer::was_read), 0, "the rest is left alone");
    assert_eq!(count(&world, Peer::is_closed), 0, "an alert is to be read");
    world.now = world.now.after(Millis::from_secs(1));
    let mut closed = 0;
    while closed < CROWD {
        world.turn();
        let now = count(&world, Peer::is_closed);
        assert!((1..=3).contains(&(now - closed)), "{closed} to {now}");
        closed = now;
    }
}

#[test]
fn of_too_many_handshakes_the_first_one_goes() {
    let trust = Trust::new(&TLS13);
    let mut world = World::new(&trust);
    let done = world.connect(true);
    world.settle();
    let first = world.connect(true);
    for _ in 1..4_096 {
        world.connect(true);
    }
    assert_eq!(world.server.connections(), 4_097);
    world.connect(true);
    world.turn();
    assert_eq!(world.server.connections(), 4_097);
    assert!(world.clients[first].peer.is_closed());
    assert!(!world.clients[done].peer.is_closed());
}

#[test]
fn memory_is_counted_as_it_is_taken() {
    const COUNT: usize = 50;
    for version in [&TLS12, &TLS13] {
        let trust = Trust::new(version);
        let mut world = World::new(&trust);
        // Tables and pools grow before, not while it is measured.
        let warm: Vec<usize> = (0..COUNT).map(|_| world.connect(true)).collect();
        world.settle();
        for who in warm {
            world.clients[who].peer.close();
            world.clients[who].session = None;
            world.reported.push(who);
        }
        world.check_empty();
        for _ in 0..COUNT {
            world.connect(true);
        }
        world.settle();
        let counted = world.server.transport_memory().bytes() / COUNT;
        for client in &mut world.clients {
            client.session = None; // the peers' memory is not the server's
        }
        let with = live_bytes();
        for client in &world.clients {
            client.peer.reset();
        }
        world.reported.extend(0..world.clients.len());
        while world.has_more() {
            world.turn();
        }
        assert_eq!(world.server.connections(), 0);
        let taken = usize::try_from(with - live_bytes()).unwrap() / COUNT;
        println!("an idle session takes {taken} bytes and counts as {counted}");
        assert!(counted >= SESSION_BYTES);
        assert!(
            taken <= counted,
            "{taken} bytes are taken, {counted} counted"
        );
        assert!(
            taken * 3 >= counted,
            "{taken} bytes are taken, {counted} counted"
        );
    }
}

#[test]
fn unfinished_handshake_makes_room_when_all_slots_are_taken() {
    let trust = Trust::new(&TLS13);
    let mut world = World::with_slots(&trust, 8);
    let silent = |world: &mut World| {
        let who = world.connect(true);
        world.clients[who].session = None;
        world.turn();
        who
    };
    let done = world.connect(true);
    world.settle();
    let first = silent(&mut world);
    for _ in 0..20 {
        for _ in 0..8 {
            silent(&mut world);
        }
        let late = world.connect(true);
        world.settle();
        assert!(!world.clients[late].peer.is_closed(), "it agrees on keys");
        assert!(world.server.connections() <= 8);
        world.clients[late].peer.reset();
        world.reported.push(late);
        world.settle();
    }
    assert!(world.clients[first].peer.is_closed());
    assert!(!world.clients[done].peer.is_closed());
}

/// A session takes more than the longest request of a stranger, but only those that do not read take
/// what others need.
#[test]
fn encrypted_strangers_that_read_nothing_displace_no_client_that_pauses_before_its_token() {
    const MEMORY_MAX: usize = 16 << 20;
    let settings = Settings {
        access: Access::of_one(b"s3cret"),
        memory_max: MEMORY_MAX,
        ..Settings::default()
    };
    let trust = Trust::new(&TLS13);
    let mut world = World::with(&trust, settings);
    let paused = world.connect(true);
    world.settle();
    for _ in 0..50 {
        let deaf = world.connect_to(Door::Http, true);
        for _ in 0..4 {
            world.arrive(deaf, usize::MAX);
            world.turn();
            world.hear(deaf); // until both agree on keys
        }
        world.clients[deaf].peer.set_room(0);
        world.say(
            deaf,
            b"GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n",
        );
        world.arrive(deaf, usize::MAX);
        world.turn();
    }
    let kept = world.server.holdings().buffered_bytes;
    assert!(kept <= MEMORY_MAX / 16, "{kept} bytes");
    world.say(paused, frame("auth _ s3cret").as_bytes());
    world.arrive(paused, usize::MAX);
    world.turn();
    world.hear(paused);
    assert_eq!(world.clients[paused].heard, b"ok\n");
}
