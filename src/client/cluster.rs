//! The servers that have the same keys: one alone, or the members of a cluster, of which one leads.
//!
//! Knows who led last, which servers members have told of, and which keys were found elsewhere. Says whom a client may
//! follow, and how: the rule is in `docs/client.md`. Never connects.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

use super::address::{self, Door, Server};
use super::error::Error;
use super::locked;
use super::look::Looks;

/// Most servers that are remembered because a member told of them. The one that was told first is forgotten.
const TOLD_MAX: usize = 16;

/// Most keys of which it is remembered that they are elsewhere. Then all are forgotten, and found again.
const ROUTES_MAX: usize = 4_096;

/// The servers of one part of the keys.
#[derive(Debug)]
pub(super) struct Cluster {
    /// As it was given.
    text: String,
    pub(super) members: Vec<Arc<Server>>,
    /// Who wants to know whether a silent server still leads.
    pub(super) looks: Looks,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Who led when somebody last looked.
    leader: Option<Arc<Server>>,
    /// Servers that are not among the members and that a member has told of.
    told: VecDeque<Arc<Server>>,
    /// Keys that a server which leads does not have, and who has them.
    routes: HashMap<Box<[u8]>, Arc<Server>>,
}

/// What comes of being sent elsewhere.
#[derive(Debug)]
pub(super) enum Follow {
    /// Go there.
    To(Arc<Server>),
    /// No: a secret would be shown there with less protection than here.
    Unprotected,
    /// That is no address.
    Nowhere,
}

impl Cluster {
    /// Parts of the keys with commas between them, and in each the members of a cluster with `+`. The path of a unix
    /// socket goes to the end of its part, because it may have a `+` in it.
    pub(super) fn parse_all(text: &str) -> Result<Vec<Self>, Error> {
        text.split(',')
            .map(|part| Self::of(part.trim(), &members(part.trim())))
            .collect()
    }

    /// One cluster of these members.
    pub(super) fn of(text: &str, members: &[&str]) -> Result<Self, Error> {
        let members = members.iter().map(|it| Server::parse(it).map(Arc::new));
        let members = members.collect::<Result<Vec<_>, _>>()?;
        if members.is_empty() {
            return Err(Error::Misuse("there is no server in the list".to_owned()));
        }
        Ok(Self {
            text: text.to_owned(),
            members,
            looks: Looks::default(),
            state: Mutex::default(),
        })
    }

    /// There is one server, and as far as we know no other.
    pub(super) fn is_alone(&self) -> bool {
        self.members.len() == 1
    }

    /// There is this server, and as far as we know no other: it is alone in the list, and was not told of by it.
    pub(super) fn is_only(&self, server: &Arc<Server>) -> bool {
        self.is_alone() && contains(&self.members, server)
    }

    /// Whether this server is the one to begin with, if this key is looked for.
    pub(super) fn is_asked_first(&self, server: &Arc<Server>, key: &[u8]) -> bool {
        let state = locked(&self.state);
        let first = state.routes.get(key).or(state.leader.as_ref());
        first.is_some_and(|it| Arc::ptr_eq(it, server))
    }

    /// Whom to ask, in this order: who led last, then the others as they were given.
    pub(super) fn candidates(&self) -> Vec<Arc<Server>> {
        let leader = locked(&self.state).leader.clone();
        let mut candidates: Vec<_> = leader.into_iter().collect();
        for member in &self.members {
            if !contains(&candidates, member) {
                candidates.push(Arc::clone(member));
            }
        }
        candidates
    }

    /// This one leads.
    pub(super) fn set_leader(&self, server: &Arc<Server>) {
        locked(&self.state).leader = Some(Arc::clone(server));
    }

    /// Whether this server is the last known leader.
    pub(super) fn is_leader(&self, server: &Arc<Server>) -> bool {
        let leader = &locked(&self.state).leader;
        leader.as_ref().is_some_and(|it| Arc::ptr_eq(it, server))
    }

    /// This one does not lead, or does not answer.
    pub(super) fn forget_leader(&self, server: &Arc<Server>) {
        let mut state = locked(&self.state);
        if state
            .leader
            .as_ref()
            .is_some_and(|it| Arc::ptr_eq(it, server))
        {
            state.leader = None;
        }
    }

