#include "common/telemetry/http_page.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/file_util.h"
#include "common/base/host.h"
#include "common/base/listen_address.h"
#include "common/base/monotonic_clock.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

absl::string_view ReasonOf(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 421:
      return "Misdirected Request";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    default:
      return "Error";
  }
}

constexpr absl::string_view kSecurityHeaders =
    "Cache-Control: no-store\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n";

std::string Serialize(const HttpReply& reply, bool with_body) {
  std::string text =
      absl::StrCat("HTTP/1.1 ", reply.code, " ", ReasonOf(reply.code), "\r\nContent-Type: ", reply.content_type,
                   "\r\nContent-Length: ", reply.body.size(), "\r\n", kSecurityHeaders,
                   reply.code == 405 ? "Allow: GET, HEAD\r\n" : "", "Connection: close\r\n\r\n");
  if (with_body) text += reply.body;
  return text;
}

// `host_header`: as behind "Host:", with a port or without one; "" asks for nobody.
bool IsOfLoopback(absl::string_view host_header) {
  const std::string host = absl::AsciiStrToLower(host_header);
  return host.empty() || IsLoopbackHost(HostOf(host.back() == ']' ? host + ":" : host));
}

// Whether each Host of a request's head, of which there should be one, is of HttpHosts::kLoopback.
bool AsksForLoopback(absl::string_view head) {
  for (const absl::string_view line : absl::StrSplit(head, '\n')) {
    const size_t colon = line.find(':');
    if (colon == absl::string_view::npos) continue;
    const absl::string_view name = absl::StripAsciiWhitespace(line.substr(0, colon));
    const absl::string_view value = absl::StripAsciiWhitespace(line.substr(colon + 1));
    if (absl::EqualsIgnoreCase(name, "host") && !IsOfLoopback(value)) return false;
  }
  return true;
}

// One connection, from its first byte to its last.
struct Connection {
  FileDescriptor fd;
  absl::Duration deadline;  // by SteadyNow
  std::string received;
  std::string reply;  // empty: the request is not whole yet
  size_t sent_bytes = 0;
};

class HttpPageImpl final : public HttpPage {
 public:
  HttpPageImpl(Options options, const ListenAddress& address, FileDescriptor listener, FileDescriptor stop)
      : options_(std::move(options)),
        address_(address.ToString()),
        hosts_(address.is_loopback() ? HttpHosts::kLoopback : HttpHosts::kAny),
        listener_(std::move(listener)),
        stop_(std::move(stop)),
        thread_([this] { Loop(); }) {}

  ~HttpPageImpl() override {
    const uint64_t one = 1;
    while (write(stop_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
    }
    thread_.join();
  }

  const std::string& address() const override { return address_; }

 private:
  void Loop() {
    while (true) {
      std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const Connection& connection : connections_) {
        polled.push_back({connection.fd.get(), static_cast<short>(connection.reply.empty() ? POLLIN : POLLOUT), 0});
      }
      poll(polled.data(), polled.size(), TimeoutMillis());
      if (polled[0].revents != 0) return;
      size_t i = 2;
      for (auto it = connections_.begin(); it != connections_.end(); ++i) {
        const bool moved = polled[i].revents == 0 || Advance(*it);
        it = moved && SteadyNow() < it->deadline ? std::next(it) : connections_.erase(it);
      }
      if (polled[1].revents != 0) Accept();
    }
  }

  // Until the next deadline.
  int TimeoutMillis() const {
    if (connections_.empty()) return -1;
    absl::Duration next = absl::InfiniteDuration();
    for (const Connection& connection : connections_) next = std::min(next, connection.deadline);
    return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(next - SteadyNow()) + 1, 0, 60000));
  }

  void Accept() {
    FileDescriptor fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.is_open()) {
      // Out of descriptors, as a rule: the connection stays in the queue, and must not be asked for without a pause.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) absl::SleepFor(kPause);
      return;
    }
    if (connections_.size() >= kMaxConnections) connections_.pop_front();
    Connection& connection = connections_.emplace_back();
    connection.fd = std::move(fd);
    connection.deadline = SteadyNow() + options_.timeout;
  }

  // False: it is done, or broken.
  bool Advance(Connection& connection) {
    if (connection.reply.empty() && !Receive(connection)) return false;
    return connection.reply.empty() || Send(connection);
  }

  bool Receive(Connection& connection) {
    char bytes[2048];
    const ssize_t count = recv(connection.fd.get(), bytes, sizeof(bytes), 0);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) return false;
    connection.received.append(bytes, static_cast<size_t>(count));
    const size_t end = connection.received.find("\r\n\r\n");
    if (end != std::string::npos && end + 4 <= kMaxRequestBytes) {
      connection.reply = AnswerHttp(absl::string_view(connection.received).substr(0, end + 4), options_.paths, hosts_);
    } else if (connection.received.size() >= kMaxRequestBytes) {
      connection.reply = Serialize({.code = 431, .body = "the request is too long\n"}, true);
    }
    return true;
  }

  // True while there is more to send.
  bool Send(Connection& connection) {
    const absl::string_view left = absl::string_view(connection.reply).substr(connection.sent_bytes);
    const ssize_t count = send(connection.fd.get(), left.data(), left.size(), MSG_NOSIGNAL);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    connection.sent_bytes += static_cast<size_t>(count);
    return connection.sent_bytes < connection.reply.size();
  }

  static constexpr absl::Duration kPause = absl::Milliseconds(50);

  // Fixed after construction.
  const Options options_;
  const std::string address_;
  const HttpHosts hosts_;
  const FileDescriptor listener_;
  const FileDescriptor stop_;  // an eventfd: readable once the page is to end
  // Of the page's thread; the oldest first.
  std::list<Connection> connections_;
  std::thread thread_;  // last: it uses all of the above
};

