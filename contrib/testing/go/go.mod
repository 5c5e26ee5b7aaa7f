module example.com/orders

go 1.26.0

require (
	github.com/nsqio/go-nsq v1.1.0
	github.com/testcontainers/testcontainers-go v0.45.0
)