    /// Who has this key, if that is somebody else than the leader.
    pub(super) fn route(&self, key: &[u8]) -> Option<Arc<Server>> {
        locked(&self.state).routes.get(key).cloned()
    }

    pub(super) fn set_route(&self, key: &[u8], server: &Arc<Server>) {
        let mut state = locked(&self.state);
        if state.routes.len() >= ROUTES_MAX && !state.routes.contains_key(key) {
            state.routes.clear();
        }
        state.routes.insert(key.into(), Arc::clone(server));
    }

    pub(super) fn forget_route(&self, key: &[u8]) {
        locked(&self.state).routes.remove(key);
    }

    /// The server that a member has told of: always the same one for an address, so that its name is resolved once.
    fn told_of(&self, address: &str, is_tls: bool) -> Option<Arc<Server>> {
        let mut state = locked(&self.state);
        let is_it =
            |it: &&Arc<Server>| it.is_at(address) && matches!(it.door, Door::Tls { .. }) == is_tls;
        if let Some(server) = state.told.iter().find(is_it) {
            return Some(Arc::clone(server));
        }
        let server = Arc::new(Server::told(address, is_tls)?);
        if state.told.len() >= TOLD_MAX {
            state.told.pop_front();
        }
        state.told.push_back(Arc::clone(&server));
        Some(server)
    }

