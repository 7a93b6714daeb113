//! Holds one conversation: does each step, then hears everyone out.
//!
//! Whatever a step makes the server say must be written under it, for every client: silence is
//! checked whether it is written or not. Besides, every token must be new, with a fence above all
//! fences before it; only a wait may hear of an older grant.
//!
//! To know that nothing more is to come, the runner pings over a connection of its own, the first
//! of every world: one thread serves all connections, so when its third ping is answered,
//! everything that was caused before the first has been said.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use latchd::base::Millis;
use latchd::config::Config;
use latchd::wire::client::{Grant, frame};

use super::pattern::{self, Names};
use super::transcript::{self, Beat, Conversation, Expect, Speech, Step};
use super::{Ending, Heard, World};

/// What went wrong, and where.
pub(crate) struct Failure {
    line: usize,
    expected: String,
    got: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            line,
            expected,
            got,
        } = self;
        write!(f, "{line}:\n  expected  {expected}\n  got       {got}")
    }
}

/// Lines of the transcript, from 0, to be replaced.
pub(crate) struct Edit {
    pub(crate) lines: Range<usize>,
    pub(crate) text: Vec<String>,
}

/// Holds the conversation. With `rewrite`, says what to write instead of what was wrong.
pub(crate) fn hold<W: World>(
    mut world: W,
    config: &Config,
    file: &str,
    conversation: &Conversation,
    rewrite: bool,
) -> Result<Vec<Edit>, Failure> {
    let control = world.connect();
    let mut talk = Talk {
        world,
        config,
        control,
        clients: BTreeMap::new(),
        names: Names::default(),
        tokens: BTreeSet::new(),
        fence_top: 0,
        is_draining: false,
        place: Place { file, line: 0 },
    };
    if let Some(secret) = &config.auth_token {
        let secret = String::from_utf8_lossy(secret.as_bytes());
        talk.ask_control(&format!("auth _ {secret}"))?;
    }
    let mut edits = Vec::new();
    for beat in &conversation.beats {
        talk.perform(beat)?;
        if rewrite {
            edits.extend(talk.compare(beat)?);
        } else {
            talk.hear(beat)?;
        }
    }
    talk.world.finish();
    Ok(edits)
}

struct Talk<'a, W> {
    world: W,
    config: &'a Config,
    /// The runner's own connection.
    control: usize,
    clients: BTreeMap<String, Client>,
    names: Names,
    tokens: BTreeSet<[u8; 32]>,
    /// The highest fence heard of.
    fence_top: u64,
    is_draining: bool,
    place: Place<'a>,
}

struct Client {
    number: usize,
    /// Its latest frame was a wait, which may hear of a grant made earlier.
    waits: bool,
}

/// Where we are, told when something panics.
struct Place<'a> {
    file: &'a str,
    line: usize,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("at tests/scripts/{}:{}", self.file, self.line);
        }
    }
}

