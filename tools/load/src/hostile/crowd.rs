//! The attackers: many connections that flood, ask, wait, leave or never read, in one loop.
//!
//! An attack first sets up what it needs, with [`Crowd::set_up`] and its like, and counts what the
//! server accepted; a refusal is news, no error. Then [`Crowd::work`] runs until it is told to
//! stop. Never measures how long anything takes.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::rc::Rc;
use std::time::Duration;

use latchd::wire::verbs::Verb;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use socket2::SockRef;

use crate::clock::Clock;
use crate::hostile::member::{Block, Does, Member, Visited};
use crate::machine::descriptors_max;
use crate::run::client::Client;
use crate::run::codec::{Answer, spell};
use crate::servers::target::{Stream, Target};

/// Requests on their way at once while setting up.
const WINDOW: usize = 2_000;

/// Requests of one batch that shall end in the same moment.
const BATCH: usize = 500;

/// How much time is left when everything that ends in one moment is set up.
const SPARE_NS: u64 = 600_000_000;

/// How often setting that up is tried again with twice the time.
const TRIES: usize = 8;

/// Connections that are opened together while setting up.
const JOIN_MAX: usize = 256;

/// Most members that are visited between two looks for commands.
const VISITS_MAX: usize = 128;

/// Descriptors that are kept for everything that is not one of many connections.
const DESCRIPTORS_KEPT: usize = 200;

/// Connections that come in one turn if there is no rate.
const COME_MAX: usize = 64;

/// What the kernel keeps for a flooding connection, each way. Attackers elsewhere have memory of their
/// own; ours share the system's memory for TCP with the server and its other clients.
const SOCKET_BUFFER_BYTES: usize = 64 * 1024;

const COMMANDS: Token = Token(usize::MAX);

/// What the end of a guess is counted as: the guesser knows that its secret is wrong.
pub(super) const VERDICTS: &str = "verdicts on guesses";

/// What a process is told while it works.
pub(super) const LEAVE: &str = "leave";
pub(super) const STOP: &str = "stop";

/// Those who come and leave: places that are taken again in turn, whether or not the server has
/// ended the connection before.
struct Comers {
    first: usize,
    count: usize,
    next: usize,
    /// How many come in a second; `None`: as many as can.
    per_s: Option<u64>,
    came: u64,
    began_ns: u64,
    block: Rc<Block>,
}

/// The attackers of one scene.
pub(crate) struct Crowd {
    /// How many there shall be of what the attack is made of.
    pub(super) size: usize,
    pub(super) target: Target,
    /// The other door, where there is one.
    http: Option<Target>,
    pub(super) clock: Clock,
    poll: Poll,
    members: Vec<Option<Member>>,
    /// Members that have not done all they could.
    again: VecDeque<usize>,
    /// Members that come again, each to its place.
    returning: VecDeque<(usize, Member)>,
    comers: Option<Comers>,
    /// Connections that are closed when the process is told to leave.
    owners: Vec<Stream>,
    /// When what was set up ends, and who speaks then.
    pub(super) moment_ns: Option<u64>,
    at_moment: Option<Block>,
    /// What was counted, by name.
    pub(super) counts: Vec<(String, u64)>,
    pub(super) requests: u64,
    scratch: Vec<u8>,
}

impl Crowd {
    pub(super) fn new(target: Target, size: usize) -> io::Result<Self> {
        Ok(Self {
            size,
            http: target.by_http(),
            target,
            clock: Clock::start(),
            poll: Poll::new()?,
            members: Vec::new(),
            again: VecDeque::new(),
            returning: VecDeque::new(),
            comers: None,
            owners: Vec::new(),
            moment_ns: None,
            at_moment: None,
            counts: Vec::new(),
            requests: 0,
            scratch: vec![0; 64 * 1024],
        })
    }

    /// For a scene without attackers.
    pub(super) fn nothing(&mut self) -> io::Result<()> {
        Ok(())
    }

    // ---- before it begins ----

