//! The options of a cluster: rows of the table, in a file of their own.

use std::path::PathBuf;

use super::put::put;
use super::row::{Row, Takes, Wrong};
use super::{Config, value};
use crate::base::Millis;
use crate::shard::Shard;

/// Everything about clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// `--cluster`: the name of the cluster; `None` is a daemon alone.
    pub name: Option<String>,
    /// `--etcd`: where etcd is, as it was written.
    pub etcd: String,
    /// `--shard`: which keys of the cluster this member has.
    pub shard: Shard,
    /// `--advertise`: where other members send line clients when this one leads.
    pub advertise: Option<String>,
    /// `--advertise-http`: the same for HTTP.
    pub advertise_http: Option<String>,
    /// `--cluster-ttl`: how long a leader's lease is; whole seconds, at least three.
    pub ttl: Millis,
    /// `--cluster-margin`: how long before its end a leader falls silent; `None` is by the TTL.
    pub margin: Option<Millis>,
    /// `--cluster-batch`: the longest value of an entry of the log.
    pub batch_bytes: usize,
    /// `--cluster-trim`: after so many bytes of log there is a snapshot.
    pub trim_bytes: u64,
    /// `--etcd-ca`: whose certificates etcd has to have; `None` is those that the system trusts.
    pub etcd_ca: Option<PathBuf>,
    /// `--etcd-cert`: what is shown to an etcd that asks for a certificate.
    pub etcd_cert: Option<PathBuf>,
    /// `--etcd-key`: its key.
    pub etcd_key: Option<PathBuf>,
    /// `--etcd-user`: who we are to etcd.
    pub etcd_user: Option<String>,
    /// `--etcd-password-file`: where its password stands.
    pub etcd_password_file: Option<PathBuf>,
    /// `--etcd-quota`: how large etcd's database may become.
    pub quota_bytes: u64,
    /// `--etcd-compact`: whether etcd is told to forget what was trimmed.
    pub compacts: bool,
}

impl Cluster {
    pub(super) const BLANK: Self = Self {
        name: None,
        etcd: String::new(),
        shard: Shard::WHOLE,
        advertise: None,
        advertise_http: None,
        ttl: Millis::ZERO,
        margin: None,
        batch_bytes: 0,
        trim_bytes: 0,
        etcd_ca: None,
        etcd_cert: None,
        etcd_key: None,
        etcd_user: None,
        etcd_password_file: None,
        quota_bytes: 0,
        compacts: true,
    };

    /// How long before the end of its lease a leader falls silent.
    #[must_use]
    pub fn margin(&self) -> Millis {
        self.margin
            .unwrap_or_else(|| Millis((self.ttl.0 / 10).max(500)))
    }

    /// Why these cannot be used, if so.
    pub(super) fn check(&self, has_data_dir: bool) -> Result<(), String> {
        if self.name.is_some() && has_data_dir {
            let why =
                "--cluster and --data-dir exclude each other: a cluster keeps everything in etcd";
            return Err(why.to_owned());
        }
        if self.margin().0 * 2 > self.ttl.0 {
            return Err(format!(
                "--cluster-margin: {} ms is more than half of --cluster-ttl",
                self.margin().0
            ));
        }
        self.check_pairs()
    }

    /// Whether what belongs together is there, and is used.
    fn check_pairs(&self) -> Result<(), String> {
        let missing = match (&self.etcd_cert, &self.etcd_key) {
            (Some(_), None) => "--etcd-cert needs the key of its certificate: set --etcd-key",
            (None, Some(_)) => "--etcd-key needs the certificate of its key: set --etcd-cert",
            _ => match (&self.etcd_user, &self.etcd_password_file) {
                (Some(_), None) => "--etcd-user needs a password: set --etcd-password-file",
                (None, Some(_)) => "--etcd-password-file needs to know whose: set --etcd-user",
                _ => return self.check_encryption(),
            },
        };
        Err(missing.to_owned())
    }

