//! Every verb of the line protocol, one row each: letters, arguments, answer, help.
//!
//! The codec, the documentation and the command line are fed from this table, so that none of them
//! can know a verb the others do not. Never parses an argument and never spells a reply.

use std::fmt::Write as _;

use super::need::Need;
use crate::engine::types::RANGE_OWNER_BYTES_MAX;

/// Longest content of a command, key or argument line, in bytes without CR and LF.
/// A longer one is answered `error` and the connection is closed.
pub const LINE_BYTES_MAX: usize = 256;

/// Longest argument line of a verb that carries a value. Same fate.
pub const VALUE_BYTES_MAX: usize = 65_536;

/// Longest argument line of a verb that names the owner of a range, which may be as long as other
/// lines are. Same fate.
pub const OWNER_LINE_BYTES_MAX: usize = LINE_BYTES_MAX + RANGE_OWNER_BYTES_MAX;

/// Writes down the verbs once: the enum, the match over a command line and the rows all come from
/// the same columns.
macro_rules! verbs {
    ($($verb:ident $letters:literal $args:tt $need:ident $success:ident [$($flag:ident)*] $help:literal)*) => {
        /// A verb of the protocol. Several may mean the same to the engine; the letters a client
        /// chose still decide whether its answer carries a fence.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Verb {
            $(
                #[doc = $help]
                $verb,
            )*
        }

        /// All verbs, in the order of the enum.
        pub static TABLE: [Row; [$(Verb::$verb),*].len()] =
            [$(row(Verb::$verb, $letters, $args, Need::$need, Success::$success, $help)$(.$flag())*),*];

        impl Verb {
            /// The verb a command line means: exact, case-sensitive, nothing trimmed.
            #[must_use]
            pub const fn parse(line: &[u8]) -> Option<Self> {
                match line {
                    $($letters => Some(Self::$verb),)*
                    _ => None,
                }
            }
        }
    };
}

const LOCKS: &str = "mode start len T [owner]";
const UNLOCKS: &str = "start len [owner]";
const RANGE: &str = "mode start len [owner]";
const BREAKS: &str = "fence, *, range *, range start len or range client";
const LISTS: &str = "[client [cursor [owner]]] or [owner [cursor]]";
const OPTIONS: &str = "[fence=<0 or 1>] [deadlock=<0 or 1>] [keep=<0 or 1>] [name=<who>]";

