//! A look at a directory without touching it, also while a daemon writes it.
//!
//! Takes no lock and writes nothing. Files may grow, appear and go while it looks: a file that is
//! gone, or a record that is half written, is a reason to look again. What still cannot be read after
//! several looks is damage, and is shown as such.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write;
use std::io::ErrorKind;
use std::path::Path;

use super::disk::{Disk, Files};
use super::entry::Entry;
use super::format::Durability;
use super::load::{self, Damage, Ending, FileFound, Found, Listing, LoadError, Visitor};
use super::open::{DirLock, Holder, OpenError};
use super::ranges::{LockedRange, Ranges};
use crate::engine::types::{ATTACHED_SERIAL, ByteRange, End, Mode, RangeGrant, Sharing};
use crate::escape;
use crate::key::Key;
use crate::wire::json::{push_number, push_str_escaped};

/// How often a directory that changes is looked at before it is called damaged.
const LOOKS_MAX: u32 = 8;

/// How many of the last records are shown.
const LAST_RECORDS: usize = 20;

/// What was seen.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Who has the directory.
    pub holder: Holder,
    /// The files and the last life; as far as there is no damage.
    pub found: Option<Found>,
    /// Where it is damaged; what is said beside it is what stands before the damage.
    pub damage: Option<Damage>,
    /// What is held, by fence.
    pub held: BTreeMap<u64, Held>,
    /// The clients, by id, and how long each is kept without a connection, in milliseconds.
    pub clients: BTreeMap<String, u64>,
    /// The byte ranges that are locked, by resource and first byte.
    pub ranges: Vec<HeldBytes>,
    /// How many counters, values and lists there are.
    pub counts: Counts,
    /// Every fence up to this one may have been given out.
    pub fence_ceiling: u64,
    /// The last records, the newest last: their numbers and what they say.
    pub last_records: VecDeque<(u64, String)>,
}

/// One grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The name.
    pub key: Key,
    /// How it is held.
    pub mode: Mode,
    /// Its lease as it was recorded.
    pub lease_ms: u64,
    /// The serial number of the connection it was granted to.
    pub client: u32,
    /// The name which that client gave.
    pub name: Option<String>,
}

/// A range of bytes that is locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBytes {
    /// The resource.
    pub resource: Key,
    /// The id of the client.
    pub client: String,
    /// For whom the client holds it; empty for itself.
    pub owner: Key,
    /// Which bytes.
    pub range: ByteRange,
    /// How.
    pub mode: Sharing,
    /// Its number, and when it was granted by whom.
    pub grant: RangeGrant,
}

impl From<LockedRange<'_>> for HeldBytes {
    fn from(locked: LockedRange<'_>) -> Self {
        Self {
            resource: locked.resource.into(),
            client: locked.client.to_owned(),
            owner: locked.owner.into(),
            range: locked.range,
            mode: locked.mode,
            grant: locked.grant,
        }
    }
}

/// How many things there are that are not grants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Counters that are not 0.
    pub counters: usize,
    /// Values, and the bytes in them. Values whose time is over count until a daemon deletes them.
    pub values: usize,
    /// Bytes in values.
    pub value_bytes: usize,
    /// Lists.
    pub lists: usize,
    /// Values in lists.
    pub list_values: usize,
}

/// Tries what a start would try with a directory, without locking or changing anything. A directory
/// that is in use passes.
///
/// # Errors
/// What a start would say.
pub fn check(dir: &Path) -> Result<(), OpenError> {
    DirLock::check_file(dir)?;
    let Inspection { found, damage, .. } = inspect(dir)?;
    if let Some(damage) = damage {
        return Err(LoadError::Damaged(damage).into());
    }
    let disk = Files::open(dir).map_err(OpenError::Directory)?;
    for file in found.iter().flat_map(Found::unsettled) {
        match disk.open(&file.name) {
            // A running daemon has compacted the directory since the inspection.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            result => drop(result.map_err(LoadError::io(&file.name))?),
        }
    }
    Ok(())
}