    /// Whoever names files for TLS believes that there is TLS.
    fn check_encryption(&self) -> Result<(), String> {
        let is_encrypted = self
            .etcd
            .split(',')
            .any(|it| it.trim().starts_with("https://"));
        for (flag, path) in [
            ("--etcd-ca", &self.etcd_ca),
            ("--etcd-cert", &self.etcd_cert),
        ] {
            if path.is_some() && !is_encrypted {
                return Err(format!(
                    "{flag} works with TLS only: write https:// in --etcd"
                ));
            }
        }
        Ok(())
    }
}

const GROUP: &str = "Cluster";
const ADDRESS: &str = "an address that other machines can reach, such as 10.0.0.1:6388";

pub(super) const CLUSTER: Row = Row {
    flag: "cluster",
    value: "NAME",
    takes: Takes::Word,
    env: &["LATCHD_CLUSTER"],
    default: "",
    group: GROUP,
    rule: "a name of letters, digits, dots, dashes and underscores, at most 64",
    help: "Be a member of this cluster: one member leads and serves, the others follow and take \
           over. Needs --etcd; docs/cluster.md explains it.",
    set: |c, text| put(&mut c.cluster.name, name(text).map(Some)),
};

pub(super) const ETCD: Row = Row {
    flag: "etcd",
    value: "URL,…",
    takes: Takes::Words,
    env: &["LATCHD_ETCD"],
    default: "",
    group: GROUP,
    rule: "one URL such as http://10.0.0.1:2379, or several with commas between them",
    help: "Where the members of etcd are; version 3.5.30 or newer, best one that serves nobody \
           else. All with http://, or all with https://.",
    set: |c, text| put(&mut c.cluster.etcd, urls(text)),
};

pub(super) const SHARD: Row = Row {
    flag: "shard",
    value: "K/N",
    takes: Takes::Word,
    env: &["LATCHD_SHARD"],
    default: "0/1",
    group: GROUP,
    rule: "which of how many, counted from 0, such as 0/2 and 1/2; at most 1024",
    help: "Which part of the keys of its cluster this member has: N parts, this one number K, \
           counted from 0. Whoever starts first decides on N; only --reshard changes it.",
    set: |c, text| put(&mut c.cluster.shard, shard(text)),
};

pub(super) const ADVERTISE: Row = Row {
    flag: "advertise",
    value: "HOST:PORT",
    takes: Takes::Word,
    env: &["LATCHD_ADVERTISE"],
    default: "",
    group: GROUP,
    rule: ADDRESS,
    help: "Where the other members send clients of the line protocol when this one leads. If \
           nobody sets it: --host and --port, unless that is every interface.",
    set: |c, text| put(&mut c.cluster.advertise, address(text).map(Some)),
};

pub(super) const ADVERTISE_HTTP: Row = Row {
    flag: "advertise-http",
    value: "HOST:PORT",
    takes: Takes::Word,
    env: &["LATCHD_ADVERTISE_HTTP"],
    default: "",
    group: GROUP,
    rule: ADDRESS,
    help: "The same for clients of HTTP.",
    set: |c, text| put(&mut c.cluster.advertise_http, address(text).map(Some)),
};

pub(super) const TTL: Row = Row {
    flag: "cluster-ttl",
    value: "SPAN",
    takes: Takes::Number,
    env: &["LATCHD_CLUSTER_TTL"],
    default: "5s",
    group: GROUP,
    rule: "whole seconds from 3 to 60, such as 5s",
    help: "How long the lease of a leader is: after so long, and a moment, another member takes \
           over from one that is gone.",
    set: |c, text| put(&mut c.cluster.ttl, value::span(text).filter(is_ttl)),
};

pub(super) const MARGIN: Row = Row {
    flag: "cluster-margin",
    value: "SPAN",
    takes: Takes::Number,
    env: &["LATCHD_CLUSTER_MARGIN"],
    default: "",
    group: GROUP,
    rule: "a duration from 100ms on, such as 500ms",
    help: "How long before the end of its lease a leader that cannot renew it falls silent; must \
           cover the longest turn and how far clocks run apart, so it is at least 100ms and at most \
           half of --cluster-ttl. If nobody sets it: a tenth of --cluster-ttl, and at least 500ms.",
    set: |c, text| {
        put(
            &mut c.cluster.margin,
            value::span(text).filter(is_margin).map(Some),
        )
    },
};

