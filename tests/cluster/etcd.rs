//! Three real etcd on loopback, ended and removed when dropped, and what an operator or a bad day does to them.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::members::LOOKS;
use crate::vocabulary::HttpClient;

pub(crate) struct Etcds {
    program: PathBuf,
    options: Vec<String>,
    children: Vec<Child>,
    addresses: Vec<SocketAddr>,
    /// For clients, then for each other.
    ports: [u16; 6],
    folder: TempDir,
}

/// The folder with etcd, as `tools/cluster/get-etcd` prints it.
const FOLDER: &str = "ETCD_FOLDER";

/// Where etcd is, if somebody says so. Nothing is looked for or downloaded.
pub(crate) fn program() -> Option<PathBuf> {
    let folder = std::env::var_os(FOLDER).filter(|it| !it.is_empty())?;
    let program = PathBuf::from(folder).join("etcd");
    assert!(program.is_file(), "{FOLDER}: there is no {program:?}");
    Some(program)
}

/// Ports that are free now.
pub(crate) fn free_ports<const N: usize>() -> [u16; N] {
    let listeners: [TcpListener; N] =
        std::array::from_fn(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|it| it.local_addr().unwrap().port())
}

/// The first characters of the keys that fill an etcd, as its gateway takes them (base64), and what comes after all of
/// them.
const JUNK: &str = "am5r";
const JUNK_END: &str = "am5s";

/// About so many bytes have each of them.
const JUNK_BYTES: usize = 384 << 10;

impl Etcds {
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// The same, with these options.
    pub(crate) fn start_with(options: &[&str]) -> Option<Self> {
        let program = program()?;
        let folder = TempDir::new().unwrap();
        let ports: [u16; 6] = free_ports();
        let address = |n: usize| SocketAddr::from(([127, 0, 0, 1], ports[n]));
        let mut etcds = Self {
            program,
            options: options.iter().map(|&it| it.to_owned()).collect(),
            children: Vec::new(),
            addresses: (0..3).map(address).collect(),
            ports,
            folder,
        };
        etcds.start_all();
        Some(etcds)
    }

    /// Where they listen: for clients those from 0 on, for each other those from 3 on.
    fn url(&self, index: usize) -> String {
        format!("http://127.0.0.1:{}", self.ports[index])
    }

    /// Who they all are, as each of them is told.
    fn cluster(&self) -> String {
        let cluster: Vec<String> = (0..3)
            .map(|n| format!("e{n}={}", self.url(3 + n)))
            .collect();
        cluster.join(",")
    }

