#ifndef EPS_COMMON_CHOICES_CHOICES_H_
#define EPS_COMMON_CHOICES_CHOICES_H_

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

// Choices that change bits: a library's algorithm for a shape. Made once per run and device model, held by the daemon,
// kept in its checkpoints, followed by every worker of that model: docs/decisions/0012-choices.md.
namespace eps {

// What was chosen, by what it was chosen for. Both are text that only devices of one model understand.
using Choices = std::map<std::string, std::string>;

// How they are made.
enum class ChoiceRule {
  kFirst,    // what the library offers first, without running anything: the same in every process
  kFastest,  // what took the least time when it was tried: a matter of the moment
};

inline constexpr size_t kMaxChoices = 256;
inline constexpr size_t kMaxChoiceKeyBytes = 256, kMaxChoiceValueBytes = 1024;
inline constexpr size_t kMaxChoicesBytes = 64 * 1024;  // keys and values together: a small message holds them

// Of a file's or a peer's. `field` is what errors name.
// Errors: INVALID_ARGUMENT too many or too long; a key or value that is empty or has bytes beside printable ASCII; a key
//         that comes twice
absl::StatusOr<Choices> CheckedChoices(absl::Span<const std::pair<std::string, std::string>> pairs,
                                       absl::string_view field);

}  // namespace eps

#endif  // EPS_COMMON_CHOICES_CHOICES_H_
