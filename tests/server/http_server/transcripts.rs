//! Transcripts: what clients of both protocols say, and everything that each of them is told.
//!
//! `UPDATE_SCRIPTS=1 cargo test --test server http_server::` writes what was said into the
//! transcripts; review it as a diff. The notation is that of `tests/scripts`, and besides:
//!
//! ```text
//! a> GET /v1/locks/job              a client that begins with a method, or with quotes, speaks HTTP
//! a> PUT /v1/kv/k [Host: me] {"value":"v"}      with a header of its own; [Host] leaves it out
//! a< 200 {"name":"k","value":"v"}   the status and the whole body, to the byte
//! a< 405 [Allow: GET] {…}           headers that not every answer has
//! a< 200 file                       one of the files of the dashboard, which have tests of their own
//! a< 200 stream                     from here on it is told events:
//! a< signal {"channel":"c","payload":"p"}
//! a< end                            the last chunk of a stream
//! a< closed                         the server says no more
//! b> r job $A.hex                   $A is the lease of `a`; .hex is as the line protocol spells it,
//!                                   and .uuid what HTTP makes of a token
//! ```
//!
//! Silence is checked whether it is written or not. When a conversation is over everybody leaves, and
//! then nothing may be left of it.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use latch_sim::pipe::ORIGIN;
use latchd::config::{self, Outcome};
use latchd::daemon;
use latchd::engine::Engine;
use latchd::store::Memory;
use latchd::wire::client::frame;

use crate::common::Ending;
use crate::common::transcript::{self, Beat, Conversation, Expect, Speech, Step};
use crate::http_server::world::{Answer, World, spelled};

#[test]
fn every_transcript_is_held_to() {
    let rewrite = std::env::var_os("UPDATE_SCRIPTS").is_some();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/http_server");
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "txt"))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    let mut wrong = Vec::new();
    for file in files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&file).unwrap();
        let conversations = transcript::parse(&text).unwrap_or_else(|why| panic!("{name}:{why}"));
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        // From the end, so that a rewritten beat moves nothing that is still to be rewritten.
        for conversation in conversations.iter().rev() {
            for edit in Talk::new(&name, conversation)
                .hold(conversation)
                .into_iter()
                .rev()
            {
                let was = lines[edit.first..edit.end].join("\n");
                wrong.push(format!(
                    "{name}:{}:\n{was}\n  was told\n{}",
                    edit.first + 1,
                    edit.text.join("\n")
                ));
                lines.splice(edit.first..edit.end, edit.text);
            }
        }
        if rewrite {
            fs::write(&file, lines.join("\n") + "\n").unwrap();
        }
    }
    assert!(rewrite || wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Lines of the transcript, from 0, that should read otherwise.
struct Edit {
    first: usize,
    end: usize,
    text: Vec<String>,
}

struct Client {
    number: usize,
    speaks: Speaks,
    /// Of each request that is not answered yet: whether it is HEAD, and its id.
    asked: VecDeque<(bool, Option<String>)>,
    /// It was told the end.
    is_over: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Speaks {
    Lines,
    Answers,
    Chunks,
    Events,
}

struct Talk<'a> {
    file: &'a str,
    line: usize,
    world: World,
    clients: BTreeMap<String, Client>,
    names: Names,
}

impl Drop for Talk<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("at tests/server/http_server/{}:{}", self.file, self.line);
        }
    }
}

impl<'a> Talk<'a> {
    fn new(file: &'a str, conversation: &Conversation) -> Self {
        let flags = conversation.flags.iter().map(Into::into);
        let args = std::iter::once("latchd".into()).chain(flags);
        let Ok(Outcome::Run(config)) = config::load(args, &|_| None) else {
            panic!("{file}: {:?}", conversation.flags);
        };
        let engine = Engine::new(daemon::rules(&config), ORIGIN);
        Self {
            file,
            line: 0,
            world: World::over(engine, daemon::settings(&config, 1), Memory),
            clients: BTreeMap::new(),
            names: Names::default(),
        }
    }

    /// Holds the conversation; says where it went otherwise.
    fn hold(mut self, conversation: &Conversation) -> Vec<Edit> {
        let mut edits = Vec::new();
        for beat in &conversation.beats {
            for (line, step) in &beat.steps {
                self.line = *line;
                self.perform(step);
            }
            self.world.settle();
            edits.extend(self.compare(beat));
        }
        if !self.world.pipes.server.is_draining() {
            self.world.finish();
        }
        edits
    }

    fn perform(&mut self, step: &Step) {
        match step {
            Step::Open(who) => {
                self.client(who, Speaks::Answers);
            }
            Step::Say { who, what } => self.say(who, what),
            Step::End { who, how } => {
                let number = self.clients[who].number;
                match how {
                    Ending::Close | Ending::HalfClose => self.world.pipes.half_close(number),
                    Ending::Reset => self.world.pipes.reset(number),
                }
                if *how != Ending::HalfClose {
                    self.clients.remove(who);
                }
            }
            Step::Pass { span, asleep: true } => self.world.sleep(span.0),
            Step::Pass { span, .. } => self.world.pass(span.0),
            Step::ShutDown => self.world.pipes.stop(),
            Step::Stopped => assert!(self.world.pipes.server.is_drained(), "it goes on"),
        }
    }

