#ifndef EPS_COMMON_SPEC_RUN_SPEC_FIELDS_H_
#define EPS_COMMON_SPEC_RUN_SPEC_FIELDS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

// How errors speak of a RunSpec's fields, whatever form it was read from.
namespace eps {

// "model" and "layers": "model.layers".
std::string JoinPath(absl::string_view parent, absl::string_view name);

// "layers, d_model, ...": all that `message` has.
std::string FieldNames(const google::protobuf::Descriptor& message);

// "unknown field; known: layers, d_model, ..." for a name that is no field of `message`.
std::string UnknownFieldText(const google::protobuf::Descriptor& message);

// What a value of `field` must be, where `given` cannot be one: "a whole number", "one of SEQUENTIAL, SHUFFLED". Of a
// whole number also what its type can hold, "at most 2147483647"; what the field may be of that its check says.
std::string TypeWords(const google::protobuf::FieldDescriptor& field, absl::string_view given = "");

// Several messages; what else is repeated are values.
bool IsMessages(const google::protobuf::FieldDescriptor& field);

// What protobuf takes and nothing here can mean: a number that names no value of an enum, a text with a zero byte, which
// the system's calls would cut there. `path` is `message`'s own. Errors: INVALID_ARGUMENT, the field's path first
absl::Status CheckValues(const google::protobuf::Message& message, const std::string& path);

}  // namespace eps

#endif  // EPS_COMMON_SPEC_RUN_SPEC_FIELDS_H_
