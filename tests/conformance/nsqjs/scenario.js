// The scenario's driver for nsqjs (see ../scenario.py for what it reads and prints).

const fs = require('fs')
const nsq = require('nsqjs')

const plan = JSON.parse(fs.readFileSync(process.argv[2]))
const [host, port] = plan.address.split(':')
const requeued = new Set()
const finished = Object.fromEntries(Object.keys(plan.readers).map((channel) => [channel, new Set()]))

const now = () => Date.now() / 1000
const report = (...event) => process.stdout.write(JSON.stringify(event) + '\n')
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

async function until(condition) {
  while (!condition()) await sleep(10)
}

function startReader(channel, name) {
  const reader = new nsq.Reader(channel === 'slow' ? plan.slow_topic : plan.topic, channel, {
    nsqdTCPAddresses: [plan.address],
    lookupdPollInterval: 1, // so often it looks after broken connections, too
    maxInFlight: 50,
    maxBackoffDuration: 4,
  })
  reader.on('error', () => {}) // a refused connection, while the daemon is away
  reader.on('message', (message) => handle(channel, name, message))
  reader.connect()
  return reader
}

function handle(channel, reader, message) {
  const body = message.body.toString()
  report('received', now(), reader, message.id, body, message.attempts)
  if (channel === 'slow') {
    hold(channel, reader, message)
  } else if (body in plan.requeue && !requeued.has(`${channel} ${body}`)) {
    requeued.add(`${channel} ${body}`)
    report('requeued', now(), reader, message.id, body, plan.requeue[body])
    message.requeue(plan.requeue[body], plan.backoff.includes(body))
  } else {
    finish(channel, reader, message)
  }
}

async function hold(channel, reader, message) {
  const end = now() + plan.slow_for
  while (now() < end) {
    await sleep(plan.touch_every * 1000)
    report('touched', now(), reader, message.id, message.body.toString())
    message.touch()
  }
  finish(channel, reader, message)
}

function finish(channel, reader, message) {
  const body = message.body.toString()
  report('finished', now(), reader, message.id, body)
  message.finish()
  finished[channel].add(body)
}

// nsqjs connects a writer once; a writer for the time after a broken connection is a new one.
let writer
let ready = false

function startWriter() {
  writer = new nsq.Writer(host, Number(port))
  writer.on('ready', () => (ready = true))
  writer.on('error', () => {})
  writer.on('closed', () => {
    ready = false
    setTimeout(startWriter, 100)
  })
  writer.connect()
}

function send(topic, unit) {
  return new Promise((resolve, reject) => {
    const answered = (error) => (error ? reject(error) : resolve())
    if (unit.verb === 'dpub') writer.deferPublish(topic, unit.bodies, unit.delay, answered)
    else writer.publish(topic, unit.bodies, answered)
  })
}

async function publish(topic, unit) {
  for (;;) {
    await until(() => ready)
    for (const body of unit.bodies) report('sent', now(), body, unit.delay)
    try {
      return await send(topic, unit)
    } catch (error) {
      await sleep(50)
    }
  }
}

async function publishAll(units) {
  for (let start = 0; start < units.length; start += 20) {
    await Promise.all(units.slice(start, start + 20).map((unit) => publish(plan.topic, unit)))
  }
}

async function main() {
  const readers = Object.entries(plan.readers).flatMap(([channel, names]) =>
    names.map((name) => startReader(channel, name))
  )
  startWriter()
  await publish(plan.slow_topic, {verb: 'pub', bodies: [plan.slow_body], delay: 0})
  await publishAll(plan.acts[0])
  await until(() => Object.entries(plan.first_act).every(([channel, count]) => finished[channel].size === count))
  await publishAll(plan.acts[1])
  report('restart')
  await publishAll(plan.acts[2])
  await until(() => ['shared', 'copy'].every((channel) => finished[channel].size === plan.count))
  report('done')
  process.stdin.resume()
  process.stdin.on('end', () => {
    readers.forEach((reader) => reader.close())
    process.exit(0)
  })
}

main()