/// Looks at a directory.
///
/// # Errors
/// It is not there, it cannot be read, or a later version wrote it.
pub fn inspect(dir: &Path) -> Result<Inspection, LoadError> {
    if !dir.is_dir() {
        return Err(LoadError::Io {
            file: String::new(),
            error: ErrorKind::NotFound.into(),
        });
    }
    let holder = DirLock::holder(dir);
    let disk = Files::open(dir).map_err(LoadError::io(""))?;
    let mut looks = 0;
    loop {
        looks += 1;
        let mut seen = Seen::default();
        let result = look(&disk, &mut seen);
        let damage = match result {
            Ok(found) => return Ok(seen.finish(holder, Some(found), None)),
            Err(LoadError::Io { error, .. })
                if error.kind() == ErrorKind::NotFound && looks < LOOKS_MAX =>
            {
                continue;
            }
            Err(LoadError::Damaged(damage)) => damage,
            Err(error) => return Err(error),
        };
        if looks == LOOKS_MAX {
            return Ok(seen.finish(holder, None, Some(damage)));
        }
    }
}

fn look(disk: &Files, seen: &mut Seen) -> Result<Found, LoadError> {
    let visitor = Visitor {
        frame: &mut |_, frame, entry| seen.apply(frame.number, entry),
        progress: &mut |_| {},
        is_over: &|| false,
    };
    load::read(disk, &Listing::read(disk)?, visitor)
}

#[derive(Default)]
struct Seen {
    held: BTreeMap<u64, Held>,
    clients: BTreeMap<String, u64>,
    ranges: Ranges,
    counters: HashMap<Box<[u8]>, ()>,
    values: HashMap<Box<[u8]>, usize>,
    lists: HashMap<Box<[u8]>, usize>,
    fence_ceiling: u64,
    last: VecDeque<(u64, String)>,
}

impl Seen {
    fn apply(&mut self, number: u64, entry: &Entry<'_>) {
        if self.last.len() == LAST_RECORDS {
            self.last.pop_front();
        }
        self.last.push_back((number, told(entry)));
        match *entry {
            Entry::Granted {
                key,
                mode,
                token,
                lease,
                client,
                name,
                ..
            } => {
                let held = Held {
                    key: key.into(),
                    mode,
                    lease_ms: lease.0,
                    client,
                    name: name.map(ToOwned::to_owned),
                };
                self.fence_ceiling = self.fence_ceiling.max(token.fence.0);
                self.held.insert(token.fence.0, held);
            }
            Entry::Lengthened { fence, lease, .. } => {
                if let Some(held) = self.held.get_mut(&fence.0) {
                    held.lease_ms = lease.0;
                }
            }
            Entry::Owned { fence, client, .. } => {
                if let Some(held) = self.held.get_mut(&fence.0) {
                    held.client = ATTACHED_SERIAL;
                    held.name = Some(client.to_owned());
                }
            }
            Entry::Ended { fence, .. } => {
                self.held.remove(&fence.0);
            }
            Entry::Counted { key, value: 0 } => {
                self.counters.remove(key);
            }
            Entry::Counted { key, .. } => {
                self.counters.insert(key.into(), ());
            }
            Entry::Stored { key, value, .. } => {
                self.values.insert(key.into(), value.len());
            }
            Entry::Deleted { key } => {
                self.values.remove(key);
            }
            Entry::Pushed { key, .. } => {
                *self.lists.entry(key.into()).or_default() += 1;
            }
            Entry::Popped { key, .. } => {
                if let Some(length) = self.lists.get_mut(key) {
                    *length = length.saturating_sub(1);
                    if *length == 0 {
                        self.lists.remove(key);
                    }
                }
            }
            Entry::Client { id, ttl, .. } => {
                self.clients.insert(id.to_owned(), ttl.0);
            }
            Entry::ClientGone { id } => {
                self.clients.remove(id);
                self.ranges.forget_client(id);
            }
            Entry::Ranged {
                resource,
                client,
                owner,
                range,
                mode,
                grant,
            } => self.ranges.set(resource, client, owner, range, mode, grant),
            Entry::Fences { upto } => self.fence_ceiling = self.fence_ceiling.max(upto.0),
            Entry::Mark { .. } | Entry::Stopped { .. } | Entry::End { .. } => {}
        }
    }

