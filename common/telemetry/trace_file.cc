#include "common/telemetry/trace_file.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/json_text.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // as it is written

constexpr int kMaxDepth = 4;
constexpr absl::string_view kChromeStart = R"({"displayTimeUnit":"ms","traceEvents":[)";

// Reads members of an object; what is wrong is said by their names.
class Members {
 public:
  explicit Members(const Json& object, std::string prefix = "") : object_(object), prefix_(std::move(prefix)) {}

  // Null where it is absent, or where this is no object.
  const Json* Find(const char* key) const {
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }
  absl::StatusOr<std::string> Text(const char* key) const {
    const Json* value = Find(key);
    if (value == nullptr || !value->is_string()) return Bad(key, value, "must be a string");
    return value->get<std::string>();
  }
  absl::StatusOr<double> Number(const char* key) const {
    const Json* value = Find(key);
    if (value == nullptr || !value->is_number()) return Bad(key, value, "must be a number");
    return value->get<double>();
  }
  absl::StatusOr<int64_t> Whole(const char* key) const {
    const Json* value = Find(key);
    if (value == nullptr || !value->is_number_integer()) return Bad(key, value, "must be a whole number");
    return value->get<int64_t>();
  }
  // Of an object in it.
  absl::StatusOr<std::string> TextOf(const char* key, const char* inner) const {
    static const Json kNone;
    const Json* value = Find(key);
    return Members(value == nullptr ? kNone : *value, absl::StrCat(key, ".")).Text(inner);
  }

 private:
  absl::Status Bad(const char* key, const Json* value, const char* wanted) const {
    return absl::InvalidArgumentError(absl::StrCat(prefix_, key, ": ", value == nullptr ? "missing, " : "", wanted));
  }

  const Json& object_;
  const std::string prefix_;
};

// Puts one line of a file where it belongs. Tracks are told apart by tid alone: nobody who writes one gives it twice.
class LogReader {
 public:
  absl::Status Read(const Json& line) {
    const Members members(line);
    EPS_ASSIGN_OR_RETURN(const std::string kind, members.Text("ph"));
    EPS_ASSIGN_OR_RETURN(const std::string name, members.Text("name"));
    EPS_ASSIGN_OR_RETURN(const int64_t track, members.Whole("tid"));
    int64_t process = 0;
    if (members.Find("pid") != nullptr) {
      EPS_ASSIGN_OR_RETURN(process, members.Whole("pid"));
    }
    if (kind == "M" && name == "process_name") {
      EPS_ASSIGN_OR_RETURN(processes_[process], members.TextOf("args", "name"));
    } else if (kind == "M" && name == "thread_name") {
      EPS_ASSIGN_OR_RETURN(const std::string thread, members.TextOf("args", "name"));
      const auto [found, is_new] = places_.emplace(track, tracks_.size());
      if (!is_new) return absl::InvalidArgumentError(absl::StrCat("tid ", track, " has a name already"));
      tracks_.push_back({.process = "", .thread = thread, .events = {}});
      process_of_track_.push_back(process);
    } else if (kind == "X") {
      const auto found = places_.find(track);
      if (found == places_.end()) return absl::InvalidArgumentError(absl::StrCat("tid ", track, " has no name"));
      EPS_ASSIGN_OR_RETURN(TraceEvent event, ReadEvent(members, name));
      tracks_[found->second].events.push_back(std::move(event));
    } else if (kind != "M") {
      return absl::InvalidArgumentError(absl::StrCat("ph is ", QuoteText(kind), ", must be M or X"));
    }
    return absl::OkStatus();
  }

  std::vector<TraceTrack> Take() && {
    for (size_t i = 0; i < tracks_.size(); ++i) tracks_[i].process = processes_[process_of_track_[i]];
    return std::move(tracks_);
  }

