//! Golden documents: of a server that has just started, of one that does a little of everything,
//! and of one after a restart.

use latch_sim::pipe::ORIGIN;
use latchd::base::{ConnId, Millis};
use latchd::engine::types::{
    Attach, By, Effects, End, Input, Mode, RangeAsk, RangeRequest, Record, Request, Secret, Share,
    Sharing, Span,
};
use latchd::engine::{ClientLimit, Engine, Rules};
use latchd::server::Settings;
use latchd::store::{Memory, Store};
use latchd::wire::client::frame;
use latchd::wire::http::routes::{self, Method, Route};

use super::folder::Folder;
use crate::http_server::world::{BEGIN, World, spelled};

/// Documents of the line protocol.
const LINES: [(&str, &str); 12] = [
    ("stats", "stats _"),
    ("waits", "waits _"),
    ("who-lock", "who job"),
    ("who-semaphore", "who pool"),
    ("who-read-write", "who doc"),
    ("who-leader", "who chief"),
    ("who-of-an-owner", "who deploy"),
    ("who-nobody", "who nothing"),
    ("rangelist", "rangelist disk"),
    ("rangelist-of-nothing", "rangelist nothing"),
    ("rangelist-of-a-client", "rangelist gw/1 client"),
    ("lrange", "lrange jobs 0 -1"),
];

/// Documents of the HTTP door. Every route that answers one is here.
const PAGES: [(&str, &str); 30] = [
    ("v1-locks", "/v1/locks"),
    ("v1-locks-in-parts", "/v1/locks?limit=1&contains=o"),
    ("v1-locks-waiting", "/v1/locks?state=waiting"),
    ("v1-locks-name", "/v1/locks/deploy"),
    ("v1-locks-name-free", "/v1/locks/nothing"),
    ("v1-who", "/v1/who/job"),
    ("v1-who-owner", "/v1/who/deploy"),
    ("v1-semaphores", "/v1/semaphores/pool"),
    ("v1-rwlocks", "/v1/rwlocks/doc"),
    ("v1-elections", "/v1/elections/chief"),
    ("v1-clients", "/v1/clients"),
    ("v1-clients-in-parts", "/v1/clients?limit=1"),
    ("v1-ranges", "/v1/ranges"),
    ("v1-ranges-of-client", "/v1/ranges?client=gw%2F1"),
    ("v1-ranges-resource", "/v1/ranges/disk"),
    ("v1-grace", "/v1/grace"),
    ("v1-waits", "/v1/waits"),
    ("v1-counters", "/v1/counters/hits"),
    ("v1-kv", "/v1/kv/cfg"),
    ("v1-kv-nothing", "/v1/kv/nothing"),
    ("v1-lists", "/v1/lists/jobs"),
    ("v1-stats", "/v1/stats"),
    ("v1-connections", "/v1/connections"),
    ("v1-connections-in-parts", "/v1/connections?limit=1"),
    ("livez", "/livez"),
    ("readyz", "/readyz"),
    ("healthz", "/healthz"),
    ("health", "/health"),
    ("ready", "/ready"),
    ("metrics", "/metrics"),
];

/// Figures of memory: they change with the code, and so does the length of a document that has one.
const NOT_COMPARED: [&str; 2] = ["\"memory_bytes\":", "\nlatchd_memory_used_bytes "];

/// Puts a sign in the place of each number that is not compared.
fn masked(text: &str) -> String {
    let found = NOT_COMPARED.iter().any(|name| text.contains(name));
    let names = NOT_COMPARED.iter().chain(&["Content-Length: "]);
    names.filter(|_| found).fold(text.to_owned(), |text, name| {
        let mut parts = text.split(name);
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let rest = part.trim_start_matches(|it: char| it.is_ascii_digit());
            out = out + name + "#" + rest;
        }
        out
    })
}

fn settings() -> Settings {
    let share = |name: &str, prefix: &str| Share {
        name: name.into(),
        prefix: prefix.as_bytes().into(),
    };
    Settings {
        shares: vec![share("jobs", "jo"), share("disks", "di")],
        ..Settings::default()
    }
}