// The flags: `fenced` always carries the fence, `reader` shows that its sender reads one, `valued`
// takes a long argument, `owned` names the owner of a range, `keyless` ignores its key, `walks` takes
// a walk. Each is explained at its field of `Row`.
verbs! {
//  verb         letters      argument        needs    success    flags              what it does
    Lock         b"l"         "T [L]"         Write    Granted    []                 "take a lock, waiting up to T"
    Release      b"r"         "token"         Write    Done       []                 "let a lock go"
    Renew        b"n"         "token [L]"     Write    Renewed    []                 "start a lock's lease again"
    Enqueue      b"e"         "[L]"           Write    Enqueued   []                 "take a lock or a place in the queue"
    Wait         b"w"         "T"             Write    Granted    []                 "wait for the place taken with `e`"
    SemLock      b"sl"        "T N [L]"       Write    Granted    []                 "take one of N slots, waiting up to T"
    SemRelease   b"sr"        "token"         Write    Done       []                 "let a slot go"
    SemRenew     b"sn"        "token [L]"     Write    Renewed    []                 "start a slot's lease again"
    SemEnqueue   b"se"        "N [L]"         Write    Enqueued   []                 "take one of N slots or a place in the queue"
    SemWait      b"sw"        "T"             Write    Granted    []                 "wait for the place taken with `se`"
    ReadLock     b"rl"        "T [L]"         Write    Granted    [fenced]           "take a read lock, waiting up to T"
    WriteLock    b"wl"        "T [L]"         Write    Granted    [fenced]           "take a write lock, waiting up to T"
    ReadRelease  b"rr"        "token"         Write    Done       [reader]           "let a read lock go"
    WriteRelease b"wr"        "token"         Write    Done       [reader]           "let a write lock go"
    ReadRenew    b"rn"        "token [L]"     Write    Renewed    [fenced]           "start a read lock's lease again"
    WriteRenew   b"wn"        "token [L]"     Write    Renewed    [fenced]           "start a write lock's lease again"
    ReadEnqueue  b"re"        "[L]"           Write    Enqueued   [fenced]           "take a read lock or a place in the queue"
    WriteEnqueue b"we"        "[L]"           Write    Enqueued   [fenced]           "take a write lock or a place in the queue"
    ReadWait     b"rw"        "T"             Write    Granted    [fenced]           "wait for the place taken with `re`"
    WriteWait    b"ww"        "T"             Write    Granted    [fenced]           "wait for the place taken with `we`"
    Elect        b"elect"     "T [L]"         Write    Granted    [fenced]           "become leader, waiting up to T; renewed with `n`"
    Resign       b"resign"    "token"         Write    Done       [reader]           "lead no longer"
    Observe      b"observe"   ""              Look     Done       [reader]           "be told who takes the lead"
    Unobserve    b"unobserve" ""              Look     Done       [reader]           "be told no longer"
    Incr         b"incr"      "n"             Write    Count      [reader]           "add n to a counter"
    Decr         b"decr"      "n"             Write    Count      [reader]           "take n from a counter"
    Get          b"get"       ""              Look     Count      [reader]           "read a counter"
    Cset         b"cset"      "n"             Write    Done       [reader]           "set a counter"
    Kset         b"kset"      "value[⇥ttl]"   Write    Done       [reader valued]    "store a value"
    Kget         b"kget"      ""              Look     Value      [reader]           "read a value"
    Kdel         b"kdel"      ""              Write    Done       [reader]           "forget a value"
    Kcas         b"kcas"      "old⇥new⇥[ttl]" Write    Swapped    [reader valued]    "store a value if the old one is there; none if empty"
    Lpush        b"lpush"     "value"         Write    Count      [reader valued]    "put a value in at the left"
    Rpush        b"rpush"     "value"         Write    Count      [reader valued]    "put a value in at the right"
    Lpop         b"lpop"      ""              Write    Value      [reader]           "take a value out at the left"
    Rpop         b"rpop"      ""              Write    Value      [reader]           "take a value out at the right"
    Llen         b"llen"      ""              Look     Count      [reader]           "how long a list is"
    Lrange       b"lrange"    "start stop"    Look     Json       [reader walks]     "read a part of a list, both ends included"
    Blpop        b"blpop"     "T"             Write    Value      [reader]           "take a value out at the left, waiting up to T"
    Brpop        b"brpop"     "T"             Write    Value      [reader]           "take a value out at the right, waiting up to T"
    Bwait        b"bwait"     "N T"           Write    Done       [reader]           "wait up to T until N have come"
    Listen       b"listen"    "[group]"       Look     Done       []                 "hear signals on channels that match the key"
    Unlisten     b"unlisten"  "[group]"       Look     Done       []                 "hear them no longer"
    Signal       b"signal"    "payload"       Write    Count      [valued]           "tell all who listen; n are told"
    Watch        b"watch"     ""              Look     Done       [reader]           "be told what happens to keys that match"
    Unwatch      b"unwatch"   ""              Look     Done       [reader]           "be told no longer"
    Auth         b"auth"      "secret"        Nothing  Done       [valued keyless]   "show the secret, before all else"
    Stats        b"stats"     ""              Overview Json       [keyless walks]    "what is held and waited for"
    Ping         b"ping"      ""              Nothing  Done       [keyless]          "nothing, to show that the connection lives"
    Barrier      b"barrier"   ""              Nothing  Done       [keyless]          "nothing: one server is always in step with itself"
    Hello        b"hello"     OPTIONS         Nothing  Welcome    [keyless]          "say what this client wants"
    Who          b"who"       ""              Look     Json       [walks]            "who holds a key and who waits for it"
    Waits        b"waits"     ""              Overview Json       [keyless walks]    "who waits for whom"
    Pos          b"pos"       ""              Look     Place      [walks]            "own place in the queue: 0 holds, 1 is next"
    Reclaim      b"reclaim"   "token [L]"     Write    Granted    [fenced]           "have back what was held before a restart"
    Attach       b"attach"    "T secret [adapter=A]" Write Attached   []                 "acquire for the client of this id, which outlives its connections by T"
    Detach       b"detach"    "secret"        Write    Done       []                 "release everything that the client of this id has, and forget it"
    Break        b"break"     BREAKS          Admin    Count      []                 "end one grant of a key, or all of them, or the range locks of a resource or a client; n are ended"
    RangeLock    b"rangelock" LOCKS           Write    Done       [owned]            "lock bytes of a resource, or lock them otherwise, waiting up to T"
    RangeUnlock  b"rangeunlock" UNLOCKS       Write    Done       [owned]            "let go of these bytes, as far as they are held"
    RangeTest    b"rangetest" RANGE           Look     Tested     [owned]            "who is in the way of such a lock"
    RangeCancel  b"rangecancel" RANGE         Write    Cancelled  [owned]            "end the wait of the `rangelock` that asked for exactly this"
    RangeReclaim b"rangereclaim" RANGE        Write    Done       [owned]            "have back bytes that were held before a restart"
    ReclaimDone  b"reclaimdone" ""            Write    Done       []                 "the client of this id has back what it wants; the rest is released"
    RangeList    b"rangelist" LISTS           Look     Json       [owned walks]      "who holds bytes of a resource and who waits for some, or what a client or an owner holds"
    Grace        b"grace"     "[end]"         Nothing  Grace      [keyless]          "how far the grace period is; `end` ends it"
}

