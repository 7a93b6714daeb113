//! What the two tables under the engine cost: deadlines and names, with few and with very many
//! alive.
//!
//! Every benchmark states how many are alive; what is measured is one more operation among them.
//! Never part of a test's verdict: `--test` runs each once, on small tables.

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use latchd::base::Nanos;
use latchd::keymap::{KeyMap, PARTS};
use latchd::timers::{TimerId, Timers};

/// The lease every timer stands for, in nanoseconds.
const LEASE_NS: u64 = 33_000_000_000;

criterion_group!(benches, timers, keymap, keymap_resize, timers_resize);
criterion_main!(benches);

/// The sizes asked for; under `--test` the smallest only, because building ten million takes
/// seconds.
fn sizes(all: &[u32]) -> &[u32] {
    let smoke = std::env::args().any(|argument| argument == "--test");
    if smoke { &all[..1] } else { all }
}

/// Live timers, due at random instants of one lease.
struct Leases {
    timers: Timers<u64>,
    ids: Vec<TimerId>,
    chance: fastrand::Rng,
}

impl Leases {
    fn new(live: u32) -> Self {
        let mut chance = fastrand::Rng::with_seed(7);
        let mut timers = Timers::new();
        let arm = |what| timers.arm(Nanos(chance.u64(..LEASE_NS)), u64::from(what));
        let ids = (0..live).map(arm).collect();
        Self {
            timers,
            ids,
            chance,
        }
    }
}

fn timers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("timers");
    for &live in sizes(&[1_000, 1_000_000, 10_000_000]) {
        // Built by the first benchmark that is not filtered out, shared by the others of this size.
        let mut built = None;

        // The life of an uncontended lock: its lease is the latest of all, and is cancelled soon.
        group.bench_function(BenchmarkId::new("arm_cancel_latest", live), |bencher| {
            let Leases { timers, .. } = built.get_or_insert_with(|| Leases::new(live));
            let mut now = LEASE_NS;
            bencher.iter(|| {
                now += 1_000;
                let id = timers.arm(Nanos(now), now);
                timers.cancel(black_box(id));
            });
        });

        // Locks held for a while: somebody lets go, somebody else begins.
        group.bench_function(BenchmarkId::new("cancel_any_arm_latest", live), |bencher| {
            let Leases {
                timers,
                ids,
                chance,
            } = built.get_or_insert_with(|| Leases::new(live));
            let mut now = LEASE_NS;
            bencher.iter(|| {
                now += 1_000;
                let place = chance.usize(..ids.len());
                timers.cancel(ids[place]);
                ids[place] = timers.arm(Nanos(now), now);
            });
        });

        // A renewal.
        group.bench_function(BenchmarkId::new("rearm_later", live), |bencher| {
            let Leases {
                timers,
                ids,
                chance,
            } = built.get_or_insert_with(|| Leases::new(live));
            bencher.iter(|| {
                let id = ids[chance.usize(..ids.len())];
                let at = timers.deadline(id);
                timers.rearm(id, Nanos(at.0 + 1_000));
            });
        });

        // The worst: everything comes due, and something else takes its place. Built apart, because
        // popping kills ids the others hold.
        drop(built);
        let mut built = None;
        group.bench_function(BenchmarkId::new("pop_arm", live), |bencher| {
            let Leases { timers, chance, .. } = built.get_or_insert_with(|| Leases::new(live));
            bencher.iter(|| {
                let mut budget = u32::MAX;
                let due = timers.pop_due(Nanos::NEVER, &mut budget);
                let (at, what) = due.expect("as many are armed as are popped");
                timers.arm(Nanos(at.0 + chance.u64(..LEASE_NS)), what);
            });
        });
    }
    group.finish();
}

/// Names as clients choose them, and the map that finds them.
struct Names {
    map: KeyMap,
    names: Vec<String>,
    chance: fastrand::Rng,
}

impl Names {
    fn new(live: u32) -> Self {
        let names: Vec<String> = (0..live).map(|n| format!("job/{n:010}")).collect();
        let mut map = KeyMap::new([7, 8]);
        for (name, index) in names.iter().zip(0..) {
            map.insert(map.hash(name.as_bytes()), index);
        }
        Self {
            map,
            names,
            chance: fastrand::Rng::with_seed(7),
        }
    }
}

