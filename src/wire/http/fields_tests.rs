//! Bodies that are read and bodies that are not, as Go's decoder has them.

use proptest::prelude::*;

use super::*;

const KNOWN: &[Field] = &[
    Field::OwnerId,
    Field::TtlMs,
    Field::FencingToken,
    Field::IfAbsent,
];

/// What a body says: `owner ttl absent`, or the reason why it says nothing.
fn says(body: &[u8]) -> Result<String, &'static str> {
    let mut scratch = Vec::new();
    let mut arena = Arena::new(&mut scratch, decoded_bytes_max(body));
    let fields = read(body, KNOWN, &mut arena).map_err(|it| {
        assert_eq!(it.status, 400);
        it.reason
    })?;
    let owner = fields.text(Field::OwnerId).map_or("-", |it| it.text);
    let ttl = fields
        .whole(Field::TtlMs)
        .map_or_else(|| "-".to_owned(), |it| it.to_string());
    let absent = fields.is_true(Field::IfAbsent);
    Ok(format!(
        "{owner} {ttl}{}",
        if absent { " absent" } else { "" }
    ))
}

fn check(body: &str, want: Result<&str, &'static str>) {
    let want = want.map(str::to_owned);
    assert_eq!(says(body.as_bytes()), want, "{body}");
}

