#include "gpu_worker/relay/pass_memory.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/device.h"

namespace eps::worker {
namespace {

template <typename T>
absl::Span<T> As(const HostMemory& memory) {
  return absl::MakeSpan(reinterpret_cast<T*>(memory.bytes.data()), memory.bytes.size() / sizeof(T));
}

}  // namespace

absl::StatusOr<PassMemory> PassMemory::New(Device& device, const RelayPlan& plan, const LayerShape& shape,
                                           int micro_batches, const ToldExperts& told) {
  PassMemory memory;
  const int64_t items = int64_t{plan.max_pass_vnodes} * micro_batches;
  memory.items_ = items;
  memory.experts_ = told.experts;
  memory.inner_bytes_ = plan.inner_slots.front().num_bytes;
  memory.boundary_bytes_ = shape.boundary_bytes();
  memory.token_bytes_ = shape.token_bytes();
  EPS_ASSIGN_OR_RETURN(memory.boundaries_, device.NewHostMemory(plan.host_boundary_bytes));
  EPS_ASSIGN_OR_RETURN(memory.inners_, device.NewHostMemory(plan.host_inner_bytes));
  EPS_ASSIGN_OR_RETURN(memory.tokens_, device.NewHostMemory(items * memory.token_bytes_));
  EPS_ASSIGN_OR_RETURN(memory.records_, device.NewHostMemory(plan.max_pass_vnodes * int64_t{sizeof(LossRecord)}));
  const int64_t first_rows = told.size() > 0 ? told.blocks * items * (told.experts + 1) : 0;
  EPS_ASSIGN_OR_RETURN(memory.first_rows_, device.NewHostMemory(first_rows * int64_t{sizeof(int32_t)}));
  const int64_t flags = std::max<int64_t>(plan.max_subtree_leaves(), plan.num_vnodes);
  EPS_ASSIGN_OR_RETURN(memory.flags_, device.NewHostMemory(flags * int64_t{sizeof(int32_t)}));
  EPS_ASSIGN_OR_RETURN(memory.start_values_, device.NewHostMemory(int64_t{sizeof(StartValues)}));
  new (memory.start_values_.bytes.data()) StartValues();
  return memory;
}

absl::Span<std::byte> PassMemory::Boundary(int slot, const LayerShape& shape) const {
  return boundaries_.bytes.subspan(static_cast<size_t>(slot * boundary_bytes_),
                                   static_cast<size_t>(shape.boundary_bytes()));
}

absl::Span<std::byte> PassMemory::Inner(int slot) const {
  return inners_.bytes.subspan(static_cast<size_t>(slot * inner_bytes_), static_cast<size_t>(inner_bytes_));
}

absl::Span<std::byte> PassMemory::Tokens(int64_t item, const LayerShape& shape) const {
  return tokens_.bytes.subspan(static_cast<size_t>(item * token_bytes_), static_cast<size_t>(shape.token_bytes()));
}

absl::Span<LossRecord> PassMemory::records() const { return As<LossRecord>(records_); }
absl::Span<int32_t> PassMemory::FirstRows(int64_t block, int64_t item) const {
  const int64_t each = experts_ + 1;
  return As<int32_t>(first_rows_)
      .subspan(static_cast<size_t>((block * items_ + item) * each), static_cast<size_t>(each));
}
absl::Span<int32_t> PassMemory::flags() const { return As<int32_t>(flags_); }
const StartValues& PassMemory::start_values() const { return As<StartValues>(start_values_).front(); }

}  // namespace eps::worker
