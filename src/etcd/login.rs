//! Who we are to an etcd that asks for it: a user and a password, and the token that they are worth.
//!
//! The token is shared by all connections: it is drawn once, and drawn anew when etcd does not accept it any
//! more. A password that is refused is not shown again for a second, whoever asks: to look at
//! one costs etcd a good part of a core. Neither is ever printed.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::http::{Connection, Request};
use super::stream::now;
use super::{Trouble, json};

/// After a refusal nobody asks again for so long.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// A longer token is not believed.
const TOKEN_BYTES_MAX: usize = 8 << 10;

/// A password, which is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    /// This one.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

/// What stands in the header of a request, which is never printed either.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Token(Arc<str>);

impl Token {
    /// `None` if it could not stand in a header.
    fn new(text: &str) -> Option<Self> {
        let is_good = (1..=TOKEN_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_good.then(|| Self(text.into()))
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// What etcd knows us by.
pub(super) struct Login {
    user: String,
    known: Mutex<Known>,
}

struct Known {
    password: Password,
    worth: Worth,
}

/// What the password is worth, as far as we know.
#[derive(Clone)]
enum Worth {
    Unknown,
    /// etcd asks nobody who he is.
    Nothing,
    Token(Token),
    /// It was refused then, and why.
    Refused(Instant, String),
}

impl Login {
    pub(super) fn new(user: String, password: Password) -> Self {
        let known = Known {
            password,
            worth: Worth::Unknown,
        };
        Self {
            user,
            known: Mutex::new(known),
        }
    }

    /// From now on this one is shown. What the old one was worth counts until etcd says otherwise.
    pub(super) fn set_password(&self, password: Password) {
        let mut known = self.lock();
        known.password = password;
        if let Worth::Refused(..) = known.worth {
            known.worth = Worth::Unknown;
        }
    }

    /// Why it was refused, if that was a moment ago.
    pub(super) fn refusal(&self) -> Option<String> {
        match &self.lock().worth {
            Worth::Refused(at, why) if now().saturating_duration_since(*at) < REFUSED_FOR => {
                Some(why.clone())
            }
            _ => None,
        }
    }

    /// Whether the next call has to draw a token first.
    pub(super) fn lacks_token(&self) -> bool {
        matches!(self.lock().worth, Worth::Unknown | Worth::Refused(..))
    }

    /// Whether etcd was asked, and asks nobody who he is.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.lock().worth, Worth::Nothing)
    }

    /// etcd does not accept this any more. Somebody else may have noticed before, and have another.
    pub(super) fn drop_token(&self, token: Option<&Token>) {
        let mut known = self.lock();
        let is_same = match (&known.worth, token) {
            (Worth::Token(it), Some(token)) => it == token,
            (Worth::Nothing, None) => true,
            _ => false,
        };
        if is_same {
            known.worth = Worth::Unknown;
        }
    }

    /// The token to show, if any is asked for. Draws one over this connection if there is none.
    ///
    /// # Errors
    /// There is none to be had. Nothing else was asked.
    pub(super) fn token(
        &self,
        connection: &mut Connection,
        deadline: Instant,
    ) -> Result<Option<Token>, Trouble> {
        let (password, worth) = {
            let known = self.lock();
            (known.password.clone(), known.worth.clone())
        };
        match worth {
            Worth::Token(token) => return Ok(Some(token)),
            Worth::Nothing => return Ok(None),
            Worth::Unknown | Worth::Refused(..) => {}
        }
        if let Some(why) = self.refusal() {
            return Err(Trouble::Forbidden(why));
        }
        let drawn = self.draw(connection, &password, deadline);
        let worth = match &drawn {
            Ok(Some(token)) => Worth::Token(token.clone()),
            Ok(None) => Worth::Nothing,
            Err(Trouble::Forbidden(why)) => Worth::Refused(now(), why.clone()),
            Err(_) => return drawn,
        };
        let mut known = self.lock();
        // Meanwhile there may be another password, and then this says nothing of it.
        if known.password == password {
            known.worth = worth;
        }
        drop(known);
        drawn
    }

    fn draw(
        &self,
        connection: &mut Connection,
        password: &Password,
        deadline: Instant,
    ) -> Result<Option<Token>, Trouble> {
        let body = json::authenticate(&self.user, &password.0);
        let request = Request::post("/v3/auth/authenticate", &body);
        let lost = |error: io::Error| Trouble::Unreachable(format!("no token: {error}"));
        connection.send(&request, deadline).map_err(lost)?;
        let response = connection.receive(deadline).map_err(lost)?;
        connection.forget_read();
        match json::token(response.status, &response.body) {
            Ok(text) => match Token::new(&text) {
                Some(token) => Ok(Some(token)),
                None => Err(Trouble::Unreachable("a token that is none".to_owned())),
            },
            Err(json::NoToken::NotAsked) => Ok(None),
            Err(json::NoToken::Refused(why)) => Err(Trouble::Forbidden(format!(
                "{why}: see --etcd-user and --etcd-password-file"
            ))),
            Err(json::NoToken::Other(why)) => Err(Trouble::Unreachable(format!("no token: {why}"))),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
