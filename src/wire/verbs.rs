//! Every verb of the line protocol, one row each: letters, arguments, answer, help.
//!
//! The codec, the documentation and the command line are fed from this table, so that none of them
//! can know a verb the others do not. Never parses an argument and never spells a reply.

use std::fmt::Write as _;

/// Longest content of a command, key or argument line, in bytes without CR and LF.
/// A longer one is answered `error` and the connection is closed.
pub const LINE_BYTES_MAX: usize = 256;

/// Longest argument line of a verb that carries a value. Same fate.
pub const VALUE_BYTES_MAX: usize = 65_536;

/// A verb of the protocol. Several may mean the same to the engine; the letters a client chose
/// still decide whether its answer carries a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `l`
    Lock,
    /// `r`
    Release,
    /// `n`
    Renew,
    /// `e`
    Enqueue,
    /// `w`
    Wait,
    /// `sl`
    SemLock,
    /// `sr`
    SemRelease,
    /// `sn`
    SemRenew,
    /// `se`
    SemEnqueue,
    /// `sw`
    SemWait,
    /// `rl`
    ReadLock,
    /// `wl`
    WriteLock,
    /// `rr`
    ReadRelease,
    /// `wr`
    WriteRelease,
    /// `rn`
    ReadRenew,
    /// `wn`
    WriteRenew,
    /// `re`
    ReadEnqueue,
    /// `we`
    WriteEnqueue,
    /// `rw`
    ReadWait,
    /// `ww`
    WriteWait,
    /// `elect`
    Elect,
    /// `resign`
    Resign,
    /// `observe`
    Observe,
    /// `unobserve`
    Unobserve,
    /// `incr`
    Incr,
    /// `decr`
    Decr,
    /// `get`
    Get,
    /// `cset`
    Cset,
    /// `kset`
    Kset,
    /// `kget`
    Kget,
    /// `kdel`
    Kdel,
    /// `kcas`
    Kcas,
    /// `lpush`
    Lpush,
    /// `rpush`
    Rpush,
    /// `lpop`
    Lpop,
    /// `rpop`
    Rpop,
    /// `llen`
    Llen,
    /// `lrange`
    Lrange,
    /// `blpop`
    Blpop,
    /// `brpop`
    Brpop,
    /// `bwait`
    Bwait,
    /// `listen`
    Listen,
    /// `unlisten`
    Unlisten,
    /// `signal`
    Signal,
    /// `watch`
    Watch,
    /// `unwatch`
    Unwatch,
    /// `auth`
    Auth,
    /// `stats`
    Stats,
    /// `ping`
    Ping,
    /// `barrier`, which in a cluster orders reads; has nothing to do with `bwait`.
    Barrier,
    /// `hello`
    Hello,
    /// `who`
    Who,
    /// `pos`
    Pos,
}

/// What there is to know about one verb.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The verb.
    pub verb: Verb,
    /// The command line that means it, exactly.
    pub letters: &'static str,
    /// The argument line: `T` wait, `L` lease, `N` how many, `⇥` a tab, brackets optional.
    /// Empty: ignored.
    pub args: &'static str,
    /// The answer to success; alternatives are joined by ` or `.
    pub answer: &'static str,
    /// What it does, in one line.
    pub help: &'static str,
    /// Its answer carries the fence even where nobody asked for it: only clients that expect the
    /// field send this verb.
    pub carries_fence: bool,
    /// Its argument line may hold [`VALUE_BYTES_MAX`] bytes.
    pub takes_value: bool,
    /// Its key line may hold anything, even nothing.
    pub ignores_key: bool,
}

