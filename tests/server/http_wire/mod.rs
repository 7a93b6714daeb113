//! What bytes mean at the HTTP door, as text: requests, and what is asked or refused.
//!
//! Each transcript is read at once, byte by byte, and with every other cut; all must come to the
//! same. `UPDATE_SCRIPTS=1 cargo test --test server http_wire::` writes what was understood into
//! the transcripts; review it as a diff.
//!
//! ```text
//! ## What happens.
//! > a line of a request, which ends with CRLF
//! >> a part of its body, which ends where it ends; `\r`, `\n`, `\t`, `\\` and `\x00` are bytes
//! = what is asked
//! < or what is answered instead
//! ```
//!
//! `Content-Length: *` is the length of the parts that follow.

#![allow(
    clippy::unwrap_used,
    reason = "a transcript that cannot be read has to fail the test"
)]

mod paths;

use std::fs;
use std::path::{Path, PathBuf};

use latchd::wire::http::{Asked, Decoded, Memo, Reader, answer};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/http_wire")
}

#[test]
fn every_transcript_is_understood_as_it_says() {
    let rewrite = std::env::var_os("UPDATE_SCRIPTS").is_some();
    let mut files: Vec<PathBuf> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "txt"))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    let mut wrong = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let held = held(&text);
        if held == text {
            continue;
        }
        if rewrite {
            fs::write(&file, held).unwrap();
            continue;
        }
        let lines = text.lines().zip(held.lines());
        let first = lines.enumerate().find(|(_, (wanted, is))| wanted != is);
        wrong.push(format!("{}: {first:?}", file.display()));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The transcript as it should be: the requests as they are, and behind each what it is understood
/// as.
fn held(text: &str) -> String {
    let kept = text.lines().filter(|line| !line.starts_with(['=', '<']));
    let lines: Vec<&str> = kept.collect();
    let mut out = String::new();
    for conversation in lines.chunk_by(|_, next| !next.starts_with("## ")) {
        let (bytes, ends) = bytes(conversation);
        let mut understood = understood(&bytes).into_iter().peekable();
        for (line, end) in conversation.iter().zip(ends) {
            out.push_str(line);
            out.push('\n');
            while let Some((_, text)) = understood.next_if(|(upto, _)| *upto <= end) {
                out.push_str(&text);
            }
        }
    }
    out
}

/// The bytes that these lines of a transcript stand for, and how many there are after each.
fn bytes(lines: &[&str]) -> (Vec<u8>, Vec<usize>) {
    let part = |line: &str| {
        let rest = line.strip_prefix(">>")?;
        Some(unescaped(rest.strip_prefix(' ').unwrap_or(rest)))
    };
    let (mut out, mut ends) = (Vec::new(), Vec::new());
    for (index, line) in lines.iter().enumerate() {
        if let Some(bytes) = part(line) {
            out.extend(bytes);
        } else if *line == "> Content-Length: *" {
            let rest = lines[index..].iter().skip_while(|it| part(it).is_none());
            let length: usize = rest.map_while(|it| Some(part(it)?.len())).sum();
            out.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes());
        } else if let Some(rest) = line.strip_prefix('>') {
            out.extend(unescaped(rest.strip_prefix(' ').unwrap_or(rest)));
            out.extend_from_slice(b"\r\n");
        }
        ends.push(out.len());
    }
    (out, ends)
}

fn unescaped(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        rest = more;
        if *first != b'\\' {
            out.push(*first);
            continue;
        }
        let (byte, used) = match more {
            [b'r', ..] => (b'\r', 1),
            [b'n', ..] => (b'\n', 1),
            [b't', ..] => (b'\t', 1),
            [b'\\', ..] => (b'\\', 1),
            [b'x', ..] => (
                u8::from_str_radix(&text[text.len() - more.len()..][1..3], 16).unwrap(),
                3,
            ),
            _ => panic!("no such escape: {text}"),
        };
        out.push(byte);
        rest = &more[used..];
    }
    out
}

/// What the bytes are understood as, however they arrive, and where each request ends.
fn understood(input: &[u8]) -> Vec<(usize, String)> {
    let whole = read_in_steps(input, &[]);
    for cut in 1..input.len() {
        assert_eq!(read_in_steps(input, &[cut]), whole, "cut at {cut}");
    }
    let everywhere: Vec<usize> = (1..input.len()).collect();
    assert_eq!(read_in_steps(input, &everywhere), whole, "byte by byte");
    whole
}

/// Reads input that arrives in pieces which end at these cuts.
fn read_in_steps(input: &[u8], cuts: &[usize]) -> Vec<(usize, String)> {
    let mut reader = Reader::default();
    let mut scratch = Vec::new();
    let (mut out, mut start) = (Vec::new(), 0);
    for &upto in cuts.iter().chain([&input.len()]) {
        loop {
            match reader.decode(&input[start..upto], &mut scratch) {
                Decoded::Request(asked) => {
                    start += asked.used;
                    out.push((start, shown(&asked)));
                }
                Decoded::Unfinished { .. } => break,
                Decoded::Fault(problem) => {
                    let mut told = Vec::new();
                    answer::fault(&mut told, &problem);
                    out.push((input.len(), answered(&told)));
                    return out;
                }
            }
        }
    }
    if start < input.len() {
        out.push((input.len(), "= unfinished\n".to_owned()));
    }
    out
}

fn shown(asked: &Asked<'_>) -> String {
    match &asked.what {
        Ok(ask) => {
            let shown = with_text(&format!("{ask:?}"));
            let end = if asked.context.keep_alive {
                ""
            } else {
                ", then closes"
            };
            format!("= {shown}{end}\n")
        }
        Err(problem) => {
            let mut memo = Memo::default();
            memo.keep(&asked.context, [1, 2]);
            let mut told = Vec::new();
            answer::problem(&mut told, &memo.context().unwrap(), problem);
            answered(&told)
        }
    }
}

fn answered(told: &[u8]) -> String {
    let text = str::from_utf8(told).unwrap();
    text.lines()
        .map(|line| format!("< {line}\n").replace("< \n", "<\n"))
        .collect()
}

/// Shows every list of bytes as the text it is.
fn with_text(debug: &str) -> String {
    let mut out = String::new();
    let mut rest = debug;
    while let Some(start) = rest.find('[') {
        let end = start + rest[start..].find(']').unwrap();
        let list = &rest[start + 1..end];
        let bytes: Option<Vec<u8>> = list
            .split(", ")
            .filter(|it| !it.is_empty())
            .map(|it| it.parse().ok())
            .collect();
        out.push_str(&rest[..start]);
        match bytes {
            Some(bytes) => out.push_str(&format!("\"{}\"", bytes.escape_ascii())),
            None => out.push_str(&rest[start..=end]),
        }
        rest = &rest[end + 1..];
    }
    out + rest
}
