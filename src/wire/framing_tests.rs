//! Where frames end: lengths, CRs, other protocols, and every way to cut bytes into packets.

use proptest::prelude::*;

use super::buf::{INBOX_BYTES_MAX, Inbox, Pool};
use super::command::*;
use super::line::*;
use super::verbs::{LINE_BYTES_MAX, TABLE, VALUE_BYTES_MAX};

const SHORT: Decoded<'_> = Decoded::Incomplete {
    lines: 0,
    started: true,
};

/// The input must not be a frame, but `want`.
#[track_caller]
fn check_other(input: &[u8], want: Decoded<'_>) {
    let mut scratch = Vec::new();
    assert_eq!(
        decode(input, &mut scratch),
        want,
        "{}",
        input.escape_ascii()
    );
}

#[test]
fn an_unfinished_frame_says_how_far_it_is() {
    for (input, lines, started) in [
        (&b""[..], 0, false),
        (b"l", 0, true),
        (b"\r", 0, true),
        (b"l\n", 1, true),
        (b"l\nk", 1, true),
        (b"l\nk\n", 2, true),
        (b"l\nk\n1", 2, true),
        (b"l\r\nk\r\n1\r", 2, true),
        (b"foo\nk\n1", 2, true),
        (b"\n", 1, true),
    ] {
        check_other(input, Decoded::Incomplete { lines, started });
    }
}

/// Fills the numbered line of a frame with `content` and checks it with and without its LF.
#[track_caller]
fn check_length(verb: &str, line: usize, content: &[u8], fits: bool) {
    let mut lines = [verb.as_bytes(), b"k", b"1"];
    lines[line] = content;
    let mut scratch = Vec::new();
    let whole = [lines[0], b"\n", lines[1], b"\n", lines[2], b"\n"].concat();
    let at = format!("{verb} line {line}, {} raw bytes", content.len());
    match decode(&whole, &mut scratch) {
        Decoded::Frame(frame) => assert!(fits && frame.used == whole.len(), "{at}"),
        other => assert!(!fits && other == Decoded::TooLong, "{at}: {other:?}"),
    }
    let ended = lines[..line]
        .iter()
        .map(|line| line.len() + 1)
        .sum::<usize>()
        + content.len();
    let want = if fits {
        Decoded::Incomplete {
            lines: line as u8,
            started: true,
        }
    } else {
        Decoded::TooLong
    };
    assert_eq!(decode(&whole[..ended], &mut scratch), want, "{at}, no LF");
}

#[test]
fn a_line_is_cut_off_exactly_at_its_limit_with_or_without_lf() {
    let x = |n| vec![b'x'; n];
    for line in 0..3 {
        for verb in ["l", "foo", "stats"] {
            for (len, fits) in [(255, true), (256, true), (257, false), (1 << 20, false)] {
                check_length(verb, line, &x(len), fits);
            }
        }
    }
    check_length("auth", 0, &x(LINE_BYTES_MAX + 1), false);
    check_length("auth", 1, &x(LINE_BYTES_MAX + 1), false);
    check_length("auth", 2, &x(VALUE_BYTES_MAX), true);
    check_length("auth", 2, &x(VALUE_BYTES_MAX + 1), false);
    check_length("a\rut\rh\r", 2, &x(VALUE_BYTES_MAX), true);
    for row in &TABLE {
        let bytes_max = row.verb.argument_bytes_max();
        check_length(row.letters, 2, &x(bytes_max), true);
        check_length(row.letters, 2, &x(bytes_max + 1), false);
    }
}

#[test]
fn crs_do_not_count_but_are_counted() {
    let with_crs = |content: usize, crs: usize| [vec![b'\r'; crs], vec![b'x'; content]].concat();
    for line in 0..3 {
        check_length("l", line, &[&with_crs(256, 0)[..], b"\r"].concat(), true);
        check_length("l", line, &with_crs(256, LINE_CRS_MAX), true);
        check_length("l", line, &with_crs(257, 1), false);
        check_length("l", line, &with_crs(0, LINE_CRS_MAX), true);
        check_length("l", line, &with_crs(0, LINE_CRS_MAX + 1), false);
        check_length("l", line, &with_crs(0, 1 << 20), false);
    }
    check_length("auth", 2, &with_crs(VALUE_BYTES_MAX, LINE_CRS_MAX), true);
    check_length(
        "auth",
        2,
        &with_crs(VALUE_BYTES_MAX, LINE_CRS_MAX + 1),
        false,
    );
    check_length(
        "auth",
        2,
        &with_crs(VALUE_BYTES_MAX + 1, LINE_CRS_MAX),
        false,
    );
}

