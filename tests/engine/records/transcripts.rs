//! Conversations with an engine that records. `UPDATE_SCRIPTS=1 cargo test --test engine records::` writes
//! down what really happened; review it as a diff.
//!
//! ```text
//! ## A heading begins a conversation, with an engine of its own.
//! ! no auto-release       the holds of a client outlive its connection
//! ! deadlock detection    everybody is told of deadlocks
//! a> l job 10 60          a asks: verb, key, argument line; it connects when it first speaks
//! a> kset k v\t10          \\t is a tab
//! = 2 granted ...         record number 2 says this
//! a< @2 ok #7 60          a is answered, but not before record 2 is on disk; #7 is the token with fence 7
//! +5s   +250ms            time passes, and what is due is done
//! +5s asleep              time passes, and nothing is done yet
//! a close                 a's connection ends; if it speaks again, it is a new one
//! a cut off               a's connection ends because the daemon stops
//! a unsent                what a popped last could not be sent to it
//! ! drain                 the daemon begins to stop
//! ! disk full, ! disk has room
//! ! disk stands           records are not kept from now on; before, each was as soon as it was made
//! ! disk goes on          all of them are kept
//! ! restart               the process is gone, and the next one is brought back by all records
//! ! restart 3             only the first three of them reached the disk
//! ```
//!
//! A restart forgets every connection, and numbers connections and records from 1 on again. Everything under a line
//! that asks or does something follows from it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use latchd::base::{ConnId, Millis, Nanos, Token};
use latchd::engine::types::{
    ATTACHED_SERIAL, Effect, Effects, End, Input, Mode, Popped, Record, Reply,
};
use latchd::engine::{ClientLimit, Rules};
use latchd::wire::answer::{Answer, WireFence};
use latchd::wire::client::frame;
use latchd::wire::codec::{Decoded, LineCodec};
use latchd::wire::command::Command;

use super::table::{Table, id, rules};

#[test]
fn every_transcript_of_records_is_held_to() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/engine/records/transcripts");
    let mut paths: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "no transcripts found");
    for path in paths {
        let written = fs::read_to_string(&path).unwrap();
        let said = hold(&written);
        if std::env::var_os("UPDATE_SCRIPTS").is_some() {
            fs::write(&path, &said).unwrap();
            continue;
        }
        for (line, (written, said)) in (1..).zip(written.lines().zip(said.lines())) {
            assert_eq!(said, written, "{}:{line}", path.display());
        }
        assert_eq!(said.lines().count(), written.lines().count());
    }
}

/// The same text with what really happened under each line.
fn hold(text: &str) -> String {
    let mut talk = Talk::new();
    for line in text.lines() {
        let is_consequence = line.starts_with('=') || is_answer(line);
        if is_consequence {
            continue;
        }
        writeln!(talk.text, "{line}").unwrap();
        let line = line.find("  #").map_or(line, |end| &line[..end]).trim_end();
        if line.starts_with("## ") {
            talk.begin(rules());
        } else if !line.is_empty() && !line.starts_with('#') {
            talk.act(line);
        }
    }
    talk.text
}

fn is_answer(line: &str) -> bool {
    let name_len = line.find(|c: char| !c.is_ascii_lowercase());
    name_len.is_some_and(|len| len > 0 && line[len..].starts_with('<'))
}

struct Talk {
    table: Table,
    rules: Rules,
    clients: BTreeMap<String, Client>,
    serial: u32,
    /// The token with each fence.
    tokens: BTreeMap<u64, Token>,
    disk_stands: bool,
    text: String,
}

struct Client {
    id: ConnId,
    codec: LineCodec,
    popped: Option<Popped>,
}

impl Talk {
    fn new() -> Self {
        Self {
            table: Table::new(rules()),
            rules: rules(),
            clients: BTreeMap::new(),
            serial: 0,
            tokens: BTreeMap::new(),
            disk_stands: false,
            text: String::new(),
        }
    }

    fn begin(&mut self, rules: Rules) {
        let text = std::mem::take(&mut self.text);
        *self = Self {
            table: Table::new(rules.clone()),
            rules,
            text,
            ..Self::new()
        };
    }

