//! The plan `hostile`: every attack that a client without any right can make, and what everybody
//! else feels of it, with the attack and without.
//!
//! A [`Scene`] is one attack and what is wanted of the server during it. The attackers' work is in
//! `patterns`, `holders`, `unread`, `pipelines`, `queues`, `values`, `owners`, `guesses`,
//! `strangers`, `memory`, `tls` and `http`, with the words of `crowd`. Attackers run in their own
//! process: `process`. Measures are in `felt` (with `newcomers` and `logged`), `lateness`,
//! `passed_on`, `bound` and `hand_over`, with the figures of `beside`. Each measure starts its own
//! server.
//!
//! The server has one core. The well-behaved clients and the attackers share another one, where the
//! attackers are nice: they get the time that the well-behaved leave. How late the well-behaved
//! made their requests is a figure too, and if that alone could be why a target is missed, the
//! target is not measured, and the scene is played again.

mod beside;
mod bound;
mod crowd;
mod felt;
mod guesses;
mod hand_over;
mod holders;
mod http;
mod lateness;
mod logged;
mod member;
mod memory;
mod newcomers;
mod owners;
mod passed_on;
mod patterns;
mod pipelines;
pub(crate) mod process;
mod queues;
mod strangers;
mod tls;
mod unread;
mod values;

use std::io;

use crate::hostile::Measure::{
    Bound, Counted, Felt, FeltAndTurn, FeltWithTls, Guarded, HandOver, Http, Late, PassedOn,
};
use crate::hostile::crowd::Crowd;
use crate::hostile::felt::Feeling;
use crate::options::Options;
use crate::output::{eprint, print};
use crate::report::figures::Figures;
use crate::report::format::grouped;
use crate::report::tables::measured_on;
use crate::session::Session;

/// One attack, and what is wanted meanwhile.
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    /// What `--scale` scales: how many there are of what the attack is made of.
    size: usize,
    /// The attack in words; `#` is the size.
    words: &'static str,
    /// What the attackers do before they begin, in their own process.
    attack: fn(&mut Crowd) -> io::Result<()>,
    measure: Measure,
}

/// What is measured, and what is wanted of it, in milliseconds.
#[derive(Clone, Copy)]
enum Measure {
    /// How long well-behaved clients wait, p99.
    Felt(f64),
    /// The same, and the longest turn shall be as short.
    FeltAndTurn(f64),
    /// How long well-behaved clients wait whose server asks for a token; newcomers that have it
    /// always get in.
    Guarded(Feeling),
    /// How long well-behaved clients wait that speak TLS.
    FeltWithTls(f64),
    /// How long well-behaved clients of both doors wait, p99, and the longest turn shall be as short.
    Http(f64),
    /// How late a lease of somebody else ends.
    Late(f64),
    /// How soon the lock of somebody who leaves is passed on.
    PassedOn(f64),
    /// How much memory the server takes, and whether it still serves those who need no more.
    Bound,
    /// How much memory the server takes beside what it counts.
    Counted,
    /// How many hand-overs of one key there are, beside a server that does nothing else.
    HandOver,
}

/// The least bound of memory, so that an empty server is far below it.
const BOUND_MIB_MIN: usize = 16;

const M: usize = 1_000_000;

/// Of a server that asks for a token: by one door, with strangers that guess, and by both doors.
const TOKEN: Feeling = Feeling::new(10.0).with_secret();
const GUESSES: Feeling = TOKEN.with_guesses();
const TOKEN_HTTP: Feeling = TOKEN.and_turn().by_both_doors();

/// What such a server is started with, so that strangers can fill it.
const SLOTS: &[&str] = &["--max-connections", "200"];
const MEMORY: &[&str] = &["--max-memory", "512m"];

