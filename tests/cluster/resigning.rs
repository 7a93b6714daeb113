//! A leader that is told to go while many are being granted something: what is held at the next one is what somebody was
//! told.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::members::Members;
use crate::{now, with_etcd};

const CLIENTS: usize = 48;

/// Takes one lock after the other for as long as the server answers. Returns how many it was told that it has.
fn take_all(address: SocketAddr, name: &str) -> usize {
    let Ok(mut stream) = TcpStream::connect(address) else {
        return 0;
    };
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    for number in 0.. {
        let request = format!("l\n{name}-{number}\n0 600\n");
        line.clear();
        let is_asked = stream.write_all(request.as_bytes()).is_ok();
        if !is_asked || answers.read_line(&mut line).is_err() || !line.starts_with("ok ") {
            return number;
        }
    }
    unreachable!("it is told to go")
}

/// How many locks are held there.
fn held(members: &Members, index: usize) -> usize {
    let figures = members.daemon(index).http().get("/metrics").body;
    let held = figures
        .lines()
        .find_map(|it| it.strip_prefix("locks_held "));
    held.unwrap().parse().unwrap()
}

#[test]
fn what_a_leader_granted_before_it_went_is_what_somebody_was_told() {
    with_etcd(|etcds| {
        let mut members = Members::start("polite", &etcds.urls());
        let mut leader = members.leader();
        let mut told = 0;
        for (round, signal) in [Signal::TERM, Signal::USR1, Signal::USR1]
            .iter()
            .enumerate()
        {
            let address = members.daemon(leader).address();
            let take = |client| {
                let name = format!("job-{round}-{client}");
                thread::spawn(move || take_all(address, &name))
            };
            let clients: Vec<_> = (0..CLIENTS).map(take).collect();
            thread::park_timeout(Duration::from_millis(500));
            let began = now();
            members.daemon(leader).signal(*signal);
            let next = members.next_leader(leader);
            println!("{signal:?} {:6.3} s", began.elapsed().as_secs_f64());
            told += clients
                .into_iter()
                .map(|it| it.join().unwrap())
                .sum::<usize>();
            assert!(told > CLIENTS, "they were too slow");
            assert_eq!(held(&members, next), told, "after {signal:?}");
            if *signal == Signal::TERM {
                members.daemon_mut(leader).wait_for_exit();
                members.restart(leader, &etcds.urls());
            }
            members.await_standby(leader);
            leader = next;
        }
    });
}