pub(super) const BATCH: Row = Row {
    flag: "cluster-batch",
    value: "SIZE",
    takes: Takes::Number,
    env: &["LATCHD_CLUSTER_BATCH"],
    default: "128k",
    group: GROUP,
    rule: "a size from 16k to 1m, such as 128k",
    help: "The longest value of an entry of the log, and of a piece of a snapshot. Larger ones \
           carry more at once, and make everything else wait longer behind them.",
    set: |c, text| put(&mut c.cluster.batch_bytes, batch(text)),
};

pub(super) const TRIM: Row = Row {
    flag: "cluster-trim",
    value: "SIZE",
    takes: Takes::Number,
    env: &["LATCHD_CLUSTER_TRIM"],
    default: "32m",
    group: GROUP,
    rule: "a size of at least 1m, such as 32m",
    help: "After so much log the leader writes a snapshot and deletes what it stands for; after a \
           minute in any case.",
    set: |c, text| put(&mut c.cluster.trim_bytes, size_from(text, 1 << 20)),
};

pub(super) const CA: Row = Row {
    flag: "etcd-ca",
    value: "FILE",
    takes: Takes::Word,
    env: &["LATCHD_ETCD_CA"],
    default: "",
    group: GROUP,
    rule: "the path of a PEM file",
    help: "Whose certificates the members of etcd have to have, PEM. If nobody sets it: those \
           whom this system trusts. SIGHUP reads it again.",
    set: |c, text| put(&mut c.cluster.etcd_ca, value::path(text).map(Some)),
};

pub(super) const CERT: Row = Row {
    flag: "etcd-cert",
    value: "FILE",
    takes: Takes::Word,
    env: &["LATCHD_ETCD_CERT"],
    default: "",
    group: GROUP,
    rule: "the path of a PEM file",
    help: "The certificate to show to an etcd that asks for one (--client-cert-auth), PEM, with \
           those that lead to its authority. SIGHUP reads it again.",
    set: |c, text| put(&mut c.cluster.etcd_cert, value::path(text).map(Some)),
};

pub(super) const KEY: Row = Row {
    flag: "etcd-key",
    value: "FILE",
    takes: Takes::Word,
    env: &["LATCHD_ETCD_KEY"],
    default: "",
    group: GROUP,
    rule: "the path of a PEM file",
    help: "The private key of --etcd-cert, PEM, not encrypted.",
    set: |c, text| put(&mut c.cluster.etcd_key, value::path(text).map(Some)),
};

pub(super) const USER: Row = Row {
    flag: "etcd-user",
    value: "NAME",
    takes: Takes::Word,
    env: &["LATCHD_ETCD_USER"],
    default: "",
    group: GROUP,
    rule: "the name of a user of etcd, of at most 255 bytes, without control bytes",
    help: "Who latchd is to an etcd that asks for a user (`etcdctl auth enable`). A certificate's \
           name does not count there.",
    set: |c, text| put(&mut c.cluster.etcd_user, user(text).map(Some)),
};

pub(super) const PASSWORD_FILE: Row = Row {
    flag: "etcd-password-file",
    value: "FILE",
    takes: Takes::Word,
    env: &["LATCHD_ETCD_PASSWORD_FILE"],
    default: "",
    group: GROUP,
    rule: "the path of a file with a password in it",
    help: "The password of --etcd-user: one line. SIGHUP reads it again.",
    set: |c, text| {
        put(
            &mut c.cluster.etcd_password_file,
            value::path(text).map(Some),
        )
    },
};

pub(super) const QUOTA: Row = Row {
    flag: "etcd-quota",
    value: "SIZE",
    takes: Takes::Number,
    env: &["LATCHD_ETCD_QUOTA"],
    default: "2g",
    group: GROUP,
    rule: "a size such as 2g or 500m, at least 16m",
    help: "How large etcd's database may become, as etcd was told with --quota-backend-bytes. At \
           70 % of it changes that take room are refused with error_storage.",
    set: |c, text| put(&mut c.cluster.quota_bytes, size_from(text, 16 << 20)),
};