/// All scenes.
#[rustfmt::skip] // a table is read in columns
pub(crate) const SCENES: [Scene; 69] = [
    Scene { name: "patterns",         size: 1 << 17, attack: patterns::one,          measure: Felt(10.0),            words: "# patterns of `a` and `*`, 1 counts up" },
    Scene { name: "patterns-16",      size: 1 << 17, attack: patterns::sixteen,      measure: Felt(10.0),            words: "# patterns of `a` and `*`, 16 count up" },
    Scene { name: "patterns-spread",  size: 1 << 17, attack: patterns::spread,       measure: Felt(10.0),            words: "# patterns of `a` and `*`, 64 a client, 16 count up" },
    Scene { name: "slots-end",        size: M / 2,   attack: holders::end_together,  measure: FeltAndTurn(10.0),     words: "# slots of a semaphore end together, then 1 asks" },
    Scene { name: "slots-held",       size: M,       attack: holders::held,          measure: Felt(10.0),            words: "# slots of a semaphore are held, 16 take more for 1 ms" },
    Scene { name: "lrange-refused",   size: 64,      attack: queues::lrange_refused, measure: Felt(10.0),            words: "# ask for a MiB that turns out to be too long" },
    Scene { name: "lrange",           size: 50,      attack: queues::lrange,         measure: Felt(10.0),            words: "# ask for a MiB of a list" },
    Scene { name: "signals-unread",   size: 500,     attack: unread::signals,        measure: FeltAndTurn(20.0),     words: "16 signal 64 KiB to # who never read" },
    Scene { name: "watches-unread",   size: 300,     attack: unread::watches,        measure: Felt(10.0),            words: "# watch and never read, 16 count up" },
    Scene { name: "groups",           size: M,       attack: unread::groups,         measure: Felt(10.0),            words: "# groups on one channel, 1 signals" },
    Scene { name: "pipelining-100",   size: 100,     attack: pipelines::pings,       measure: Felt(10.0),            words: "# pipeline a cheap request without pause" },
    Scene { name: "pipelining-1000",  size: 1_000,   attack: pipelines::pings,       measure: Felt(25.0),            words: "# pipeline a cheap request without pause" },
    Scene { name: "kget-read",        size: 3_000,   attack: pipelines::kget_read,   measure: FeltAndTurn(25.0),     words: "# pipeline `kget` of 64 KiB and read" },
    Scene { name: "kget-unread",      size: 3_000,   attack: pipelines::kget_unread, measure: FeltAndTurn(25.0),     words: "# pipeline `kget` of 64 KiB and never read" },
    Scene { name: "waiters",          size: 5_000,   attack: queues::waiters,        measure: Felt(10.0),            words: "# wait for one lock, coming and leaving" },
    Scene { name: "pos",              size: M,       attack: queues::pos,            measure: Felt(10.0),            words: "the last of # asks for its place" },
    Scene { name: "values-end",       size: 900_000, attack: values::end,            measure: Late(5.0),             words: "# values end with a lease of another" },
    Scene { name: "values-end-16",    size: 900_000, attack: values::end_flooded,    measure: Late(50.0),            words: "# values end with a lease of another, 16 flood" },
    Scene { name: "values-rearmed",   size: 900_000, attack: values::rearmed,        measure: Late(5.0),             words: "# values stored again, none ends" },
    Scene { name: "owners-leave",     size: 2 * M,   attack: owners::leave,          measure: PassedOn(20.0),        words: "# holds' owners leave with one who is waited for" },
    Scene { name: "owners-leave-16",  size: 2 * M,   attack: owners::leave_flooded,  measure: PassedOn(100.0),       words: "# holds' owners leave with one who is waited for, 16 flood" },
    Scene { name: "wrong-tokens",     size: 10_000,  attack: guesses::wrong,         measure: Guarded(TOKEN),         words: "# wrong secrets a second" },
    Scene { name: "tls-silent",           size: 1_000,  attack: strangers::silent,      measure: FeltWithTls(10.0),    words: "# connect, say nothing and come again" },
    Scene { name: "tls-never-finished",   size: 1_000,  attack: tls::never_finished,    measure: FeltWithTls(10.0),    words: "# send a hello, never go on and come again" },
    Scene { name: "tls-hellos",           size: 1_000,  attack: tls::hellos_per_s,      measure: FeltWithTls(10.0),    words: "# hellos a second" },
    Scene { name: "tls-hellos-slow",      size: 1_000,  attack: tls::hellos_slow,       measure: FeltWithTls(10.0),    words: "# send hellos a byte at a time" },
    Scene { name: "tls-begin-again",      size: 64,     attack: tls::begin_again,       measure: FeltWithTls(10.0),    words: "# send a second hello where they should go on, and come again" },
    Scene { name: "tls-records-slow",     size: 200,    attack: tls::records_slow,      measure: FeltWithTls(10.0),    words: "# send records of 16 KiB a byte at a time" },
    Scene { name: "http-heads-slow",      size: 1_000,  attack: http::heads_slow,       measure: Http(10.0),           words: "# send heads a byte at a time" },
    Scene { name: "http-heads-never",     size: 10_000, attack: http::heads_unfinished, measure: Http(10.0),           words: "# heads never finished, their time over together" },
    Scene { name: "http-bodies-slow",     size: 1_000,  attack: http::bodies_slow,      measure: Http(10.0),           words: "# send bodies a byte at a time" },
    Scene { name: "http-bodies-large",    size: 64,     attack: http::bodies_large,     measure: Http(10.0),           words: "# store values in bodies of 192 KiB" },
    Scene { name: "http-chunks",          size: 64,     attack: http::chunks,           measure: Http(10.0),           words: "# send bodies in chunks of a byte" },
    Scene { name: "http-pipelines-100",   size: 100,    attack: http::pipelines,        measure: Http(10.0),           words: "# pipeline `GET /v1/locks/x`, 100 deep, without pause" },
    Scene { name: "http-pipelines-1000",  size: 1_000,  attack: http::pipelines,        measure: Http(25.0),           words: "# pipeline `GET /v1/locks/x`, 100 deep, without pause" },
    Scene { name: "http-headers",         size: 64,     attack: http::headers,          measure: Http(10.0),           words: "# send 64 headers in heads of 16 KiB without pause" },
    Scene { name: "http-headers-refused", size: 64,     attack: http::headers_refused,  measure: Http(10.0),           words: "# send 3,000 headers, are refused and come again" },
    Scene { name: "http-wrong-tokens",    size: 10_000, attack: http::wrong_tokens,     measure: Guarded(TOKEN_HTTP),   words: "# wrong tokens a second" },
    Scene { name: "http-wrong-kept",      size: 1_000,  attack: http::wrong_tokens_kept, measure: Guarded(TOKEN_HTTP),   words: "# pipeline wrong tokens" },
    Scene { name: "http-watches-unread",  size: 300,    attack: http::watches_unread,   measure: Http(10.0),           words: "# streams of all events are never read, 16 count up" },
    Scene { name: "http-signals-unread",  size: 500,    attack: http::signals_unread,   measure: Http(20.0),           words: "16 signal 64 KiB to # streams that are never read" },
    Scene { name: "http-pages",           size: M,      attack: http::pages,            measure: Http(10.0),           words: "# locks held, 16 read all pages of them, 1,000 a page" },
    Scene { name: "http-search",          size: M,      attack: http::search,           measure: Http(10.0),           words: "# locks held, 16 search them for what is not there" },
    Scene { name: "http-scrapes",         size: M,      attack: http::scrapes,          measure: Http(10.0),           words: "# locks held, 16 ask for `/metrics` without pause" },
    Scene { name: "http-figures",         size: M,      attack: http::figures,          measure: Http(10.0),           words: "# locks held, 256 streams of figures come and leave" },
    Scene { name: "http-lookers-on",      size: M,      attack: http::lookers_on,       measure: Http(10.0),           words: "# locks held, 100 dashboards, 4 scrape, 2 walk" },
    Scene { name: "strangers-silent",       size: 1_000,  attack: strangers::silent,            measure: Guarded(TOKEN.with_limits(SLOTS)),         words: "# connect, say nothing and come again, `--max-connections 200`" },
    Scene { name: "strangers-silent-ends",  size: 4_000,  attack: strangers::silent_together,   measure: Guarded(TOKEN),                            words: "# connect and say nothing, their time over together" },
    Scene { name: "strangers-half-auth",    size: 12_000, attack: strangers::half_auth,         measure: Guarded(TOKEN.with_limits(MEMORY)),        words: "# send a long `auth` without its end and come again, `--max-memory 512m`" },
    Scene { name: "strangers-tls-names",    size: 1_000,  attack: tls::bad_names,               measure: Guarded(TOKEN.with_tls()),                 words: "# send TLS hellos with bad host names and come again" },
    Scene { name: "strangers-http-bodies",  size: 4_000,  attack: http::half_bodies,            measure: Guarded(TOKEN_HTTP.with_limits(MEMORY)),   words: "# send bodies of 192 KiB without their end and without a good token over HTTP and come again, `--max-memory 512m`" },
    Scene { name: "strangers-guesses",      size: 500,    attack: guesses::one_after_the_other, measure: Guarded(GUESSES),                          words: "# guess, and again as soon as they are answered or closed" },
    Scene { name: "strangers-guesses-unix", size: 500,    attack: guesses::one_after_the_other, measure: Guarded(GUESSES.over_unix()),              words: "# guess over the unix socket, and again as soon as they are answered or closed" },
    Scene { name: "strangers-http-guesses", size: 500,    attack: http::guesses,                measure: Guarded(TOKEN_HTTP.with_guesses()),        words: "# guess over HTTP, and again as soon as they are answered or closed" },
    Scene { name: "memory-values",    size: 256,     attack: memory::values,         measure: Bound,                 words: "values of 64 KiB, `--max-memory #m`" },
    Scene { name: "memory-lists",     size: 256,     attack: memory::lists,          measure: Bound,                 words: "lists of values of 64 KiB, `--max-memory #m`" },
    Scene { name: "memory-slots",     size: 256,     attack: memory::slots,          measure: Bound,                 words: "slots of one semaphore, `--max-memory #m`" },
    Scene { name: "memory-keys",      size: 256,     attack: memory::keys,           measure: Bound,                 words: "locks with long names, `--max-memory #m`" },
    Scene { name: "memory-places",    size: 256,     attack: memory::places,         measure: Bound,                 words: "two-phase places, `--max-memory #m`" },
    Scene { name: "memory-queued",    size: 256,     attack: memory::queued,         measure: Bound,                 words: "two-phase places behind others, `--max-memory #m`" },
    Scene { name: "memory-observe",   size: 256,     attack: memory::observe,        measure: Bound,                 words: "`observe` of long dotted names, `--max-memory #m`" },
    Scene { name: "memory-listen",    size: 256,     attack: memory::listen,         measure: Bound,                 words: "`listen` to long dotted names, `--max-memory #m`" },
    Scene { name: "memory-watch",     size: 256,     attack: memory::watch,          measure: Bound,                 words: "`watch` of long dotted names, `--max-memory #m`" },
    Scene { name: "memory-unread",    size: 256,     attack: memory::unread,         measure: Bound,                 words: "1,000 subscribers who never read, `--max-memory #m`" },
    Scene { name: "memory-inboxes",   size: 256,     attack: memory::inboxes,        measure: Bound,                 words: "requests of 64 KiB that never end, `--max-memory #m`" },
    Scene { name: "memory-14m-slots", size: 14 * M,  attack: memory::many_slots,     measure: Counted,               words: "# slots of one semaphore" },
    Scene { name: "memory-waiters",   size: 18_000,  attack: memory::waiters,        measure: Counted,               words: "# wait for one lock" },
    Scene { name: "memory-names",     size: 18_000,  attack: memory::names,          measure: Counted,               words: "# say `hello` with a long name" },
    Scene { name: "hand-over",        size: 64,      attack: Crowd::nothing,         measure: HandOver,              words: "# connections that never sleep want one key" },
];

