//! Members of a cluster as processes, and a proxy between one of them and etcd that can be cut, in each direction.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::vocabulary::{Daemon, latchd};

/// For a leader to be found; far more than it takes.
pub(crate) const LOOKS: usize = 3_000;

pub(crate) struct Members {
    cluster: String,
    /// What all of them are given besides.
    options: Vec<String>,
    daemons: Vec<Daemon>,
}

fn start(cluster: &str, urls: &str, options: &[String]) -> Daemon {
    let mut command = latchd();
    command
        .args(["--port", "0", "--http-port", "0", "--cluster", cluster])
        .args(["--etcd", urls, "--cluster-ttl", "3s"])
        .args(options);
    Daemon::serve(command)
}

impl Members {
    /// Three, all with these addresses of etcd.
    pub(crate) fn start(cluster: &str, urls: &str) -> Self {
        Self::start_each(cluster, &[urls, urls, urls].map(str::to_owned))
    }

    /// One for each of these addresses.
    pub(crate) fn start_each(cluster: &str, urls: &[String]) -> Self {
        Self::start_with(cluster, urls, &[])
    }

    /// The same, with these options.
    pub(crate) fn start_with(cluster: &str, urls: &[String], options: &[&str]) -> Self {
        let options: Vec<String> = options.iter().map(|&it| it.to_owned()).collect();
        let begin = |urls: &String| start(cluster, urls, &options);
        Self {
            cluster: cluster.to_owned(),
            daemons: urls.iter().map(begin).collect(),
            options,
        }
    }

    pub(crate) fn daemon(&self, index: usize) -> &Daemon {
        &self.daemons[index]
    }

    pub(crate) fn daemon_mut(&mut self, index: usize) -> &mut Daemon {
        &mut self.daemons[index]
    }

    pub(crate) fn others(&self, index: usize) -> impl Iterator<Item = usize> {
        (0..self.daemons.len()).filter(move |other| *other != index)
    }

    pub(crate) fn kill(&mut self, index: usize) {
        self.daemons[index].signal(Signal::KILL);
    }

    pub(crate) fn restart(&mut self, index: usize, urls: &str) {
        self.daemons[index] = start(&self.cluster, urls, &self.options);
    }

    /// Waits until somebody leads.
    pub(crate) fn leader(&self) -> usize {
        self.find(&|_| true)
    }

    /// Waits until somebody else leads.
    pub(crate) fn next_leader(&self, before: usize) -> usize {
        self.find(&|index| index != before)
    }

    fn find(&self, may_be: &dyn Fn(usize) -> bool) -> usize {
        for _ in 0..LOOKS {
            let asked = (0..self.daemons.len()).filter(|index| may_be(*index));
            for index in asked {
                if self
                    .says(index, "get", "nothing")
                    .is_some_and(|line| line == "ok 0")
                {
                    return index;
                }
            }
            thread::park_timeout(Duration::from_millis(10));
        }
        panic!("nobody leads");
    }

    /// Waits until a standby has all of the log that the leader has now.
    pub(crate) fn await_all_of(&self, leader: usize, standby: usize) {
        let entry = |index: usize| {
            let stats = self.daemons[index].http().get("/v1/stats").body;
            let (_, rest) = stats.split_once("\"log_entry\":").unwrap();
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
            digits.unwrap().parse::<u64>().unwrap()
        };
        let last = entry(leader);
        for _ in 0..LOOKS {
            if entry(standby) >= last {
                return;
            }
            thread::park_timeout(Duration::from_millis(10));
        }
        panic!("member {standby} does not catch up");
    }

    pub(crate) fn await_standby(&self, index: usize) {
        self.await_answer(index, |line| line.starts_with("error_not_leader"));
    }

    pub(crate) fn await_redirect(&self, index: usize, address: &str) {
        self.await_answer(index, |line| line == format!("error_not_leader {address}"));
    }

