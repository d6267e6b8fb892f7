// Records waku_vectors.json from the JavaScript implementation of SDS.
//
//   npm install @waku/sds@0.0.8
//   node …/tests/unit/channels/recorder/record.mjs > waku_vectors.json
//
// Run it where `node_modules` is. The package exports neither its repair manager nor its default filter, so they are
// imported by their place in it. Time and randomness are replaced: the output is the same on every run.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { deflateSync } from "node:zlib";

const modules = join(process.cwd(), "node_modules");
const dist = join(modules, "@waku/sds/dist");
const load = (path) => import(pathToFileURL(path));
const version = (name) => JSON.parse(readFileSync(join(modules, name, "package.json"))).version;

let now = 1_700_000_000_000;
let seed = 1;
Date.now = () => now;
Math.random = () => {
  seed = (seed * 48271) % 2147483647; // MINSTD
  return seed / 2147483647;
};

const { Message, MessageChannel, MessageChannelEvent } = await load(join(dist, "index.js"));
const { DefaultBloomFilter } = await load(join(dist, "bloom_filter/bloom.js"));
const { RepairManager } = await load(join(dist, "message_channel/repair/repair.js"));
const { hashN } = await load(join(dist, "nim_hashn/nim_hashn.mjs"));

const hex = (bytes) => Buffer.from(bytes).toString("hex");
const bytes = (text) => new Uint8Array(Buffer.from(text, "hex"));
const sha256 = (data) => createHash("sha256").update(data).digest("hex");
const packed = (data) => deflateSync(data, { level: 9 }).toString("base64");
const range = (count) => Array.from({ length: count }, (_, i) => `m${i}`);
const pick = (count) => Math.floor(Math.random() * count);

// --- messages -----------------------------------------------------------------------------------------------------

const entryOf = ({ messageId, retrievalHint, senderId }) => ({
  messageId,
  ...(retrievalHint === undefined ? {} : { retrievalHint: bytes(retrievalHint) }),
  ...(senderId === undefined ? {} : { senderId })
});

const messageOf = (m) =>
  new Message(
    m.messageId,
    m.channelId,
    m.senderId,
    (m.causalHistory ?? []).map(entryOf),
    m.lamport === undefined ? undefined : BigInt(m.lamport),
    m.bloom === undefined ? undefined : bytes(m.bloom),
    m.content === undefined ? undefined : bytes(m.content),
    (m.repairRequest ?? []).map(entryOf)
  );

const plainEntry = ({ messageId, retrievalHint, senderId }) => ({
  messageId,
  ...(retrievalHint === undefined ? {} : { retrievalHint: hex(retrievalHint) }),
  ...(senderId === undefined ? {} : { senderId })
});

const plain = (m) => ({
  messageId: m.messageId,
  channelId: m.channelId,
  senderId: m.senderId,
  ...(m.lamportTimestamp === undefined ? {} : { lamport: m.lamportTimestamp.toString() }),
  ...(m.content === undefined ? {} : { content: hex(m.content) }),
  ...(m.bloomFilter === undefined ? {} : { bloomLen: m.bloomFilter.length }),
  causalHistory: m.causalHistory.map(plainEntry),
  repairRequest: m.repairRequest.map(plainEntry)
});

