//! latchd as a child process: its log, its signals, its end, and what `/proc` tells about it.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, Once};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, getrlimit, kill_process, prlimit, setrlimit,
    waitpid,
};
use socket2::{Domain, Socket, Type};

use super::{Client, HttpClient, PATIENCE};

/// Ticks per second of the times in `/proc/PID/stat`: what Linux promises to user space.
const CPU_TICKS_PER_S: u32 = 100;

/// A running latchd, killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    log: Arc<Log>,
    listener_to_log: Option<JoinHandle<()>>,
    /// Where it listens; known once it has said so.
    address: Option<SocketAddr>,
}

/// What a process wrote to standard error so far.
#[derive(Default)]
struct Log {
    state: Mutex<LogState>,
    changed: Condvar,
}

#[derive(Default)]
struct LogState {
    lines: Vec<String>,
    /// The process has closed it, most likely by ending.
    ended: bool,
}

/// The program, with none of the settings this process may have in its environment, and without
/// HTTP unless a test asks for it with `--http-port`: the default port may be somebody else's.
pub(crate) fn latchd() -> Command {
    let mut command = latchd_with_default_ports();
    command.env("LATCHD_HTTP_PORT", "off");
    command
}

/// The program, with none of the settings this process may have in its environment.
pub(crate) fn latchd_with_default_ports() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_latchd"));
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"LATCHD_") {
            command.env_remove(name);
        }
    }
    command
}

impl Daemon {
    /// A daemon with these options on a free port, already listening.
    #[track_caller]
    pub(crate) fn start(options: &[&str]) -> Self {
        let mut command = latchd();
        command.args(["--port", "0"]).args(options);
        Self::serve(command)
    }

    /// The same, also on this unix socket.
    #[track_caller]
    pub(crate) fn start_at(path: &Path, options: &[&str]) -> Self {
        let mut command = latchd();
        command.args(["--port", "0", "--unix-socket"]).arg(path);
        command.args(options);
        Self::serve(command)
    }

    /// The same, with no more than this many descriptors to be had.
    #[track_caller]
    pub(crate) fn start_with_descriptors(descriptors_max: u32, options: &[&str]) -> Self {
        let program = latchd().get_program().to_owned();
        let mut command = Command::new("sh");
        let script =
            format!("ulimit -n {descriptors_max} && exec \"$0\" --port 0 --http-port off \"$@\"");
        command.arg("-c").arg(script).arg(program).args(options);
        Self::serve(command)
    }

    /// Runs the command until it says where it listens.
    #[track_caller]
    pub(crate) fn serve(command: Command) -> Self {
        let mut daemon = Self::spawn(command);
        let line = daemon.wait_for_log("listens on ");
        let (_, address) = line.split_once("listens on ").unwrap();
        let address = address.split([' ', '"']).next().unwrap();
        daemon.address = Some(address.parse().expect("an address in the start line"));
        daemon
    }

    /// Runs the command, which may as well end at once.
    #[track_caller]
    pub(crate) fn spawn(mut command: Command) -> Self {
        raise_descriptor_limit();
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let log = Arc::new(Log::default());
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let listener_to_log = thread::spawn({
            let log = Arc::clone(&log);
            move || log.follow(stderr)
        });
        Self {
            child,
            log,
            listener_to_log: Some(listener_to_log),
            address: None,
        }
    }

