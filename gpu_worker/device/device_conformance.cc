// Streams, events, copies and the arena. The kernels are in kernel_conformance.cc.

#include "gpu_worker/device/device_conformance.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/ipc/shared_segment.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/device/device.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

constexpr int64_t kArenaBytes = int64_t{64} << 20;

// As the daemon shares it; longer mapped than the device lives.
SharedSegment NewSharedMemory(int64_t num_bytes) {
  return SharedSegment::Create("test", num_bytes, SegmentWriter::kBoth).value();
}

using Clock = std::chrono::steady_clock;

// `attempt` stores how far the moments that it saw are off, of work that sleeps for a pause each time. How late a busy
// machine wakes threads is not ours to say: the longer the pauses, the less it matters.
void ExpectOffByHalfAPauseAtMost(const std::function<void(Clock::duration pause, Clock::duration& off)>& attempt) {
  Clock::duration pause = std::chrono::milliseconds(20), off = pause;
  for (int i = 0; i < 6 && off > pause / 2 && !testing::Test::HasFailure(); ++i) {
    pause *= 2;
    off = {};
    attempt(pause, off);
  }
  EXPECT_LE(off / std::chrono::microseconds(1), pause / std::chrono::microseconds(2)) << "microseconds";
}

std::function<absl::Status()> SleepFor(Clock::duration pause) {
  return [pause] {
    std::this_thread::sleep_for(pause);
    return absl::OkStatus();
  };
}

Clock::duration FromSeconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

void DeviceConformanceTest::SetUp() { ASSERT_OK_AND_ASSIGN(device_, GetParam().make(kArenaBytes)); }
void DeviceConformanceTest::TearDown() { device_.reset(); }

TEST_P(DeviceConformanceTest, PropertiesAreStated) {
  EXPECT_FALSE(device().properties().name.empty());
  EXPECT_FALSE(device().properties().model.empty());
  EXPECT_GE(device().properties().threads, 1);
  EXPECT_EQ(device().properties().compute_dtype, GetParam().sizes.compute_dtype);
  EXPECT_EQ(device().arena_bytes(), kArenaBytes);
  EXPECT_GE(device().outside_bytes(), 0);
}

TEST_P(DeviceConformanceTest, WaitCausesHaveNames) {
  EXPECT_EQ(WaitCauseName(WaitCause::kPull), "pull");
  EXPECT_EQ(WaitCauseName(WaitCause::kStash), "stash");
  EXPECT_EQ(WaitCauseName(WaitCause::kPush), "push");
  EXPECT_EQ(WaitCauseName(WaitCause::kVersion), "version");
  EXPECT_EQ(WaitCauseName(WaitCause::kRoom), "room");
}

TEST_P(DeviceConformanceTest, AddressesAreDistinctAndAligned) {
  ASSERT_OK_AND_ASSIGN(void* first, device().Address({0, 512}));
  ASSERT_OK_AND_ASSIGN(void* second, device().Address({512, 256}));
  EXPECT_EQ(static_cast<char*>(second) - static_cast<char*>(first), 512);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % kArenaAlignBytes, 0u);
}