/// All verbs, in the order of the enum.
#[rustfmt::skip] // a table is read in columns
pub const TABLE: [Row; 53] = {
    use Verb::*;
    const GRANTED: &str = "ok <token> <lease>";
    const GRANTED_F: &str = "ok <token> <lease> <fence>";
    const ENQUEUED: &str = "acquired <token> <lease> or queued";
    const ENQUEUED_F: &str = "acquired <token> <lease> <fence> or queued";
    const RENEWED: &str = "ok <lease>";
    const RENEWED_F: &str = "ok <lease> <fence>";
    const OK: &str = "ok";
    const JSON: &str = "ok <json>";
    const PLACE: &str = "ok <n> or nil";
    const COUNT: &str = "ok <n>";
    const VALUE: &str = "ok <value> or nil";
    const SWAPPED: &str = "ok or cas_conflict";
    const PUT: &str = "value[⇥ttl]";
    const SWAP: &str = "old⇥new⇥[ttl]";
    const OPTIONS: &str = "[fence=<0 or 1>] [name=<who>]";
    const WELCOME: &str = "ok latchd/<version> epoch=<n> <options>";
    [
        row(Lock,         "l",         "T [L]",      GRANTED,    "take a lock, waiting up to T"),
        row(Release,      "r",         "token",      OK,         "let a lock go"),
        row(Renew,        "n",         "token [L]",  RENEWED,    "start a lock's lease again"),
        row(Enqueue,      "e",         "[L]",        ENQUEUED,   "take a lock or a place in line"),
        row(Wait,         "w",         "T",          GRANTED,    "wait for the place taken with `e`"),
        row(SemLock,      "sl",        "T N [L]",    GRANTED,    "take one of N slots, waiting up to T"),
        row(SemRelease,   "sr",        "token",      OK,         "let a slot go"),
        row(SemRenew,     "sn",        "token [L]",  RENEWED,    "start a slot's lease again"),
        row(SemEnqueue,   "se",        "N [L]",      ENQUEUED,   "take one of N slots or a place in line"),
        row(SemWait,      "sw",        "T",          GRANTED,    "wait for the place taken with `se`"),
        row(ReadLock,     "rl",        "T [L]",      GRANTED_F,  "take a read lock, waiting up to T").fenced(),
        row(WriteLock,    "wl",        "T [L]",      GRANTED_F,  "take a write lock, waiting up to T").fenced(),
        row(ReadRelease,  "rr",        "token",      OK,         "let a read lock go"),
        row(WriteRelease, "wr",        "token",      OK,         "let a write lock go"),
        row(ReadRenew,    "rn",        "token [L]",  RENEWED_F,  "start a read lock's lease again").fenced(),
        row(WriteRenew,   "wn",        "token [L]",  RENEWED_F,  "start a write lock's lease again").fenced(),
        row(ReadEnqueue,  "re",        "[L]",        ENQUEUED_F, "take a read lock or a place in line").fenced(),
        row(WriteEnqueue, "we",        "[L]",        ENQUEUED_F, "take a write lock or a place in line").fenced(),
        row(ReadWait,     "rw",        "T",          GRANTED_F,  "wait for the place taken with `re`").fenced(),
        row(WriteWait,    "ww",        "T",          GRANTED_F,  "wait for the place taken with `we`").fenced(),
        row(Elect,        "elect",     "T [L]",      GRANTED_F,  "become leader, waiting up to T; renewed with `n`").fenced(),
        row(Resign,       "resign",    "token",      OK,         "lead no longer"),
        row(Observe,      "observe",   "",           OK,         "be told who takes the lead"),
        row(Unobserve,    "unobserve", "",           OK,         "be told no longer"),
        row(Incr,         "incr",      "n",          COUNT,      "add n to a counter"),
        row(Decr,         "decr",      "n",          COUNT,      "take n from a counter"),
        row(Get,          "get",       "",           COUNT,      "read a counter"),
        row(Cset,         "cset",      "n",          OK,         "set a counter"),
        row(Kset,         "kset",      PUT,          OK,         "store a value").valued(),
        row(Kget,         "kget",      "",           VALUE,      "read a value"),
        row(Kdel,         "kdel",      "",           OK,         "forget a value"),
        row(Kcas,         "kcas",      SWAP,         SWAPPED,    "store a value if the old one is there; none if empty").valued(),
        row(Lpush,        "lpush",     "value",      COUNT,      "put a value in at the left").valued(),
        row(Rpush,        "rpush",     "value",      COUNT,      "put a value in at the right").valued(),
        row(Lpop,         "lpop",      "",           VALUE,      "take a value out at the left"),
        row(Rpop,         "rpop",      "",           VALUE,      "take a value out at the right"),
        row(Llen,         "llen",      "",           COUNT,      "how long a list is"),
        row(Lrange,       "lrange",    "start stop", JSON,       "read a part of a list, both ends included"),
        row(Blpop,        "blpop",     "T",          VALUE,      "take a value out at the left, waiting up to T"),
        row(Brpop,        "brpop",     "T",          VALUE,      "take a value out at the right, waiting up to T"),
        row(Bwait,        "bwait",     "N T",        OK,         "wait up to T until N have come"),
        row(Listen,       "listen",    "[group]",    OK,         "hear signals on channels that match the key"),
        row(Unlisten,     "unlisten",  "[group]",    OK,         "hear them no longer"),
        row(Signal,       "signal",    "payload",    COUNT,      "tell all who listen; n are told").valued(),
        row(Watch,        "watch",     "",           OK,         "be told what happens to keys that match"),
        row(Unwatch,      "unwatch",   "",           OK,         "be told no longer"),
        row(Auth,         "auth",      "secret",     OK,         "show the secret, before all else").valued().keyless(),
        row(Stats,        "stats",     "",           JSON,       "what is held and waited for").keyless(),
        row(Ping,         "ping",      "",           OK,         "nothing, to show that the connection lives").keyless(),
        row(Barrier,      "barrier",   "",           OK,         "nothing: one server is always in step with itself").keyless(),
        row(Hello,        "hello",     OPTIONS,      WELCOME,    "say what this client wants").keyless(),
        row(Who,          "who",       "",           JSON,       "who holds a key and who waits for it"),
        row(Pos,          "pos",       "",           PLACE,      "own place in line: 0 holds, 1 is next"),
    ]
};

