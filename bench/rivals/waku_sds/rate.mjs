// Wrap and unwrap in @waku/sds: two channels in one process, each message encoded, decoded and delivered.
// node rate.mjs SECONDS -> {"rows": pairs, "seconds": …}
import { Message, MessageChannel } from "@waku/sds";

const seconds = Number(process.argv[2]);
const alice = new MessageChannel("room", "alice");
const bob = new MessageChannel("room", "bob");
let number = 0;

async function pair(from, to) {
  const content = new Uint8Array(100);
  new DataView(content.buffer).setUint32(0, number++); // its ids are hashes of content: equal content is dropped
  let data;
  await from.pushOutgoingMessage(content, async (message) => {
    data = message.encode();
    return { success: true };
  });
  await from.processTasks();
  to.pushIncomingMessage(Message.decode(data));
  await to.processTasks();
}

const started = performance.now();
let rows = 0;
while (performance.now() - started < seconds * 1000) {
  await pair(alice, bob);
  await pair(bob, alice);
  rows += 2;
}
console.log(JSON.stringify({ rows, seconds: (performance.now() - started) / 1000 }));
process.exit(0);
