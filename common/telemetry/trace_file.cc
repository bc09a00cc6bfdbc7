#include "common/telemetry/trace_file.h"

#include <map>

#include "nlohmann/json.hpp"

namespace eps {

std::string ToChromeTrace(absl::Span<const TraceTrack> tracks) {
  using Json = nlohmann::ordered_json;
  Json events = Json::array();
  std::map<std::string, int> processes;
  int thread = 0;
  for (const TraceTrack& track : tracks) {
    const auto [process, is_new] = processes.emplace(track.process, static_cast<int>(processes.size()) + 1);
    const Json place = {{"pid", process->second}, {"tid", ++thread}};
    const auto name = [&](const char* what, const std::string& text) {
      Json event = {{"ph", "M"}, {"name", what}, {"args", {{"name", text}}}};
      event.update(place);
      events.push_back(std::move(event));
    };
    if (is_new) name("process_name", track.process);
    name("thread_name", track.thread);
    Json order = {{"ph", "M"}, {"name", "thread_sort_index"}, {"args", {{"sort_index", thread}}}};
    order.update(place);
    events.push_back(std::move(order));
    for (const TraceEvent& event : track.events) {
      Json json = {
          {"ph", "X"}, {"name", event.name}, {"ts", 1e6 * event.begin}, {"dur", 1e6 * (event.end - event.begin)}};
      json.update(place);
      if (!event.detail.empty()) json["args"] = {{"detail", event.detail}};
      events.push_back(std::move(json));
    }
  }
  return Json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump() + "\n";
}

}  // namespace eps
