#include "common/telemetry/trace_log.h"

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/file_util.h"
#include "common/base/log.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

// In quotes; bytes that are no UTF-8 are replaced, which JSON does not allow.
std::string Quoted(absl::string_view text) {
  return nlohmann::json(std::string(text.data(), text.size()))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

double Microseconds(std::chrono::nanoseconds time) { return 1e-3 * static_cast<double>(time.count()); }

// As a member of an event, after a comma; "" where there is nothing to say.
std::string Arguments(absl::string_view detail, int64_t copied_bytes, double copy_seconds) {
  std::vector<std::string> members;
  if (!detail.empty()) members.push_back(absl::StrCat("\"detail\":", Quoted(detail)));
  if (copied_bytes > 0) {
    members.push_back(absl::StrFormat("\"copied_bytes\":%d,\"copy_seconds\":%.9f", copied_bytes, copy_seconds));
  }
  return members.empty() ? "" : absl::StrCat(",\"args\":{", absl::StrJoin(members, ","), "}");
}

}  // namespace

absl::StatusOr<std::unique_ptr<TraceLog>> TraceLog::Create(Options options) {
  std::FILE* file = std::fopen(options.path.c_str(), "we");
  if (file == nullptr) return FileError(errno, "open", options.path);
  std::unique_ptr<TraceLog> log(new TraceLog(std::move(options), file));
  return log;
}

TraceLog::TraceLog(Options options, std::FILE* file) : options_(std::move(options)), file_(file) {
  MutexLock lock(mu_);
  Write("[\n");
}

TraceLog::~TraceLog() {
  MutexLock lock(mu_);
  // An event that says nothing, as the array may not end with a comma.
  if (status_.ok())
    Write("{\"ph\":\"M\",\"name\":\"process_labels\",\"pid\":1,\"tid\":0,\"args\":{\"labels\":\"\"}}\n]\n");
  if (std::fclose(file_) != 0) Fail(errno);
}

void TraceLog::Write(const std::string& line) {
  if (!status_.ok()) return;
  if (std::fwrite(line.data(), 1, line.size(), file_) == line.size()) return;
  Fail(errno);
}

void TraceLog::Fail(int error_number) {
  if (!status_.ok()) return;
  status_ = FileError(error_number, "write", options_.path);
  LogWarning("trace_failed", {{"error", status_.ToString()}});
}

void TraceLog::Name(absl::string_view what, int track, absl::string_view name) {
  Write(absl::StrFormat("{\"ph\":\"M\",\"name\":\"%s\",\"pid\":1,\"tid\":%d,\"args\":{\"name\":%s}},\n", what, track,
                        Quoted(name)));
}

void TraceLog::NameProcess(absl::string_view name) {
  MutexLock lock(mu_);
  Name("process_name", 0, name);
}

void TraceLog::SetClockOffset(std::chrono::nanoseconds offset) { offset_nanos_ = offset.count(); }

int TraceLog::NewTrack(absl::string_view name) {
  Name("thread_name", ++tracks_, name);
  return tracks_;
}

int TraceLog::AddTrack(absl::string_view name) {
  MutexLock lock(mu_);
  const auto [found, is_new] = named_tracks_.emplace(std::string(name.data(), name.size()), 0);
  if (is_new) found->second = NewTrack(name);
  return found->second;
}

int TraceLog::TrackOfThisThread(absl::string_view name) {
  MutexLock lock(mu_);
  const auto [found, is_new] = thread_tracks_.emplace(std::this_thread::get_id(), 0);
  if (is_new) found->second = NewTrack(absl::StrCat(name, " ", thread_tracks_.size()));
  return found->second;
}

void TraceLog::Add(int track, absl::string_view name, Time begin, Time end, absl::string_view detail,
                   int64_t copied_bytes, double copy_seconds) {
  if (is_full_) return;
  // Without the lock: whoever is traced waits for no other's text.
  const Time::duration at = begin.time_since_epoch() + std::chrono::nanoseconds(offset_nanos_);
  const std::string line = absl::StrFormat(
      "{\"ph\":\"X\",\"name\":%s,\"pid\":1,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f%s},\n", Quoted(name), track,
      Microseconds(at), Microseconds(end - begin), Arguments(detail, copied_bytes, copy_seconds));
  MutexLock lock(mu_);
  if (is_full_) return;
  Write(line);
  if (++events_ < options_.max_events) return;
  is_full_ = true;
  LogWarning("trace_full", {{"file", options_.path}, {"events", events_}});
}

void TraceLog::Flush() {
  MutexLock lock(mu_);
  if (status_.ok() && std::fflush(file_) != 0) Fail(errno);
}

absl::Status TraceLog::status() const {
  MutexLock lock(mu_);
  return status_;
}

}  // namespace eps
