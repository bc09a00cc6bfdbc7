#include "eps_server/telemetry/daemon_page.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

#include "common/base/file_util.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Get(const DaemonPage& page, const std::string& path) {
  FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port =
      htons(static_cast<uint16_t>(std::atoi(page.address().substr(page.address().rfind(':') + 1).c_str())));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const std::string request = "GET " + path + " HTTP/1.1\r\n\r\n";
  EXPECT_EQ(send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
  std::string reply;
  char bytes[4096];
  for (ssize_t count; (count = recv(fd.get(), bytes, sizeof(bytes), 0)) > 0;) reply.append(bytes, count);
  return reply;
}

DaemonView In(const std::string& phase) {
  DaemonView view;
  view.phase = phase;
  return view;
}

TEST(DaemonPageTest, SaysWhatTheRunIsAt) {
  ASSERT_OK_AND_ASSIGN(const auto page, DaemonPage::Start("127.0.0.1:0", false));
  EXPECT_THAT(Get(*page, "/readyz"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(Get(*page, "/targets"), HasSubstr("\r\n\r\n[]\n"));
  page->Show([] { return In("training"); });
  EXPECT_THAT(Get(*page, "/readyz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Get(*page, "/targets"), HasSubstr("Content-Type: application/json\r\n"));
  page->Show([] { return In("failed"); });
  EXPECT_THAT(Get(*page, "/healthz"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(Get(*page, "/metrics"), HasSubstr("eps_run_phase{phase=\"failed\"} 1\n"));
}

TEST(DaemonPageTest, WhatWasShownBeforeIsNotAskedAnyMore) {
  ASSERT_OK_AND_ASSIGN(const auto page, DaemonPage::Start("127.0.0.1:0", false));
  std::atomic<bool> asked = false, shown = false, asked_after = false;
  page->Show([&] {
    asked = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    asked_after = shown.load();
    return In("training");
  });
  std::thread reader([&] { Get(*page, "/healthz"); });
  while (!asked) std::this_thread::yield();
  page->Show([] { return In("finished"); });
  shown = true;
  reader.join();
  EXPECT_FALSE(asked_after);
  EXPECT_THAT(Get(*page, "/healthz"), HasSubstr("finished"));
}

}  // namespace
}  // namespace eps::server
