#include "common/telemetry/http_page.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/file_util.h"
#include "common/testing/bare_client.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

HttpPaths TwoPaths() {
  return {{"/metrics", [] { return HttpReply{.body = "eps_doors 3\n"}; }},
          {"/readyz", [] { return HttpReply{.code = 503, .body = "starting\n"}; }}};
}

std::unique_ptr<HttpPage> StartPage(absl::Duration timeout = absl::Seconds(5)) {
  auto page = HttpPage::Start({.timeout = timeout, .paths = TwoPaths()});
  EXPECT_OK(page.status());
  return *std::move(page);
}

FileDescriptor Connect(const HttpPage& page) { return ConnectTo(page.address()); }

std::string Ask(const HttpPage& page, const std::string& request) { return AskHttp(page.address(), request); }

TEST(HttpPageTest, ServesItsPaths) {
  const auto page = StartPage();
  EXPECT_THAT(page->address(), StartsWith("127.0.0.1:"));
  const std::string reply = Ask(*page, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(reply, HasSubstr("Content-Length: 12\r\n"));
  EXPECT_THAT(reply, HasSubstr("\r\n\r\neps_doors 3\n"));
  EXPECT_THAT(Ask(*page, "GET /metrics?x=1 HTTP/1.0\r\n\r\n"), HasSubstr("eps_doors 3"));
  EXPECT_THAT(Ask(*page, "GET /readyz HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
}

// RFC 9112, 3.2.2.
TEST(HttpPageTest, ATargetMayBeAbsolute) {
  const auto page = StartPage();
  for (const std::string& target :
       {absl::StrCat("http://", page->address(), "/metrics"), absl::StrCat("HTTP://localhost:1/metrics?x=/y")}) {
    EXPECT_THAT(Ask(*page, absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: localhost\r\n\r\n")),
                HasSubstr("eps_doors 3"))
        << target;
  }
  for (const char* target : {"http://localhost", "http://localhost?/metrics", "http://localhost/x"}) {
    EXPECT_THAT(Ask(*page, absl::StrCat("GET ", target, " HTTP/1.1\r\n\r\n")), StartsWith("HTTP/1.1 404 ")) << target;
  }
  for (const char* target : {"http://", "http:///metrics", "http:/metrics", "https://localhost/metrics", "metrics",
                             "http://me@localhost/metrics", "http://localhost:1@evil.example/metrics"}) {
    EXPECT_THAT(Ask(*page, absl::StrCat("GET ", target, " HTTP/1.1\r\n\r\n")), StartsWith("HTTP/1.1 400 ")) << target;
  }
  for (const char* target : {"http://evil.example/metrics", "http://evil.example:80/metrics"}) {
    EXPECT_THAT(Ask(*page, absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: localhost\r\n\r\n")),
                StartsWith("HTTP/1.1 421 "))
        << target;
  }
  EXPECT_THAT(Ask(*page, "GET http://localhost/metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
              StartsWith("HTTP/1.1 421 "));
}

TEST(HttpPageTest, HeadHasNoBody) {
  const std::string reply = Ask(*StartPage(), "HEAD /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(reply, HasSubstr("Content-Length: 12\r\n"));
  EXPECT_THAT(reply, Not(HasSubstr("eps_doors")));
}

TEST(HttpPageTest, RefusesEverythingElse) {
  const auto page = StartPage();
  EXPECT_THAT(Ask(*page, "GET /etc/passwd HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask(*page, "GET /metrics/../x HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask(*page, "POST /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(Ask(*page, "GET /metrics\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask(*page, "GET  /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask(*page, "GET /metrics HTTP/2\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask(*page, std::string("\x16\x03\x01\0\r\n\r\n", 8)), StartsWith("HTTP/1.1 400 "));
}

TEST(HttpPageTest, OnLoopbackItAnswersToNamesOfLoopbackAlone) {
  const auto page = StartPage();
  for (const std::string host :
       {page->address().c_str(), "127.0.0.1", "127.9.9.9:80", "LocalHost", "localhost:1", "[::1]:9", "[::1]", ""}) {
    EXPECT_THAT(Ask(*page, absl::StrCat("GET /metrics HTTP/1.1\r\nhOST:  ", host, " \r\n\r\n")),
                HasSubstr("eps_doors 3"))
        << host;
  }
  for (const std::string host : {"evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example",
                                 "10.0.0.1:80", "[2001:db8::1]:80", ":", "["}) {
    const std::string reply = Ask(*page, absl::StrCat("GET /metrics HTTP/1.1\r\nHost: ", host, "\r\n\r\n"));
    EXPECT_THAT(reply, StartsWith("HTTP/1.1 421 ")) << host;
    EXPECT_THAT(reply, Not(HasSubstr("eps_doors"))) << host;
  }
  for (const char* head :
       {"Host: localhost\r\nHost: evil.example", "Host : evil.example", "X: y\nHost: evil.example"}) {
    EXPECT_THAT(Ask(*page, absl::StrCat("GET /metrics HTTP/1.1\r\n", head, "\r\n\r\n")), StartsWith("HTTP/1.1 421 "))
        << head;
  }
  EXPECT_THAT(Ask(*page, "HEAD /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 421 "), Not(HasSubstr("machine"))));
  // Where others than this machine may ask, it has names that it does not know.
  EXPECT_THAT(AnswerHttp("GET /metrics HTTP/1.1\r\nHost: host7.example\r\n\r\n", TwoPaths()), HasSubstr("eps_doors 3"));
}

TEST(HttpPageTest, ABrowserIsToLoadNothingFromElsewhere) {
  EXPECT_THAT(
      Ask(*StartPage(), "GET /metrics HTTP/1.1\r\n\r\n"),
      AllOf(HasSubstr("\r\nContent-Security-Policy: default-src 'none'; script-src 'self';"),
            HasSubstr("; connect-src 'self';"), HasSubstr("; frame-ancestors 'none'\r\n"), Not(HasSubstr("unsafe-"))));
}

TEST(HttpPageTest, ARequestInPiecesIsOne) {
  const auto page = StartPage();
  const FileDescriptor fd = Connect(*page);
  for (const char* piece : {"GET /met", "rics HTTP/1.1\r", "\nHost: localhost\r\n\r", "\n"}) {
    SendText(fd, piece);
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_THAT(ReadUntilClosed(fd), HasSubstr("eps_doors 3"));
}

TEST(HttpPageTest, ARequestThatIsTooLongIsRefused) {
  const auto page = StartPage();
  const FileDescriptor fd = Connect(*page);
  SendText(fd, absl::StrCat("GET /metrics HTTP/1.1\r\nX: ", std::string(HttpPage::kMaxRequestBytes, 'x')));
  EXPECT_THAT(ReadUntilClosed(fd), StartsWith("HTTP/1.1 431 "));
}

TEST(HttpPageTest, ASilentPeerIsEndedAndHoldsUpNobody) {
  const auto page = StartPage(absl::Seconds(2));  // for the good request, too
  const FileDescriptor silent = Connect(*page);
  const FileDescriptor half = Connect(*page);
  SendText(half, "GET /metr");
  EXPECT_THAT(Ask(*page, "GET /metrics HTTP/1.1\r\n\r\n"), HasSubstr("eps_doors 3"));
  EXPECT_EQ(ReadUntilClosed(silent), "");  // returns when the page hangs up
  EXPECT_EQ(ReadUntilClosed(half), "");
}

TEST(HttpPageTest, MoreConnectionsThanItTakesEndTheOldest) {
  const auto page = StartPage(absl::Minutes(10));
  std::vector<FileDescriptor> open;
  for (size_t i = 0; i < 3 * HttpPage::kMaxConnections; ++i) open.push_back(Connect(*page));
  EXPECT_THAT(Ask(*page, "GET /metrics HTTP/1.1\r\n\r\n"), HasSubstr("eps_doors 3"));
  EXPECT_EQ(ReadUntilClosed(open.front()), "");
}

TEST(HttpPageTest, EndsWithConnectionsOpen) {
  auto page = StartPage();
  const FileDescriptor open = Connect(*page);
  page.reset();
  EXPECT_EQ(ReadUntilClosed(open), "");
}

TEST(HttpPageTest, ATakenPortIsAnError) {
  const auto page = StartPage();
  const auto second = HttpPage::Start({.listen = page->address(), .paths = TwoPaths()});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr(page->address()));
}

TEST(HttpPageTest, ListensOnIpv6Loopback) {
  const auto page = HttpPage::Start({.listen = "[::1]:0", .paths = TwoPaths()});
  if (absl::IsUnavailable(page.status())) GTEST_SKIP() << page.status();
  EXPECT_THAT((*page)->address(), StartsWith("[::1]:"));
}

TEST(HttpPageTest, OnlyLoopbackUnlessToldOtherwise) {
  for (const char* address : {"127.0.0.1:0", "127.1.2.3:9", "localhost:80", "[::1]:0", "::1:0"}) {
    EXPECT_OK(CheckPageAddress(address, false)) << address;
  }
  for (const char* address : {"0.0.0.0:0", "10.0.0.1:9", "[::]:0", "[2001:db8::1]:1"}) {
    EXPECT_THAT(CheckPageAddress(address, false).message(), HasSubstr("--metrics-any-address")) << address;
    EXPECT_OK(CheckPageAddress(address, true)) << address;
  }
  for (const char* address : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1",
                              "example.org:80", ":80", "[127.0.0.1:80"}) {
    EXPECT_EQ(CheckPageAddress(address, true).code(), absl::StatusCode::kInvalidArgument) << address;
  }
}

}  // namespace
}  // namespace eps