    /// Where it listens, as its start line said.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address.expect("a daemon that listens")
    }

    /// A new connection, always over loopback.
    #[track_caller]
    pub(crate) fn connect(&self) -> Client {
        Client::connect(&self.loopback().into())
    }

    /// A new connection whose kernel keeps few unread answers.
    #[track_caller]
    pub(crate) fn connect_with_small_receive_buffer(&self) -> Client {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        Client::over(socket, &self.loopback().into())
    }

    /// A new connection from this address, one of 127.0.0.0/8.
    #[track_caller]
    pub(crate) fn connect_from(&self, address: Ipv4Addr) -> Client {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
        Client::over(socket, &self.loopback().into())
    }

    /// Its own address if that is one of 127.0.0.0/8, otherwise 127.0.0.1.
    fn loopback(&self) -> SocketAddr {
        match self.address() {
            address @ SocketAddr::V4(it) if it.ip().is_loopback() => address,
            address => (Ipv4Addr::LOCALHOST, address.port()).into(),
        }
    }

    /// Where it serves HTTP, as soon as it has said so.
    #[track_caller]
    pub(crate) fn http_address(&self) -> SocketAddr {
        let line = self.wait_for_log("serves HTTP on ");
        let (_, address) = line.split_once("serves HTTP on ").unwrap();
        let (address, _) = address.split_once(": ").expect("a port, not a path");
        address.parse().expect("an address in the start line")
    }

    /// A new connection that speaks HTTP.
    #[track_caller]
    pub(crate) fn http(&self) -> HttpClient {
        HttpClient::connect(self.http_address())
    }

    /// The first log line with this in it, as soon as it is there.
    #[track_caller]
    pub(crate) fn wait_for_log(&self, needle: &str) -> String {
        let found = |state: &LogState| state.lines.iter().any(|line| line.contains(needle));
        let state = self.log.wait_until(|state| state.ended || found(state));
        match state.into_iter().find(|line| line.contains(needle)) {
            Some(line) => line,
            None => panic!("the log never said {needle:?}"),
        }
    }

    /// Waits until the log has said this so many times.
    #[track_caller]
    pub(crate) fn wait_for_log_times(&self, needle: &str, times: usize) {
        let count = |lines: &[String]| lines.iter().filter(|line| line.contains(needle)).count();
        let is_enough = |state: &LogState| state.ended || count(&state.lines) >= times;
        let lines = self.log.wait_until(is_enough);
        assert!(
            count(&lines) >= times,
            "the log never said {needle:?} {times} times"
        );
    }

    /// All log lines up to now.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.state.lock().unwrap().lines.clone()
    }

    pub(crate) fn logged(&self, needle: &str) -> bool {
        self.log().iter().any(|line| line.contains(needle))
    }

    #[track_caller]
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("a process to signal");
    }

    /// Freezes the process; it does nothing more when this returns.
    #[track_caller]
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
        let (_, status) = waitpid(Some(self.pid()), WaitOptions::UNTRACED)
            .unwrap()
            .unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    #[track_caller]
    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Waits for the process to end by itself: its exit code and its whole log.
    #[track_caller]
    pub(crate) fn wait_for_exit(&mut self) -> (i32, Vec<String>) {
        let log = self.log.wait_until(|state| state.ended);
        let status = self.child.wait().unwrap();
        match status.code() {
            Some(code) => (code, log),
            None => panic!("ended by {status}"),
        }
    }

    /// Asks it to stop and expects that it does.
    #[track_caller]
    pub(crate) fn stop(&mut self) -> Vec<String> {
        self.signal(Signal::TERM);
        let (code, log) = self.wait_for_exit();
        assert_eq!(code, 0, "{log:#?}");
        log
    }

    /// What it wrote to standard output; only once it has ended.
    pub(crate) fn stdout(&mut self) -> String {
        let mut text = String::new();
        let mut stdout = self.child.stdout.take().unwrap();
        stdout.read_to_string(&mut text).unwrap();
        text
    }

    /// A field of `/proc/PID/status`.
    pub(crate) fn status(&self, field: &str) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let prefix = format!("{field}:");
        let line = status.lines().find(|line| line.starts_with(&prefix));
        line.expect(field)[prefix.len()..].trim().to_owned()
    }

    /// Memory in use.
    pub(crate) fn resident_kib(&self) -> u64 {
        let field = self.status("VmRSS");
        field.trim_end_matches(" kB").parse().unwrap()
    }

    /// From now on it gets so much address space more than it has, and an allocation beyond that
    /// fails.
    #[track_caller]
    pub(crate) fn limit_address_space(&self, more_bytes: u64) {
        let field = self.status("VmSize");
        let kib: u64 = field.trim_end_matches(" kB").parse().unwrap();
        let bytes = Some(kib * 1024 + more_bytes);
        let limit = Rlimit {
            current: bytes,
            maximum: bytes,
        };
        prlimit(Some(self.pid()), Resource::As, limit).unwrap();
    }

    /// Time spent computing.
    pub(crate) fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The name in parentheses may hold blanks; after it utime and stime are 12th and 13th.
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        let ticks = fields.split(' ').skip(11).take(2);
        let ticks: u32 = ticks.map(|field| field.parse::<u32>().unwrap()).sum();
        Duration::from_secs(ticks.into()) / CPU_TICKS_PER_S
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
        if let Some(listener) = self.listener_to_log.take() {
            let _ = listener.join();
        }
        if thread::panicking() {
            eprintln!("the daemon's log:");
            for line in self.log() {
                eprintln!("    {line}");
            }
        }
    }
}

impl Log {
    fn follow(&self, from: impl BufRead) {
        // Lossy: what a peer sent could be in it.
        for line in from.split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            self.state.lock().unwrap().lines.push(line);
            self.changed.notify_all();
        }
        self.state.lock().unwrap().ended = true;
        self.changed.notify_all();
    }

    #[track_caller]
    fn wait_until(&self, mut done: impl FnMut(&LogState) -> bool) -> Vec<String> {
        let state = self.state.lock().unwrap();
        let waiting = |state: &mut LogState| !done(state);
        let (state, result) = self
            .changed
            .wait_timeout_while(state, PATIENCE, waiting)
            .unwrap();
        let lines = state.lines.clone();
        drop(state); // a panic must not poison what the end of the test wants to show
        assert!(!result.timed_out(), "not in the log in time: {lines:#?}");
        lines
    }
}

/// Runs latchd with settings it must refuse with this exit code; what it says about them.
#[track_caller]
pub(crate) fn refusal(exit_code: i32, command: Command) -> String {
    let shown = format!("{command:?}");
    let (code, log) = Daemon::spawn(command).wait_for_exit();
    assert_eq!(code, exit_code, "{shown}: {log:#?}");
    log.join("\n")
}

/// A thousand clients need a thousand descriptors on this side, too.
fn raise_descriptor_limit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let current = maximum;
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    });
}