const fn row(
    verb: Verb,
    letters: &'static str,
    args: &'static str,
    answer: &'static str,
    help: &'static str,
) -> Row {
    Row {
        verb,
        letters,
        args,
        answer,
        help,
        carries_fence: false,
        takes_value: false,
        ignores_key: false,
    }
}

impl Row {
    const fn fenced(self) -> Self {
        Self {
            carries_fence: true,
            ..self
        }
    }

    const fn valued(self) -> Self {
        Self {
            takes_value: true,
            ..self
        }
    }

    const fn keyless(self) -> Self {
        Self {
            ignores_key: true,
            ..self
        }
    }
}

impl Verb {
    /// The verb a command line means: exact, case-sensitive, nothing trimmed.
    #[must_use]
    pub const fn parse(line: &[u8]) -> Option<Self> {
        Some(match line {
            b"l" => Self::Lock,
            b"r" => Self::Release,
            b"n" => Self::Renew,
            b"e" => Self::Enqueue,
            b"w" => Self::Wait,
            b"sl" => Self::SemLock,
            b"sr" => Self::SemRelease,
            b"sn" => Self::SemRenew,
            b"se" => Self::SemEnqueue,
            b"sw" => Self::SemWait,
            b"rl" => Self::ReadLock,
            b"wl" => Self::WriteLock,
            b"rr" => Self::ReadRelease,
            b"wr" => Self::WriteRelease,
            b"rn" => Self::ReadRenew,
            b"wn" => Self::WriteRenew,
            b"re" => Self::ReadEnqueue,
            b"we" => Self::WriteEnqueue,
            b"rw" => Self::ReadWait,
            b"ww" => Self::WriteWait,
            b"elect" => Self::Elect,
            b"resign" => Self::Resign,
            b"observe" => Self::Observe,
            b"unobserve" => Self::Unobserve,
            b"incr" => Self::Incr,
            b"decr" => Self::Decr,
            b"get" => Self::Get,
            b"cset" => Self::Cset,
            b"kset" => Self::Kset,
            b"kget" => Self::Kget,
            b"kdel" => Self::Kdel,
            b"kcas" => Self::Kcas,
            b"lpush" => Self::Lpush,
            b"rpush" => Self::Rpush,
            b"lpop" => Self::Lpop,
            b"rpop" => Self::Rpop,
            b"llen" => Self::Llen,
            b"lrange" => Self::Lrange,
            b"blpop" => Self::Blpop,
            b"brpop" => Self::Brpop,
            b"bwait" => Self::Bwait,
            b"listen" => Self::Listen,
            b"unlisten" => Self::Unlisten,
            b"signal" => Self::Signal,
            b"watch" => Self::Watch,
            b"unwatch" => Self::Unwatch,
            b"auth" => Self::Auth,
            b"stats" => Self::Stats,
            b"ping" => Self::Ping,
            b"barrier" => Self::Barrier,
            b"hello" => Self::Hello,
            b"who" => Self::Who,
            b"pos" => Self::Pos,
            _ => return None,
        })
    }