#[test]
fn an_object_is_read_in_any_order_and_any_spacing() {
    check(r#"{"owner_id":"a","ttl_ms":800}"#, Ok("a 800"));
    check(
        "\r\n\t { \"ttl_ms\" : 800 ,\n\"owner_id\" :\t\"a\" } ",
        Ok("a 800"),
    );
    check("{}", Ok("- -"));
    check(" { } ", Ok("- -"));
    check(r#"{"if_absent":true}"#, Ok("- - absent"));
    check(r#"{"if_absent":false}"#, Ok("- -"));
}

#[test]
fn keys_match_in_any_case_and_the_last_one_counts() {
    check(r#"{"OWNER_ID":"a","Ttl_Ms":1}"#, Ok("a 1"));
    check(
        r#"{"owner_id":"a","owner_id":"b","OWNER_id":"c"}"#,
        Ok("c -"),
    );
    check(r#"{"ttl_ms":1,"ttl_ms":2}"#, Ok("- 2"));
    check(r#"{"\u006fwner_id":"a"}"#, Ok("a -"));
    // Go folds these two letters, too.
    check("{\"ttl_m\u{17f}\":5}", Ok("- 5"));
    check("{\"fencing_to\u{212a}en\":5}", Ok("- -"));
    check("{\"ownér_id\":\"a\"}", Err("UNKNOWN_FIELD"));
    check(r#"{"owner-id":"a"}"#, Err("UNKNOWN_FIELD"));
    check(r#"{"":"a"}"#, Err("UNKNOWN_FIELD"));
    check(r#"{"owner_id ":"a"}"#, Err("UNKNOWN_FIELD"));
    check(r#"{"unknown":null}"#, Err("UNKNOWN_FIELD"));
}

#[test]
fn null_says_nothing() {
    check("null", Ok("- -"));
    check(" null ", Ok("- -"));
    check(r#"{"owner_id":null,"ttl_ms":null}"#, Ok("- -"));
    check(r#"{"owner_id":"a","owner_id":null}"#, Ok("a -"));
    check("nul", Err("BAD_JSON"));
    check("nuLL", Err("BAD_JSON"));
    check(r#"{"owner_id":nil}"#, Err("BAD_JSON"));
}

#[test]
fn what_stands_behind_the_first_value_is_ignored() {
    check(r#"{"owner_id":"a"}garbage"#, Ok("a -"));
    check(r#"{"owner_id":"a"}{"owner_id":"b"}"#, Ok("a -"));
    check("{\"owner_id\":\"a\"}\0", Ok("a -"));
    check("nullx", Ok("- -"));
}

#[test]
fn numbers_are_whole_and_written_so() {
    for (number, want) in [
        ("0", Some("0")),
        ("-0", Some("0")),
        ("-1", Some("-1")),
        ("800", Some("800")),
        ("9223372036854775807", Some("9223372036854775807")),
        ("-9223372036854775808", Some("-9223372036854775808")),
        ("9223372036854775808", None),
        ("-9223372036854775809", None),
        ("18446744073709551616", None),
        ("800.0", None),
        ("1e3", None),
        ("1E3", None),
        ("1e", None),
        ("0.", None),
        ("01", None),
        ("-01", None),
        ("00", None),
        ("+5", None),
        ("-", None),
        ("--1", None),
        ("0x10", None),
        (".5", None),
        ("1_000", None),
        ("\"800\"", None),
        ("true", None),
        ("NaN", None),
        ("Infinity", None),
    ] {
        let body = format!("{{\"ttl_ms\":{number}}}");
        let read = says(body.as_bytes()).ok();
        assert_eq!(read, want.map(|it| format!("- {it}")), "{body}");
    }
    let huge = format!("{{\"ttl_ms\":{}}}", "9".repeat(60_000));
    check(&huge, Err("BAD_FIELD"));
}

#[test]
fn strings_are_decoded() {
    for (string, want) in [
        (r#""""#, Some("")),
        (r#""a b""#, Some("a b")),
        (r#""\"\\\/\b\f\n\r\t""#, Some("\"\\/\u{8}\u{c}\n\r\t")),
        (r#""cl\u00e9""#, Some("clé")),
        (r#""\ud83d\udd12""#, Some("🔒")),
        (r#""\uD83D\uDD12""#, Some("🔒")),
        ("\"🔒é\u{7f}\"", Some("🔒é\u{7f}")),
        (r#""\u0000""#, Some("\0")),
        // Half a pair is no character.
        (r#""\ud83d""#, Some("\u{fffd}")),
        (r#""\udd12x""#, Some("\u{fffd}x")),
        (r#""\ud83dA""#, Some("\u{fffd}A")),
        (r#""\ud83d\u0041""#, Some("\u{fffd}A")),
        (r#""\ud83d\ud83d\udd12""#, Some("\u{fffd}🔒")),
        (r#""\udd12\ud83d""#, Some("\u{fffd}\u{fffd}")),
        (r#""\u12""#, None),
        (r#""\u12g4""#, None),
        (r#""\x41""#, None),
        (r#""\U0041""#, None),
        (r#""\'""#, None),
        ("\"a\nb\"", None),
        ("\"a\tb\"", None),
        ("\"a\0b\"", None),
        ("'a'", None),
        ("a", None),
    ] {
        let body = format!("{{\"owner_id\":{string}}}");
        let read = says(body.as_bytes()).ok();
        assert_eq!(read, want.map(|it| format!("{it} -")), "{body}");
    }
}

#[test]
fn what_is_not_utf_8_is_replaced_byte_by_byte() {
    for (string, want) in [
        (&b"\xff"[..], "\u{fffd}"),
        (b"a\xc3(", "a\u{fffd}("),
        (b"\xf0\x9f\x94", "\u{fffd}\u{fffd}\u{fffd}"),
        (b"\xed\xa0\x80\\n", "\u{fffd}\u{fffd}\u{fffd}\n"),
        (b"\xc0\xaf", "\u{fffd}\u{fffd}"),
    ] {
        let body = [b"{\"owner_id\":\"", string, b"\"}"].concat();
        assert_eq!(says(&body), Ok(format!("{want} -")));
        let mut scratch = Vec::new();
        let mut arena = Arena::new(&mut scratch, decoded_bytes_max(&body));
        let fields = read(&body, KNOWN, &mut arena).unwrap();
        assert!(fields.text(Field::OwnerId).unwrap().is_replaced);
    }
    // All of it, and as long as a body may be.
    let mut body = b"{\"owner_id\":\"".to_vec();
    body.resize(192 * 1024, 0xff);
    body.extend_from_slice(b"\"}");
    assert_eq!(says(&body).unwrap().len(), 3 * (192 * 1024 - 13) + 2);
}

#[test]
fn what_is_no_flat_object_is_refused() {
    for body in [
        "",
        " \n ",
        "{",
        "{\"",
        "{\"owner_id",
        "{\"owner_id\"",
        "{\"owner_id\":",
        "{\"owner_id\":\"a",
        "{\"owner_id\":\"a\"",
        "{\"owner_id\":\"a\",",
        "{\"owner_id\":\"a\"  ",
        "{\"ttl_ms\":8",
        "n",
        "{\"owner_id\":\"\\",
        "{\"owner_id\":\"\\u00",
        "{\"if_absent\":tru",
    ] {
        check(body, Err("BAD_JSON"));
    }
    for body in [
        "[]",
        "\"a\"",
        "5",
        "true",
        "\u{feff}{}",
        "{,}",
        "{\"owner_id\":\"a\",}",
        "{\"owner_id\" \"a\"}",
        "{\"owner_id\":\"a\" \"ttl_ms\":1}",
        "{owner_id:\"a\"}",
        "{\"owner_id\":\"a\";}",
        "/**/{}",
        "{]",
        "owner_id=a&ttl_ms=800",
    ] {
        check(body, Err("BAD_JSON"));
    }
    for body in [
        "{\"owner_id\":{}}",
        "{\"owner_id\":[]}",
        "{\"owner_id\":5}",
        "{\"owner_id\":true}",
        "{\"ttl_ms\":{}}",
        "{\"if_absent\":1}",
        "{\"if_absent\":\"true\"}",
        "{\"owner_id\":,}",
    ] {
        check(body, Err("BAD_FIELD"));
    }
}

#[test]
fn nesting_is_refused_where_it_begins() {
    let deep = |open: &str, close: &str| {
        let (open, close) = (open.repeat(10_000), close.repeat(10_000));
        [
            format!("{open}{close}"),
            format!("{{\"owner_id\":{open}{close}}}"),
            open,
        ]
    };
    for body in deep("[", "]")
        .into_iter()
        .chain(deep("{\"owner_id\":", "}"))
    {
        assert!(says(body.as_bytes()).is_err());
    }
}

#[test]
fn every_field_has_a_name_of_its_own_on_its_route() {
    for row in &super::super::routes::TABLE {
        use super::super::routes::Takes;
        let (Takes::Object(fields) | Takes::Perhaps(fields)) = row.takes else {
            continue;
        };
        assert!(fields.len() <= FIELDS_MAX, "{}", row.operation);
        for (index, field) in fields.iter().enumerate() {
            let same = fields[index + 1..]
                .iter()
                .any(|it| it.name() == field.name());
            assert!(!same, "{}: {}", row.operation, field.name());
            assert!(
                field
                    .name()
                    .bytes()
                    .all(|it| it == b'_' || it.is_ascii_lowercase())
            );
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_break_the_reader(body: Vec<u8>) {
        let _ = says(&body);
    }

    #[test]
    fn no_bytes_in_a_string_break_the_reader(string: Vec<u8>) {
        let _ = says(&[b"{\"owner_id\":\"", &string[..], b"\"}"].concat());
    }

    #[test]
    fn whatever_serde_writes_is_read_back(owner: String, ttl: i64, absent: bool) {
        let body = serde_json::json!({"owner_id": owner, "ttl_ms": ttl, "if_absent": absent});
        let end = if absent { " absent" } else { "" };
        prop_assert_eq!(says(body.to_string().as_bytes()), Ok(format!("{owner} {ttl}{end}")));
    }

    /// A flat object of strings and numbers is one for us if it is one for serde.
    #[test]
    fn serde_agrees_about_what_is_json(
        text in r#"[ \n]?\{("(owner_id|ttl_ms)" ?[:,]? ?("[a\\"u0-9]{0,6}"|-?[0-9.e]{1,4}|null)[,}]?){0,3}\}?"#
    ) {
        let read: Result<serde_json::Value, _> = serde_json::from_str(&text);
        let ours = says(text.as_bytes());
        // We ignore what stands behind the object, and it does not.
        if let Ok(serde_json::Value::Object(fields)) = read {
            // serde reads the integer -0 as a float, because it keeps the sign.
            let is_minus_zero = text.split([':', '}', ',', ' ', '\n']).any(|it| it == "-0");
            let is_integer = |it: &serde_json::Value| it.is_i64() || is_minus_zero;
            let fits = fields.get("owner_id").is_none_or(|it| it.is_string() || it.is_null())
                && fields.get("ttl_ms").is_none_or(|it| is_integer(it) || it.is_null());
            let has_twice = text.matches("owner_id").count() > 1 || text.matches("ttl_ms").count() > 1;
            prop_assert!(has_twice || ours.is_ok() == fits, "{} {:?}", text, ours);
        }
    }
}
