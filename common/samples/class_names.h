#ifndef EPS_COMMON_SAMPLES_CLASS_NAMES_H_
#define EPS_COMMON_SAMPLES_CLASS_NAMES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/spec/run_config.h"

// A token file numbers the names of its own labels; a model has numbers of its own for them, which its head was trained
// with. They meet by name.
namespace eps {

// What the classes of a run are called: model.class_names, or else all names that its data have, in their order. Empty:
// they are numbers alone, or the run has no classes. of_tokens: the run with its data as token files
// Errors: INVALID_ARGUMENT naming the file of `run`, and a name that the model does not have; some files have names and
//         some numbers; not as many names as model.classes
absl::StatusOr<std::vector<std::string>> ClassNamesOf(const RunConfig& run, const RunConfig& of_tokens);

// The model's number of each class of a token file, whose index names them; empty: the file's numbers are the model's.
// Errors: INVALID_ARGUMENT naming `path`, and a name that the model does not have
absl::StatusOr<std::vector<int32_t>> NumbersOfClasses(const std::vector<std::string>& names_in_file,
                                                      const std::vector<std::string>& names_of_model,
                                                      const std::string& path);

}  // namespace eps

#endif  // EPS_COMMON_SAMPLES_CLASS_NAMES_H_
