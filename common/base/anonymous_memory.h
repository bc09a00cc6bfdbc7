#ifndef EPS_COMMON_BASE_ANONYMOUS_MEMORY_H_
#define EPS_COMMON_BASE_ANONYMOUS_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// Large memory of this process alone: zeros, in huge pages where the system allows them, given by the system page by
// page as it is first touched.
class AnonymousMemory {
 public:
  // `what` begins the error: "model state". Errors: RESOURCE_EXHAUSTED, with the bytes and the system's reason
  static absl::StatusOr<AnonymousMemory> Map(int64_t num_bytes, absl::string_view what);
  AnonymousMemory() = default;  // none
  AnonymousMemory(AnonymousMemory&& other) noexcept;
  AnonymousMemory& operator=(AnonymousMemory&& other) noexcept;
  ~AnonymousMemory();

  // Has the system give all pages now, to as many threads at once as there are cores: one alone makes some 2 GB of them
  // a second, and what pins memory that has none yet is one. What is there stays.
  void Populate() const;

  std::byte* base() const { return base_; }  // null: none
  int64_t num_bytes() const { return num_bytes_; }

 private:
  std::byte* base_ = nullptr;
  int64_t num_bytes_ = 0;
};

}  // namespace eps

#endif  // EPS_COMMON_BASE_ANONYMOUS_MEMORY_H_
