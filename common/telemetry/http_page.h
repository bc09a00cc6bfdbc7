#ifndef EPS_COMMON_TELEMETRY_HTTP_PAGE_H_
#define EPS_COMMON_TELEMETRY_HTTP_PAGE_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace eps {

struct HttpReply {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

// What is served: a path without its query, and who makes its reply. Called by the page's thread, one at a time.
using HttpPaths = std::map<std::string, std::function<HttpReply()>>;

// Under which names a page is asked for, by a request's Host.
enum class HttpHosts {
  kAny,
  // Numbers of loopback, localhost, or nothing: a site of others whose name leads here, in a browser of this machine,
  // would read the page as its own (DNS rebinding).
  kLoopback,
};

// A small HTTP/1.1 page for people, metrics and health: GET and HEAD of a few paths, one request a connection, and nothing else.
// Everything is bounded: a request's head by kMaxRequestBytes, a connection's life by Options::timeout, connections by
// kMaxConnections (a new one ends the oldest). A slow or silent peer holds up nobody else. A browser is told to load
// nothing but what the page itself serves, and to run none of it inline. One that listens on loopback answers to
// HttpHosts::kLoopback alone.
//
// Threads: one of its own, which runs the handlers.
class HttpPage {
 public:
  static constexpr size_t kMaxRequestBytes = 8192;
  static constexpr size_t kMaxConnections = 32;

  struct Options {
    std::string listen = "127.0.0.1:0";  // HOST:PORT, numbers; port 0: the system chooses
    // The page has no TLS and no password: what others than this host may read is the caller's decision.
    bool any_address = false;
    absl::Duration timeout = absl::Seconds(5);
    HttpPaths paths;
  };
  // Errors: CheckPageAddress's · FAILED_PRECONDITION naming the address: it is taken, or not this host's · UNAVAILABLE the
  //         system's
  static absl::StatusOr<std::unique_ptr<HttpPage>> Start(Options options);
  // Ends all connections; no handler runs after it.
  virtual ~HttpPage() = default;

  // HOST:PORT, with the port that the system chose.
  virtual const std::string& address() const = 0;
};

// Errors: INVALID_ARGUMENT with the text: not HOST:PORT with a numeric host or localhost, or not loopback though
//         `any_address` is not set
absl::Status CheckPageAddress(const std::string& listen, bool any_address);

// The whole reply to a request's head, which ends with an empty line.
std::string AnswerHttp(absl::string_view head, const HttpPaths& paths, HttpHosts hosts = HttpHosts::kAny);

}  // namespace eps

#endif  // EPS_COMMON_TELEMETRY_HTTP_PAGE_H_