    /// This verb's row of the table.
    #[must_use]
    pub const fn row(self) -> &'static Row {
        const ROWS: &[Row; 53] = &TABLE;
        &ROWS[self as usize]
    }

    /// Longest content of this verb's argument line.
    #[must_use]
    pub const fn argument_bytes_max(self) -> usize {
        if self.row().takes_value {
            VALUE_BYTES_MAX
        } else {
            LINE_BYTES_MAX
        }
    }
}

/// The table as documentation shows it.
#[must_use]
pub fn protocol_markdown() -> String {
    let mut out =
        String::from("| Command | Key | Argument | Success | Meaning |\n|---|---|---|---|---|\n");
    for row in &TABLE {
        let key = if row.ignores_key { "ignored" } else { "key" };
        let args = if row.args.is_empty() {
            "ignored".to_owned()
        } else {
            format!("`{}`", row.args)
        };
        let answer = row.answer.replace(" or ", "` or `");
        writeln!(
            out,
            "| `{}` | {key} | {args} | `{answer}` | {} |",
            row.letters, row.help
        )
        .expect("a String takes every write");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_by_its_letters_and_its_verb() {
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(
                Verb::parse(row.letters.as_bytes()),
                Some(row.verb),
                "{}",
                row.letters
            );
            assert_eq!(row.verb as usize, i, "{} is out of order", row.letters);
            assert_eq!(row.verb.row().letters, row.letters);
        }
    }

    #[test]
    fn letters_are_exact() {
        for line in [
            "", "L", "l ", " l", "l\0", "lo", "AUTH", "Ping", "statss", "stat", "GET", "get ",
            "inc",
        ] {
            assert_eq!(Verb::parse(line.as_bytes()), None, "{line:?}");
        }
    }

    #[test]
    fn flags_are_on_the_verbs_the_contract_names() {
        let named = |flag: fn(&Row) -> bool| -> Vec<&str> {
            TABLE
                .iter()
                .filter(|row| flag(row))
                .map(|row| row.letters)
                .collect()
        };
        assert_eq!(
            named(|row| row.carries_fence),
            ["rl", "wl", "rn", "wn", "re", "we", "rw", "ww", "elect"]
        );
        assert_eq!(
            named(|row| row.takes_value),
            ["kset", "kcas", "lpush", "rpush", "signal", "auth"]
        );
        assert_eq!(
            named(|row| row.ignores_key),
            ["auth", "stats", "ping", "barrier", "hello"]
        );
    }

    #[test]
    fn a_row_that_carries_the_fence_says_so() {
        for row in &TABLE {
            assert_eq!(
                row.answer.contains("<fence>"),
                row.carries_fence,
                "{}",
                row.letters
            );
        }
    }

    #[test]
    fn documentation_has_one_line_per_verb_and_five_cells_in_each() {
        let text = protocol_markdown();
        assert_eq!(text.lines().count(), TABLE.len() + 2);
        for line in text.lines() {
            assert_eq!(line.matches('|').count(), 6, "{line}");
        }
        assert!(text.contains(
            "| `e` | key | `[L]` | `acquired <token> <lease>` or `queued` | take a lock or a place"
        ));
        assert!(text.contains("| `ping` | ignored | ignored | `ok` |"));
    }
}