 private:
  static absl::StatusOr<TraceEvent> ReadEvent(const Members& members, const std::string& name) {
    EPS_ASSIGN_OR_RETURN(const double begin, members.Number("ts"));
    EPS_ASSIGN_OR_RETURN(const double length, members.Number("dur"));
    TraceEvent event = {.name = name, .begin = 1e-6 * begin, .end = 1e-6 * (begin + length)};
    const Json* found = members.Find("args");
    if (found == nullptr) return event;
    if (!found->is_object()) return absl::InvalidArgumentError("args: must be an object");
    const Members args(*found, "args.");
    if (args.Find("detail") != nullptr) {
      EPS_ASSIGN_OR_RETURN(event.detail, args.Text("detail"));
    }
    if (args.Find("copied_bytes") != nullptr) {
      EPS_ASSIGN_OR_RETURN(event.copied_bytes, args.Whole("copied_bytes"));
      EPS_ASSIGN_OR_RETURN(event.copy_seconds, args.Number("copy_seconds"));
    }
    return event;
  }

  std::map<int64_t, std::string> processes_;  // names, by pid
  std::map<int64_t, size_t> places_;          // of a track, by tid
  std::vector<TraceTrack> tracks_;
  std::vector<int64_t> process_of_track_;
};

absl::Status ReadLine(absl::string_view line, LogReader& reader) {
  EPS_ASSIGN_OR_RETURN(const Json parsed, ParseJson(line, kMaxDepth));
  return reader.Read(parsed);
}

// All lines but the first, up to `last`.
absl::StatusOr<std::vector<TraceTrack>> ReadLines(absl::string_view text, absl::string_view last) {
  LogReader reader;
  int number = 1;
  for (size_t at = std::min(text.find('\n'), text.size() - 1) + 1; at < text.size();) {
    const size_t end = text.find('\n', at);
    if (end == absl::string_view::npos) break;  // cut off
    absl::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line == last) break;
    absl::ConsumeSuffix(&line, ",");
    EPS_RETURN_IF_ERROR_WITH(ReadLine(line, reader), absl::StrCat("line ", number));
  }
  return std::move(reader).Take();
}

}  // namespace

absl::StatusOr<std::vector<TraceTrack>> ParseTraceLog(absl::string_view text) {
  if (!absl::StartsWith(text, "[\n")) return absl::InvalidArgumentError("line 1: must be [: not a trace of a process");
  return ReadLines(text, "]");
}

bool IsChromeTrace(absl::string_view text) {
  // Events are lines of their own. What another tool has written on one is not read as having none.
  return absl::ConsumePrefix(&text, kChromeStart) && (text.empty() || text.front() == '\n');
}

absl::StatusOr<std::vector<TraceTrack>> ParseChromeTrace(absl::string_view text) {
  if (!IsChromeTrace(text)) return absl::InvalidArgumentError("line 1: not as eps trace writes it");
  return ReadLines(text, "]}");
}

// Written an event at a time: a trace has hundreds of thousands, and would take a kilobyte each as one JSON value.
std::string ToChromeTrace(absl::Span<const TraceTrack> tracks) {
  std::string text(kChromeStart);
  auto add = [&text, is_first = true](const OrderedJson& event) mutable {
    absl::StrAppend(&text, is_first ? "\n" : ",\n", event.dump());
    is_first = false;
  };
  std::map<std::string, int> processes;
  int thread = 0;
  for (const TraceTrack& track : tracks) {
    const auto [process, is_new] = processes.emplace(track.process, static_cast<int>(processes.size()) + 1);
    const OrderedJson place = {{"pid", process->second}, {"tid", ++thread}};
    const auto describe = [&](const char* what, OrderedJson value) {
      OrderedJson event = {{"ph", "M"}, {"name", what}, {"args", std::move(value)}};
      event.update(place);
      add(event);
    };
    if (is_new) describe("process_name", {{"name", track.process}});
    describe("thread_name", {{"name", track.thread}});
    describe("thread_sort_index", {{"sort_index", thread}});
    for (const TraceEvent& event : track.events) {
      OrderedJson json = {
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
