// versitygw, an object store with S3's API, has a module of its own as promtool has.
module gnsqd/tests/peers/versitygw

go 1.25.0

require github.com/versity/versitygw v1.8.0