#[test]
fn the_longest_frame_fits_an_inbox() {
    let crs = "\r".repeat(LINE_CRS_MAX);
    let mut frame = format!("auth{crs}\n{}{crs}\n", "k".repeat(LINE_BYTES_MAX)).into_bytes();
    frame.extend_from_slice(&vec![b's'; VALUE_BYTES_MAX]);
    frame.extend_from_slice(format!("{crs}\n").as_bytes());
    assert!(frame.len() <= FRAME_BYTES_MAX);
    let mut inbox = Inbox::default();
    assert_eq!(
        inbox.append(&frame, INBOX_BYTES_MAX, &mut Pool::new()),
        frame.len()
    );
    let mut scratch = Vec::new();
    assert!(matches!(
        decode(inbox.bytes(), &mut scratch),
        Decoded::Frame(_)
    ));
}

#[test]
fn other_protocols_are_recognised_by_their_first_bytes() {
    for start in [
        &b"GET "[..],
        b"POST",
        b"PUT ",
        b"HEAD ",
        b"DELETE ",
        b"OPTIONS ",
        b"PATCH ",
        b"CONNECT ",
        b"TRACE ",
        b"PRI * HTTP/2",
        b"Host:",
        b"\x16\x03",
    ] {
        check_other(start, Decoded::Foreign);
        check_other(&start[..start.len() - 1], SHORT);
        check_other(&[start, b"\nl\nk\n10\n"].concat(), Decoded::Foreign);
        check_other(&[start, &[b'x'; 1_000]].concat(), Decoded::Foreign);
        let second = [b"ping\n_\n\n", start].concat();
        let mut scratch = Vec::new();
        let Decoded::Frame(ping) = decode(&second, &mut scratch) else {
            panic!("no frame");
        };
        check_other(&second[ping.used..], Decoded::Foreign);
    }
    check_other(b"hOST: x", Decoded::Foreign);
    check_other(b"PROPFIND / HTTP/1.1\r\n", Decoded::Foreign);
    check_other(b"PROPFIND / HTTP/1.1", SHORT);
    for line in [
        &b"GET\n"[..],
        b"GETX\n",
        b"get /\n",
        b"get\n",
        b"get \n",
        b"GET\t/\n",
        b"Hostess\n",
        b"\x16\n",
        b"HTTP/1.1\n",
    ] {
        check_other(
            line,
            Decoded::Incomplete {
                lines: 1,
                started: true,
            },
        );
    }
}

#[test]
fn a_counter_is_read_where_a_page_is_not() {
    let mut scratch = Vec::new();
    // A key and an argument may look like HTTP as much as they like.
    for frame in [
        &b"get\nk\n\n"[..],
        b"get\nGET\nHost: x\n",
        b"get\r\n/\r\n\r\n",
    ] {
        let Decoded::Frame(got) = decode(frame, &mut scratch) else {
            panic!("{} is no frame", frame.escape_ascii());
        };
        assert!(got.command.is_ok() && got.used == frame.len());
    }
    check_other(b"GET \nk\n\n", Decoded::Foreign);
    check_other(b"GET /k HTTP/1.1\r\n\r\n", Decoded::Foreign);
    check_other(b"get /k HTTP/1.1\r\n\r\n", Decoded::Foreign);
    // Whoever asks for a page in small letters and no version is told it is no verb.
    let Decoded::Frame(got) = decode(b"get /\nk\n\n", &mut scratch) else {
        panic!("no frame");
    };
    assert_eq!(
        (got.verb, got.command),
        (None, Err(Malformed::UnknownCommand))
    );
}

/// Everything there is to compare about a decoded thing, secrets included.
fn told(decoded: &Decoded<'_>) -> String {
    match decoded {
        Decoded::Frame(Asked {
            command: Ok(Command::Auth { secret }),
            used,
            ..
        }) => format!("auth {} {used}", secret.escape_ascii()),
        other => format!("{other:?}"),
    }
}