fn rules() -> Rules {
    Rules {
        clients_max: vec![ClientLimit {
            adapter: "gw".into(),
            clients: 20,
        }],
        ..Rules::default()
    }
}

fn say<S: Store>(world: &mut World<S>, client: usize, line: &str) -> String {
    world.send(client, frame(line));
    world.pipes.read(client)
}

/// Every document as it is now.
fn add_documents<S: Store>(folder: &mut Folder, world: &mut World<S>) {
    let line = world.line();
    for (name, request) in LINES {
        let text = say(world, line, request);
        assert!(text.ends_with('\n'), "{request}: {text:?}");
        folder.add(&format!("{name}.line"), masked(&text));
    }
    let http = world.http();
    for (name, path) in PAGES {
        world.send(http, spelled(&format!("GET {path} [X-Request-ID: golden]")));
        let text = world.pipes.read(http).replace("\r\n", "\n");
        assert!(text.starts_with("HTTP/1.1 "), "{path}: {text:?}");
        folder.add(&format!("{name}.http"), masked(&text));
    }
}

#[test]
fn every_route_with_a_document_is_among_the_pages() {
    let is_page = |template: &str| {
        PAGES.iter().any(|(_, path)| {
            let path = path.split('?').next().unwrap();
            let (parts, wanted) = (path.split('/'), template.split('/'));
            parts.clone().count() == wanted.clone().count()
                && parts
                    .zip(wanted)
                    .all(|(part, wanted)| wanted.starts_with('{') || part == wanted)
        })
    };
    for row in &routes::TABLE {
        let is_file = matches!(row.route, Route::OpenApi | Route::Dashboard | Route::Asset);
        if row.method == Method::Get && !row.streams && !is_file {
            assert!(is_page(row.template), "{} has no golden file", row.template);
        }
    }
}

#[test]
fn documents_of_a_server_that_has_just_started() {
    let mut world = World::new();
    let mut folder = Folder::new("started");
    add_documents(&mut folder, &mut world);
    folder.check();
}

#[test]
fn documents_of_a_server_that_does_a_little_of_everything() {
    let mut world = World::with_rules(rules(), settings());
    busy(&mut world);
    let mut folder = Folder::new("busy");
    add_documents(&mut folder, &mut world);
    folder.check();
}

fn busy(world: &mut World) {
    let [a, b, c, d, e] = [(); 5].map(|()| world.line());
    // Holders and waiters of every kind.
    say(world, a, "hello _ name=worker deadlock=1");
    let token = say(world, a, "l gone 0 60");
    let token = token.split(' ').nth(1).unwrap().to_owned();
    say(world, a, &format!("r gone {token}"));
    say(world, a, "l job 0 60");
    say(world, a, "sl pool 0 3");
    say(world, a, "rl doc 0 50");
    say(world, a, "wl page 0 50");
    say(world, a, "elect chief 0 60");
    say(world, a, "l short 0 1");
    say(world, b, "hello _ keep=1");
    say(world, b, "l kept 0 60");
    say(world, b, "e job 30");
    say(world, b, "l job 100");
    say(world, c, "attach gw/1 90 s3cret");
    say(world, c, "l mine 0 60");
    say(world, c, "wl doc 100");
    // Data, and clients that wait for some.
    for line in [
        "cset hits -5",
        "kset cfg value\t60",
        "kset forever some",
        "rpush jobs one",
        "rpush jobs two",
        "listen evt.*",
        "listen evt.a team",
        "watch jo>",
        "watch >",
        "observe chief",
        "signal evt.a hello",
        "get hits",
    ] {
        say(world, d, line);
    }
    say(world, e, "blpop empty 60");
    let f = world.line();
    say(world, f, "bwait start 3 60");
    // Byte ranges of connections and clients.
    let g = world.line();
    say(world, g, "attach gw/1 90 s3cret");
    say(world, g, "rangelock disk ex 0 100 0 alice");
    say(world, g, "rangelock disk sh 200 0 0");
    let h = world.line();
    say(world, h, "rangelock disk ex 50 10 60 bob");
    // Owners and clients over HTTP.
    let http = world.http();
    world.acquire(http, "deploy", "runner-7", 60_000);
    let waiting = world.http();
    world.say(
        waiting,
        "POST /v1/locks/deploy/acquire {\"owner_id\":\"runner-8\",\"ttl_ms\":9000,\"wait_ms\":9000}",
    );
    for request in [
        "PUT /v1/clients/web%2F1 {\"secret\":\"s1\",\"ttl_ms\":60000}",
        "POST /v1/ranges/disk/lock {\"client\":\"web/1\",\"secret\":\"s1\",\"mode\":\"ex\",\"start\":150,\"len\":10}",
        "POST /v1/ranges/disk/lock {\"client\":\"web/1\",\"secret\":\"s1\",\"mode\":\"ex\",\"start\":0,\"len\":1}",
        "POST /v1/semaphores/pool/acquire {\"owner_id\":\"runner-7\",\"ttl_ms\":60000,\"limit\":3}",
        "GET /v1/nothing",
    ] {
        world.ask(http, request);
    }
    let watcher = world.http();
    world.say(watcher, "GET /v1/watch?pattern=job");
    // A lease runs out, a deadlock is refused, an operator breaks something, a client leaves.
    world.pass(1_500);
    say(world, a, "l mine 5");
    say(world, d, "break kept *");
    let gone = world.line();
    say(world, gone, "l left 0 60");
    world.leave(gone);
    world.pass(2_000);
}

