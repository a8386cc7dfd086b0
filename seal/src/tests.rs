//! Records and packets that were changed in any way are not opened, and each number counts once.

use ropewalk_base::payload::{Cipher, DirectionKey, PayloadMode};

use crate::*;

const CIPHERS: [Cipher; 2] = [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];
const MODES: [PayloadMode; 2] = [PayloadMode::Auth, PayloadMode::Secure];

fn key(byte: u8) -> DirectionKey {
    DirectionKey([byte; 32])
}

fn ends(mode: PayloadMode, cipher: Cipher) -> (Writer, Reader) {
    (Writer::new(mode, cipher, key(1)), Reader::new(mode, cipher, key(1)))
}

fn record(writer: &mut Writer, text: &[u8]) -> Vec<u8> {
    let mut record = [&[0; HEAD_BYTES], text, &[0; TAG_BYTES]].concat();
    writer.seal(&mut record);
    record
}

fn every(mut test: impl FnMut(PayloadMode, Cipher)) {
    for mode in MODES {
        CIPHERS.into_iter().for_each(|cipher| test(mode, cipher));
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// The library computes what is published: McGrew and Viega's test case 16 of AES-256-GCM, and RFC 8439, section 2.8.2.
#[test]
fn the_ciphers_are_those_of_the_published_vectors() {
    use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
    let text = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
                1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39";
    let sealed = "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa\
                  8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662";
    let aes = (
        &AES_256_GCM,
        "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308",
        "cafebabefacedbaddecaf888",
        "feedfacedeadbeeffeedfacedeadbeefabaddad2",
        hex(text),
        hex(sealed),
        "76fc6ece0f4e1768cddf8853bb2d551b",
    );
    let sealed = "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d6\
                  3dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b36\
                  92ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc\
                  3ff4def08e4b7a9de576d26586cec64b6116";
    let text = "Ladies and Gentlemen of the class of '99: If I could offer you only one tip for \
                the future, sunscreen would be it.";
    let chacha = (
        &CHACHA20_POLY1305,
        "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
        "070000004041424344454647",
        "50515253c0c1c2c3c4c5c6c7",
        text.as_bytes().to_vec(),
        hex(sealed),
        "1ae10b594f09e26a7e902ecbd0600691",
    );
    for (algorithm, key, nonce, head, text, sealed, tag) in [aes, chacha] {
        let key = LessSafeKey::new(UnboundKey::new(algorithm, &hex(key)).unwrap());
        let nonce = Nonce::try_assume_unique_for_key(&hex(nonce)).unwrap();
        let mut bytes = text;
        let made = key.seal_in_place_separate_tag(nonce, Aad::from(hex(head)), &mut bytes).unwrap();
        assert_eq!((bytes, made.as_ref()), (sealed, &hex(tag)[..]), "{algorithm:?}");
    }
}

/// The nonce is four zeros and the number, and a record's key comes from the secret: another program gets the same bytes.
#[test]
fn a_record_is_the_one_that_the_specification_describes() {
    use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
    let (mut writer, _) = ends(PayloadMode::Secure, Cipher::Aes256Gcm);
    record(&mut writer, b"first");
    let second = record(&mut writer, b"second");
    let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &[1; 32]);
    let key = ring::hmac::sign(&secret, b"ropewalk record key");
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key.as_ref()).unwrap());
    let nonce = Nonce::assume_unique_for_key([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let mut text = b"second".to_vec();
    key.seal_in_place_append_tag(nonce, Aad::from([22, 0]), &mut text).unwrap();
    assert_eq!(second, [&[22, 0], &text[..]].concat());
}

#[test]
fn records_are_opened_in_the_order_in_which_they_were_made() {
    every(|mode, cipher| {
        let (mut writer, mut reader) = ends(mode, cipher);
        for len in [1, 15, 16, 17, 1000, TEXT_BYTES_MAX] {
            let text = vec![len as u8; len];
            let mut made = record(&mut writer, &text);
            assert_eq!(Reader::record_bytes(&made), Ok(Some(made.len())));
            let readable = made[HEAD_BYTES..HEAD_BYTES + len] == text[..];
            assert_eq!(readable, mode == PayloadMode::Auth, "{mode}");
            assert_eq!(reader.open(&mut made), Ok(len), "{mode} {cipher:?} {len}");
            assert_eq!(made[HEAD_BYTES..HEAD_BYTES + len], text[..]);
        }
    });
}

#[test]
fn a_record_with_one_changed_bit_is_refused() {
    every(|mode, cipher| {
        let (mut writer, _) = ends(mode, cipher);
        let made = record(&mut writer, b"a text of some bytes");
        for bit in 0..made.len() * 8 {
            let mut spoiled = made.clone();
            spoiled[bit / 8] ^= 1 << (bit % 8);
            let mut reader = Reader::new(mode, cipher, key(1));
            assert_eq!(reader.open(&mut spoiled), Err(RecordError::Forged), "{mode} bit {bit}");
        }
    });
}

#[test]
fn a_record_counts_once_and_in_its_place_alone() {
    every(|mode, cipher| {
        let (mut writer, mut reader) = ends(mode, cipher);
        let made: Vec<Vec<u8>> = (0..3).map(|_| record(&mut writer, b"same")).collect();
        assert_eq!(reader.open(&mut made[1].clone()), Err(RecordError::Forged), "before its turn");
        assert_eq!(reader.open(&mut made[0].clone()), Ok(4));
        assert_eq!(reader.open(&mut made[0].clone()), Err(RecordError::Forged), "again");
        assert_eq!(reader.open(&mut made[1].clone()), Ok(4));
    });
}

#[test]
fn another_key_mode_or_cipher_opens_nothing() {
    let (mut writer, _) = ends(PayloadMode::Secure, Cipher::Aes256Gcm);
    let made = record(&mut writer, b"a text");
    let others = [
        Reader::new(PayloadMode::Secure, Cipher::Aes256Gcm, key(2)),
        Reader::new(PayloadMode::Auth, Cipher::Aes256Gcm, key(1)),
        Reader::new(PayloadMode::Secure, Cipher::ChaCha20Poly1305, key(1)),
    ];
    for mut reader in others {
        assert_eq!(reader.open(&mut made.clone()), Err(RecordError::Forged), "{reader:?}");
    }
}

#[test]
fn no_record_has_other_lengths() {
    let length = |bytes: u16| Reader::record_bytes(&bytes.to_le_bytes());
    assert_eq!(Reader::record_bytes(&[]), Ok(None));
    assert_eq!(Reader::record_bytes(&[17]), Ok(None));
    assert_eq!(length(16), Err(RecordError::Length(16)));
    assert_eq!(length(17), Ok(Some(19)));
    let most = (TEXT_BYTES_MAX + TAG_BYTES) as u16;
    assert_eq!(length(most), Ok(Some(TEXT_BYTES_MAX + OVERHEAD_BYTES)));
    assert_eq!(length(most + 1), Err(RecordError::Length(usize::from(most) + 1)));
}

#[test]
fn keys_follow_each_other_on_both_sides_after_the_same_record() {
    every(|mode, cipher| {
        let mut writer = Writer::with_keys_of(mode, cipher, key(1), 3);
        let mut reader = Reader::with_keys_of(mode, cipher, key(1), 3);
        let mut stays = Reader::new(mode, cipher, key(1));
        for number in 0..20 {
            let made = record(&mut writer, b"a text");
            assert_eq!(reader.open(&mut made.clone()), Ok(6), "record {number}");
            // Who does not change keys reads the first three.
            assert_eq!(stays.open(&mut made.clone()).is_ok(), number < 3, "record {number}");
        }
    });
}

#[test]
fn packets_may_overtake_each_other_around_a_change_of_keys() {
    let (mode, cipher) = (PayloadMode::Secure, Cipher::Aes256Gcm);
    let mut sealer = Sealer::with_keys_of(mode, cipher, key(1), 4);
    let mut opener = Opener::with_keys_of(mode, cipher, key(1), 4);
    let mut packets = Vec::new();
    for number in 0..13u64 {
        let mut bytes = [&number.to_le_bytes()[..], b"text"].concat();
        let tag = sealer.seal(number, 8, &mut bytes);
        packets.push([&bytes[..], &tag].concat());
    }
    for number in [1, 0, 5, 3, 2, 8, 6, 12, 9] {
        let opened = opener.open(number, 8, &mut packets[number as usize].clone());
        assert_eq!(opened, Ok(4), "packet {number}");
    }
    // Its key is gone, and one after the next is not guessed.
    assert_eq!(opener.open(4, 8, &mut packets[4].clone()), Err(Refused));
    assert_eq!(opener.open(40, 8, &mut packets[4].clone()), Err(Refused));
}

#[test]
#[should_panic(expected = "a number is used once")]
fn no_number_seals_two_texts() {
    let mut sealer = Sealer::new(PayloadMode::Secure, Cipher::Aes256Gcm, key(1));
    sealer.seal(7, 0, &mut [1]);
    sealer.seal(7, 0, &mut [2]);
}

#[test]
fn the_good_streams_of_the_fuzzer_are_read_to_their_end() {
    for stream in attack::streams() {
        attack::records(&stream);
        let mut reader = match stream[0] {
            1 => Reader::new(PayloadMode::Secure, Cipher::Aes256Gcm, key(3)),
            _ => continue,
        };
        let mut first = stream[1..1 + 14 + OVERHEAD_BYTES].to_vec();
        assert_eq!(reader.open(&mut first), Ok(14));
    }
}

#[test]
fn a_window_takes_each_number_once() {
    let mut window = Window::new();
    let mut model = std::collections::BTreeSet::new();
    let mut random = ropewalk_base::random::Random::from_seed(125);
    let mut base = 0u64;
    for _ in 0..20_000 {
        let number = base.saturating_sub(random.next_u64() % 1100) + random.next_u64() % 3;
        base += random.next_u64() % 2;
        let highest = model.last().copied();
        let is_recent = highest.is_none_or(|highest: u64| number + 1024 > highest);
        let expected = is_recent && !model.contains(&number);
        assert_eq!(window.is_new(number), expected, "{number} after {highest:?}");
        assert_eq!(window.take(number), expected);
        if expected {
            model.insert(number);
        }
    }
    assert!(window.take(u64::MAX - 1) && !window.take(u64::MAX - 1) && !window.take(base));
}