pub(super) const COMPACT: Row = Row {
    flag: "etcd-compact",
    value: "BOOL",
    takes: Takes::Switch {
        negation: Some("no-etcd-compact"),
    },
    env: &["LATCHD_ETCD_COMPACT"],
    default: "true",
    group: GROUP,
    rule: "a switch: 1, yes, true or on, or 0, no, false or off",
    help: "Tell etcd to forget what was trimmed. This concerns all keys of etcd, so turn it off if \
           others use it, too, and compact it in another way.",
    set: put_compacts,
};

fn put_compacts(config: &mut Config, text: &str) -> Result<(), Wrong> {
    put(&mut config.cluster.compacts, value::switch(text))
}

fn name(text: &str) -> Option<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let is_name = (1..=64).contains(&text.len()) && text.bytes().all(is_plain);
    is_name.then(|| text.to_owned())
}

fn shard(text: &str) -> Option<Shard> {
    let (index, count) = text.split_once('/')?;
    Shard::new(whole(index)?, whole(count)?)
}

/// `FROM:TO`, of `--reshard`.
pub(super) fn shards(text: &str) -> Option<[u32; 2]> {
    let (from, to) = text.split_once(':')?;
    let (from, to) = (whole(from)?, whole(to)?);
    let are_there = |count| Shard::new(0, count).is_some();
    (are_there(from) && are_there(to) && from != to).then_some([from, to])
}

fn whole(digits: &str) -> Option<u32> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

/// Looks only at how they begin; whoever uses them looks closer.
fn urls(text: &str) -> Option<String> {
    let is_url =
        |url: &str| url.trim().starts_with("http://") || url.trim().starts_with("https://");
    text.split(',').all(is_url).then(|| text.to_owned())
}

fn address(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"/?#@\"\\<>".contains(&byte);
    let is_host = (1..=255).contains(&host.len()) && host.bytes().all(is_plain);
    let has_port = value::port(port).is_some_and(|port| port != 0);
    (is_host && has_port).then(|| text.to_owned())
}

/// Turns are some milliseconds, and clocks run apart by a thousandth: less covers neither for sure.
fn is_margin(margin: &Millis) -> bool {
    margin.0 >= 100
}

fn is_ttl(ttl: &Millis) -> bool {
    ttl.0.is_multiple_of(1_000) && (3_000..=60_000).contains(&ttl.0)
}

/// etcd takes at most 1.5 MiB at once.
fn batch(text: &str) -> Option<usize> {
    let bytes = size_from(text, 16 << 10)?;
    usize::try_from(bytes).ok().filter(|it| *it <= 1 << 20)
}

fn size_from(text: &str, least: u64) -> Option<u64> {
    match value::memory(text)? {
        value::MaxMemory::Bytes(bytes) if bytes.get() >= least => Some(bytes.get()),
        _ => None,
    }
}