impl Scene {
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        SCENES.iter().find(|it| it.name == name)
    }

    fn size(&self, scale: f64) -> usize {
        let least = match self.measure {
            Bound => BOUND_MIB_MIN,
            _ => 1,
        };
        ((self.size as f64 * scale).round() as usize).max(least)
    }

    /// The attack in words.
    fn title(&self, session: &Session) -> String {
        let size = grouped(self.size(session.options.scale()) as f64);
        format!("{}: {}", self.name, self.words.replace('#', &size))
    }

    /// Measures it for one round: again if what is wanted was not measured, because the machine was
    /// busy with something else, and again. Only the last time counts. A wrong answer is a result.
    fn run(&self, session: &Session, figures: &mut Figures) -> io::Result<()> {
        let mut tries_left = TRIES;
        loop {
            tries_left -= 1;
            let mut round = Figures::default();
            round.about(self.title(session));
            let played = self.play(session, &mut round);
            let is_measured = !round.lacks_something() || round.wrong.count > 0;
            if played.is_err() || tries_left == 0 || is_measured {
                figures.put_round(round);
                return played;
            }
        }
    }

    /// Measures it once.
    fn play(&self, session: &Session, figures: &mut Figures) -> io::Result<()> {
        match self.measure {
            Felt(ms) => felt::measure(session, self, figures, &Feeling::new(ms)),
            FeltAndTurn(ms) => {
                let feeling = Feeling::new(ms).and_turn();
                felt::measure(session, self, figures, &feeling)
            }
            Guarded(feeling) => felt::measure(session, self, figures, &feeling),
            FeltWithTls(ms) => {
                let feeling = Feeling::new(ms).with_tls();
                felt::measure(session, self, figures, &feeling)
            }
            Http(ms) => {
                let feeling = Feeling::new(ms).and_turn().by_both_doors();
                felt::measure(session, self, figures, &feeling)
            }
            Late(most) => lateness::measure(session, self, figures, most),
            PassedOn(most) => passed_on::measure(session, self, figures, most),
            Bound => bound::measure(session, self, figures),
            Counted => bound::measure_counted(session, self, figures),
            HandOver => hand_over::measure(session, self, figures),
        }
    }
}

