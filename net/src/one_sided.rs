//! Updates and atomics of peers' memory; tokens, by which one side tells another something; locks.

use ropewalk_base::error::Fault;
use ropewalk_base::memory::{Memory, Slice, Update};
use ropewalk_base::verb::{RemoteKey, RemoteLayout};
use ropewalk_core::{Access, Action, Atomic, OperationId, PeerId, Raise, Terms};

use crate::context::{Context, LateRefusal};
use crate::endpoint::{Endpoint, Posted};
use crate::engine::News;

impl Endpoint {
    /// Starts an access of any kind, with its order and its end: see [`Terms`]. `access.local` is ignored: `memory` takes
    /// its place.
    pub fn post_one_sided(
        &self,
        context: &Context,
        access: Access,
        memory: Memory,
        user: u64,
    ) -> Result<Posted, (Memory, Fault)> {
        self.post(context, access, memory, user)
    }

    /// Puts, and tells whoever takes the events of the region, with this data: see [`Action::Immediate`]. Completes once it is
    /// applied and the event is there to be taken.
    #[expect(clippy::too_many_arguments, reason = "what a put with immediate data is")]
    pub fn post_put_data(
        &self,
        context: &Context,
        peer: PeerId,
        key: RemoteKey,
        remote: RemoteLayout,
        data: u64,
        memory: Memory,
        user: u64,
    ) -> Result<Posted, (Memory, Fault)> {
        let (action, local, terms) = (Action::Immediate { data }, Slice::NONE, Terms::default());
        self.post(context, Access { action, peer, key, remote, local, terms }, memory, user)
    }

    /// Combines elements of `memory` with those at an offset of a peer's region, in the peer's memory: MPI's accumulate.
    /// With `fetch` the second half of the memory takes what they were (get-accumulate); where the operator takes no
    /// elements ([`Operator::Nothing`]) it is that half alone. Each element changes at once, as all other updates and
    /// atomics see it. Updates and atomics of an endpoint take effect at a peer in the order of their posts.
    ///
    /// [`Operator::Nothing`]: ropewalk_base::memory::Operator::Nothing
    #[expect(clippy::too_many_arguments, reason = "what an update is")]
    pub fn post_update(
        &self,
        context: &Context,
        peer: PeerId,
        key: RemoteKey,
        offset: u64,
        (update, fetch): (Update, bool),
        memory: Memory,
        user: u64,
    ) -> Result<Posted, (Memory, Fault)> {
        let remote = RemoteLayout::At(offset);
        self.post_update_of(context, peer, key, remote, (update, fetch), memory, user)
    }

    /// The same with elements that lie in instances of a datatype. Lists are no places of elements.
    #[expect(clippy::too_many_arguments, reason = "what an update is")]
    pub fn post_update_of(
        &self,
        context: &Context,
        peer: PeerId,
        key: RemoteKey,
        remote: RemoteLayout,
        (update, fetch): (Update, bool),
        memory: Memory,
        user: u64,
    ) -> Result<Posted, (Memory, Fault)> {
        let action = Action::Update { update, fetch };
        self.post(
            context,
            Access { action, peer, key, remote, local: Slice::NONE, terms: Terms::default() },
            memory,
            user,
        )
    }

    /// Changes one element of a peer's region: see [`Atomic`]. The completion's `bits` have what it was, where it fetches.
    pub fn post_atomic(
        &self,
        context: &Context,
        peer: PeerId,
        key: RemoteKey,
        offset: u64,
        atomic: Atomic,
        user: u64,
    ) -> Result<Posted, Fault> {
        let (action, remote) = (Action::Atomic(atomic), RemoteLayout::At(offset));
        let access =
            Access { action, peer, key, remote, local: Slice::NONE, terms: Terms::default() };
        self.post(context, access, Memory::empty(), user).map_err(|(_, fault)| fault)
    }

    /// Takes the lock of a peer's region, to have it alone or to share it: see [`Action::Lock`]. Requests for a lock are served
    /// in the order in which they come to the peer, by whoever serves its memory.
    pub fn post_lock(
        &self,
        context: &Context,
        peer: PeerId,
        key: RemoteKey,
        exclusive: bool,
        user: u64,
    ) -> Result<Posted, Fault> {
        self.post_bare(context, peer, key, Action::Lock { exclusive }, user)
    }

