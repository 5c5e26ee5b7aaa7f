// A message through gnsqd in a container; or through a daemon that runs, if NSQD_TCP_ADDRESS has its host:port.
package orders

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/nsqio/go-nsq"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"
)

// nsqd returns the addresses for TCP and HTTP.
func nsqd(t *testing.T) (string, string) {
	if address := os.Getenv("NSQD_TCP_ADDRESS"); address != "" {
		return address, os.Getenv("NSQD_HTTP_ADDRESS")
	}
	container, err := testcontainers.Run(t.Context(), "gnsqd",
		testcontainers.WithCmd("gnsqd", "--dev"),
		testcontainers.WithExposedPorts("4150/tcp", "4151/tcp"),
		testcontainers.WithWaitStrategy(wait.ForHTTP("/ping").WithPort("4151/tcp")))
	testcontainers.CleanupContainer(t, container)
	if err != nil {
		t.Fatal(err)
	}
	address, err := container.PortEndpoint(t.Context(), "4150/tcp", "")
	if err != nil {
		t.Fatal(err)
	}
	http, err := container.PortEndpoint(t.Context(), "4151/tcp", "")
	if err != nil {
		t.Fatal(err)
	}
	return address, http
}

// showQueues is deferred after the clients, so that it is called before they are stopped.
func showQueues(t *testing.T, http string) {
	if t.Failed() {
		queues, err := exec.Command("curl", "-sS", "--max-time", "5", "http://"+http+"/queues").CombinedOutput()
		t.Logf("queues of nsqd: %v\n%s", err, queues)
	}
}

func TestOrderArrives(t *testing.T) {
	address, http := nsqd(t)
	producer, err := nsq.NewProducer(address, nsq.NewConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Stop()
	if err := producer.Publish("orders", []byte("an order")); err != nil {
		t.Fatal(err)
	}
	consumer, err := nsq.NewConsumer("orders", "archive", nsq.NewConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Stop()
	defer showQueues(t, http)
	received := make(chan string, 1)
	consumer.AddHandler(nsq.HandlerFunc(func(message *nsq.Message) error {
		received <- string(message.Body)
		return nil
	}))
	if err := consumer.ConnectToNSQD(address); err != nil {
		t.Fatal(err)
	}
	select {
	case body := <-received:
		if body != "an order" {
			t.Fatalf("received %q", body)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("received nothing")
	}
}