fn user(text: &str) -> Option<String> {
    let is_user = (1..=255).contains(&text.len()) && !text.contains(char::is_control);
    is_user.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[test]
    fn names_addresses_and_times_are_read_or_refused() {
        assert_eq!(name("prod-1.a_b").as_deref(), Some("prod-1.a_b"));
        for text in ["", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert_eq!(name(text), None, "{text}");
        }
        assert_eq!(address("10.0.0.1:6388").as_deref(), Some("10.0.0.1:6388"));
        assert_eq!(address("[::1]:6388").as_deref(), Some("[::1]:6388"));
        for text in [
            "host", "host:", ":1", "host:0", "ho st:1", "a/b:1", "host:+5",
        ] {
            assert_eq!(address(text), None, "{text}");
        }
        let good = |ms| is_ttl(&Millis(ms));
        assert!(good(3_000) && good(60_000));
        assert!(!good(2_000) && !good(3_500) && !good(61_000));
        let size = |text| size_from(text, 16 << 20);
        assert_eq!(size("16m"), Some(16 << 20));
        assert_eq!((size("15m"), size("half"), size("0")), (None, None, None));
        assert_eq!(shard("0/1"), Some(Shard::WHOLE));
        assert_eq!(shard("2/3"), Shard::new(2, 3));
        for text in [
            "", "1", "0/0", "3/3", "+0/3", "0/3/4", "0/1025", "-1/3", " 0/3",
        ] {
            assert_eq!(shard(text), None, "{text}");
        }
        assert_eq!(shards("2:3"), Some([2, 3]));
        for text in ["", "2", "2:2", "0:2", "2:0", "1:1025", "2:3:4", "2/3"] {
            assert_eq!(shards(text), None, "{text}");
        }
        assert_eq!(batch("16k"), Some(16 << 10));
        assert_eq!(batch("1m"), Some(1 << 20));
        assert_eq!(
            (batch("15k"), batch("1025k"), batch("0")),
            (None, None, None)
        );
        assert!(user("latchd").is_some() && user("").is_none() && user("a\nb").is_none());
        assert!(urls("http://a:1,https://b:2").is_some());
        assert!(urls("http://a:1,b:2").is_none());
    }

    #[test]
    fn what_excludes_each_other_is_refused() {
        let named = Cluster {
            name: Some("prod".to_owned()),
            etcd: "http://a:1".to_owned(),
            ttl: Millis(5_000),
            ..Cluster::BLANK
        };
        assert_eq!(named.margin(), Millis(500));
        assert!(is_margin(&Millis(100)) && !is_margin(&Millis(99)));
        assert_eq!(named.check(false), Ok(()));
        assert!(named.check(true).unwrap_err().contains("--data-dir"));
        let long = Cluster {
            margin: Some(Millis(2_501)),
            ..named
        };
        assert!(long.check(false).unwrap_err().contains("--cluster-margin"));
    }
    #[test]
    fn half_a_pair_is_refused_and_so_is_tls_without_tls() {
        let good = Cluster {
            ttl: Millis(5_000),
            etcd: "https://a:1".to_owned(),
            ..Cluster::BLANK
        };
        let path = || Some(PathBuf::from("x"));
        let me = || Some("me".to_owned());
        let all = Cluster {
            etcd_ca: path(),
            etcd_cert: path(),
            etcd_key: path(),
            etcd_user: me(),
            etcd_password_file: path(),
            ..good.clone()
        };
        assert_eq!(all.check(false), Ok(()));
        let plain = |it: Cluster| Cluster {
            etcd: "http://a:1".to_owned(),
            ..it
        };
        #[rustfmt::skip]
        let wrong = [
            (Cluster { etcd_key: None, ..all.clone() }, "--etcd-key"),
            (Cluster { etcd_cert: None, ..all.clone() }, "--etcd-cert"),
            (Cluster { etcd_user: None, ..all.clone() }, "--etcd-user"),
            (Cluster { etcd_password_file: None, ..all.clone() }, "--etcd-password-file"),
            (plain(all.clone()), "--etcd-ca works with TLS only"),
            (plain(Cluster { etcd_ca: None, ..all.clone() }), "--etcd-cert works with TLS only"),
        ];
        for (cluster, says) in wrong {
            let why = cluster.check(false).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
        let user_only = Cluster {
            etcd_user: me(),
            etcd_password_file: path(),
            ..good
        };
        assert_eq!(plain(user_only).check(false), Ok(()));
    }

    #[test]
    fn a_cluster_can_get_another_number_of_shards_instead_of_being_served() {
        let load = |line: &str| {
            let args = ["latchd"].into_iter().chain(line.split(' '));
            crate::config::load(args.map(Into::into), &|_| None)
        };
        match load("--cluster prod --etcd http://a:1 --reshard 2:3") {
            Ok(Outcome::Reshard { config, from, to }) => {
                let name = config.cluster.name.as_deref();
                assert_eq!((name, from, to), (Some("prod"), 2, 3));
            }
            other => panic!("{other:?}"),
        }
        let says = load("--reshard 2:2").unwrap_err().to_string();
        assert!(says.starts_with("--reshard: \"2:2\" is not "), "{says}");
        for line in [
            "--reshard",
            "--reshard 2:3 --repair",
            "--reshard 2:3 --inspect a",
            "--reshard 2:3 --check-config",
        ] {
            assert!(load(line).is_err(), "{line}");
        }
    }
}