/// What success is answered with, where `<fence>` is only said if the verb or the client wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Success {
    /// `ok <token> <lease> <fence>`
    Granted,
    /// `acquired <token> <lease> <fence>` or `queued`
    Enqueued,
    /// `ok <lease> <fence>`
    Renewed,
    /// `ok`
    Done,
    /// `ok` or `cas_conflict`
    Swapped,
    /// `ok <n>`
    Count,
    /// `ok <n>` or `nil`
    Place,
    /// `ok <value>` or `nil`
    Value,
    /// `ok <json>`
    Json,
    /// `ok latchd/<version> epoch=<n> <options>`
    Welcome,
    /// `ok <epoch> new` or `ok <epoch> resumed`
    Attached,
    /// `ok free` or `ok held <mode> <start> <len> <client> [<owner>]`
    Tested,
    /// `ok cancelled`, `ok granted` or `nil`
    Cancelled,
    /// `ok <remaining ms> <expected> <done>`
    Grace,
}

impl Success {
    /// As documentation shows it; alternatives are joined by ` or `.
    const fn text(self, with_fence: bool) -> &'static str {
        match (self, with_fence) {
            (Self::Granted, false) => "ok <token> <lease>",
            (Self::Granted, true) => "ok <token> <lease> <fence>",
            (Self::Enqueued, false) => "acquired <token> <lease> or queued",
            (Self::Enqueued, true) => "acquired <token> <lease> <fence> or queued",
            (Self::Renewed, false) => "ok <lease>",
            (Self::Renewed, true) => "ok <lease> <fence>",
            (Self::Done, _) => "ok",
            (Self::Swapped, _) => "ok or cas_conflict",
            (Self::Count, _) => "ok <n>",
            (Self::Place, _) => "ok <n> or nil",
            (Self::Value, _) => "ok <value> or nil",
            (Self::Json, _) => "ok <json>",
            (Self::Attached, _) => "ok <epoch> new or ok <epoch> resumed",
            (Self::Tested, _) => "ok free or ok held <mode> <start> <len> <client> [<owner>]",
            (Self::Cancelled, _) => "ok cancelled or ok granted or nil",
            (Self::Grace, _) => "ok <remaining ms> <expected> <done>",
            (Self::Welcome, _) => "ok latchd/<version> epoch=<n> <options>",
        }
    }
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
    /// What it needs of whoever asks. A `listen` in a group and `grace end` need more: see
    /// [`Asked::need`](super::command::Asked::need).
    pub need: Need,
    /// What success is answered with.
    pub success: Success,
    /// What it does, in one line.
    pub help: &'static str,
    /// Its answer carries the fence even where nobody asked for it: only clients that expect the
    /// field send this verb.
    pub carries_fence: bool,
    /// Only clients that read the fence, wherever it stands, know this verb: none of dflockd's
    /// clients that insist on an answer without it sends it.
    pub shows_fence_reader: bool,
    /// Its argument line may hold [`VALUE_BYTES_MAX`] bytes.
    pub takes_value: bool,
    /// Its argument line names the owner of a range, and may hold [`OWNER_LINE_BYTES_MAX`] bytes.
    pub names_owner: bool,
    /// Its key line may hold anything, even nothing.
    pub ignores_key: bool,
    /// Its answer takes a walk over keys, a queue or a list, and may be as long as those are.
    pub takes_a_walk: bool,
}

const fn row(
    verb: Verb,
    letters: &'static [u8],
    args: &'static str,
    need: Need,
    success: Success,
    help: &'static str,
) -> Row {
    let Ok(letters) = str::from_utf8(letters) else {
        panic!("a verb is spelled in ASCII");
    };
    Row {
        verb,
        letters,
        args,
        need,
        success,
        help,
        carries_fence: false,
        shows_fence_reader: false,
        takes_value: false,
        names_owner: false,
        ignores_key: false,
        takes_a_walk: false,
    }
}