TEST_P(DeviceConformanceTest, AddressRefusesWhatIsNotAlignedOrBeyondTheArena) {
  EXPECT_THAT(device().Address({128, 4}), StatusIs(absl::StatusCode::kInvalidArgument, "128"));
  EXPECT_THAT(device().Address({kArenaBytes, 1}), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_THAT(device().Address({0, kArenaBytes + 1}), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_THAT(device().Address({-256, 16}), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_THAT(device().Address({0, -1}), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_THAT(device().Address({256, INT64_MAX}), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_OK(device().Address({kArenaBytes - 256, 256}));
  EXPECT_OK(device().Address({kArenaBytes, 0}));
}

TEST_P(DeviceConformanceTest, HostMemoryIsCopiedThroughAndMayOutliveTheDevice) {
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Device> other, GetParam().make(4096));
  ASSERT_OK_AND_ASSIGN(const HostMemory memory, other->NewHostMemory(1000));
  ASSERT_EQ(memory.bytes.size(), 1000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.bytes.data()) % 64, 0u);
  ASSERT_OK_AND_ASSIGN(void* at, other->Address({0, 1000}));
  for (size_t i = 0; i < memory.bytes.size(); ++i) memory.bytes[i] = static_cast<std::byte>(i * 7);
  const std::vector<std::byte> sent(memory.bytes.begin(), memory.bytes.end());
  Stream& in = other->stream(StreamId::kIn);
  in.CopyIn(at, memory.bytes);
  ASSERT_OK(in.Synchronize());
  std::fill(memory.bytes.begin(), memory.bytes.end(), std::byte{0});
  in.CopyOut(memory.bytes, at);
  ASSERT_OK(in.Synchronize());
  other.reset();
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), memory.bytes.begin()));
  ASSERT_OK_AND_ASSIGN(const HostMemory none, device().NewHostMemory(0));
  EXPECT_TRUE(none.bytes.empty());
}

// A device may copy what is small, and aligned, in another way.
TEST_P(DeviceConformanceTest, HostMemoryOfAnySizeIsCopiedIn) {
  constexpr size_t kMost = (size_t{1} << 20) + 16;
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Device> other, GetParam().make(2 << 20));
  ASSERT_OK_AND_ASSIGN(const HostMemory memory, other->NewHostMemory(kMost));
  ASSERT_OK_AND_ASSIGN(void* at, other->Address({0, 2 << 20}));
  for (size_t i = 0; i < kMost; ++i) memory.bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  Stream& in = other->stream(StreamId::kIn);
  for (const size_t num_bytes : {size_t{1}, size_t{16}, size_t{4096}, size_t{4100}, size_t{1} << 20, kMost}) {
    for (const size_t offset : {size_t{0}, size_t{8}, size_t{16}}) {
      if (offset + num_bytes > kMost) continue;
      std::vector<std::byte> got(num_bytes + 16, std::byte{1});
      in.CopyIn(at, absl::MakeConstSpan(got));  // so that what lies behind is known
      in.CopyIn(at, memory.bytes.subspan(offset, num_bytes));
      in.CopyOut(absl::MakeSpan(got), at);
      ASSERT_OK(in.Synchronize());
      EXPECT_TRUE(std::equal(got.begin(), got.end() - 16, memory.bytes.begin() + offset)) << num_bytes << " " << offset;
      EXPECT_EQ(std::count(got.end() - 16, got.end(), std::byte{1}), 16) << num_bytes << " " << offset;
    }
  }
}

TEST_P(DeviceConformanceTest, ExpectedMemoryIsCopiedFrom) {
  const SharedSegment pages = NewSharedMemory(3 * 4096 + 100);
  const absl::Span<std::byte> weights = pages.bytes();
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<std::byte>(i * 5);
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Device> other, GetParam().make(1 << 20));
  const absl::Span<const std::byte> first = weights.subspan(10, 5000);
  const absl::Span<const std::byte> second = weights.subspan(5010);  // in a page of the first
  for (const absl::Span<const std::byte> part : {first, second, first}) {
    other->ExpectCopiesFrom(part);
    ASSERT_OK_AND_ASSIGN(void* at, other->Address({0, static_cast<int64_t>(part.size())}));
    std::vector<std::byte> received(part.size());
    Stream& in = other->stream(StreamId::kIn);
    in.CopyIn(at, part);
    in.CopyOut(absl::MakeSpan(received), at);
    ASSERT_OK(in.Synchronize());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), received.begin()));
  }
}