    fn finish(self, holder: Holder, found: Option<Found>, damage: Option<Damage>) -> Inspection {
        let mut ranges: Vec<HeldBytes> = self.ranges.iter().map(Into::into).collect();
        ranges.sort_by(|one, other| {
            let place = |it: &HeldBytes| it.range.start();
            let resources = one.resource.as_bytes().cmp(other.resource.as_bytes());
            resources.then(place(one).cmp(&place(other)))
        });
        Inspection {
            holder,
            found,
            damage,
            held: self.held,
            clients: self.clients,
            ranges,
            counts: Counts {
                counters: self.counters.len(),
                values: self.values.len(),
                value_bytes: self.values.values().sum(),
                lists: self.lists.len(),
                list_values: self.lists.values().sum(),
            },
            fence_ceiling: self.fence_ceiling,
            last_records: self.last,
        }
    }
}

/// A record in words. Says no token: a look must not be enough to release what others hold.
fn told(entry: &Entry<'_>) -> String {
    let key = quoted;
    let side = |end| match end {
        End::Left => "left",
        End::Right => "right",
    };
    match *entry {
        Entry::Granted {
            key: name,
            mode,
            token,
            lease,
            client,
            name: called,
            ..
        } => {
            let client = match (client, called) {
                (ATTACHED_SERIAL, Some(id)) => quoted(id.as_bytes()),
                (number, _) => number.to_string(),
            };
            format!(
                "granted {} {}, fence {}, lease {} ms, client {client}",
                key(name),
                mode_told(mode),
                token.fence,
                lease.0
            )
        }
        Entry::Lengthened {
            key: name,
            fence,
            lease,
        } => format!(
            "lengthened {}, fence {fence}, lease {} ms",
            key(name),
            lease.0
        ),
        Entry::Owned {
            key: name,
            fence,
            client,
        } => format!(
            "owned {}, fence {fence}, client {}",
            key(name),
            quoted(client.as_bytes())
        ),
        Entry::Ended { key: name, fence } => format!("ended {}, fence {fence}", key(name)),
        Entry::Counted { key: name, value } => format!("counted {} = {value}", key(name)),
        Entry::Stored {
            key: name,
            value,
            ends_ms,
        } => match ends_ms {
            Some(ms) => format!(
                "stored {}, {} bytes, until {}",
                key(name),
                value.len(),
                date(ms)
            ),
            None => format!("stored {}, {} bytes", key(name), value.len()),
        },
        Entry::Deleted { key: name } => format!("deleted {}", key(name)),
        Entry::Pushed {
            key: name,
            end,
            value,
        } => format!("pushed {} {}, {} bytes", key(name), side(end), value.len()),
        Entry::Popped { key: name, end } => format!("popped {} {}", key(name), side(end)),
        Entry::Client { id, ttl, .. } => {
            format!("client {}, kept for {} ms", quoted(id.as_bytes()), ttl.0)
        }
        Entry::ClientGone { id } => format!("client gone {}", quoted(id.as_bytes())),
        Entry::Ranged {
            resource,
            client,
            owner,
            range,
            mode,
            grant,
        } => {
            let how = mode.map_or("not locked", sharing_told);
            let who = holder_told(client, owner);
            let number = match mode.filter(|_| grant.id > 0) {
                Some(_) => format!(", {}", grant_told(grant)),
                None => String::new(),
            };
            format!(
                "ranged {} {} {how}, {who}{number}",
                key(resource),
                bytes_told(range)
            )
        }
        Entry::Fences { upto } => format!("fences up to {upto}"),
        Entry::Stopped { at_ms } => format!("stopped {}", date(at_ms)),
        Entry::Mark { durable } => format!("mark {durable}"),
        Entry::End { frames } => format!("end of {frames}"),
    }
}

