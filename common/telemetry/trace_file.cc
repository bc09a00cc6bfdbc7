#include "common/telemetry/trace_file.h"

#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using Json = nlohmann::ordered_json;

// Puts one line of a log where it belongs.
class LogReader {
 public:
  absl::Status Read(const Json& line) {
    const std::string kind = line.at("ph").get<std::string>(), name = line.at("name").get<std::string>();
    if (!line.at("tid").is_number_integer()) return absl::InvalidArgumentError("tid: must be a whole number");
    const auto track = line.at("tid").get<int64_t>();
    if (kind == "M" && name == "process_name") {
      process_ = line.at("args").at("name").get<std::string>();
    } else if (kind == "M" && name == "thread_name") {
      const auto [found, is_new] = places_.emplace(track, tracks_.size());
      if (!is_new) return absl::InvalidArgumentError(absl::StrCat("tid ", track, " has a name already"));
      tracks_.push_back({.process = "", .thread = line.at("args").at("name").get<std::string>(), .events = {}});
    } else if (kind == "X") {
      const auto found = places_.find(track);
      if (found == places_.end()) return absl::InvalidArgumentError(absl::StrCat("tid ", track, " has no name"));
      TraceEvent event = {.name = name,
                          .begin = 1e-6 * line.at("ts").get<double>(),
                          .end = 1e-6 * (line.at("ts").get<double>() + line.at("dur").get<double>())};
      if (line.contains("args")) {
        const Json& args = line.at("args");
        event.detail = args.value("detail", "");
        if (args.contains("copied_bytes")) {
          if (!args.at("copied_bytes").is_number_integer()) {
            return absl::InvalidArgumentError("copied_bytes: must be a whole number");
          }
          event.copied_bytes = args.at("copied_bytes").get<int64_t>();
          event.copy_seconds = args.at("copy_seconds").get<double>();
        }
      }
      tracks_[found->second].events.push_back(std::move(event));
    } else if (kind != "M") {
      return absl::InvalidArgumentError(absl::StrCat("ph is \"", kind, "\", must be M or X"));
    }
    return absl::OkStatus();
  }

  std::vector<TraceTrack> Take() && {
    for (TraceTrack& track : tracks_) track.process = process_;
    return std::move(tracks_);
  }

 private:
  std::string process_;
  std::map<int64_t, size_t> places_;  // of a track, by tid
  std::vector<TraceTrack> tracks_;
};

absl::Status ReadLine(absl::string_view line, LogReader& reader) {
  try {
    return reader.Read(Json::parse(line.begin(), line.end()));
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

}  // namespace

absl::StatusOr<std::vector<TraceTrack>> ParseTraceLog(absl::string_view text) {
  LogReader reader;
  if (!absl::StartsWith(text, "[\n")) return absl::InvalidArgumentError("line 1: must be [: not a trace of a process");
  int number = 1;
  for (size_t at = 2; at < text.size();) {
    const size_t end = text.find('\n', at);
    if (end == absl::string_view::npos) break;  // cut off
    absl::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line == "]") break;
    absl::ConsumeSuffix(&line, ",");
    EPS_RETURN_IF_ERROR_WITH(ReadLine(line, reader), absl::StrCat("line ", number));
  }
  return std::move(reader).Take();
}

// Written an event at a time: a trace has hundreds of thousands, and would take a kilobyte each as one JSON value.
std::string ToChromeTrace(absl::Span<const TraceTrack> tracks) {
  std::string text = R"({"displayTimeUnit":"ms","traceEvents":[)";
  auto add = [&text, is_first = true](const Json& event) mutable {
    absl::StrAppend(&text, is_first ? "\n" : ",\n", event.dump());
    is_first = false;
  };
  std::map<std::string, int> processes;
  int thread = 0;
  for (const TraceTrack& track : tracks) {
    const auto [process, is_new] = processes.emplace(track.process, static_cast<int>(processes.size()) + 1);
    const Json place = {{"pid", process->second}, {"tid", ++thread}};
    const auto describe = [&](const char* what, Json value) {
      Json event = {{"ph", "M"}, {"name", what}, {"args", std::move(value)}};
      event.update(place);
      add(event);
    };
    if (is_new) describe("process_name", {{"name", track.process}});
    describe("thread_name", {{"name", track.thread}});
    describe("thread_sort_index", {{"sort_index", thread}});
    for (const TraceEvent& event : track.events) {
      Json json = {
          {"ph", "X"}, {"name", event.name}, {"ts", 1e6 * event.begin}, {"dur", 1e6 * (event.end - event.begin)}};
      json.update(place);
      if (!event.detail.empty()) json["args"]["detail"] = event.detail;
      if (event.copied_bytes > 0) {
        json["args"]["copied_bytes"] = event.copied_bytes;
        json["args"]["copy_seconds"] = event.copy_seconds;
      }
      add(json);
    }
  }
  return text + "\n]}\n";
}

}  // namespace eps