TEST_P(DeviceConformanceTest, ExpectedMemoryIsCopiedTo) {
  const SharedSegment pages = NewSharedMemory(3 * 4096 + 100);
  const absl::Span<std::byte> inbox = pages.bytes();
  std::vector<std::byte> sent(5000);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 3);
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Device> other, GetParam().make(1 << 20));
  ASSERT_OK_AND_ASSIGN(void* at, other->Address({0, static_cast<int64_t>(sent.size())}));
  Stream& out = other->stream(StreamId::kOut);
  out.CopyIn(at, sent);
  // The last is in pages of both that were expected, and in some that were not.
  for (const size_t first : {size_t{10}, size_t{5010}, size_t{3000}, inbox.size() - sent.size()}) {
    const absl::Span<std::byte> part = inbox.subspan(first, sent.size());
    if (first <= 5010) other->ExpectCopiesTo(part);
    out.CopyOut(part, at);
    ASSERT_OK(out.Synchronize());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), sent.begin())) << first;
  }
}

TEST_P(DeviceConformanceTest, ADestinationIsChosenWhenTheCopysTurnComes) {
  ASSERT_OK_AND_ASSIGN(void* at, device().Address({0, 256}));
  std::vector<std::byte> ones(256, std::byte{1}), twos(256, std::byte{2});
  std::vector<std::vector<std::byte>> places;
  const auto new_place = [&places]() -> absl::StatusOr<absl::Span<std::byte>> {
    places.emplace_back(256);
    return absl::MakeSpan(places.back());
  };
  places.reserve(3);
  const auto nothing = [] { return absl::OkStatus(); };
  bool go = false;
  Stream& out = device().stream(StreamId::kOut);
  out.HostCall([&go] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    go = true;
    return absl::OkStatus();
  });
  out.CopyIn(at, ones);
  bool asked_in_turn = false;
  out.CopyOutTo(
      [&]() -> absl::StatusOr<absl::Span<std::byte>> {
        asked_in_turn = go;
        return new_place();
      },
      at, nothing);
  out.CopyIn(at, twos);
  out.CopyOutTo(new_place, at, nothing);
  out.CopyOutTo([] { return absl::Span<std::byte>(); }, at, nothing);
  std::vector<std::byte> seen;  // by a call behind the copies: they are done
  out.HostCall([&] {
    seen = places.at(1);
    return absl::OkStatus();
  });
  ASSERT_OK(out.Synchronize());
  EXPECT_TRUE(asked_in_turn);
  ASSERT_EQ(places.size(), 2u);
  EXPECT_TRUE(places[0] == ones);
  EXPECT_TRUE(places[1] == twos);
  EXPECT_TRUE(seen == twos);
}

TEST_P(DeviceConformanceTest, WhatFollowsACopyComesInOrderOnceItsBytesAreThere) {
  constexpr int kCopies = 3;
  constexpr size_t kBytes = 1 << 20;
  ASSERT_OK_AND_ASSIGN(void* at, device().Address({0, kBytes}));
  std::vector<std::byte> sent(kBytes);
  std::vector<std::vector<std::byte>> places(kCopies, std::vector<std::byte>(kBytes)), seen(kCopies);
  Stream& out = device().stream(StreamId::kOut);
  for (size_t round = 0; round < 2; ++round) {  // the second after a stream that was idle
    std::vector<int> order;
    for (size_t i = 0; i < kBytes; ++i) sent[i] = static_cast<std::byte>(i / 7 + round);
    out.CopyIn(at, sent);
    for (int i = 0; i < kCopies; ++i) {
      std::vector<std::byte>& place = places[static_cast<size_t>(i)];
      out.CopyOutTo([&place] { return absl::MakeSpan(place); }, at,
                    [&, i] {
                      order.push_back(i);
                      seen[static_cast<size_t>(i)] = place;
                      return absl::OkStatus();
                    });
    }
    if (round == 0) {
      out.HostCall([&] {
        order.push_back(kCopies);
        return absl::OkStatus();
      });
    }
    ASSERT_OK(out.Synchronize());
    EXPECT_EQ(order, round == 0 ? (std::vector<int>{0, 1, 2, kCopies}) : (std::vector<int>{0, 1, 2}));
    for (int i = 0; i < kCopies; ++i) EXPECT_TRUE(seen[static_cast<size_t>(i)] == sent) << i;
  }
}

