// A participant that speaks @waku/sds, driven by lines of JSON.
//
//   node peer.mjs DIRECTORY_WITH_NODE_MODULES
//
// A request is {op, at, ...}; `at` is the time in milliseconds, which is the only time there is. The response has the
// result of the operation and `events`, everything that the channel has told since the request before. Bytes are hex.

import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const dist = join(process.argv[2], "node_modules/@waku/sds/dist/index.js");
const { Message, MessageChannel, MessageChannelEvent, isContentMessage, isEphemeralMessage } = await import(
  pathToFileURL(dist)
);

let now = 0;
let seed = 1;
Date.now = () => now;
Math.random = () => {
  seed = (seed * 48271) % 2147483647; // MINSTD
  return seed / 2147483647;
};

const hex = (bytes) => Buffer.from(bytes).toString("hex");
const bytes = (text) => new Uint8Array(Buffer.from(text, "hex"));

const told = {
  [MessageChannelEvent.InMessageDelivered]: (detail) => ["delivered", detail],
  [MessageChannelEvent.OutMessageAcknowledged]: (detail) => ["acknowledged", detail],
  [MessageChannelEvent.OutMessagePossiblyAcknowledged]: (detail) => ["possible", detail.messageId, detail.count],
  [MessageChannelEvent.InMessageMissing]: (detail) => ["missing", ...detail.map((entry) => entry.messageId)],
  [MessageChannelEvent.ErrorTask]: (detail) => ["error", String(detail.error)]
};

let channel;
let events = [];
let sent = [];
const carry = async (message) => {
  sent.push(hex(message.encode()));
  return { success: true };
};

const operations = {
  open({ channelId, senderId, options }) {
    seed = 1;
    channel = new MessageChannel(channelId, senderId, options);
    for (const [name, describe] of Object.entries(told)) {
      channel.addEventListener(name, (event) => events.push(describe(event.detail)));
    }
  },
  async send({ content }) {
    channel.pushOutgoingMessage(bytes(content), carry);
    await channel.processTasks();
  },
  async ephemeral({ content }) {
    await channel.pushOutgoingEphemeralMessage(bytes(content), carry);
    await channel.processTasks();
  },
  async sync() {
    await channel.pushOutgoingSyncMessage(carry);
  },
  async receive({ data }) {
    const message = Message.decode(bytes(data));
    if (message === undefined) return "undecodable";
    const kind = isContentMessage(message) ? "content" : isEphemeralMessage(message) ? "ephemeral" : "sync";
    channel.pushIncomingMessage(message);
    await channel.processTasks();
    return kind;
  },
  sweep() {
    return channel.sweepIncomingBuffer().map((entry) => entry.messageId);
  },
  unacknowledged() {
    return channel.outgoingBuffer.map((message) => message.messageId);
  },
  async repairs() {
    await channel.sweepRepairIncomingBuffer(carry);
  },
  history() {
    return channel.localHistory.slice(0).map((message) => message.messageId);
  }
};

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  now = request.at;
  events = [];
  sent = [];
  const result = (await operations[request.op](request)) ?? null;
  process.stdout.write(JSON.stringify({ result, sent, events }) + "\n");
}
