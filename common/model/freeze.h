#ifndef EPS_COMMON_MODEL_FREEZE_H_
#define EPS_COMMON_MODEL_FREEZE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/model_spec.h"

namespace eps {

// Whether all of `text` is what `pattern` says: `*` is any characters, also none, `?` any one, any other itself.
bool MatchesGlob(absl::string_view pattern, absl::string_view text);

// The model with the tensors frozen that `patterns` choose by their Hugging Face names, as an exported folder has them. A
// pattern that begins with `!` takes back what those before it chose: for each tensor the last one that matches it counts.
//
// A blob with tensors of both kinds becomes two of the same layers: one that is trained, with its name, and "NAME.frozen"
// behind it in pull order. In a layer's slot frozen blobs are last, and in a frozen blob tables and matrices are: kernels
// make the gradients of vectors in passing, and so need no room for more than what lies before.
//
// Errors: INVALID_ARGUMENT model.freeze: a pattern that matches no tensor, with a name that is near; every tensor is frozen;
//         more than kMaxFreezePatterns, or one beyond kMaxFreezePatternBytes
absl::StatusOr<ModelSpec> Freeze(ModelSpec model, const std::vector<std::string>& patterns);

inline constexpr size_t kMaxFreezePatterns = 256;
inline constexpr size_t kMaxFreezePatternBytes = 256;

}  // namespace eps

#endif  // EPS_COMMON_MODEL_FREEZE_H_
