//! What can be seen of the model from outside.

use latchd::base::Nanos;

use super::{Client, Key, Model, Ticket};

impl Model {
    /// How many grants and tickets the client has.
    pub fn things_of(&self, client: u32) -> usize {
        let of_key = |key: &Key| {
            let holds = key.holders.iter().filter(|it| it.client == client);
            holds.count() + key.tickets.iter().filter(|it| it.client == client).count()
        };
        self.keys.iter().map(of_key).sum()
    }

    pub fn next_deadline(&self) -> Option<Nanos> {
        let leases = self.keys.iter().flat_map(|it| &it.holders);
        let waits = self.keys.iter().flat_map(|it| &it.waiters);
        let tickets = self.keys.iter().flat_map(|it| &it.tickets);
        leases
            .map(|it| it.deadline)
            .chain(waits.filter_map(|it| it.until))
            .chain(tickets.filter_map(Ticket::forgotten_at))
            .min()
    }

    pub fn is_parked(&self, conn: u32) -> bool {
        let mut waiters = self.keys.iter().flat_map(|it| &it.waiters);
        waiters.any(|it| it.conn == conn && it.until.is_some())
    }

    /// The owner that a connection acquires for: its attached client, or itself.
    pub fn owner_of(&self, conn: u32) -> u32 {
        let home = self.client(conn).and_then(|it| it.home);
        home.unwrap_or(conn)
    }

    /// Whether a client has a connection.
    pub fn is_here(&self, attached: u32) -> bool {
        self.clients.iter().any(|it| it.home == Some(attached))
    }

    /// The client that leaves with this connection, because it has no other.
    pub fn leaves_with(&self, conn: u32) -> Option<u32> {
        let home = self.client(conn)?.home?;
        let others = self.clients.iter().filter(|it| it.home == Some(home));
        (others.count() == 1).then_some(home)
    }

    /// The number of a connection, 0 for a client that has any number of them; and the client's id.
    pub fn shown(&self, client: u32) -> (u32, Option<usize>) {
        let attached = self.attached.iter().find(|it| it.number == client);
        attached.map_or((client, None), |it| (0, Some(it.id)))
    }

    pub fn owns_something(&self, client: u32) -> bool {
        let is_attached = self.client(client).is_some_and(|it| it.home.is_some());
        is_attached
            || self.keys.iter().any(|key| {
                key.holders.iter().any(|it| it.client == client)
                    || key.waiters.iter().any(|it| it.client == client)
                    || key.tickets.iter().any(|it| it.client == client)
            })
    }

    pub fn holds(&self, fence: u64, name: usize) -> bool {
        let key = self.keys.iter().find(|it| it.name == name);
        key.is_some_and(|it| it.holders.iter().any(|it| it.fence == fence))
    }

    /// The keys this client enqueued for and may still wait for.
    pub fn tickets_of(&self, client: u32) -> Vec<usize> {
        let has = |it: &&Key| it.tickets.iter().any(|it| it.client == client);
        self.keys.iter().filter(has).map(|it| it.name).collect()
    }

    pub fn ticket_count(&self) -> usize {
        self.keys.iter().map(|it| it.tickets.len()).sum()
    }

    pub fn parked_count(&self) -> usize {
        let waiters = self.keys.iter().flat_map(|it| &it.waiters);
        waiters.filter(|it| it.until.is_some()).count()
    }

    pub fn client(&self, serial: u32) -> Option<&Client> {
        self.clients.iter().find(|it| it.serial == serial)
    }

    pub fn forget_words(&mut self) {
        self.said.clear();
    }
}
