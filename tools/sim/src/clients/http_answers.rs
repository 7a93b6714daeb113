//! What comes back over HTTP, cut into answers and events.
//!
//! As strict as a client that trusts nobody: a head that is none, a body without a length, or a chunk
//! of another size is an error. Never compares an answer with its request: `checks` does.

use crate::json::Json;

/// One answer, or one event of a stream.
#[derive(Clone, Debug)]
pub(crate) enum Heard {
    Answer(HttpAnswer),
    /// The word, and what is said about it.
    Event(String, Json),
    /// A comment, which shows that the server is alive.
    Beat,
    /// The stream ends in order.
    End,
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    /// `X-Request-ID`.
    pub(crate) id: Option<String>,
    /// It says that the connection ends.
    pub(crate) closes: bool,
    /// Events follow.
    pub(crate) is_stream: bool,
    pub(crate) body: String,
}

impl HttpAnswer {
    /// The body, which is a JSON object.
    pub(crate) fn json(&self) -> Result<Json, String> {
        let text = self.body.strip_suffix('\n').ok_or("no line end")?;
        Json::read(text).ok_or_else(|| format!("not JSON: {text}"))
    }
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Answer,
    /// An answer that says how long it would be, and no more.
    Head,
    Event,
}

/// Takes the first answer or event from what came in; none while it is not whole.
pub(crate) fn take(received: &mut Vec<u8>, expected: Expected) -> Result<Option<Heard>, String> {
    if expected == Expected::Event {
        return take_chunk(received);
    }
    loop {
        let Some(end) = find(received, b"\r\n\r\n") else {
            return Ok(None);
        };
        let head = String::from_utf8(received[..end].to_vec()).map_err(|_| "a head of bytes")?;
        let mut lines = head.split("\r\n");
        let status_line = lines.next().unwrap_or_default();
        let digits = status_line.strip_prefix("HTTP/1.1 ").unwrap_or_default();
        let status = digits.get(..3).and_then(|it| it.parse::<u16>().ok());
        let status = status.ok_or_else(|| format!("{status_line:?} is no status"))?;
        if status == 100 {
            received.drain(..end + 4);
            continue;
        }
        let mut answer = HttpAnswer {
            status,
            id: None,
            closes: false,
            is_stream: false,
            body: String::new(),
        };
        let mut length = None;
        for line in lines {
            let (name, value) = line.split_once(": ").ok_or("a header without a value")?;
            match name {
                "X-Request-ID" if answer.id.is_none() => answer.id = Some(value.to_owned()),
                "Connection" => answer.closes = value == "close",
                "Content-Type" => answer.is_stream = value == "text/event-stream",
                "Content-Length" if length.is_none() => length = value.parse::<usize>().ok(),
                "X-Request-ID" | "Content-Length" => return Err(format!("two {name}")),
                _ => {}
            }
        }
        let length = match (length, answer.is_stream) {
            (Some(0), false) if expected == Expected::Head => {
                return Err(format!("an answer that would be empty: {head}"));
            }
            (Some(_), false) if expected == Expected::Head => 0,
            (Some(length), false) => length,
            (None, true) => 0,
            _ => return Err(format!("an answer of no length, or two: {head}")),
        };
        let body_at = end + 4;
        if received.len() < body_at + length {
            return Ok(None);
        }
        let body = received[body_at..body_at + length].to_vec();
        answer.body = String::from_utf8(body).map_err(|_| "a body that is not text")?;
        received.drain(..body_at + length);
        return Ok(Some(Heard::Answer(answer)));
    }
}

/// Each event is one chunk.
fn take_chunk(received: &mut Vec<u8>) -> Result<Option<Heard>, String> {
    let Some(end) = find(received, b"\r\n") else {
        return Ok(None);
    };
    let digits = str::from_utf8(&received[..end]).map_err(|_| "a size of bytes")?;
    let size = usize::from_str_radix(digits, 16).map_err(|_| format!("{digits:?} is no size"))?;
    let (from, to) = (end + 2, end + 2 + size);
    if received.len() < to + 2 {
        return Ok(None);
    }
    if &received[to..to + 2] != b"\r\n" {
        return Err("a chunk that is longer than it says".to_owned());
    }
    let text = String::from_utf8(received[from..to].to_vec()).map_err(|_| "an event of bytes")?;
    received.drain(..to + 2);
    if size == 0 {
        return Ok(Some(Heard::End));
    }
    if text == ": beat\n\n" {
        return Ok(Some(Heard::Beat));
    }
    let lines: Vec<&str> = text.split('\n').collect();
    let [word, data, "", ""] = lines[..] else {
        return Err(format!("{text:?} is no event"));
    };
    let word = word.strip_prefix("event: ").ok_or("an event of no kind")?;
    let data = data.strip_prefix("data: ").and_then(Json::read);
    let data = data.ok_or_else(|| format!("{text:?} is no event"))?;
    Ok(Some(Heard::Event(word.to_owned(), data)))
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|it| it == what)
}
