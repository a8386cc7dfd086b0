-- Wireshark reads Ropewalk's packets, and MXoE's: README.md beside this file says how to install it.
--
-- * MXoE (EtherType 0x86df): messages of MX over Ethernet, as Open-MX and native MXoE hosts speak it. Nothing on
--   the wire names the byte order, the layouts and the longest frame, so that these are preferences.
-- * Ropewalk: packets between endpoints of ours, in MXoE's frames (types 0xc0 to 0xc7) or behind UDP; within them a
--   stream of records, which are frames of the core.
--
-- Layouts are tables: a field and its bytes, or a number of bytes that say nothing. They are those of
-- wire/src/mxoe/layouts.rs, wire/src/packets.rs and wire/src/frame.rs; wire/tests/wireshark.rs compares them.

set_plugin_info({ version = "1", description = "Ropewalk and MXoE", author = "Ropewalk" })

local mxoe = Proto("mxoe", "MX over Ethernet")
local ropewalk = Proto("ropewalk", "Ropewalk packet")

---------------------------------------------------------------------------------------------------------------
-- Numbers

-- Wireshark with Lua 5.2 has libraries of bits; later ones have operators, which 5.2 cannot read.
local bits = rawget(_G, "bit") or rawget(_G, "bit32") or load([[
    return {
        band = function(a, b) return a & b end, bxor = function(a, b) return a ~ b end,
        rshift = function(a, n) return (a & 0xffffffff) >> n end, lshift = function(a, n) return a << n end,
    }
]])()
local band, bxor, rshift, lshift = bits.band, bits.bxor, bits.rshift, bits.lshift

local crc_table = {}
for byte = 0, 255 do
    local crc = byte
    for _ = 1, 8 do
        local odd = band(crc, 1) == 1
        crc = rshift(crc, 1)
        if odd then crc = bxor(crc, 0x82f63b78) end
    end
    crc_table[byte] = crc
end

-- CRC32C of a text.
local function crc32c(text)
    local crc = 0xffffffff
    for at = 1, #text, 256 do
        for _, byte in ipairs({ text:byte(at, at + 255) }) do
            crc = bxor(crc_table[band(bxor(crc, byte), 0xff)], rshift(crc, 8))
        end
    end
    return bxor(crc, 0xffffffff) % 0x100000000
end

