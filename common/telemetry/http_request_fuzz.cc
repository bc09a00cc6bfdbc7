#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "common/telemetry/http_page.h"

// The head of a request, as it came. Whatever it is, the reply is one of HTTP, and only a known path is served.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const absl::string_view head(reinterpret_cast<const char*>(data), num_bytes);
  bool served = false;
  const eps::HttpPaths paths = {{"/metrics", [&served] {
                                   served = true;
                                   return eps::HttpReply{.body = "x\n"};
                                 }}};
  const bool any_host = num_bytes % 2 == 1;
  const std::string reply = eps::AnswerHttp(head, paths, any_host ? eps::HttpHosts::kAny : eps::HttpHosts::kLoopback);
  if (!absl::StartsWith(reply, "HTTP/1.1 ") || !absl::StrContains(reply, "\r\n\r\n")) abort();
  if (served != absl::StartsWith(reply, "HTTP/1.1 200 ")) abort();
  if (!served) return 0;
  absl::string_view target = head.substr(head.find(' ') + 1);
  if (absl::StartsWithIgnoreCase(target, "http://")) {
    const absl::string_view behind = target.substr(7);
    target = behind.substr(behind.find('/'));
  }
  if (!absl::StartsWith(head, "GET ") && !absl::StartsWith(head, "HEAD ")) abort();
  if (!absl::StartsWith(target, "/metrics")) abort();
  return 0;
}
