#include "eps_server/telemetry/daemon_page.h"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "common/testing/bare_client.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Get(const DaemonPage& page, const std::string& path) {
  return AskHttp(page.address(), "GET " + path + " HTTP/1.1\r\n\r\n");
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
