//! Whether the server at the metadata server's address is of the cluster to which this client belongs.
//!
//! While a cluster is down, any program of its host can take its port; another cluster may do so by mistake.
//! Such a server does not know our session. A client that believed it would open one there, and programs
//! would go on in the other cluster, by the numbers of inodes that they have open. So the metadata server
//! tells each session a secret when it opens it. A server that denies the session has to answer a
//! question first, which takes that secret.

use std::cell::Cell;
use std::time::Duration;

use ropewalk_rpc::CallError;
use ropewalk_rpc::trust::recognised;
use ropewalk_wire::fs::session::{SessionReply, SessionRequest};
use ropewalk_wire::fs::term::Term;
use ropewalk_wire::fs::value::Errno;

use crate::client::Client;
use crate::clock::left;

/// The pause before a stranger is asked again.
const PAUSE: Duration = Duration::from_millis(300);

/// The secret by which a client recognises its cluster.
#[derive(Default)]
pub(crate) struct Recognition {
    /// Told when the session was opened, and never said since.
    secret: Cell<u128>,
    /// People know of the stranger.
    told: Cell<bool>,
}

impl Recognition {
    /// For the process that goes on with the session.
    pub fn secret(&self) -> u128 {
        self.secret.get()
    }

    pub fn learn(&self, secret: u128) {
        self.secret.set(secret);
        self.told.set(false);
    }
}

impl Client {
    /// Waits until the cluster that opened a session answers; `EIO` where it does not within the patience.
    pub(crate) async fn await_own_cluster(&self, session: u64) -> Result<(), Errno> {
        let inner = &*self.inner;
        let begin = inner.world.now();
        loop {
            match self.is_own_cluster(session).await {
                Ok(true) => {
                    inner.recognition.told.set(false);
                    return Ok(());
                }
                Ok(false) => {}
                Err(error) => return Err(self.gave_up(error)),
            }
            if !inner.recognition.told.replace(true) {
                (inner.config.log)(&format!(
                    "the server at {} does not belong to the mounted cluster: this client sends \
                     nothing to it, and operations wait; if the cluster was created again, mount \
                     it again",
                    inner.address
                ));
            }
            let left = left(begin + inner.config.patience, inner.world.now());
            if left.is_zero() {
                inner.meta.give_up(begin);
                return Err(self.gave_up(CallError::TimedOut));
            }
            inner.world.sleep(PAUSE.min(left)).await;
        }
    }

    /// Has a server prove the term that its replies name: from then on answers of older ones are dropped. A stranger
    /// that says a term proves nothing, so it keeps nobody from the true server.
    pub(crate) async fn prove_term(&self, boot: u64) {
        if Term(boot).is_ahead_of(self.inner.meta.term()) {
            let session = self.inner.meta.session();
            // Without an answer the next life of the server is asked.
            let _ = self.is_own_cluster(session).await;
        }
    }

    async fn is_own_cluster(&self, session: u64) -> Result<bool, CallError> {
        let nonce = self.inner.world.random_u128();
        match self.session_call(&SessionRequest::Recognise { session, nonce }).await {
            Ok((Ok(SessionReply::Recognised { tag }), boot)) => {
                let (secret, term) = (self.inner.recognition.secret.get(), Term(boot));
                let recognised = tag == recognised(secret, nonce, term);
                if recognised {
                    self.inner.meta.saw_term(term);
                }
                Ok(recognised)
            }
            Err(error @ (CallError::TimedOut | CallError::NoMemory)) => Err(error),
            // It does not even know what it is asked.
            Ok(_) | Err(_) => Ok(false),
        }
    }
}
