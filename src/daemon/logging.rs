//! The log: one event, one line, on standard error or in a file, as text or as JSON.
//!
//! A record may carry fields, `debug!(key = "job", fence = 7; "lease ended")`: members of the
//! object in JSON, ` key=job fence=7` after the message in text.
//!
//! Nothing a peer sends can end a line or move a terminal's cursor: unsafe characters are escaped
//! in both formats, long texts are cut, and no value of a field can pass for another field. Other
//! crates log nothing here: a peer could make them do so without limit, and latchd reports their
//! errors itself. Level and format come from the settings; `RUST_LOG` is never read.

use std::io::{self, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use env_logger::{Builder, Target};
use log::kv::{self, Key, Value, VisitSource};
use log::{Level, LevelFilter, Record};

use super::log_file::{self, Queue};
use super::output::{LogOutput, Output, Way};
use crate::config::{Config, LogFormat};
use crate::escape::{self, is_unsafe};
use crate::server::audit;
use crate::wire::http::LOCK_NAME_BYTES_MAX;
use crate::wire::json::push_str_escaped;

/// Most bytes of a message and of each field, before they are escaped. The rest is cut off. The
/// longest name of a lock fits with each of its bytes as `\xff`.
const TEXT_BYTES_MAX: usize = 4 * LOCK_NAME_BYTES_MAX;

/// What every JSON line has, whatever the fields of its record.
const MEMBERS: [&str; 4] = ["ts", "level", "target", "msg"];

/// How lines are written in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Style {
    pub(super) format: LogFormat,
    /// Each line begins with its priority, `<4>`, because journald reads it. It removes it, too.
    pub(super) has_priorities: bool,
}

impl Style {
    /// The line of one event, with its line end. `since_1970` is the wall clock.
    pub(super) fn line(self, since_1970: Duration, record: &Record<'_>) -> String {
        let mut line = line(self.format, since_1970, record);
        if self.has_priorities {
            line.insert_str(0, priority(record.level()));
        }
        line
    }
}

/// As syslog counts: errors are 3, debugging is 7.
fn priority(level: Level) -> &'static str {
    match level {
        Level::Error => "<3>",
        Level::Warn => "<4>",
        Level::Info => "<6>",
        Level::Debug | Level::Trace => "<7>",
    }
}

/// Sends everything that is logged from now on to the log file, or else to standard error. A line
/// that cannot be written at once is lost (`output.rs`); that never stops the daemon. `to_journal`
/// says that journald reads standard error. A process that has a logger already keeps it.
///
/// # Errors
///
/// If the log file cannot be opened. The log goes to standard error then, where this can be told.
pub(super) fn init(config: &Config, to_journal: bool) -> io::Result<()> {
    let mut style = Style {
        format: config.log_format,
        has_priorities: false,
    };
    let queue = config.log_file.as_ref().map(|path| {
        let file = log_file::open(path)?;
        Queue::start(Output::new(style, Way::File(file)), path.clone())
    });
    let (output, opened) = match queue {
        Some(Ok(queue)) => (LogOutput::queue(queue), Ok(())),
        none_or_failed => {
            style.has_priorities = to_journal;
            let failed = none_or_failed.and_then(Result::err);
            (LogOutput::stderr(style), failed.map_or(Ok(()), Err))
        }
    };
    let _ = filtered(config.log_level)
        .target(Target::Pipe(Box::new(output)))
        .format(move |out, record| {
            let line = style.line(wall_clock(), record);
            out.write_all(line.as_bytes())
        })
        .try_init();
    opened
}

/// A logger of what is at least so important, and of what operators have done.
fn filtered(level: LevelFilter) -> Builder {
    let mut builder = Builder::new();
    builder
        .filter_level(LevelFilter::Off)
        .filter_module(env!("CARGO_CRATE_NAME"), level)
        .filter_module(audit::TARGET, LevelFilter::Info);
    builder
}

/// The line of one event, with its line end. `since_1970` is the wall clock.
#[must_use]
pub fn line(format: LogFormat, since_1970: Duration, record: &Record<'_>) -> String {
    let (ts, level) = (timestamp(since_1970), record.level());
    let message = cut(record.args().to_string());
    let mut line = match format {
        LogFormat::Text => format!("{ts} {level:<5} {}", escape::text(&message)),
        LogFormat::Json => format!(
            "{{\"ts\":\"{ts}\",\"level\":\"{level}\",\"target\":{},\"msg\":{}",
            json(record.target()),
            json(&message),
        ),
    };
    let mut fields = Fields {
        format,
        line: &mut line,
        names: Vec::new(),
    };
    let _ = record.key_values().visit(&mut fields); // our visitor never fails
    line.push_str(match format {
        LogFormat::Text => "\n",
        LogFormat::Json => "}\n",
    });
    line
}