    fn say(&mut self, who: &str, what: &Speech) {
        let (bytes, speaks) = match what {
            Speech::Bytes(text) => {
                let text = self.names.fill(text);
                let bytes = transcript::unquote(&text).expect("a quoted string");
                (bytes, Speaks::Answers)
            }
            Speech::Frame(text) => {
                let text = self.names.fill(text);
                if text.starts_with(|it: char| it.is_ascii_uppercase()) {
                    let id = text.split_once("[X-Request-ID: ");
                    let id = id.and_then(|(_, it)| it.split_once(']'));
                    let asked = (text.starts_with("HEAD "), id.map(|(it, _)| it.to_owned()));
                    self.client(who, Speaks::Answers).asked.push_back(asked);
                    (spelled(&text).into_bytes(), Speaks::Answers)
                } else {
                    (frame(&text).into_bytes(), Speaks::Lines)
                }
            }
        };
        let number = self.client(who, speaks).number;
        self.world.pipes.send(number, &bytes);
    }

    fn client(&mut self, who: &str, speaks: Speaks) -> &mut Client {
        let world = &mut self.world;
        self.clients
            .entry(who.to_owned())
            .or_insert_with(|| Client {
                number: match speaks {
                    Speaks::Lines => world.line(),
                    _ => world.http(),
                },
                speaks,
                asked: VecDeque::new(),
                is_over: false,
            })
    }

    /// What to write under this beat, if what is written is not what was said.
    fn compare(&mut self, beat: &Beat) -> Option<Edit> {
        let whos: Vec<String> = self.clients.keys().cloned().collect();
        let told: BTreeMap<String, VecDeque<String>> = whos
            .into_iter()
            .map(|who| (who.clone(), self.hear(&who).into()))
            .collect();
        let mut left = told.clone();
        let is_said = |Expect { who, pattern, .. }: &Expect| {
            let heard = left.get_mut(who).and_then(VecDeque::pop_front);
            match heard {
                None => pattern.is_empty(),
                Some(heard) => self.names.says(pattern, &heard),
            }
        };
        if beat.expects.iter().all(is_said) && left.values().all(VecDeque::is_empty) {
            return None;
        }
        let last_step = beat.steps.last().map_or(0, |(line, _)| *line);
        let mut text = Vec::new();
        for (who, heard) in &told {
            let was_silent = heard.is_empty() && beat.expects.iter().any(|it| it.who == *who);
            text.extend(was_silent.then(|| format!("{who}<")));
            let names = &mut self.names;
            text.extend(
                heard
                    .iter()
                    .map(|it| format!("{who}< {}", names.write(who, it))),
            );
        }
        Some(Edit {
            first: last_step,
            end: beat.expects.last().map_or(last_step, |it| it.line),
            text,
        })
    }

    /// Everything that a client was told since it last read.
    fn hear(&mut self, who: &str) -> Vec<String> {
        let client = self.clients.get_mut(who).unwrap();
        let text = self.world.pipes.read(client.number);
        let mut rest = text.as_str();
        let mut told = Vec::new();
        while !rest.is_empty() {
            let (heard, after) = client.read(rest);
            told.push(heard);
            rest = after;
        }
        if self.world.is_ended(client.number) && !client.is_over {
            client.is_over = true;
            told.push("closed".to_owned());
            self.world.pipes.half_close(client.number); // as clients do
            self.world.settle();
        }
        told
    }
}

impl Client {
    /// The first thing that the text says, and the rest.
    fn read<'t>(&mut self, text: &'t str) -> (String, &'t str) {
        match self.speaks {
            Speaks::Lines => {
                let (line, rest) = text.split_once('\n').expect("a whole line");
                (line.to_owned(), rest)
            }
            Speaks::Answers => self.read_answer(text),
            Speaks::Chunks => {
                let (size, rest) = text.split_once("\r\n").expect("the size of a chunk");
                let size = usize::from_str_radix(size, 16).expect("a size");
                let (chunk, rest) = rest.split_at(size);
                let rest = rest.strip_prefix("\r\n").expect("the end of a chunk");
                if size == 0 {
                    return ("end".to_owned(), rest);
                }
                let (shown, after) = event(chunk);
                assert_eq!(after, "", "an event is one chunk");
                (shown, rest)
            }
            Speaks::Events => event(text),
        }
    }

    fn read_answer<'t>(&mut self, text: &'t str) -> (String, &'t str) {
        let is_head = self.asked.front().is_some_and(|(is_head, _)| *is_head);
        let (answer, rest) = Answer::read(text, is_head);
        if answer.status == 100 {
            return ("100".to_owned(), rest);
        }
        let id = self.asked.pop_front().and_then(|(_, id)| id);
        if let Some(id) = id {
            assert_eq!(answer.header("X-Request-ID"), Some(id.as_str()));
        }
        if answer.header("Content-Type") == Some("text/event-stream") {
            self.speaks = match answer.header("Transfer-Encoding") {
                Some("chunked") => Speaks::Chunks,
                _ => Speaks::Events,
            };
            return ("200 stream".to_owned(), rest);
        }
        (shown(&answer, is_head), rest)
    }
}

