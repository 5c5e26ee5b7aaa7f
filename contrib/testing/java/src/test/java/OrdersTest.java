import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;

import com.sproutsocial.nsq.Client;
import com.sproutsocial.nsq.DirectSubscriber;
import com.sproutsocial.nsq.MessageDataHandler;
import com.sproutsocial.nsq.Publisher;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.AfterTestExecutionCallback;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.testcontainers.containers.GenericContainer;
import org.testcontainers.containers.wait.strategy.Wait;

/** A message through gnsqd in a container; or through a daemon that runs, if NSQD_TCP_ADDRESS has its host:port. */
class OrdersTest {
    private static GenericContainer<?> container;
    private static String nsqd = System.getenv("NSQD_TCP_ADDRESS");
    private static String http = System.getenv("NSQD_HTTP_ADDRESS");

    @RegisterExtension
    static final AfterTestExecutionCallback SHOW_QUEUES = context -> {
        if (context.getExecutionException().isPresent()) {
            String[] command = {"curl", "-sS", "--max-time", "5", "http://" + http + "/queues"};
            var curl = new ProcessBuilder(command).redirectErrorStream(true).start();
            System.err.println(new String(curl.getInputStream().readAllBytes(), UTF_8));
        }
    };

    @BeforeAll
    static void start() {
        if (nsqd != null) {
            return;
        }
        container = new GenericContainer<>("gnsqd")
            .withCommand("gnsqd", "--dev")
            .withExposedPorts(4150, 4151)
            .waitingFor(Wait.forHttp("/ping").forPort(4151));
        container.start();
        nsqd = container.getHost() + ":" + container.getMappedPort(4150);
        http = container.getHost() + ":" + container.getMappedPort(4151);
    }

    @AfterAll
    static void stop() {
        Client.getDefaultClient().stop();
        if (container != null) {
            container.stop();
        }
    }

    @Test
    void orderArrives() throws Exception {
        var received = new LinkedBlockingQueue<String>();
        new Publisher(nsqd).publish("orders", "an order".getBytes(UTF_8));
        MessageDataHandler handler = body -> received.add(new String(body, UTF_8));
        new DirectSubscriber(1, nsqd).subscribe("orders", "archive", handler);
        assertEquals("an order", received.poll(30, TimeUnit.SECONDS));
    }
}
