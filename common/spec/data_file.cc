#include "common/spec/data_file.h"

#include <utility>

#include "absl/status/statusor.h"

namespace eps {
namespace {

// The file `path` of the run that is gone on with, as it stands in the same field there, or else in any: sources may
// have been put in another order. Null where there is none.
const DataConfig* FindFormer(const RunConfig* resumed, const std::string& path, absl::string_view path_field) {
  if (resumed == nullptr) return nullptr;
  if (resumed->sources.empty()) return resumed->data.path == path ? &resumed->data : nullptr;
  const DataConfig* found = nullptr;
  for (const DataSource& source : resumed->sources) {
    if (source.data.path != path) continue;
    if (source.data.path_field == path_field) return &source.data;
    if (found == nullptr) found = &source.data;
  }
  return found;
}

}  // namespace

DataFile LookAtDataFile(const std::string& path, TokenForm form, absl::string_view path_field,
                        const CheckContext& context, Checker& check) {
  DataFile file{.path = context.absolute_path(path)};
  file.was = FindFormer(context.resumed, file.path, path_field);
  if (file.was != nullptr) return file;
  if (context.read_beginning != nullptr) file.beginning = context.read_beginning(file.path);
  if (form != TokenForm::kTokenFile || context.read_index == nullptr) return file;
  absl::StatusOr<std::optional<DocumentIndexHeader>> index = context.read_index(file.path);
  if (!index.ok()) check.Fail(path_field, index.status().message());
  if (index.ok()) file.index = *std::move(index);
  return file;
}

}  // namespace eps