/// Writes a record's fields to the end of its line.
struct Fields<'a> {
    format: LogFormat,
    line: &'a mut String,
    /// The fields that were written.
    names: Vec<String>,
}

impl<'kvs> VisitSource<'kvs> for Fields<'_> {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), kv::Error> {
        let name = key.as_str().to_owned();
        // An object must not have two members of one name, so the first one stands.
        if MEMBERS.contains(&name.as_str()) || self.names.contains(&name) {
            return Ok(());
        }
        let text = cut(value.to_string());
        let is_bare = value.to_i128().is_some()
            || value.to_bool().is_some()
            || value.to_f64().is_some_and(f64::is_finite); // JSON knows no others
        let written = match self.format {
            LogFormat::Text => format!(" {}={}", escape::text(&name), quoted_if_needed(&text)),
            LogFormat::Json if is_bare => format!(",{}:{text}", json(&name)),
            LogFormat::Json => format!(",{}:{}", json(&name), json(&text)),
        };
        self.line.push_str(&written);
        self.names.push(name);
        Ok(())
    }
}

/// The time since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "the one look at the wall clock; no lease is decided by it"
)]
pub(super) fn wall_clock() -> Duration {
    // A clock before 1970 is not worth a crash: it is 1970 then.
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// `2026-11-16T04:30:00.123Z`: UTC to the millisecond, cut, not rounded.
fn timestamp(since_1970: Duration) -> String {
    let seconds = since_1970.as_secs();
    let (year, month, day) = civil_from_days(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let millis = since_1970.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
///
/// Years are taken to begin in March, so that the leap day is the last of its year and the lengths
/// of the months follow a straight line: 153 days in every five.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // from 0000-03-01
    let era = days / 146_097; // 400 years
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

/// At most [`TEXT_BYTES_MAX`] bytes, with a mark where something was cut off.
fn cut(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        text.push('…');
    }
    text
}

/// The value of a field for people: in quotes where it would otherwise not be clear where it ends,
/// or what was escaped.
fn quoted_if_needed(value: &str) -> String {
    let is_plain = |c: char| !c.is_whitespace() && !is_unsafe(c) && !matches!(c, '"' | '=' | '\\');
    if !value.is_empty() && value.chars().all(is_plain) {
        return value.to_owned();
    }
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", escape::text(&value))
}

/// A JSON string.
fn json(text: &str) -> String {
    let mut string = Vec::with_capacity(text.len() + 2);
    push_str_escaped(&mut string, text.as_bytes());
    String::from_utf8_lossy(&string).into_owned()
}

#[cfg(test)]
mod tests {
    use log::kv::Source;

    use super::*;

    const AT: Duration = Duration::from_millis(1_794_803_400_123);

    const NONE: [(&str, &str); 0] = [];

    fn line_of(
        format: LogFormat,
        level: Level,
        target: &str,
        message: &str,
        fields: &dyn Source,
    ) -> String {
        let mut record = Record::builder();
        record.level(level).target(target).key_values(&fields);
        line(format, AT, &record.args(format_args!("{message}")).build())
    }

    #[test]
    fn timestamps_are_utc() {
        for (seconds, written) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (86_399, "1970-01-01T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_709_164_800, "2024-02-29T00:00:00.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (1_735_689_600, "2025-01-01T00:00:00.000Z"),
            (2_147_483_648, "2038-01-19T03:14:08.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799, "9999-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(timestamp(Duration::from_secs(seconds)), written);
        }
        assert_eq!(timestamp(AT), "2026-11-16T04:30:00.123Z");
        assert_eq!(
            timestamp(Duration::new(0, 999_999_999)),
            "1970-01-01T00:00:00.999Z"
        );
    }

    #[test]
    fn every_day_of_a_thousand_years_follows_the_one_before() {
        let leap = |year: u64| {
            year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400)
        };
        let mut days = 0;
        for year in 1970..2970 {
            let february = if leap(year) { 29 } else { 28 };
            let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
            for (month, length) in (1..).zip(lengths) {
                for day in 1..=length {
                    assert_eq!(civil_from_days(days), (year, month, day));
                    days += 1;
                }
            }
        }
    }

    #[test]
    fn text_is_time_level_message() {
        let info = line_of(
            LogFormat::Text,
            Level::Info,
            "latchd::net",
            "listening",
            &NONE,
        );
        assert_eq!(info, "2026-11-16T04:30:00.123Z INFO  listening\n");
        let error = line_of(
            LogFormat::Text,
            Level::Error,
            "latchd",
            "größer → “x”",
            &NONE,
        );
        assert_eq!(error, "2026-11-16T04:30:00.123Z ERROR größer → “x”\n");
    }

    #[test]
    fn no_peer_can_forge_a_line() {
        let forged = "k\r\n2026-11-16T04:30:00.123Z INFO  all is well\t\u{1b}[2J\0\u{7f}\u{85}\u{9b}\u{2028}\u{202e}\u{61c}";
        for format in [LogFormat::Text, LogFormat::Json] {
            let line = line_of(format, Level::Warn, "a\nb", forged, &NONE);
            assert_eq!(line.find('\n'), Some(line.len() - 1), "{line}");
            assert!(!line.trim_end_matches('\n').contains(is_unsafe), "{line:?}");
        }
        let text = line_of(LogFormat::Text, Level::Warn, "", "a\nb\u{1b}[2J", &NONE);
        assert_eq!(text, "2026-11-16T04:30:00.123Z WARN  a\\nb\\u{1b}[2J\n");
    }

    #[test]
    fn long_texts_are_cut() {
        let long = "→".repeat(TEXT_BYTES_MAX);
        for format in [LogFormat::Text, LogFormat::Json] {
            let line = line_of(format, Level::Warn, "latchd", &long, &[("key", &long)]);
            assert!(line.len() < 2 * TEXT_BYTES_MAX + 200, "{}", line.len());
            assert_eq!(line.matches('…').count(), 2);
        }
    }

    #[test]
    fn json_reads_back_as_it_was() {
        let mut message: String = (0..0x300).filter_map(char::from_u32).collect();
        message.push_str("\"quoted\" C:\\n \u{2028}\u{202e}\u{2066}\u{feff}\u{10ffff} 🔒");
        let line = line_of(
            LogFormat::Json,
            Level::Debug,
            "latchd::\"x\"",
            &message,
            &NONE,
        );
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["ts"], "2026-11-16T04:30:00.123Z");
        assert_eq!(read["level"], "DEBUG");
        assert_eq!(read["target"], "latchd::\"x\"");
        assert_eq!(read["msg"], message.as_str());
        assert_eq!(read.as_object().map(serde_json::Map::len), Some(4));
    }
    #[test]
    fn fields_follow_the_message() {
        let fields = [
            ("key", Value::from("job")),
            ("fence", Value::from(1_794_803_400_123_456_u64)),
            ("client", Value::from(7_u32)),
            ("late_ms", Value::from(-1)),
            ("waited", Value::from(true)),
        ];
        let text = line_of(
            LogFormat::Text,
            Level::Debug,
            "latchd",
            "lease ended",
            &fields,
        );
        assert_eq!(
            text,
            "2026-11-16T04:30:00.123Z DEBUG lease ended key=job fence=1794803400123456 client=7 \
             late_ms=-1 waited=true\n"
        );
        let json = line_of(
            LogFormat::Json,
            Level::Debug,
            "latchd",
            "lease ended",
            &fields,
        );
        assert!(
            json.ends_with(
                r#""msg":"lease ended","key":"job","fence":1794803400123456,"client":7,"late_ms":-1,"waited":true}
"#
            ),
            "{json}"
        );
    }

    #[test]
    fn a_field_ends_where_it_ends() {
        for (value, written) in [
            ("", r#""""#),
            ("7", "7"),
            ("größer/→", "größer/→"),
            ("job fence=9", r#""job fence=9""#),
            ("a=b", r#""a=b""#),
            (r#"say "x""#, r#""say \"x\"""#),
            (r"\xff", r#""\\xff""#), // bytes that the caller has escaped
            ("a\nb\u{1b}[2J\u{202e}", r#""a\nb\u{1b}[2J\u{202e}""#),
        ] {
            let fields = [("key", value)];
            let text = line_of(LogFormat::Text, Level::Debug, "latchd", "m", &fields);
            assert_eq!(
                text,
                format!("2026-11-16T04:30:00.123Z DEBUG m key={written}\n")
            );
            let json = line_of(LogFormat::Json, Level::Debug, "latchd", "m", &fields);
            let read: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert_eq!(read["key"], value, "text stays text, also if it is digits");
            assert_eq!(json.find('\n'), Some(json.len() - 1), "{json}");
        }
    }

    #[test]
    fn no_name_stands_twice_in_a_line() {
        let fields = [
            ("msg", "forged"),
            ("ts", "forged"),
            ("level", "forged"),
            ("target", "forged"),
            ("key", "a"),
            ("key", "forged"),
        ];
        let json = line_of(LogFormat::Json, Level::Info, "latchd", "m", &fields);
        assert!(
            json.ends_with("\"target\":\"latchd\",\"msg\":\"m\",\"key\":\"a\"}\n"),
            "{json}"
        );
        let text = line_of(LogFormat::Text, Level::Info, "latchd", "m", &fields);
        assert!(text.ends_with(" INFO  m key=a\n"), "{text}");
    }

    /// What the log of requests is made of: fields under a target of its own.
    #[test]
    fn a_request_is_one_line_with_its_fields_whatever_a_peer_has_sent() {
        let hostile = "job\r\n\u{1b}[2J\",\"op\":\"forged\" op=forged\u{2028}\u{202e}";
        let fields = [
            ("op", Value::from("acquire")),
            ("lock", Value::from(hostile)),
            ("acquired", Value::from(true)),
            ("token", Value::from(7_u64)),
            ("latency_ms", Value::from(0.25)),
        ];
        let written = |format| line_of(format, Level::Info, "latchd::access", "200", &fields);
        let json = written(LogFormat::Json);
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(read["target"], "latchd::access");
        assert_eq!(read["op"], "acquire");
        assert_eq!(read["lock"], hostile);
        assert_eq!(read["acquired"], true);
        assert_eq!(read["token"], 7);
        assert_eq!(read["latency_ms"], 0.25);
        assert_eq!(read.as_object().map(serde_json::Map::len), Some(9));
        let text = written(LogFormat::Text);
        assert_eq!(
            text,
            "2026-11-16T04:30:00.123Z INFO  200 op=acquire \
             lock=\"job\\r\\n\\u{1b}[2J\\\",\\\"op\\\":\\\"forged\\\" op=forged\\u{2028}\\u{202e}\" \
             acquired=true token=7 latency_ms=0.25\n"
        );
        for line in [json, text] {
            assert_eq!(line.find('\n'), Some(line.len() - 1), "{line}");
            assert!(!line.trim_end_matches('\n').contains(is_unsafe), "{line:?}");
        }
    }

    #[test]
    fn a_number_is_a_number_in_json_if_json_knows_it() {
        for (value, written) in [
            (0.125, "0.125"),
            (5.0, "5"),
            (1e21, "1000000000000000000000"),
            (f64::NAN, "\"NaN\""),
            (f64::INFINITY, "\"inf\""),
        ] {
            let fields = [("it", Value::from(value))];
            let json = line_of(LogFormat::Json, Level::Info, "latchd", "m", &fields);
            assert!(json.ends_with(&format!(",\"it\":{written}}}\n")), "{json}");
            serde_json::from_str::<serde_json::Value>(&json).unwrap();
        }
    }

    #[test]
    fn what_operators_do_is_logged_at_every_level() {
        for level in [LevelFilter::Error, LevelFilter::Info, LevelFilter::Trace] {
            let logger = filtered(level).build();
            let mut record = Record::builder();
            record.level(Level::Warn).target(audit::TARGET);
            assert!(logger.matches(&record.build()), "{level}");
        }
    }

    #[test]
    fn other_crates_log_nothing() {
        let logger = filtered(LevelFilter::Trace).build();
        for level in Level::iter() {
            let mut record = Record::builder();
            let record = record
                .level(level)
                .target("rustls::msgs::handshake")
                .build();
            assert!(!logger.matches(&record), "{level}");
        }
    }

    #[test]
    fn a_line_for_journald_begins_with_its_priority() {
        for (level, start) in [
            (Level::Error, "<3>2026-"),
            (Level::Warn, "<4>2026-"),
            (Level::Info, "<6>2026-"),
            (Level::Debug, "<7>2026-"),
            (Level::Trace, "<7>2026-"),
        ] {
            let mut record = Record::builder();
            let record = record.level(level).args(format_args!("m")).build();
            let style = |has_priorities| Style {
                format: LogFormat::Text,
                has_priorities,
            };
            let line = style(true).line(AT, &record);
            assert!(line.starts_with(start), "{line}");
            assert_eq!(line[3..], style(false).line(AT, &record));
        }
    }

    #[test]
    fn requests_are_logged_at_info_and_not_above() {
        for (level, logged) in [
            (LevelFilter::Debug, true),
            (LevelFilter::Info, true),
            (LevelFilter::Warn, false),
        ] {
            let logger = filtered(level).build();
            let mut record = Record::builder();
            record.level(Level::Info).target("latchd::access");
            assert_eq!(logger.matches(&record.build()), logged, "{level}");
        }
    }
}