    fn act(&mut self, line: &str) {
        if let Some((who, what)) = line.split_once("> ") {
            return self.say(who, what);
        }
        match line.split_once(' ') {
            Some(("!", "restart")) => self.restart(self.table.records.len()),
            Some(("!", "drain")) => self.apply(Input::Drain),
            Some(("!", "disk full")) => self.apply(Input::StorageFull(true)),
            Some(("!", "disk has room")) => self.apply(Input::StorageFull(false)),
            Some(("!", "disk stands")) => self.disk_stands = true,
            Some(("!", "disk goes on")) => {
                self.disk_stands = false;
                self.keep();
            }
            Some(("!", "no auto-release")) => self.begin(Rules {
                auto_release: false,
                ..rules()
            }),
            Some(("!", "two clients of nfs")) => self.begin(Rules {
                clients_max: vec![ClientLimit {
                    adapter: "nfs".into(),
                    clients: 2,
                }],
                ..rules()
            }),
            Some(("!", "deadlock detection")) => self.begin(Rules {
                deadlock_detection: true,
                ..rules()
            }),
            Some(("!", what)) => {
                let records = what.strip_prefix("restart ").expect(line);
                self.restart(records.parse().expect(line));
            }
            Some((who, "close")) => {
                let gone = self.clients.remove(who).expect(line);
                self.apply(Input::Disconnected(gone.id));
            }
            Some((who, "cut off")) => {
                let gone = self.clients.remove(who).expect(line);
                self.apply(Input::CutOff(gone.id));
            }
            Some((who, "unsent")) => {
                let client = self.clients.get_mut(who).expect(line);
                let popped = client.popped.take().expect("it has popped something");
                self.apply(Input::Unsent(popped));
            }
            _ => self.pass(line),
        }
    }

    fn say(&mut self, who: &str, what: &str) {
        let mut words: Vec<String> = what.split(' ').map(str::to_owned).collect();
        for word in &mut words {
            if let Some(fence) = word.strip_prefix('#') {
                let token = self.tokens[&fence.parse().unwrap()];
                *word = String::from_utf8(token.hex().to_vec()).unwrap();
            }
        }
        let (serial, slot) = (&mut self.serial, self.clients.len());
        let client = self.clients.entry(who.to_owned()).or_insert_with(|| {
            *serial += 1;
            Client {
                id: id(slot + *serial as usize, *serial),
                codec: LineCodec::new(WireFence::Auto),
                popped: None,
            }
        });
        let words = words.join(" ").replace("\\t", "\t");
        let (bytes, mut scratch) = (frame(&words), Vec::new());
        let Decoded::Request(asked) = client.codec.decode(bytes.as_bytes(), &mut scratch) else {
            panic!("{what} is no request");
        };
        let id = client.id;
        match asked.command.expect(what) {
            Command::Engine(request) => self.apply(Input::Request(id, request)),
            Command::Hello(hello) => {
                let name = hello.name.map(|name| str::from_utf8(name).unwrap());
                self.apply(Input::Hello(id, name));
                if let Some(keeps) = hello.keep {
                    self.apply(Input::Keep(id, keeps));
                }
                if let Some(detects) = hello.deadlock {
                    self.apply(Input::DetectDeadlocks(id, detects));
                }
            }
            Command::Range(request) => self.apply(Input::Range(id, None, request)),
            Command::Attach(attach) => self.apply(Input::Attach(id, attach)),
            Command::Detach { id: client, secret } => {
                self.apply(Input::Detach(id, client, secret));
            }
            Command::ReclaimDone { id: client } => {
                self.apply(Input::ReclaimDone(id, client, None));
            }
            Command::Grace { ends } => self.apply(Input::Grace { conn: id, ends }),
            Command::Break { key, fence } => self.apply(Input::BreakAll(id, key, fence)),
            Command::BreakRangesOf { client } => self.apply(Input::BreakRangesOf(id, client)),
            other => panic!("{other:?} is not for the engine"),
        }
    }

    fn pass(&mut self, line: &str) {
        let span = line.strip_prefix('+').expect(line);
        let (span, asleep) = match span.strip_suffix(" asleep") {
            Some(span) => (span, true),
            None => (span, false),
        };
        let span = match span.strip_suffix("ms") {
            Some(ms) => Millis(ms.parse().unwrap()),
            None => Millis::from_secs(span.strip_suffix('s').unwrap().parse().unwrap()),
        };
        self.table.now = self.table.now.after(span);
        if !asleep {
            self.apply(Input::Time(u64::MAX));
        }
    }

    /// The clock of an engine begins anew as well, so what is stored for a while is shifted, as a
    /// store does that writes the time of day.
    fn restart(&mut self, count: usize) {
        let mut records = std::mem::take(&mut self.table.records);
        records.truncate(count);
        let now = Nanos(1);
        for record in &mut records {
            if let Record::Stored {
                ends: Some(ends), ..
            } = record
            {
                *ends = Nanos(ends.since(self.table.now) + now.0);
            }
        }
        self.clients.clear();
        self.serial = 0;
        self.table = Table::restarted(self.rules.clone(), now, records);
    }

    fn apply(&mut self, input: Input<'_>) {
        self.decide(input);
        if !self.disk_stands {
            self.keep();
        }
    }

    /// Everything recorded so far is on disk, so leases that waited for it begin.
    fn keep(&mut self) {
        self.decide(Input::Durable(self.table.engine.record_count()));
    }