    /// Puts under a lock in one exchange, where nobody has or wants it: see [`Action::LockedPut`].
    #[expect(clippy::too_many_arguments, reason = "what a put under a lock is")]
    pub fn post_locked_put(
        &self,
        context: &Context,
        peer: PeerId,
        key: RemoteKey,
        offset: u64,
        exclusive: bool,
        memory: Memory,
        user: u64,
    ) -> Result<Posted, (Memory, Fault)> {
        let (action, remote) = (Action::LockedPut { exclusive }, RemoteLayout::At(offset));
        self.post(
            context,
            Access { action, peer, key, remote, local: Slice::NONE, terms: Terms::default() },
            memory,
            user,
        )
    }

    /// Short puts in one frame, of which the memory has records: see [`Action::Records`].
    pub fn post_records(
        &self,
        context: &Context,
        peer: PeerId,
        key: RemoteKey,
        memory: Memory,
        user: u64,
    ) -> Result<Posted, (Memory, Fault)> {
        let (action, remote) = (Action::Records, RemoteLayout::At(0));
        self.post(
            context,
            Access { action, peer, key, remote, local: Slice::NONE, terms: Terms::default() },
            memory,
            user,
        )
    }

    /// Puts, and makes a word of the region grow after it and all before it, in one frame: see [`Action::Notify`]. Completes
    /// once it is applied, or else once the memory is free.
    #[expect(clippy::too_many_arguments, reason = "what a put with a notice is")]
    pub fn post_notify(
        &self,
        context: &Context,
        peer: PeerId,
        key: RemoteKey,
        offset: u64,
        (raise, applied): (Raise, bool),
        memory: Memory,
        user: u64,
    ) -> Result<Posted, (Memory, Fault)> {
        let (action, remote) = (Action::Notify { raise, applied }, RemoteLayout::At(offset));
        self.post(
            context,
            Access { action, peer, key, remote, local: Slice::NONE, terms: Terms::default() },
            memory,
            user,
        )
    }

    /// Gives a lock back that the operation `lock` took: see [`Action::Unlock`].
    pub fn post_unlock(
        &self,
        context: &Context,
        peer: PeerId,
        key: RemoteKey,
        lock: OperationId,
        user: u64,
    ) -> Result<Posted, Fault> {
        self.post_bare(context, peer, key, Action::Unlock { lock }, user)
    }

    /// An access without memory, of nothing in particular of a region.
    fn post_bare(
        &self,
        context: &Context,
        peer: PeerId,
        key: RemoteKey,
        action: Action,
        user: u64,
    ) -> Result<Posted, Fault> {
        let access = Access {
            action,
            peer,
            key,
            remote: RemoteLayout::At(0),
            local: Slice::NONE,
            terms: Terms::default(),
        };
        self.post(context, access, Memory::empty(), user).map_err(|(_, fault)| fault)
    }

    /// From now on this context keeps refusals that come late ([`Endpoint::next_refusal`]), and is rung at each.
    pub fn tell_of_refusals(&self, context: &Context) {
        self.locked().contexts.tell_of(News::Refusals, &context.queue);
    }

    /// The next operation that a peer refused after it was complete here: one with [`Terms::local`], a token, or a put with a
    /// notice that nobody waits for. It may be one of another context, and one in several pieces may come several times.
    #[inline]
    pub fn next_refusal(&self, context: &Context) -> Option<LateRefusal> {
        context.queue.pop_refused()
    }

    /// Whether a peer has told of all operations that take effect there by frames: no refusal of an earlier one comes any more.
    pub fn has_told(&self, peer: PeerId) -> bool {
        self.locked().core.has_told(peer)
    }

    /// How often peers, or this endpoint itself, told something by a token ([`Atomic::token`]).
    pub fn raise_count(&self) -> u64 {
        self.shared.signals.raises()
    }

    /// From now on this context is rung at each token. [`Endpoint::wait_for`] sleeps until then, with a look at the words
    /// of exposed memory as its news.
    pub fn tell_of_raises(&self, context: &Context) {
        self.locked().contexts.tell_of(News::Raises, &context.queue);
    }
}
