#include "eps_server/telemetry/daemon_page.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/testing/bare_client.h"
#include "common/testing/status_matchers.h"
#include "eps_server/telemetry/daemon_view.h"
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

absl::StatusOr<std::unique_ptr<DaemonPage>> StartPage() {
  return DaemonPage::Start({.status_json = [](const DaemonView& view) -> absl::StatusOr<std::string> {
    if (view.phase == "failed") return absl::InternalError("no words");
    return "\"" + view.phase + "\"\n";
  }});
}

TEST(DaemonPageTest, ShowsTheRunToPeople) {
  ASSERT_OK_AND_ASSIGN(const auto page, StartPage());
  const std::string index = Get(*page, "/");
  EXPECT_THAT(index, HasSubstr("Content-Type: text/html; charset=utf-8\r\n"));
  EXPECT_THAT(index, HasSubstr("\r\n\r\n<!"));
  EXPECT_THAT(Get(*page, "/page.css"), HasSubstr("Content-Type: text/css; charset=utf-8\r\n"));
  EXPECT_THAT(Get(*page, "/view.js"), HasSubstr("Content-Type: text/javascript; charset=utf-8\r\n"));
  page->Show([] { return In("training"); });
  EXPECT_THAT(Get(*page, "/status.json"), HasSubstr("Content-Type: application/json\r\n"));
  EXPECT_THAT(Get(*page, "/status.json"), HasSubstr("\r\n\r\n\"training\"\n"));
  page->Show([] { return In("failed"); });
  EXPECT_THAT(Get(*page, "/status.json"), StartsWith("HTTP/1.1 500 "));
}

TEST(DaemonPageTest, SaysWhatTheRunIsAt) {
  ASSERT_OK_AND_ASSIGN(const auto page, StartPage());
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
  ASSERT_OK_AND_ASSIGN(const auto page, StartPage());
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
