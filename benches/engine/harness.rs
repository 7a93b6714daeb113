//! The engine on a bench: its effects, and a clock that moves a microsecond per question.
//!
//! Never measures and never expects anything; the caller looks at the effects.

use latchd::base::{ConnId, Millis, Nanos, Token};
use latchd::engine::types::{Effect, Effects, Input, Mode, Reply, Request};
use latchd::engine::{Engine, Origin, Rules};

pub(crate) const LOCK: Mode = Mode::Slot { limit: 1 };
pub(crate) const A: ConnId = client(0);
pub(crate) const B: ConnId = client(1);

/// Somebody, by number.
pub(crate) const fn client(index: u32) -> ConnId {
    ConnId {
        slot: index,
        serial: index + 1,
    }
}

pub(crate) struct Harness {
    pub(crate) engine: Engine,
    /// What the last call had as consequences.
    pub(crate) effects: Effects,
    pub(crate) now: Nanos,
}

impl Harness {
    /// An empty table without limits, the same every time.
    pub(crate) fn new() -> Self {
        Self::with(Rules::default())
    }

    /// One whose changes are recorded.
    pub(crate) fn durable() -> Self {
        Self::with(Rules {
            durable: true,
            ..Rules::default()
        })
    }

    /// One with other rules.
    pub(crate) fn with(rules: Rules) -> Self {
        let origin = Origin {
            fence: 0,
            seed: [1, 2],
            salt_key: [3, 4, 5, 6],
        };
        let rules = Rules {
            locks_max: 0,
            keys_max: 0,
            ..rules
        };
        Self {
            engine: Engine::new(rules, origin),
            effects: Effects::new(),
            now: Nanos(0),
        }
    }

    /// With this many other locks held by 64 others, each with its lease.
    pub(crate) fn among(held: u32) -> Self {
        let mut harness = Self::new();
        for index in 0..held {
            let key = format!("held:{index}");
            harness.acquire(client(2 + index % 64), key.as_bytes());
        }
        harness
    }

    /// One question and all its consequences.
    #[inline(always)] // or the request would be copied twice before the engine sees it
    pub(crate) fn ask(&mut self, who: ConnId, request: Request<'_>) -> &[Effect] {
        self.now = Nanos(self.now.0 + 1_000);
        self.effects.clear();
        self.engine
            .apply(self.now, Input::Request(who, request), &mut self.effects);
        &self.effects
    }

    /// Something that is not a question.
    pub(crate) fn tell(&mut self, input: Input<'_>) {
        self.effects.clear();
        self.engine.apply(self.now, input, &mut self.effects);
    }

    /// Time passes.
    pub(crate) fn pass(&mut self, span: Millis) -> &[Effect] {
        self.now = self.now.after(span);
        self.effects.clear();
        self.engine
            .apply(self.now, Input::Time(u64::MAX), &mut self.effects);
        &self.effects
    }

    /// The connection is gone, and so is all it left behind: what is too much for the moment of
    /// leaving is done when time passes.
    pub(crate) fn leave(&mut self, who: ConnId) {
        self.engine
            .apply(self.now, Input::Disconnected(who), &mut self.effects);
        self.engine
            .apply(self.now, Input::Time(u64::MAX), &mut self.effects);
    }

    /// Takes a free lock for the default lease.
    pub(crate) fn acquire(&mut self, who: ConnId, key: &[u8]) -> Token {
        let request = Request::Acquire {
            key,
            mode: LOCK,
            wait: Millis::ZERO,
            lease: None,
        };
        granted(self.ask(who, request), who)
    }

    /// Lets a lock go for which nobody waits.
    pub(crate) fn release(&mut self, who: ConnId, key: &[u8], token: Token) {
        let token = Some(token);
        let effects = self.ask(who, Request::Release { key, token });
        assert_eq!(effects, [Effect::Reply(who, Reply::Done)]);
    }
}

/// The token that `who` was told, who must have been granted what it wants.
pub(crate) fn granted(effects: &[Effect], who: ConnId) -> Token {
    let told = effects.iter().find_map(|effect| match effect {
        Effect::Reply(to, Reply::Granted { token, .. }) if *to == who => Some(*token),
        _ => None,
    });
    told.unwrap_or_else(|| panic!("not granted to {who:?}: {effects:?}"))
}