// Of a request's target as it is asked for: "/metrics", or, as of a proxy, "http://127.0.0.1:9090/metrics", of which the
// authority counts beside Host's.
struct Target {
  absl::string_view path;  // "": the target is neither
  absl::string_view authority;
};

Target ParseTarget(absl::string_view target) {
  constexpr absl::string_view kScheme = "http://";
  if (absl::StartsWith(target, "/")) return {.path = target};
  if (!absl::StartsWithIgnoreCase(target, kScheme)) return {};
  target.remove_prefix(kScheme.size());
  const size_t end = std::min(target.find_first_of("/?"), target.size());
  const absl::string_view authority = target.substr(0, end), path = target.substr(end);
  if (authority.empty() || absl::StrContains(authority, '@')) return {};  // nobody is asked, or with a password
  return {.path = absl::StartsWith(path, "/") ? path : "/", .authority = authority};
}

}  // namespace

std::string AnswerHttp(absl::string_view head, const HttpPaths& paths, HttpHosts hosts) {
  const std::vector<absl::string_view> words = absl::StrSplit(head.substr(0, head.find("\r\n")), ' ');
  const Target target = words.size() == 3 ? ParseTarget(words[1]) : Target();
  if (target.path.empty() || words[0].empty() || (words[2] != "HTTP/1.1" && words[2] != "HTTP/1.0")) {
    return Serialize({.code = 400, .body = "not an HTTP/1.1 request\n"}, true);
  }
  const bool is_head = words[0] == "HEAD";
  if (words[0] != "GET" && !is_head) return Serialize({.code = 405, .body = "only GET and HEAD\n"}, true);
  if (hosts == HttpHosts::kLoopback && !(IsOfLoopback(target.authority) && AsksForLoopback(head))) {
    return Serialize({.code = 421, .body = "this page is for its own machine: ask for 127.0.0.1 or localhost\n"},
                     !is_head);
  }
  const auto found = paths.find(std::string(target.path.substr(0, target.path.find('?'))));
  if (found == paths.end()) return Serialize({.code = 404, .body = "no such page\n"}, !is_head);
  return Serialize(found->second(), !is_head);
}

absl::Status CheckPageAddress(const std::string& listen, bool any_address) {
  EPS_ASSIGN_OR_RETURN(const ListenAddress address, ParseListenAddress(listen));
  if (any_address || address.is_loopback()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(listen,
                   ": not a loopback address (127.0.0.1, [::1], localhost), and the page has neither TLS nor a "
                   "password: --metrics-any-address serves it all the same"));
}

absl::StatusOr<std::unique_ptr<HttpPage>> HttpPage::Start(Options options) {
  EPS_RETURN_IF_ERROR(CheckPageAddress(options.listen, options.any_address));
  EPS_ASSIGN_OR_RETURN(const ListenAddress wanted, ParseListenAddress(options.listen));
  const SocketAddress address = ToSocketAddress(wanted);
  FileDescriptor listener(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  FileDescriptor stop(eventfd(0, EFD_CLOEXEC));
  if (!listener.is_open() || !stop.is_open()) {
    return absl::UnavailableError(absl::StrCat("no socket for a page: ", std::strerror(errno)));
  }
  const int on = 1;  // connections of a page that just ended do not count
  if (setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(listener.get(), address.get(), address.num_bytes) != 0 || listen(listener.get(), SOMAXCONN) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("cannot listen on ", options.listen, ": ", std::strerror(errno)));
  }
  EPS_ASSIGN_OR_RETURN(const ListenAddress bound, BoundAddress(listener.get()));
  return std::make_unique<HttpPageImpl>(std::move(options), bound, std::move(listener), std::move(stop));
}

}  // namespace eps