/// How often a scene is played in one round, at most, if its target was not measured.
const TRIES: usize = 3;

/// Rounds, unless the command line says otherwise.
const ROUNDS: usize = 3;

/// Runs every scene, or those that the command line names; returns whether every answer was right.
pub(crate) fn run(options: Options) -> io::Result<bool> {
    if options.target.is_some() {
        let what = "the plan hostile starts its servers itself: no --target";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let session = Session::open(options)?;
    let chosen = |scene: &&Scene| {
        let only = &session.options.only;
        only.is_empty() || only.iter().any(|name| name == scene.name)
    };
    let mut figures = Figures::default();
    let rounds = session.options.rounds(ROUNDS);
    for round in 1..=rounds {
        for scene in SCENES.iter().filter(chosen) {
            let began = session.clock.now_ns();
            // The others are still measured.
            if let Err(error) = scene.run(&session, &mut figures) {
                figures.wrong.add(format!("{} broke: {error}", scene.name));
            }
            let seconds = (session.clock.now_ns() - began) as f64 / 1e9;
            let name = scene.name;
            eprint(&format!(
                "latch-load: round {round} of {rounds}, {name}: {seconds:.1} s"
            ));
        }
    }
    if session.options.json {
        print(&figures.json())?;
    } else {
        let (on, table) = (measured_on(), figures.side_by_side());
        print(&format!("{on}\n{table}\n{}", figures.verdict()))?;
    }
    Ok(figures.complain())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scene_has_a_name_of_its_own_and_a_size_in_its_words() {
        for (at, scene) in SCENES.iter().enumerate() {
            let same = SCENES[..at].iter().any(|it| it.name == scene.name);
            assert!(!same, "{}", scene.name);
            assert!(scene.words.contains('#'), "{}", scene.name);
            assert!(scene.size(0.0) >= 1, "{}", scene.name);
        }
    }
}
