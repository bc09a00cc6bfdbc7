#ifndef EPS_COMMON_MODEL_NAME_PATTERNS_H_
#define EPS_COMMON_MODEL_NAME_PATTERNS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/model_spec.h"

namespace eps {

// Whether all of `text` is what `pattern` says: `*` is any characters, also none, `?` any one, any other itself.
bool MatchesGlob(absl::string_view pattern, absl::string_view text);

// For each tensor of the model, by its Hugging Face name, whether `patterns` choose it: the last one that matches it counts,
// and one that begins with `!` takes back what those before it chose. What none matches is as `otherwise` has it.
//
// Errors: INVALID_ARGUMENT, which names `field`: a pattern that matches no tensor, with a name that is near; more than
//         kMaxNamePatterns, or one beyond kMaxNamePatternBytes
absl::StatusOr<std::map<std::string, bool>> ChooseTensors(const ModelSpec& model,
                                                          const std::vector<std::string>& patterns,
                                                          absl::string_view field,
                                                          absl::FunctionRef<bool(const TensorSpec&)> otherwise);
// The same, where what none matches is not chosen.
absl::StatusOr<std::map<std::string, bool>> ChooseTensors(const ModelSpec& model,
                                                          const std::vector<std::string>& patterns,
                                                          absl::string_view field);

inline constexpr size_t kMaxNamePatterns = 256;
inline constexpr size_t kMaxNamePatternBytes = 256;

}  // namespace eps

#endif  // EPS_COMMON_MODEL_NAME_PATTERNS_H_