    fn await_answer(&self, index: usize, is_it: impl Fn(&str) -> bool) {
        for _ in 0..LOOKS {
            if self
                .says(index, "get", "nothing")
                .is_some_and(|line| is_it(&line))
            {
                return;
            }
            thread::park_timeout(Duration::from_millis(10));
        }
        panic!("member {index} does not come to that");
    }

    /// What a member answers, if it does within a moment.
    fn says(&self, index: usize, command: &str, key: &str) -> Option<String> {
        says(self.daemons[index].address(), command, key)
    }
}

/// What is answered at this address, if it is within a moment.
pub(crate) fn says(address: SocketAddr, command: &str, key: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_millis(300)))
        .ok()?;
    stream
        .write_all(format!("{command}\n{key}\n\n").as_bytes())
        .ok()?;
    let mut line = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte).ok()? == 1 {
        if byte[0] == b'\n' {
            return String::from_utf8(line).ok();
        }
        line.push(byte[0]);
    }
    None
}

/// Forwards to an etcd until it is cut; then everything waits, in one direction or both, until it is not. What has
/// waited is forwarded late, also if nobody waits for the answer any more.
pub(crate) struct Proxy {
    address: SocketAddr,
    wires: Arc<Wires>,
}

#[derive(Default)]
struct Wires {
    /// What the member says.
    to_etcd: Valve,
    /// What etcd says.
    from_etcd: Valve,
    /// How long everything takes in each direction.
    one_way: Duration,
    open: Mutex<Vec<TcpStream>>,
}

#[derive(Default)]
struct Valve {
    is_cut: Mutex<bool>,
    changed: Condvar,
}

impl Valve {
    fn pass(&self) {
        let mut is_cut = self.is_cut.lock().unwrap();
        while *is_cut {
            is_cut = self.changed.wait(is_cut).unwrap();
        }
    }

    fn cut(&self, is_cut: bool) {
        *self.is_cut.lock().unwrap() = is_cut;
        self.changed.notify_all();
    }
}

impl Proxy {
    pub(crate) fn start(to: SocketAddr) -> Self {
        Self::start_far(to, Duration::ZERO)
    }

    /// The same, with an etcd that is far away.
    pub(crate) fn start_far(to: SocketAddr, one_way: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let wires = Arc::new(Wires {
            one_way,
            ..Wires::default()
        });
        let shared = Arc::clone(&wires);
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { continue };
                let wires = Arc::clone(&shared);
                thread::spawn(move || {
                    wires.to_etcd.pass();
                    take(wires.one_way * 2); // TCP's own round trip
                    let Ok(server) = TcpStream::connect(to) else {
                        return;
                    };
                    let (Ok(back_from), Ok(back_to)) = (server.try_clone(), client.try_clone())
                    else {
                        return;
                    };
                    let streams = [server.try_clone(), client.try_clone()];
                    wires
                        .open
                        .lock()
                        .unwrap()
                        .extend(streams.into_iter().flatten());
                    let other = Arc::clone(&wires);
                    let one_way = wires.one_way;
                    thread::spawn(move || forward(back_from, back_to, &other.from_etcd, one_way));
                    forward(client, server, &wires.to_etcd, one_way);
                });
            }
        });
        Self { address, wires }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Nothing passes.
    pub(crate) fn cut(&self, is_cut: bool) {
        self.mute(is_cut);
        self.deafen(is_cut);
    }

    /// What the member says does not arrive.
    pub(crate) fn mute(&self, is_cut: bool) {
        self.wires.to_etcd.cut(is_cut);
    }

    /// What etcd says does not arrive.
    pub(crate) fn deafen(&self, is_cut: bool) {
        self.wires.from_etcd.cut(is_cut);
    }

    /// All connections end.
    pub(crate) fn hang_up(&self) {
        for stream in self.wires.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// So much time passes.
fn take(time: Duration) {
    if !time.is_zero() {
        thread::park_timeout(time);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, valve: &Valve, one_way: Duration) {
    let mut bytes = [0; 16 << 10];
    loop {
        match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => {
                valve.pass();
                take(one_way);
                if to.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