TEST_P(DeviceConformanceTest, AnErrorOfWhatFollowsACopyEndsTheStream) {
  ASSERT_OK_AND_ASSIGN(void* at, device().Address({0, 256}));
  int ran = 0;
  const auto run = [&ran] {
    ++ran;
    return absl::OkStatus();
  };
  Stream& out = device().stream(StreamId::kOut);
  // What follows a copy may own the memory, which is to outlast the copy though it never runs.
  const auto copy = [&](std::function<absl::Status()> then) {
    auto place = std::make_shared<std::vector<std::byte>>(256);
    std::vector<std::byte>& bytes = *place;
    out.CopyOutTo([&bytes]() -> absl::StatusOr<absl::Span<std::byte>> { return absl::MakeSpan(bytes); }, at,
                  [place = std::move(place), then = std::move(then)] { return then(); });
  };
  copy([] { return absl::UnavailableError("the first failed"); });
  copy(run);
  copy(run);
  out.HostCall(run);
  EXPECT_THAT(out.Synchronize(), StatusIs(absl::StatusCode::kUnavailable, "the first failed"));
  device().Recover();
  out.HostCall(run);
  ASSERT_OK(out.Synchronize());
  EXPECT_EQ(ran, 1) << "what was left behind";
}

TEST_P(DeviceConformanceTest, ACopyWithoutADestinationFailsItsStreamAndAFailedStreamAsksForNone) {
  ASSERT_OK_AND_ASSIGN(void* at, device().Address({0, 256}));
  Stream& out = device().stream(StreamId::kOut);
  int asked = 0, ran = 0;
  for (int i = 0; i < 2; ++i) {
    out.CopyOutTo(
        [&asked]() -> absl::StatusOr<absl::Span<std::byte>> {
          ++asked;
          return absl::ResourceExhaustedError("no room");
        },
        at,
        [&ran] {
          ++ran;
          return absl::OkStatus();
        });
  }
  EXPECT_THAT(out.Synchronize(), StatusIs(absl::StatusCode::kResourceExhausted, "no room"));
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(ran, 0);
}

TEST_P(DeviceConformanceTest, HighWaterMarkIsTheLargestEndAskedFor) {
  EXPECT_EQ(device().arena_high_water_bytes(), 0);
  ASSERT_OK(device().Address({1024, 100}));
  EXPECT_EQ(device().arena_high_water_bytes(), 1124);
  ASSERT_OK(device().Address({0, 256}));
  EXPECT_EQ(device().arena_high_water_bytes(), 1124);
  EXPECT_FALSE(device().Address({0, kArenaBytes + 1}).ok());
  EXPECT_EQ(device().arena_high_water_bytes(), 1124) << "a refused span must not count";
  ASSERT_OK(device().Address({4096, 256}));
  EXPECT_EQ(device().arena_high_water_bytes(), 4352);
}

TEST_P(DeviceConformanceTest, CopiesArriveWhole) {
  for (const int64_t num_bytes : {1, 3, 4096, 1000003}) {
    for (const StreamId id : {StreamId::kCompute, StreamId::kIn, StreamId::kOut}) {
      ASSERT_OK_AND_ASSIGN(void* at, device().Address({0, num_bytes}));
      std::vector<std::byte> sent(num_bytes), received(num_bytes);
      for (int64_t i = 0; i < num_bytes; ++i) sent[i] = static_cast<std::byte>(i * 31 + num_bytes);
      device().stream(id).CopyIn(at, sent);
      device().stream(id).CopyOut(absl::MakeSpan(received), at);
      ASSERT_OK(device().stream(id).Synchronize());
      EXPECT_TRUE(sent == received) << num_bytes;
    }
  }
}