/// An answer as a transcript has it.
fn shown(answer: &Answer, is_head: bool) -> String {
    let usual = ["Content-Type: application/json", "Cache-Control: no-store"];
    let mut out = answer.status.to_string();
    if answer.header("ETag").is_some() {
        return out + " file";
    }
    for (name, value) in &answer.headers {
        let header = format!("{name}: {value}");
        let is_checked = ["Content-Length", "X-Request-ID"].contains(&name.as_str());
        if !is_checked && !usual.contains(&header.as_str()) {
            out += &format!(" [{header}]");
        }
    }
    match answer.body.trim_end() {
        "" if is_head => {}
        body if body.len() > 1_000 => out += " (long)",
        body => out += &format!(" {}", body.replace('\n', "\\n")),
    }
    out
}

/// The event that the text begins with, and the rest.
fn event(text: &str) -> (String, &str) {
    let (event, rest) = text.split_once("\n\n").expect("a whole event");
    let Some(event) = event.strip_prefix("event: ") else {
        return (event.to_owned(), rest);
    };
    let (word, data) = event.split_once("\ndata: ").expect("an event has data");
    assert!(!data.contains('\n'), "{data}");
    let data = if word == "stats" { "(figures)" } else { data };
    (format!("{word} {data}"), rest)
}

/// What the names of a conversation stand for: leases, as HTTP spells them or as lines do.
#[derive(Clone, Default)]
struct Names(BTreeMap<String, String>);

impl Names {
    /// The text with every name replaced by its value.
    fn fill(&self, text: &str) -> String {
        let mut parts = text.split('$');
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (name, rest) = name_of(part);
            let value = self
                .0
                .get(name)
                .unwrap_or_else(|| panic!("who is ${name}?"));
            out += &if let Some(rest) = rest.strip_prefix(".hex") {
                value.replace('-', "") + rest
            } else if let Some(rest) = rest.strip_prefix(".uuid") {
                let at = |from: usize, to: usize| &value[from..to];
                let parts = [at(0, 8), at(8, 12), at(12, 16), at(16, 20), at(20, 32)];
                parts.join("-") + rest
            } else {
                value.clone() + rest
            };
        }
        out
    }

    /// Whether this is what was said; new names are learnt.
    fn says(&mut self, pattern: &str, said: &str) -> bool {
        let mut parts = pattern.split('$');
        let Some(mut rest) = said.strip_prefix(parts.next().unwrap_or_default()) else {
            return false;
        };
        for part in parts {
            let (name, literal) = name_of(part);
            let (value, after) = rest.split_at(lease_length(rest));
            let known = self
                .0
                .entry(name.to_owned())
                .or_insert_with(|| value.to_owned());
            match after.strip_prefix(literal) {
                Some(after) if known == value && !value.is_empty() => rest = after,
                _ => return false,
            }
        }
        rest.is_empty()
    }

    /// What was said as a transcript would have it: leases by name, new ones named after their reader.
    fn write(&mut self, who: &str, said: &str) -> String {
        let (mut out, mut rest) = (String::new(), said);
        while let Some(c) = rest.chars().next() {
            let length = lease_length(rest);
            if length < 32 {
                let taken = length.max(c.len_utf8());
                out += &rest[..taken];
                rest = &rest[taken..];
                continue;
            }
            let (value, after) = rest.split_at(length);
            rest = after;
            let known = self.0.iter().find(|(_, it)| *it == value);
            let name = known.map(|(name, _)| name.clone()).unwrap_or_else(|| {
                let first = who.to_ascii_uppercase();
                let numbered = (2..).map(|number| format!("{first}{number}"));
                let mut names = std::iter::once(first.clone()).chain(numbered);
                names.find(|it| !self.0.contains_key(it)).unwrap()
            });
            self.0.insert(name.clone(), value.to_owned());
            out += &format!("${name}");
        }
        out
    }
}

fn name_of(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric());
    text.split_at(end.unwrap_or(text.len()))
}

/// How many characters of a lease, or a token, the text begins with.
fn lease_length(text: &str) -> usize {
    let is_part = |c: char| matches!(c, '0'..='9' | 'a'..='f' | '-');
    text.find(|c| !is_part(c)).unwrap_or(text.len())
}
