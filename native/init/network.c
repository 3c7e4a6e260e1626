/* Inside the network namespace: routes, the nft batch and the sockets that capture the agent's connections. */
#include "network.h"

#include <arpa/inet.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <sys/socket.h>

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

/* Sends prepared netlink bytes and reads acknowledgements until `wanted` arrived; the first refusal ends it. */
static int netlink_send(int fd, struct bytes message, uint32_t wanted) {
  struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
  uint8_t buffer[16384];
  if (sendto(fd, message.data, message.size, 0, (struct sockaddr *)&kernel, sizeof kernel) < 0) return -1;
  while (wanted > 0) {
    ssize_t n = recv(fd, buffer, sizeof buffer, 0);
    if (n < 0) return -1;
    for (struct nlmsghdr *h = (struct nlmsghdr *)buffer; NLMSG_OK(h, (size_t)n); h = NLMSG_NEXT(h, n)) {
      if (h->nlmsg_type != NLMSG_ERROR) continue;
      const struct nlmsgerr *answer = NLMSG_DATA(h);
      if (answer->error != 0) {
        errno = -answer->error;
        return -1;
      }
      wanted--;
    }
  }
  return 0;
}

static int open_netlink(int protocol) {
  struct timeval limit = {.tv_sec = 2};
  int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
  if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return fd;
}

static int set_routes(void) {
  int fd = open_netlink(NETLINK_ROUTE);
  if (fd < 0) return failed("netlink-route", "");
  for (uint32_t i = 0; i < box.plan.routes; i++) {
    const struct route *r = &box.plan.route[i];
    char which[32];
    snprintf(which, sizeof which, "message %u", i);
    if (netlink_send(fd, r->message, 1) < 0 && !r->optional) return failed("route", which);
  }
  close(fd);
  return 0;
}

static int set_nft(void) {
  if (box.plan.nft.size == 0) return 0;
  int fd = open_netlink(NETLINK_NETFILTER);
  if (fd < 0) return failed("netlink-netfilter", "");
  if (netlink_send(fd, box.plan.nft, box.plan.nft_acks) < 0) return failed("nft", "");
  close(fd);
  return 0;
}

static int add_socket(uint8_t kind, uint8_t family, uint16_t port) {
  const int one = 1, backlog = 4096;
  int fd = socket(family == 4 ? AF_INET : AF_INET6, (kind == SOCKET_DNS_UDP ? SOCK_DGRAM : SOCK_STREAM) | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  int result;
  if (family == 4) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    /* DNS answers on 127.0.0.1 only; capture takes every address. */
    a.sin_addr.s_addr = htonl(kind == SOCKET_CAPTURE ? INADDR_ANY : INADDR_LOOPBACK);
    /* Without IP_TRANSPARENT the kernel drops answers from a foreign local address. */
    result = kind == SOCKET_CAPTURE ? setsockopt(fd, SOL_IP, 19 /* IP_TRANSPARENT */, &one, sizeof one) : 0;
    if (result == 0) result = bind(fd, (struct sockaddr *)&a, sizeof a);
  } else {
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_any};
    result = setsockopt(fd, SOL_IPV6, 26 /* IPV6_V6ONLY */, &one, sizeof one);
    if (result == 0) result = bind(fd, (struct sockaddr *)&a, sizeof a);
  }
  if (result == 0 && kind != SOCKET_DNS_UDP) result = listen(fd, backlog);
  if (result < 0) {
    close_kept(fd);
    return -1;
  }
  box.listener[box.listeners++] = (struct listener){fd, kind, family, port};
  return 0;
}

static int add_capture(uint16_t port) {
  char which[32];
  snprintf(which, sizeof which, "port %u", port);
  if (add_socket(SOCKET_CAPTURE, 4, port) < 0) return failed("listen-ipv4", which);
  if (add_socket(SOCKET_CAPTURE, 6, port) == 0) box.ipv6 = true;
  /* A kernel or namespace without IPv6: nothing can be sent over it either. */
  else if (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL) return failed("listen-ipv6", which);
  return 0;
}

int build_network(void) {
  if (set_routes() < 0) return -1;
  if (box.plan.mode == CAPTURE_PORTS) {
    for (uint32_t i = 0; i < box.plan.ports; i++)
      if (add_capture(box.plan.port[i]) < 0) return -1;
  } else if (add_capture(PROXY_PORT) < 0) return -1;
  if (add_socket(SOCKET_DNS_UDP, 4, 53) < 0) return failed("listen-dns", "udp 53");
  if (add_socket(SOCKET_DNS_TCP, 4, 53) < 0) return failed("listen-dns", "tcp 53");
  if (set_nft() < 0) return -1;
  socklen_t size = sizeof box.netns_cookie;
  if (getsockopt(box.listener[0].fd, SOL_SOCKET, SO_NETNS_COOKIE, &box.netns_cookie, &size) < 0) return failed("netns-cookie", "");
  return 0;
}
