#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"
#include "common/telemetry/trace_file.h"
#include "nlohmann/json.hpp"

// A trace, of a process or joined, is refused, or what is read of it is written as JSON with an event for each of its own.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace eps;
  const absl::string_view text(reinterpret_cast<const char*>(data), num_bytes);
  const auto tracks = IsChromeTrace(text) ? ParseChromeTrace(text) : ParseTraceLog(text);
  if (!tracks.ok()) return 0;
  size_t events = 0;
  for (const TraceTrack& track : *tracks) events += track.events.size();
  const auto json = nlohmann::json::parse(ToChromeTrace(*tracks), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) abort();
  size_t written = 0;
  for (const auto& event : json["traceEvents"]) written += event["ph"] == "X" ? 1 : 0;
  if (written != events) abort();
  return 0;
}
