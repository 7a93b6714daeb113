//! A client that speaks HTTP as most programs do: one connection, one request after the other.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use super::PATIENCE;

/// A connection, and what it has received and not read yet.
pub(crate) struct HttpClient {
    stream: TcpStream,
    received: Vec<u8>,
}

/// An answer: its status, its head as text, and its body.
#[derive(Clone, Debug)]
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// A lease that was granted.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) fence: u64,
    pub(crate) id: String,
    lock: String,
    /// The fields that name it in a request.
    hold: String,
}

impl HttpClient {
    #[track_caller]
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("HTTP is served");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            received: Vec::new(),
        }
    }

    /// Sends these bytes.
    #[track_caller]
    pub(crate) fn raw(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream
            .write_all(bytes.as_ref())
            .expect("room to write");
    }

    /// Sends `METHOD /path` with these further headers, each a line, and this body if there is one.
    #[track_caller]
    pub(crate) fn put(&mut self, request: &str, headers: &str, body: &str) {
        let json = match body {
            "" => String::new(),
            body => format!(
                "Content-Type: application/json\r\nContent-Length: {}\r\n",
                body.len()
            ),
        };
        self.raw(format!(
            "{request} HTTP/1.1\r\nHost: localhost\r\n{headers}{json}\r\n{body}"
        ));
    }

    #[track_caller]
    pub(crate) fn get(&mut self, path: &str) -> HttpAnswer {
        self.put(&format!("GET {path}"), "", "");
        self.answer()
    }

    #[track_caller]
    pub(crate) fn post(&mut self, path: &str, body: &str) -> HttpAnswer {
        self.put(&format!("POST {path}"), "", body);
        self.answer()
    }

    /// The next answer.
    #[track_caller]
    pub(crate) fn answer(&mut self) -> HttpAnswer {
        let head = self.until("\r\n\r\n");
        let status = head["HTTP/1.1 ".len()..][..3].parse().unwrap();
        let (_, length) = head.split_once("Content-Length: ").expect("a length");
        let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
        while self.received.len() < length {
            assert!(self.receive() > 0, "half a body");
        }
        let body: Vec<u8> = self.received.drain(..length).collect();
        HttpAnswer {
            status,
            head,
            body: String::from_utf8(body).unwrap(),
        }
    }

    /// Everything up to this text, and the text.
    #[track_caller]
    pub(crate) fn until(&mut self, end: &str) -> String {
        loop {
            let found = memchr::memmem::find(&self.received, end.as_bytes());
            if let Some(at) = found {
                let text: Vec<u8> = self.received.drain(..at + end.len()).collect();
                return String::from_utf8(text).unwrap();
            }
            let received = self.receive();
            let shown = String::from_utf8_lossy(&self.received);
            assert!(received > 0, "closed before {end:?}, after {shown:?}");
        }
    }

    /// Expects that the daemon says nothing more and closes.
    #[track_caller]
    pub(crate) fn expect_end(&mut self) {
        let count = self.receive();
        let shown = String::from_utf8_lossy(&self.received);
        assert!(count == 0 && self.received.is_empty(), "{shown:?}");
    }

    /// How many bytes came; 0 is the end.
    #[track_caller]
    fn receive(&mut self) -> usize {
        let mut bytes = [0; 64 * 1024];
        let count = loop {
            match self.stream.read(&mut bytes) {
                Ok(count) => break count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break 0,
                Err(error) => panic!("{error}"),
            }
        };
        self.received.extend_from_slice(&bytes[..count]);
        count
    }

    // ---- leases ----

    #[track_caller]
    pub(crate) fn acquire(&mut self, lock: &str, owner: &str, times: &str) -> Lease {
        let answer = self.try_acquire(lock, owner, times);
        assert_eq!(answer.status, 200, "{answer:?}");
        Lease::of(&answer)
    }

    /// `times` are the fields `ttl_ms` and perhaps `wait_ms`.
    #[track_caller]
    pub(crate) fn try_acquire(&mut self, lock: &str, owner: &str, times: &str) -> HttpAnswer {
        let body = format!("{{\"owner_id\":\"{owner}\",{times}}}");
        self.post(&format!("/v1/locks/{lock}/acquire"), &body)
    }

    #[track_caller]
    pub(crate) fn renew(&mut self, lease: &Lease, extend_by_ms: u64) -> HttpAnswer {
        let Lease { lock, hold, .. } = lease;
        let body = format!("{{{hold},\"extend_by_ms\":{extend_by_ms}}}");
        self.post(&format!("/v1/locks/{lock}/renew"), &body)
    }

    #[track_caller]
    pub(crate) fn release(&mut self, lease: &Lease) -> HttpAnswer {
        let Lease { lock, hold, .. } = lease;
        self.post(&format!("/v1/locks/{lock}/release"), &format!("{{{hold}}}"))
    }
}

impl HttpAnswer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|why| panic!("{why}: {self:?}"))
    }
}

impl Lease {
    #[track_caller]
    pub(crate) fn of(answer: &HttpAnswer) -> Self {
        let json = answer.json();
        let (id, fence) = (json["lease_id"].as_str().unwrap(), &json["fencing_token"]);
        let owner = &json["owner_id"];
        Self {
            fence: fence.as_u64().unwrap(),
            id: id.to_owned(),
            lock: json["lock_name"].as_str().unwrap().to_owned(),
            hold: format!("\"owner_id\":{owner},\"lease_id\":\"{id}\",\"fencing_token\":{fence}"),
        }
    }
}
