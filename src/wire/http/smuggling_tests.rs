//! Requests about whose end two readers could disagree: each is refused, and nothing behind it is
//! read.

use super::*;

/// The status that ends the connection; 0 if it goes on.
fn fault(bytes: &[u8]) -> u16 {
    let mut scratch = Vec::new();
    match Reader::default().decode(bytes, &mut scratch) {
        Decoded::Fault(problem) => problem.status,
        _ => 0,
    }
}

/// A request with these lines, `|` for CRLF, and another one hidden in its body.
fn with_lines(lines: &str) -> Vec<u8> {
    let hidden = "DELETE /v1/kv/secret HTTP/1.1|Host: x||";
    format!("POST /v1/lists/q/pop HTTP/1.1|Host: x|{lines}||{hidden}")
        .replace('|', "\r\n")
        .into_bytes()
}

#[test]
fn two_lengths_are_none() {
    for (lines, status) in [
        ("Content-Length: 5|Content-Length: 5", 400),
        ("Content-Length: 5|Content-Length: 6", 400),
        ("Content-Length: 5|content-length: 5", 400),
        ("Content-Length: 5, 5", 400),
        ("Content-Length: 5|Transfer-Encoding: chunked", 400),
        ("Transfer-Encoding: chunked|Content-Length: 5", 400),
        ("Transfer-Encoding: identity|Content-Length: 5", 400),
        ("Transfer-Encoding:|Content-Length: 5", 400),
    ] {
        assert_eq!(fault(&with_lines(lines)), status, "{lines}");
    }
}

#[test]
fn a_length_is_digits_only() {
    for value in [
        "+5", "-5", "5 5", "0x5", "5.0", "5e0", "", "\"5\"", "٥", "5\t6", "five", "5;", "5,",
    ] {
        let lines = format!("Content-Length: {value}");
        assert_eq!(fault(&with_lines(&lines)), 400, "{lines}");
    }
    for value in ["18446744073709551616", "99999999999999999999999", "65537"] {
        let lines = format!("Content-Length: {value}");
        assert_eq!(fault(&with_lines(&lines)), 413, "{lines}");
    }
    for value in ["5", "  5", "5\t ", "005"] {
        let lines = format!("Content-Length: {value}");
        assert_eq!(fault(&with_lines(&lines)), 0, "{lines}");
    }
}

#[test]
fn the_only_coding_is_chunked() {
    for value in [
        "gzip",
        "chunked, chunked",
        "gzip, chunked",
        "chunked, gzip",
        "identity",
        "xchunked",
        "chunked;a",
        "",
        "chunked,",
        "\"chunked\"",
    ] {
        let lines = format!("Transfer-Encoding: {value}");
        assert_eq!(fault(&with_lines(&lines)), 501, "{lines}");
    }
    let twice = "Transfer-Encoding: chunked|Transfer-Encoding: chunked";
    assert_eq!(fault(&with_lines(twice)), 501);
    assert_eq!(fault(&with_lines("Transfer-Encoding: \x0bchunked")), 400);
    let old = b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(fault(old), 400);
}

#[test]
fn a_header_is_one_line_and_its_name_ends_with_a_colon() {
    for lines in [
        "Content-Length : 5",
        "Content-Length\t: 5",
        " Content-Length: 5",
        "X: a| Content-Length: 5",
        "X: a|\tb",
        "Content-Length:|  5",
        "Content-Length",
        ": 5",
        "Content\0Length: 5",
        "Content Length: 5",
        "Cont\u{e9}nt-Length: 5",
        "X: a\0b",
        "X: a\rContent-Length: 5",
        "X: a\r\r\nContent-Length: 5",
    ] {
        assert_eq!(fault(&with_lines(lines)), 400, "{lines:?}");
    }
}

#[test]
fn a_line_ends_with_cr_and_lf() {
    for text in [
        "GET / HTTP/1.1\nHost: x\n\n",
        "GET / HTTP/1.1\r\nHost: x\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\n\n",
        "\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "\n",
        "l\njob\n10\n",
    ] {
        assert_eq!(fault(text.as_bytes()), 400, "{text:?}");
    }
}

#[test]
fn a_request_line_has_three_words() {
    for (line, status) in [
        ("GET  / HTTP/1.1", 400),
        ("GET /  HTTP/1.1", 400),
        ("GET / HTTP/1.1 ", 400),
        (" GET / HTTP/1.1", 400),
        ("GET /", 400),
        ("GET", 400),
        ("GET\t/ HTTP/1.1", 400),
        ("GET /a b HTTP/1.1", 400),
        ("GET / HTTP/2.0", 505),
        ("GET / HTTP/1.2", 505),
        ("GET / http/1.1", 400),
        ("GET / HTTP/11", 505),
        ("PRI * HTTP/2.0", 505),
        ("OPTIONS * HTTP/1.1", 400),
        ("CONNECT x:80 HTTP/1.1", 400),
        ("GET x HTTP/1.1", 400),
        ("GET /\u{7f} HTTP/1.1", 400),
        ("GET /\0 HTTP/1.1", 400),
        ("GET /#x HTTP/1.1", 400),
        ("G(T / HTTP/1.1", 400),
    ] {
        let text = format!("{line}\r\nHost: x\r\n\r\n");
        assert_eq!(fault(text.as_bytes()), status, "{line:?}");
    }
    let raw = b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n";
    assert_eq!(fault(raw), 400);
}

#[test]
fn another_protocol_is_told_at_once() {
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01"[..],
        b"\0",
        b"\x80",
        b"\r\n\r\n\r\n\r\n\r\n",
        b"{\"a\":1}",
        b"<xml>",
    ] {
        assert_eq!(fault(bytes), 400, "{bytes:?}");
    }
}

#[test]
fn chunks_are_plain() {
    for (body, status) in [
        ("5|hello|0||", 0),
        ("5;x=y|hello|0||", 400),
        ("5 |hello|0||", 400),
        ("0x5|hello|0||", 400),
        ("+5|hello|0||", 400),
        ("5\nhello|0||", 400),
        ("5|hello0||", 400),
        ("5|hello|0|Content-Length: 3||", 400),
        ("ffffffffffffffff|x|", 400),
        ("100000000|x|", 400),
        ("10001|", 413),
    ] {
        let head = "POST /v1/lists/q/pop HTTP/1.1|Host: x|Transfer-Encoding: chunked||";
        let text = format!("{head}{body}").replace('|', "\r\n");
        assert_eq!(fault(text.as_bytes()), status, "{body}");
    }
}