    fn start_all(&mut self) {
        let start = |n: usize| {
            let log = File::create(self.folder.path().join(format!("e{n}.log"))).unwrap();
            let (clients, peers) = (self.url(n), self.url(3 + n));
            Command::new(&self.program)
                .args(["--name", &format!("e{n}"), "--data-dir"])
                .arg(self.data(n))
                .args(["--listen-client-urls", &clients])
                .args(["--advertise-client-urls", &clients])
                .args(["--listen-peer-urls", &peers])
                .args(["--initial-advertise-peer-urls", &peers])
                .args(["--initial-cluster", &self.cluster()])
                .args(["--log-level", "error", "--snapshot-count", "2000"])
                .args(&self.options)
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log)
                .spawn()
                .unwrap()
        };
        self.children = (0..3).map(start).collect();
        for address in &self.addresses {
            while TcpStream::connect(address).is_err() {
                thread::yield_now();
            }
        }
    }

    fn data(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("e{index}"))
    }

    fn etcdctl(&self, args: &[&str]) {
        let done = Command::new(self.program.with_file_name("etcdctl"))
            .current_dir(self.folder.path())
            .env("ETCDCTL_API", "3")
            .args(args)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "etcdctl {args:?}: {said}");
    }

    /// Makes a backup, as docs/cluster.md says.
    pub(crate) fn back_up(&self) {
        self.etcdctl(&["--endpoints", &self.url(0), "snapshot", "save", "latchd.db"]);
    }

    /// Stops all of them, restores each from the backup, and starts them, as docs/cluster.md says.
    pub(crate) fn restore(&mut self) {
        for child in &self.children {
            kill_process(Pid::from_child(child), Signal::TERM).unwrap();
        }
        for child in &mut self.children {
            child.wait().unwrap();
        }
        for n in 0..3 {
            let (name, data, peers) = (format!("e{n}"), self.data(n), self.url(3 + n));
            std::fs::rename(&data, data.with_extension("before")).unwrap();
            let data = data.to_str().unwrap();
            self.etcdctl(&[
                "snapshot",
                "restore",
                "latchd.db",
                "--data-dir",
                data,
                "--name",
                &name,
                "--initial-cluster",
                &self.cluster(),
                "--initial-advertise-peer-urls",
                &peers,
                "--initial-cluster-token",
                "restored-1",
            ]);
        }
        self.start_all();
        self.etcdctl(&[
            "--endpoints",
            &self.url(0),
            "endpoint",
            "health",
            "--cluster",
        ]);
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// All of them, as latchd takes them.
    pub(crate) fn urls(&self) -> String {
        let urls: Vec<String> = self
            .addresses
            .iter()
            .map(|it| format!("http://{it}"))
            .collect();
        urls.join(",")
    }

    /// Asks a member over its gateway; what it answers, whatever that is.
    fn ask(&self, index: usize, path: &str, body: &Value) -> Value {
        let mut client = HttpClient::connect(self.addresses[index]);
        client.post(path, &body.to_string()).json()
    }

    /// Which of them leads the others, and its number.
    pub(crate) fn leader(&self) -> usize {
        for _ in 0..LOOKS {
            for index in 0..self.addresses.len() {
                let said = self.ask(index, "/v3/maintenance/status", &json!({}));
                if said["leader"].is_string() && said["leader"] == said["header"]["member_id"] {
                    return index;
                }
            }
            thread::park_timeout(Duration::from_millis(10));
        }
        panic!("no etcd leads");
    }

    /// Puts so much into it that nobody needs.
    pub(crate) fn fill(&self, bytes: usize) {
        for number in 0..bytes.div_ceil(JUNK_BYTES) {
            assert!(self.takes(number), "it is full");
        }
    }

    /// Fills it until it takes nothing more. That is more than its quota: it looks at what it has written so far.
    pub(crate) fn fill_up(&self) {
        assert!((0..10_000).any(|it| !self.takes(it)), "it never is full");
    }

    /// Whether there was room for another piece.
    fn takes(&self, number: usize) -> bool {
        // Each character of base64 is six bits.
        let value = "A".repeat(JUNK_BYTES / 3 * 4);
        let key = format!("{JUNK}{number:04}");
        let said = self.ask(0, "/v3/kv/put", &json!({"key": key, "value": value}));
        let is_refused = said.get("code").is_some();
        assert!(
            !is_refused || said.to_string().contains("space exceeded"),
            "{said}"
        );
        !is_refused
    }

    /// Has it forget everything that was.
    pub(crate) fn compact(&self) {
        let at = self.ask(0, "/v3/kv/range", &json!({"key": JUNK}));
        let body = json!({"revision": at["header"]["revision"], "physical": true});
        let said = self.ask(0, "/v3/kv/compaction", &body).to_string();
        // The leader may have done it a moment ago.
        let is_done = !said.contains("\"code\"") || said.contains("has been compacted");
        assert!(is_done, "{said}");
    }

    /// Deletes what `fill` has put there, and has it forgotten.
    pub(crate) fn empty(&self) {
        let range = json!({"key": JUNK, "range_end": JUNK_END});
        let said = self.ask(0, "/v3/kv/deleterange", &range);
        assert!(said.get("deleted").is_some(), "{said}");
        self.compact();
    }

    /// What docs/cluster.md says to do about one that is full: defragment each member, then disarm.
    pub(crate) fn cure(&self) {
        self.empty();
        for index in 0..self.addresses.len() {
            let said = self.ask(index, "/v3/maintenance/defragment", &json!({}));
            assert!(said.get("code").is_none(), "{said}");
        }
        for _ in 0..LOOKS {
            let get = json!({"action": "GET", "alarm": "NONE"});
            let alarms = self.ask(0, "/v3/maintenance/alarm", &get);
            let Some(alarms) = alarms["alarms"].as_array().filter(|it| !it.is_empty()) else {
                return;
            };
            for alarm in alarms {
                let mut off = alarm.clone();
                off["action"] = json!("DEACTIVATE");
                self.ask(0, "/v3/maintenance/alarm", &off);
            }
        }
        panic!("etcd stays full");
    }

    /// Has every sync of this one's disk take longer, until what is returned is dropped; `None`: it cannot be done
    /// here.
    pub(crate) fn slow_down(&self, index: usize, delay: Duration) -> Option<Slow> {
        let pid = self.children[index].id();
        let delay_us = delay.as_micros();
        let strace = Command::new("strace")
            .args(["-f", "-qq", "-o", "/dev/null", "-p", &pid.to_string()])
            .args(["-e", "trace=fsync,fdatasync", "-e"])
            .arg(format!("inject=fsync,fdatasync:delay_enter={delay_us}"))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut slow = Slow(strace.ok()?);
        let is_traced = || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let tracer = status.lines().find_map(|it| it.strip_prefix("TracerPid:"));
            tracer.is_some_and(|it| it.trim() != "0")
        };
        for _ in 0..LOOKS {
            if is_traced() {
                return Some(slow);
            }
            if slow.0.try_wait().unwrap().is_some() {
                return None;
            }
            thread::park_timeout(Duration::from_millis(10));
        }
        None
    }
}

/// An etcd with a slow disk, for as long as this is there.
pub(crate) struct Slow(Child);

impl Drop for Slow {
    fn drop(&mut self) {
        // When it is told to end it lets go of what it looks at; when it is killed it may not.
        if self.0.try_wait().is_ok_and(|it| it.is_none()) {
            let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

impl Drop for Etcds {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
