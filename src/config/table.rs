//! Every option, one row each: how it is spelled, what it means, what it does to the [`Config`](super::Config).
//!
//! To add an option, add a field to `Config` and a row here; the command line, the environment, the
//! configuration file, `--help`, the manual page and `docs/settings.md` follow. Never reads an
//! argument, a variable or a configuration file itself.

use log::LevelFilter;

use super::put::{put, put_http_port, put_port, put_socket, put_token, token_in_file};
use super::row::{Row, Takes, Wrong};
use super::{GracePolicy, LogFormat, WireFence};
use super::{cluster, value};
use crate::base::Millis;

/// The options, in the order `--help` shows them.
pub(super) const ROWS: &[Row] = &[
    Row {
        flag: CONFIG,
        value: "FILE",
        takes: Takes::Word,
        env: &["LATCHD_CONFIG"],
        default: "",
        group: SETTINGS,
        rule: "the path of a configuration file",
        help: "Read settings from this file: TOML, with the names of the flags as keys. Flags and \
               variables beat it.",
        set: |c, text| put(&mut c.config_file, value::path(text).map(Some)),
    },
    Row {
        flag: "host",
        value: "ADDRESS",
        takes: Takes::Word,
        env: &["LATCHD_HOST"],
        default: "127.0.0.1",
        group: LISTENING,
        rule: "an IPv4 or IPv6 address such as 127.0.0.1, 0.0.0.0 or ::1, or localhost",
        help: "Address to listen on: IPv4, IPv6 (::1 or [::1]) or localhost, which is 127.0.0.1. \
               0.0.0.0 or :: is every interface; use a token then.",
        set: |c, text| put(&mut c.host, value::host(text)),
    },
    Row {
        flag: "port",
        value: "PORT",
        takes: Takes::Number,
        env: &["LATCHD_PORT"],
        default: "6388",
        group: LISTENING,
        rule: "a port: a whole number from 0 to 65535, 0 for any free one",
        help: "TCP port to listen on, 0 to 65535; 0 takes any free port.",
        set: put_port,
    },
    Row {
        flag: "unix-socket",
        value: "PATH",
        takes: Takes::Word,
        env: &["LATCHD_UNIX_SOCKET"],
        default: "",
        group: LISTENING,
        rule: SOCKET_PATH,
        help: "Listen on this socket file too, besides TCP; about twice as fast.",
        set: |c, text| put_socket(&mut c.unix_socket, text),
    },
    Row {
        flag: "unix-socket-mode",
        value: "MODE",
        takes: Takes::Number,
        env: &["LATCHD_UNIX_SOCKET_MODE"],
        default: "0600",
        group: LISTENING,
        rule: "permission bits in octal, from 000 to 777, such as 0600 or 660",
        help: "Permissions of the socket files, octal: 0600 for this user only, 0660 for the \
               group, 0666 for everyone on the machine.",
        set: |c, text| put(&mut c.unix_socket_mode, value::mode(text)),
    },
    Row {
        flag: "http-port",
        value: "PORT",
        takes: Takes::Number,
        env: &["LATCHD_HTTP_PORT"],
        default: "6389",
        group: HTTP,
        rule: "a port: a whole number from 0 to 65535, 0 for any free one, or off",
        help: "TCP port for HTTP and the dashboard, on the address of --host; 0 takes any free \
               port, off none. If nobody sets it and 6389 is in use, latchd goes on without HTTP.",
        set: put_http_port,
    },
    Row {
        flag: "http-unix-socket",
        value: "PATH",
        takes: Takes::Word,
        env: &["LATCHD_HTTP_UNIX_SOCKET"],
        default: "",
        group: HTTP,
        rule: SOCKET_PATH,
        help: "Serve HTTP on this socket file too, with the permissions of --unix-socket-mode.",
        set: |c, text| put_socket(&mut c.http_unix_socket, text),
    },
    Row {
        flag: "http-host-name",
        value: "NAME",
        takes: Takes::Words,
        env: &["LATCHD_HTTP_HOST_NAME"],
        default: "",
        group: HTTP,
        rule: "a host name such as locks.example.org, without a port, or several with commas \
               between them",
        help: "A name by which people reach this server over HTTP, besides its addresses and \
               localhost; others are refused, because a foreign page could have sent the browser. \
               Several: give it again, or put commas between them.",
        set: |c, text| put(&mut c.http_host_names, value::host_names(text)),
    },
    Row {
        flag: "metrics-open",
        value: "BOOL",
        takes: Takes::Switch { negation: None },
        env: &["LATCHD_METRICS_OPEN"],
        default: "false",
        group: HTTP,
        rule: SWITCH,
        help: "Show the figures at /metrics also to those who send no token.",
        set: |c, text| put(&mut c.metrics_open, value::switch(text)),
    },
    Row {
        flag: SHARE,
        value: "NAME=PREFIX",
        takes: Takes::Words,
        env: &["LATCHD_SHARE"],
        default: "",
        group: HTTP,
        rule: "a share such as video=/srv/video/: a name of letters, digits, dots, dashes and \
               underscores, then the prefix of its keys, without commas and control characters; or \
               several with commas between them, at most 64, no prefix twice",
        help: "A share with figures of its own at /metrics: keys of locks and resources with byte \
               ranges that begin with this prefix. The longest prefix counts, and several prefixes can \
               have one name. At most 64: give it again, or put commas between them. SIGHUP reads \
               those in the configuration file again.",
        set: |c, text| put(&mut c.shares, value::shares(text)),
    },
    Row {
        flag: "get-secrets",
        value: "BOOL",
        takes: Takes::Switch { negation: None },
        env: &["LATCHD_GET_SECRETS"],
        default: "false",
        group: HTTP,
        rule: SWITCH,
        help: "Tell everyone who asks about a lock over HTTP its lease_id, with which anyone can \
               release it; for clients that expect it there.",
        set: |c, text| put(&mut c.get_secrets, value::switch(text)),
    },
    Row {
        flag: "access-log",
        value: "BOOL",
        takes: Takes::Switch { negation: None },
        env: &["LATCHD_ACCESS_LOG"],
        default: "false",
        group: HTTP,
        rule: SWITCH,
        help: "Log every answer over HTTP, one line each, at level info.",
        set: |c, text| put(&mut c.access_log, value::switch(text)),
    },
    Row {
        flag: "data-dir",
        value: "PATH",
        takes: Takes::Word,
        env: &["LATCHD_DATA_DIR"],
        default: "",
        group: STORAGE,
        rule: "the path of a directory",
        help: "Keep what is held and stored in this directory, so that a restart or a crash forgets \
               nothing that was acknowledged. It is made if it is not there. Without it everything \
               is forgotten when the daemon ends.",
        set: |c, text| put(&mut c.data_dir, value::path(text).map(Some)),
    },
    Row {
        flag: "durability",
        value: "WHEN",
        takes: Takes::Word,
        env: &["LATCHD_DURABILITY"],
        default: "sync",
        group: STORAGE,
        rule: "sync or async",
        help: "What an answer waits for, with --data-dir: sync, until what it says is on disk; \
               async, until the system has it, and the disk follows within 100 ms, so that a crash \
               of the machine (not of the daemon) can lose the last moments.",
        set: |c, text| put(&mut c.durability, value::durability(text)),
    },
    cluster::CLUSTER,
    cluster::ETCD,
    cluster::SHARD,
    cluster::ADVERTISE,
    cluster::ADVERTISE_HTTP,
    cluster::TTL,
    cluster::MARGIN,
    cluster::BATCH,
    cluster::TRIM,
    cluster::CA,
    cluster::CERT,
    cluster::KEY,
    cluster::USER,
    cluster::PASSWORD_FILE,
    cluster::QUOTA,
    cluster::COMPACT,
    Row {
        flag: "default-lease-ttl",
        value: "DURATION",
        takes: Takes::Number,
        env: &["LATCHD_DEFAULT_LEASE_TTL", "LATCHD_DEFAULT_LEASE_TTL_S"],
        default: "33s",
        group: LEASES,
        rule: SPAN_ABOVE_ZERO,
        help: "Lease of a grant whose request names none. Above 0.",
        set: |c, text| put(&mut c.default_lease_ttl, value::span_above_zero(text)),
    },
    Row {
        flag: "lease-sweep-interval",
        value: "DURATION",
        takes: Takes::Number,
        env: &[
            "LATCHD_LEASE_SWEEP_INTERVAL",
            "LATCHD_LEASE_SWEEP_INTERVAL_S",
        ],
        default: "1s",
        group: LEASES,
        rule: SPAN_ABOVE_ZERO,
        help: "Accepted for dflockd's sake, without effect: every lease ends at its exact time. \
               Above 0.",
        set: |_, text| put(&mut Millis::default(), value::span_above_zero(text)),
    },
    Row {
        flag: "gc-interval",
        value: "DURATION",
        takes: Takes::Number,
        env: &[
            "LATCHD_GC_INTERVAL",
            "LATCHD_GC_INTERVAL_S",
            "LATCHD_GC_LOOP_SLEEP",
        ],
        default: "5s",
        group: LEASES,
        rule: SPAN_ABOVE_ZERO,
        help: "Time between two looks for keys that nobody uses any more. Above 0.",
        set: |c, text| put(&mut c.gc_interval, value::span_above_zero(text)),
    },
    Row {
        flag: "gc-max-idle",
        value: "DURATION",
        takes: Takes::Number,
        env: &[
            "LATCHD_GC_MAX_IDLE",
            "LATCHD_GC_MAX_IDLE_S",
            "LATCHD_GC_MAX_UNUSED_TIME",
        ],
        default: "60s",
        group: LEASES,
        rule: SPAN,
        help: "How long a key without holder and waiter is remembered.",
        set: |c, text| put(&mut c.gc_max_idle, value::span(text)),
    },
    Row {
        flag: "auto-release-on-disconnect",
        value: "BOOL",
        takes: Takes::Switch {
            negation: Some("no-auto-release-on-disconnect"),
        },
        env: &["LATCHD_AUTO_RELEASE_ON_DISCONNECT"],
        default: "true",
        group: LEASES,
        rule: SWITCH,
        help: "Release what a connection holds when it closes. With =false or \
               --no-auto-release-on-disconnect it stays held until its lease ends.",
        set: |c, text| put(&mut c.auto_release_on_disconnect, value::switch(text)),
    },
    Row {
        flag: "deadlock-detection",
        value: "BOOL",
        takes: Takes::Switch { negation: None },
        env: &["LATCHD_DEADLOCK_DETECTION"],
        default: "false",
        group: LEASES,
        rule: SWITCH,
        help: "Refuse every request that would wait for itself, also of connections that did not \
               ask for it with hello.",
        set: |c, text| put(&mut c.deadlock_detection, value::switch(text)),
    },
    Row {
        flag: "wire-fence",
        value: "auto|always|never",
        takes: Takes::Word,
        env: &["LATCHD_WIRE_FENCE"],
        default: "auto",
        group: LEASES,
        rule: "auto, always or never",
        help: "Which replies carry the fencing number as a field of its own; auto means where \
               the client is known to expect it, or asked with hello.",
        set: |c, text| put(&mut c.wire_fence, value::choice(text, WIRE_FENCES)),
    },
    Row {
        flag: "max-locks",
        value: "COUNT",
        takes: Takes::Number,
        env: &["LATCHD_MAX_LOCKS"],
        default: "1000000",
        group: LIMITS,
        rule: COUNT,
        help: "Most locks, semaphores and read-write locks at one time, together; 0 is no limit. \
               At the limit the one idle longest makes room.",
        set: |c, text| put(&mut c.max_locks, value::limit(text)),
    },
    Row {
        flag: "max-holds",
        value: "COUNT",
        takes: Takes::Number,
        env: &["LATCHD_MAX_HOLDS"],
        default: "10000000",
        group: LIMITS,
        rule: COUNT,
        help: "Most locks, slots, read and write locks held at one time, over all keys; 0 is no \
               limit. One more is error_max_locks.",
        set: |c, text| put(&mut c.max_holds, value::limit(text)),
    },
    Row {
        flag: "max-connections",
        value: "COUNT",
        takes: Takes::Number,
        env: &["LATCHD_MAX_CONNECTIONS"],
        default: "0",
        group: LIMITS,
        rule: COUNT,
        help: "Most connections at one time; 0 is no limit. One more is closed at once, unless one \
               that has not authenticated can make room.",
        set: |c, text| put(&mut c.max_connections, value::limit(text)),
    },
    Row {
        flag: "max-memory",
        value: "SIZE",
        takes: Takes::Number,
        env: &["LATCHD_MAX_MEMORY"],
        default: "half",
        group: LIMITS,
        rule: "a size such as 512m or 2g (k, m and g are 1024, 1024² and 1024³ bytes), 0 for no \
               limit, or half",
        help: "Most memory that clients can make the daemon use, for keys, values, holders, \
               waiters, subscriptions and unread bytes together; 0 is no limit, half is half of \
               the machine's memory or of its control group's. At the limit what would grow is \
               refused with error_memory.",
        set: |c, text| put(&mut c.max_memory, value::memory(text)),
    },
    Row {
        flag: "max-waiters",
        value: "COUNT",
        takes: Takes::Number,
        env: &["LATCHD_MAX_WAITERS"],
        default: "0",
        group: LIMITS,
        rule: COUNT,
        help: "Most waiters on one key; 0 is no limit.",
        set: |c, text| put(&mut c.max_waiters, value::limit(text)),
    },
    Row {
        flag: "max-keys",
        value: "COUNT",
        takes: Takes::Number,
        env: &["LATCHD_MAX_KEYS"],
        default: "1000000",
        group: LIMITS,
        rule: COUNT,
        help: "Most counters, values, lists and barriers at one time, together; 0 is no limit.",
        set: |c, text| put(&mut c.max_keys, value::limit(text)),
    },
    Row {
        flag: "max-list-length",
        value: "COUNT",
        takes: Takes::Number,
        env: &["LATCHD_MAX_LIST_LENGTH"],
        default: "1000000",
        group: LIMITS,
        rule: COUNT,
        help: "Most values in one list; 0 is no limit.",
        set: |c, text| put(&mut c.max_list_length, value::limit(text)),
    },
    Row {
        flag: "max-subscriptions",
        value: "COUNT",
        takes: Takes::Number,
        env: &["LATCHD_MAX_SUBSCRIPTIONS"],
        default: "0",
        group: LIMITS,
        rule: COUNT,
        help: "Most patterns and keys one connection listens to, watches and observes, together; \
               0 is no limit.",
        set: |c, text| put(&mut c.max_subscriptions, value::limit(text)),
    },
    Row {
        flag: "max-clients-per-adapter",
        value: "COUNT",
        takes: Takes::Number,
        env: &["LATCHD_MAX_CLIENTS_PER_ADAPTER"],
        default: "10000",
        group: LIMITS,
        rule: COUNT,
        help: "Most attached clients of one adapter that --max-clients does not name, with a \
               connection or without; 0 is no limit. One more is error_limit.",
        set: |c, text| put(&mut c.max_clients_per_adapter, value::limit(text)),
    },
    Row {
        flag: "max-clients",
        value: "ADAPTER=COUNT",
        takes: Takes::Words,
        env: &["LATCHD_MAX_CLIENTS"],
        default: "",
        group: LIMITS,
        rule: "an adapter with a count, such as nfs=500: a word of at most 32 letters, digits, dots, \
               dashes and underscores, and a whole number from 0 to 4294967295; or several with \
               commas between them, at most 64, no adapter twice",
        help: "Most attached clients of this adapter, with a connection or without; 0 is none. One \
               more is error_max_clients. Figures tell these adapters apart. Several: give it again, \
               or put commas between them.",
        set: |c, text| put(&mut c.max_clients, value::client_limits(text)),
    },
    Row {
        flag: "max-range-locks-per-resource",
        value: "COUNT",
        takes: Takes::Number,
        env: &["LATCHD_MAX_RANGE_LOCKS_PER_RESOURCE"],
        default: "1000",
        group: RANGES,
        rule: COUNT,
        help: "Most range locks of one resource, counted as they are kept: one for each piece that an \
               owner holds in one mode. 0 is no limit. One more is error_limit.",
        set: |c, text| put(&mut c.max_range_locks_per_resource, value::limit(text)),
    },
    Row {
        flag: "max-range-locks-per-client",
        value: "COUNT",
        takes: Takes::Number,
        env: &["LATCHD_MAX_RANGE_LOCKS_PER_CLIENT"],
        default: "10000",
        group: RANGES,
        rule: COUNT,
        help: "Most range locks of one client, for all its owners together; 0 is no limit. One more \
               is error_limit.",
        set: |c, text| put(&mut c.max_range_locks_per_client, value::limit(text)),
    },
    Row {
        flag: "max-range-locks",
        value: "COUNT",
        takes: Takes::Number,
        env: &["LATCHD_MAX_RANGE_LOCKS"],
        default: "100000",
        group: RANGES,
        rule: COUNT,
        help: "Most range locks at one time, over all resources; 0 is no limit. One more is \
               error_limit.",
        set: |c, text| put(&mut c.max_range_locks, value::limit(text)),
    },
    Row {
        flag: "max-range-wait",
        value: "DURATION",
        takes: Takes::Number,
        env: &["LATCHD_MAX_RANGE_WAIT", "LATCHD_MAX_RANGE_WAIT_S"],
        default: "60s",
        group: RANGES,
        rule: SPAN,
        help: "Longest wait for a range lock, however long a client asks to wait; 0 is no bound.",
        set: |c, text| put(&mut c.max_range_wait, value::span_or_none(text)),
    },
    Row {
        flag: "grace-period",
        value: "DURATION",
        takes: Takes::Number,
        env: &["LATCHD_GRACE_PERIOD", "LATCHD_GRACE_PERIOD_S"],
        default: "90s",
        group: RANGES,
        rule: SPAN,
        help: "How long range locks are kept after a restart for the clients that held them, or for \
               the client's time to live if that is longer; what they have not reclaimed by then is \
               released.",
        set: |c, text| put(&mut c.grace_period, value::span(text)),
    },
    Row {
        flag: "grace-policy",
        value: "held|strict",
        takes: Takes::Word,
        env: &["LATCHD_GRACE_POLICY"],
        default: "held",
        group: RANGES,
        rule: "held or strict",
        help: "Which range locks are refused with error_grace during the grace period: held, those on \
               bytes that somebody held before the restart and has not reclaimed; strict, all new ones.",
        set: |c, text| put(&mut c.grace_policy, value::choice(text, GRACE_POLICIES)),
    },
    Row {
        flag: "read-timeout",
        value: "DURATION",
        takes: Takes::Number,
        env: &["LATCHD_READ_TIMEOUT", "LATCHD_READ_TIMEOUT_S"],
        default: "23s",
        group: TIMEOUTS,
        rule: SPAN_ABOVE_ZERO,
        help: "Close a connection that stops in the middle of a request, or is silent and owns \
               nothing, for this long. Above 0.",
        set: |c, text| put(&mut c.read_timeout, value::span_above_zero(text)),
    },
    Row {
        flag: "write-timeout",
        value: "DURATION",
        takes: Takes::Number,
        env: &["LATCHD_WRITE_TIMEOUT", "LATCHD_WRITE_TIMEOUT_S"],
        default: "5s",
        group: TIMEOUTS,
        rule: SPAN,
        help: "Close a connection that takes longer than this for all it is owed; 0 is never.",
        set: |c, text| put(&mut c.write_timeout, value::span_or_none(text)),
    },
    Row {
        flag: "shutdown-timeout",
        value: "DURATION",
        takes: Takes::Number,
        env: &["LATCHD_SHUTDOWN_TIMEOUT", "LATCHD_SHUTDOWN_TIMEOUT_S"],
        default: "30s",
        group: TIMEOUTS,
        rule: SPAN,
        help: "When told to stop, wait at most this long for releases; 0 is for ever. With \
               --data-dir locks stay held on disk, and only what is not on disk is waited for.",
        set: |c, text| put(&mut c.shutdown_timeout, value::span_or_none(text)),
    },
    Row {
        flag: "auth-token",
        value: "TOKEN",
        takes: Takes::Word,
        env: &["LATCHD_AUTH_TOKEN"],
        default: "",
        group: SECURITY,
        rule: "a token: one line of printable text",
        help: "Token every client must send first. Others on the machine can see a command \
               line: prefer the file. A variable that is set but empty is an error.",
        set: |c, text| {
            c.auth_token_file = None;
            put_token(c, value::token(text).map_err(Wrong::Because))
        },
    },
    Row {
        flag: "auth-token-file",
        value: "PATH",
        takes: Takes::Word,
        env: &["LATCHD_AUTH_TOKEN_FILE"],
        default: "",
        group: SECURITY,
        rule: "the path of a file that holds the token",
        help: "File that holds the token, or one on each line with what it gives: token [name] \
               [read, write or admin] [prefix…]. Order: --auth-token or --auth-token-file (not \
               both), then the variables, token first. Read again on SIGHUP.",
        set: |c, text| {
            c.auth_token_file = Some(text.into());
            put_token(c, token_in_file(text))
        },
    },
    Row {
        flag: "tls-cert",
        value: "PATH",
        takes: Takes::Word,
        env: &["LATCHD_TLS_CERT"],
        default: "",
        group: SECURITY,
        rule: A_FILE,
        help: "File with a certificate (PEM), and those between it and its authority: both TCP ports \
               speak TLS 1.2 and 1.3 then, and nothing else; socket files stay as they are. Read \
               again on SIGHUP, as the next two.",
        set: |c, text| put(&mut c.tls_cert, value::path(text).map(Some)),
    },
    Row {
        flag: "tls-key",
        value: "PATH",
        takes: Takes::Word,
        env: &["LATCHD_TLS_KEY"],
        default: "",
        group: SECURITY,
        rule: A_FILE,
        help: "File with the private key of the certificate (PEM), not encrypted.",
        set: |c, text| put(&mut c.tls_key, value::path(text).map(Some)),
    },
    Row {
        flag: "tls-client-ca",
        value: "PATH",
        takes: Takes::Word,
        env: &["LATCHD_TLS_CLIENT_CA"],
        default: "",
        group: SECURITY,
        rule: A_FILE,
        help: "File with certificates of authorities (PEM): only clients with a certificate of one of \
               them are let in over TCP.",
        set: |c, text| put(&mut c.tls_client_ca, value::path(text).map(Some)),
    },
    Row {
        flag: "auth-timeout",
        value: "DURATION",
        takes: Takes::Number,
        env: &["LATCHD_AUTH_TIMEOUT", "LATCHD_AUTH_TIMEOUT_S"],
        default: "5s",
        group: SECURITY,
        rule: SPAN_ABOVE_ZERO,
        help: "Close a connection that has not shown a token so long after it came, if one is asked \
               for. Above 0.",
        set: |c, text| put(&mut c.auth_timeout, value::span_above_zero(text)),
    },
    Row {
        flag: "tls-handshake-timeout",
        value: "DURATION",
        takes: Takes::Number,
        env: &[
            "LATCHD_TLS_HANDSHAKE_TIMEOUT",
            "LATCHD_TLS_HANDSHAKE_TIMEOUT_S",
        ],
        default: "5s",
        group: SECURITY,
        rule: SPAN_ABOVE_ZERO,
        help: "Close a connection that has not finished its TLS handshake so long after it came. \
               Above 0.",
        set: |c, text| put(&mut c.tls_handshake_timeout, value::span_above_zero(text)),
    },
    Row {
        flag: "unix-admin-uid",
        value: "UID",
        takes: Takes::Number,
        env: &["LATCHD_UNIX_ADMIN_UID"],
        default: "",
        group: SECURITY,
        rule: "the number of a user, from 0 to 4294967294",
        help: "This user of the machine needs no token over a unix socket, and may do everything.",
        set: |c, text| put(&mut c.unix_admin_uid, value::uid(text).map(Some)),
    },
    Row {
        flag: "cpu",
        value: "CORE",
        takes: Takes::Number,
        env: &["LATCHD_CPU"],
        default: "",
        group: PERFORMANCE,
        rule: "the number of a core, from 0",
        help: "Stay on this core, counted from 0.",
        set: |c, text| put(&mut c.cpu, value::core(text).map(Some)),
    },
    Row {
        flag: "spin",
        value: "BOOL",
        takes: Takes::Switch { negation: None },
        env: &["LATCHD_SPIN"],
        default: "false",
        group: PERFORMANCE,
        rule: SWITCH,
        help: "Poll without sleeping: lowest latency, one core always busy.",
        set: |c, text| put(&mut c.spin, value::switch(text)),
    },
    Row {
        flag: "log-file",
        value: "PATH",
        takes: Takes::Word,
        env: &["LATCHD_LOG_FILE"],
        default: "",
        group: LOGGING,
        rule: "the path of a file",
        help: "Write the log to the end of this file instead of standard error. It is made if it is not \
               there, with mode 0640, and opened again on SIGHUP, so that it can be renamed before.",
        set: |c, text| put(&mut c.log_file, value::path(text).map(Some)),
    },
    Row {
        flag: "log-format",
        value: "text|json",
        takes: Takes::Word,
        env: &["LATCHD_LOG_FORMAT"],
        default: "text",
        group: LOGGING,
        rule: "text or json",
        help: "One log line per event, for people or for programs.",
        set: |c, text| put(&mut c.log_format, value::choice(text, LOG_FORMATS)),
    },
    // Before --log-level, which wins if both come from the same source.
    Row {
        flag: "debug",
        value: "BOOL",
        takes: Takes::Switch { negation: None },
        env: &["LATCHD_DEBUG"],
        default: "false",
        group: LOGGING,
        rule: SWITCH,
        help: "Short for --log-level debug. If both are given, --log-level counts.",
        set: |c, text| {
            let level = match value::switch(text).ok_or(Wrong::Value)? {
                true => LevelFilter::Debug,
                false => c.log_level,
            };
            put(&mut c.log_level, Some(level))
        },
    },
    Row {
        flag: "log-level",
        value: "LEVEL",
        takes: Takes::Word,
        env: &["LATCHD_LOG_LEVEL"],
        default: "info",
        group: LOGGING,
        rule: "error, warn, info, debug or trace",
        help: "Least important message still logged: error, warn, info, debug or trace.",
        set: |c, text| put(&mut c.log_level, value::choice(text, LOG_LEVELS)),
    },
];

