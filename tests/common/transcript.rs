//! Reads a transcript: text in, conversations out.
//!
//! Knows the notation and nothing of what it means to a server. A line that cannot be read is an
//! error that names it.

use latchd::base::Millis;

use super::Ending;

/// One conversation: everything under one heading.
pub(crate) struct Conversation {
    pub(crate) flags: Vec<String>,
    pub(crate) beats: Vec<Beat>,
}

/// What happens at one moment, and everything it makes the server say.
pub(crate) struct Beat {
    /// Each with the number of its line, from 1.
    pub(crate) steps: Vec<(usize, Step)>,
    pub(crate) expects: Vec<Expect>,
}

pub(crate) enum Step {
    /// A client connects, where that is worth saying; else it does so when it first speaks.
    Open(String),
    /// A client sends a frame, or any bytes.
    Say { who: String, what: Speech },
    /// A client goes.
    End { who: String, how: Ending },
    /// Time passes; `asleep` means that the server does not notice before the next step.
    Pass { span: Millis, asleep: bool },
    /// The server is told to stop.
    ShutDown,
    /// The server is at its end.
    Stopped,
}

pub(crate) enum Speech {
    Frame(String),
    Bytes(String),
}

/// What somebody reads next.
pub(crate) struct Expect {
    pub(crate) line: usize,
    pub(crate) who: String,
    /// Empty: nothing.
    pub(crate) pattern: String,
}

pub(crate) fn parse(text: &str) -> Result<Vec<Conversation>, String> {
    let (mut common, mut conversations) = (Vec::new(), Vec::<Conversation>::new());
    for (number, line) in (1..).zip(text.lines()) {
        let wrong = |why: &str| format!("{number}: {why}: {line}");
        if line.starts_with("## ") {
            conversations.push(Conversation {
                flags: common.clone(),
                beats: Vec::new(),
            });
            continue;
        }
        let line = without_comment(line);
        if line.is_empty() {
            continue;
        }
        if let Some(flags) = line.strip_prefix("! --") {
            let flags = format!("--{flags}");
            let of = conversations
                .last_mut()
                .map_or(&mut common, |it| &mut it.flags);
            of.extend(flags.split_whitespace().map(str::to_owned));
            continue;
        }
        let conversation = conversations
            .last_mut()
            .ok_or_else(|| wrong("no heading yet"))?;
        let beats = &mut conversation.beats;
        match statement(line).ok_or_else(|| wrong("cannot be read"))? {
            Statement::Step(step, true) => match beats.last_mut() {
                Some(beat) if beat.expects.is_empty() => beat.steps.push((number, step)),
                _ => return Err(wrong("joins nothing")),
            },
            Statement::Step(step, false) => beats.push(Beat {
                steps: vec![(number, step)],
                expects: Vec::new(),
            }),
            Statement::Expect(who, pattern) => {
                let beat = beats
                    .last_mut()
                    .ok_or_else(|| wrong("nothing happened yet"))?;
                let (times, pattern) = times(&pattern);
                beat.expects.extend((0..times).map(|_| Expect {
                    line: number,
                    who: who.clone(),
                    pattern: pattern.to_owned(),
                }));
            }
        }
    }
    Ok(conversations)
}

enum Statement {
    /// And whether it belongs to the moment before it.
    Step(Step, bool),
    Expect(String, String),
}

fn statement(line: &str) -> Option<Statement> {
    let (line, joined) = match line.strip_prefix("& ") {
        Some(line) => (line, true),
        None => (line, false),
    };
    let step = |step| Some(Statement::Step(step, joined));
    match line {
        "! shutdown" => return step(Step::ShutDown),
        "! stopped" => return step(Step::Stopped),
        _ => {}
    }
    if let Some(span) = line.strip_prefix('+') {
        let (span, asleep) = match span.strip_suffix(" asleep") {
            Some(span) => (span, true),
            None => (span, false),
        };
        return step(Step::Pass {
            span: duration(span)?,
            asleep,
        });
    }
    let name_len = line.find(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit())?;
    let (who, rest) = line.split_at(name_len);
    let who = (name_len > 0).then(|| who.to_owned())?;
    if let Some(pattern) = rest.strip_prefix('<') {
        let pattern = pattern.trim_start().to_owned();
        return (!joined).then_some(Statement::Expect(who, pattern));
    }
    if let Some(speech) = rest.strip_prefix("> ") {
        let what = match speech.strip_prefix('"').and_then(|it| it.strip_suffix('"')) {
            Some(bytes) => Speech::Bytes(bytes.to_owned()),
            None => Speech::Frame(speech.to_owned()),
        };
        return step(Step::Say { who, what });
    }
    step(match rest {
        " open" => Step::Open(who),
        " close" => Step::End {
            who,
            how: Ending::Close,
        },
        " half-close" => Step::End {
            who,
            how: Ending::HalfClose,
        },
        " reset" => Step::End {
            who,
            how: Ending::Reset,
        },
        _ => return None,
    })
}

/// `1000 * ok` is a thousand lines.
fn times(pattern: &str) -> (usize, &str) {
    let repeated = pattern.split_once(" * ");
    repeated
        .and_then(|(times, pattern)| Some((times.parse().ok()?, pattern)))
        .unwrap_or((1, pattern))
}

/// A comment begins a line, or stands two blanks behind what it explains.
fn without_comment(line: &str) -> &str {
    let end = if line.starts_with('#') {
        0
    } else {
        line.find("  #").unwrap_or(line.len())
    };
    line[..end].trim_end()
}

fn duration(text: &str) -> Option<Millis> {
    match text.strip_suffix("ms") {
        Some(ms) => ms.parse().ok().map(Millis),
        None => text.strip_suffix('s')?.parse().ok().map(Millis::from_secs),
    }
}

/// What a quoted string stands for: `\n \r \t \0 \" \\ \xNN`, and `{x*256}` for 256 times `x`.
pub(crate) fn unquote(text: &str) -> Option<Vec<u8>> {
    let (mut out, mut rest) = (Vec::new(), text);
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\\' => {
                let escaped = rest.chars().next()?;
                rest = &rest[escaped.len_utf8()..];
                out.push(match escaped {
                    'n' => b'\n',
                    'r' => b'\r',
                    't' => b'\t',
                    '0' => 0,
                    '"' => b'"',
                    '\\' => b'\\',
                    'x' => {
                        let byte = u8::from_str_radix(rest.get(..2)?, 16).ok()?;
                        rest = &rest[2..];
                        byte
                    }
                    _ => return None,
                });
            }
            '{' => {
                let (what, times) = rest.split_once('}').and_then(|(it, after)| {
                    rest = after;
                    it.rsplit_once('*')
                })?;
                out.extend(unquote(what)?.repeat(times.parse().ok()?));
            }
            c => out.extend(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Some(out)
}
