//! A member of etcd for tests: it answers what a script says, over TCP or TLS, and remembers what it was asked.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

/// What it says that it is, and an answer to most questions.
pub(super) const NEW: &str = r#"{"etcdserver":"3.5.30","etcdcluster":"3.5.0"}"#;
pub(super) const EMPTY: &str = r#"{"header":{"revision":"7"}}"#;

/// An answer with this body.
pub(super) fn answer(status: u16, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n\r\n{body}")
}

pub(super) fn plain(body: &str) -> String {
    answer(200, body)
}

/// The member at this address, seen from far away: everything takes so long in each direction. Returns where.
/// The TCP handshake is not delayed.
pub(super) fn far(address: &str, one_way: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap().to_string();
    let address = address.to_owned();
    let serve = move || {
        for near in listener.incoming().map_while(Result::ok) {
            let far = TcpStream::connect(&address).unwrap();
            let back = (far.try_clone().unwrap(), near.try_clone().unwrap());
            for (from, to) in [(near, far), back] {
                let carry = move || carry(from, to, one_way);
                thread::Builder::new().spawn(carry).unwrap();
            }
        }
    };
    thread::Builder::new().spawn(serve).unwrap();
    here
}

fn carry(mut from: TcpStream, mut to: TcpStream, takes: Duration) {
    let (_never, wait) = mpsc::channel::<()>();
    let mut bytes = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let _ = wait.recv_timeout(takes);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Something that answers.
pub(super) struct Member {
    pub(super) address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

trait Talk: Read + Write {}
impl<T: Read + Write> Talk for T {}

type Wrap = Box<dyn Fn(TcpStream) -> Box<dyn Talk> + Send>;

impl Member {
    /// For each connection, one after the other, the answers to what is asked there, byte for byte; then it
    /// is closed.
    pub(super) fn start(connections: &[&[&str]]) -> Self {
        Self::over(connections, Box::new(|socket| Box::new(socket)))
    }

    /// The same over TLS.
    #[cfg(feature = "tls")]
    pub(super) fn encrypted(config: &Arc<rustls::ServerConfig>, connections: &[&[&str]]) -> Self {
        let config = Arc::clone(config);
        let wrap = move |socket| -> Box<dyn Talk> {
            let session = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            Box::new(rustls::StreamOwned::new(session, socket))
        };
        Self::over(connections, Box::new(wrap))
    }

    fn over(connections: &[&[&str]], wrap: Wrap) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let connections: Vec<Vec<String>> = connections
            .iter()
            .map(|answers| answers.iter().map(|&it| it.to_owned()).collect())
            .collect();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&asked);
        let serve = move || {
            for answers in connections {
                let (socket, _) = listener.accept().unwrap();
                let mut stream = wrap(socket);
                for answer in answers {
                    let Ok(request) = read_request(&mut *stream) else {
                        break;
                    };
                    heard.lock().unwrap().push(request);
                    if stream.write_all(answer.as_bytes()).is_err() {
                        break;
                    }
                    let _ = stream.flush();
                }
            }
        };
        thread::Builder::new().spawn(serve).unwrap();
        Self { address, asked }
    }

    /// Requests in their order: path, token if any was shown, body.
    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// How often this path was asked.
    pub(super) fn count(&self, path: &str) -> usize {
        self.asked()
            .iter()
            .filter(|it| it.starts_with(path))
            .count()
    }
}

fn read_request(stream: &mut dyn Talk) -> io::Result<String> {
    let mut bytes = Vec::new();
    let mut piece = [0; 16 << 10];
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let field = |name| {
                let mut lines = head.lines();
                lines.find_map(|line| line.strip_prefix(name).map(str::trim))
            };
            let length: usize = field("Content-Length:").unwrap_or("0").parse().unwrap();
            if body.len() >= length {
                let path = head.split(' ').nth(1).unwrap_or_default();
                let token = field("Authorization:").unwrap_or("-");
                return Ok(format!("{path} {token} {body}"));
            }
        }
        match stream.read(&mut piece)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            received => bytes.extend_from_slice(&piece[..received]),
        }
    }
}
