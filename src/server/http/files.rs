//! Files out of the binary, as an answer: the dashboard's, and the description of the interface.

use crate::dashboard::{File, POLICY};
use crate::wire::http::{Context, answer};

/// Appends the answer that is this file, and returns its status: 304 if the browser has it already, by
/// what it sent in `If-None-Match`. A browser asks every time, so that it never runs the scripts of an
/// earlier daemon.
pub(in crate::server) fn file(
    out: &mut Vec<u8>,
    context: &Context<'_>,
    file: &File,
    if_none_match: Option<&[u8]>,
) -> u16 {
    let is_known = if_none_match.is_some_and(|it| file.is_known_by(it));
    let status = if is_known { 304 } else { 200 };
    // It says how long the file is in either case, and that is all it says of it.
    let context = Context {
        is_head: context.is_head || is_known,
        ..*context
    };
    let headers = format!(
        "Cache-Control: no-cache\r\nETag: {}\r\nContent-Security-Policy: {POLICY}\r\n\
         Referrer-Policy: no-referrer\r\n",
        file.tag()
    );
    answer::document(out, &context, status, file.content_type, &headers, |out| {
        out.extend_from_slice(file.bytes);
    });
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::PAGE;

    fn told(is_head: bool, if_none_match: Option<&[u8]>) -> (u16, String) {
        let context = Context {
            route: None,
            is_lease: false,
            is_head,
            keep_alive: true,
            is_http_1_0: false,
            name: b"",
            owner: "",
            client: "",
            request_id: "",
            mode: None,
            number: 0,
            range: None,
        };
        let mut out = Vec::new();
        let status = file(&mut out, &context, &PAGE, if_none_match);
        (status, String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_file_is_told_with_its_tag_and_what_it_may_do() {
        let (status, told) = told(false, Some(b"\"other\""));
        let (head, body) = told.split_once("\r\n\r\n").unwrap();
        assert_eq!((status, body.as_bytes()), (200, PAGE.bytes));
        for line in [
            "HTTP/1.1 200 OK",
            "Content-Type: text/html; charset=utf-8",
            "X-Content-Type-Options: nosniff",
            "Cache-Control: no-cache",
            &format!("ETag: {}", PAGE.tag()),
            &format!("Content-Security-Policy: {POLICY}"),
            "Referrer-Policy: no-referrer",
            &format!("Content-Length: {}", PAGE.bytes.len()),
        ] {
            assert!(head.lines().any(|it| it == line), "{line}: {head}");
        }
    }

    #[test]
    fn whoever_has_it_is_told_so_and_no_more() {
        let (status, known) = told(false, Some(PAGE.tag().as_bytes()));
        assert_eq!(status, 304);
        assert!(known.starts_with("HTTP/1.1 304 Not Modified\r\n"));
        assert!(known.ends_with("\r\n\r\n"), "{known}");
        let (status, head) = told(true, None);
        assert_eq!(status, 200);
        assert!(head.ends_with("\r\n\r\n"), "{head}");
    }
}