/// What clients have chosen, escaped as everywhere that people read it. A quotation mark in it does not
/// end it.
fn quoted(bytes: &[u8]) -> String {
    format!("\"{}\"", escape::bytes(bytes).replace('"', "\\\""))
}

fn mode_told(mode: Mode) -> String {
    match mode {
        Mode::Slot { limit: 1 } => "lock".to_owned(),
        Mode::Slot { limit } => format!("slot of {limit}"),
        Mode::Read => "read".to_owned(),
        Mode::Write => "write".to_owned(),
        Mode::Lead => "lead".to_owned(),
    }
}

fn sharing_told(mode: Sharing) -> &'static str {
    match mode {
        Sharing::Shared => "shared",
        Sharing::Exclusive => "exclusive",
    }
}

/// The number of a range lock, and when it was granted by whom, as far as that is known.
fn grant_told(grant: RangeGrant) -> String {
    let RangeGrant { id, since, epoch } = grant;
    match since {
        0 => format!("lock {id}"),
        since => format!(
            "lock {id} since {} in epoch {epoch}",
            date(since / 1_000_000)
        ),
    }
}

fn bytes_told(range: ByteRange) -> String {
    match range.last() {
        u64::MAX => format!("from {} to the end", range.start()),
        last => format!("from {} to {last}", range.start()),
    }
}

fn holder_told(client: &str, owner: &[u8]) -> String {
    match owner {
        [] => format!("client {}", quoted(client.as_bytes())),
        _ => format!("client {} for {}", quoted(client.as_bytes()), quoted(owner)),
    }
}