const base = { messageId: "m2", channelId: "ch", senderId: "alice" };
const messages = {
  content: { ...base, lamport: "300", content: "ff" },
  all_fields: {
    ...base,
    lamport: "300",
    content: "ff",
    bloom: "00",
    causalHistory: [{ messageId: "m1", retrievalHint: "aabb", senderId: "zed" }],
    repairRequest: [{ messageId: "mx", senderId: "bob" }]
  },
  sync: { ...base, lamport: "1700000000000", bloom: "0102030405060708", causalHistory: [{ messageId: "m1" }] },
  sync_of_nothing: { ...base, lamport: "1" },
  ephemeral: { ...base, content: "010203" },
  empty_strings: { messageId: "", channelId: "", senderId: "", lamport: "0", content: "00" },
  entry_of_nothing: { ...base, lamport: "7", content: "01", causalHistory: [{ messageId: "" }] },
  many_entries: {
    ...base,
    lamport: "7",
    content: "01",
    causalHistory: range(20).map((messageId) => ({ messageId, retrievalHint: "0011", senderId: "bob" })),
    repairRequest: range(3).map((messageId) => ({ messageId, senderId: "carol" }))
  },
  non_ascii: {
    messageId: "é-\u4e2d-\u{1f600}",
    channelId: "канал",
    senderId: "zoë",
    lamport: "7",
    content: "00",
    causalHistory: [{ messageId: "→★", retrievalHint: "00", senderId: "\u{1d11e}" }]
  },
  lamport_2_53: { ...base, lamport: "9007199254740993", content: "01" },
  lamport_2_63: { ...base, lamport: "9223372036854775808", content: "01" },
  lamport_max: { ...base, lamport: "18446744073709551615", content: "01" },
  long_content: { ...base, lamport: "128", content: "5a".repeat(300) },
  long_id: { ...base, messageId: "i".repeat(200), lamport: "128", content: "01" }
};

const recordMessages = () =>
  Object.entries(messages).map(([name, msg]) => ({ name, msg, hex: hex(messageOf(msg).encode()) }));

// --- decoding -----------------------------------------------------------------------------------------------------

const head = "0a0161120162" + "1a0163"; // sender a, id b, channel c
const odd = {
  empty: "",
  no_lamport_no_content: head,
  empty_content_no_lamport: head + "a20100",
  empty_content: head + "5001" + "a20100",
  only_lamport: "5001",
  only_content: "a2010141",
  empty_bloom: head + "5001" + "6200",
  empty_hint_and_sender: head + "5001" + "5a070a016812001a00",
  entry_without_id: head + "5001" + "5a00",
  unknown_fields: head + "5001" + "f00105" + "fa01026162" + "fd0101020304" + "f9010102030405060708",
  reversed_order: "a2010141" + "5001" + "1a0163" + "120162" + "0a0161",
  repeated_scalar: head + "5001" + "5002" + "0a0178",
  repeated_content_last_empty: head + "a2010141" + "a20100" + "5001",
  lamport_zero: head + "5000" + "a2010141",
  lamport_padded: head + "50818000" + "a2010141",
  invalid_utf8: "0a02fffe" + "1202c328" + "1a03eda080" + "5001",
  truncated_length: head + "5001" + "a2010541",
  truncated_tag: head + "5001" + "a2",
  truncated_fixed: head + "5001" + "fd01010203",
  varint_of_eleven: head + "508080808080808080808001" + "a2010141",
  wire_type_six: head + "5001" + "f601",
  wire_type_seven: head + "5001" + "f701",
  end_group: head + "5001" + "f401",
  group: head + "5001" + "f301f401",
  field_zero: head + "5001" + "0000",
  entry_longer_than_message: head + "5001" + "5a7f0a0168",
  entry_overruns_its_end: head + "5001" + "5a030a0568" + "69696969",
  varint_id: "0801" + "120162" + "1a0163" + "5001" + "a2010141",
  varint_id_long: head + "1005" + "5001",
  lamport_as_bytes: head + "520101" + "a2010141",
  truncated_lamport: head + "50808080",
  nim_minimal: "0a017810012201632a0101",
  nim_empty: "0a00100022002a003200",
  nim_content: "0a026d311005220263682a0301020332003a05616c696365",
  nim_all_fields: "0a026d3210ac021a0d0a026d311202aabb1a037a6564220263682a01ff3201003a05616c6963656a090a026d781a03626f62",
  nim_big_lamport: "0a026d3310808080808080808040220ad0bad0b0d0bdd0b0d0bb2a010132030a0b0c3a0173"
};

const kindOf = (m) => m.constructor.name.replace("Message", "").toLowerCase();
const recordDecode = () =>
  Object.entries(odd).map(([name, wire]) => {
    const message = Message.decode(bytes(wire));
    return { name, hex: wire, result: message === undefined ? null : { kind: kindOf(message), ...plain(message) } };
  });

// --- filters ------------------------------------------------------------------------------------------------------

const filterOf = (capacity, errorRate, items) => {
  const filter = new DefaultBloomFilter({ capacity, errorRate });
  items.forEach((item) => filter.insert(item));
  return filter;
};