/// The flag that names the configuration file: the only one that cannot stand in it.
pub(super) const CONFIG: &str = "config";

/// The flag that names shares: those in the file are read again when the daemon is told to.
pub(super) const SHARE: &str = "share";

const SETTINGS: &str = "Settings";
const LISTENING: &str = "Listening";
const HTTP: &str = "HTTP";
const STORAGE: &str = "What survives";
const LEASES: &str = "Leases and keys";
const LIMITS: &str = "Limits";
const RANGES: &str = "Byte ranges";
const TIMEOUTS: &str = "Timeouts";
const SECURITY: &str = "Security";
const PERFORMANCE: &str = "Performance";
const LOGGING: &str = "Logging";

const A_FILE: &str = "the path of a file";
const SOCKET_PATH: &str = "the path of a socket file, not empty and without a zero byte";
const SPAN: &str = "a duration such as 33, 33s or 100ms, at most 9223372036s";
const SPAN_ABOVE_ZERO: &str = "a duration above 0 such as 33, 33s or 100ms, at most 9223372036s";
const COUNT: &str = "a whole number from 0 to 4294967295, 0 for no limit";
const SWITCH: &str = "a switch: 1, yes, true or on, or 0, no, false or off";

const WIRE_FENCES: &[(&str, WireFence)] = &[
    ("auto", WireFence::Auto),
    ("always", WireFence::Always),
    ("never", WireFence::Never),
];
const GRACE_POLICIES: &[(&str, GracePolicy)] =
    &[("held", GracePolicy::Held), ("strict", GracePolicy::Strict)];
const LOG_FORMATS: &[(&str, LogFormat)] = &[("text", LogFormat::Text), ("json", LogFormat::Json)];
const LOG_LEVELS: &[(&str, LevelFilter)] = &[
    ("error", LevelFilter::Error),
    ("warn", LevelFilter::Warn),
    ("info", LevelFilter::Info),
    ("debug", LevelFilter::Debug),
    ("trace", LevelFilter::Trace),
];