/// Milliseconds since 1970 as date and time, UTC.
fn date(ms: u64) -> String {
    let (days, of_day) = (ms / 86_400_000, ms % 86_400_000);
    // The calendar repeats every 400 years. A year begins in March here, so that the odd day is its
    // last.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, after) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let year = era * 400 + year + after;
    let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
    let (second, ms) = (of_day / 1_000 % 60, of_day % 1_000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

impl Inspection {
    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_text(&mut out);
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let state = match self.holder.is_locked {
            Some(true) => "in use",
            Some(false) => "not in use",
            None => "perhaps in use",
        };
        match self.holder.pid {
            Some(pid) => writeln!(out, "directory  {state}; last process {pid}")?,
            None => writeln!(out, "directory  {state}")?,
        }
        if let Some(damage) = &self.damage {
            writeln!(out, "DAMAGED    {damage}")?;
            writeln!(
                out,
                "           what follows is what stands before the damage"
            )?;
        }
        if let Some(found) = &self.found {
            write_life(out, found)?;
        }
        writeln!(
            out,
            "fences     up to {} may have been given out",
            self.fence_ceiling
        )?;
        let Counts {
            counters,
            values,
            value_bytes,
            lists,
            list_values,
        } = self.counts;
        writeln!(out, "held       {}", self.held.len())?;
        writeln!(out, "clients    {}", self.clients.len())?;
        writeln!(out, "ranges     {}", self.ranges.len())?;
        writeln!(out, "counters   {counters}")?;
        writeln!(out, "values     {values} with {value_bytes} bytes")?;
        writeln!(out, "lists      {lists} with {list_values} values")?;
        if !self.held.is_empty() {
            writeln!(out, "\nheld:")?;
        }
        for (fence, held) in &self.held {
            let (key, mode) = (quoted(held.key.as_bytes()), mode_told(held.mode));
            let lease_ms = held.lease_ms;
            write!(
                out,
                "  {key} {mode}, fence {fence}, lease {lease_ms} ms, client"
            )?;
            if held.client != ATTACHED_SERIAL {
                write!(out, " {}", held.client)?;
            }
            match &held.name {
                Some(name) => writeln!(out, " {}", quoted(name.as_bytes()))?,
                None => writeln!(out)?,
            }
        }
        if !self.clients.is_empty() {
            writeln!(out, "\nclients:")?;
        }
        for (id, ttl_ms) in &self.clients {
            let id = quoted(id.as_bytes());
            writeln!(out, "  {id} kept for {ttl_ms} ms")?;
        }
        if !self.ranges.is_empty() {
            writeln!(out, "\nranges:")?;
        }
        for held in &self.ranges {
            let (bytes, how) = (bytes_told(held.range), sharing_told(held.mode));
            let who = holder_told(&held.client, held.owner.as_bytes());
            let number = grant_told(held.grant);
            let resource = quoted(held.resource.as_bytes());
            writeln!(out, "  {resource} {bytes} {how}, {who}, {number}")?;
        }
        if !self.last_records.is_empty() {
            writeln!(out, "\nlast records:")?;
        }
        for (number, told) in &self.last_records {
            writeln!(out, "  {number} {told}")?;
        }
        Ok(())
    }

    /// For programs: one JSON object on one line.
    #[must_use]
    pub fn json(&self) -> String {
        let mut out = Vec::new();
        out.extend_from_slice(b"{\"in_use\":");
        out.extend_from_slice(match self.holder.is_locked {
            Some(true) => b"true",
            Some(false) => b"false",
            None => b"null",
        });
        field_or_null(&mut out, "pid", self.holder.pid.map(u64::from));
        let damage = self.damage.as_ref().map(ToString::to_string);
        out.extend_from_slice(b",\"damage\":");
        match damage {
            Some(text) => push_str_escaped(&mut out, text.as_bytes()),
            None => out.extend_from_slice(b"null"),
        }
        let found = self.found.as_ref();
        let life = found.and_then(|found| found.life);
        field_or_null(&mut out, "epoch", life.map(|life| life.epoch));
        field_or_null(&mut out, "begun_ms", life.map(|life| life.begun_ms));
        field_or_null(&mut out, "last_record", found.map(|found| found.last));
        out.extend_from_slice(b",\"durability\":");
        match life.map(|life| life.durability) {
            Some(Durability::Sync) => out.extend_from_slice(b"\"sync\""),
            Some(Durability::Async) => out.extend_from_slice(b"\"async\""),
            None => out.extend_from_slice(b"null"),
        }
        let is_clean = found.is_some_and(|found| matches!(found.ending, Ending::Clean(_)));
        let follows_loss = life.is_some_and(|life| life.follows_loss);
        for (name, is_so) in [("clean_stop", is_clean), ("follows_loss", follows_loss)] {
            out.extend_from_slice(b",\"");
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(if is_so { b"\":true" } else { b"\":false" });
        }
        for (name, number) in [
            ("fence_ceiling", self.fence_ceiling),
            ("counters", self.counts.counters as u64),
            ("values", self.counts.values as u64),
            ("value_bytes", self.counts.value_bytes as u64),
            ("lists", self.counts.lists as u64),
            ("list_values", self.counts.list_values as u64),
        ] {
            field(&mut out, name, number);
        }
        let files = found.map_or(&[][..], |found| &found.files);
        push_array(&mut out, "files", files, |out, file| {
            push_name(out, "name", file.name.as_bytes());
            field(out, "used_bytes", file.used_bytes);
            field(out, "bytes", file.len_bytes);
            field(out, "epoch", file.header.life.epoch);
        });
        push_array(&mut out, "held", &self.held, |out, (fence, held)| {
            push_name(out, "key", held.key.as_bytes());
            out.push(b',');
            push_name(out, "mode", mode_told(held.mode).as_bytes());
            field(out, "fence", *fence);
            field(out, "lease_ms", held.lease_ms);
            match (held.client, &held.name) {
                (ATTACHED_SERIAL, Some(id)) => {
                    out.push(b',');
                    push_name(out, "attached", id.as_bytes());
                }
                (client, name) => {
                    field(out, "client", u64::from(client));
                    if let Some(name) = name {
                        out.push(b',');
                        push_name(out, "name", name.as_bytes());
                    }
                }
            }
        });
        push_array(&mut out, "clients", &self.clients, |out, (id, ttl_ms)| {
            push_name(out, "id", id.as_bytes());
            field(out, "ttl_ms", *ttl_ms);
        });
        push_array(&mut out, "ranges", &self.ranges, |out, held| {
            push_name(out, "resource", held.resource.as_bytes());
            field(out, "start", held.range.start());
            field(out, "len", held.range.len());
            out.push(b',');
            push_name(out, "mode", sharing_told(held.mode).as_bytes());
            out.push(b',');
            push_name(out, "client", held.client.as_bytes());
            out.push(b',');
            push_name(out, "owner", held.owner.as_bytes());
            field(out, "id", held.grant.id);
            field(out, "acquired_ms", held.grant.since / 1_000_000);
            field(out, "epoch", held.grant.epoch);
        });
        let records = &self.last_records;
        push_array(&mut out, "last_records", records, |out, (number, told)| {
            push_name(out, "what", told.as_bytes());
            field(out, "number", *number);
        });
        out.push(b'}');
        String::from_utf8(out).unwrap_or_default()
    }
}

fn write_life(out: &mut String, found: &Found) -> std::fmt::Result {
    if let Some(life) = found.life {
        let (epoch, begun, how) = (life.epoch, date(life.begun_ms), life.durability);
        writeln!(out, "epoch      {epoch}, begun {begun}, durability {how}")?;
        if life.follows_loss {
            writeln!(
                out,
                "           what was acknowledged before it may be lost"
            )?;
        }
    }
    match found.ending {
        Ending::None => writeln!(out, "ended      there was no life yet")?,
        Ending::Clean(at_ms) => writeln!(out, "ended      in order, {}", date(at_ms))?,
        Ending::Unclean => writeln!(out, "ended      no: it runs, or it did not end in order")?,
    }
    if let Some(cut) = &found.cut {
        let (bytes, file, offset) = (cut.bytes, &cut.file, cut.offset);
        writeln!(
            out,
            "tail       {bytes} bytes of {file} from {offset} on are not whole"
        )?;
    }
    writeln!(
        out,
        "records    {} up to number {}",
        found.records, found.last
    )?;
    for FileFound {
        name,
        used_bytes,
        len_bytes,
        ..
    } in &found.files
    {
        writeln!(
            out,
            "file       {name}, {used_bytes} of {len_bytes} bytes used"
        )?;
    }
    Ok(())
}

fn field(out: &mut Vec<u8>, name: &str, value: u64) {
    field_or_null(out, name, Some(value));
}

fn field_or_null(out: &mut Vec<u8>, name: &str, value: Option<u64>) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    match value {
        Some(value) => push_number(out, value),
        None => out.extend_from_slice(b"null"),
    }
}

fn push_name(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    push_str_escaped(out, name.as_bytes());
    out.push(b':');
    push_str_escaped(out, value);
}

fn push_array<T>(
    out: &mut Vec<u8>,
    name: &str,
    items: impl IntoIterator<Item = T>,
    mut push: impl FnMut(&mut Vec<u8>, T),
) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":[");
    for (index, item) in items.into_iter().enumerate() {
        out.extend_from_slice(if index == 0 { b"{" } else { b",{" });
        push(out, item);
        out.push(b'}');
    }
    out.push(b']');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (ms, want) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_735_689_599_000, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(date(ms), want);
        }
    }
}