/// The flags of the table.
impl Row {
    const fn fenced(mut self) -> Self {
        self.carries_fence = true;
        self.reader()
    }

    const fn reader(mut self) -> Self {
        self.shows_fence_reader = true;
        self
    }

    const fn valued(mut self) -> Self {
        self.takes_value = true;
        self
    }

    const fn owned(mut self) -> Self {
        self.names_owner = true;
        self
    }

    const fn keyless(mut self) -> Self {
        self.ignores_key = true;
        self
    }

    const fn walks(mut self) -> Self {
        self.takes_a_walk = true;
        self
    }
}

impl Verb {
    /// This verb's row of the table.
    #[must_use]
    pub fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// Longest content of this verb's argument line.
    #[must_use]
    pub fn argument_bytes_max(self) -> usize {
        let row = self.row();
        if row.takes_value {
            VALUE_BYTES_MAX
        } else if row.names_owner {
            OWNER_LINE_BYTES_MAX
        } else {
            LINE_BYTES_MAX
        }
    }
}

/// The table as documentation shows it.
#[must_use]
pub fn protocol_markdown() -> String {
    let mut out = String::from(
        "| Command | Key | Argument | Needs | Success | Meaning |\n|---|---|---|---|---|---|\n",
    );
    for row in &TABLE {
        let key = if row.ignores_key { "ignored" } else { "key" };
        let args = if row.args.is_empty() {
            "ignored".to_owned()
        } else {
            format!("`{}`", row.args)
        };
        let success = row.success.text(row.carries_fence);
        let success = success.replace(" or ", "` or `");
        writeln!(
            out,
            "| `{}` | {key} | {args} | {} | `{success}` | {} |",
            row.letters,
            row.need.word(),
            row.help
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
            [
                "rl", "wl", "rn", "wn", "re", "we", "rw", "ww", "elect", "reclaim"
            ]
        );
        assert_eq!(
            named(|row| row.takes_value),
            ["kset", "kcas", "lpush", "rpush", "signal", "auth"]
        );
        assert_eq!(
            named(|row| row.ignores_key),
            [
                "auth", "stats", "ping", "barrier", "hello", "waits", "grace"
            ]
        );
        assert_eq!(
            named(|row| row.takes_a_walk),
            ["lrange", "stats", "who", "waits", "pos", "rangelist"]
        );
        assert_eq!(
            named(|row| row.names_owner),
            [
                "rangelock",
                "rangeunlock",
                "rangetest",
                "rangecancel",
                "rangereclaim",
                "rangelist"
            ]
        );
        // The others are also sent by clients that stumble over a fence, or are latchd's own, where
        // a client says with `hello` what it wants.
        let others: Vec<&str> = named(|row| !row.shows_fence_reader);
        assert_eq!(
            others.join(" "),
            "l r n e w sl sr sn se sw listen unlisten signal auth stats ping barrier hello who waits pos \
             attach detach break rangelock rangeunlock rangetest rangecancel rangereclaim reclaimdone \
             rangelist grace"
        );
    }

    /// Whoever adds a verb has to think about who may say it.
    #[test]
    fn each_verb_needs_what_the_contract_says() {
        let needing = |need: Need| -> String {
            let rows = TABLE.iter().filter(|row| row.need == need);
            rows.map(|row| row.letters).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(needing(Need::Nothing), "auth ping barrier hello grace");
        assert_eq!(
            needing(Need::Look),
            "observe unobserve get kget llen lrange listen unlisten watch unwatch who pos rangetest rangelist"
        );
        assert_eq!(needing(Need::Overview), "stats waits");
        assert_eq!(needing(Need::Admin), "break");
    }

    #[test]
    fn a_row_that_carries_the_fence_says_so() {
        for row in &TABLE {
            let text = row.success.text(row.carries_fence);
            assert_eq!(
                text.contains("<fence>"),
                row.carries_fence,
                "{}",
                row.letters
            );
        }
    }

    #[test]
    fn documentation_has_one_line_per_verb_and_six_cells_in_each() {
        let text = protocol_markdown();
        assert_eq!(text.lines().count(), TABLE.len() + 2);
        for line in text.lines() {
            assert_eq!(line.matches('|').count(), 7, "{line}");
        }
        assert!(text.contains(
            "| `e` | key | `[L]` | write | `acquired <token> <lease>` or `queued` | take a lock or a place"
        ));
        assert!(text.contains("| `ping` | ignored | ignored | nothing | `ok` |"));
    }
}