TEST_P(DeviceConformanceTest, AStreamRunsInOrder) {
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) {
    device().stream(StreamId::kIn).HostCall([&order, i] {
      order.push_back(i);
      return absl::OkStatus();
    });
  }
  ASSERT_OK(device().stream(StreamId::kIn).Synchronize());
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST_P(DeviceConformanceTest, EnqueueingDoesNotBlock) {
  std::atomic<bool> go{false};
  const std::unique_ptr<Event> event = device().NewEvent();
  device().stream(StreamId::kIn).HostCall([&go] {
    while (!go.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return absl::OkStatus();
  });
  device().stream(StreamId::kIn).Record(*event);
  device().stream(StreamId::kCompute).Wait(*event, WaitCause::kPull);
  bool computed = false;
  device().stream(StreamId::kCompute).HostCall([&] {
    computed = go.load();
    return absl::OkStatus();
  });
  // Another stream goes on meanwhile.
  ASSERT_OK(device().stream(StreamId::kOut).Synchronize());
  go = true;
  ASSERT_OK(device().stream(StreamId::kCompute).Synchronize());
  EXPECT_TRUE(computed) << "compute ran before the event that it waits for";
}

TEST_P(DeviceConformanceTest, AnEventCanBeUsedAgainAfterReset) {
  const std::unique_ptr<Event> event = device().NewEvent();
  int value = 0;
  for (int round = 1; round <= 3; ++round) {
    device().stream(StreamId::kCompute).Wait(*event, WaitCause::kStash);
    int seen = 0;
    device().stream(StreamId::kCompute).HostCall([&] {
      seen = value;
      return absl::OkStatus();
    });
    device().stream(StreamId::kOut).HostCall([&value, round] {
      value = round;
      return absl::OkStatus();
    });
    device().stream(StreamId::kOut).Record(*event);
    ASSERT_OK(device().stream(StreamId::kCompute).Synchronize());
    EXPECT_EQ(seen, round);
    ASSERT_OK(device().stream(StreamId::kOut).Synchronize());
    event->Reset();
  }
}

TEST_P(DeviceConformanceTest, TheFirstErrorStaysAndWhatFollowsIsSkipped) {
  Stream& in = device().stream(StreamId::kIn);
  bool ran = false;
  in.HostCall([] { return absl::DataLossError("first"); });
  in.HostCall([&ran] {
    ran = true;
    return absl::InternalError("second");
  });
  EXPECT_THAT(in.Synchronize(), StatusIs(absl::StatusCode::kDataLoss, "first"));
  in.HostCall([&ran] {
    ran = true;
    return absl::OkStatus();
  });
  EXPECT_THAT(in.Synchronize(), StatusIs(absl::StatusCode::kDataLoss, "first"));
  EXPECT_FALSE(ran);
  EXPECT_OK(device().stream(StreamId::kCompute).Synchronize());
  EXPECT_OK(device().stream(StreamId::kOut).Synchronize());
}

TEST_P(DeviceConformanceTest, AFailedStreamSkipsCopiesAndKernels) {
  ASSERT_OK_AND_ASSIGN(void* at, device().Address({0, 256}));
  std::vector<std::byte> ones(256, std::byte{1}), twos(256, std::byte{2}), received(256);
  Stream& compute = device().stream(StreamId::kCompute);
  compute.CopyIn(at, ones);
  compute.HostCall([] { return absl::AbortedError("stop"); });
  compute.CopyIn(at, twos);
  device().kernels().FillZero({.num_bytes = 256, .dst = at});
  EXPECT_FALSE(compute.Synchronize().ok());
  device().Recover();
  compute.CopyOut(absl::MakeSpan(received), at);
  ASSERT_OK(compute.Synchronize());
  EXPECT_TRUE(received == ones);
}

TEST_P(DeviceConformanceTest, AnErrorTravelsWithEventsAndNothingWaitsForEver) {
  const std::unique_ptr<Event> pulled = device().NewEvent(), computed = device().NewEvent();
  device().stream(StreamId::kIn).HostCall([] { return absl::UnavailableError("the daemon is gone"); });
  device().stream(StreamId::kIn).Record(*pulled);
  device().stream(StreamId::kCompute).Wait(*pulled, WaitCause::kPull);
  bool ran = false;
  device().stream(StreamId::kCompute).HostCall([&ran] {
    ran = true;
    return absl::OkStatus();
  });
  device().stream(StreamId::kCompute).Record(*computed);
  device().stream(StreamId::kOut).Wait(*computed, WaitCause::kNone);
  for (const StreamId id : {StreamId::kOut, StreamId::kCompute, StreamId::kIn}) {
    EXPECT_THAT(device().stream(id).Synchronize(), StatusIs(absl::StatusCode::kUnavailable, "the daemon is gone"));
  }
  EXPECT_FALSE(ran);
}

TEST_P(DeviceConformanceTest, RecoverMakesItUsableAgain) {
  const std::unique_ptr<Event> event = device().NewEvent();
  device().stream(StreamId::kIn).HostCall([] { return absl::AbortedError("new assignment"); });
  device().stream(StreamId::kIn).Record(*event);
  device().stream(StreamId::kCompute).Wait(*event, WaitCause::kPull);
  device().Recover();
  for (const StreamId id : {StreamId::kCompute, StreamId::kIn, StreamId::kOut}) {
    EXPECT_OK(device().stream(id).Synchronize());
  }
  event->Reset();
  bool ran = false;
  device().stream(StreamId::kIn).Record(*event);
  device().stream(StreamId::kCompute).Wait(*event, WaitCause::kPull);
  device().stream(StreamId::kCompute).HostCall([&ran] {
    ran = true;
    return absl::OkStatus();
  });
  ASSERT_OK(device().stream(StreamId::kCompute).Synchronize());
  EXPECT_TRUE(ran);
}

TEST_P(DeviceConformanceTest, WaitsAreCountedByCauseAndTakenOnce) {
  Stream& in = device().stream(StreamId::kIn);
  Stream& compute = device().stream(StreamId::kCompute);
  ExpectOffByHalfAPauseAtMost([&](Clock::duration pause, Clock::duration& off) {
    const std::unique_ptr<Event> pull = device().NewEvent(), push = device().NewEvent();
    compute.Wait(*pull, WaitCause::kPull);
    compute.Wait(*push, WaitCause::kPush);
    in.HostCall(SleepFor(pause));
    in.Record(*pull);
    in.HostCall(SleepFor(pause));
    in.Record(*push);
    ASSERT_OK(compute.Synchronize());
    ASSERT_OK(in.Synchronize());
    const StreamStats waited = compute.TakeStats();
    for (const WaitCause cause : {WaitCause::kPull, WaitCause::kPush}) {
      off = std::max(off, pause - FromSeconds(waited.wait_seconds[static_cast<size_t>(cause)]));
    }
    EXPECT_EQ(waited.wait_seconds[static_cast<size_t>(WaitCause::kStash)], 0);
    EXPECT_EQ(waited.wait_seconds[static_cast<size_t>(WaitCause::kVersion)], 0);
  });
  const StreamStats again = compute.TakeStats();
  for (const std::vector<TimeSpan>& waits : again.waits) EXPECT_TRUE(waits.empty());
  for (const double seconds : again.wait_seconds) EXPECT_EQ(seconds, 0);
}

TEST_P(DeviceConformanceTest, SpansSayWhenEachLabelWorkedAndWaited) {
  class Label : public WorkLabel {
    std::string ToString() const override { return "a label"; }
  };
  const Label pulls, first, second;
  const Label push;
  constexpr int64_t kBytes = 4096;
  ASSERT_OK_AND_ASSIGN(void* const arena, device().Address({.offset_bytes = 0, .num_bytes = kBytes}));
  ASSERT_OK_AND_ASSIGN(const HostMemory host, device().NewHostMemory(kBytes));
  Stream& in = device().stream(StreamId::kIn);
  Stream& compute = device().stream(StreamId::kCompute);
  Stream& out = device().stream(StreamId::kOut);
  for (Stream* stream : {&in, &compute, &out}) stream->KeepSpans(true);
  ExpectOffByHalfAPauseAtMost([&](Clock::duration pause, Clock::duration& off) {
    const std::unique_ptr<Event> pulled = device().NewEvent(), computed = device().NewEvent();
    const Clock::time_point before = Clock::now();
    in.CopyIn(arena, host.bytes);  // nobody's
    in.SetLabel(&pulls);
    in.CopyIn(arena, host.bytes);
    in.HostCall(SleepFor(pause));
    in.CopyIn(arena, host.bytes.subspan(0, kBytes / 2));
    in.Record(*pulled);
    in.SetLabel(nullptr);
    compute.SetLabel(&first);
    compute.Wait(*pulled, WaitCause::kPull);
    compute.HostCall(SleepFor(pause));
    compute.HostCall(SleepFor(pause));
    compute.Record(*computed);
    compute.SetLabel(&second);
    compute.HostCall(SleepFor(pause));
    compute.SetLabel(nullptr);
    out.SetLabel(&push);
    out.Wait(*computed, WaitCause::kNone);
    out.CopyOutTo(
        [&]() -> absl::StatusOr<absl::Span<std::byte>> {
          std::this_thread::sleep_for(pause);
          return host.bytes;
        },
        arena, [] { return absl::OkStatus(); });
    out.SetLabel(nullptr);
    compute.HostCall(SleepFor(pause));  // nobody's
    ASSERT_OK(in.Synchronize());
    ASSERT_OK(compute.Synchronize());
    ASSERT_OK(out.Synchronize());
    const Clock::time_point after = Clock::now();
    const std::vector<StreamSpan> pushing = out.TakeStats().spans;
    const std::vector<StreamSpan> pulling = in.TakeStats().spans;
    const std::vector<StreamSpan> computing = compute.TakeStats().spans;
    ASSERT_EQ(pulling.size(), 1u);
    EXPECT_EQ(pulling[0].label, &pulls);
    EXPECT_EQ(pulling[0].waited_for, std::nullopt);
    EXPECT_EQ(pulling[0].copied_bytes, kBytes + kBytes / 2);
    ASSERT_EQ(computing.size(), 3u);
    EXPECT_EQ(computing[0].label, &first);
    EXPECT_EQ(computing[0].waited_for, WaitCause::kPull);
    EXPECT_EQ(computing[1].label, &first);
    EXPECT_EQ(computing[1].waited_for, std::nullopt);
    EXPECT_EQ(computing[2].label, &second);
    EXPECT_EQ(computing[2].waited_for, std::nullopt);
    for (const StreamSpan& span : computing) EXPECT_EQ(span.copied_bytes, 0);
    ASSERT_EQ(pushing.size(), 2u);
    EXPECT_EQ(pushing[0].waited_for, WaitCause::kNone);
    EXPECT_EQ(pushing[0].copied_bytes, 0);
    EXPECT_EQ(pushing[1].copied_bytes, kBytes);
    EXPECT_EQ(pushing[1].waited_for, std::nullopt);
    for (const Clock::duration found : {
             pause - (pulling[0].time.end - pulling[0].time.begin),
             2 * pause - (computing[1].time.end - computing[1].time.begin),
             pulling[0].time.end - computing[1].time.begin,
             computing[1].time.end - computing[2].time.begin,
             computing[1].time.end - pushing[1].time.begin,
             before - pulling[0].time.begin,
             computing[2].time.end - (after - pause),
         }) {
      off = std::max(off, found);
    }
    for (const StreamSpan& span : {pulling[0], pushing[1]}) {  // without the pause
      EXPECT_GT(span.copy_seconds, 0);
      off = std::max(off, FromSeconds(span.copy_seconds));
    }
  });

  // As at first, nothing is kept.
  for (Stream* stream : {&in, &compute, &out}) stream->KeepSpans(false);
  compute.SetLabel(&first);
  compute.HostCall([] { return absl::OkStatus(); });
  ASSERT_OK(compute.Synchronize());
  EXPECT_TRUE(compute.TakeStats().spans.empty());
}

TEST_P(DeviceConformanceTest, AWaitForAPullSaysWhenItWas) {
  Stream& in = device().stream(StreamId::kIn);
  Stream& compute = device().stream(StreamId::kCompute);
  ExpectOffByHalfAPauseAtMost([&](Clock::duration pause, Clock::duration& off) {
    const std::unique_ptr<Event> pulls[] = {device().NewEvent(), device().NewEvent()};
    const std::unique_ptr<Event> push = device().NewEvent();
    Clock::time_point begin[2], end[2];  // of what takes the in-stream so long
    for (int i = 0; i < 2; ++i) {
      in.HostCall([&begin, &end, pause, i] {
        begin[i] = Clock::now();
        std::this_thread::sleep_for(pause);
        end[i] = Clock::now();
        return absl::OkStatus();
      });
      in.Record(*pulls[i]);
      compute.Wait(*pulls[i], WaitCause::kPull);
    }
    in.Record(*push);
    compute.Wait(*push, WaitCause::kPush);
    ASSERT_OK(in.Synchronize());
    std::this_thread::sleep_for(pause);  // the stream is idle long before it is asked
    ASSERT_OK(compute.Synchronize());
    const StreamStats stats = compute.TakeStats();
    const std::vector<TimeSpan>& waits = stats.waits[static_cast<size_t>(WaitCause::kPull)];
    ASSERT_EQ(waits.size(), 2u);
    EXPECT_EQ(stats.waits[static_cast<size_t>(WaitCause::kPush)].size(), 1u);
    for (int i = 0; i < 2; ++i) off = std::max({off, waits[i].begin - begin[i], end[i] - waits[i].end});
    off = std::max(off, waits[0].end - begin[1]);
    EXPECT_LE(waits[0].end, waits[1].begin);
  });
}

class FixedLabel : public WorkLabel {
 public:
  std::string ToString() const override { return "step 7"; }
};

TEST_P(DeviceConformanceTest, AnErrorNamesTheWorkThatFailedAndNotTheWorkThatWaitedForIt) {
  const FixedLabel label;
  class : public WorkLabel {
    std::string ToString() const override { return "another step"; }
  } other;
  const std::unique_ptr<Event> event = device().NewEvent();
  Stream& in = device().stream(StreamId::kIn);
  Stream& compute = device().stream(StreamId::kCompute);
  in.SetLabel(&label);
  in.HostCall([] { return absl::DataLossError("torn"); });
  in.SetLabel(&other);
  in.Record(*event);
  compute.SetLabel(&other);
  compute.Wait(*event, WaitCause::kPull);
  compute.CopyOutTo([] { return absl::Span<std::byte>(); }, nullptr, [] { return absl::OkStatus(); });
  for (Stream* stream : {&compute, &in}) {
    const absl::Status status = stream->Synchronize();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(status.message(), "step 7: torn");
  }
}

TEST_P(DeviceConformanceTest, ALabelIsForgottenBySynchronize) {
  Stream& in = device().stream(StreamId::kIn);
  {
    const FixedLabel label;
    in.SetLabel(&label);
    ASSERT_OK(in.Synchronize());
  }
  in.HostCall([] { return absl::DataLossError("torn"); });
  EXPECT_EQ(in.Synchronize().message(), "torn");
}

TEST_P(DeviceConformanceTest, ADeviceWithWorkLeftCanBeDestroyed) {
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Device> other, GetParam().make(4096));
  const std::unique_ptr<Event> never = other->NewEvent();
  other->stream(StreamId::kCompute).Wait(*never, WaitCause::kPull);
  bool ran = false;
  other->stream(StreamId::kCompute).HostCall([&ran] {
    ran = true;
    return absl::OkStatus();
  });
  other.reset();
  EXPECT_FALSE(ran);
}

}  // namespace eps::worker