const unicode = ["é", "zoë", "канал", "\u4e2d\u6587", "\u{1f600}", "a\u{1f600}b", "\u00ff", "\u0100", "→★→★→★→★"];
const hexId = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const filters = [
  [3, 0.001, []],
  [3, 0.001, ["m1", "m2"]],
  [10, 0.01, ["a", "b"]],
  [10, 0.01, unicode],
  [64, 0.5, range(10)],
  [100, 0.05, range(40)],
  [10000, 0.001, []],
  [10000, 0.001, ["msg1"]],
  [10000, 0.001, [hexId, ...unicode]],
  [10000, 0.001, "m0..m9999"],
  [1000, 0.000001, "m0..m999"]
];
const itemsOf = (items) => (typeof items === "string" ? range(Number(items.slice(5)) + 1) : items);

const recordFilters = () =>
  filters.map(([capacity, errorRate, items]) => {
    const filter = filterOf(capacity, errorRate, itemsOf(items));
    const data = filter.toBytes();
    const body = data.length <= 256 ? { bytes: hex(data) } : { len: data.length, sha256: sha256(data) };
    return { capacity, errorRate, items, k: filter.kHashes, mBits: filter.totalBits, ...body };
  });

const recordLookups = () => {
  const filter = filterOf(10, 0.01, ["a", "b", "é", "\u4e2d\u6587"]);
  // The last but one shares its high surrogate with another code point, which is all that is hashed.
  const looked = ["a", "b", "c", "d", "é", "e", "\u4e2d\u6587", "\u4e2d", "-\u6587", ...range(40)];
  const faces = filterOf(10, 0.01, ["\u{1f600}"]);
  const alike = ["\u{1f600}", "\u{1f601}", "\u{1f300}", "\u{1d11e}", "\ud83d"];
  return [
    { capacity: 10, errorRate: 0.01, bytes: hex(filter.toBytes()), items: looked, hits: looked.map((i) => filter.lookup(i)) },
    { capacity: 10, errorRate: 0.01, bytes: hex(faces.toBytes()), items: alike, hits: alike.map((i) => faces.lookup(i)) }
  ];
};

// What becomes of a received filter that has not our own size: accepted and what it then says, or refused.
const recordReceived = () => {
  const own = { capacity: 10, errorRate: 0.01 };
  const good = filterOf(10, 0.01, ["a", "b"]).toBytes();
  const cases = { same: good, longer: [...good, 255, 255, 255, 255, 255, 255, 255, 255], longer_by_one: [...good, 1], shorter: good.slice(0, 8), shorter_by_one: good.slice(0, 15), empty: [] };
  return Object.entries(cases).map(([name, data]) => {
    try {
      const filter = DefaultBloomFilter.fromBytes(new Uint8Array(data), own);
      return { name, ...own, bytes: hex(data), hits: ["a", "b", "c", "d"].map((i) => filter.lookup(i)) };
    } catch (error) {
      return { name, ...own, bytes: hex(data), hits: null };
    }
  });
};

const recordHashes = () => {
  const strings = ["", "a", "ab", "abc", "abcd", "abcde", "msg1", hexId, "x".repeat(257), ...unicode];
  return strings.flatMap((s) =>
    [45, 150000].map((mBits) => ({ s, mBits, k: 10, idx: Array.from({ length: 10 }, (_, n) => hashN(s, n, mBits)) }))
  );
};

// Ids that are not UTF-8: what the package reads them as decides where they are in a filter, and when they are asked for.
const recordOddIds = () => {
  const ids = ["ff", "fffe", "c328", "c3", "e4b8", "f09f98", "f8808080", "f0808080", "eda080", "eda0bdedb880", "edb880eda0bd", "6180", "c080", "e28692ff", "f09f9880", "efbfbd", "f7bfbfbf"];
  return ids.map((id) => {
    const length = (id.length / 2).toString(16).padStart(2, "0");
    const { messageId } = Message.decode(bytes("12" + length + id + "5001"));
    const repair = new RepairManager(messageId);
    return {
      hex: id,
      units: Array.from({ length: messageId.length }, (_, i) => messageId.charCodeAt(i)),
      bloom: hex(filterOf(10, 0.01, [messageId]).toBytes()),
      tReq: repair.calculateTReq(messageId, 0),
      tResp: repair.calculateTResp("alice", messageId, 0)
    };
  });
};

