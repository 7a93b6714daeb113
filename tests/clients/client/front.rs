//! A front: what clients meet of one member of a cluster. It passes everything on to the server that decides, or says as a
//! standby that another one does, or nothing at all. With a daemon that is started again from its data directory behind
//! it, a leader that goes and another one that takes over look to clients as in a cluster: another epoch, all that was
//! held restored, all connections closed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// What a member does with whoever comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It leads: this server answers.
    Leads(SocketAddr),
    /// It follows, and says where the leader is, if it knows that.
    Follows(Option<String>),
    /// It is stopped: connections are accepted, and nothing comes back, nor on those that there are.
    Stopped,
    /// It is gone: connections are closed at once.
    Gone,
}

pub(crate) struct Front {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    role: Role,
    open: Vec<TcpStream>,
    /// Everything that came while it followed.
    heard: Vec<String>,
    accepted: usize,
}

impl Front {
    pub(crate) fn start(role: Role) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                role,
                open: Vec::new(),
                heard: Vec::new(),
                accepted: 0,
            }),
            changed: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        // It ends with the test's process.
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&theirs);
                thread::spawn(move || shared.serve(client));
            }
        });
        Self { address, shared }
    }

    /// From now on it does this. All connections are closed, unless it is stopped: then they stay, and are silent.
    pub(crate) fn becomes(&self, role: Role) {
        let mut state = self.shared.state.lock().unwrap();
        if role != Role::Stopped {
            for stream in state.open.drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
        state.role = role;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// It follows whoever this is.
    pub(crate) fn follows(&self, leader: &Self) {
        self.becomes(Role::Follows(Some(leader.address.to_string())));
    }

    pub(crate) fn role(&self) -> Role {
        self.shared.state.lock().unwrap().role.clone()
    }

    /// Everything that was said to it while it followed.
    pub(crate) fn heard(&self) -> Vec<String> {
        self.shared.state.lock().unwrap().heard.clone()
    }

    pub(crate) fn accepted(&self) -> usize {
        self.shared.state.lock().unwrap().accepted
    }

    /// Waits until so many connections were made.
    #[track_caller]
    pub(crate) fn wait_for_connections(&self, count: usize) {
        let state = self.shared.state.lock().unwrap();
        let waits = |state: &mut State| state.accepted < count;
        let waited =
            self.shared
                .changed
                .wait_timeout_while(state, crate::vocabulary::PATIENCE, waits);
        assert!(!waited.unwrap().1.timed_out(), "nobody came");
    }
}

impl Shared {
    fn serve(self: &Arc<Self>, client: TcpStream) {
        let mut state = self.state.lock().unwrap();
        state.accepted += 1;
        self.changed.notify_all();
        let role = state.role.clone();
        if role != Role::Gone {
            state.open.push(client.try_clone().unwrap());
        }
        drop(state);
        match role {
            Role::Gone => {}
            Role::Stopped => drop((&client).read_to_end(&mut Vec::new())),
            Role::Follows(leader) => self.follow(&client, leader.as_deref()),
            Role::Leads(server) => return self.pass_on(client, server),
        }
        let _ = client.shutdown(Shutdown::Both);
    }

    fn follow(&self, mut client: &TcpStream, leader: Option<&str>) {
        let mut lines = BufReader::new(client).lines().map_while(Result::ok);
        while let (Some(verb), Some(key), Some(argument)) =
            (lines.next(), lines.next(), lines.next())
        {
            let answer = match (&*verb, leader) {
                ("auth" | "ping", _) => "ok\n".to_owned(),
                (_, Some(leader)) => format!("error_not_leader {leader}\n"),
                (_, None) => "error_not_leader\n".to_owned(),
            };
            let mut state = self.state.lock().unwrap();
            state.heard.push(format!("{verb} {key} {argument}"));
            drop(state);
            if client.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn pass_on(self: &Arc<Self>, client: TcpStream, server: SocketAddr) {
        let Ok(server) = TcpStream::connect(server) else {
            let _ = client.shutdown(Shutdown::Both);
            return;
        };
        self.state
            .lock()
            .unwrap()
            .open
            .push(server.try_clone().unwrap());
        for (from, to) in [
            (client.try_clone().unwrap(), server.try_clone().unwrap()),
            (server, client),
        ] {
            let shared = Arc::clone(self);
            thread::spawn(move || shared.copy(&from, &to));
        }
    }

    fn copy(&self, mut from: &TcpStream, mut to: &TcpStream) {
        let _ = to.set_nodelay(true);
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let is_stopped = self.state.lock().unwrap().role == Role::Stopped;
            if is_stopped {
                continue; // nobody hears it, and nobody notices
            }
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        // The end is not noticed either.
        if self.state.lock().unwrap().role != Role::Stopped {
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        }
    }
}
