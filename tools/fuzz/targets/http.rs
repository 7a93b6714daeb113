//! HTTP requests: they do not depend on how their bytes are cut into reads, none is read further than its end, and
//! every answer that repeats what the client wrote is one answer.

#![no_main]

mod stream;

use latchd::wire::http::{
    Asked, Context, Decoded, Memo, Part, Problem, REQUEST_BYTES_MAX, Reader, SCRATCH_BYTES_MAX,
    answer,
};
use libfuzzer_sys::fuzz_target;
use stream::{Cuts, SINGLE_BYTES_MAX, expand};

/// What is read in a stream.
#[derive(Debug, PartialEq)]
enum Seen {
    /// A request of so many bytes.
    Request(usize),
    Fault(Problem<'static>),
    /// The stream ends so far within a request of so many bytes.
    Rest(Part, usize),
}

fuzz_target!(|input: &[u8]| {
    let [seed, input @ ..] = input else { return };
    let stream = expand(input);
    let whole = read(&stream, || usize::MAX);
    let mut cuts = Cuts::new(*seed, &stream);
    assert_eq!(read(&stream, || cuts.next()), whole, "cut into reads");
    if stream.len() <= SINGLE_BYTES_MAX {
        assert_eq!(read(&stream, || 1), whole, "byte by byte");
    }
});

/// Reads a stream as the server does. Each read has at most as many bytes as `cut` says.
fn read(stream: &[u8], mut cut: impl FnMut() -> usize) -> Vec<Seen> {
    let (mut reader, mut scratch) = (Reader::default(), Vec::new());
    let (mut start, mut end) = (0, 0);
    let mut seen = Vec::new();
    let mut last = Part::Nothing;
    while end < stream.len() {
        let room = REQUEST_BYTES_MAX - (end - start);
        assert!(room > 0, "an unfinished request fills the inbox");
        end += cut().min(stream.len() - end).min(room);
        while start < end {
            let input = &stream[start..end];
            match reader.decode(input, &mut scratch) {
                Decoded::Request(asked) => {
                    check_request(&asked, input);
                    seen.push(Seen::Request(asked.used));
                    start += asked.used;
                    last = Part::Nothing;
                }
                Decoded::Unfinished {
                    part,
                    wants_continue,
                } => {
                    let is_first = last != Part::Body;
                    assert!(is_first || !wants_continue, "it is said once");
                    last = part;
                    break;
                }
                Decoded::Fault(fault) => {
                    let mut out = Vec::new();
                    answer::fault(&mut out, &fault);
                    check_answer(&out, fault.status, &Context::UNREAD);
                    seen.push(Seen::Fault(fault));
                    return seen;
                }
            }
        }
        assert!(scratch.len() <= SCRATCH_BYTES_MAX);
        let mut scratch = Vec::new();
        let head = reader.head(&stream[start..end], &mut scratch);
        assert_eq!(head.is_some(), last == Part::Body && start < end);
    }
    seen.push(Seen::Rest(last, end - start));
    seen
}

fn check_request(asked: &Asked<'_>, input: &[u8]) {
    let used = asked.used;
    assert_eq!(used, length(input), "another reader sees another end");
    // Nothing behind its end matters, and without its last byte it is not whole.
    let alone = &input[..used];
    let mut scratch = Vec::new();
    let again = Reader::default().decode(alone, &mut scratch);
    assert_eq!(again, Decoded::Request(*asked));
    let mut scratch = Vec::new();
    let cut = Reader::default().decode(&alone[..used - 1], &mut scratch);
    assert!(matches!(cut, Decoded::Unfinished { .. }), "{cut:?}");

    let mut memo = Memo::default();
    memo.keep(&asked.context, [1, 2]);
    let context = memo.context().expect("it was kept");
    if !asked.context.request_id.is_empty() {
        assert_eq!(context, asked.context);
    }
    let mut out = Vec::new();
    answer::elsewhere(&mut out, &context, "http://other:1", asked.target);
    check_answer(&out, 307, &context);
    if let Err(problem) = &asked.what {
        let mut out = Vec::new();
        answer::problem(&mut out, &context, problem);
        check_answer(&out, problem.status, &context);
    }
}

/// The length of the request that the input begins with, read by the plain rules.
fn length(input: &[u8]) -> usize {
    let mut start = 0;
    while input[start..].starts_with(b"\r\n") {
        start += 2;
    }
    let head_bytes = input[start..]
        .windows(4)
        .position(|it| it == b"\r\n\r\n")
        .expect("a head has an end");
    let head = input[start..start + head_bytes].to_ascii_lowercase();
    let body = start + head_bytes + 4;
    let header = |name: &str| {
        let line = head
            .split(|&byte| byte == b'\n')
            .find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b":"));
        line.map(|value| str::from_utf8(value).expect("a number or a word").trim())
    };
    if header("transfer-encoding").is_none() {
        return body + header("content-length").map_or(0, |it| it.parse().expect("digits"));
    }
    let mut at = body;
    loop {
        let digits = input[at..]
            .iter()
            .position(|&byte| byte == b'\r')
            .expect("a size");
        let size = str::from_utf8(&input[at..at + digits]).expect("digits");
        let size = usize::from_str_radix(size, 16).expect("digits");
        at += digits + 2 + size + 2;
        if size == 0 {
            return at;
        }
    }
}

/// It is one answer with this status, and its body is as long as it says.
fn check_answer(out: &[u8], status: u16, context: &Context<'_>) {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut answer = httparse::Response::new(&mut headers);
    let shown = out.escape_ascii();
    let head = match answer.parse(out) {
        Ok(httparse::Status::Complete(head)) => head,
        other => panic!("{other:?}: {shown}"),
    };
    assert_eq!(answer.code, Some(status), "{shown}");
    let header = |name: &str| {
        let mut found = answer
            .headers
            .iter()
            .filter(|it| it.name.eq_ignore_ascii_case(name));
        let value = found
            .next()
            .map(|it| str::from_utf8(it.value).expect("text"));
        assert!(found.next().is_none(), "{name} twice: {shown}");
        value
    };
    assert_eq!(
        out[..head].windows(2).filter(|it| it == b"\r\n").count(),
        answer.headers.len() + 2
    );
    let length = header("content-length").map(|it| it.parse::<usize>().expect("digits"));
    let body = &out[head..];
    assert!(context.is_head || length == Some(body.len()), "{shown}");
    if header("content-type") == Some("application/json") && !context.is_head {
        let said: Result<serde_json::Value, _> = serde_json::from_slice(body);
        assert!(said.is_ok_and(|it| it.is_object()), "{shown}");
    }
}