// --- repair -------------------------------------------------------------------------------------------------------

const recordTimes = () => {
  const named = [
    ["bob", "alice", "msg1", 30000, 120000],
    ["alice", "alice", "msg1", 30000, 120000],
    ["bob", "", "msg1", 30000, 120000],
    ["", "alice", "", 30000, 120000],
    ["zoë", "канал", "\u{1f600}", 30000, 120000],
    ["bob", "alice", "msg1", 0, 1],
    ["bob", "alice", "msg1", 1000, 300000]
  ];
  const random = Array.from({ length: 30 }, () => [`p${pick(100)}`, `s${pick(100)}`, `m${pick(1000)}`, 30000, 120000]);
  return [...named, ...random].map(([p, s, m, tMin, tMax]) => {
    const repair = new RepairManager(p, { tMin, tMax });
    return { p, s, m, tMin, tMax, tReq: repair.calculateTReq(m, 0), tResp: repair.calculateTResp(s, m, 0) };
  });
};

const recordGroups = () => {
  const named = [["bob", "alice", "msg1", 1], ["bob", "", "msg1", 1], ["bob", "", "msg1", 4], ["bob", "alice", "msg1", 0], ["alice", "alice", "msg1", 7]];
  const random = Array.from({ length: 30 }, () => [`p${pick(100)}`, `s${pick(100)}`, `m${pick(1000)}`, 2 + pick(4)]);
  return [...named, ...random].map(([p, s, m, n]) => ({ p, s, m, n, member: new RepairManager(p, { numResponseGroups: n }).isInResponseGroup(s, m) }));
};

// --- a conversation -----------------------------------------------------------------------------------------------

const detailOf = (detail) => {
  if (Array.isArray(detail)) return detail.map(detailOf);
  if (detail instanceof Message || detail?.channelId !== undefined) return detail.messageId;
  if (detail instanceof Uint8Array) return hex(detail);
  if (detail instanceof Error) return detail.message;
  if (detail !== null && typeof detail === "object")
    return Object.fromEntries(Object.entries(detail).filter(([, v]) => v !== undefined).map(([k, v]) => [k, detailOf(v)]));
  return detail;
};

