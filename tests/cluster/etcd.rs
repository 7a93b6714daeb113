//! Three real etcd on loopback, ended and removed when dropped.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

pub(crate) struct Etcds {
    children: Vec<Child>,
    addresses: Vec<SocketAddr>,
    _folder: TempDir,
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

impl Etcds {
    pub(crate) fn start() -> Option<Self> {
        let program = program()?;
        let folder = TempDir::new().unwrap();
        let ports: [u16; 6] = free_ports();
        let url = |index: usize| format!("http://127.0.0.1:{}", ports[index]);
        let cluster: Vec<String> = (0..3).map(|n| format!("e{n}={}", url(3 + n))).collect();
        let cluster = cluster.join(",");
        let start = |n: usize| {
            let log = File::create(folder.path().join(format!("e{n}.log"))).unwrap();
            Command::new(&program)
                .args(["--name", &format!("e{n}"), "--data-dir"])
                .arg(folder.path().join(format!("e{n}")))
                .args([
                    "--listen-client-urls",
                    &url(n),
                    "--advertise-client-urls",
                    &url(n),
                ])
                .args(["--listen-peer-urls", &url(3 + n)])
                .args(["--initial-advertise-peer-urls", &url(3 + n)])
                .args(["--initial-cluster", &cluster, "--log-level", "error"])
                .args(["--snapshot-count", "2000"])
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log)
                .spawn()
                .unwrap()
        };
        let children = (0..3).map(start).collect();
        let address = |n: usize| SocketAddr::from(([127, 0, 0, 1], ports[n]));
        let etcds = Self {
            children,
            addresses: (0..3).map(address).collect(),
            _folder: folder,
        };
        for address in &etcds.addresses {
            while TcpStream::connect(address).is_err() {
                std::thread::yield_now();
            }
        }
        Some(etcds)
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
}

impl Drop for Etcds {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