    pub(super) fn down(&self, why: io::Error) -> Error {
        let server = self.to_string();
        Error::Down { server, why }
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Where somebody goes who was sent to `address` by `teller`, which is one of this part of the keys.
///
/// A server that is in the list is reached as the list has it. Any other is reached as the teller was: over TLS if that
/// was (its certificate has to be good for the address), otherwise in the open. What would leave the machine in the open
/// although the teller is on this machine, or behind a unix socket, goes only where the list says, if there is
/// a secret to be shown.
pub(super) fn follow(
    clusters: &[Cluster],
    shard: usize,
    teller: &Server,
    address: &str,
    has_secret: bool,
) -> Follow {
    let own = clusters.get(shard).into_iter();
    for cluster in own.chain(clusters) {
        if let Some(member) = cluster.members.iter().find(|it| it.is_at(address)) {
            return Follow::To(Arc::clone(member));
        }
    }
    let Some(host) = address::host_of(address) else {
        return Follow::Nowhere;
    };
    let is_tls = matches!(teller.door, Door::Tls { .. });
    if !is_tls && has_secret && teller.is_local() && !address::is_local(host) {
        return Follow::Unprotected;
    }
    match clusters[shard].told_of(address, is_tls) {
        Some(server) => Follow::To(server),
        None => Follow::Nowhere,
    }
}

pub(super) fn contains(servers: &[Arc<Server>], server: &Arc<Server>) -> bool {
    servers.iter().any(|it| Arc::ptr_eq(it, server))
}

/// The members of one part of a list.
fn members(part: &str) -> Vec<&str> {
    let mut members = Vec::new();
    let mut rest = part;
    while !rest.trim_start().starts_with("unix:")
        && let Some((member, others)) = rest.split_once('+')
    {
        members.push(member.trim());
        rest = others;
    }
    members.push(rest.trim());
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(list: &str) -> Vec<Vec<String>> {
        let clusters = Cluster::parse_all(list).unwrap();
        let texts = |it: &Cluster| it.members.iter().map(ToString::to_string).collect();
        clusters.iter().map(texts).collect()
    }

    #[test]
    fn lists_are_parts_of_the_keys_and_their_members() {
        assert_eq!(
            texts("a:1, unix:/b ,c"),
            [vec!["a:1"], vec!["unix:/b"], vec!["c"]]
        );
        assert_eq!(
            texts("a1:1+a2:1, b1 + b2"),
            [vec!["a1:1", "a2:1"], vec!["b1", "b2"]]
        );
        assert_eq!(
            texts("unix:/run/a+b.sock,c"),
            [vec!["unix:/run/a+b.sock"], vec!["c"]],
            "the path of a socket may have it"
        );
        assert_eq!(
            texts("a:1+unix:/run/a+b.sock"),
            [vec!["a:1", "unix:/run/a+b.sock"]]
        );
        for wrong in ["", "a:1,,c", "a:1++b:1", "+a:1", "a:1+", ","] {
            assert!(Cluster::parse_all(wrong).is_err(), "{wrong:?}");
        }
        assert!(Cluster::of("", &[]).is_err());
    }

    fn goes(list: &str, teller: &str, address: &str, has_secret: bool) -> String {
        let clusters = Cluster::parse_all(list).unwrap();
        let teller = Server::parse(teller).unwrap();
        match follow(&clusters, 0, &teller, address, has_secret) {
            Follow::To(server) => server.to_string(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_secret_is_shown_nowhere_where_it_is_protected_less() {
        for (list, teller, address, goes_with_secret, goes_without) in [
            // In the open already.
            (
                "10.0.0.1",
                "10.0.0.1",
                "10.0.0.2:1",
                "10.0.0.2:1",
                "10.0.0.2:1",
            ),
            // It would leave the machine.
            (
                "unix:/a",
                "unix:/a",
                "10.0.0.2:1",
                "Unprotected",
                "10.0.0.2:1",
            ),
            (
                "127.0.0.1",
                "127.0.0.1",
                "10.0.0.2:1",
                "Unprotected",
                "10.0.0.2:1",
            ),
            ("localhost", "localhost", "db2:1", "Unprotected", "db2:1"),
            // It does not, or somebody wants it to.
            (
                "127.0.0.1",
                "127.0.0.1",
                "127.0.0.1:7",
                "127.0.0.1:7",
                "127.0.0.1:7",
            ),
            ("unix:/a", "unix:/a", "[::1]:7", "[::1]:7", "[::1]:7"),
            ("db2:1+unix:/a", "unix:/a", "DB2:1", "db2:1", "db2:1"),
            ("unix:/a,db2:1", "unix:/a", "db2:1", "db2:1", "db2:1"),
        ] {
            assert_eq!(
                goes(list, teller, address, true),
                goes_with_secret,
                "{list}"
            );
            assert_eq!(goes(list, teller, address, false), goes_without, "{list}");
        }
        assert_eq!(goes("a", "a", "a b:1", false), "Nowhere");
    }

    #[cfg(feature = "tls")]
    #[test]
    fn what_was_told_over_tls_is_reached_over_tls() {
        let goes = |list: &str, teller| goes(list, teller, "10.0.0.2:1", true);
        assert_eq!(goes("tls://a", "tls://a"), "tls://10.0.0.2:1");
        assert_eq!(
            goes("tls://localhost", "tls://localhost"),
            "tls://10.0.0.2:1"
        );
        assert_eq!(goes("a+tls://10.0.0.2:1", "a"), "tls://10.0.0.2:1");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let cluster = Cluster::of("a", &["a"]).unwrap();
        let member = Arc::clone(&cluster.members[0]);
        for number in 0..2 * ROUTES_MAX {
            cluster.set_route(format!("{number}").as_bytes(), &member);
        }
        assert!(locked(&cluster.state).routes.len() <= ROUTES_MAX);
        for number in 0..3 * TOLD_MAX {
            let address = format!("10.0.0.1:{number}");
            let told = cluster.told_of(&address, false).unwrap();
            assert!(Arc::ptr_eq(
                &told,
                &cluster.told_of(&address, false).unwrap()
            ));
        }
        assert!(locked(&cluster.state).told.len() <= TOLD_MAX);
    }

    #[test]
    fn who_led_last_is_asked_first() {
        let cluster = Cluster::of("a+b+c", &["a", "b", "c"]).unwrap();
        let texts = || -> Vec<String> {
            let candidates = cluster.candidates();
            candidates.iter().map(ToString::to_string).collect()
        };
        assert_eq!(texts(), ["a", "b", "c"]);
        let told = cluster.told_of("d:1", false).unwrap();
        cluster.set_leader(&told);
        assert_eq!(texts(), ["d:1", "a", "b", "c"]);
        cluster.set_leader(&cluster.members[2]);
        assert_eq!(texts(), ["c", "a", "b"]);
        cluster.forget_leader(&told);
        assert_eq!(texts(), ["c", "a", "b"], "that was another one");
        cluster.forget_leader(&cluster.members[2]);
        assert_eq!(texts(), ["a", "b", "c"]);
    }
}