const recordConversation = async () => {
  now = 1_700_000_000_000;
  const options = { causalHistorySize: 2, possibleAcksThreshold: 2, repairConfig: { tMin: 30000, tMax: 120000 } };
  const steps = [];
  let events = [];
  const channels = {};
  for (const who of ["alice", "bob"]) {
    channels[who] = new MessageChannel("talk", who, options);
    const names = [...Object.values(MessageChannelEvent), "RepairRequestQueued", "RepairResponseQueued"];
    for (const name of names) channels[who].addEventListener(name, (e) => events.push({ event: name, detail: detailOf(e.detail) }));
  }

  const step = (who, op, more) => {
    steps.push({ step: steps.length + 1, at: now, who, op, ...more, events });
    events = [];
  };
  const wire = (message) => {
    const data = message.encode();
    return { message: plain(message), sha256: sha256(data), deflated: packed(data) };
  };
  const hintOf = (message) => bytes(sha256(message.messageId)).slice(0, 4);
  const after = (ms) => (now += ms);

  const send = async (who, text) => {
    after(10);
    let sent;
    channels[who].pushOutgoingMessage(new TextEncoder().encode(text), async (message) => {
      sent = wire(message);
      sent.data = message.encode();
      sent.hint = hintOf(message);
      return { success: true, retrievalHint: sent.hint };
    });
    await channels[who].processTasks();
    const { data, hint, ...recorded } = sent;
    step(who, "send", { content: hex(new TextEncoder().encode(text)), hint: hex(hint), ...recorded });
    return data;
  };
  const receive = async (who, data) => {
    after(5);
    const message = Message.decode(data);
    channels[who].pushIncomingMessage(message, hintOf(message));
    await channels[who].processTasks();
    step(who, "receive", { hint: hex(hintOf(message)), sha256: sha256(data) });
  };
  const sync = async (who) => {
    after(10);
    let data;
    const sent = await channels[who].pushOutgoingSyncMessage(async (message) => {
      data = message.encode();
      return true;
    });
    step(who, "sync", sent ? { sent, ...wire(Message.decode(data)) } : { sent });
    return data;
  };
  const ephemeral = async (who, text) => {
    after(10);
    let data;
    await channels[who].pushOutgoingEphemeralMessage(new TextEncoder().encode(text), async (message) => {
      data = message.encode();
      return true;
    });
    await channels[who].processTasks();
    step(who, "ephemeral", { content: hex(new TextEncoder().encode(text)), ...wire(Message.decode(data)) });
    return data;
  };
  const sweepIncoming = (who) => {
    const missing = channels[who].sweepIncomingBuffer();
    step(who, "sweepIncoming", { missing: missing.map(plainEntry) });
  };
  const sweepOutgoing = (who) => {
    const { unacknowledged, possiblyAcknowledged } = channels[who].sweepOutgoingBuffer();
    const ids = (list) => list.map((m) => m.messageId);
    step(who, "sweepOutgoing", { unacknowledged: ids(unacknowledged), possiblyAcknowledged: ids(possiblyAcknowledged) });
  };
  const sweepRepair = async (who) => {
    const due = [];
    await channels[who].sweepRepairIncomingBuffer(async (message) => due.push(message.encode()));
    step(who, "sweepRepair", { responses: due.map((data) => ({ sha256: sha256(data), deflated: packed(data) })) });
    return due;
  };

  await sync("alice"); // nothing to say: not sent
  await receive("bob", await send("alice", "a1"));
  await receive("alice", await send("bob", "b1")); // acknowledges a1 by causal history
  sweepOutgoing("alice");
  const early = await send("alice", "a2");
  await receive("bob", early);
  await receive("bob", early); // a duplicate
  await receive("bob", await send("alice", "a3"));
  await receive("bob", await send("alice", "a4"));
  await receive("alice", await send("bob", "b2")); // a3 and a4 by causal history, a2 by its filter: possibly
  sweepOutgoing("alice");
  await receive("alice", await sync("bob")); // a2 by a second filter
  sweepOutgoing("alice");
  await receive("bob", await ephemeral("alice", "typing"));
  await send("alice", "a5"); // lost
  await receive("bob", await send("alice", "a6")); // names a5
  sweepIncoming("bob");
  after(120_000);
  await receive("alice", await send("bob", "b3")); // asks for a5
  const responses = await sweepRepair("alice");
  for (const data of responses) await receive("bob", data);
  sweepIncoming("bob"); // a6 at last
  await receive("alice", await sync("bob"));
  sweepOutgoing("alice");
  await receive("alice", await send("alice", "own")); // its own echo
  return { channel: "talk", participants: ["alice", "bob"], start: 1_700_000_000_000, options, steps };
};

const recorded = {
  about: `Recorded from @waku/sds ${version("@waku/sds")} with @waku/proto ${version("@waku/proto")} and protons-runtime ${version("protons-runtime")}. Data only. Format: see README.md.`,
  messages: recordMessages(),
  decode: recordDecode(),
  filters: recordFilters(),
  lookups: recordLookups(),
  received: recordReceived(),
  hashN: recordHashes(),
  odd_ids: recordOddIds(),
  times: recordTimes(),
  groups: recordGroups(),
  conversation: await recordConversation()
};
const lines = Object.entries(recorded).map(([key, value]) => {
  if (Array.isArray(value)) return `${JSON.stringify(key)}: [\n${value.map((v) => JSON.stringify(v)).join(",\n")}\n]`;
  if (value.steps === undefined) return `${JSON.stringify(key)}: ${JSON.stringify(value)}`;
  const { steps, ...rest } = value;
  const opening = JSON.stringify(rest).slice(0, -1);
  return `${JSON.stringify(key)}: ${opening}, "steps": [\n${steps.map((v) => JSON.stringify(v)).join(",\n")}\n]}`;
});
process.stdout.write(`{\n${lines.join(",\n")}\n}\n`);