    /// Adds to what was counted under this name.
    pub(super) fn count(&mut self, name: &str, count: u64) {
        match self.counts.iter_mut().find(|it| it.0 == name) {
            Some(it) => it.1 += count,
            None => self.counts.push((name.to_owned(), count)),
        }
    }

    /// Sends `count` requests over a new connection and counts what was accepted.
    pub(super) fn set_up(
        &mut self,
        what: &str,
        count: usize,
        write: impl FnMut(usize, &mut Vec<u8>),
    ) -> io::Result<Stream> {
        let mut client = Client::connect(&self.target)?;
        self.ask(&mut client, what, count, write)?;
        client.into_stream()
    }

    /// Sends `count` requests and counts what was accepted and what was refused, and with which
    /// words. Returns how many were refused. A server that hangs up has refused the rest.
    pub(super) fn ask(
        &mut self,
        client: &mut Client,
        what: &str,
        count: usize,
        mut write: impl FnMut(usize, &mut Vec<u8>),
    ) -> io::Result<usize> {
        let (mut accepted, mut refused) = (0, 0);
        let mut words = None;
        let write = |at: usize, _: &_, out: &mut Vec<u8>| write(at, out);
        let asked = client.many(count, WINDOW, write, |answer| {
            if is_success(answer) {
                accepted += 1;
            } else {
                refused += 1;
                words.get_or_insert_with(|| answer.to_string());
            }
            true
        });
        match asked {
            Ok(()) => {}
            Err(error) if has_hung_up(&error) => {
                words.get_or_insert_with(|| error.to_string());
                refused = count - accepted;
            }
            Err(error) => return Err(error),
        }
        self.count(what, accepted as u64);
        if let Some(words) = words {
            self.count(&format!("{what}: refused ({words})"), refused as u64);
        }
        Ok(refused)
    }

