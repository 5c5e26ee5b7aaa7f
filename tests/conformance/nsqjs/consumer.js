// Prints every message of a topic, one a line, by nsqjs: `consumer.js topic channel nsqlookupd...`

const nsq = require('nsqjs')

const [topic, channel, ...lookupds] = process.argv.slice(2)
const reader = new nsq.Reader(topic, channel, {
  lookupdHTTPAddresses: lookupds,
  lookupdPollInterval: 1,
  maxInFlight: 50,
})
reader.on('error', () => {}) // a refused connection, while a daemon is away
reader.on('message', (message) => {
  process.stdout.write(message.body.toString() + '\n')
  message.finish()
})
reader.connect()
