//! The keys of one process.

use ed25519_dalek::SigningKey;

use crate::certificate::Certificate;
use crate::name::NodeName;
use crate::noise;
use crate::secret::Secret;

/// Keys that a ring accepts at a time: the present one, and one before or after it.
pub(crate) const ACCEPTED_MAX: usize = 2;

/// The keys of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keyring {
    /// One key for the cluster: its holders are members, and can derive the key of each node.
    Cluster(PskKeys),
    /// The derived key of one node: it proves this node to members, and members to this node.
    Derived(PskKeys, NodeName),
    /// A key that signs nodes' keys. It is for `ropewalk key sign` alone: no endpoint opens with it.
    Authority(Authority),
    /// A node's own key, and its certificate.
    Node(NodeKeys),
}

/// Keys that both sides share: calls use the first one, answers any of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PskKeys {
    pub(crate) keys: Vec<Secret>,
}

/// The key that signs nodes' keys.
#[derive(Clone, PartialEq, Eq)]
pub struct Authority {
    pub(crate) seed: Secret,
}

/// A node's own key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeKeys {
    pub(crate) private: Secret,
    pub(crate) certificate: Certificate,
    /// The cluster's public keys that count: the first one signed `certificate`.
    pub(crate) trusted: Vec<Trusted>,
    /// Certificates of earlier epochs are refused.
    pub(crate) epoch_min: u32,
}

/// A cluster's public key, and the secret without which nobody gets an answer from its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trusted {
    pub public: [u8; 32],
    pub door: Secret,
}

impl PskKeys {
    /// Keys that count: calls use `first`, answers also `second`.
    pub fn new(first: Secret, second: Option<Secret>) -> PskKeys {
        PskKeys { keys: [first].into_iter().chain(second).collect() }
    }

    /// The keys of one node, for its own file.
    pub fn derive(&self, name: &NodeName) -> PskKeys {
        let derived = |key: &Secret| key.derive("ropewalk node", name.as_str().as_bytes());
        PskKeys { keys: self.keys.iter().map(derived).collect() }
    }

    /// A new first key; the present one still counts until the next time.
    pub fn rotate(&self, key: Secret) -> PskKeys {
        PskKeys::new(key, self.keys.first().cloned())
    }

    /// A new key counts beside the present one, which calls still use.
    pub fn with_next(&self, key: Secret) -> PskKeys {
        self.rotate(key).swapped()
    }

    /// Only the key that calls use.
    pub fn first_alone(&self) -> PskKeys {
        PskKeys { keys: self.keys.iter().take(1).cloned().collect() }
    }

    /// How many keys count.
    pub fn count(&self) -> usize {
        self.keys.len()
    }

    fn describe(&self, lines: &mut Vec<String>) {
        for (index, key) in self.keys.iter().enumerate() {
            let used = if index == 0 { "calls use it" } else { "it counts, too" };
            lines.push(format!("key {}: {used}", shown(&key.key_id())));
        }
    }

    /// The same keys, but calls use the other one.
    pub fn swapped(&self) -> PskKeys {
        PskKeys { keys: self.keys.iter().rev().cloned().collect() }
    }
}

impl Authority {
    /// From random bytes.
    pub fn new(seed: Secret) -> Authority {
        Authority { seed }
    }

    fn signing(&self) -> SigningKey {
        SigningKey::from_bytes(self.seed.bytes())
    }

    pub(crate) fn trusted(&self) -> Trusted {
        let public = self.signing().verifying_key().to_bytes();
        Trusted { public, door: self.seed.derive("ropewalk door", &[]) }
    }

    /// The keys of a node: `private` is random. `validity`: first and last second since 1970.
    pub fn sign(
        &self,
        name: NodeName,
        private: Secret,
        epoch: u32,
        validity: (u64, u64),
    ) -> NodeKeys {
        let public = noise::public_of(&private);
        let certificate = Certificate::sign(&self.signing(), name, public, epoch, validity);
        NodeKeys { private, certificate, trusted: vec![self.trusted()], epoch_min: 0 }
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority(..)")
    }
}

impl NodeKeys {
    /// The same keys, which refuse certificates of earlier epochs.
    pub fn refusing_below(self, epoch_min: u32) -> NodeKeys {
        NodeKeys { epoch_min, ..self }
    }

    /// The same keys, which also believe what another key of the cluster signed: while one takes the other's place.
    pub fn trusting(mut self, other: &Authority) -> NodeKeys {
        self.trusted.truncate(ACCEPTED_MAX - 1);
        self.trusted.push(other.trusted());
        self
    }

    /// Its certificate.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }
}

fn shown(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Keyring {
    /// The name of the node that the ring proves, if it proves one.
    pub fn node(&self) -> Option<&NodeName> {
        match self {
            Keyring::Cluster(_) | Keyring::Authority(_) => None,
            Keyring::Derived(_, name) => Some(name),
            Keyring::Node(keys) => Some(&keys.certificate.name),
        }
    }

    /// Its purpose in lines for people, without a secret.
    pub fn describe(&self) -> Vec<String> {
        let mut lines = Vec::new();
        match self {
            Keyring::Cluster(keys) => {
                lines.push("a cluster's key: whoever has it is a member".to_string());
                keys.describe(&mut lines);
            }
            Keyring::Derived(keys, name) => {
                lines.push(format!("the derived key of node {name}"));
                keys.describe(&mut lines);
            }
            Keyring::Authority(authority) => {
                lines.push("a signing key: for 'ropewalk key sign' alone".to_string());
                lines.push(format!("public key {}", shown(&authority.trusted().public)));
            }
            Keyring::Node(keys) => {
                let Certificate { name, epoch, valid_from, valid_until, .. } = &keys.certificate;
                lines.push(format!("the own key of node {name}"));
                lines.push(format!(
                    "epoch {epoch}, from {valid_from} until {valid_until} (seconds since 1970)"
                ));
                lines.push(format!("refuses keys of epochs below {}", keys.epoch_min));
                for trusted in &keys.trusted {
                    lines.push(format!("believes the signing key {}", shown(&trusted.public)));
                }
            }
        }
        lines
    }

    /// Whether an endpoint can open with it.
    pub fn opens(&self) -> bool {
        !matches!(self, Keyring::Authority(_))
    }
}
