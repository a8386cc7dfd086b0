use super::*;
use crate::corpus;

#[test]
fn two_cores_left_alone_have_all_their_paths_and_deliver() {
    for rails in [2, 3] {
        let mut player = Player::new(rails, &[]);
        player.meet(true);
        let joined = |side: &Side| side.core.counters().paths_joined;
        assert_eq!(player.sides.each_ref().map(joined), [rails as u64 - 1; 2]);
        for _ in 0..6 {
            player.receive(1, MESSAGE_BYTES_MAX);
            player.receive(0, MESSAGE_BYTES_MAX);
        }
        for len in [1, 3000, 20_000, MESSAGE_BYTES_MAX] {
            player.send(0, len, Level::Delivered);
            player.send(1, len, Level::Matched);
        }
        player.rest(60);
        assert_eq!(player.delivered.each_ref().map(BTreeSet::len), [4, 5]);
    }
}

#[test]
fn what_is_slipped_in_and_repeated_reaches_the_sessions() {
    let mut player = Player::new(2, &[]);
    player.meet(true);
    let before = player.sides[1].core.counters();
    let program: Vec<u8> =
        (0..200).flat_map(|at| [0x8e + (at & 1), at, at, 2, 8, 4, 0, 0, 0, 0]).collect();
    player.input = &program;
    while !player.input.is_empty() {
        player.play();
    }
    assert!(player.seen.iter().all(|seen| !seen.is_empty()));
    assert_ne!(player.sides[1].core.counters(), before, "nothing is counted");
}

#[test]
fn kept_inputs_lose_paths_send_again_and_deliver() {
    let (mut delivered, mut again, mut twice, mut joined) = (0, 0, 0, 0);
    for input in corpus::read("core_paths").unwrap() {
        let player = run(&input).unwrap();
        delivered += player.delivered.iter().map(BTreeSet::len).sum::<usize>();
        for counters in player.sides.iter().map(|side| side.core.counters()) {
            again += counters.frames_re_sent;
            twice += counters.duplicates_dropped;
            joined += counters.paths_joined;
        }
    }
    let many = delivered > 50 && again > 20 && twice > 20 && joined > 16;
    assert!(many, "{delivered} messages, {again} again, {twice} twice, {joined} joined");
}
