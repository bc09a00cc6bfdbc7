#include "eps_server/service/worker_messages.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "common/base/wait_cause.h"
#include "common/choices/choices.h"
#include "common/choices/choices_message.h"
#include "google/protobuf/stubs/logging.h"

// A WorkerEvent. What comes out of it is what a coordinator may show and add up: no time below zero or beyond all
// bounds, no cause of a wait that is not ours, no more choices than a message holds.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace eps::server;
  // It says on stderr, each time, that a string is no UTF-8.
  static google::protobuf::LogHandler* const loud = google::protobuf::SetLogHandler(nullptr);
  (void)loud;
  eps::proto::WorkerEvent event;
  if (!event.ParseFromArray(data, static_cast<int>(num_bytes))) return 0;
  if (const auto memory = ToMemory(event.ready()); memory.ok()) {
    if (memory->device_arena_bytes < 0 || memory->device_outside_bytes < 0 || memory->host_bytes < 0) abort();
  }
  if (const auto timing = ToTiming(event.pass_done()); timing.ok()) {
    if (!(timing->seconds >= 0) || std::isinf(timing->seconds)) abort();
    if (timing->device_peak_bytes < 0 || timing->device_outside_bytes < 0) abort();
    for (const auto& [cause, seconds] : timing->wait_seconds) {
      if (!eps::IsWaitCause(cause) || !(seconds >= 0) || std::isinf(seconds)) abort();
    }
  }
  if (const auto choices = eps::ChoicesFromProto(event.choices().choices()); choices.ok()) {
    if (choices->size() > eps::kMaxChoices || eps::ChoicesToProto(*choices).ByteSizeLong() > 2 * eps::kMaxChoicesBytes)
      abort();
    const auto again = eps::ChoicesFromProto(eps::ChoicesToProto(*choices).choices());
    if (!again.ok() || *again != *choices) abort();
  }
  if (ToRecords(event.pass_done()).size() != static_cast<size_t>(event.pass_done().records_size())) abort();
  if (const auto logits = ToLogits(event.inferred()); logits.ok()) {
    if (logits->empty() || logits->size() * sizeof(float) != event.inferred().logits().size()) abort();
  }
  return 0;
}