-- The numbers of the bits that are set in 8 bytes, little endian, plus `first`, as ranges: "0-31, 40".
local function ranges(range, first)
    local texts, begin, count = {}, nil, 0
    for number = 0, 64 do
        local word = number < 64 and range(number < 32 and 0 or 4, 4):le_uint() or 0
        local set = number < 64 and band(rshift(word, number % 32), 1) == 1
        if set then
            begin, count = begin or number, count + 1
        elseif begin then
            local last = number - 1
            texts[#texts + 1] = begin == last and string.format("%.0f", first + begin)
                or string.format("%.0f-%.0f", first + begin, first + last)
            begin = nil
        end
    end
    return table.concat(texts, ", "), count
end

---------------------------------------------------------------------------------------------------------------
-- Names of numbers

local mxoe_types = {
    [0x01] = "Raw", [0x03] = "Host query", [0x04] = "Host reply", [0x23] = "Ack", [0x24] = "Connect",
    [0x25] = "Tiny", [0x26] = "Small", [0x27] = "Medium", [0x28] = "Rendezvous", [0x29] = "Pull",
    [0x2a] = "Pull reply", [0x2b] = "Notify", [0x2c] = "Nack", [0x2d] = "Pull nack",
    [0xc0] = "Call", [0xc1] = "Answer", [0xc2] = "Stream", [0xc3] = "Stream ack", [0xc4] = "Ropewalk pull",
    [0xc5] = "Piece", [0xc6] = "Refusal", [0xc7] = "Gone",
}
local types = {
    [0xc0] = "Call", [0xc1] = "Answer", [0xc2] = "Stream", [0xc3] = "Ack", [0xc4] = "Pull", [0xc5] = "Piece",
    [0xc6] = "Refusal", [0xc7] = "Gone",
}
local nacks = { [1] = "bad endpoint", [2] = "endpoint closed", [3] = "bad session", [4] = "bad region" }
local connect_status = { [0] = "accepted", [11] = "wrong key" }
local kinds = {
    [1] = "Hello", [2] = "Confirm", [3] = "Eager", [4] = "RTS", [5] = "Get", [6] = "Data", [7] = "Put",
    [8] = "Result", [9] = "FIN", [10] = "Abort", [11] = "Credit", [12] = "Ack", [13] = "Goodbye",
    [14] = "Eager (short)", [15] = "CloseIdle", [16] = "KeepOpen", [17] = "Fragment", [18] = "Key", [19] = "Join",
    [20] = "Probe", [21] = "Load", [22] = "LoadAnswer", [23] = "Migrate", [24] = "Withdraw", [25] = "Prove",
    [26] = "Suspect", [27] = "Reply", [28] = "Applied", [29] = "GiveUp", [30] = "Update",
    [31] = "Atomic", [32] = "Lock", [33] = "Layout", [34] = "Strided", [35] = "Notify",
    [36] = "Immediate",
    [0xc0] = "Offer", [0xc1] = "Taken", [0xc2] = "Bye",
    [0xc3] = "Withdrawn",
}
local channels = { [0] = "tagged", [1] = "untagged", [2] = "request" }
local operators = {
    [1] = "sum", [2] = "product", [3] = "min", [4] = "max", [5] = "logical and", [6] = "logical or", [7] = "logical xor",
    [8] = "and", [9] = "or", [10] = "xor", [11] = "min and index", [12] = "max and index", [13] = "replace",
    [14] = "nothing", [255] = "compare and swap",
}
local elements = {
    [1] = "i8", [2] = "u8", [3] = "i16", [4] = "u16", [5] = "i32", [6] = "u32", [7] = "i64", [8] = "u64", [9] = "f32",
    [10] = "f64", [11] = "complex f32", [12] = "complex f64", [13] = "bool", [14] = "byte", [15] = "f32 and index",
    [16] = "f64 and index", [17] = "i64 and index", [18] = "i32 and index", [19] = "i16 and index",
    [20] = "long double", [21] = "long double and index",
}
local lock_actions = { [1] = "shared", [2] = "alone", [3] = "no more" }
local levels = { [0] = "buffered", [1] = "delivered", [2] = "matched" }
local modes = { [0] = "fail", [1] = "resume" }
local statuses = {
    [0] = "done", [1] = "cancelled", [2] = "oversize", [3] = "truncated", [4] = "bad key", [5] = "corrupt",
    [6] = "busy", [7] = "failed",
}
local hello_refusals = { [0] = "accepted", [1] = "duplicate", [2] = "other cluster", [3] = "full",
    [4] = "other version" }
local pull_reasons = { [0] = "all of it is there", [1] = "bad key", [2] = "given up", [3] = "no room" }
local checks = { [0] = "wrong", [1] = "right", [2] = "not checked" }

local function name_of(names, value)
    return names[value] or string.format("%d", value)
end

---------------------------------------------------------------------------------------------------------------
-- Fields

local fields = {}

local function declare(proto, prefix, list)
    local all = {}
    for _, it in ipairs(list) do
        local name, kind = prefix .. it[1], it[2]
        fields[name] = ProtoField[kind](name, it[3], it[4], it[5], it[6])
        all[#all + 1] = fields[name]
    end
    proto.fields = all
end

local dec, hex = base.DEC, base.HEX

declare(mxoe, "mxoe.", {
    { "index", "uint16", "Index of the sender in the receiver's table", dec },
    { "type", "uint8", "Type", hex, mxoe_types },
    { "to", "uint8", "To endpoint", dec },
    { "from", "uint8", "From endpoint", dec },
    { "generation", "uint8", "Generation (ignored)", dec },
    { "length", "uint32", "Length", dec },
    { "checksum", "uint16", "Checksum (of debug builds)", hex },
    { "sequence", "uint16", "Sequence", dec, nil, 0x3fff },
    { "sequence.session", "uint16", "Session bits of the sequence", dec, nil, 0xc000 },
    { "ack", "uint16", "Everything before was received", dec, nil, 0x3fff },
    { "ack.session", "uint16", "Session bits of that", dec, nil, 0xc000 },
    { "match", "uint64", "Match bits", hex },
    { "session", "uint32", "Session of the receiver", hex },
    { "data", "bytes", "Data" },
    { "total", "uint32", "Bytes of the whole", dec },
    { "fragment.bytes", "uint16", "Bytes of the fragment", dec },
    { "fragment.number", "uint8", "Fragment", dec },
    { "fragment.pipeline", "uint8", "Log2 of the distance of fragments", dec },
    { "fragment.checksum", "uint16", "Checksum of the fragment (of debug builds)", hex },
    { "fragment.offset", "uint32", "Place of the fragment", dec },
    { "region", "uint32", "Region", dec },
    { "region.sequence", "uint8", "Use of the region", dec },
    { "region.offset", "uint32", "Offset in the region", dec },
    { "pull.handle", "uint32", "Handle", hex },
    { "pull.magic", "uint32", "Magic", hex },
    { "pull.endpoint", "uint8", "Endpoint of the asker, from the magic", dec },
    { "pull.first_offset", "uint32", "Offset in the first frame", dec },
    { "pull.block_bytes", "uint32", "Bytes of the block", dec },
    { "pull.frame", "uint32", "First frame", dec },
    { "reply.frame", "uint8", "Frame, modulo 256", dec },
    { "reply.bytes", "uint16", "Bytes of the frame", dec },
    { "reply.offset", "uint32", "Place of the frame", dec },
    { "connect.length", "uint8", "Length of what follows the head", dec },
    { "connect.sequence", "uint16", "Sequence (none)", dec },
    { "connect.index", "uint16", "Index of the receiver in the sender's table", dec },
    { "connect.asker", "uint32", "Session of the asker", hex },
    { "connect.key", "uint32", "Key", hex },
    { "connect.session", "uint32", "Session of the one who answers", hex },
    { "connect.receive_next", "uint16", "First sequence that the sender expects", dec, nil, 0x3fff },
    { "connect.receive_next.session", "uint16", "Session bits of that", dec, nil, 0xc000 },
    { "connect.is_reply", "uint8", "Is a reply", dec },
    { "connect.number", "uint8", "Attempt", dec },
    { "connect.status", "uint8", "Status", dec, connect_status },
    { "truc.length", "uint8", "Length of what follows the head", dec },
    { "truc.subtype", "uint8", "Subtype", hex, { [0x55] = "acknowledgement" } },
    { "truc.session_again", "uint32", "Session, once more", hex },
    { "truc.number", "uint32", "Number of the acknowledgement", dec },
    { "truc.ack_again", "uint16", "Acknowledged, once more", hex },
    { "truc.resent", "uint8", "Resent", dec },
    { "nack.reason", "uint8", "Reason", dec, nacks },
    { "nack.index", "uint16", "Index in the head of what is refused", dec },
    { "host.name_bytes", "uint8", "Bytes of the name", dec },
    { "host.index", "uint16", "Index of the receiver in the sender's table", dec },
    { "host.magic", "uint32", "Magic", hex },
    { "host.name", "string", "Name" },
    { "beacon.nic", "ether", "Interface" },
    { "beacon.serial", "uint32", "Serial", hex },
    { "beacon.version", "uint16", "Version of Ropewalk's packets", dec },
    { "beacon.features", "uint16", "Features", hex },
    { "beacon.host", "uint64", "Host", hex },
    { "beacon.checksum", "uint32", "Checksum", hex },
    { "beacon.checksum.status", "uint8", "Checksum status", dec, checks },
    { "answers", "framenum", "Answers the packet", base.NONE, frametype.REQUEST },
    { "answered", "framenum", "First answer in", base.NONE, frametype.RESPONSE },
    { "resent", "framenum", "Was sent before in", base.NONE, frametype.RETRANS_PREV },
})

declare(ropewalk, "ropewalk.", {
    { "index", "uint16", "Index (none)", dec },
    { "type", "uint8", "Type", hex, types },
    { "to", "uint8", "To endpoint", dec },
    { "from", "uint8", "From endpoint", dec },
    { "flags", "uint8", "Flags", hex },
    { "bytes", "uint16", "Bytes of the packet", dec },
    { "tag", "uint32", "Tag: the receiver's name for the link", hex },
    { "link", "uint32", "Link of this capture", dec },
    { "checksum", "uint32", "CRC32C", hex },
    { "checksum.status", "uint8", "Checksum status", dec, checks },
    { "call.version", "uint16", "Version", dec },
    { "call.packet_bytes", "uint16", "Longest packet", dec },
    { "call.tag", "uint32", "The sender's name for the link", hex },
    { "call.id", "uint64", "Call", hex },
    { "call.refusal", "uint8", "Refusal", dec, { [0] = "accepted", [1] = "nobody has the endpoint", [2] = "call again" } },
    { "ack.next", "uint32", "First packet that is missing", dec },
    { "ack.delay", "uint24", "The oldest news waited (us)", dec },
    { "ack.again", "uint8", "Came again (number modulo 255, plus 1)", dec },
    { "ack.early", "uint64", "Packets beyond that are here", hex },
    { "stream.number", "uint32", "Number", dec },
    { "stream.record", "uint32", "Record of the first byte", dec },
    { "stream.offset", "uint32", "Place of that byte in its record", dec },
    { "stream.secret", "uint32", "The sender's secret of the link", hex },
    { "handle", "uint64", "Transfer", hex },
    { "key.slot", "uint64", "Slot of the key", hex },
    { "key.secret", "uint64", "Secret of the key", hex },
    { "offset", "uint64", "Offset in the region", dec },
    { "total_bytes", "uint64", "Bytes of the whole", dec },
    { "pull.piece_bytes", "uint16", "Bytes of a piece", dec },
    { "pull.offered", "uint8", "Of what was offered", dec },
    { "pull.first", "uint32", "First piece", dec },
    { "pull.pieces", "uint64", "Pieces from there", hex },
    { "piece.number", "uint32", "Piece", dec },
    { "piece.data", "bytes", "Data" },
    { "refusal.reason", "uint8", "Reason", dec, pull_reasons },
    { "gone.tag", "uint32", "Tag that is unknown", hex },
    { "gone.secret", "uint32", "Secret of the packet that named it", hex },
    { "record", "uint32", "Record", dec },
    { "record.kind", "uint8", "Kind", dec, kinds },
    { "record.header_bytes", "uint8", "Bytes of the header", dec },
    { "record.flags", "uint16", "Flags", hex },
    { "record.flags.payload_checksum", "bool", "The payload's checksum is filled in", 16, nil, 1 },
    { "record.flags.insist", "bool", "Hello: the sender knows of no other link", 16, nil, 2 },
    { "record.flags.answer", "bool", "Hello: an answer", 16, nil, 4 },
    { "record.flags.upgrade", "bool", "Hello: takes the place of another link", 16, nil, 8 },
    { "record.payload_bytes", "uint32", "Bytes of the payload", dec },
    { "record.payload", "bytes", "Payload" },
    { "record.begins", "framenum", "The record begins in", base.NONE },
    { "frame.header_checksum", "uint32", "Checksum of the header", hex },
    { "frame.header_checksum.status", "uint8", "Checksum status", dec, checks },
    { "frame.payload_checksum", "uint32", "Checksum of the payload", hex },
    { "frame.session", "uint32", "Session", hex },
    { "frame.attempt", "uint16", "Try", dec },
    { "frame.version", "uint16", "Version", dec },
    { "frame.packet", "uint32", "Number on its link", dec },
    { "frame.acknowledged", "uint32", "Spans up to here are placed", dec },
    { "frame.span", "uint64", "Span", dec },
    { "frame.channel", "uint8", "Channel", dec, channels },
    { "frame.acknowledge", "uint8", "The sender waits for", dec, levels },
    { "frame.tag", "uint64", "Tag of the message", hex },
    { "frame.message", "uint64", "Message", dec },
    { "frame.alone", "uint8", "The sender has no other session", dec },
    { "frame.total_bytes", "uint64", "Bytes of the whole", dec },
    { "frame.len", "uint64", "Bytes that are asked for", dec },
    { "frame.cookie", "uint64", "Cookie", hex },
    { "frame.into_offset", "uint64", "Offset at the asker", dec },
    { "frame.number", "uint64", "Operation", dec },
    { "frame.whole_bytes", "uint32", "Bytes of the operation", dec },
    { "frame.within", "uint32", "Place in the operation", dec },
    { "frame.tell", "uint16", "Tell when it is applied", dec },
    { "frame.applied", "uint64", "Operations up to here are applied", dec },
    { "frame.count", "uint32", "Operations that are given up", dec },
    { "frame.value", "uint64", "What the element was", hex },
    { "frame.elements", "uint32", "Elements of the operation", dec },
    { "frame.elements_here", "uint32", "Elements of this frame", dec },
    { "frame.operator", "uint8", "Operator", dec, operators },
    { "frame.element", "uint8", "Type of the elements", dec, elements },
    { "frame.operation_flags", "uint16", "1 tell, 2 fetch, 4 token, 8 to the value, 16 records, 32 more follows", hex },
    { "frame.operand", "uint64", "Operand", hex },
    { "frame.word", "uint32", "Word from the end of the region" },
    { "frame.compare", "uint64", "Compared with", hex },
    { "frame.lock", "uint8", "Wants the lock", dec, lock_actions },
    { "frame.lock_note", "uint8", "Of the lock: 1 an owner died, 2 the payload is put", dec },
    { "frame.update_limit", "uint64", "Elements of updates up to", dec },
    { "frame.layouts", "uint16", "Layouts that are taken", dec },
    { "frame.layout", "uint8", "Layout", dec },
    { "frame.layout_place", "uint32", "Layout (8 bits), its nodes (12), the first one here (12)", hex },
    { "frame.extent", "int64", "Bytes from one instance to the next", dec },
    { "frame.node", "bytes", "Node: nodes in it (2), offset (8), count (8), stride (8)" },
    { "frame.address", "int64", "Address of the first instance", dec },
    { "frame.instances", "uint64", "Instances", dec },
    { "frame.from", "uint64", "Bytes of data before", dec },
    { "frame.bytes", "uint64", "Bytes that were taken", dec },
    { "frame.status", "uint8", "Status", dec, statuses },
    { "frame.eager_limit", "uint64", "Eager messages up to", dec },
    { "frame.request_limit", "uint64", "Requests up to", dec },
    { "frame.rts_limit", "uint64", "RTS up to", dec },
    { "frame.more_bytes", "uint32", "Bytes that follow in fragments", dec },
    { "frame.eager_ends", "uint8", "No more for eager messages", dec },
    { "frame.rts_long", "uint8", "Long messages need an RTS", dec },
    { "frame.cumulative", "uint64", "Spans up to here are placed", dec },
    { "frame.delay", "uint32", "Waited (us)", dec },
    { "frame.runs", "uint8", "Runs of placed spans above", dec },
    { "frame.run.missing", "uint16", "Missing before", dec },
    { "frame.run.placed", "uint16", "Placed", dec },
    { "hello.endpoint", "bytes", "Endpoint" },
    { "hello.cluster", "bytes", "Cluster" },
    { "hello.incarnation", "uint64", "Incarnation", hex },
    { "hello.host", "uint64", "Host", hex },
    { "hello.nonce", "uint32", "Nonce", hex },
    { "hello.mode", "uint8", "Mode", dec, modes },
    { "hello.refusal", "uint8", "Refusal", dec, hello_refusals },
    { "hello.address_bytes", "uint16", "Bytes of addresses", dec },
    { "hello.eager_credit", "uint16", "First credit of eager messages (KiB)", dec },
    { "hello.request_credit", "uint16", "First credit of requests (KiB)", dec },
    { "hello.rts_credit", "uint16", "First credit for RTS", dec },
    { "hello.eager_max", "uint16", "Longest message without an RTS (KiB)", dec },
    { "hello.addresses", "string", "Addresses" },
    { "offer", "uint64", "Offer", hex },
    { "offer.secret", "uint64", "Secret of the offer", hex },
    { "offer.following", "uint32", "Offers of the same list that follow", dec },
    { "taken.status", "uint8", "Status", dec, pull_reasons },
    { "padding", "bytes", "Padding" },
    { "answers", "framenum", "Answers the packet", base.NONE, frametype.REQUEST },
    { "answered", "framenum", "First answer in", base.NONE, frametype.RESPONSE },
    { "resent", "framenum", "Was sent before in", base.NONE, frametype.RETRANS_PREV },
})

local experts = {}

local function warn_of(proto, list)
    local all = {}
    for _, it in ipairs(list) do
        local name = it[1]
        experts[name] = ProtoExpert.new(name, it[4], expert.group[it[2]], expert.severity[it[3]])
        all[#all + 1] = experts[name]
    end
    proto.experts = all
end

warn_of(mxoe, {
    { "mxoe.short", "MALFORMED", "ERROR", "The packet ends too early" },
    { "mxoe.long", "MALFORMED", "ERROR", "Longer than its type allows, or beyond the end of its message" },
    { "mxoe.field", "MALFORMED", "ERROR", "A field that no sender writes" },
    { "mxoe.unknown", "UNDECODED", "NOTE", "Nobody knows packets of this type" },
    { "mxoe.cut", "UNDECODED", "NOTE", "The rest was not captured" },
    { "mxoe.refused", "RESPONSE_CODE", "WARN", "Refused" },
    { "mxoe.again", "SEQUENCE", "NOTE", "Sent again" },
    { "mxoe.beacon.checksum.bad", "CHECKSUM", "ERROR", "The announcement's checksum is wrong: read as Open-MX's" },
})
warn_of(ropewalk, {
    { "ropewalk.short", "MALFORMED", "ERROR", "The packet ends too early" },
    { "ropewalk.bad_length", "MALFORMED", "ERROR", "A length that its kind does not have" },
    { "ropewalk.field", "MALFORMED", "ERROR", "A field that no sender writes" },
    { "ropewalk.cut", "UNDECODED", "NOTE", "The rest was not captured" },
    { "ropewalk.refused", "RESPONSE_CODE", "WARN", "Refused" },
    { "ropewalk.again", "SEQUENCE", "NOTE", "Sent again" },
    { "ropewalk.checksum.bad", "CHECKSUM", "ERROR", "The checksum is wrong: the packet is thrown away" },
    { "ropewalk.version", "PROTOCOL", "WARN", "A version that this dissector does not know" },
})

---------------------------------------------------------------------------------------------------------------
-- Preferences

mxoe.prefs.byte_order = Pref.enum("Byte order", 0, "That of MXoE's fields; nothing on the wire names it",
    { { 1, "big", 0 }, { 2, "little", 1 } }, false)
mxoe.prefs.mode = Pref.enum("Layouts", 0, "Open-MX's own (native), or those of native MXoE hosts (compatible)",
    { { 1, "native", 0 }, { 2, "compatible", 1 } }, false)
mxoe.prefs.frame_bytes = Pref.uint("Longest frame", 1500,
    "Bytes of the longest frame, its Ethernet header included, as the hosts are set: says where fragments belong")
mxoe.prefs.ethertype = Pref.uint("EtherType", 0x86df, "0x86df is 34527")
ropewalk.prefs.check = Pref.bool("Check the CRC32C", true, "Costs time with large captures")

-- Payload of every fragment of a medium message but the last.
local function fragment_bytes()
    local room = mxoe.prefs.frame_bytes - 48
    if mxoe.prefs.mode == 1 then return 4096 end
    if room <= 4096 then return room end
    return room >= 8192 and 8192 or 4096
end

---------------------------------------------------------------------------------------------------------------
-- What was seen before, and reading

-- What the first pass over a capture found out; later looks at a packet find it under the packet's name.
local seen

local function forget()
    seen = { facts = {}, asked = {}, answered = {}, sent = {}, links = {}, link_count = 0, records = {} }
end

-- A packet under work. `at` is where its body begins in the buffer, `bytes` its length on the wire.
local function packet_of(proto, tvb, pinfo, tree, at, bytes, little)
    local it = { proto = proto, tvb = tvb, pinfo = pinfo, tree = tree, at = at, little = little }
    it.wire_end, it.captured_end = at + bytes, math.min(at + bytes, tvb:captured_len())
    it.name = pinfo.number .. "/" .. at
    it.source, it.destination = tostring(pinfo.src), tostring(pinfo.dst)
    if pinfo.src_port ~= 0 or pinfo.dst_port ~= 0 then
        it.source = it.source .. " " .. pinfo.src_port
        it.destination = it.destination .. " " .. pinfo.dst_port
    end
    -- Looked at for the first time: what is found out is kept.
    it.first = seen.facts[it.name] == nil
    if it.first then seen.facts[it.name] = {} end
    it.facts = seen.facts[it.name]
    return it
end

local function complain(packet, tree, what, text)
    local name = (packet.proto == mxoe and "mxoe." or "ropewalk.") .. what
    if text then tree:add_proto_expert_info(experts[name], text) else tree:add_proto_expert_info(experts[name]) end
end

-- Whether so many bytes are there from `at` on; says so in the tree where not.
local function has(packet, tree, at, bytes)
    if at + bytes <= packet.captured_end then return true end
    complain(packet, tree, at + bytes <= packet.wire_end and "cut" or "short")
    return false
end

-- Fields of a layout, which begins at `at`: their values by name, and where it ends. Nothing where it does not fit.
-- A number in a layout stands for so many bytes that say nothing.
local function read(packet, tree, layout, at)
    local values = {}
    for _, entry in ipairs(layout) do
        local name, bytes = entry[1], entry[2]
        if not has(packet, tree, at, bytes or name) then return nil end
        if bytes then
            local range = packet.tvb(at, bytes)
            if packet.little then tree:add_le(fields[name], range) else tree:add(fields[name], range) end
            if bytes == 8 then
                values[name] = packet.little and range:le_uint64() or range:uint64()
            elseif bytes < 8 then
                values[name] = packet.little and range:le_uint() or range:uint()
            end
            if entry[3] then
                local more = fields[entry[3]]
                if packet.little then tree:add_le(more, range) else tree:add(more, range) end
            end
        end
        at = at + (bytes or name)
    end
    return values, at
end

local function generated(tree, name, value)
    tree:add(fields[name], value):set_generated()
end

-- Payload of so many bytes: as much of it as was captured.
local function payload(packet, tree, name, at, bytes)
    local here = math.max(0, math.min(bytes, packet.captured_end - at))
    if here > 0 then tree:add(fields[name], packet.tvb(at, here)) end
    if here < bytes then complain(packet, tree, at + bytes <= packet.wire_end and "cut" or "short") end
end

local function prefix_of(packet)
    return packet.proto == mxoe and "mxoe." or "ropewalk."
end

-- The packet asks for what others will answer under this name.
local function asks(packet, tree, name)
    local key = prefix_of(packet) .. packet.source .. ">" .. packet.destination .. " " .. name
    if packet.first then
        seen.asked[key] = packet.pinfo.number
        packet.facts.asks = key .. " " .. packet.pinfo.number
    end
    local answer = packet.facts.asks and seen.answered[packet.facts.asks]
    if answer then generated(tree, prefix_of(packet) .. "answered", answer) end
end

-- The packet answers what was asked for under this name.
local function answers(packet, tree, name)
    local key = prefix_of(packet) .. packet.destination .. ">" .. packet.source .. " " .. name
    if packet.first then
        packet.facts.answers = seen.asked[key]
        local asked = key .. " " .. (packet.facts.answers or "")
        seen.answered[asked] = seen.answered[asked] or packet.pinfo.number
    end
    if packet.facts.answers then generated(tree, prefix_of(packet) .. "answers", packet.facts.answers) end
end

-- A packet with this number of this row: one that is not ahead of all others, and was seen, came again. `wrap` is
-- how many numbers there are.
local function numbered(packet, tree, row, number, part, wrap)
    local key = prefix_of(packet) .. packet.source .. ">" .. packet.destination .. " " .. row
    if packet.first then
        local sent = seen.sent[key] or { highest = number, at = {} }
        seen.sent[key] = sent
        local ahead = (number - sent.highest) % wrap
        local name = number .. "/" .. part
        local behind = ahead == 0 or ahead > wrap / 2
        packet.facts.resent = behind and sent.at[name] or nil
        sent.at[name] = packet.pinfo.number
        if not behind then sent.highest = number end
    end
    if packet.facts.resent then
        complain(packet, tree, "again")
        generated(tree, prefix_of(packet) .. "resent", packet.facts.resent)
    end
    return packet.facts.resent and " (again)" or ""
end

---------------------------------------------------------------------------------------------------------------
-- MXoE

local TO, FROM, GENERATION = { "mxoe.to", 1 }, { "mxoe.from", 1 }, { "mxoe.generation", 1 }
local SEQUENCE = { "mxoe.sequence", 2, "mxoe.sequence.session" }
local ACK = { "mxoe.ack", 2, "mxoe.ack.session" }
local RECEIVE_NEXT = { "mxoe.connect.receive_next", 2, "mxoe.connect.receive_next.session" }
local SESSION = { "mxoe.session", 4 }
local HANDLE, MAGIC = { "mxoe.pull.handle", 4 }, { "mxoe.pull.magic", 4 }

-- From the byte after the type.
local layouts = {
    ends = { TO, FROM, GENERATION },
    short_length = { { "mxoe.length", 2 }, { "mxoe.checksum", 2 } },
    long_length = { { "mxoe.length", 4 } },
    message = { SEQUENCE, ACK },
    medium_native = { { "mxoe.fragment.bytes", 2 }, { "mxoe.fragment.number", 1 }, { 1 },
        { "mxoe.fragment.checksum", 2 }, { 2 } },
    medium_compatible = { { "mxoe.fragment.bytes", 2 }, { "mxoe.fragment.number", 1 },
        { "mxoe.fragment.pipeline", 1 }, { "mxoe.fragment.checksum", 2 }, { 2 } },
    rendezvous = { { "mxoe.total", 4 }, { "mxoe.region", 1 }, { "mxoe.region.sequence", 1 },
        { "mxoe.region.offset", 2 } },
    pull_native = { TO, FROM, GENERATION, SESSION, { "mxoe.total", 4 }, { "mxoe.region", 4 },
        { "mxoe.region.sequence", 1 }, { 3 }, { "mxoe.region.offset", 4 }, HANDLE, MAGIC,
        { "mxoe.pull.first_offset", 4 }, { "mxoe.pull.block_bytes", 4 }, { "mxoe.pull.frame", 4 } },
    pull_compatible = { TO, FROM, GENERATION, SESSION, { "mxoe.total", 4 }, { "mxoe.region", 1 },
        { "mxoe.region.sequence", 1 }, { "mxoe.region.offset", 2 }, HANDLE, MAGIC,
        { "mxoe.pull.first_offset", 2 }, { "mxoe.pull.block_bytes", 2 }, { "mxoe.pull.frame", 4 } },
    pull_reply = { { "mxoe.reply.frame", 1 }, { "mxoe.reply.bytes", 2 }, { "mxoe.reply.offset", 4 }, HANDLE, MAGIC },
    notify = { TO, FROM, GENERATION, SESSION, { "mxoe.length", 4 }, { "mxoe.region", 1 },
        { "mxoe.region.sequence", 1 }, { 4 }, SEQUENCE, ACK, { 2 } },
    connect = { TO, FROM, GENERATION, { "mxoe.connect.length", 1 }, { 3 }, { "mxoe.connect.sequence", 2 },
        { "mxoe.connect.index", 2 }, { 4 }, { "mxoe.connect.asker", 4 } },
    connect_key = { { "mxoe.connect.key", 4 } },
    connect_session = { { "mxoe.connect.session", 4 } },
    connect_end = { RECEIVE_NEXT, { "mxoe.connect.is_reply", 1 }, { "mxoe.connect.number", 1 } },
    connect_status = { { "mxoe.connect.status", 1 }, { 3 } },
    truc = { TO, FROM, GENERATION, { "mxoe.truc.length", 1 }, { 3 }, SESSION, { "mxoe.truc.subtype", 1 }, { 1 }, ACK,
        { "mxoe.truc.session_again", 4 }, { "mxoe.truc.number", 4 }, { "mxoe.truc.ack_again", 2 },
        { "mxoe.truc.resent", 1 }, { 1 } },
    nack = { FROM, GENERATION, { "mxoe.nack.reason", 1 }, { 4 }, { 1 }, TO, { "mxoe.nack.index", 2 }, SEQUENCE, { 2 } },
    pull_nack = { TO, GENERATION, { "mxoe.nack.reason", 1 }, { 4 }, HANDLE, MAGIC },
    host_query = { { 1 }, { "mxoe.host.index", 2 }, { 4 }, { "mxoe.host.magic", 4 }, { 4 } },
    host_reply = { { "mxoe.host.name_bytes", 1 }, { "mxoe.host.index", 2 }, { 4 }, { "mxoe.host.magic", 4 }, { 4 } },
    announcement = { { 4 }, { "mxoe.beacon.version", 2 }, { "mxoe.beacon.features", 2 }, { "mxoe.beacon.host", 8 },
        { "mxoe.beacon.checksum", 4 } },
}

local function number_of(sequence)
    return sequence % 0x4000
end

-- The beginning of tiny, small, medium and rendezvous: its values, and where it ends.
local function message(packet, tree, at, length)
    local ends, bytes, numbers, session
    ends, at = read(packet, tree, layouts.ends, at)
    if not ends then return nil end
    bytes, at = read(packet, tree, length, at)
    if not bytes then return nil end
    numbers, at = read(packet, tree, layouts.message, at)
    if not numbers or not has(packet, tree, at, 8) then return nil end
    -- Two numbers of 32 bits, the higher one first in either byte order.
    local high, low = packet.tvb(at, 4), packet.tvb(at + 4, 4)
    high = packet.little and high:le_uint() or high:uint()
    low = packet.little and low:le_uint() or low:uint()
    tree:add(fields["mxoe.match"], packet.tvb(at, 8), UInt64(low, high))
    session, at = read(packet, tree, { SESSION }, at + 8)
    if not session then return nil end
    local values = {
        to = ends["mxoe.to"], from = ends["mxoe.from"], length = bytes["mxoe.length"],
        sequence = number_of(numbers["mxoe.sequence"]), ack = number_of(numbers["mxoe.ack"]),
        session = session["mxoe.session"], match = string.format("0x%08x%08x", high, low),
    }
    return values, at
end

local function message_text(name, it, rest)
    return string.format("%s %d → %d seq %d ack %d: %s", name, it.from, it.to, it.sequence, it.ack, rest)
end

local function message_row(it)
    return string.format("%d %d %x", it.from, it.to, it.session)
end

local parsers = {}

local function short_message(name, bytes_max)
    return function(packet, tree, at)
        local it
        it, at = message(packet, tree, at, layouts.short_length)
        if not it then return name end
        if it.length > bytes_max then complain(packet, tree, "long") end
        payload(packet, tree, "mxoe.data", at, it.length)
        local again = numbered(packet, tree, message_row(it), it.sequence, 0, 0x4000)
        return message_text(name, it, string.format("%d B, match %s%s", it.length, it.match, again))
    end
end

parsers[0x25] = short_message("Tiny", 32)
parsers[0x26] = short_message("Small", 128)

parsers[0x27] = function(packet, tree, at)
    local compatible = mxoe.prefs.mode == 1
    local it, medium
    it, at = message(packet, tree, at, compatible and layouts.short_length or layouts.long_length)
    if not it then return "Medium" end
    local begin = at
    medium, at = read(packet, tree, compatible and layouts.medium_compatible or layouts.medium_native, at)
    if not medium then return "Medium" end
    local number, bytes = medium["mxoe.fragment.number"], medium["mxoe.fragment.bytes"]
    local pipeline = medium["mxoe.fragment.pipeline"]
    if compatible and pipeline > 15 then
        complain(packet, tree, "field")
        return "Medium"
    end
    local offset = number * (compatible and 2 ^ pipeline or fragment_bytes())
    tree:add(fields["mxoe.fragment.offset"], packet.tvb(begin + 2, 1), offset):set_generated()
    if number >= 32 or offset + bytes > it.length then complain(packet, tree, "long") end
    payload(packet, tree, "mxoe.data", at, bytes)
    local again = numbered(packet, tree, message_row(it), it.sequence, number, 0x4000)
    local text = string.format("fragment %d, %d B at %d of %d%s", number, bytes, offset, it.length, again)
    return message_text("Medium", it, text)
end

parsers[0x28] = function(packet, tree, at)
    local it, announced
    it, at = message(packet, tree, at, layouts.short_length)
    if not it then return "Rendezvous" end
    announced = read(packet, tree, layouts.rendezvous, at)
    if not announced then return "Rendezvous" end
    local again = numbered(packet, tree, message_row(it), it.sequence, 0, 0x4000)
    asks(packet, tree, string.format("region %d %d", announced["mxoe.region"], announced["mxoe.region.sequence"]))
    return message_text("Rendezvous", it, string.format("%d B in region %d.%d, match %s%s", announced["mxoe.total"],
        announced["mxoe.region"], announced["mxoe.region.sequence"], it.match, again))
end

-- What pulls and their answers are found by.
local function transfer(packet, tree, values)
    local handle, magic = values["mxoe.pull.handle"], values["mxoe.pull.magic"]
    local endpoint = bxor(magic, 0x21071980) % 0x100000000
    if endpoint < 256 then generated(tree, "mxoe.pull.endpoint", endpoint) end
    return string.format("pull %x %x", handle, magic), string.format("0x%x", handle)
end

parsers[0x29] = function(packet, tree, at)
    local layout = mxoe.prefs.mode == 1 and layouts.pull_compatible or layouts.pull_native
    local it = read(packet, tree, layout, at)
    if not it then return "Pull" end
    local name, handle = transfer(packet, tree, it)
    asks(packet, tree, name)
    return string.format("Pull %d → %d handle %s: %d B from frame %d on, of %d in region %d.%d", it["mxoe.from"],
        it["mxoe.to"], handle, it["mxoe.pull.block_bytes"], it["mxoe.pull.frame"], it["mxoe.total"],
        it["mxoe.region"], it["mxoe.region.sequence"])
end

parsers[0x2a] = function(packet, tree, at)
    local it
    it, at = read(packet, tree, layouts.pull_reply, at)
    if not it then return "Pull reply" end
    local name, handle = transfer(packet, tree, it)
    answers(packet, tree, name)
    payload(packet, tree, "mxoe.data", at, it["mxoe.reply.bytes"])
    return string.format("Pull reply handle %s: frame %d, %d B at %d", handle, it["mxoe.reply.frame"],
        it["mxoe.reply.bytes"], it["mxoe.reply.offset"])
end

parsers[0x2b] = function(packet, tree, at)
    local it = read(packet, tree, layouts.notify, at)
    if not it then return "Notify" end
    answers(packet, tree, string.format("region %d %d", it["mxoe.region"], it["mxoe.region.sequence"]))
    local values = { from = it["mxoe.from"], to = it["mxoe.to"], session = it["mxoe.session"],
        sequence = number_of(it["mxoe.sequence"]), ack = number_of(it["mxoe.ack"]) }
    local again = numbered(packet, tree, message_row(values), values.sequence, 0, 0x4000)
    return message_text("Notify", values, string.format("%d B taken of region %d.%d%s", it["mxoe.length"],
        it["mxoe.region"], it["mxoe.region.sequence"], again))
end

parsers[0x24] = function(packet, tree, at)
    local it, second, rest
    it, at = read(packet, tree, layouts.connect, at)
    -- Whether this is an answer decides what the next field is.
    if not it or not has(packet, tree, at, 8) then return "Connect" end
    local reply = packet.tvb(at + 6, 1):uint()
    second, at = read(packet, tree, reply == 1 and layouts.connect_session or layouts.connect_key, at)
    rest, at = read(packet, tree, layouts.connect_end, at)
    local name = string.format("connect %x %d", it["mxoe.connect.asker"], rest["mxoe.connect.number"])
    local ends = string.format("%d → %d", it["mxoe.from"], it["mxoe.to"])
    if reply == 0 then
        has(packet, tree, at, 4)
        asks(packet, tree, name)
        return string.format("Connect %s: session 0x%x, key 0x%x, expects %d", ends, it["mxoe.connect.asker"],
            second["mxoe.connect.key"], number_of(rest["mxoe.connect.receive_next"]))
    end
    local status = read(packet, tree, layouts.connect_status, at)
    if reply > 1 then complain(packet, tree, "field") end
    if not status then return "Connect" end
    answers(packet, tree, name)
    status = status["mxoe.connect.status"]
    if status ~= 0 then complain(packet, tree, "refused", "The connect is refused") end
    return string.format("Connect answer %s: session 0x%x, expects %d, %s", ends, second["mxoe.connect.session"] or 0,
        number_of(rest["mxoe.connect.receive_next"]), name_of(connect_status, status))
end

parsers[0x23] = function(packet, tree, at)
    local it = read(packet, tree, layouts.truc, at)
    if not it then return "Ack" end
    if it["mxoe.truc.subtype"] ~= 0x55 or it["mxoe.session"] ~= it["mxoe.truc.session_again"] then
        complain(packet, tree, "field")
    end
    return string.format("Ack %d → %d: everything before %d (number %d)", it["mxoe.from"], it["mxoe.to"],
        number_of(it["mxoe.ack"]), it["mxoe.truc.number"])
end

parsers[0x2c] = function(packet, tree, at)
    local it = read(packet, tree, layouts.nack, at)
    if not it then return "Nack" end
    complain(packet, tree, "refused", "A packet is refused")
    return string.format("Nack %d → %d seq %d: %s", it["mxoe.from"], it["mxoe.to"], number_of(it["mxoe.sequence"]),
        name_of(nacks, it["mxoe.nack.reason"]))
end

parsers[0x2d] = function(packet, tree, at)
    local it = read(packet, tree, layouts.pull_nack, at)
    if not it then return "Pull nack" end
    local name, handle = transfer(packet, tree, it)
    answers(packet, tree, name)
    complain(packet, tree, "refused", "A pull is refused")
    return string.format("Pull nack handle %s: %s", handle, name_of(nacks, it["mxoe.nack.reason"]))
end

parsers[0x03] = function(packet, tree, at)
    local it = read(packet, tree, layouts.host_query, at)
    if not it then return "Host query" end
    asks(packet, tree, string.format("name %x", it["mxoe.host.magic"]))
    return "Host query"
end

parsers[0x04] = function(packet, tree, at)
    local it
    it, at = read(packet, tree, layouts.host_reply, at)
    if not it then return "Host reply" end
    answers(packet, tree, string.format("name %x", it["mxoe.host.magic"]))
    local bytes = it["mxoe.host.name_bytes"]
    if bytes > 80 then complain(packet, tree, "long") end
    if bytes == 0 or not has(packet, tree, at, bytes) then return "Host reply" end
    local name = packet.tvb(at, bytes):stringz()
    tree:add(fields["mxoe.host.name"], packet.tvb(at, bytes), name)
    if #name ~= bytes - 1 then complain(packet, tree, "field") end
    return "Host reply: " .. name
end

-- The tail of a beacon of ours.
local function announcement(packet, tree, at)
    if packet.tvb:raw(at, 4) ~= "Rope" then return "" end
    local right = crc32c(packet.tvb:raw(at, 16)) == packet.tvb(at + 16, 4):uint()
    local part = tree:add(packet.proto, packet.tvb(at, 20), "Announcement of Ropewalk")
    -- Always in this order, whatever that of MXoE's fields is.
    local little = packet.little
    packet.little = false
    local it = read(packet, part, layouts.announcement, at)
    packet.little = little
    generated(part, "mxoe.beacon.checksum.status", right and 1 or 0)
    if not right then
        complain(packet, part, "beacon.checksum.bad")
        return ""
    end
    return string.format(", Ropewalk version %d on host 0x%s", it["mxoe.beacon.version"],
        it["mxoe.beacon.host"]:tohex())
end

parsers[0x01] = function(packet, tree, at)
    local bytes = packet.captured_end - at
    local zeroes = bytes >= 47 and packet.tvb:raw(at, 15) == string.rep("\0", 15)
    -- Always in the network's order, whatever that of all other fields is.
    local little = packet.little
    local high = zeroes and packet.tvb(at + 15, 4):uint() or nil
    if not high or high > 0xffff then
        if bytes > 0 then tree:add(fields["mxoe.data"], packet.tvb(at, bytes)) end
        return string.format("Raw, %d B", packet.wire_end - at)
    end
    local low = packet.tvb(at + 19, 4):uint()
    local digits = string.format("%04x%08x", high, low)
    local station = digits:gsub("(%x%x)", "%1:", 5)
    tree:add(fields["mxoe.beacon.nic"], packet.tvb(at + 15, 8), Address.ether(station))
    local it
    packet.little = false
    it, at = read(packet, tree, { { "mxoe.beacon.serial", 4 } }, at + 23)
    packet.little = little
    return string.format("Beacon of %s, serial 0x%x%s", station, it["mxoe.beacon.serial"],
        announcement(packet, tree, at))
end

local function is_ours(kind)
    return kind >= 0xc0 and kind <= 0xc7
end

function mxoe.dissector(tvb, pinfo, root)
    local bytes = tvb:reported_len()
    if tvb:captured_len() >= 3 and is_ours(tvb(2, 1):uint()) then return ropewalk.dissector(tvb, pinfo, root) end
    pinfo.cols.protocol = "MXoE"
    local tree = root:add(mxoe, tvb())
    local packet = packet_of(mxoe, tvb, pinfo, tree, 0, bytes, mxoe.prefs.byte_order == 1)
    local head, at = read(packet, tree, { { "mxoe.index", 2 }, { "mxoe.type", 1 } }, 0)
    if not head then return bytes end
    local kind = head["mxoe.type"]
    local parser = parsers[kind]
    local text = string.format("Type 0x%02x", kind)
    if parser then
        text = parser(packet, tree, at)
    else
        complain(packet, tree, "unknown")
    end
    pinfo.cols.info = text
    tree:append_text(": " .. text)
    return bytes
end

---------------------------------------------------------------------------------------------------------------
-- Records: frames of the core, and what packet machines tell each other

local KEY_SLOT, KEY_SECRET = { "ropewalk.key.slot", 8 }, { "ropewalk.key.secret", 8 }
local OFFSET, COOKIE = { "ropewalk.offset", 8 }, { "ropewalk.frame.cookie", 8 }
local TAG, MESSAGE = { "ropewalk.frame.tag", 8 }, { "ropewalk.frame.message", 8 }
local CHANNEL, ACKNOWLEDGE = { "ropewalk.frame.channel", 1 }, { "ropewalk.frame.acknowledge", 1 }
local FRAME_TOTAL, STATUS = { "ropewalk.frame.total_bytes", 8 }, { "ropewalk.frame.status", 1 }
local OFFER = { "ropewalk.offer", 8 }
local NUMBER, APPLIED = { "ropewalk.frame.number", 8 }, { "ropewalk.frame.applied", 8 }
local OPERATOR, ELEMENT = { "ropewalk.frame.operator", 1 }, { "ropewalk.frame.element", 1 }
local OPERATION_FLAGS = { "ropewalk.frame.operation_flags", 2 }

local record_layouts = {
    prefix = { { "ropewalk.record.kind", 1 }, { "ropewalk.record.header_bytes", 1 }, { "ropewalk.record.flags", 2 },
        { "ropewalk.record.payload_bytes", 4 } },
    frame = { { "ropewalk.frame.header_checksum", 4 }, { "ropewalk.frame.payload_checksum", 4 },
        { "ropewalk.frame.session", 4 }, { "ropewalk.frame.attempt", 2 },
        { "ropewalk.frame.version", 2 }, { "ropewalk.frame.packet", 4 }, { "ropewalk.frame.acknowledged", 4 },
        { "ropewalk.frame.span", 8 } },
    [1] = { { "ropewalk.hello.endpoint", 16 }, { "ropewalk.hello.cluster", 16 }, { "ropewalk.hello.incarnation", 8 },
        { "ropewalk.hello.host", 8 }, { "ropewalk.hello.nonce", 4 }, { "ropewalk.hello.mode", 1 },
        { "ropewalk.hello.refusal", 1 }, { "ropewalk.hello.address_bytes", 2 },
        { "ropewalk.hello.eager_credit", 2 }, { "ropewalk.hello.request_credit", 2 },
        { "ropewalk.hello.rts_credit", 2 }, { "ropewalk.hello.eager_max", 2 } },
    [2] = {},
    [3] = { TAG, MESSAGE, CHANNEL, ACKNOWLEDGE, { 2 }, { "ropewalk.frame.more_bytes", 4 } },
    [4] = { TAG, MESSAGE, CHANNEL, { "ropewalk.frame.alone", 1 }, { 6 }, FRAME_TOTAL, KEY_SLOT, KEY_SECRET },
    [5] = { KEY_SLOT, KEY_SECRET, OFFSET, { "ropewalk.frame.len", 8 }, COOKIE, { "ropewalk.frame.into_offset", 8 } },
    [6] = { COOKIE, OFFSET },
    [7] = { KEY_SLOT, KEY_SECRET, OFFSET, NUMBER, { "ropewalk.frame.whole_bytes", 4 }, { "ropewalk.frame.within", 4 },
        { "ropewalk.frame.tell", 2 }, { 6 } },
    [8] = { COOKIE, STATUS, { "ropewalk.frame.lock_note", 1 }, { 6 } },
    [9] = { MESSAGE, CHANNEL, STATUS, { 6 }, { "ropewalk.frame.bytes", 8 } },
    [10] = { MESSAGE, CHANNEL, { 7 } },
    [11] = { { "ropewalk.frame.eager_limit", 8 }, { "ropewalk.frame.request_limit", 8 },
        { "ropewalk.frame.rts_limit", 8 }, { "ropewalk.frame.update_limit", 8 }, { "ropewalk.frame.eager_ends", 1 },
        { "ropewalk.frame.rts_long", 1 }, { "ropewalk.frame.layouts", 2 }, { 4 } },
    [12] = { { "ropewalk.frame.cumulative", 8 }, { "ropewalk.frame.delay", 4 }, { "ropewalk.frame.runs", 1 }, { 3 } },
    [13] = {},
    [14] = { { "ropewalk.frame.session", 4 }, CHANNEL, ACKNOWLEDGE, { 2 }, TAG, MESSAGE },
    [15] = {},
    [16] = {},
    [27] = { NUMBER, APPLIED, { "ropewalk.frame.value", 8 }, STATUS, { 7 } },
    [28] = { APPLIED },
    [29] = { NUMBER, { "ropewalk.frame.count", 4 }, { 4 } },
    [30] = { KEY_SLOT, KEY_SECRET, OFFSET, NUMBER, { "ropewalk.frame.elements", 4 }, { "ropewalk.frame.within", 4 },
        { "ropewalk.frame.elements_here", 4 }, OPERATOR, ELEMENT, OPERATION_FLAGS },
    [31] = { KEY_SLOT, KEY_SECRET, OFFSET, NUMBER, { "ropewalk.frame.operand", 8 }, { "ropewalk.frame.compare", 8 },
        OPERATOR, ELEMENT, OPERATION_FLAGS, { 4 } },
    [32] = { KEY_SLOT, KEY_SECRET, COOKIE, NUMBER, OFFSET, { "ropewalk.frame.lock", 1 }, { 7 } },
    [33] = { { "ropewalk.frame.extent", 8 }, { "ropewalk.frame.layout_place", 4 }, { "ropewalk.frame.node", 26 },
        { "ropewalk.frame.node", 26 } },
    [34] = { KEY_SLOT, KEY_SECRET, { "ropewalk.frame.address", 8 }, NUMBER, { "ropewalk.frame.instances", 8 },
        { "ropewalk.frame.from", 8 }, { "ropewalk.frame.elements_here", 4 }, OPERATOR, ELEMENT, OPERATION_FLAGS,
        { "ropewalk.frame.layout", 1 }, { 7 } },
    [35] = { KEY_SLOT, KEY_SECRET, OFFSET, NUMBER, { "ropewalk.frame.operand", 8 }, { "ropewalk.frame.word", 4 },
        OPERATION_FLAGS, { 2 } },
    [36] = { KEY_SLOT, KEY_SECRET, OFFSET, NUMBER, { "ropewalk.frame.operand", 8 }, { "ropewalk.frame.len", 8 },
        OPERATION_FLAGS, { 6 } },
    [0xc0] = { OFFER, { "ropewalk.offer.secret", 8 }, KEY_SLOT, KEY_SECRET, OFFSET, { "ropewalk.total_bytes", 8 },
        { "ropewalk.offer.following", 4 }, { 4 } },
    [0xc1] = { OFFER, { "ropewalk.taken.status", 1 }, { 7 } },
    [0xc2] = {},
    [0xc3] = { OFFER },
}

local ACK_RUNS_MAX = 12
for _ = 1, ACK_RUNS_MAX do
    table.insert(record_layouts[12], { "ropewalk.frame.run.missing", 2 })
    table.insert(record_layouts[12], { "ropewalk.frame.run.placed", 2 })
end

local PREFIX_BYTES, FRAME_PREFIX_BYTES = 8, 40
local HEADER_BYTES_MAX, PAYLOAD_BYTES_MAX = 104, 256 * 1024
local FRAME_VERSION = 6

local function layout_bytes(layout)
    local bytes = 0
    for _, entry in ipairs(layout) do bytes = bytes + (entry[2] or entry[1]) end
    return bytes
end

-- Bytes of a record's header, by its kind.
local function header_bytes(kind)
    local layout = record_layouts[kind]
    if not layout then return nil end
    local has_prefix = kind < 0xc0 and kind ~= 14
    return layout_bytes(layout) + (has_prefix and FRAME_PREFIX_BYTES or PREFIX_BYTES)
end

-- What a record is, in a few words.
local function record_text(kind, values, bytes)
    local text = (kind < 0xc0 and "Frame " or "") .. name_of(kinds, kind)
    local channel = values["ropewalk.frame.channel"]
    if channel then text = text .. " " .. name_of(channels, channel) end
    local total = values["ropewalk.frame.total_bytes"] or values["ropewalk.total_bytes"] or values["ropewalk.frame.len"]
        or values["ropewalk.frame.whole_bytes"]
    if total then text = text .. " of " .. tostring(total) .. " B" end
    local status = values["ropewalk.frame.status"]
    if status then text = text .. " " .. name_of(statuses, status) end
    local taken = values["ropewalk.taken.status"]
    if taken then text = text .. ": " .. name_of(pull_reasons, taken) end
    local refusal = values["ropewalk.hello.refusal"]
    if refusal and refusal ~= 0 then text = text .. " refused: " .. name_of(hello_refusals, refusal) end
    if bytes > 0 then text = text .. string.format(" %d B", bytes) end
    return text
end

-- The fields of a header of `bytes` bytes.
local function record_header(packet, tree, at, kind, bytes)
    local begin = at
    local prefix, values, rest
    prefix, at = read(packet, tree, record_layouts.prefix, at)
    if not prefix then return nil end
    for _, flag in ipairs({ "payload_checksum", "insist", "answer", "upgrade" }) do
        tree:add_le(fields["ropewalk.record.flags." .. flag], packet.tvb(begin + 2, 2))
    end
    if header_bytes(kind) ~= bytes then
        complain(packet, tree, "bad_length")
        return prefix
    end
    if kind < 0xc0 and kind ~= 14 then
        values, at = read(packet, tree, record_layouts.frame, at)
        if not values then return prefix end
        if values["ropewalk.frame.version"] ~= FRAME_VERSION then complain(packet, tree, "version") end
        local stored, right = values["ropewalk.frame.header_checksum"], 2
        -- Over a medium that is checked nobody fills it in.
        if stored ~= 0 and has(packet, tree, begin, bytes) then
            local text = packet.tvb:raw(begin, 8) .. "\0\0\0\0" .. packet.tvb:raw(begin + 12, bytes - 12)
            right = crc32c(text) == stored and 1 or 0
        end
        generated(tree, "ropewalk.frame.header_checksum.status", right)
        if right == 0 then complain(packet, tree, "checksum.bad", "The header's checksum is wrong") end
    end
    rest = read(packet, tree, record_layouts[kind], at)
    for _, some in ipairs({ values or {}, rest or {} }) do
        for name, value in pairs(some) do prefix[name] = value end
    end
    return prefix
end

-- The record that begins at `at`, of which `left` bytes are in this packet: its text, its bytes here and in all.
local function record(packet, tree, at, left, number)
    if left < PREFIX_BYTES or not has(packet, tree, at, PREFIX_BYTES) then
        if left < PREFIX_BYTES then complain(packet, tree, "bad_length") end
        return nil
    end
    local kind, header = packet.tvb(at, 1):uint(), packet.tvb(at + 1, 1):uint()
    local bytes = packet.tvb(at + 4, 4):le_uint()
    if header < PREFIX_BYTES or header > math.min(left, HEADER_BYTES_MAX) or bytes > PAYLOAD_BYTES_MAX then
        complain(packet, tree, "bad_length", "No record has a header or a payload of this length")
        return nil
    end
    local here = math.min(header + bytes, left)
    local seen_bytes = math.max(0, math.min(here, packet.captured_end - at))
    local part = tree:add(packet.proto, packet.tvb(at, seen_bytes), "Record " .. number)
    generated(part, "ropewalk.record", number)
    if not record_layouts[kind] then complain(packet, part, "field", "Nobody knows records of this kind") end
    local values = record_header(packet, part, at, kind, header) or {}
    local text = record_text(kind, values, bytes)
    local addresses = values["ropewalk.hello.address_bytes"] or 0
    if here > header then
        payload(packet, part, "ropewalk.record.payload", at + header, here - header)
        if addresses > 0 and addresses <= here - header and at + header + addresses <= packet.captured_end then
            part:add(fields["ropewalk.hello.addresses"], packet.tvb(at + header, addresses))
        end
    end
    part:append_text(": " .. text)
    return text, here, header + bytes
end

-- What one side of a link has sent: where records began that go on in other packets.
local function records_of(packet, tag)
    local key = string.format("%s>%s %x", packet.source, packet.destination, tag)
    seen.records[key] = seen.records[key] or {}
    return seen.records[key]
end

-- The end, or a middle, of a record that began in another packet: its text, and its bytes here. Only the text where
-- the record's beginning was not seen.
local function continued(packet, tree, at, left, number, offset, begun)
    if packet.first then packet.facts.begun = begun[number] end
    local known = packet.facts.begun
    local bytes = known and math.min(left, known.total - offset) or left
    if bytes < 0 then
        complain(packet, tree, "bad_length", "Beyond the end of the record")
        return nil
    end
    local seen_bytes = math.max(0, math.min(bytes, packet.captured_end - at))
    local part = tree:add(packet.proto, packet.tvb(at, seen_bytes), "Record " .. number)
    generated(part, "ropewalk.record", number)
    payload(packet, part, "ropewalk.record.payload", at, bytes)
    local text = string.format("%d B at %d of record %d", bytes, offset, number)
    if known then
        generated(part, "ropewalk.record.begins", known.frame)
        text = string.format("%d B at %d of %d of %s", bytes, offset, known.total, known.text)
    end
    part:append_text(": " .. text)
    return text, known and bytes or nil
end

-- All records of a packet; what they are.
local function records(packet, tree, at, ends, tag, number, offset)
    local begun, texts = records_of(packet, tag), {}
    while at < ends do
        local text, here, total
        if offset > 0 then
            text, here = continued(packet, tree, at, ends - at, number, offset, begun)
            total = here and packet.facts.begun.total
        else
            text, here, total = record(packet, tree, at, ends - at, number)
            if total and here < total and packet.first then
                begun[number] = { total = total, frame = packet.pinfo.number, text = text }
            end
        end
        texts[#texts + 1] = text
        if not here then break end
        at, number, offset = at + here, (number + 1) % 0x100000000, 0
    end
    return #texts > 0 and table.concat(texts, ", ") or "nothing"
end

---------------------------------------------------------------------------------------------------------------
-- Ropewalk's packets

local HEAD_BYTES, CHECKSUM_BYTES = 14, 4
local PACKET_VERSION = 6
local PACKET_ACK = { { "ropewalk.ack.next", 4 }, { "ropewalk.ack.delay", 3 },
    { "ropewalk.ack.again", 1 }, { "ropewalk.ack.early", 8 } }
local PACKET_HANDLE = { "ropewalk.handle", 8 }

local packet_layouts = {
    head = { { "ropewalk.index", 2 }, { "ropewalk.type", 1 }, { "ropewalk.to", 1 }, { "ropewalk.from", 1 },
        { "ropewalk.flags", 1 }, { "ropewalk.bytes", 2 }, { 2 }, { "ropewalk.tag", 4 } },
    call = { { "ropewalk.call.version", 2 }, { "ropewalk.call.packet_bytes", 2 }, { "ropewalk.call.tag", 4 },
        { "ropewalk.call.id", 8 }, { "ropewalk.call.refusal", 1 }, { 7 } },
    stream = { { "ropewalk.stream.number", 4 }, { "ropewalk.stream.record", 4 }, { "ropewalk.stream.offset", 4 },
        { "ropewalk.stream.secret", 4 } },
    pull = { PACKET_HANDLE, KEY_SLOT, KEY_SECRET, OFFSET, { "ropewalk.total_bytes", 8 },
        { "ropewalk.pull.piece_bytes", 2 }, { "ropewalk.pull.offered", 1 }, { 1 }, { "ropewalk.pull.first", 4 },
        { "ropewalk.pull.pieces", 8 } },
    piece = { PACKET_HANDLE, { "ropewalk.piece.number", 4 }, { 4 } },
    refusal = { PACKET_HANDLE, { "ropewalk.refusal.reason", 1 }, { 7 } },
    gone = { { "ropewalk.gone.tag", 4 }, { "ropewalk.gone.secret", 4 } },
}

-- Bytes of a kind's layout; and whether more may follow.
local body_bytes = {
    [0xc0] = { 24, true }, [0xc1] = { 24, true }, [0xc2] = { 32, true }, [0xc3] = { 16, false }, [0xc4] = { 56, true },
    [0xc5] = { 16, true }, [0xc6] = { 16, false }, [0xc7] = { 8, false },
}

-- A station's name for a link: the number that the link has in this capture. Both its names lead to it once an answer
-- was seen.
local function link_named(station, tag)
    return seen.links[station .. " " .. tag]
end

local function name_link(station, tag, link)
    if not link then
        link = seen.link_count
        seen.link_count = link + 1
    end
    seen.links[station .. " " .. tag] = link
    return link
end

local bodies = {}

local function call(packet, tree, at, ends, head, is_answer)
    local it
    it, at = read(packet, tree, packet_layouts.call, at)
    if not it then return name_of(types, head.kind) end
    local tag, id = it["ropewalk.call.tag"], "call " .. it["ropewalk.call.id"]:tohex()
    if it["ropewalk.call.version"] ~= PACKET_VERSION then complain(packet, tree, "version") end
    if packet.first then
        local other = link_named(packet.source, tag)
        if is_answer then other = link_named(packet.destination, head.tag) or other end
        packet.facts.link = name_link(packet.source, tag, other)
        if is_answer then name_link(packet.destination, head.tag, packet.facts.link) end
    end
    if is_answer then answers(packet, tree, id) else asks(packet, tree, id) end
    if ends > at then payload(packet, tree, "ropewalk.padding", at, ends - at) end
    local text = string.format("%s %d → %d: link 0x%x, packets of %d B", name_of(types, head.kind), head.from, head.to,
        tag, it["ropewalk.call.packet_bytes"])
    if it["ropewalk.call.refusal"] ~= 0 then
        complain(packet, tree, "refused", "The link is refused")
        text = text .. ", refused"
    end
    return text
end

bodies[0xc0] = function(packet, tree, at, ends, head) return call(packet, tree, at, ends, head, false) end
bodies[0xc1] = function(packet, tree, at, ends, head) return call(packet, tree, at, ends, head, true) end

-- What is said about the other direction; the first packet that is missing there, and those beyond it.
local function acknowledgement(packet, tree, at)
    local it
    it, at = read(packet, tree, PACKET_ACK, at)
    if not it then return nil end
    local next = it["ropewalk.ack.next"]
    local early, count = ranges(packet.tvb(at - 8, 8), next + 1)
    return at, string.format("%.0f%s", next, count > 0 and " and " .. early or "")
end

bodies[0xc2] = function(packet, tree, at, ends, head)
    local ack, it
    at, ack = acknowledgement(packet, tree, at)
    if not at then return "Stream" end
    it, at = read(packet, tree, packet_layouts.stream, at)
    if not it then return "Stream" end
    local number = it["ropewalk.stream.number"]
    local again = numbered(packet, tree, string.format("%x", head.tag), number, 0, 0x100000000)
    local text = records(packet, tree, at, ends, head.tag, it["ropewalk.stream.record"], it["ropewalk.stream.offset"])
    return string.format("Stream %.0f ack %s%s: %s", number, ack, again, text)
end

bodies[0xc3] = function(packet, tree, at)
    local _, ack = acknowledgement(packet, tree, at)
    return "Ack " .. (ack or "")
end

local function pull(packet, tree, at)
    local it
    it, at = read(packet, tree, packet_layouts.pull, at)
    if not it then return at, "Pull" end
    local handle, bytes = it["ropewalk.handle"]:tohex(), it["ropewalk.pull.piece_bytes"]
    asks(packet, tree, "pull " .. handle)
    if bytes == 0 then complain(packet, tree, "field", "Pieces have no length") end
    local pieces = ranges(packet.tvb(at - 8, 8), it["ropewalk.pull.first"])
    tree:append_text(", pieces " .. pieces)
    return at, string.format("Pull 0x%s: pieces %s, %d B each, of %s B%s", handle:gsub("^0+(.)", "%1"), pieces, bytes,
        tostring(it["ropewalk.total_bytes"]), it["ropewalk.pull.offered"] == 1 and " that were offered" or "")
end

-- Several may be in a packet.
bodies[0xc4] = function(packet, tree, at, ends)
    local first, text, others
    at, first = pull(packet, tree, at)
    others = 0
    while at and at < ends and others < 8 do
        at, text = pull(packet, tree, at)
        others = others + 1
    end
    return others > 0 and string.format("%s, and %d more", first, others) or first
end

bodies[0xc5] = function(packet, tree, at, ends)
    local it
    it, at = read(packet, tree, packet_layouts.piece, at)
    if not it then return "Piece" end
    local handle = it["ropewalk.handle"]:tohex()
    answers(packet, tree, "pull " .. handle)
    payload(packet, tree, "ropewalk.piece.data", at, ends - at)
    return string.format("Piece %d of 0x%s: %d B", it["ropewalk.piece.number"], handle:gsub("^0+(.)", "%1"), ends - at)
end

bodies[0xc6] = function(packet, tree, at)
    local it = read(packet, tree, packet_layouts.refusal, at)
    if not it then return "Refusal" end
    local handle = it["ropewalk.handle"]:tohex()
    answers(packet, tree, "pull " .. handle)
    complain(packet, tree, "refused", "A pull is refused")
    return string.format("Refusal of 0x%s: %s", handle:gsub("^0+(.)", "%1"),
        name_of(pull_reasons, it["ropewalk.refusal.reason"]))
end

bodies[0xc7] = function(packet, tree, at)
    local it = read(packet, tree, packet_layouts.gone, at)
    return it and string.format("Gone: link 0x%x is unknown", it["ropewalk.gone.tag"]) or "Gone"
end

-- The end of a packet: checks it where all of it is here. Nothing is learned from one that is wrong.
local function checksum(packet, tree, at)
    if not has(packet, tree, at, CHECKSUM_BYTES) then return end
    local stored = packet.tvb(at, CHECKSUM_BYTES):le_uint()
    tree:add_le(fields["ropewalk.checksum"], packet.tvb(at, CHECKSUM_BYTES))
    local status = 2
    if ropewalk.prefs.check then status = crc32c(packet.tvb:raw(packet.at, at - packet.at)) == stored and 1 or 0 end
    generated(tree, "ropewalk.checksum.status", status)
    if status == 0 then
        complain(packet, tree, "checksum.bad")
        packet.first = false
    end
end

-- A packet of so many bytes on the wire, from `at` on; its text.
local function one(tvb, pinfo, root, at, bytes)
    local here = math.max(0, math.min(bytes, tvb:captured_len() - at))
    local tree = root:add(ropewalk, tvb(at, here))
    local packet = packet_of(ropewalk, tvb, pinfo, tree, at, bytes, true)
    local head, body = read(packet, tree, packet_layouts.head, at)
    if not head then return "Too short" end
    head = { kind = head["ropewalk.type"], to = head["ropewalk.to"], from = head["ropewalk.from"],
        tag = head["ropewalk.tag"], bytes = head["ropewalk.bytes"] }
    local known, ends = body_bytes[head.kind], at + head.bytes - CHECKSUM_BYTES
    local room = ends - body
    if head.bytes > bytes or room < known[1] or (room > known[1] and not known[2]) then
        complain(packet, tree, "bad_length")
        return name_of(types, head.kind) .. ": bad length"
    end
    packet.wire_end = at + head.bytes
    packet.captured_end = math.min(packet.wire_end, packet.captured_end)
    checksum(packet, tree, ends)
    local text = bodies[head.kind](packet, tree, body, ends, head)
    if packet.first and not packet.facts.link and head.tag ~= 0 then
        local link = link_named(packet.destination, head.tag)
        packet.facts.link = link or name_link(packet.destination, head.tag)
    end
    if packet.facts.link then generated(tree, "ropewalk.link", packet.facts.link) end
    local padding = bytes - head.bytes
    if padding > 0 and at + head.bytes < tvb:captured_len() then
        local some = math.min(padding, tvb:captured_len() - at - head.bytes)
        tree:add(fields["ropewalk.padding"], tvb(at + head.bytes, some))
    end
    tree:append_text(": " .. text)
    return text
end

-- In a frame there is one packet, and perhaps padding.
function ropewalk.dissector(tvb, pinfo, root)
    pinfo.cols.protocol = "Ropewalk"
    pinfo.cols.info = one(tvb, pinfo, root, 0, tvb:reported_len())
    return tvb:reported_len()
end

-- Whether a packet of ours begins there; its bytes.
local function begins(tvb, at)
    if tvb:captured_len() < at + HEAD_BYTES then return nil end
    local bytes, known = tvb(at + 6, 2):le_uint(), body_bytes[tvb(at + 2, 1):uint()]
    local zeroes = tvb(at, 2):uint() == 0 and tvb(at + 5, 1):uint() == 0 and tvb(at + 8, 2):uint() == 0
    local fits = known and bytes >= HEAD_BYTES + known[1] + CHECKSUM_BYTES and at + bytes <= tvb:reported_len()
    return zeroes and fits and bytes or nil
end

-- A capture on the sending host shows several packets as one datagram, before the kernel or the card cuts it.
local datagrams = Proto("ropewalk_udp", "Ropewalk packets behind UDP")

function datagrams.dissector(tvb, pinfo, root)
    local at, texts = 0, {}
    while at < tvb:reported_len() do
        local bytes = begins(tvb, at)
        if not bytes then break end
        texts[#texts + 1] = one(tvb, pinfo, root, at, bytes)
        at = at + bytes
    end
    if #texts == 0 then return 0 end
    pinfo.cols.protocol = "Ropewalk"
    pinfo.cols.info = table.concat(texts, " | ")
    return at
end

datagrams:register_heuristic("udp", function(tvb, pinfo, root)
    if not begins(tvb, 0) then return false end
    pinfo.conversation = datagrams
    datagrams.dissector(tvb, pinfo, root)
    return true
end)

---------------------------------------------------------------------------------------------------------------
-- Where packets are found

local ethertype

local function settle()
    local wanted = mxoe.prefs.ethertype
    if wanted == ethertype then return end
    local list = DissectorTable.get("ethertype")
    if ethertype then list:remove(ethertype, mxoe) end
    list:add(wanted, mxoe)
    ethertype = wanted
end

mxoe.prefs_changed = settle
mxoe.init = forget
forget()
settle()
DissectorTable.get("udp.port"):add_for_decode_as(datagrams)
