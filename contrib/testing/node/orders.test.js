// A message through gnsqd in a container; or through a daemon that runs, if NSQD_TCP_ADDRESS has its host:port.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { after, afterEach, before, test } from "node:test";
import nsq from "nsqjs";

let container;
let nsqd = process.env.NSQD_TCP_ADDRESS;
let http = process.env.NSQD_HTTP_ADDRESS;

before(async () => {
  if (nsqd) return;
  const { GenericContainer, Wait } = await import("testcontainers");
  container = await new GenericContainer("gnsqd")
    .withCommand(["gnsqd", "--dev"])
    .withExposedPorts(4150, 4151)
    .withWaitStrategy(Wait.forHttp("/ping", 4151))
    .start();
  nsqd = `${container.getHost()}:${container.getMappedPort(4150)}`;
  http = `${container.getHost()}:${container.getMappedPort(4151)}`;
});

afterEach((context) => {
  if (!context.passed) {
    spawnSync("curl", ["-sS", "--max-time", "5", `http://${http}/queues`], { stdio: "inherit" });
  }
});

after(() => container?.stop());

test("order arrives", { timeout: 30_000 }, async (context) => {
  const [host, port] = nsqd.split(":");
  const writer = new nsq.Writer(host, Number(port));
  const reader = new nsq.Reader("orders", "archive", { nsqdTCPAddresses: [nsqd] });
  context.after(() => {
    reader.close();
    writer.close();
  });
  const received = new Promise((resolve, reject) => {
    reader.on("message", (message) => {
      message.finish();
      resolve(message.body.toString());
    });
    for (const client of [reader, writer]) client.on("error", reject);
  });
  writer.on("ready", () => writer.publish("orders", "an order"));
  writer.connect();
  reader.connect();
  assert.equal(await received, "an order");
});
