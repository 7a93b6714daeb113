//! Clients that meet at a barrier leave it together: all are told `ok`, or all `timeout`.
//!
//! Two clients that wait at the same barrier at the end of a turn wait for the same event, so
//! whatever the next turn tells one of them it tells the other.

use std::collections::BTreeMap;

use super::entries::{EntryAnswer, Parked};
use crate::clients::request::EntryKind;
use latchd::base::Millis;

/// How a client left a barrier.
#[derive(Clone, Debug)]
struct Departure {
    key: usize,
    conn_number: u32,
    count: u32,
    text: String,
    /// Its own wait was over.
    was_due: bool,
}

/// The clients that left a barrier in this turn.
#[derive(Debug, Default)]
pub(crate) struct KnownBarriers {
    departures: Vec<Departure>,
}

impl KnownBarriers {
    pub(crate) fn departed(&mut self, key: usize, count: u32, wait: Millis, it: &EntryAnswer<'_>) {
        self.departures.push(Departure {
            key,
            conn_number: it.conn_number,
            count,
            text: it.text.to_owned(),
            was_due: it.now.at >= it.arrived.at.after(wait),
        });
    }

    /// Those of `parked` that wait at one barrier were all told the same in this turn, or all
    /// nothing. Without `doubt`, the answers of all other clients are known too.
    pub(crate) fn check(&mut self, parked: &[Parked], doubt: bool) -> Result<(), String> {
        let departures = std::mem::take(&mut self.departures);
        let mut fates = BTreeMap::new();
        for &Parked {
            key, conn_number, ..
        } in parked.iter().filter(|it| it.kind == EntryKind::Barrier)
        {
            let mine = departures
                .iter()
                .find(|it| it.conn_number == conn_number && it.key == key);
            let mine = mine.map_or("nothing", |it| &it.text);
            let fate = *fates.entry(key).or_insert(mine);
            if fate != mine {
                return Err(format!(
                    "of those who met at b{key}, some were told {fate}, connection {conn_number} \
                     {mine}"
                ));
            }
        }
        if doubt {
            return Ok(());
        }
        for it in &departures {
            let same = |that: &&Departure| that.key == it.key && that.text == it.text;
            let told = || departures.iter().filter(same);
            let released = told().filter(|that| that.count == it.count).count();
            if it.text == "ok" && released % it.count as usize != 0 {
                return Err(format!("b{} let {released} go, not {}", it.key, it.count));
            }
            if it.text == "timeout" && !told().any(|that| that.was_due) {
                return Err(format!("b{} sent everybody away for no reason", it.key));
            }
        }
        Ok(())
    }
}