    /// Sends `count` requests that all end in the same moment: `write` is told how many
    /// milliseconds are left until then. Nothing is over before the attackers are ready.
    pub(super) fn set_up_until(
        &mut self,
        what: &str,
        count: usize,
        passes: u64,
        mut write: impl FnMut(usize, u64, &mut Vec<u8>),
    ) -> io::Result<Client> {
        let mut needed_ns = 200_000_000 + count as u64 * 4_000 * passes;
        for _ in 0..TRIES {
            self.counts.retain(|it| !it.0.starts_with(what));
            let spare_ns = SPARE_NS + needed_ns / passes * (passes - 1);
            let end_ns = self.clock.now_ns() + needed_ns + SPARE_NS;
            let mut client = Client::connect(&self.target)?;
            let mut done = 0;
            while done < count {
                let left_ns = end_ns.saturating_sub(self.clock.now_ns());
                if left_ns < spare_ns {
                    break;
                }
                let batch = BATCH.min(count - done);
                let write = |at, out: &mut Vec<u8>| write(done + at, left_ns / 1_000_000, out);
                self.ask(&mut client, what, batch, write)?;
                done += batch;
            }
            if done == count {
                self.moment_ns = Some(end_ns);
                return Ok(client);
            }
            needed_ns *= 2;
        }
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the server is too slow to get ready",
        ))
    }

    /// How much time is left until the moment.
    pub(super) fn left_ns(&self) -> Option<u64> {
        let moment_ns = self.moment_ns?;
        Some(moment_ns.saturating_sub(self.clock.now_ns()))
    }

    // ---- who takes part ----

    /// A connection that has said what it had to say, and reads or does not.
    pub(super) fn keep(&mut self, stream: Stream, reads: bool) -> io::Result<()> {
        self.add(Member::new(stream, Rc::default(), Does::Once, reads))
    }

    /// `count` connections that send these requests again and again without pause, and read or do
    /// not.
    pub(super) fn flood(&mut self, count: usize, block: Block, reads: bool) -> io::Result<()> {
        self.add_all(count, block, Does::Flood, reads)
    }

    /// The flooders beside other attacks.
    pub(super) fn flood_with_pings(&mut self, count: usize) -> io::Result<()> {
        let mut block = Block::default();
        for _ in 0..1_000 {
            block.push(Verb::Ping, b"_", b"");
        }
        self.flood(count, block, true)
    }

    /// `count` connections that send these requests byte by byte, but for the beginning.
    pub(super) fn drip(&mut self, count: usize, block: Block, at_once: usize) -> io::Result<()> {
        self.add_all(count, block, Does::Drip { at_once }, true)
    }

    /// A connection that is open already sends this byte by byte.
    pub(super) fn drip_over(&mut self, stream: Stream, block: Block) -> io::Result<()> {
        let does = Does::Drip { at_once: 0 };
        self.add(Member::new(stream, Rc::new(block), does, true))
    }

    /// `count` connections that send these requests once and never read; who is sent away comes
    /// again. Unlike [`Crowd::never_read`] it does not wait for answers.
    pub(super) fn flood_once(&mut self, count: usize, block: Block) -> io::Result<()> {
        self.add_all(count, block, Does::Once, false)
    }

    /// `count` connections that send these requests, and again when all are answered.
    pub(super) fn ask_again(&mut self, count: usize, block: Block) -> io::Result<()> {
        self.add_all(count, block, Does::Ask { owed: 0 }, true)
    }

    /// `count` connections that send these requests once and never read; who is sent away comes
    /// again.
    pub(super) fn never_read(&mut self, count: usize, block: &Rc<Block>) -> io::Result<()> {
        self.join("subscribed", count, block, |crowd, stream| {
            let mut member = Member::new(stream, block.clone(), Does::Once, false);
            member.written = block.bytes.len();
            member.comes_again = true;
            crowd.add(member)
        })
    }

    /// `count` connections that send these requests, leave when they are answered or closed, and
    /// come again. They guess nothing before the attack begins.
    pub(super) fn guess(&mut self, count: usize, block: Block) -> io::Result<()> {
        self.add_all(count, block, Does::Guess, true)
    }

    /// `count` new connections that send these requests; `each` gets them when they are answered.
    pub(super) fn join(
        &mut self,
        what: &str,
        count: usize,
        block: &Block,
        mut each: impl FnMut(&mut Self, Stream) -> io::Result<()>,
    ) -> io::Result<()> {
        // Many at a time, so that nobody waits for one answer after the other.
        for first in (0..count).step_by(JOIN_MAX) {
            let mut clients = Vec::new();
            for _ in first..count.min(first + JOIN_MAX) {
                let mut client = Client::connect(&self.target)?;
                client.send(&block.bytes)?;
                clients.push(client);
            }
            for mut client in clients {
                self.ask(&mut client, what, block.requests, |_, _| {})?;
                each(self, client.into_stream()?)?;
            }
        }
        Ok(())
    }

    /// `count` places for connections that come, send this request, and make room for the next.
    pub(super) fn come_and_leave(&mut self, count: usize, per_s: Option<u64>, block: Block) {
        self.comers = Some(Comers {
            first: self.members.len(),
            count,
            next: 0,
            per_s,
            came: 0,
            began_ns: 0,
            block: Rc::new(block),
        });
        self.members
            .extend(std::iter::repeat_with(|| None).take(count));
    }

    /// Whoever was added last sends these requests again and again, as [`Crowd::ask_again`] does.
    pub(super) fn last_asks_again(&mut self, block: Block) {
        if let Some(Some(last)) = self.members.last_mut() {
            (last.block, last.written) = (Rc::new(block), 0);
            last.does = Does::Ask { owed: 0 };
        }
    }

    /// A connection that sends these bytes as far as it can now, and the rest later.
    pub(super) fn begin(&mut self, block: &Rc<Block>) -> io::Result<()> {
        self.begin_with(block, false)
    }

    /// `count` connections that send these bytes as [`Crowd::begin`] does. A connection that is
    /// closed comes again.
    pub(super) fn begin_again(&mut self, count: usize, block: Block) -> io::Result<()> {
        let block = Rc::new(block);
        for _ in 0..count {
            self.begin_with(&block, true)?;
        }
        Ok(())
    }

    fn begin_with(&mut self, block: &Rc<Block>, comes_again: bool) -> io::Result<()> {
        let stream = self.door(block)?.connect()?;
        let mut member = Member::new(stream, block.clone(), Does::Once, true);
        member.comes_again = comes_again;
        self.add(member)?;
        self.visit(self.members.len() - 1);
        Ok(())
    }

    /// Where these requests are for.
    fn door(&self, block: &Block) -> io::Result<&Target> {
        if !block.over_http {
            return Ok(&self.target);
        }
        let missing = || io::Error::new(io::ErrorKind::Unsupported, "the server speaks no HTTP");
        self.http.as_ref().ok_or_else(missing)
    }

    /// Somebody who sends these requests in the moment when what was set up ends.
    pub(super) fn at_moment(&mut self, block: Block) {
        self.at_moment = Some(block);
    }

    /// A connection that is closed when the process is told to leave.
    pub(super) fn owner(&mut self, stream: Stream) {
        self.owners.push(stream);
    }

    fn add_all(&mut self, count: usize, block: Block, does: Does, reads: bool) -> io::Result<()> {
        let block = Rc::new(block);
        for _ in 0..count {
            let stream = self.door(&block)?.connect()?;
            if let Stream::Tcp(stream) = &stream {
                SockRef::from(stream).set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
                SockRef::from(stream).set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
            }
            let mut member = Member::new(stream, block.clone(), does, reads);
            member.comes_again = true;
            self.add(member)?;
        }
        Ok(())
    }

    fn add(&mut self, member: Member) -> io::Result<()> {
        self.members.push(None);
        self.enter(self.members.len() - 1, member)
    }

    /// Takes a place; whoever had it is gone.
    fn enter(&mut self, place: usize, mut member: Member) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        self.poll
            .registry()
            .register(&mut member.stream, Token(place), both)?;
        if let Some(before) = self.members[place].replace(member) {
            before.stream.abandon();
        }
        Ok(())
    }

    // ---- while it works ----

    /// Attacks until it is told to stop, or nobody is left to tell it; calls `left` when the owners
    /// have left, and says when the last of them did.
    pub(super) fn work(&mut self, mut left: impl FnMut(u64) -> io::Result<()>) -> io::Result<()> {
        let registry = self.poll.registry();
        registry.register(&mut SourceFd(&0), COMMANDS, Interest::READABLE)?;
        if let Some(comers) = &mut self.comers {
            comers.began_ns = self.clock.now_ns();
        }
        self.again.extend(0..self.members.len());
        let mut events = Events::with_capacity(VISITS_MAX);
        loop {
            self.come()?;
            self.come_again()?;
            self.speak_at_moment()?;
            let nap = Duration::from_nanos(self.nap_ns());
            match self.poll.poll(&mut events, Some(nap)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            for event in events.iter() {
                if event.token() == COMMANDS {
                    let mut command = [0; 64];
                    let length = io::stdin().read(&mut command)?;
                    match str::from_utf8(&command[..length]).unwrap_or_default() {
                        "" => return Ok(()),
                        said if said.contains(STOP) => return Ok(()),
                        said if said.contains(LEAVE) => {
                            left(self.leave())?;
                        }
                        _ => {}
                    }
                } else {
                    let place = event.token().0;
                    if event.is_read_closed() || event.is_error() {
                        self.hung_up(place);
                    }
                    self.visit(place);
                }
            }
            // Whoever is not done comes behind the others.
            for _ in 0..self.again.len().min(VISITS_MAX) {
                if let Some(place) = self.again.pop_front() {
                    self.visit(place);
                }
            }
        }
    }

    /// The owners leave, in the order in which they came; returns when the last one did.
    fn leave(&mut self) -> u64 {
        let last = self.owners.pop();
        self.owners.clear();
        let left_ns = Clock::machine_ns();
        drop(last);
        left_ns
    }

    fn nap_ns(&self) -> u64 {
        const MS: u64 = 1_000_000;
        match &self.comers {
            _ if !self.again.is_empty() => 0,
            Some(comers) if comers.per_s.is_none() => 0,
            Some(_) => MS,
            None if self.at_moment.is_some() || !self.returning.is_empty() => MS,
            None => 100 * MS,
        }
    }

    fn visit(&mut self, place: usize) {
        let Some(member) = &mut self.members[place] else {
            return;
        };
        match member.visit(&mut self.scratch, &mut self.requests) {
            Visited::Waits => {}
            Visited::HasMore => self.again.push_back(place),
            Visited::Ended => self.ended(place),
        }
    }

    /// The server has closed the connection of somebody who does not read, and so does not hear of
    /// it.
    fn hung_up(&mut self, place: usize) {
        if let Some(member) = &self.members[place]
            && !member.reads
        {
            self.ended(place);
        }
    }

    fn ended(&mut self, place: usize) {
        let Some(member) = self.members[place].take() else {
            return;
        };
        self.count("connections that the server ended", 1);
        if member.is_judged() {
            self.count(VERDICTS, 1);
        }
        if member.comes_again {
            self.returning.push_back((place, member));
        } else {
            member.stream.abandon();
        }
    }

    /// Members whose connections have ended come again.
    fn come_again(&mut self) -> io::Result<()> {
        while let Some((place, before)) = self.returning.pop_front() {
            let stream = match self.door(&before.block)?.begin_connect() {
                // The backlog of a unix socket is full.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.returning.push_front((place, before));
                    break;
                }
                other => other?,
            };
            let mut member = Member::new(stream, before.block.clone(), before.does, before.reads);
            member.comes_again = true;
            before.stream.abandon();
            self.enter(place, member)?;
        }
        Ok(())
    }

    /// Those who are due come, each to the place of the one who came first.
    fn come(&mut self) -> io::Result<()> {
        let Some(mut comers) = self.comers.take() else {
            return Ok(());
        };
        let due = comers.per_s.map_or(comers.came + COME_MAX as u64, |per_s| {
            let elapsed_ns = self.clock.now_ns() - comers.began_ns;
            (u128::from(elapsed_ns) * u128::from(per_s) / 1_000_000_000) as u64
        });
        for _ in 0..due.saturating_sub(comers.came).min(COME_MAX as u64) {
            let stream = self.door(&comers.block)?.begin_connect()?;
            let member = Member::new(stream, comers.block.clone(), Does::Once, true);
            self.enter(comers.first + comers.next, member)?;
            comers.next = (comers.next + 1) % comers.count;
            comers.came += 1;
        }
        self.comers = Some(comers);
        Ok(())
    }

    fn speak_at_moment(&mut self) -> io::Result<()> {
        if self.left_ns() != Some(0) {
            return Ok(());
        }
        if let Some(block) = self.at_moment.take() {
            let stream = self.target.connect()?;
            let member = Member::new(stream, Rc::new(block), Does::Once, true);
            self.add(member)?;
            self.visit(self.members.len() - 1);
        }
        Ok(())
    }
}

/// Whether a request was served: `ok`, `acquired` or `queued`, or there is nothing.
fn is_success(answer: &Answer<'_>) -> bool {
    match answer {
        Answer::Ok(_) | Answer::Lease(_) | Answer::Nil | Answer::Push(_) => true,
        Answer::Refused(text) => text.starts_with(b"acquired ") || *text == b"queued",
    }
}

/// Whether the server has closed the connection, or does not answer any more.
fn has_hung_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::TimedOut
    )
}

/// A request, for those who send only one kind.
pub(super) fn one(verb: Verb, key: &[u8], argument: &[u8]) -> Block {
    let mut block = Block::default();
    block.push(verb, key, argument);
    block
}

/// Appends a request with a number in its key, such as `value:42`.
pub(super) fn numbered(verb: Verb, kind: &str, at: usize, argument: &[u8], out: &mut Vec<u8>) {
    spell(verb, format!("{kind}:{at}").as_bytes(), argument, out);
}

/// How many connections this process and the server can have, with some room.
pub(super) fn connections_max() -> usize {
    descriptors_max().saturating_sub(DESCRIPTORS_KEPT).max(1)
}