/// The stream of decoded things when the input arrives in these pieces; ends with the first thing
/// that is no frame and will not become one, or with how the rest stands.
fn decode_pieces<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
    let (mut pool, mut inbox, mut scratch) = (Pool::new(), Inbox::default(), Vec::new());
    let mut seen = Vec::new();
    let mut last = String::new();
    for piece in pieces {
        assert_eq!(inbox.append(piece, INBOX_BYTES_MAX, &mut pool), piece.len());
        loop {
            let decoded = decode(inbox.bytes(), &mut scratch);
            last = told(&decoded);
            match decoded {
                Decoded::Frame(frame) => {
                    assert!((3..=inbox.len()).contains(&frame.used), "{frame:?}");
                    let used = frame.used;
                    seen.push(last.clone());
                    inbox.consume(used, &mut pool);
                }
                Decoded::Incomplete { lines, started } => {
                    assert!(lines <= 2 && started != inbox.is_empty());
                    assert!(
                        inbox.room(INBOX_BYTES_MAX) > 0,
                        "asks for more, has room for none"
                    );
                    break;
                }
                Decoded::TooLong | Decoded::Foreign => {
                    seen.push(last);
                    return seen;
                }
            }
        }
    }
    seen.push(last);
    seen
}

/// Bytes that are often nearly a frame.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let verbs = TABLE.iter().map(|row| row.letters);
    let letters = prop::sample::select(verbs.chain(["foo", "GET", ""]).collect::<Vec<_>>());
    let argument = prop_oneof![
        "[0-9+ ]{0,6}(ms)?( [0-9]{1,3})?",
        "(fence=[01] ?){0,2}(name=[a-z]{0,3})?",
        "[0-9a-f]{32}",
        "[a-z 0-9\t\r]{0,8}(\t[0-9]{0,2})?",
        "-?[0-9]{1,2} -?[0-9]{1,2}",
    ];
    let frame = (letters, "[a-z.*> \r]{0,4}", argument, "\r{0,2}\n")
        .prop_map(|(letters, key, arg, end)| format!("{letters}{end}{key}\n{arg}{end}"));
    let part = prop_oneof![
        8 => frame.prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..20),
        1 => "[lrn\r\n 0-9]{0,12}".prop_map(String::into_bytes),
        1 => (prop::sample::select(vec![b'x', b'\r', b' ']), 250..260_usize)
            .prop_map(|(byte, n)| vec![byte; n]),
        1 => prop::sample::select(vec!["GET / ", "POST ", "Host: x", "X / HTTP/1.1\r\n", "\x16\x03"])
            .prop_map(|text| text.as_bytes().to_vec()),
    ];
    prop::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

#[test]
fn what_clients_send_is_plain() {
    let token = "000000000000002a9f8e7d6c5b4a3921";
    for frame in [
        "l\nk\n10\n".to_owned(),
        "l\nmy-job\n10 60\n".to_owned(),
        format!("r\na-key-of-thirty-two-characters--\n{token}\n"),
        format!("n\nmy-job\n{token} 60\n"),
        "stats\n_\n\n".to_owned(),
        "l\nschlüssel-鍵\n10\n".to_owned(),
        "kset\nconfig\nhello world\t60\n".to_owned(),
    ] {
        for behind in ["", "l\n", "r\nmy-job\n"] {
            let bytes = frame.clone() + behind;
            let used = decode_plain(bytes.as_bytes()).map(|it| it.used);
            // A tab is looked at properly: it might be a CR or LF.
            let want = (!frame.contains('\t')).then_some(frame.len());
            assert_eq!(used, want, "{bytes:?}");
        }
    }
}

proptest! {
    /// The short way must never say anything else than the long one.
    #[test]
    fn a_plain_frame_is_read_as_any_other(bytes in stream()) {
        let mut scratch = Vec::new();
        for start in 0..bytes.len() {
            if let Some(frame) = decode_plain(&bytes[start..]) {
                prop_assert_eq!(decode_any(&bytes[start..], &mut scratch), Decoded::Frame(frame));
            }
        }
    }

    #[test]
    fn how_bytes_are_cut_into_packets_changes_nothing(
        bytes in stream(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let whole = decode_pieces(std::iter::once(&bytes[..]));
        let one_by_one = decode_pieces(bytes.chunks(1));
        if !bytes.is_empty() {
            prop_assert_eq!(&one_by_one, &whole);
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces = decode_pieces(cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]));
        prop_assert_eq!(&pieces, &whole);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes: Vec<u8>) {
        decode_pieces(std::iter::once(&bytes[..bytes.len().min(INBOX_BYTES_MAX)]));
    }
}