    fn decide(&mut self, input: Input<'_>) {
        let (made, numbered) = (self.table.records.len(), self.table.engine.record_count());
        let effects = self.table.apply(input);
        self.note_tokens(&effects);
        for (number, record) in (numbered + 1..).zip(&self.table.records[made..]) {
            writeln!(self.text, "= {number} {}", spell(record)).unwrap();
        }
        let mut mark = 0;
        for effect in effects {
            match effect {
                Effect::Mark(it) => mark = it,
                Effect::Reply(id, reply) => {
                    if let Reply::Popped(popped) = &reply {
                        self.client(id).1.popped = Some(popped.clone());
                    }
                    self.hear(id, mark, Answer::Reply(&reply));
                }
                Effect::Push(id, push) => self.hear(id, mark, Answer::Push(&push)),
                Effect::Broadcast(ids, push) => {
                    for id in ids {
                        self.hear(id, mark, Answer::Push(&push));
                    }
                }
                Effect::GraceOver(released) => {
                    writeln!(self.text, "= grace over, {released} released").unwrap();
                }
                Effect::Note(_) => {} // of what an operator broke, whatever the log shows
                other => panic!("{other:?} has no place in a transcript"),
            }
        }
    }

    fn note_tokens(&mut self, effects: &Effects) {
        for effect in effects {
            if let Effect::Reply(_, Reply::Granted { token, .. } | Reply::Acquired { token, .. }) =
                effect
            {
                self.tokens.insert(token.fence.0, *token);
            }
        }
    }

    fn client(&mut self, id: ConnId) -> (&str, &mut Client) {
        let mut clients = self.clients.iter_mut();
        let (who, client) = clients.find(|(_, it)| it.id == id).expect("it is gone");
        (who, client)
    }

    fn hear(&mut self, id: ConnId, mark: u64, answer: Answer<'_>) {
        let (who, client) = self.client(id);
        let (who, mut line) = (who.to_owned(), Vec::new());
        client.codec.encode(&mut line, answer);
        let mut line = String::from_utf8(line).unwrap();
        for (fence, token) in &self.tokens {
            let hex = String::from_utf8(token.hex().to_vec()).unwrap();
            line = line.replace(&hex, &format!("#{fence}"));
        }
        let mark = if mark == 0 {
            String::new()
        } else {
            format!("@{mark} ")
        };
        write!(self.text, "{who}< {mark}{line}").unwrap();
    }
}

fn spell(record: &Record) -> String {
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    let side = |end: &End| if *end == End::Left { "left" } else { "right" };
    match record {
        Record::Granted {
            key,
            mode,
            token,
            lease,
            client,
            name,
            request,
        } => {
            let how = match mode {
                Mode::Slot { limit: 1 } => "lock".to_owned(),
                Mode::Slot { limit } => format!("slot of {limit}"),
                Mode::Read => "read".to_owned(),
                Mode::Write => "write".to_owned(),
                Mode::Lead => "lead".to_owned(),
            };
            let name = name.as_ref().map_or(String::new(), |it| format!(" {it}"));
            let (key, fence, ms) = (text(key.as_bytes()), token.fence, lease.0);
            let id = match &request[..] {
                [] => String::new(),
                id => format!(" asked with {}", text(id)),
            };
            let client = match *client {
                ATTACHED_SERIAL => "client".to_owned(),
                number => number.to_string(),
            };
            format!("granted {key} #{fence} {how} {ms} ms to {client}{name}{id}")
        }
        Record::Lengthened { key, fence, lease } => {
            let key = text(key.as_bytes());
            format!("lengthened {key} #{fence} {} ms", lease.0)
        }
        Record::Owned { key, fence, client } => {
            let (key, client) = (text(key.as_bytes()), text(client.as_bytes()));
            format!("owned {key} #{fence} by client {client}")
        }
        Record::Ended { key, fence } => format!("ended {} #{fence}", text(key.as_bytes())),
        Record::Counted { key, value } => format!("counted {} {value}", text(key.as_bytes())),
        Record::Stored { key, value, ends } => {
            let until = ends.map_or(String::new(), |it| {
                format!(" until {} ms", it.0 / 1_000_000)
            });
            format!("stored {} {}{until}", text(key.as_bytes()), text(value))
        }
        Record::Deleted { key } => format!("deleted {}", text(key.as_bytes())),
        Record::Pushed { key, end, value } => {
            let (key, value) = (text(key.as_bytes()), text(value));
            format!("pushed {key} {} {value}", side(end))
        }
        Record::Popped { key, end } => format!("popped {} {}", text(key.as_bytes()), side(end)),
        Record::Client { id, ttl, .. } => {
            format!("client {} kept for {} ms", text(id.as_bytes()), ttl.0)
        }
        Record::ClientGone { id } => format!("client gone {}", text(id.as_bytes())),
        Record::Ranged {
            resource,
            client,
            owner,
            range,
            mode,
            ..
        } => {
            let [resource, client, owner] =
                [resource, client, owner].map(|name| text(name.as_bytes()));
            let (start, last) = (range.start(), range.last());
            format!("ranged {resource} {start}-{last} {mode:?} by {client} for {owner}")
        }
        Record::Fences { upto } => format!("fences up to {upto}"),
    }
}