impl<W: World> Talk<'_, W> {
    // ---- doing ----

    fn perform(&mut self, beat: &Beat) -> Result<(), Failure> {
        for (line, step) in &beat.steps {
            self.place.line = *line;
            match step {
                Step::Open(who) => {
                    self.client(who);
                }
                Step::Say { who, what } => self.say(who, what)?,
                Step::End { who, how } => {
                    let number = self.client(who).number;
                    self.world.end(number, *how);
                    if *how != Ending::HalfClose {
                        self.clients.remove(who);
                    }
                }
                Step::Pass { span, asleep: true } => {
                    // Else the runner's own connection would be cut before it could ping.
                    assert!(
                        *span < self.config.read_timeout,
                        "asleep beyond the read timeout"
                    );
                    self.world.pass(*span);
                    return Ok(());
                }
                Step::Pass {
                    span,
                    asleep: false,
                } => self.pass(*span)?,
                Step::ShutDown => self.shut_down()?,
                Step::Stopped => {
                    self.world.end(self.control, Ending::Close);
                    self.world.turn();
                    if !self.world.has_stopped() {
                        return Err(self.failure("the server stops", "it goes on"));
                    }
                    return Ok(());
                }
            }
        }
        self.world.turn();
        self.settle()
    }

    /// The client's connection, made if there is none.
    fn client(&mut self, who: &str) -> &mut Client {
        let Self { world, clients, .. } = self;
        clients.entry(who.to_owned()).or_insert_with(|| Client {
            number: world.connect(),
            waits: false,
        })
    }

    fn say(&mut self, who: &str, what: &Speech) -> Result<(), Failure> {
        let fill = |text| {
            let unknown = |name: String| self.failure("a name that stands for something", &name);
            self.names.fill(text).map_err(unknown)
        };
        let (bytes, waits) = match what {
            Speech::Bytes(text) => {
                let bytes = transcript::unquote(&fill(text)?);
                (
                    bytes.ok_or_else(|| self.failure("a quoted string", text))?,
                    false,
                )
            }
            Speech::Frame(text) => {
                let text = fill(text)?;
                let letters = text.split(' ').next().unwrap_or_default();
                let waits = ["w", "sw", "rw", "ww"].contains(&letters);
                (frame(&text).into_bytes(), waits)
            }
        };
        let client = self.client(who);
        client.waits = waits;
        let number = client.number;
        self.world.send(number, &bytes);
        Ok(())
    }

    /// In steps short enough that the runner's own connection is never idle for too long.
    fn pass(&mut self, span: Millis) -> Result<(), Failure> {
        let step_max = self.config.read_timeout.0.div_ceil(2);
        let mut left = span.0;
        while left > 0 {
            let step = left.min(step_max);
            left -= step;
            self.world.pass(Millis(step));
            self.world.turn();
            self.settle()?;
        }
        Ok(())
    }

    /// A draining server lets nobody stay who owns nothing, so the runner owns something.
    fn shut_down(&mut self) -> Result<(), Failure> {
        if !self.is_draining {
            self.ask_control("l .runner 0 1000000")?;
        }
        self.is_draining = true;
        self.world.shut_down();
        Ok(())
    }

    /// Returns when everything caused so far has been said.
    fn settle(&mut self) -> Result<(), Failure> {
        for _ in 0..3 {
            self.ask_control("ping _")?;
        }
        Ok(())
    }

    fn ask_control(&mut self, request: &str) -> Result<(), Failure> {
        self.world.send(self.control, frame(request).as_bytes());
        self.world.turn();
        match self.world.hear(self.control, true) {
            Some(Heard::Line(line)) if line == "ok" || line.starts_with("ok ") => Ok(()),
            Some(Heard::End) | None if self.is_draining && self.world.has_stopped() => Ok(()),
            other => Err(self.failure("the runner's own connection works", &told(other.as_ref()))),
        }
    }

    // ---- hearing ----

    fn hear(&mut self, beat: &Beat) -> Result<(), Failure> {
        let fence_top = self.fence_top;
        for Expect { line, who, pattern } in &beat.expects {
            self.place.line = *line;
            let is_due = !pattern.is_empty();
            let number = match self.clients.get(who) {
                Some(client) => client.number,
                None => return Err(self.failure(pattern, &format!("{who} is not there"))),
            };
            let heard = self.world.hear(number, is_due);
            if let Some(Heard::Line(line)) = &heard {
                self.check_grant(who, line, fence_top)?;
            }
            if !says(&mut self.names, pattern, heard.as_ref()) {
                let pattern = self.names.fill(pattern).unwrap_or_else(|_| pattern.clone());
                let expected = format!("{who}< {pattern}");
                return Err(self.failure(expected.trim_end(), &told(heard.as_ref())));
            }
            if heard == Some(Heard::End) {
                self.dismiss(who)?;
            }
        }
        let clients: Vec<_> = self
            .clients
            .iter()
            .map(|(who, it)| (who.clone(), it.number))
            .collect();
        for (who, number) in clients {
            match self.world.hear(number, false) {
                None => {}
                // Real connections that a drain does not wait for end with the process.
                Some(Heard::End) if self.is_draining && self.world.has_stopped() => {}
                heard => return Err(self.failure(&format!("{who}<"), &told(heard.as_ref()))),
            }
        }
        Ok(())
    }

    /// The server has closed; so does the client.
    fn dismiss(&mut self, who: &str) -> Result<(), Failure> {
        if let Some(client) = self.clients.remove(who) {
            self.world.end(client.number, Ending::Close);
            self.world.turn();
            self.settle()?;
        }
        Ok(())
    }

    /// Every grant has a token of its own, and its fence is above those of all earlier steps.
    fn check_grant(&mut self, who: &str, line: &str, fence_top: u64) -> Result<(), Failure> {
        let Some(grant) = Grant::read(line.as_bytes()) else {
            let is_token = |word| pattern::fence(word).is_some();
            return match line.split(' ').nth(1).is_some_and(is_token) {
                true => Err(self.failure("a grant as the protocol spells it", line)),
                false => Ok(()),
            };
        };
        let fence = grant.token.fence.0;
        let is_new = self.tokens.insert(grant.token.hex());
        let waits = self.clients.get(who).is_some_and(|it| it.waits);
        if !waits && (!is_new || fence <= fence_top) {
            let expected = format!("a new token with a fence above {fence_top}");
            return Err(self.failure(&expected, line));
        }
        self.fence_top = self.fence_top.max(fence);
        Ok(())
    }

    // ---- rewriting ----

    /// What to write under this beat, if what is written is not what was said.
    fn compare(&mut self, beat: &Beat) -> Result<Option<Edit>, Failure> {
        let mut said: BTreeMap<String, Vec<Heard>> = BTreeMap::new();
        let numbers: Vec<_> = self
            .clients
            .iter()
            .map(|(who, it)| (who.clone(), it.number))
            .collect();
        let fence_top = self.fence_top;
        for (who, number) in numbers {
            let heard = said.entry(who.clone()).or_default();
            heard.extend(std::iter::from_fn(|| self.world.hear(number, false)));
            for heard in heard {
                match heard {
                    Heard::Line(line) => self.check_grant(&who, line, fence_top)?,
                    Heard::End => self.dismiss(&who)?,
                }
            }
        }
        let mut names = self.names.clone();
        let mut left = said.clone();
        let as_written = beat.expects.iter().all(|Expect { who, pattern, .. }| {
            let of = left.entry(who.clone()).or_default();
            let heard = (!of.is_empty()).then(|| of.remove(0));
            says(&mut names, pattern, heard.as_ref())
        });
        if as_written && left.values().all(Vec::is_empty) {
            self.names = names;
            return Ok(None);
        }
        let last_step = beat.steps.last().map_or(0, |(line, _)| *line);
        let end = beat.expects.last().map_or(last_step, |it| it.line);
        let mut text = Vec::new();
        for (who, heard) in &said {
            for heard in heard {
                text.push(match heard {
                    Heard::Line(line) => format!("{who}< {}", self.names.write(who, line)),
                    Heard::End => format!("{who}< closed"),
                });
            }
            if heard.is_empty() && beat.expects.iter().any(|it| it.who == *who) {
                text.push(format!("{who}<"));
            }
        }
        Ok(Some(Edit {
            lines: last_step..end,
            text,
        }))
    }

    fn failure(&self, expected: &str, got: &str) -> Failure {
        Failure {
            line: self.place.line,
            expected: expected.to_owned(),
            got: got.to_owned(),
        }
    }
}

fn says(names: &mut Names, pattern: &str, heard: Option<&Heard>) -> bool {
    match heard {
        None => pattern.is_empty(),
        Some(Heard::End) => pattern == "closed",
        Some(Heard::Line(line)) => !pattern.is_empty() && names.says(pattern, line),
    }
}

fn told(heard: Option<&Heard>) -> String {
    match heard {
        None => "nothing".to_owned(),
        Some(Heard::End) => "closed".to_owned(),
        Some(Heard::Line(line)) => line.clone(),
    }
}
