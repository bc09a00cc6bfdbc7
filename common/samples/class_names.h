#ifndef EPS_COMMON_SAMPLES_CLASS_NAMES_H_
#define EPS_COMMON_SAMPLES_CLASS_NAMES_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/formats/document_index.h"
#include "common/spec/run_config.h"

// A token file numbers the names of its own labels; a model has numbers of its own for them, which its head was trained
// with. They meet by name.
namespace eps {

// What the classes of a run are called: model.class_names, or else all names that its data have, in their order. Empty:
// they are numbers alone, or the run has no classes. of_tokens: the run with its data as token files
// Errors: INVALID_ARGUMENT naming the file of `run`, and a name that the model does not have, or cannot have; some
//         files have names and some numbers; not as many names as model.classes
absl::StatusOr<std::vector<std::string>> ClassNamesOf(const RunConfig& run, const RunConfig& of_tokens);

// The model's number of each class of a token file. Empty: the file's numbers are the model's. Whole numbers are names
// too where the model calls a class by one, and then none of them is a class's number.
// data: the token file as the run has it, for errors
// Errors: INVALID_ARGUMENT naming the place of a label that is none of the model's classes, or could be two of them
absl::StatusOr<std::unordered_map<int32_t, int32_t>> NumbersOfClasses(const DocumentIndex& index,
                                                                      const std::vector<std::string>& names_of_model,
                                                                      const DataConfig& data);

// Whether the labels of a run's evaluation mean what they do in its training. evaluation, of_tokens: `run` with the
// evaluation's data, as the RunSpec has them and as a token file.
// Errors: INVALID_ARGUMENT they are names, and the model's classes have none; the index's
absl::Status CheckClassesOfEvaluation(const RunConfig& evaluation, const RunConfig& of_tokens);

}  // namespace eps

#endif  // EPS_COMMON_SAMPLES_CLASS_NAMES_H_
