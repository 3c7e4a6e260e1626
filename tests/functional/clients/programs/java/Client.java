import java.net.ProxySelector;
import java.net.URI;
import java.net.InetSocketAddress;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpRequest.BodyPublishers;

/**
 * One request with java.net.http: `Client METHOD URL`. Java reads no proxy variables; given HTTPS_PROXY, this program does
 * what Java programs do that honour it. Prints the status and the body, or the error.
 */
class Client {
  public static void main(String[] args) throws Exception {
    HttpClient.Builder builder = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1);
    String proxy = System.getenv("HTTPS_PROXY");
    if (proxy != null) {
      URI at = URI.create(proxy);
      builder.proxy(ProxySelector.of(new InetSocketAddress(at.getHost(), at.getPort())));
    }
    HttpRequest request = HttpRequest.newBuilder(URI.create(args[1])).method(args[0], BodyPublishers.noBody()).build();
    try {
      HttpResponse<String> response = builder.build().send(request, HttpResponse.BodyHandlers.ofString());
      System.out.printf("%d%n%s", response.statusCode(), response.body());
    } catch (java.io.IOException error) {
      System.err.println(error);
      System.exit(1);
    }
  }
}