fn keymap(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("keymap");
    for &live in sizes(&[1_000, 1_000_000]) {
        let mut built = None;

        group.bench_function(BenchmarkId::new("hash", live), |bencher| {
            let Names { map, names, chance } = built.get_or_insert_with(|| Names::new(live));
            bencher.iter(|| map.hash(names[chance.usize(..names.len())].as_bytes()));
        });

        // As the engine does it: hash the name, find the index, compare the name. The name itself
        // is in the cache, as a request that has just been read is.
        group.bench_function(BenchmarkId::new("find_present", live), |bencher| {
            let Names { map, names, chance } = built.get_or_insert_with(|| Names::new(live));
            bencher.iter(|| {
                let name = format_name(chance.u32(..live));
                let found = map.find(map.hash(&name), |i| names[i as usize].as_bytes() == name);
                found.expect("every name is there")
            });
        });

        group.bench_function(BenchmarkId::new("find_absent", live), |bencher| {
            let Names { map, names, chance } = built.get_or_insert_with(|| Names::new(live));
            bencher.iter(|| {
                let name = format_name(live + chance.u32(..live));
                map.find(map.hash(&name), |i| names[i as usize].as_bytes() == name)
            });
        });

        group.bench_function(BenchmarkId::new("insert_remove", live), |bencher| {
            let Names { map, chance, .. } = built.get_or_insert_with(|| Names::new(live));
            bencher.iter(|| {
                let hash = map.hash(&format_name(live + chance.u32(..live)));
                map.insert(hash, live);
                map.remove(hash, live);
            });
        });
    }
    group.finish();
}

/// `job/` and ten digits, without an allocation that would be measured too.
fn format_name(mut number: u32) -> [u8; 14] {
    let mut name = *b"job/0000000000";
    for digit in name[4..].iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    name
}

/// The longest pause the map can cause: the one insertion that doubles a part, the one removal that
/// halves it. Stated for the names in the whole map when its parts are that full.
///
/// A lower bound: the other parts are empty and the allocator hands out memory that is already
/// mapped. In a map that is really that full, a part takes two to three times as long.
fn keymap_resize(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("keymap_resize");
    group.sample_size(20);
    for &buckets in sizes(&[1 << 12, 1 << 20, 1 << 21, 1 << 24]) {
        // A part is full at seven eighths of its buckets, and shrinks below a quarter of that.
        let full_all = buckets / 8 * 7;
        let full = full_all / PARTS as u32;

        group.bench_function(BenchmarkId::new("grow", full_all), |bencher| {
            let grow = |mut map: KeyMap| {
                map.insert(first_part_hash(full), full);
                map
            };
            bencher.iter_batched(|| one_part(full), grow, BatchSize::PerIteration);
        });

        group.bench_function(BenchmarkId::new("shrink", full_all / 4), |bencher| {
            let sparse = || {
                let mut map = one_part(full);
                for index in full / 4..full {
                    map.remove(first_part_hash(index), index);
                }
                map
            };
            let shrink = |mut map: KeyMap| {
                map.remove(first_part_hash(0), 0);
                map
            };
            bencher.iter_batched(sparse, shrink, BatchSize::PerIteration);
        });
    }
    group.finish();
}

/// A map with all its names in the first part.
fn one_part(len: u32) -> KeyMap {
    let mut map = KeyMap::new([7, 8]);
    for index in 0..len {
        map.insert(first_part_hash(index), index);
    }
    map
}

/// Even hashes whose top bits, of which ten are looked at, are those of the first part.
fn first_part_hash(index: u32) -> u32 {
    let mut chance = fastrand::Rng::with_seed(u64::from(index));
    chance.u32(..) >> 10
}

/// The longest pause the timers can cause: the one that doubles both vectors, the last one to go.
fn timers_resize(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("timers_resize");
    group.sample_size(10);
    for &full in sizes(&[1 << 12, 1 << 20, 1 << 21]) {
        group.bench_function(BenchmarkId::new("grow", full), |bencher| {
            let grow = |mut leases: Leases| {
                leases.timers.arm(Nanos(LEASE_NS), 0);
                leases
            };
            bencher.iter_batched(|| Leases::new(full), grow, BatchSize::PerIteration);
        });

        group.bench_function(BenchmarkId::new("last_to_go", full), |bencher| {
            let nearly_empty = || {
                let mut leases = Leases::new(full);
                for id in leases.ids.drain(1..) {
                    leases.timers.cancel(id);
                }
                leases
            };
            let empty = |mut leases: Leases| {
                leases.timers.cancel(leases.ids[0]);
                leases
            };
            bencher.iter_batched(nearly_empty, empty, BatchSize::PerIteration);
        });
    }
    group.finish();
}