/// What an earlier server has recorded.
fn records(rules: Rules) -> Vec<Record> {
    let mut engine = Engine::new(rules, ORIGIN);
    let mut out = Effects::new();
    let (own, client) = (ConnId { slot: 0, serial: 1 }, ConnId { slot: 1, serial: 2 });
    let acquire = |key, mode| Request::Acquire {
        key,
        mode,
        wait: Millis::ZERO,
        lease: Some(Millis::from_secs(60)),
    };
    let push = |value| Request::Push {
        key: b"jobs",
        value,
        end: End::Right,
    };
    let by = By {
        owner: "runner-7",
        request: b"first",
    };
    let attach = Attach {
        id: "gw/1",
        adapter: None,
        ttl: Millis::from_secs(120),
        secret: Secret(b"s3cret"),
    };
    let lock = RangeRequest {
        resource: b"disk",
        owner: b"alice",
        ask: RangeAsk::Lock {
            mode: Sharing::Exclusive,
            span: Span { start: 0, len: 100 },
            wait: Millis::ZERO,
        },
    };
    let hits = Request::SetCount {
        key: b"hits",
        value: -5,
    };
    let cfg = Request::Put {
        key: b"cfg",
        value: b"value",
        ttl: Millis::from_secs(60),
    };
    for input in [
        Input::Request(own, acquire(b"job", Mode::Slot { limit: 1 })),
        Input::Request(own, acquire(b"pool", Mode::Slot { limit: 3 })),
        Input::Request(own, acquire(b"doc", Mode::Read)),
        Input::Request(own, acquire(b"chief", Mode::Lead)),
        Input::RequestBy(own, by, acquire(b"deploy", Mode::Slot { limit: 1 })),
        Input::Attach(client, attach),
        Input::Request(client, acquire(b"mine", Mode::Slot { limit: 1 })),
        Input::Range(client, None, lock),
        Input::Request(own, hits),
        Input::Request(own, cfg),
        Input::Request(own, push(b"one")),
        Input::Request(own, push(b"two")),
    ] {
        engine.apply(BEGIN, input, &mut out);
    }
    engine.take_records().collect()
}

#[test]
fn documents_of_a_server_that_was_started_again() {
    let rules = || Rules {
        durable: true,
        grace_period: Millis::from_secs(90),
        ..rules()
    };
    let records = records(rules());
    let mut engine = Engine::new(
        Rules {
            epoch: 2,
            ..rules()
        },
        ORIGIN,
    );
    let mut nothing = Effects::new();
    let mut apply = |input: Input<'_>| engine.apply(BEGIN, input, &mut nothing);
    records.iter().for_each(|it| apply(Input::Restore(it)));
    apply(Input::Serve {
        may_have_lost: false,
    });
    let mut world = World::over(engine, settings(), Memory);
    world.pass(3_000);
    let mut folder = Folder::new("restarted");
    add_documents(&mut folder, &mut world);
    folder.check();
}
